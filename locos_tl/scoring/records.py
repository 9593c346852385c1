"""Every trial's result on disk as soon as it is there, so that a killed run loses at most one trial."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ..results.files import UNFIT, ResultFileError, read_arrays, write_arrays
from ..results.reading import READINGS, HeadReading
from ..results.scores import TrialOutcome
from ..runs import RunFolder
from ..trials.trial import Trial


@dataclass(frozen=True)
class TrialRecord:
    """One finished trial: its outcome and, for each detector that counts it, score and visibility per head."""

    outcome: TrialOutcome
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    seen: Mapping[str, np.ndarray] = field(default_factory=dict)


class RecordStore(RunFolder):
    """The folder of a scoring run, with one safetensors file per finished trial."""

    suffix = ".safetensors"

    def read(self, trial: Trial) -> TrialRecord | None:
        """The record of a trial that is already finished, or None."""
        path = self.path(trial)
        if not path.exists():
            return None
        arrays, meta = read_arrays(path)
        try:
            outcome = TrialOutcome.from_dict(meta["outcome"])
            record = TrialRecord(outcome, _named(arrays, "score/"), _named(arrays, "seen/"))
            if outcome.trial_id != trial.trial_id:
                raise ValueError(f"it holds the trial {outcome.trial_id[:40]!r}")
            if set(record.scores) != set(record.seen):
                raise ValueError("scores and visibility are of different detectors")
            return record
        except UNFIT as error:
            raise self.damaged(trial, error) from error

    def readings(self) -> dict[tuple[str, tuple[int, ...]], HeadReading]:
        """Readings of an earlier call by trial and tokens; one that cannot be read is made anew."""
        found = {}
        for path in sorted((self.folder / READINGS).glob("*.safetensors")):
            with suppress(ResultFileError):
                reading = HeadReading.load(path)
                found[reading.trial_id, reading.ids] = reading
        return found

    def write(self, trial: Trial, record: TrialRecord) -> None:
        """Keep the record of a finished trial."""
        arrays = {f"score/{k}": v for k, v in record.scores.items()} | {f"seen/{k}": v for k, v in record.seen.items()}
        write_arrays(self.path(trial), arrays, {"kind": "TrialRecord", "outcome": record.outcome.to_dict()})


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
