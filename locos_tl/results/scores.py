"""`Scores`: the result of one scoring run, all detectors together, with every trial's outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import FORMAT, ResultFileError, read_json, read_jsonl, write_json, write_jsonl
from .head_scores import HeadScores

if TYPE_CHECKING:
    import pandas as pd


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
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> TrialOutcome:
        """Raises: ResultFileError when a field is missing or unknown."""
        try:
            unknown = set(row) - {f.name for f in fields(cls)}
            if unknown:
                raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
            row = dict(row) | {k: tuple(int(i) for i in row[k]) for k in ("generated_ids", "answer_steps")}
            return cls(**row)
        except (KeyError, TypeError, ValueError) as error:
            raise ResultFileError(f"not a trial outcome: {error}") from error


@dataclass(frozen=True, eq=False)
class Scores(Mapping[str, HeadScores]):
    """Head scores by detector (``scores["locos"]``), the outcome of every trial, and provenance."""

    heads: Mapping[str, HeadScores]
    outcomes: tuple[TrialOutcome, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, detector: str) -> HeadScores:
        if detector not in self.heads:
            raise KeyError(f"no detector {detector!r} in this run; there are: {', '.join(self.heads)}")
        return self.heads[detector]

    def __iter__(self) -> Iterator[str]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def total(self) -> int:
        return len(self.outcomes)

    @property
    def pass_rate(self) -> float:
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
        model = self.provenance.get("model", {}).get("name", "?")
        return f"Scores({', '.join(self.heads)}; {self.passed} of {self.total} trials passed; model {model!r})"

    def save(self, folder: str | Path) -> Path:
        """Write run.json, outcomes.jsonl and scores/<detector>.safetensors into a folder."""
        folder = Path(folder)
        write_jsonl(folder / "outcomes.jsonl", (o.to_dict() for o in self.outcomes))
        for name, scores in self.items():
            scores.save(folder / "scores" / f"{name}.safetensors")
        # Last, so that a folder with a complete run.json holds everything it names.
        write_json(
            folder / "run.json",
            {
                "format": FORMAT,
                "kind": "Scores",
                "detectors": list(self.heads),
                "passed": self.passed,
                "total": self.total,
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
        if not (folder / "run.json").is_file():
            raise ResultFileError(
                f"{folder}: no run.json, so not a finished run; run the same `locos-tl score … --out` again to resume"
            )
        run = read_json(folder / "run.json")
        if not isinstance(run, dict) or run.get("kind") != "Scores" or not isinstance(run.get("detectors"), list):
            raise ResultFileError(f"{folder}/run.json: not a scoring run")
        if not isinstance(run.get("format"), int) or run["format"] > FORMAT:
            raise ResultFileError(f"{folder}/run.json: written by a newer locos_tl; update locos_tl")
        names = [str(name) for name in run["detectors"]]
        if any("/" in name or "\\" in name or name.startswith(".") for name in names):
            raise ResultFileError(f"{folder}/run.json: a detector name is not a plain name")
        heads = {name: HeadScores.load(folder / "scores" / f"{name}.safetensors") for name in names}
        outcomes = tuple(TrialOutcome.from_dict(row) for row in read_jsonl(folder / "outcomes.jsonl"))
        if len(outcomes) != run.get("total"):
            raise ResultFileError(f"{folder}: {len(outcomes)} outcomes, {run.get('total')} expected")
        return cls(heads, outcomes, run.get("provenance", {}))
