"""One progress bar for everything that takes a while; silent when nobody is looking at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]


@contextmanager
def progress_bar(what: str, total: int, done: int = 0, show: bool | None = None) -> Iterator[Advance]:
    """A bar over ``total`` items; the block calls the given function with a short status per item.

    Args:
        what: name of the work.
        total: number of items.
        done: items already done (a resumed run).
        show: force on or off; default: on when stderr is a terminal or a notebook is running.
    """
    if show is None:
        show = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not show or total - done <= 0:
        yield lambda status: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, completed=done, status="")
        yield lambda status: bar.update(task, advance=1, status=status)
