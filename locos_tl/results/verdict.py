"""The verdict on late layers: a rule fixed before looking (`LateLayers.verdict` states it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layer_depth import Interval

if TYPE_CHECKING:
    from .late_layers import LateLayers

MIN_TRIALS = 10
"""Trials below which the verdict is always "undecided"."""


def judge(late: LateLayers) -> tuple[str, str]:
    """Verdict and the numbers behind it."""
    if late.n_layers < 3:
        return "undecided", f"A model of {late.n_layers} layers has no last third."
    if late.n_trials < MIN_TRIALS:
        return "undecided", f"{late.n_trials} trials are too few; at least {MIN_TRIALS} are needed."
    if not late.profiles[late.causal].share.any():
        return "undecided", f"Of no head is the {late.causal_name} positive beyond noise."
    mass, gap, p = late.depth(late.causal), late.difference(), late.p_values[late.causal]
    numbers = (
        f"Of the positive mass of the {late.causal_name}, {mass.value * 100:.0f} % lies in the last third of the "
        f"layers ({_bounds(mass, '.0f')}; chance {late.chance * 100:.0f}; permutation p = {p:.2g})"
    )
    if np.isfinite(gap.value):
        numbers += (
            f", of that of {late.reference} {late.depth(late.reference).value * 100:.0f} %. The difference is "
            f"{gap.value * 100:+z.0f} points ({_bounds(gap, '+z.0f')}), the margin {late.margin * 100:.0f}."
        )
    else:
        numbers += f". {late.reference} has no mass that is positive beyond noise, so there is no difference."
    if late.p_values[late.reference] >= 0.05:
        numbers += f" {late.reference} itself is not concentrated there (p = {late.p_values[late.reference]:.2g})."
    if p < 0.05 and gap.low > -late.margin:
        return "holds", numbers
    if gap.high < -late.margin or mass.high <= late.chance:
        return "does not hold", numbers
    return "undecided", numbers


def _bounds(found: Interval, form: str) -> str:
    """The interval of a share, in percent."""
    if not np.isfinite([found.low, found.high]).all():
        return "no interval, as too many resamples keep no positive mass"
    return f"95 % interval {found.low * 100:{form}} to {found.high * 100:{form}}"
