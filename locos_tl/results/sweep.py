"""`Sweep`: what a model still answers when more and more of its heads are ablated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .. import html
from ..choices import did_you_mean
from . import statistics
from .files import FORMAT, UNFIT, ResultFileError, check_format, read_numbered_jsonl, result_path, write_jsonl

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray
Head = tuple[int, int]

BASELINE = "baseline"
"""The method of the answers that the whole model gave."""
FILE = "sweep.jsonl"


@dataclass(frozen=True)
class SweepRow:
    """One generated answer.

    Attributes:
        method: what chose the ablated heads: "baseline" (none), a detector ("locos": its best heads),
            "bottom-locos" (its worst) or "random".
        k: number of ablated heads; 0 for the baseline and only there.
        trial_id: the trial asked.
        text: the generated text.
        values: metrics of the text, each between 0 and 1.
        answer: the gold answer.
        seed: seed of the random control, None for the others.
        generated_ids: generated tokens without the stop token.
        stop_token_id: token that ended decoding; None at the step limit.
    """

    method: str
    k: int
    trial_id: str
    text: str
    values: Mapping[str, float]
    answer: str
    seed: int | None = None
    generated_ids: tuple[int, ...] = ()
    stop_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.k < 0 or (self.k == 0) != (self.method == BASELINE):
            raise ValueError(f"k = {self.k} with method {self.method!r}: k is 0 for the baseline and only there")
        for name, value in self.values.items():
            if not 0 <= value <= 1:  # also refuses NaN
                raise ValueError(f"metric {name!r} must lie between 0 and 1, got {value}")
        object.__setattr__(self, "values", dict(self.values))
        object.__setattr__(self, "generated_ids", tuple(self.generated_ids))

    @property
    def key(self) -> tuple[str, int, int | None, str]:
        """What names the answer within a sweep: method, k, seed and trial."""
        return self.method, self.k, self.seed, self.trial_id

    def to_dict(self) -> dict[str, Any]:
        """A line of the sweep file."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, row: Any) -> SweepRow:
        """Read a line of the sweep file.

        Raises:
            ValueError: when a field is missing, unknown or not what it should be.
        """
        if not isinstance(row, Mapping) or set(row) != set(_FIELDS):
            fields = f"the fields {', '.join(sorted(row))}" if isinstance(row, Mapping) else "no JSON object"
            raise ValueError(f"not an answer of a sweep: expected {', '.join(_FIELDS)}, found {fields[:200]!r}")
        for name, fits in _FIELDS.items():
            if not fits(row[name]):
                raise ValueError(f"not an answer of a sweep: {name!r} cannot be {repr(row[name])[:40]}")
        # JSON has no tuples, and other writers may leave the point off a whole number.
        values = {name: float(value) for name, value in row["values"].items()}
        return cls(**{**row, "values": values, "generated_ids": tuple(row["generated_ids"])})


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_int(value)


_FIELDS = {
    "method": _is_text,
    "k": _is_int,
    "trial_id": _is_text,
    "text": _is_text,
    "values": lambda v: isinstance(v, Mapping) and all(_is_number(x) for x in v.values()),
    "answer": _is_text,
    "seed": lambda v: v is None or _is_int(v),
    "generated_ids": lambda v: isinstance(v, list) and all(_is_int(i) for i in v),
    "stop_token_id": lambda v: v is None or _is_int(v),
}
"""The fields of a line, each with what it may hold."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Answers to the same trials with no head ablated, and with the first k heads of each ranking.

    An unfinished sweep, in which some method and k lack trials, is a legal one: its curves rest on the
    trials that are there, and say how many.

    Attributes:
        rows: one generated answer each.
        rankings: the heads behind each method as (layer, head), best first up to the largest k:
            "locos", "bottom-locos" (worst first), "random-42" for each seed of the random control.
        provenance: what made the answers: model, versions, trials, and under "ablation" what was
            replaced by what ("at": "q", "mode": "mean").
    """

    rows: tuple[SweepRow, ...]
    rankings: Mapping[str, tuple[Head, ...]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        rankings = {name: tuple((int(i), int(j)) for i, j in heads) for name, heads in self.rankings.items()}
        object.__setattr__(self, "rankings", rankings)
        for name, heads in rankings.items():
            if len(set(heads)) < len(heads) or any(min(head) < 0 for head in heads):
                raise ValueError(f"the ranking {name!r} names a head twice, or a negative layer or head")
        seen: set[tuple[str, int, int | None, str]] = set()
        for row in self.rows:
            if row.key in seen:
                raise ValueError(f"two answers for {_told(row)}")
            seen.add(row.key)
            if set(row.values) != set(self.metrics):
                raise ValueError(
                    f"{_told(row)} has the metrics {sorted(row.values)}, the first has {list(self.metrics)}"
                )

    # --- what is in it --------------------------------------------------------------------------

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that ablate heads, in their order."""
        return tuple(dict.fromkeys(row.method for row in self.rows if row.method != BASELINE))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that every answer carries."""
        return tuple(self.rows[0].values) if self.rows else ()

    @cached_property
    def trial_ids(self) -> tuple[str, ...]:
        """The trials asked, in their order."""
        return tuple(dict.fromkeys(row.trial_id for row in self.rows))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the random control."""
        return tuple(dict.fromkeys(row.seed for row in self.rows if row.seed is not None))

    @property
    def ablation(self) -> Mapping[str, Any]:
        """What was replaced by what, as the provenance tells: {"at": "q", "mode": "mean"}."""
        told = self.provenance.get("ablation")
        return told if isinstance(told, Mapping) else {}

    @property
    def model(self) -> str:
        """Name of the model; "?" when the provenance does not tell."""
        told = self.provenance.get("model")
        return str(told.get("name", "?")) if isinstance(told, Mapping) else str(told or "?")

    def ks(self, method: str) -> tuple[int, ...]:
        """Numbers of ablated heads that a method was run with, rising."""
        self._require(method)
        return tuple(sorted({row.k for row in self.rows if row.method == method}))

    def _require(self, method: str, metric: str | None = None) -> None:
        if method != BASELINE and method not in self.methods:
            hint = did_you_mean(method, self.methods)
            raise ValueError(
                f"no method {method!r} in this sweep{hint}; there are: {', '.join(self.methods) or 'none'}"
            )
        if metric is not None and metric not in self.metrics:
            hint = did_you_mean(metric, self.metrics)
            raise ValueError(
                f"no metric {metric!r} in this sweep{hint}; there are: {', '.join(self.metrics) or 'none'}"
            )

    # --- values ---------------------------------------------------------------------------------

    @cached_property
    def _cells(self) -> Mapping[tuple[str, int], list[SweepRow]]:
        cells: dict[tuple[str, int], list[SweepRow]] = {}
        for row in self.rows:
            cells.setdefault((row.method, row.k), []).append(row)
        return cells

    def values(self, method: str, k: int, metric: str) -> Float[Array, " trial"]:
        """The metric of every trial, in the order of `trial_ids`; NaN for a trial that was not run.

        The random control counts once a trial, with the mean over its seeds.
        """
        self._require(method, metric)
        place = {trial_id: index for index, trial_id in enumerate(self.trial_ids)}
        sums, counts = np.zeros(len(place)), np.zeros(len(place))
        for row in self._cells.get((method, k), ()):
            sums[place[row.trial_id]] += row.values[metric]
            counts[place[row.trial_id]] += 1
        return np.divide(sums, counts, out=np.full(len(place), np.nan), where=counts > 0)

    def baseline(self, metric: str) -> Float[Array, " trial"]:
        """The metric of every trial with all heads at work."""
        return self.values(BASELINE, 0, metric)

    def curve(self, method: str, metric: str, *, n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """The metric against k, the baseline first (k = 0).

        Returns:
            One row a k: k, mean, ci_low, ci_high, n_trials, and the drop below the baseline with its
            interval (drop, drop_low, drop_high), paired: each trial with itself. Intervals are 95 %
            percentile bootstraps over trials; the same resamples at every k.
        """
        import pandas as pd

        before = self.baseline(metric)
        found = []
        for k in sorted({0, *self.ks(method)}):
            after = before if k == 0 else self.values(method, k, metric)
            drops = before - after
            means = statistics.nan_mean(np.stack([after, drops], -1))
            (low, drop_low), (high, drop_high) = statistics.bootstrap_ci(
                np.stack([after, drops], -1), n_resamples=n_resamples, seed=seed
            )
            found.append((k, means[0], low, high, int(np.isfinite(after).sum()), means[1], drop_low, drop_high))
        columns = ["k", "mean", "ci_low", "ci_high", "n_trials", "drop", "drop_low", "drop_high"]
        return pd.DataFrame(found, columns=columns)

    def kept(
        self, method: str, k: int, metric: str, n_resamples: int = 1000, seed: int = 0
    ) -> tuple[float, Float[Array, " resample"], int]:
        """What is left of the baseline with k heads ablated: mean after / mean before.

        Returns:
            The share over the trials with both answers, the same in every bootstrap resample of them (NaN
            in one whose baseline is 0), and their number.

        Raises:
            ValueError: when no trial has both answers, or the baseline is 0.
        """
        pairs = np.stack([self.baseline(metric), self.values(method, k, metric)], -1)
        pairs = pairs[np.isfinite(pairs).all(-1)]
        if not len(pairs) or pairs[:, 0].mean() == 0:
            why = "is 0, so nothing can be relative to it" if len(pairs) else "shares no trial with it"
            raise ValueError(f"{method}, k = {k}: the baseline's {metric} {why}")
        before, after = pairs.mean(0)
        means = statistics.resampled_means(pairs, n_resamples, seed)
        shares = np.divide(means[:, 1], means[:, 0], out=np.full(n_resamples, np.nan), where=means[:, 0] > 0)
        return float(after / before), shares, len(pairs)

    def relative(self, method: str, metric: str, *, n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """`kept` at every k, with its 95 % interval: k, kept, kept_low, kept_high, n_trials; 1 at k = 0."""
        import pandas as pd

        rows = []
        for k in sorted({0, *self.ks(method)}):
            share, shares, n = self.kept(method if k else BASELINE, k, metric, n_resamples, seed)
            rows.append((k, share, *map(float, np.nanquantile(shares, [0.025, 0.975])), n))
        return pd.DataFrame(rows, columns=["k", "kept", "kept_low", "kept_high", "n_trials"])

    def summary(self) -> pd.DataFrame:
        """The curves of all methods and metrics, one below the other; the baseline once a metric."""
        import pandas as pd

        tables = []
        for metric in self.metrics:
            for index, method in enumerate(self.methods):
                curve = self.curve(method, metric)
                curve.insert(0, "metric", metric)
                curve.insert(0, "method", np.where(curve["k"] == 0, BASELINE, method))
                tables.append(curve if index == 0 else curve[curve["k"] > 0])
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def to_frame(self) -> pd.DataFrame:
        """One row per answer: method, k, seed, trial_id, a column a metric, text and answer."""
        import pandas as pd

        rows = [
            {"method": r.method, "k": r.k, "seed": r.seed, "trial_id": r.trial_id, **r.values}
            | {"text": r.text, "answer": r.answer}
            for r in self.rows
        ]
        columns = ["method", "k", "seed", "trial_id", *self.metrics, "text", "answer"]
        return pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})

    def __repr__(self) -> str:
        ks = sorted({row.k for row in self.rows if row.k})
        what = f", {self.ablation.get('at', '?')} by {self.ablation.get('mode', '?')}" if self.ablation else ""
        return (
            f"Sweep({', '.join(self.methods) or 'no method'}; k = {', '.join(map(str, ks)) or 'none'}; "
            f"{len(self.trial_ids)} trials; {', '.join(self.metrics)}; model {self.model!r}{what})"
        )

    def _repr_html_(self) -> str:
        ablated = " by ".join(str(self.ablation[name]) for name in ("at", "mode") if name in self.ablation)
        about = html.line(f"{len(self.trial_ids)} trials", ablated, f"model {self.model}")
        columns = ["metric", "method", "k", "mean", "ci_low", "ci_high", "drop", "n_trials"]
        return html.card("Sweep: answers without the top heads", about, html.frame(self.summary(), columns))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one JSON-lines file: rankings and provenance first, then an answer a line.

        Args:
            path: the file, or an existing folder for ``sweep.jsonl`` in it.
        """
        path = result_path(path, FILE)
        header = {"format": FORMAT, "kind": "Sweep", "rankings": self.rankings, "provenance": self.provenance}
        write_jsonl(path, [header, *(row.to_dict() for row in self.rows)])
        return path

    @classmethod
    def load(cls, path: str | Path) -> Sweep:
        """Read what `save` wrote.

        Raises:
            ResultFileError: naming the line that is damaged.
        """
        path = result_path(path, FILE)
        lines = read_numbered_jsonl(path)
        _, header = next(lines, (0, None))
        if not isinstance(header, Mapping) or header.get("kind") != "Sweep":
            raise ResultFileError(f"{path}: not a sweep")
        check_format(path, header)
        rows = []
        for number, row in lines:
            try:
                rows.append(SweepRow.from_dict(row))
            except (ValueError, OverflowError) as error:
                raise ResultFileError(f"{path}, line {number}: {error}") from error
        try:
            rankings = {name: _heads(heads) for name, heads in header["rankings"].items()}
            return cls(tuple(rows), rankings, dict(header["provenance"]))
        except UNFIT as error:
            raise ResultFileError(f"{path}: not a usable sweep ({error})") from error


def _heads(pairs: Any) -> tuple[Head, ...]:
    if not isinstance(pairs, Sequence) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(_is_int(i) for i in pair) for pair in pairs
    ):
        raise ValueError("a ranking is a list of [layer, head] pairs")
    return tuple((layer, head) for layer, head in pairs)


def _told(row: SweepRow) -> str:
    seed = "" if row.seed is None else f", seed {row.seed}"
    return f"{row.method}, k = {row.k}{seed}, trial {row.trial_id!r}"
