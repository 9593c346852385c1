"""How deep in the model the positive mass of a score map lies, with intervals over resampled trials."""

from __future__ import annotations

from typing import NamedTuple, SupportsFloat

import numpy as np
from jaxtyping import Float

Array = np.ndarray


class Interval(NamedTuple):
    """A value with its 95 % percentile bootstrap interval over trials."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """Cross-fitted share of the positive mass in each layer, with its 95 % bootstrap band over trials.

    A share may come out slightly below 0: what noise adds in one layer it takes in another.
    """

    share: Float[Array, " layer"]
    low: Float[Array, " layer"]
    high: Float[Array, " layer"]


def interval_of(value: SupportsFloat, spread: Float[Array, " resample"]) -> Interval:
    """Percentile interval; without bounds when more resamples have no value than lie outside of it."""
    known = spread[np.isfinite(spread)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) >= 0.95 * len(spread) else (np.nan, np.nan)
    return Interval(float(value), float(low), float(high))


def depth_of(mass: Float[Array, "... layer"], statistic: str) -> Float[Array, "..."]:
    """Share in the last third, or centre of mass, of layer masses; NaN where their sum is not positive."""
    n_layers = mass.shape[-1]
    late = np.arange(n_layers) >= n_layers - n_layers // 3
    weights = {"last_third": late.astype(np.float64), "centre_of_mass": np.linspace(0.0, 1.0, n_layers)}[statistic]
    total = mass.sum(-1)
    return np.divide(mass @ weights, total, out=np.full(np.shape(total), np.nan), where=total > 0)


def rank_correlations(
    a: Float[Array, "resample layer head"], b: Float[Array, "resample layer head"]
) -> Float[Array, " resample"]:
    """Spearman correlation of two maps in every resample, over heads that carry both scores in all of them."""
    from scipy import stats

    both = (np.isfinite(a) & np.isfinite(b)).all(0)
    if both.sum() < 2:
        return np.full(len(a), np.nan)
    x, y = (stats.rankdata(means[:, both], axis=1) for means in (a, b))
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    size = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    return np.divide((x * y).sum(1), size, out=np.full(len(x), np.nan), where=size > 0)
