"""What the benchmarks share: one trial of a given length, interleaved timing, peak memory of a child process."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"


def trial_of(model: Any, n_tokens: int) -> Any:
    """A non-literal trial with a prompt of ``n_tokens``, give or take one, that passes the gate.

    The gold answer is the last word the model says, so that every length pays for the full hooked segment.
    """
    import warnings
    from dataclasses import replace

    from locos_tl import generate, load_trials

    frame = load_trials("nonliteral", 1, lengths=[64], tokenizer=model)[0]
    trial = load_trials("nonliteral", 1, lengths=[n_tokens - frame.n_tokens + 64], depths=[0.5], tokenizer=model)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = generate(model, trial).generated_ids
    words = [w for w in model.tokenizer.decode(list(said)).replace(".", " ").split() if w.isalpha()]
    return replace(trial, answer=words[-1]), len(said)


def interleaved(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each way, run in turn so that a busy moment hits all of them; one unmeasured round first."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def median(values: list[float]) -> float:
    return statistics.median(values)


def extra_memory(work: Callable[..., Any], *args: Any) -> float | None:
    """MiB by which ``work(mark, *args)`` raises the resident peak above what is held when it calls ``mark()``.

    Runs in a fresh process; None when the process dies (out of memory).
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(sender, work, args))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        found = None
    process.join()
    return found


def _measured(sender: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    held: list[float] = []

    def mark() -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts over from here
        held.append(_memory("VmRSS"))

    work(mark, *args)
    sender.send(_memory("VmHWM") - held[0])


def _memory(field: str) -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) / 1024


def save(name: str, rows: list[dict[str, Any]]) -> None:
    import os
    import platform

    from locos_tl.models.check import versions

    RESULTS.mkdir(exist_ok=True)
    about = {"cores": os.cpu_count(), "machine": platform.machine(), "versions": versions()}
    (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(_cell(row[c]) for c in columns) + " |" for row in rows])


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def fill_docs(page: str, name: str, text: str) -> None:
    """Put ``text`` between the ``<!-- name -->`` marks of a docs page."""
    path = DOCS / page
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = path.read_text(encoding="utf-8").split(start)
    path.write_text(f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")
