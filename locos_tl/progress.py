"""Progress of everything that takes a while: a bar on a terminal or in a notebook, nothing where nobody looks.

The time left is judged from what this session did: trials that a resumed run finds done do not make it look fast.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

Advance = Callable[[str], None]

NOTEBOOK_SECONDS = 0.5
"""Least time between two updates in a notebook, each of which is a message to the browser."""


@contextmanager
def progress_bar(what: str, total: int, done: int = 0, show: bool | None = None) -> Iterator[Advance]:
    """A bar over ``total`` items; the block calls the given function with a short status after each.

    Args:
        what: name of the work.
        total: number of items.
        done: items already done (a resumed run).
        show: force on or off; default: on when stderr is a terminal or a notebook is running.
    """
    if total - done <= 0:
        yield lambda status: None
        return
    with _shown(Job(what, total, done), show) as advance:
        yield advance


@contextmanager
def working(what: str, show: bool | None = None) -> Iterator[Advance]:
    """A sign of life around work whose length nobody knows; the block may call the function with a status.

    Args:
        what: name of the work.
        show: as in `progress_bar`.
    """
    with _shown(Job(what), show) as tell:
        yield tell


def pass_rate(passed: int, done: int) -> str:
    """The status of a run with a gate.

    >>> pass_rate(31, 48)
    '31/48 passed, 65 %'
    """
    return f"{passed}/{done} passed" + (f", {passed / done:.0%}".replace("%", " %") if done else "")


@dataclass
class Job:
    """Some work and how far it is.

    Attributes:
        what: its name.
        total: number of items; None when nobody knows.
        done: items done, those of an earlier session included.
        status: a few words on what came out so far.
    """

    what: str
    total: int | None = None
    done: int = 0
    status: str = ""
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    _last: float = field(init=False)
    _before: int = field(init=False)

    def __post_init__(self) -> None:
        self.started = self._last = self.clock()
        self._before = self.done

    def advance(self, status: str) -> None:
        """One more item is done; of work without a number of items, only the status changes."""
        self.status = status
        if self.total is not None:
            self.done += 1
            self._last = self.clock()

    @property
    def count(self) -> str:
        """Items done of all: "12/48"."""
        return "" if self.total is None else f"{self.done}/{self.total}"

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this session."""
        return self.clock() - self.started

    @property
    def remaining(self) -> float | None:
        """Seconds left at this session's pace; None before its first item, or where there is no end."""
        ours = self.done - self._before
        if self.total is None or not ours:
            return None
        left = (self._last - self.started) / ours * (self.total - self.done)
        return max(0.0, left - (self.clock() - self._last))

    @property
    def time(self) -> str:
        """What a reader wants to know of time: how long it will take, or at last took."""
        if self.total is None or self.done >= self.total:
            return clock_time(self.elapsed)
        return "" if self.remaining is None else f"{clock_time(self.remaining)} left"


def clock_time(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> clock_time(7.0), clock_time(151.0), clock_time(7384.0)
    ('0:07', '2:31', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def _shown(job: Job, show: bool | None) -> Iterator[Advance]:
    """Show a job in the place where somebody looks; the block advances it."""
    notebook = _in_notebook()
    if show is None:
        show = notebook or sys.stderr.isatty()
    if not show:
        yield job.advance
        return
    with (_notebook if notebook else _terminal)(job) as refresh:

        def advance(status: str) -> None:
            job.advance(status)
            refresh()

        yield advance


def _in_notebook() -> bool:
    """True in a Jupyter kernel, where there is no terminal but a page to draw on."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


# --- terminal -------------------------------------------------------------------------------------------

_live: ContextVar[Any] = ContextVar("_live", default=None)
"""The bars on the screen, which further ones join: a terminal has room for one moving region."""


@contextmanager
def _terminal(job: Job) -> Iterator[Callable[[], None]]:
    with ExitStack() as block:
        bars = _live.get()
        if bars is None:
            bars = block.enter_context(_bars(keep=job.total is not None))
            block.callback(_live.reset, _live.set(bars))
        task = bars.add_task("", total=job.total, completed=job.done, job=job)

        def refresh() -> None:
            bars.update(task, completed=job.done, refresh=job.total is None)

        bars.refresh()  # at once: the work may hold the interpreter before the screen's own turn comes
        try:
            yield refresh
        finally:
            bars.refresh()
            if job.total is None:
                bars.remove_task(task)


def _bars(keep: bool) -> Any:
    """The moving region of a terminal.

    Args:
        keep: leave the last state on the screen.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn
    from rich.table import Column
    from rich.text import Text

    class Words(ProgressColumn):
        """One of a job's texts, as it is: names of models and answers are no markup."""

        def __init__(self, read: Callable[[Job], str], style: str = "") -> None:
            super().__init__(Column(no_wrap=True))
            self.read, self.style = read, style

        def render(self, task: Any) -> Text:
            return Text(self.read(task.fields["job"]), style=self.style)

    return Progress(
        Words(lambda job: job.what),
        BarColumn(bar_width=24),
        Words(lambda job: job.count, "progress.download"),
        Words(lambda job: job.time, "progress.remaining"),
        Words(lambda job: job.status),
        console=Console(file=sys.stderr),  # this one, whatever is redirected meanwhile
        transient=not keep,
        redirect_stdout=False,  # results go there, and only there
    )


# --- notebook -------------------------------------------------------------------------------------------


@contextmanager
def _notebook(job: Job) -> Iterator[Callable[[], None]]:
    """One line of HTML that is rewritten in place: it needs no widgets, and a saved notebook keeps its last state."""
    from IPython.display import HTML, display

    handle = display(HTML(notebook_line(job)), display_id=True)
    drawn = job.clock()

    def refresh() -> None:
        nonlocal drawn
        if job.clock() - drawn >= NOTEBOOK_SECONDS:
            drawn = job.clock()
            handle.update(HTML(notebook_line(job)))

    try:
        yield refresh
    finally:
        handle.update(HTML(notebook_line(job, ended=True)))


def notebook_line(job: Job, ended: bool = False) -> str:
    """A job as a line of HTML."""
    from html import escape

    bar = "<progress></progress>"
    if job.total is not None:
        bar = f'<progress value="{job.done}" max="{job.total}"></progress>'
    elif ended:
        bar = ""
    time_told = clock_time(job.elapsed) if ended else job.time
    words = " · ".join(escape(part) for part in (job.count, time_told, job.status) if part)
    return f"<div>{escape(job.what)} {bar} {words}</div>"
