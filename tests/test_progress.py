"""Progress: honest about the time left, silent where nobody looks, one line in a notebook."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from locos_tl import progress
from locos_tl.progress import Job, clock_time, notebook_line, pass_rate, progress_bar, working


class Clock:
    """A clock that goes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal that keeps whatever lands there."""

    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[Screen]:
    """stderr is a terminal (set in the test itself: pytest puts its own back between fixture and test)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", Screen())
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        yield sys.stderr  # type: ignore[misc]


def test_the_time_left_is_judged_by_this_session():
    """40 of 50 trials were found done; 2 more took 10 s each, so 8 more take 80 s."""
    clock = Clock()
    job = Job("scoring", 50, 40, clock=clock)
    assert job.remaining is None
    assert job.time == ""
    for _ in range(2):
        clock.now += 10
        job.advance("ok")
    assert (job.count, job.remaining, job.time) == ("42/50", 80.0, "1:20 left")
    clock.now += 5
    assert job.remaining == 75.0
    clock.now += 500  # a slow trial: never below nothing
    assert job.remaining == 0.0


def test_a_finished_job_tells_what_it_took():
    clock = Clock()
    job = Job("scoring", 2, clock=clock)
    for _ in range(2):
        clock.now += 30
        job.advance("")
    assert job.time == "1:00"


def test_work_without_a_number_of_items_counts_nothing():
    clock = Clock()
    job = Job("loading", clock=clock)
    clock.now += 7
    job.advance("converting")
    assert (job.count, job.remaining, job.time, job.status) == ("", None, "0:07", "converting")


@pytest.mark.parametrize(
    ("passed", "done", "told"), [(31, 48, "31/48 passed, 65 %"), (0, 0, "0/0 passed"), (0, 3, "0/3 passed, 0 %")]
)
def test_pass_rate(passed, done, told):
    assert pass_rate(passed, done) == told


def test_clock_time_rounds_up_to_a_minute():
    assert clock_time(59.6) == "1:00"


def test_nothing_is_written_where_nobody_looks(capsys):
    with working("loading"), progress_bar("scoring", 2) as advance:
        advance("")
    assert capsys.readouterr() == ("", "")


def test_a_finished_run_shows_no_bar():
    with terminal() as screen, progress_bar("scoring", 3, 3) as advance:
        advance("")
    assert screen.getvalue() == ""


def test_a_bar_on_a_terminal(capsys):
    """What, how many, how far it passed; text from outside is no markup; results on stdout stay there."""
    with terminal() as screen, progress_bar("scoring", 4, 2) as advance:
        advance("[bold]1/3[/bold] passed")
        print("a result")
        advance(pass_rate(2, 4))
    told = screen.getvalue()
    assert "scoring" in told
    assert "4/4" in told
    assert "2/4 passed, 50 %" in told
    assert "a result" not in told
    assert capsys.readouterr().out == "a result\n"


def test_bars_join_those_on_the_screen():
    with terminal() as screen, working("loading model"):
        with working("fetching") as tell:
            tell("from PyPI")
        with progress_bar("checking", 1) as advance:
            advance("done")
    told = screen.getvalue()
    assert all(word in told for word in ("loading model", "fetching", "from PyPI", "checking", "done"))
    assert progress._live.get() is None


def test_a_stopped_run_leaves_the_terminal_in_order():
    with terminal() as screen, suppress(KeyboardInterrupt), progress_bar("scoring", 3) as advance:
        advance("")
        raise KeyboardInterrupt
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert progress._live.get() is None


@pytest.fixture
def notebook(monkeypatch) -> list[str]:
    """A notebook's page: what was displayed, and what it was updated to."""
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda html: shown.append(html.data))

    def display(html, display_id):
        assert display_id is True
        shown.append(html.data)
        return handle

    page = SimpleNamespace(HTML=lambda text: SimpleNamespace(data=text), display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    return shown


def test_a_notebook_gets_few_updates_of_one_line(notebook, capsys):
    with progress_bar("scoring <b>", 500) as advance:
        for i in range(500):
            advance(f"{i}/<i>500")
    assert capsys.readouterr() == ("", "")
    assert 2 <= len(notebook) <= 4  # first, last, and one for every half second
    assert all(line.startswith("<div>scoring &lt;b&gt; <progress ") for line in notebook)
    assert 'value="500" max="500"' in notebook[-1]
    assert "499/&lt;i&gt;500" in notebook[-1]


def test_a_notebook_line_ends_without_a_moving_bar(notebook):
    with working("loading"):
        pass
    assert "<progress></progress>" in notebook[0]
    assert "<progress" not in notebook[-1]
    assert "0:00" in notebook[-1]


def test_a_line_of_a_job_that_was_stopped_keeps_its_place():
    clock = Clock()
    job = Job("scoring", 3, clock=clock)
    clock.now += 9
    job.advance("1/1 passed")
    assert notebook_line(job, ended=True) == (
        '<div>scoring <progress value="1" max="3"></progress> 1/3 · 0:09 · 1/1 passed</div>'
    )


def test_an_ipython_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not progress._in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not progress._in_notebook()
