"""`HeadScores`: what one detector says of every attention head, trial by trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from .. import html
from . import statistics
from .files import ResultFileError, read_json, read_result, read_table, to_json, usable, write_arrays, write_atomic

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray
Head = tuple[int, int]
_HEAD_KEY = re.compile(r"(\d{1,6})-(\d{1,6})")


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of one detector.

    Attributes:
        detector: name in the registry ("locos", "wu", ...).
        per_trial: score of every head in every counted trial, float32 [trial, layer, head]. Counted are
            the trials that passed the gate; for a detector without a gate (headkv), all trials; for
            "random", one row per seed.
        trial_ids: the counted trials, in the order of ``per_trial``.
        n_total: trials that were run, passed or not.
        n_key_value_heads: key-value heads, for KV-group labels.
        seen: False where a head could not see the needle in a trial (a sliding-window layer that had
            moved past it). Such entries keep the equation's value in ``per_trial`` but take no part in
            means, intervals and ranks. [trial, layer, head]; all True by default.
        provenance: what made these scores: model, revision, versions, dtype, seeds, settings.
    """

    detector: str
    per_trial: Float[Array, "trial layer head"]
    trial_ids: tuple[str, ...]
    n_total: int
    n_key_value_heads: int
    seen: Bool[Array, "trial layer head"] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scores = np.asarray(self.per_trial, dtype=np.float32)
        if scores.ndim != 3 or 0 in scores.shape:
            raise ValueError(f"per_trial must be [trial, layer, head] with no empty axis, got shape {scores.shape}")
        if len(self.trial_ids) != scores.shape[0]:
            raise ValueError(f"{len(self.trial_ids)} trial ids for {scores.shape[0]} rows of scores")
        if self.n_total < scores.shape[0]:
            raise ValueError(f"{scores.shape[0]} trials cannot count when {self.n_total} were run")
        if self.n_key_value_heads < 1 or scores.shape[2] % self.n_key_value_heads:
            raise ValueError(f"{scores.shape[2]} query heads cannot share {self.n_key_value_heads} key-value heads")
        seen = np.ones(scores.shape, bool) if self.seen is None else np.asarray(self.seen, dtype=bool)
        if seen.shape != scores.shape:
            raise ValueError(f"seen has shape {seen.shape}, per_trial {scores.shape}")
        if len(set(self.trial_ids)) < len(self.trial_ids):
            raise ValueError("a trial id occurs twice")
        object.__setattr__(self, "per_trial", scores)
        object.__setattr__(self, "seen", seen)
        object.__setattr__(self, "trial_ids", tuple(self.trial_ids))

    # --- sizes ----------------------------------------------------------------------------------

    @property
    def n_trials(self) -> int:
        """Trials (for "random": seeds) that count."""
        return self.per_trial.shape[0]

    passed = n_trials
    """The trials that count; with `n_total` as passed/total."""

    @property
    def total(self) -> int:
        """`n_total` under the name that `Scores` gives it."""
        return self.n_total

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.per_trial.shape[1]

    @property
    def n_heads(self) -> int:
        """Query heads a layer."""
        return self.per_trial.shape[2]

    def kv_group(self, head: int) -> int:
        """The key-value head that query head ``head`` reads."""
        return head // (self.n_heads // self.n_key_value_heads)

    # --- what a reader asks ---------------------------------------------------------------------

    @cached_property
    def counted(self) -> Float[Array, "trial layer head"]:
        """``per_trial`` with NaN where the head could not see the needle."""
        return np.where(self.seen, self.per_trial, np.nan).astype(np.float32)  # type: ignore[arg-type]

    @cached_property
    def mean(self) -> Float[Array, "layer head"]:
        """Head score: mean over the counted trials; NaN for a head that never saw the needle."""
        return statistics.nan_mean(self.counted).astype(np.float32)

    @cached_property
    def _default_ci(self) -> tuple[Array, Array]:
        return statistics.bootstrap_ci(self.counted)

    def ci(
        self, level: float = 0.95, n_resamples: int = 1000, seed: int = 0
    ) -> tuple[Float[Array, "layer head"], Float[Array, "layer head"]]:
        """Percentile bootstrap interval of the mean over trials (lower, upper)."""
        if (level, n_resamples, seed) == (0.95, 1000, 0):
            return self._default_ci
        return statistics.bootstrap_ci(self.counted, level, n_resamples, seed)

    def ranking(self, trial_id: str | None = None) -> list[Head]:
        """Heads as (layer, head), best first; heads that cannot see the needle are left out.

        Args:
            trial_id: rank by one trial alone ("seed-42" of the random detector) instead of the mean.
        """
        if trial_id is None:
            return statistics.rank_heads(self.mean)
        if trial_id not in self.trial_ids:
            raise ValueError(f"no trial {trial_id!r} among {self.n_trials} counted trials of {self.detector!r}")
        return statistics.rank_heads(self.counted[self.trial_ids.index(trial_id)])

    def over(self, trial_ids: Sequence[str]) -> HeadScores:
        """The scores of some of the trials, in the order asked for.

        Raises:
            ValueError: for a trial that is not among the counted ones.
        """
        place = {trial_id: row for row, trial_id in enumerate(self.trial_ids)}
        if lost := [trial_id for trial_id in trial_ids if trial_id not in place]:
            raise ValueError(f"no trial {lost[0]!r} among {self.n_trials} counted trials of {self.detector!r}")
        rows = [place[trial_id] for trial_id in trial_ids]
        assert self.seen is not None
        return replace(self, per_trial=self.per_trial[rows], trial_ids=tuple(trial_ids), seen=self.seen[rows])

    def to_frame(self) -> pd.DataFrame:
        """One row per head: layer, head, score, ci_low, ci_high, rank, kv_group, n_trials, sees_needle."""
        import pandas as pd

        low, high = self.ci()
        ranks = {head: rank for rank, head in enumerate(self.ranking(), 1)}
        counts = self.seen.sum(0)  # type: ignore[union-attr]
        cells = [(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]
        frame = pd.DataFrame(cells, columns=["layer", "head"])
        frame["score"] = self.mean.reshape(-1)
        frame["ci_low"], frame["ci_high"] = low.reshape(-1), high.reshape(-1)
        frame["rank"] = pd.array([ranks.get(cell) for cell in cells], dtype="Int64")
        frame["kv_group"] = [self.kv_group(head) for _, head in cells]
        frame["n_trials"] = counts.reshape(-1)
        frame["sees_needle"] = counts.reshape(-1) > 0
        return frame

    def top(self, k: int = 10) -> pd.DataFrame:
        """The k best heads, best first."""
        return self._ranked().head(_positive(k))

    def bottom(self, k: int = 10) -> pd.DataFrame:
        """The k worst heads among those that can see the needle, worst first."""
        return self._ranked().iloc[::-1].head(_positive(k))

    def _ranked(self) -> pd.DataFrame:
        frame = self.to_frame().dropna(subset=["rank"])
        return frame.sort_values("rank").reset_index(drop=True)

    def split_half(self, seed: int = 0) -> float:
        """Spearman correlation of the head means of two random halves of the trials (NaN below 2 trials)."""
        if self.n_trials < 2:
            return float("nan")
        order = np.random.default_rng(seed).permutation(self.n_trials)
        halves = (self.counted[order[::2]], self.counted[order[1::2]])
        first, second = (statistics.nan_mean(half) for half in halves)
        return statistics.rank_agreement(first, second, ks=())["spearman"]

    def __repr__(self) -> str:
        best = ", ".join(f"L{layer}H{head}" for layer, head in self.ranking()[:3])
        return (
            f"HeadScores({self.detector!r}, {self.n_layers} layers x {self.n_heads} heads, "
            f"{self.n_trials} of {self.n_total} trials, top: {best})"
        )

    def _repr_html_(self) -> str:
        counted = f"{self.n_trials} of {self.n_total} trials"
        sizes = f"{self.n_layers} layers x {self.n_heads} heads"
        columns = ["rank", "layer", "head", "score", "ci_low", "ci_high", "kv_group"]
        return html.card(self.detector, html.line(sizes, counted), html.frame(self.top(10), columns))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file with the JSON metadata inside; returns its path."""
        path = _with_suffix(path)
        meta = {
            "kind": "HeadScores",
            "detector": self.detector,
            "trial_ids": list(self.trial_ids),
            "n_total": self.n_total,
            "n_key_value_heads": self.n_key_value_heads,
            "provenance": self.provenance,
        }
        write_arrays(path, {"per_trial": self.per_trial, "seen": np.asarray(self.seen)}, meta)
        return path

    @classmethod
    def load(cls, path: str | Path) -> HeadScores:
        """Read a file written by `save`.

        Raises:
            ResultFileError: when the file is missing, damaged or of another kind.
        """
        path = _with_suffix(path)
        arrays, meta = read_result(path, "HeadScores")
        with usable(path, "HeadScores"):
            return cls(
                detector=str(meta["detector"]),
                per_trial=arrays["per_trial"],
                trial_ids=tuple(str(i) for i in meta["trial_ids"]),
                n_total=int(meta["n_total"]),
                n_key_value_heads=int(meta["n_key_value_heads"]),
                seen=arrays["seen"],
                provenance=dict(meta["provenance"]),
            )

    def to_head_list(self, path: str | Path | None = None, *, envelope: bool = False) -> dict[str, Any]:
        """The field's head-score JSON: {"layer-head": [score of each trial that counts for the head]}.

        Args:
            path: also write it there.
            envelope: put the map under "scores", beside the detector, passed/total and provenance.
        """
        scores = {
            f"{layer}-{head}": [float(x) for x in self.counted[:, layer, head] if np.isfinite(x)]
            for layer in range(self.n_layers)
            for head in range(self.n_heads)
        }
        out: dict[str, Any] = scores
        if envelope:
            out = {
                "detector": self.detector,
                "passed": self.n_trials,
                "total": self.n_total,
                "n_key_value_heads": self.n_key_value_heads,
                "provenance": self.provenance,
                "scores": scores,
            }
        if path is not None:
            write_atomic(Path(path), to_json(out).encode())
        return out

    @classmethod
    def from_head_list(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        n_layers: int | None = None,
        n_heads: int | None = None,
        n_key_value_heads: int | None = None,
        detector: str | None = None,
    ) -> HeadScores:
        """Read a published head list, with or without the "scores" envelope.

        Args:
            source: path or parsed JSON.
            n_layers, n_heads: the model's sizes; a list that does not fit is refused. Without them they
                are read off the list.
            n_key_value_heads: default: what the envelope says, else one per query head.
            detector: name of the scores; default: what the envelope says, else "imported".

        Raises:
            ResultFileError: for a malformed entry, a duplicate, a head outside the model, or a gap.
        """
        where, table = ("head list", source) if isinstance(source, Mapping) else (str(source), read_json(Path(source)))
        envelope: Mapping[str, Any] = {}
        if isinstance(table, Mapping) and isinstance(table.get("scores"), Mapping):
            envelope, table = table, table["scores"]
        cells = _parse_head_list(table, where)
        found = (max(layer for layer, _ in cells) + 1, max(head for _, head in cells) + 1)
        shape = (n_layers or found[0], n_heads or found[1])
        if found[0] > shape[0] or found[1] > shape[1]:
            raise ResultFileError(
                f"{where}: made for at least {found[0]} layers x {found[1]} heads, "
                f"the model has {shape[0]} x {shape[1]}: a head list of another model"
            )
        if len(cells) != shape[0] * shape[1]:
            raise ResultFileError(
                f"{where}: lists {len(cells)} heads, up to {found[0]} layers x {found[1]} heads, where every head of "
                f"{shape[0]} layers x {shape[1]} heads is expected once"
            )
        n_trials = max(len(values) for values in cells.values())
        if n_trials == 0:
            raise ResultFileError(f"{where}: holds no scores")
        per_trial = np.zeros((n_trials, *shape), np.float32)
        seen = np.zeros((n_trials, *shape), bool)
        for (layer, head), values in cells.items():
            per_trial[: len(values), layer, head] = values
            seen[: len(values), layer, head] = True
        try:
            return cls(
                detector=detector or str(envelope.get("detector", "imported")),
                per_trial=per_trial,
                trial_ids=tuple(f"trial-{i}" for i in range(n_trials)),
                n_total=int(envelope.get("total", n_trials)),
                n_key_value_heads=n_key_value_heads or int(envelope.get("n_key_value_heads", shape[1])),
                seen=seen,
                provenance=dict(envelope.get("provenance", {})) | {"imported_from": where},
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise ResultFileError(f"{where}: not a usable head list ({error})") from error

    def to_kv_gates(self, path: str | Path | None = None) -> Float[Array, "layer kv_head"]:
        """A gate from 0 to 1 for every key-value head, for caches that keep only some heads whole.

        A key-value head matters as much as the best of the query heads that read it:

            gate[l, g] = max over h in group g of max(score[l, h], 0) / the largest such value of all layers

        Heads that cannot see the needle count as 0; without any positive score all gates are 0.

        Args:
            path: also write them there as DuoAttention publishes its gates (``full_attention_heads.tsv``): tabs, one
                row a layer, one column a key-value head.
        """
        positive = np.nan_to_num(self.mean, nan=0.0).clip(min=0.0).astype(np.float64)
        gates = statistics.by_kv_group(positive, self.n_key_value_heads, "max")
        gates = gates / gates.max() if gates.max() > 0 else gates
        if path is not None:
            rows = ("\t".join(f"{gate:.8g}" for gate in row) + "\n" for row in gates)
            write_atomic(Path(path), "".join(rows).encode())
        return gates

    @classmethod
    def from_kv_gates(cls, path: str | Path, n_heads: int, detector: str = "kv-gates") -> HeadScores:
        """Read a file of gates as `to_kv_gates` writes it; every query head gets the gate of its key-value head.

        Args:
            path: tab-separated numbers from 0 to 1, one row a layer.
            n_heads: query heads a layer of the model.
            detector: name of the scores.

        Raises:
            ResultFileError: for anything but a full table of such numbers, or one that does not fit ``n_heads``.
        """
        gates = read_table(Path(path))
        if not ((gates >= 0) & (gates <= 1)).all():
            raise ResultFileError(f"{path}: gates lie between 0 and 1, found {gates.min():.3g} to {gates.max():.3g}")
        if n_heads < 1 or n_heads % gates.shape[1]:
            raise ResultFileError(f"{path}: {gates.shape[1]} columns cannot be the KV heads of {n_heads} query heads")
        return cls(
            detector=detector,
            per_trial=np.repeat(gates, n_heads // gates.shape[1], axis=1)[None].astype(np.float32),
            trial_ids=("gates",),
            n_total=1,
            n_key_value_heads=gates.shape[1],
            provenance={"imported_from": str(path)},
        )

    def to_csv(self, path: str | Path) -> None:
        """Write `to_frame` as CSV, without the index; what has no value is an empty cell."""
        write_atomic(Path(path), self.to_frame().to_csv(index=False).encode())

    def require_fit(self, n_layers: int, n_heads: int) -> None:
        """Refuse to be used with a model of another size.

        Raises:
            ValueError: naming both shapes.
        """
        if (self.n_layers, self.n_heads) != (n_layers, n_heads):
            raise ValueError(
                f"these {self.detector!r} scores are for {self.n_layers} layers x {self.n_heads} heads, "
                f"the model has {n_layers} x {n_heads}"
            )


def _with_suffix(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


def _positive(k: int) -> int:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return k


def _parse_head_list(table: Any, where: str) -> dict[Head, list[float]]:
    if not isinstance(table, Mapping) or not table:
        raise ResultFileError(f'{where}: expected {{"layer-head": [scores]}}')
    cells: dict[Head, list[float]] = {}
    for key, values in table.items():
        match = _HEAD_KEY.fullmatch(str(key))
        if match is None:
            raise ResultFileError(f'{where}: {str(key)[:40]!r} is no "layer-head" pair like "12-3"')
        cell = (int(match[1]), int(match[2]))
        if cell in cells:
            raise ResultFileError(f"{where}: head {cell[0]}-{cell[1]} occurs twice")
        numbers = values if isinstance(values, list | tuple) else [values]
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e30 for v in numbers):
            raise ResultFileError(f"{where}: the scores of head {key} are not all finite numbers")
        cells[cell] = [float(v) for v in numbers]
    return cells
