"""What the workers of `test_executors` do. They import this module, so it imports nothing heavy."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def no_model(device: str | None, threads: int) -> str:
    """Stands for loading a model."""
    return f"model on {device}"


def broken_model(device: str | None, threads: int) -> str:
    raise ValueError("the checkpoint is damaged")


def name(model: str, trial: Any) -> tuple[str, str]:
    return model, trial.trial_id


def process_of(model: str, trial: Any) -> int:
    time.sleep(0.2)
    return os.getpid()


def dies_once(model: Any, trial: Any, at: str, mark: Path, then: Any = name) -> Any:
    """Is killed at one trial, the first time."""
    if trial.trial_id == at and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return then(model, trial)


def always_dies(model: str, trial: Any, at: str | None, log: Path) -> tuple[str, str]:
    """Is killed at one trial, or at all of them, whenever it is tried; notes every trial that it begins."""
    with log.open("a") as file:
        file.write(f"{trial.trial_id}\n")
    if at in (None, trial.trial_id):
        os.kill(os.getpid(), signal.SIGKILL)
    return name(model, trial)


def fails(model: str, trial: Any, at: str, mark: Path) -> tuple[str, str]:
    """Raises at one trial, while the others are under way."""
    if trial.trial_id == at:
        mark.touch()
        raise ValueError(f"trial {trial.trial_id!r} is of no use")
    while not mark.exists():
        time.sleep(0.01)
    time.sleep(0.3)
    return name(model, trial)


def sleeps(model: str, trial: Any, mark: Path) -> None:
    """Says its process, and never ends."""
    (mark / str(os.getpid())).touch()
    time.sleep(600)


def score_dying_once(model: Any, trial: Any, *rest: Any, at: str, mark: Path) -> Any:
    """`score_trial` in a worker that is killed once."""
    from locos_tl.scoring.run import score_trial

    return dies_once(model, trial, at, mark, lambda m, t: score_trial(m, t, *rest))
