"""`Effects`: what patching one head does to the answer, head by head and trial by trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .. import html
from . import statistics
from .files import ResultFileError, read_result, result_path, usable, write_arrays
from .head_scores import HeadScores
from .prompts import other_prompts

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray
Head = tuple[int, int]

KINDS = ("total", "direct", "indirect", "attribution", "path")
PLACES = ("z", "q", "k", "v", "pattern")
METRICS = ("logit_diff", "answer_logprob")
POSITIONS = ("all", "needle", "answer")
FILE = "effects.safetensors"
_SMALLEST_GAP = 1e-6


@dataclass(frozen=True, eq=False)
class Effects:
    """Effects of single heads: clean activations restored in a corrupt run.

    Sign: positive means that restoring the head's clean activation moves the metric towards the clean
    answer; negative, that it moves the metric away from it.

    Attributes:
        kind: "total", "direct", "indirect", "attribution" (the gradient's estimate of the total) or "path".
        at: the restored activation: "z", "q", "k", "v" or "pattern".
        metric: "logit_diff" (gold minus counterfactual) or "answer_logprob".
        positions: where it was restored: "all", "needle" or "answer".
        per_trial: metric of the patched run minus metric of the corrupt run, float32; NaN where a head
            has no effect to speak of. [trial, layer, head]
        clean: metric of the clean run of each trial.
        corrupt: metric of the corrupt run of each trial.
        trial_ids: the trials, in the order of ``per_trial``.
        n_heads: query heads a layer.
        n_key_value_heads: key-value heads a layer. With grouped-query attention they are what is
            restored at "k" and "v": the head axis then has this size.
        provenance: what made the effects: model, versions, corruption, trials.
    """

    kind: str
    at: str
    metric: str
    positions: str
    per_trial: Float[Array, "trial layer head"]
    clean: Float[Array, " trial"]
    corrupt: Float[Array, " trial"]
    trial_ids: tuple[str, ...]
    n_heads: int
    n_key_value_heads: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {"kind": KINDS, "at": PLACES, "metric": METRICS, "positions": POSITIONS}
        for name, allowed in known.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.n_key_value_heads < 1 or self.n_heads < 1 or self.n_heads % self.n_key_value_heads:
            raise ValueError(f"{self.n_heads} query heads cannot share {self.n_key_value_heads} key-value heads")
        object.__setattr__(self, "per_trial", np.asarray(self.per_trial, dtype=np.float32))
        object.__setattr__(self, "trial_ids", tuple(self.trial_ids))
        shape = self.per_trial.shape
        if len(shape) != 3 or 0 in shape or shape[2] != self._axis_size:
            raise ValueError(
                f"per_trial must be [trial, layer, head] with {self._axis_size} heads at {self.at!r}, got shape {shape}"
            )
        if len(set(self.trial_ids)) != shape[0]:
            raise ValueError(f"{len(set(self.trial_ids))} different trial ids for {shape[0]} rows of effects")
        for name in ("clean", "corrupt"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape != shape[:1]:
                raise ValueError(f"{name} must hold one number a trial, got shape {values.shape} for {shape[0]} trials")
            object.__setattr__(self, name, values)

    # --- sizes ----------------------------------------------------------------------------------

    @property
    def _axis_size(self) -> int:
        return self.n_key_value_heads if self.at in ("k", "v") else self.n_heads

    @property
    def head_axis(self) -> str:
        """What the head axis counts: "query head" or, under grouped-query attention at k and v, "KV head"."""
        return "query head" if self._axis_size == self.n_heads else "KV head"

    @property
    def n_trials(self) -> int:
        """Trials."""
        return self.per_trial.shape[0]

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.per_trial.shape[1]

    # --- what a reader asks ---------------------------------------------------------------------

    @property
    def gap(self) -> Float[Array, " trial"]:
        """What the corruption took away: clean minus corrupt metric."""
        return self.clean - self.corrupt

    @cached_property
    def recovery(self) -> Float[Array, "trial layer head"]:
        """Effect as a share of the gap (1: the head alone brings the answer back); NaN without a gap."""
        gap = np.where(np.abs(self.gap) < _SMALLEST_GAP, np.nan, self.gap)
        return (self.per_trial / gap[:, None, None]).astype(np.float32)

    @cached_property
    def mean(self) -> Float[Array, "layer head"]:
        """Mean effect over trials; NaN for a head without any."""
        return statistics.nan_mean(self._finite).astype(np.float32)

    @cached_property
    def mean_recovery(self) -> Float[Array, "layer head"]:
        """Mean effect over mean gap, both over the head's trials: one trial with a small gap cannot rule it."""
        gap = np.where(np.isfinite(self._finite), self.gap[:, None, None], np.nan)
        mean_gap = statistics.nan_mean(gap)
        small = ~(np.abs(mean_gap) >= _SMALLEST_GAP)
        return np.divide(self.mean, mean_gap, out=np.full(mean_gap.shape, np.nan), where=~small).astype(np.float32)

    @property
    def _finite(self) -> Float[Array, "trial layer head"]:
        return np.where(np.isfinite(self.per_trial), self.per_trial, np.nan).astype(np.float32)

    def ci(
        self, level: float = 0.95, n_resamples: int = 1000, seed: int = 0
    ) -> tuple[Float[Array, "layer head"], Float[Array, "layer head"]]:
        """Percentile bootstrap interval of the mean effect over trials (lower, upper)."""
        return statistics.bootstrap_ci(self._finite, level, n_resamples, seed)

    def ranking(self) -> list[Head]:
        """Heads as (layer, head), largest mean effect first; heads without one are left out."""
        return statistics.rank_heads(self.mean)

    def to_frame(self) -> pd.DataFrame:
        """One row per head: layer, head, effect, ci_low, ci_high, recovery, rank, n_trials.

        Where the axis counts key-value heads the column is "kv_head", so that they are not taken for query heads.
        """
        import pandas as pd

        low, high = self.ci()
        ranks = {head: rank for rank, head in enumerate(self.ranking(), 1)}
        cells = [(layer, head) for layer in range(self.n_layers) for head in range(self._axis_size)]
        frame = pd.DataFrame(cells, columns=["layer", "head" if self.head_axis == "query head" else "kv_head"])
        frame["effect"] = self.mean.reshape(-1)
        frame["ci_low"], frame["ci_high"] = low.reshape(-1), high.reshape(-1)
        frame["recovery"] = self.mean_recovery.reshape(-1)
        frame["rank"] = pd.array([ranks.get(cell) for cell in cells], dtype="Int64")
        frame["n_trials"] = np.isfinite(self.per_trial).sum(0).reshape(-1)
        return frame

    def top(self, k: int = 10) -> pd.DataFrame:
        """The k heads with the largest mean effect."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        frame = self.to_frame()
        return frame[frame["rank"].notna()].sort_values("rank").head(k).reset_index(drop=True)

    def minus(self, other: Effects, kind: str = "indirect") -> Effects:
        """The effect that this one has beyond another, trial by trial: total - direct = indirect.

        Raises:
            ValueError: unless both restore the same activation in the same runs.
        """
        self._require_same(other, ("at", "metric", "positions", "n_heads", "n_key_value_heads", "trial_ids"))
        runs = ((self.clean, other.clean), (self.corrupt, other.corrupt))
        if not all(np.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True) for a, b in runs):
            raise ValueError(f"{self.kind} and {other.kind} effects come from different clean or corrupt runs")
        provenance = dict(self.provenance) | {"difference": [self.kind, other.kind]}
        return replace(self, kind=kind, per_trial=self.per_trial - other.per_trial, provenance=provenance)

    def agreement(self, other: Effects, ks: Sequence[int] = (10, 20, 50)) -> dict[str, float]:
        """How far two effects agree over heads: Pearson, Spearman, Kendall and overlap at k of their means.

        Raises:
            ValueError: for effects of different trials or heads.
        """
        self._require_same(other, ("trial_ids",))
        found = statistics.rank_agreement(self.mean, other.mean, ks)
        both = np.isfinite(self.mean) & np.isfinite(other.mean)
        x, y = self.mean[both], other.mean[both]
        varied = len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0
        return {"pearson": float(np.corrcoef(x, y)[0, 1]) if varied else float("nan"), **found}

    @classmethod
    def stack(cls, parts: Sequence[Effects]) -> Effects:
        """Join effects of different trials of one model.

        Raises:
            ValueError: for none, for parts of different kinds, or for a trial in two of them.
        """
        if not parts:
            raise ValueError("no effects to stack")
        first = parts[0]
        for part in parts[1:]:
            first._require_same(part, ("kind", "at", "metric", "positions", "n_heads", "n_key_value_heads"))
        agree = all(part.provenance == first.provenance for part in parts)
        return replace(
            first,
            per_trial=np.concatenate([part.per_trial for part in parts]),
            clean=np.concatenate([part.clean for part in parts]),
            corrupt=np.concatenate([part.corrupt for part in parts]),
            trial_ids=tuple(trial_id for part in parts for trial_id in part.trial_ids),
            provenance=first.provenance if agree else {"parts": [dict(part.provenance) for part in parts]},
        )

    def _require_same(self, other: Effects, names: Sequence[str]) -> None:
        for name in (*names, "n_layers"):
            if getattr(self, name) != getattr(other, name):
                mine, theirs = (repr(getattr(effects, name))[:80] for effects in (self, other))
                raise ValueError(f"effects of different {name}: {mine} and {theirs}")
        if changed := other_prompts(self.provenance, other.provenance, self.trial_ids):
            raise ValueError(f"effects of different prompts: {changed[0]!r} names another prompt in each")

    def to_head_scores(self, name: str | None = None) -> HeadScores:
        """The effects as head scores, for every statistic, figure and ablation that takes those.

        Args:
            name: name of the scores; default: the kind.
        """
        settings = {key: getattr(self, key) for key in ("kind", "at", "metric", "positions", "head_axis")}
        return HeadScores(
            detector=name or self.kind,
            per_trial=self._finite,
            trial_ids=self.trial_ids,
            n_total=self.n_trials,
            n_key_value_heads=self.n_key_value_heads,
            provenance=dict(self.provenance) | {"effects": settings},
        )

    def __repr__(self) -> str:
        best = ", ".join(f"L{layer}H{head}" for layer, head in self.ranking()[:3])
        return (
            f"Effects({self.kind} effect of {self.at} on {self.metric}, positions: {self.positions}, "
            f"{self.n_layers} layers x {self._axis_size} {self.head_axis}s, {self.n_trials} trials, "
            f"top: {best or 'none'}; positive = towards the clean answer)"
        )

    def _repr_html_(self) -> str:
        sizes = f"{self.n_layers} layers x {self._axis_size} {self.head_axis}s"
        about = html.line(sizes, f"{self.n_trials} trials", "positive = towards the clean answer")
        title = f"{self.kind} effect of {self.at} on {self.metric}, positions: {self.positions}"
        return html.card(title, about, html.frame(self.top(10)))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file with the JSON metadata inside.

        Args:
            path: the file, or an existing folder for ``effects.safetensors`` in it.
        """
        path = result_path(path, FILE)
        names = ("kind", "at", "metric", "positions", "trial_ids", "n_heads", "n_key_value_heads", "provenance")
        # "kind" names the class in every result file, so the effect's own kind stands under "effect".
        meta = {("effect" if name == "kind" else name): getattr(self, name) for name in names}
        arrays = {name: getattr(self, name) for name in ("per_trial", "clean", "corrupt")}
        write_arrays(path, arrays, {"kind": "Effects", **meta})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Effects:
        """Read a file written by `save`.

        Raises:
            ResultFileError: when the file is missing, damaged or of another kind.
        """
        path = result_path(path, FILE)
        arrays, meta = read_result(path, "Effects")
        with usable(path, "Effects"):
            return cls(
                kind=str(meta["effect"]),
                at=str(meta["at"]),
                metric=str(meta["metric"]),
                positions=str(meta["positions"]),
                per_trial=arrays["per_trial"],
                clean=arrays["clean"],
                corrupt=arrays["corrupt"],
                trial_ids=tuple(str(i) for i in meta["trial_ids"]),
                n_heads=int(meta["n_heads"]),
                n_key_value_heads=int(meta["n_key_value_heads"]),
                provenance=dict(meta["provenance"]),
            )


def load_effects(folder: str | Path) -> dict[str, Effects]:
    """The effects that `causal.validation.patch_trials` left in a folder, by kind.

    Raises:
        ResultFileError: when there are none, or one is damaged.
    """
    paths = {kind: Path(folder) / f"{kind}.safetensors" for kind in KINDS}
    found = {kind: Effects.load(path) for kind, path in paths.items() if path.is_file()}
    if not found:
        raise ResultFileError(f"{folder}: holds no finished effects; run the same `locos-tl patch ... --out` again")
    return found
