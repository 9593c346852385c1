"""Statistics of head scores: intervals over trials, layer profiles, agreement between rankings.

Arrays are numpy; a score map is [layer, head], per-trial scores are [trial, layer, head]. Entries that
carry no score (a head that cannot see the needle) are NaN and never counted as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

Array = np.ndarray
Head = tuple[int, int]


def resample_counts(n_trials: int, n_resamples: int, seed: int) -> Float[Array, "resample trial"]:
    """How often each trial occurs in each bootstrap resample (rows sum to ``n_trials``)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_trials, np.full(n_trials, 1.0 / n_trials), size=n_resamples).astype(np.float64)


def resampled_means(
    per_trial: Float[Array, "trial ..."], n_resamples: int = 1000, seed: int = 0
) -> Float[Array, "resample ..."]:
    """The mean over trials in each bootstrap resample, NaN entries left out.

    One matrix product in place of an index array per resample: memory is resamples x entries, not
    resamples x trials x entries as with `scipy.stats.bootstrap` (the test compares the two). In float64:
    in float32 the interval of a constant would miss the constant.
    """
    n_trials = per_trial.shape[0]
    flat = per_trial.reshape(n_trials, -1)
    present = np.isfinite(flat)
    counts = resample_counts(n_trials, n_resamples, seed)
    weights = counts @ present.astype(np.float64)
    sums = counts @ np.where(present, flat, 0.0).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums / weights
    return means.reshape(n_resamples, *per_trial.shape[1:])


def bootstrap_ci(
    per_trial: Float[Array, "trial ..."], level: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    """Percentile bootstrap interval of the mean over trials.

    Returns:
        Lower and upper bound, each shaped like one trial; NaN where no trial carries a score.
    """
    means = resampled_means(per_trial, n_resamples, seed)
    tail = (1.0 - level) / 2.0
    empty = np.isnan(means).all(0)
    low, high = np.nanquantile(np.where(empty, 0.0, means), [tail, 1.0 - tail], axis=0)
    return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def nan_mean(per_trial: Float[Array, "trial ..."]) -> Float[Array, " ..."]:
    """Mean over trials in float64, ignoring NaN; NaN where no trial carries a score."""
    present = np.isfinite(per_trial)
    sums = np.where(present, per_trial, 0.0).astype(np.float64).sum(0)
    counts = present.sum(0)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def rank_heads(score: Float[Array, "layer head"]) -> list[Head]:
    """Heads from highest to lowest score; ties in layer, head order; heads without a score left out."""
    flat = score.reshape(-1)
    order = np.argsort(-flat, kind="stable")
    return [(int(i) // score.shape[1], int(i) % score.shape[1]) for i in order if np.isfinite(flat[i])]


def layer_mass(score: Float[Array, "layer head"]) -> Float[Array, " layer"]:
    """Share of the summed positive scores that each layer holds (all zero if no score is positive)."""
    positive = np.where(np.isfinite(score), score, 0.0).clip(min=0.0).sum(-1)
    total = positive.sum()
    return positive / total if total > 0 else np.zeros_like(positive)


def last_third(score: Float[Array, "layer head"]) -> float:
    """Share of the positive mass in the last floor(n / 3) of n layers (0 below three layers)."""
    mass = layer_mass(score)
    return float(mass[len(mass) - len(mass) // 3 :].sum())


def centre_of_mass(score: Float[Array, "layer head"]) -> float:
    """Mean relative depth of the positive mass: 0 is the first layer, 1 the last."""
    mass = layer_mass(score)
    if mass.sum() == 0:
        return float("nan")
    return float(mass @ np.linspace(0.0, 1.0, len(mass)))


def gini(score: Float[Array, "layer head"]) -> float:
    """Gini coefficient of the positive scores over heads: 0 evenly spread, near 1 in one head."""
    values = np.sort(np.where(np.isfinite(score), score, 0.0).clip(min=0.0).reshape(-1))
    if values.sum() == 0:
        return float("nan")
    ranks = np.arange(1, len(values) + 1)
    return float((2 * ranks - len(values) - 1) @ values / (len(values) * values.sum()))


CONCENTRATION: Mapping[str, Callable[[Any], float]] = {
    "last_third": last_third,
    "centre_of_mass": centre_of_mass,
    "gini": gini,
}


def cross_fitted_mass(
    per_trial: Float[Array, "trial layer head"], n_splits: int = 1000, seed: int = 0, *, resample: bool = False
) -> Float[Array, "split layer"]:
    """Positive score mass of each layer, freed from what noise adds to it.

    The plain mass counts the positive means of heads without any effect, which are spread over all
    layers, so a noisy map looks evenly spread. Here the trials are split in two random halves; one says
    which heads are positive, the other how much they score, and the other way round:

        mass[l] = 1/2 sum_h (1[a > 0] b + 1[b > 0] a),    a, b: mean scores of head h in the two halves

    A head without effect adds 0 on average. A layer's mass may come out slightly negative.

    Args:
        per_trial: scores of at least two trials; NaN entries are left out.
        n_splits: random splits.
        seed: the same seed splits any scores of as many trials alike.
        resample: also bootstrap the trials within each half, for an interval.

    Returns:
        One row a split, not normalised.
    """
    n_trials, n_layers, n_heads = per_trial.shape
    if n_trials < 2:
        raise ValueError("one trial has no two halves")
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(n_trials), (n_splits, 1)), axis=1)
    halves = [order < n_trials // 2, order >= n_trials // 2]
    if resample:
        halves = [rng.multinomial(half[0].sum(), half / half[0].sum()) for half in halves]
    flat = per_trial.reshape(n_trials, -1)
    present = np.isfinite(flat)
    values = np.where(present, flat, 0.0).astype(np.float64)
    sums, counts = ([half.astype(np.float64) @ x for half in halves] for x in (values, present.astype(np.float64)))
    a, b = (np.divide(s, n, out=np.zeros_like(s), where=n > 0) for s, n in zip(sums, counts, strict=True))
    mass = ((a > 0) * b + (b > 0) * a) / 2
    return mass.reshape(n_splits, n_layers, n_heads).sum(-1)


def overlap_at_k(a: Sequence[Head], b: Sequence[Head], k: int) -> float:
    """Share of the first k heads that two rankings have in common."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    k = min(k, len(a), len(b))
    return len(set(a[:k]) & set(b[:k])) / k if k else float("nan")


def rank_agreement(
    a: Float[Array, "layer head"], b: Float[Array, "layer_b head_b"], ks: Sequence[int] = (10, 20, 50)
) -> dict[str, float]:
    """Spearman, Kendall and overlap at k of two score maps, over heads that carry both scores.

    For the overlap, k shrinks to the number of heads with a score other than 0 where there are fewer.

    Raises:
        ValueError: when the maps have different shapes.
    """
    from scipy import stats

    if a.shape != b.shape:
        raise ValueError(f"score maps of different models: {a.shape} and {b.shape} [layer, head]")
    both = np.isfinite(a) & np.isfinite(b)
    x, y = a[both], b[both]
    varied = len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0
    found = {
        "spearman": float(stats.spearmanr(x, y).statistic) if varied else float("nan"),
        "kendall": float(stats.kendalltau(x, y).statistic) if varied else float("nan"),
    }
    # Heads that score exactly 0 (most of them, for sparse scores like wu) are tied: no top k holds them.
    first, second = (rank_heads(np.where(both & (score != 0), score, np.nan)) for score in (a, b))
    return found | {f"overlap@{k}": overlap_at_k(first, second, k) for k in ks if k <= both.sum()}


def by_kv_group(
    score: Float[Array, "... head"], n_key_value_heads: int, how: str = "sum"
) -> Float[Array, "... kv_head"]:
    """Query-head scores put together per key-value head (query head h reads KV head h // group).

    Args:
        how: "sum" of the group, or its "max".
    """
    if how not in ("sum", "max"):
        raise ValueError(f"how must be sum or max, got {how!r}")
    n_heads = score.shape[-1]
    if n_heads % n_key_value_heads:
        raise ValueError(f"{n_heads} query heads do not split into {n_key_value_heads} key-value heads")
    groups = score.reshape(*score.shape[:-1], n_key_value_heads, n_heads // n_key_value_heads)
    return groups.sum(-1) if how == "sum" else groups.max(-1)
