"""A run that is killed at any moment, as often as it may be, ends in the same files when it is started again."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from locos_tl.results.effects import Effects
from locos_tl.results.files import ResultFileError
from locos_tl.results.scores import Scores
from locos_tl.results.sweep import Sweep

N_TRIALS = 5
READERS = {
    "score": [Scores.load],
    "sweep": [Sweep.load],
    "patch": [
        lambda folder: Effects.load(folder / "total.safetensors"),
        lambda folder: Effects.load(folder / "attribution.safetensors"),
    ],
}
POINTS = ("before", "half", "unnamed", "after")
"""Of writing a file: not begun, half of it written, all of it but under no name, done."""


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Records of finished trials, with what would change if they were written again."""
    stats = {p.name: p.stat() for p in (folder / "trials").glob("[!.]*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


@pytest.fixture(scope="module", params=READERS)
def whole(request, zygote, tmp_path_factory):
    """A kind of run, the files of one that nobody disturbed, and how long it took."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    ended = zygote.run(kind=request.param, out=folder)
    assert ended.code == 0, ended.printed
    files = tree(folder)
    assert sum(name.startswith("trials/") for name in files) == N_TRIALS
    return request.param, files, ended.seconds


class Story:
    """One folder, and the runs into it that were killed."""

    def __init__(self, zygote, kind: str, whole: dict[str, bytes], folder: Path) -> None:
        self.zygote, self.kind, self.whole, self.folder = zygote, kind, whole, folder
        self.kills, self.seconds = 0, 60.0

    def run(self, **fault: object) -> bool:
        """Start again, and be killed or not; True when this run came to its end."""
        before = finished(self.folder)
        ended = self.zygote.run(kind=self.kind, out=self.folder, **fault)
        assert ended.code in (0, -9), ended.printed
        self.kills += ended.code == -9
        self.seconds = ended.seconds
        after = finished(self.folder)
        assert before.items() <= after.items()  # what was finished stays, and is not measured again
        for name in after:
            assert (self.folder / "trials" / name).read_bytes() == self.whole[f"trials/{name}"]
        for read in READERS[self.kind]:
            with nullcontext() if ended.code == 0 else suppress(ResultFileError):
                read(self.folder)
        if ended.code == 0:
            assert tree(self.folder) == self.whole  # also no file more: nothing half written is left
        return ended.code == 0


def test_killed_at_random_moments(zygote, whole, tmp_path):
    kind, files, seconds = whole
    rng = random.Random(f"moments {kind}")
    kills = 0
    for attempt in range(12):
        story = Story(zygote, kind, files, tmp_path / str(attempt))
        while story.kills < 4 and not story.run(delay=rng.uniform(0, seconds)):
            pass
        if story.kills < 4:  # it came to its end before its moment
            seconds = min(seconds, story.seconds)
        assert story.run()
        kills += story.kills
        if kills >= 6:
            return
    pytest.fail(f"only {kills} runs were killed in time")


def test_killed_at_chosen_points_of_writing(zygote, whole, tmp_path):
    """Also in the very first file, which makes the folder one of ours, and among the final ones."""
    kind, files, _ = whole
    rng = random.Random(f"points {kind}")
    n_writes = len(files) - 1  # all but the lock
    for point in POINTS:
        story = Story(zygote, kind, files, tmp_path / point)
        for write in (0, rng.randrange(1, 7), rng.randrange(1, n_writes - 7) if n_writes > 9 else 1):
            story.run(point=point, write=write)
        assert story.kills >= 2
        assert story.run()
