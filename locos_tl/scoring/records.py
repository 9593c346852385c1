"""Every trial's result on disk as soon as it is there, so that a killed run loses at most one trial."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..results.files import ResultFileError, plain, read_arrays, read_json, to_json, write_arrays, write_json
from ..results.scores import TrialOutcome
from ..trials.trial import Trial, read_trials, save_trials


@dataclass(frozen=True)
class TrialRecord:
    """One finished trial: its outcome and, for each detector that counts it, score and visibility per head."""

    outcome: TrialOutcome
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    seen: Mapping[str, np.ndarray] = field(default_factory=dict)


def trial_digest(trial: Trial) -> str:
    """Identity of a trial: its ids, span, answer and given generation."""
    parts = (trial.trial_id, trial.prompt_ids, trial.needle_span, trial.answer, trial.generated_ids)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


class RecordStore:
    """A run's folder: ``settings.json`` and one safetensors file per finished trial."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = plain(settings)

    @contextmanager
    def open(self) -> Iterator[RecordStore]:
        """Hold the folder for this run alone.

        Raises:
            ResultFileError: when another run holds it, it was made with other settings, or it cannot be written.
        """
        from filelock import FileLock, Timeout

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise ResultFileError(f"{self.folder}: another run is writing there; give another folder") from None
        except OSError as error:
            raise ResultFileError(f"{self.folder}: cannot write there ({error.strerror or error})") from error
        try:
            self._match_settings()
            yield self
        finally:
            lock.release()

    def _match_settings(self) -> None:
        path = self.folder / "settings.json"
        if not path.exists():
            foreign = sorted(p.name for p in self.folder.iterdir() if p.name != ".lock")
            if foreign:
                raise ResultFileError(
                    f"{self.folder}: is not empty ({foreign[0]!r}) and not a run of ours; give a new or empty folder"
                )
            write_json(path, self.settings)
            return
        there = read_json(path)
        if there != self.settings:
            name, old, new = first_difference(there, self.settings)
            raise ResultFileError(
                f"{self.folder}: holds a run with other settings ({name}: {old} there, {new} now). "
                "Give another folder, or the same settings to resume."
            )

    def claim(self, trials: Sequence[Trial]) -> None:
        """Write down the run's trials; those of an earlier call must be among them.

        Raises:
            ResultFileError: when the folder holds a run over other trials.
        """
        path = self.folder / "trials.jsonl"
        if path.exists():
            mine = {trial_digest(trial) for trial in trials}
            lost = [trial.trial_id for trial in read_trials(path) if trial_digest(trial) not in mine]
            if lost:
                raise ResultFileError(
                    f"{self.folder}: holds a run over other trials ({len(lost)} of them, such as {lost[0]!r}, are not "
                    "among yours). Give another folder, or the same trials to resume; more trials may be added."
                )
        save_trials(path, trials)

    def path(self, trial: Trial) -> Path:
        return self.folder / "trials" / f"{trial_digest(trial)}.safetensors"

    def read(self, trial: Trial) -> TrialRecord | None:
        """The record of a trial that is already finished, or None."""
        path = self.path(trial)
        if not path.exists():
            return None
        arrays, meta = read_arrays(path)
        try:
            outcome = TrialOutcome.from_dict(meta["outcome"])
            return TrialRecord(outcome, _named(arrays, "score/"), _named(arrays, "seen/"))
        except (KeyError, TypeError, ResultFileError) as error:
            raise ResultFileError(f"{path}: not a trial record ({error}); delete it and run again") from error

    def write(self, trial: Trial, record: TrialRecord) -> None:
        arrays = {f"score/{k}": v for k, v in record.scores.items()} | {f"seen/{k}": v for k, v in record.seen.items()}
        write_arrays(self.path(trial), arrays, {"kind": "TrialRecord", "outcome": record.outcome.to_dict()})


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def first_difference(a: Any, b: Any, name: str = "settings") -> tuple[str, str, str]:
    """Path and both values of the first place where two JSON trees differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if a.get(key) != b.get(key):
                return first_difference(a.get(key), b.get(key), str(key) if name == "settings" else f"{name}.{key}")
    return name, to_json(a)[:80], to_json(b)[:80]
