from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Ended(NamedTuple):
    """How a run in a process of its own ended: minus the signal or the exit code, after how long, what it printed."""

    code: int
    seconds: float
    printed: str


class Zygote:
    """A process that does runs of a tiny model in forked children (see `tests.robustness.zygote`)."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.robustness.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def run(self, **job: Any) -> Ended:
        """One run; see `tests.robustness.zygote.run` for what it can be asked."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {name: str(value) if isinstance(value, Path) else value for name, value in job.items()}
        print(json.dumps(asked | {"log": str(self.log)}), file=self.process.stdin, flush=True)
        told = json.loads(self.process.stdout.readline())
        return Ended(told["code"], told["seconds"], self.log.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def zygote(tmp_path_factory) -> Iterator[Zygote]:
    found = Zygote(tmp_path_factory.mktemp("zygote") / "log")
    yield found
    assert found.process.stdin is not None
    found.process.stdin.close()
    found.process.wait(60)
