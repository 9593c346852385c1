"""Dissociation: do heads serve retrieval more than other abilities of the model?

For the same ablated heads, the relative drop of a retrieval metric minus that of a control metric
(recall of facts, arithmetic):

    DS(k) = (R_0 - R_k) / R_0 - (P_0 - P_k) / P_0

1 when k heads take all retrieval and nothing else, 0 when both suffer alike; k* is the k with the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .. import html
from ..choices import did_you_mean
from .files import FORMAT, UNFIT, ResultFileError, check_format, read_json, result_path, write_json
from .sweep import Sweep

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

FILE = "dissociation.json"


@dataclass(frozen=True)
class DissociationRow:
    """DS(k) of one method.

    Attributes:
        method: what chose the heads.
        k: number of ablated heads.
        score: DS(k), with 95 % interval ``score_low`` to ``score_high``.
        retrieval_drop: (R_0 - R_k) / R_0, with its interval.
        control_drop: (P_0 - P_k) / P_0, with its interval.
        n_trials: trials of the retrieval sweep behind it.
        n_control_trials: trials of the control sweep behind it.
    """

    method: str
    k: int
    score: float
    score_low: float
    score_high: float
    retrieval_drop: float
    retrieval_low: float
    retrieval_high: float
    control_drop: float
    control_low: float
    control_high: float
    n_trials: int
    n_control_trials: int


@dataclass(frozen=True, eq=False)
class Dissociation:
    """Dissociation scores of every method and k that two sweeps share.

    Attributes:
        rows: one a method and k.
        metric: metric of the retrieval sweep.
        control_metric: metric of the control sweep.
        provenance: that of both sweeps, under "retrieval" and "control".
    """

    rows: tuple[DissociationRow, ...]
    metric: str
    control_metric: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in their order."""
        return tuple(dict.fromkeys(row.method for row in self.rows))

    def best(self, method: str) -> DissociationRow:
        """The row of k*: the k with the largest score of a method (the smallest such k)."""
        if method not in self.methods:
            hint = did_you_mean(method, self.methods)
            raise ValueError(f"no method {method!r} here{hint}; there are: {', '.join(self.methods)}")
        return max((row for row in self.rows if row.method == method), key=lambda row: (row.score, -row.k))

    def to_frame(self) -> pd.DataFrame:
        """One row a method and k, with the fields of `DissociationRow`."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows], columns=_COLUMNS)

    def __repr__(self) -> str:
        best = (self.best(method) for method in self.methods)
        told = "; ".join(
            f"{row.method}: DS {row.score:.2f} ({row.score_low:.2f} to {row.score_high:.2f}) at k* = {row.k}"
            for row in best
        )
        return f"Dissociation({self.metric} against {self.control_metric}; {told})"

    def _repr_html_(self) -> str:
        best = ((row.method, row.k) for row in map(self.best, self.methods))
        about = html.line(*(f"{method}: largest at k = {k}" for method, k in best))
        columns = ["method", "k", "score", "score_low", "score_high", "retrieval_drop", "control_drop"]
        columns += ["n_trials", "n_control_trials"]
        title = f"Dissociation: {self.metric} against {self.control_metric}"
        return html.card(title, about, html.frame(self.to_frame(), columns))

    def save(self, path: str | Path) -> Path:
        """Write one JSON file.

        Args:
            path: the file, or an existing folder for ``dissociation.json`` in it.
        """
        path = result_path(path, FILE)
        about = {name: getattr(self, name) for name in ("metric", "control_metric", "provenance")}
        rows = [asdict(row) for row in self.rows]
        write_json(path, {"format": FORMAT, "kind": "Dissociation", **about, "rows": rows})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Dissociation:
        """Read a file written by `save`.

        Raises:
            ResultFileError: when the file is missing, damaged or of another kind.
        """
        path = result_path(path, FILE)
        held = read_json(path)
        if not isinstance(held, Mapping) or held.get("kind") != "Dissociation":
            raise ResultFileError(f"{path}: not a dissociation")
        check_format(path, held)
        try:
            rows = tuple(DissociationRow(**_typed(row)) for row in held["rows"])
            return cls(rows, str(held["metric"]), str(held["control_metric"]), dict(held["provenance"]))
        except UNFIT as error:
            raise ResultFileError(f"{path}: not a usable dissociation ({error})") from error


_TYPES = {"str": str, "int": int, "float": float}
_COLUMNS = [f.name for f in fields(DissociationRow)]


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row as declared; null, which JSON has for NaN, turns back into NaN."""
    kinds = {f.name: _TYPES[str(f.type)] for f in fields(DissociationRow)}
    return {name: float("nan") if value is None else kinds[name](value) for name, value in row.items()}


def dissociation(
    retrieval: Sweep,
    control: Sweep,
    *,
    method: str | None = None,
    metric: str = "rouge_l",
    control_metric: str = "contains",
    n_resamples: int = 1000,
    seed: int = 0,
) -> Dissociation:
    """DS(k) of every method and k that a retrieval sweep and a control sweep share.

    Intervals are percentile bootstraps that resample the trials of both sweeps independently; within a
    sweep each ablated trial stays with its own baseline.

    Args:
        retrieval: the sweep over trials that need the context.
        control: the sweep over questions that do not.
        method: one method only; default: all shared ones.
        metric: metric of the retrieval sweep.
        control_metric: metric of the control sweep.
        n_resamples: bootstrap resamples.
        seed: their seed.

    Raises:
        ValueError: when the sweeps differ in model, ablation or heads, do not share ``method`` or any k, or a
            baseline is 0 and cannot be divided by.
    """
    shared = [name for name in retrieval.methods if name in control.methods]
    if method is not None and method not in shared:
        raise ValueError(f"the sweeps share no method {method!r}; there are: {', '.join(shared) or 'none'}")
    shared = shared if method is None else [method]
    cells = [(name, k) for name in shared for k in retrieval.ks(name) if k in control.ks(name)]
    if not cells:
        which = "method" if method is None else f"k of the method {method!r}"
        raise ValueError(f"the two sweeps share no {which}: there is nothing to compare")
    _require_same_heads(retrieval, control, shared)
    rows = []
    for name, k in cells:
        drop, drops, n = _relative_drop(retrieval, "retrieval", name, k, metric, n_resamples, seed)
        # Another seed, so that sweeps with the same number of trials are not resampled in step.
        cost, costs, n_control = _relative_drop(control, "control", name, k, control_metric, n_resamples, seed + 1)
        (low, high), (drop_low, drop_high), (cost_low, cost_high) = (
            map(float, np.nanquantile(values, [0.025, 0.975])) for values in (drops - costs, drops, costs)
        )
        rows.append(
            DissociationRow(
                name, k, drop - cost, low, high, drop, drop_low, drop_high, cost, cost_low, cost_high, n, n_control
            )
        )
    provenance = {"retrieval": dict(retrieval.provenance), "control": dict(control.provenance)}
    return Dissociation(tuple(rows), metric, control_metric, provenance)


def _require_same_heads(retrieval: Sweep, control: Sweep, methods: list[str]) -> None:
    """Refuse sweeps that did not ablate the same heads of the same model in the same way."""
    told = [{"model": s.model, **{key: s.ablation.get(key) for key in ("at", "mode")}} for s in (retrieval, control)]
    weights = [_weights(s) for s in (retrieval, control)]
    if None not in weights:
        told = [one | {"weights": w} for one, w in zip(told, weights, strict=True)]
    if "random" in methods:
        told = [one | {"random seeds": sorted(s.seeds)} for one, s in zip(told, (retrieval, control), strict=True)]
    for key in told[0]:
        if told[0][key] != told[1][key]:
            raise ValueError(f"the sweeps differ in {key}: {told[0][key]!r} and {told[1][key]!r}")
    names = {*methods, *(f"random-{seed}" for seed in retrieval.seeds if "random" in methods)}
    for name in sorted(names & {*retrieval.rankings, *control.rankings}):
        one, other = (s.rankings.get(name) for s in (retrieval, control))
        length = min(len(one or ()), len(other or ()))
        if one is None or other is None or one[:length] != other[:length]:
            raise ValueError(f"the sweeps ablated different heads under {name!r}: rank once, then run both")


def _weights(sweep: Sweep) -> Any:
    """Fingerprint of the model's weights, None where the provenance does not tell."""
    model = sweep.provenance.get("model")
    return model.get("weights") if isinstance(model, Mapping) else None


def _relative_drop(
    sweep: Sweep, role: str, method: str, k: int, metric: str, n_resamples: int, seed: int
) -> tuple[float, Float[Array, " resample"], int]:
    try:
        kept, resampled, n = sweep.kept(method, k, metric, n_resamples, seed)
    except ValueError as error:
        raise ValueError(f"{role} sweep: {error}") from error
    return 1.0 - kept, 1.0 - resampled, n
