"""Two scoring runs side by side: the same or not, what differs in what made them, and how far their rankings agree.

Agreement is to be read against reliability: two halves of one run's trials agree only so far, and two runs over
different trials cannot be expected to agree better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import html
from ..choices import did_you_mean
from . import statistics
from .files import plain
from .head_scores import HeadScores
from .scores import Scores

if TYPE_CHECKING:
    import pandas as pd

KS = (10, 20)
_ORDER = (
    *("model.name", "model.revision", "model.weights", "model.dtype", "model.backend", "model", "tokenizer"),
    *("scoring.variant", "trials.digest", "trials.count", "trials", "scoring", "versions"),
)
"""Settings in the order in which they matter; others follow."""
_NAMES_ONLY = ("model.name", "model.revision")
"""Settings that matter last where the weights are known to be the same."""
_NO_SETTINGS = ("trials.ids", "trials.prompts", "trials.passed")
"""Told by other means: by the digest, and by the counts."""


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in both runs."""

    setting: str
    a: str
    b: str


@dataclass(frozen=True)
class Moved:
    """A head and its rank in both runs; None where it could not see the needle."""

    layer: int
    head: int
    rank_a: int | None
    rank_b: int | None


@dataclass(frozen=True)
class DetectorComparison:
    """How far two runs agree on one detector.

    Attributes:
        identical: every score of every trial is the same number.
        spearman: rank correlation over the heads that carry both scores; NaN where one run's do not vary.
        overlap_at_10, overlap_at_20: share of the first 10 and 20 heads in common; NaN for models with fewer.
        split_half_a, split_half_b: the same correlation between two random halves of each run's trials, the most
            that another draw of as few trials could be expected to give.
        moved: heads whose rank differs most, by the ratio of the ranks.
    """

    detector: str
    identical: bool
    n_trials: tuple[int, int]
    spearman: float
    overlap_at_10: float
    overlap_at_20: float
    split_half_a: float
    split_half_b: float
    moved: tuple[Moved, ...]


@dataclass(frozen=True)
class Comparison:
    """Two scoring runs side by side.

    Attributes:
        differences: settings that differ, the most consequential first.
        passed, total: trials that passed and that were run, in both.
        detectors: agreement of each detector that both runs have.
        only_a, only_b: detectors that only one of them has.
    """

    differences: tuple[Difference, ...]
    passed: tuple[int, int]
    total: tuple[int, int]
    detectors: tuple[DetectorComparison, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """True when the settings are the same and every score is the same number."""
        return not self.differences and not self.only_a and not self.only_b and self.same_scores

    @property
    def same_scores(self) -> bool:
        """True when every score of every detector that both have is the same number."""
        return all(row.identical for row in self.detectors)

    @property
    def verdict(self) -> str:
        """Same or different, and the first setting that differs."""
        if self.same:
            return "the same: settings and every score"
        if not self.differences:
            lacking = [*self.only_a, *self.only_b]
            scores = f"only one has {', '.join(lacking)}" if lacking and self.same_scores else "the scores differ"
            return f"different: {scores}, though every recorded setting is the same"
        first, more = self.differences[0], len(self.differences) - 1
        scores = "different, though the scores are the same" if self.same_scores else "different"
        others = f", and {more} more" if more else ""
        return f"{scores}: {first.setting} is {first.a} in A, {first.b} in B{others}"

    def table(self) -> list[dict[str, str]]:
        """One row a detector, as a reader wants it."""
        return [
            {
                "detector": row.detector,
                "spearman": _or_dash(row.spearman),
                "overlap@10": _or_dash(row.overlap_at_10),
                "overlap@20": _or_dash(row.overlap_at_20),
                "split-half A": _or_dash(row.split_half_a),
                "split-half B": _or_dash(row.split_half_b),
                "trials A": str(row.n_trials[0]),
                "trials B": str(row.n_trials[1]),
                "same scores": "yes" if row.identical else "no",
            }
            for row in self.detectors
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row a detector: agreement, and what each run agrees with itself."""
        import pandas as pd

        rows = [{k: v for k, v in asdict(row).items() if k not in ("moved", "n_trials")} for row in self.detectors]
        frame = pd.DataFrame(rows)
        for side, name in enumerate(("n_trials_a", "n_trials_b")):
            frame[name] = [row.n_trials[side] for row in self.detectors]
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return {"same": self.same, "verdict": self.verdict, **asdict(self)}

    def __repr__(self) -> str:
        names = ", ".join(row.detector for row in self.detectors)
        return f"Comparison({names or 'no shared detector'}; {self.verdict})"

    def _repr_html_(self) -> str:
        counts = (f"{run}: {self.passed[i]} of {self.total[i]} trials passed" for i, run in enumerate("AB"))
        differing = html.table(asdict(difference) for difference in self.differences)
        return html.card(f"Two runs: {self.verdict}", html.line(*counts), html.table(self.table()), differing)


def compare(a: Scores, b: Scores, *, detector: str | None = None, n_moved: int = 5) -> Comparison:
    """Put two scoring runs side by side.

    Args:
        a, b: from `score_heads` or `Scores.load`.
        detector: only this one; default: all that both have.
        n_moved: heads to name that moved most.

    Raises:
        ValueError: for runs on models of different sizes, or a detector that is not in both.
    """
    if n_moved < 1:
        raise ValueError(f"n_moved must be at least 1, got {n_moved}")
    shared = [name for name in a if name in b]
    if detector is not None:
        if detector not in shared:
            hint = did_you_mean(detector, shared)
            raise ValueError(f"no detector {detector!r} in both runs{hint}; there are: {', '.join(shared) or 'none'}")
        shared = [detector]
    return Comparison(
        differences=differences(a.provenance, b.provenance),
        passed=(a.passed, b.passed),
        total=(a.total, b.total),
        detectors=tuple(_detector(name, a[name], b[name], n_moved) for name in shared),
        only_a=tuple(name for name in a if name not in b) if detector is None else (),
        only_b=tuple(name for name in b if name not in a) if detector is None else (),
    )


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The settings that differ between two provenances, the most consequential first."""
    flat_a, flat_b = _flat(plain(a)), _flat(plain(b))
    names = [
        name
        for name in dict.fromkeys([*flat_a, *flat_b])
        if flat_a.get(name) != flat_b.get(name) and name not in _NO_SETTINGS
    ]
    weights = flat_a.get("model.weights")
    same_weights = weights is not None and weights == flat_b.get("model.weights")
    # Stable: within one weight in the order of the file.
    names.sort(key=lambda name: len(_ORDER) + 1 if same_weights and name in _NAMES_ONLY else _weight(name))
    return tuple(Difference(name, _told(flat_a, name), _told(flat_b, name)) for name in names)


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by their paths."""
    if not isinstance(tree, Mapping) or not tree:
        return {name: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{name}.{key}" if name else str(key))
    return found


def _weight(name: str) -> int:
    """Place of a setting in `_ORDER`: by its own name, else by the part it belongs to."""
    exact = [i for i, known in enumerate(_ORDER) if name == known]
    inside = [i for i, known in enumerate(_ORDER) if name.startswith(f"{known}.")]
    return (exact + inside + [len(_ORDER)])[0]


def _told(flat: Mapping[str, Any], name: str) -> str:
    if name not in flat:
        return "not recorded"
    text = json.dumps(flat[name], ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _detector(name: str, a: HeadScores, b: HeadScores, n_moved: int) -> DetectorComparison:
    if a.mean.shape != b.mean.shape:
        sizes = [f"{held.n_layers} layers x {held.n_heads} heads" for held in (a, b)]
        raise ValueError(f"runs on models of different sizes: {sizes[0]} in A, {sizes[1]} in B")
    found = statistics.rank_agreement(a.mean, b.mean, KS)
    return DetectorComparison(
        detector=name,
        identical=_identical(a, b),
        n_trials=(a.n_trials, b.n_trials),
        spearman=found["spearman"],
        overlap_at_10=found.get("overlap@10", float("nan")),
        overlap_at_20=found.get("overlap@20", float("nan")),
        split_half_a=a.split_half(),
        split_half_b=b.split_half(),
        moved=_moved(a, b, n_moved),
    )


def _identical(a: HeadScores, b: HeadScores) -> bool:
    return (
        a.trial_ids == b.trial_ids
        and np.array_equal(a.per_trial, b.per_trial, equal_nan=True)
        and np.array_equal(np.asarray(a.seen), np.asarray(b.seen))
    )


def _moved(a: HeadScores, b: HeadScores, n: int) -> tuple[Moved, ...]:
    """Heads that moved most in log rank: from 1 to 10 is as far as from 10 to 100. Without a rank is behind all."""
    ranks = [{head: rank for rank, head in enumerate(held.ranking(), 1)} for held in (a, b)]
    heads = sorted({*ranks[0], *ranks[1]})

    def distance(head: tuple[int, int]) -> float:
        first, second = (held.get(head, len(held) + 1) for held in ranks)
        return abs(float(np.log(first / second)))

    far = sorted((head for head in heads if distance(head) > 0), key=distance, reverse=True)
    return tuple(Moved(*head, ranks[0].get(head), ranks[1].get(head)) for head in far[:n])


def _or_dash(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "-"
