"""Ctrl-C, full disks and places that cannot be written: one clear line, and what was finished stays."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from locos_tl.causal.sweep import ablate_sweep
from locos_tl.causal.validation import patch_trials
from locos_tl.cli.errors import told
from locos_tl.results import files
from locos_tl.results.files import ResultFileError, read_arrays, read_json, write_arrays, write_json
from locos_tl.scoring.run import score_heads
from locos_tl.trials.trial import save_trials
from tests.robustness.test_kill import finished, tree
from tests.robustness.zygote import RUNS, TRIALS


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> Path:
    return save_trials(tmp_path_factory.mktemp("trials") / "trials.jsonl", TRIALS)


def test_ctrl_c_says_how_to_go_on(zygote, trials, tmp_path):
    args = ["score", "tiny", "--trials", str(trials), "--out", str(tmp_path / "run")]
    whole = zygote.run(args=[*args[:-1], str(tmp_path / "whole")])
    assert whole.code == 0, whole.printed
    for share in (0.5, 0.4, 0.3, 0.2):
        ended = zygote.run(args=args, delay=whole.seconds * share, signal=signal.SIGINT)
        assert "Traceback" not in ended.printed
        if ended.code == 130:
            break
    assert ended.code == 130, ended.printed
    assert "stopped (a scoring run keeps its finished trials; the same command resumes it)" in ended.printed
    assert zygote.run(args=args).code == 0
    assert tree(tmp_path / "run") == tree(tmp_path / "whole")


def test_a_file_that_is_too_large(zygote, trials, tmp_path):
    """The system's own refusal in the middle of a write: nothing half written is left, and one line says where."""
    args = ["score", "tiny", "--trials", str(trials), "--out", str(tmp_path / "run")]
    ended = zygote.run(args=args, largest_file=3000)
    assert ended.code == 2
    assert ended.printed.startswith(f"error: {tmp_path / 'run'}")
    assert ended.printed.endswith("larger than a file may be here\n")
    assert ended.printed.count("\n") == 1
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert zygote.run(args=args).code == 0


@pytest.mark.parametrize(("kind", "code"), [("score", errno.ENOSPC), ("sweep", errno.EDQUOT), ("patch", errno.EROFS)])
def test_a_disk_that_is_full(tiny_model, tmp_path, monkeypatch, kind, code):
    """After some trials: they are kept, and taken up when there is room."""
    model = tiny_model("llama")
    RUNS[kind](model, tmp_path / "whole")
    write, left = os.fsync, iter(range(4))  # settings, trials, two records

    def full(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(code, os.strerror(code))
        write(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="while writing") as refused:
        RUNS[kind](model, tmp_path / "run")
    monkeypatch.undo()
    assert str(tmp_path / "run" / "trials") in told(refused.value)
    assert "\n" not in told(refused.value)
    kept = finished(tmp_path / "run")
    assert len(kept) == 2
    RUNS[kind](model, tmp_path / "run")
    assert kept.items() <= finished(tmp_path / "run").items()
    assert tree(tmp_path / "run") == tree(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("kind", RUNS)
def test_a_folder_that_cannot_be_written(tiny_model, tmp_path, kind):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ResultFileError, match=r"closed.*: cannot write there"):
        RUNS[kind](tiny_model("llama"), tmp_path / "closed" / "run")


def test_files_of_others_are_not_taken_for_litter(tiny_model, tmp_path):
    for name in (".settings.json-abc", "notes.tmp", ".notes.tmp"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(ResultFileError, match="is not empty"):
            RUNS["patch"](tiny_model("llama"), tmp_path)
        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"
        (tmp_path / name).unlink()


# --- records that are whole files and yet wrong -------------------------------------------------------


def spoil_arrays(path: Path, which: str) -> None:
    arrays, meta = read_arrays(path)
    if which == "gone":
        arrays.pop(next(name for name in sorted(arrays) if name.endswith(("locos", "total"))))
    elif which == "shape":
        arrays = {name: np.zeros((1, 3), np.float32) for name in arrays}
    elif "outcome" in meta:
        meta["outcome"] |= {"trial_id": "another"}
    else:
        meta |= {"trial_id": "another"}
    write_arrays(path, arrays, meta)


def spoil_rows(path: Path, which: str) -> None:
    record = read_json(path)
    if which == "gone":
        record["rows"].pop()
    elif which == "shape":
        record["rows"] = []
    else:
        record["rows"][0]["trial_id"] = "another"
    write_json(path, record)


@pytest.mark.parametrize("which", ["gone", "shape", "another trial"])
@pytest.mark.parametrize("kind", RUNS)
def test_a_record_must_hold_what_the_run_would_measure(tiny_model, tmp_path, kind, which):
    """Else a trial would be missing from one detector or method, and nobody would be told."""
    model = tiny_model("llama")
    RUNS[kind](model, tmp_path)
    victim = sorted((tmp_path / "trials").iterdir())[0]
    (spoil_rows if kind == "sweep" else spoil_arrays)(victim, which)
    with pytest.raises(ResultFileError, match=rf"{victim.name}: not a record of this run's trial .*delete it and run"):
        RUNS[kind](model, tmp_path)
    victim.unlink()
    RUNS[kind](model, tmp_path)


def test_runs_of_one_kind_refuse_folders_of_another(tiny_model, tmp_path):
    model = tiny_model("llama")
    score_heads(model, TRIALS, out=tmp_path)
    for run in (ablate_sweep, patch_trials):
        with pytest.raises(ResultFileError, match="holds a run with other settings"):
            RUNS["sweep" if run is ablate_sweep else "patch"](model, tmp_path)
