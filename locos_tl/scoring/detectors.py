"""The detectors: each a function from one trial's `Measurement` to a score per head.

To add one, write a function, decorate it, and name what it reads; it then shares the one pass over the
model with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..choices import unknown
from .contrast import contrast
from .measure import READS, WINDOW, Measurement

Score = Float[Tensor, "layer head"]
RANDOM_SEEDS = (42, 43, 44)


@dataclass(frozen=True)
class Detector:
    """A registered detector.

    Attributes:
        reads: parts of the `Measurement` it needs.
        gated: counts only trials that pass the gate.
        all_steps: looks at every generated token, so decoding must run to its end.
    """

    name: str
    score: Callable[[Measurement], Score]
    reads: frozenset[str]
    gated: bool
    all_steps: bool


DETECTORS: dict[str, Detector] = {}


def detector(
    name: str, *, reads: Iterable[str], gated: bool = True, all_steps: bool = False
) -> Callable[[Callable[[Measurement], Score]], Callable[[Measurement], Score]]:
    """Register a detector under ``name``."""

    def register(score: Callable[[Measurement], Score]) -> Callable[[Measurement], Score]:
        if unknown := set(reads) - READS:
            raise ValueError(f"detector {name!r} reads {sorted(unknown)}, which nothing measures")
        DETECTORS[name] = Detector(name, score, frozenset(reads), gated, all_steps)
        return score

    return register


@detector("locos", reads=["phi"])
def locos(m: Measurement) -> Score:
    """Logit-Contribution Scoring: mean over answer steps of Phi+ - Phi- (arXiv 2607.01002, section 2)."""
    assert m.phi_needle is not None
    assert m.phi_off is not None
    return contrast(m.phi_needle, m.phi_off, m.n_needle, m.n_keys).mean(-1)


@detector("attention_spatial", reads=["attention"])
def attention_spatial(m: Measurement) -> Score:
    """The same contrast on attention probabilities: where the head reads, without what it writes."""
    assert m.alpha_needle is not None
    assert m.alpha_off is not None
    return contrast(m.alpha_needle, m.alpha_off, m.n_needle, m.n_keys).mean(-1)


@detector("dla", reads=["phi"])
def dla(m: Measurement) -> Score:
    """Direct logit attribution of the head: mean over answer steps of phi summed over all keys."""
    assert m.phi_needle is not None
    assert m.phi_off is not None
    return (m.phi_needle + m.phi_off).mean(-1)


@detector("wu", reads=["argmax"], all_steps=True)
def wu(m: Measurement) -> Score:
    """Copy score (Wu et al. 2025): steps whose arg-max key lies in the needle and holds the generated token."""
    assert m.argmax_key is not None
    start, end = m.needle_span
    attended = torch.tensor(m.ids)[m.argmax_key]
    copies = (m.argmax_key >= start) & (m.argmax_key < end) & (attended == torch.tensor(m.generated_ids))
    return copies.float().sum(-1) / m.n_needle


@detector("contrastive", reads=["top"], all_steps=True)
def contrastive(m: Measurement) -> Score:
    """Needle share of the ten largest weights, answer steps against the other steps: max(A+ - A-, 0)."""
    assert m.top_share is not None
    answer = m.top_share[..., list(m.answer_steps)].mean(-1)
    if not m.other_steps:
        return answer
    return (answer - m.top_share[..., list(m.other_steps)].mean(-1)).clamp(min=0.0)


@detector("headkv", reads=["window"], gated=False)
def headkv(m: Measurement) -> Score:
    """Largest attention mass on the needle among the last 8 prompt tokens (Fu et al. 2025); no gate.

    Raises:
        ValueError: when the needle reaches into that window.
    """
    assert m.window_mass is not None
    if m.needle_span[1] > m.n_prompt - WINDOW:
        raise ValueError(
            f"headkv: the needle ends at token {m.needle_span[1]} of {m.n_prompt}, inside the last {WINDOW} prompt "
            "tokens that look back at it; put text behind the needle or leave headkv out"
        )
    return m.window_mass.amax(-1)


def random_scores(
    n_layers: int, n_heads: int, seeds: Iterable[int] = RANDOM_SEEDS
) -> Float[np.ndarray, "seed layer head"]:
    """Uniform random scores, one map per seed: the control every detector has to beat."""
    maps = [np.random.default_rng(seed).random((n_layers, n_heads), dtype=np.float32) for seed in seeds]
    return np.stack(maps)


def resolve(names: str | Iterable[str]) -> tuple[list[Detector], bool]:
    """Detectors by name ("all" for every one), and whether "random" is among them.

    Raises:
        ValueError: naming the unknown detector and the choices.
    """
    wanted = [*DETECTORS, "random"] if names == "all" else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name == "cri":
            raise ValueError("'cri' is activation patching and needs a corrupt prompt: use patch_heads")
        if name not in DETECTORS and name != "random":
            raise ValueError(unknown("detector", name, [*DETECTORS, "random"]))
    if not wanted:
        raise ValueError("no detector requested")
    unique = list(dict.fromkeys(wanted))
    return [DETECTORS[name] for name in unique if name != "random"], "random" in unique
