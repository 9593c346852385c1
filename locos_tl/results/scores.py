"""`Scores`: the result of one scoring run, all detectors together, with every trial's outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..choices import did_you_mean
from .files import FORMAT, ResultFileError, check_format, read_json, read_jsonl, write_json, write_jsonl
from .head_scores import HeadScores
from .reading import READINGS, HeadReading

if TYPE_CHECKING:
    import pandas as pd

_PLAIN_NAME = re.compile(r"[\w+-][\w+. -]{0,99}")


@dataclass(frozen=True)
class TrialOutcome:
    """What a model did with one trial, passed or not.

    Attributes:
        gate_value: ROUGE-1 recall of the gold answer in the generated text, x 100.
        passed: gate value above 50 and at least one answer step.
        generated_ids: generated tokens without the stop token.
        answer_steps: indices into ``generated_ids`` that make up the answer.
        stop_token_id: token that ended decoding; None at the step limit, after an early stop, or with
            teacher forcing.
        stopped_early: decoding ended as soon as gate and requested scores could no longer change.
        min_margin: smallest logit margin of a greedy choice; below about 0.01 another build may
            generate another text.
        trial: the trial's own description: question, needle, depth, length, literal or not.
    """

    trial_id: str
    passed: bool
    gate_value: float
    generated_ids: tuple[int, ...]
    generated_text: str
    answer_steps: tuple[int, ...]
    answer: str
    stop_token_id: int | None = None
    stopped_early: bool = False
    min_margin: float | None = None
    teacher_forced: bool = False
    trial: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """A row of outcomes.jsonl."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Any) -> TrialOutcome:
        """Read a row of outcomes.jsonl.

        Raises:
            ResultFileError: when a field is missing, unknown or of the wrong type.
        """
        if not isinstance(row, Mapping):
            raise ResultFileError("not a trial outcome: no JSON object")
        known = {f.name: f for f in fields(cls)}
        if unknown := set(row) - set(known):
            raise ResultFileError(f"not a trial outcome: unknown field {min(map(str, unknown))[:40]!r}")
        values = dict(row)
        for name, about in known.items():
            if name in values:
                values[name] = _checked(name, str(about.type), values[name])
            elif about.default is MISSING and about.default_factory is MISSING:
                raise ResultFileError(f"not a trial outcome: no field {name!r}")
        return cls(**values)


_TYPES: Mapping[str, Any] = {
    "str": str,
    "bool": bool,
    "float": float | int,
    "float | None": float | int | None,
    "int | None": int | None,
    "Mapping[str, Any]": Mapping,
}


def _checked(name: str, kind: str, value: Any) -> Any:
    """The value of an outcome's field, if it is what the field is declared to be."""
    if kind == "tuple[int, ...]":
        if isinstance(value, list | tuple) and all(type(i) is int for i in value):
            return tuple(value)
    elif isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool)):
        if "float" not in kind or value is None:
            return value
        if abs(value) < 1e15:
            return float(value)
    raise ResultFileError(f"not a trial outcome: the field {name!r} must be {kind}, got {repr(value)[:40]}")


def _plain_names(names: Iterable[Any], where: Path) -> list[str]:
    """Detector names, which are file names too."""
    plain = list(names)
    for name in plain:
        if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
            raise ResultFileError(f"{where}: the detector {str(name)[:40]!r} is not a plain name")
    if len(set(plain)) < len(plain):
        raise ResultFileError(f"{where}: a detector is named twice")
    return plain


@dataclass(frozen=True, eq=False)
class Scores(Mapping[str, HeadScores]):
    """Head scores by detector (``scores["locos"]``), the outcome of every trial, and provenance.

    ``readings`` holds a few passed trials token by token, for looking at single heads.
    """

    heads: Mapping[str, HeadScores]
    outcomes: tuple[TrialOutcome, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    readings: tuple[HeadReading, ...] = ()

    def __getitem__(self, detector: str) -> HeadScores:
        if detector not in self.heads:
            hint = did_you_mean(detector, self.heads)
            raise KeyError(f"no detector {detector!r} in this run{hint}; there are: {', '.join(self.heads)}")
        return self.heads[detector]

    def __iter__(self) -> Iterator[str]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def outcome(self, trial_id: str) -> TrialOutcome:
        """What the model did with one trial.

        Raises:
            KeyError: for a trial that was not run.
        """
        for outcome in self.outcomes:
            if outcome.trial_id == trial_id:
                return outcome
        raise KeyError(f"no trial {trial_id!r} among the {self.total} of this run")

    @property
    def passed(self) -> int:
        """Trials that passed the gate."""
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def total(self) -> int:
        """Trials that were run."""
        return len(self.outcomes)

    @property
    def pass_rate(self) -> float:
        """Passed of total; NaN for a run without trials."""
        return self.passed / self.total if self.total else float("nan")

    def to_frame(self) -> pd.DataFrame:
        """All detectors' head tables, one below the other, with a "detector" column."""
        import pandas as pd

        tables = [scores.to_frame().assign(detector=name) for name, scores in self.items()]
        return pd.concat(tables, ignore_index=True)

    def outcomes_frame(self) -> pd.DataFrame:
        """One row per trial: passed, gate value, text, and the trial's own fields."""
        import pandas as pd

        rows = [{**{k: v for k, v in o.to_dict().items() if k != "trial"}, **o.trial} for o in self.outcomes]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Scores({', '.join(self.heads)}; {self.passed} of {self.total} trials passed; model {self.model!r})"

    @property
    def model(self) -> str:
        """Name of the model; "?" when the provenance does not tell."""
        told = self.provenance.get("model")
        return str(told.get("name", "?")) if isinstance(told, Mapping) else str(told or "?")

    def _repr_html_(self) -> str:
        from .. import html

        rows = [
            {
                "detector": name,
                "best heads": ", ".join(f"L{layer}H{head}" for layer, head in held.ranking()[:5]),
                "best score": float(held.mean[held.ranking()[0]]) if held.ranking() else None,
                "trials": held.n_trials,
                "split-half": held.split_half(),
            }
            for name, held in self.items()
        ]
        rate = f" ({self.pass_rate:.0%})" if self.total else ""
        about = html.line(f"model {self.model}", "split-half: rank correlation of two halves of the trials")
        title = f"Scores: {self.passed} of {self.total} trials passed{rate}"
        return html.card(title, about, html.table(rows))

    def save(self, folder: str | Path) -> Path:
        """Write run.json, outcomes.jsonl, scores/<detector>.safetensors and readings/<number>.safetensors.

        Raises:
            ResultFileError: for a detector whose name cannot be a file name.
        """
        folder = Path(folder)
        _plain_names(self, folder)
        (folder / "run.json").unlink(missing_ok=True)
        write_jsonl(folder / "outcomes.jsonl", (o.to_dict() for o in self.outcomes))
        for name, scores in self.items():
            scores.save(folder / "scores" / f"{name}.safetensors")
        for index, reading in enumerate(self.readings):
            reading.save(folder / READINGS / f"{index:03d}.safetensors")
        # Last, so that a folder with a complete run.json holds everything it names.
        write_json(
            folder / "run.json",
            {
                "format": FORMAT,
                "kind": "Scores",
                "detectors": list(self.heads),
                "holds": {name: held.detector for name, held in self.items()},
                "passed": self.passed,
                "total": self.total,
                "readings": len(self.readings),
                "provenance": self.provenance,
            },
        )
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Scores:
        """Read a folder written by `save` or by ``score_heads(..., out=folder)``.

        Raises:
            ResultFileError: when it is not a finished run, or a file in it is damaged.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ResultFileError(f"{folder}: {'a file, not a run folder' if folder.exists() else 'no such folder'}")
        if not (folder / "run.json").is_file():
            raise ResultFileError(
                f"{folder}: no run.json, so not a finished run; run the same `locos-tl score ... --out` again to resume"
            )
        run = read_json(folder / "run.json")
        if not isinstance(run, dict) or run.get("kind") != "Scores" or not isinstance(run.get("detectors"), list):
            raise ResultFileError(f"{folder}/run.json: not a scoring run")
        check_format(folder / "run.json", run)
        provenance = run.get("provenance", {})
        if not isinstance(provenance, Mapping):
            raise ResultFileError(f"{folder}/run.json: its provenance is no JSON object")
        names = _plain_names(run["detectors"], folder / "run.json")
        heads = {name: HeadScores.load(folder / "scores" / f"{name}.safetensors") for name in names}
        shapes = {held.per_trial.shape[1:] for held in heads.values()}
        if len(shapes) > 1:
            raise ResultFileError(f"{folder}/scores: of models of different sizes, {sorted(shapes)} [layer, head]")
        holds = run["holds"] if isinstance(run.get("holds"), Mapping) else {}
        for name, held in heads.items():
            if held.detector != holds.get(name, held.detector):
                raise ResultFileError(f"{folder}/scores/{name}.safetensors: holds the scores of {held.detector!r}")
        outcomes = _read_outcomes(folder / "outcomes.jsonl")
        if len({o.trial_id for o in outcomes}) < len(outcomes):
            raise ResultFileError(f"{folder}/outcomes.jsonl: a trial occurs twice")
        scores = cls(heads, outcomes, provenance, _read_readings(folder, run))
        if (scores.passed, scores.total) != (run.get("passed"), run.get("total")):
            raise ResultFileError(
                f"{folder}: {scores.passed} of {scores.total} outcomes passed, "
                f"run.json has {run.get('passed')} of {run.get('total')}"
            )
        return scores


def _read_readings(folder: Path, run: Mapping[str, Any]) -> tuple[HeadReading, ...]:
    count = run.get("readings", 0)
    if type(count) is not int or not 0 <= count < 1000:
        raise ResultFileError(f"{folder}/run.json: the number of readings must be a small whole number, got {count!r}")
    return tuple(HeadReading.load(folder / READINGS / f"{index:03d}.safetensors") for index in range(count))


def _read_outcomes(path: Path) -> tuple[TrialOutcome, ...]:
    outcomes = []
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            outcomes.append(TrialOutcome.from_dict(row))
        except ResultFileError as error:
            raise ResultFileError(f"{path}, outcome {number}: {error}") from error
    return tuple(outcomes)
