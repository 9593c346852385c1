"""A process that has imported everything and loaded a tiny model, and forks a child for every run it is asked for.

``python -m tests.robustness.zygote`` reads one JSON object a line (`run` lists the fields) and answers each with
one: how the child ended, and after how long.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from locos_tl import cli
from locos_tl.causal.sweep import ablate_sweep
from locos_tl.causal.validation import patch_trials
from locos_tl.models.tiny import load
from locos_tl.results import files
from locos_tl.scoring.run import score_heads
from tests import tiny

PASSES, FAILS = (7, 8, 9, 3, 10), (7, 8, 9, 10)
TRIALS = [tiny.trial(40 + i, generated=FAILS if i == 2 else PASSES, question="Wer wohnt in Köln?") for i in range(5)]
HEADS = {"mine": [(1, 3), (0, 2), (1, 0), (0, 0)]}

RUNS: dict[str, Callable[[Any, Path], Any]] = {
    "score": lambda model, out: score_heads(model, TRIALS, out=out, progress=False),
    "sweep": lambda model, out: ablate_sweep(
        model, TRIALS, HEADS, (1, 3), controls=("random",), mode="zero", max_new_tokens=4, out=out, progress=False
    ),
    "patch": lambda model, out: patch_trials(model, TRIALS, ("total", "attribution"), out=out, progress=False),
}


def die() -> None:
    """End as by ``kill -9``: nothing is flushed, no block is left in order."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(point: str, write: int) -> None:
    """Die at one point of the given write (0: the first) of a file."""
    original, done = files.write_atomic, 0

    def truncated(handle: int) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size // 2)
        die()

    def counted(path: Path, data: bytes) -> None:
        nonlocal done
        if done == write:
            if point == "before":
                die()
            elif point == "half":
                os.fsync = truncated
            elif point == "unnamed":
                os.replace = lambda *_: die()  # type: ignore[assignment]
        original(path, data)
        if done == write:
            die()
        done += 1

    files.write_atomic = counted


def child(model: Any, job: dict[str, Any]) -> int:
    """Do the run in a forked child."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    if job.get("point"):
        die_at(job["point"], job["write"])
    if limit := job.get("largest_file"):
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if "args" in job:
        sys.argv = ["locos-tl", *job["args"]]
        cli.options.load = lambda *_: model
        cli.main()
    else:
        RUNS[job["kind"]](model, Path(job["out"]))
    return 0


def run(model: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Fork a child for one run.

    Args:
        model: the tiny model.
        job: "kind" and "out", or "args" of the command line; "log"; and what is to go wrong: "delay" (seconds until
            "signal", default 9, is sent), "point" and "write" (see `die_at`), "largest_file" in bytes.
    """
    began = time.monotonic()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            code = child(model, job)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    ended, status = 0, 0
    while "delay" in job and not ended and time.monotonic() - began < job["delay"]:
        time.sleep(0.002)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        if "delay" in job:
            os.kill(pid, job.get("signal", signal.SIGKILL))
        _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}


def main() -> None:
    """Serve until stdin ends."""
    model = load("llama")
    scores = score_heads(model, TRIALS, progress=False)
    cli.output.scores_json(scores, 1)  # by now all that comes late is imported
    assert threading.active_count() == 1, "a fork would lose threads"
    for line in sys.stdin:
        print(json.dumps(run(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
