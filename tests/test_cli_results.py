"""compare, export, check --hooks and --tiny, JSON everywhere, and errors a user can act on."""

from __future__ import annotations

import csv
import errno
import json
import logging
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from locos_tl import cli
from locos_tl.cli.errors import plain_notices, told
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.scores import Scores
from tests.results import conftest as results
from tests.test_cli import PASSES, call, one_line, process, tiny_loaded, trials_file  # noqa: F401 - fixtures


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two runs that differ in one setting, and in the scores of one detector."""
    first = results.run(scoring={"variant": "paper"})
    first.save(tmp_path / "first")
    other = results.run(scoring={"variant": "exact"}, n_passed=4)
    other = replace(other, heads={**other.heads, "wu": first["wu"]})
    other.save(tmp_path / "other")
    return tmp_path


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


# --- compare ----------------------------------------------------------------------------------------------


def test_compare_tells_the_first_difference_and_the_agreement(call, runs):  # noqa: F811
    told = call("compare", runs / "first", runs / "other", "--moved", 2)
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == f"A: {runs / 'first'}, 3 of 5 trials passed"
    assert lines[1] == f"B: {runs / 'other'}, 4 of 5 trials passed"
    assert lines[2] == 'different: scoring.variant is "paper" in A, "exact" in B'
    assert lines[4].split("  ")[0] == "detector"
    assert lines[5].split()[0] == "locos"
    assert lines[6].split()[-1] == "yes"
    assert lines[7].startswith("locos, moved most (rank in A to rank in B): L")
    assert lines[7].count(" to ") == 3
    assert len(lines) == 8


def test_compare_of_one_run_with_itself(call, runs):  # noqa: F811
    told = call("compare", runs / "first", runs / "first")
    assert "the same: settings and every score" in told.out
    assert "moved" not in told.out


def test_compare_prints_strict_json_alone(call, runs):  # noqa: F811
    told = call("compare", runs / "first", runs / "other", "--detector", "locos", "--json")
    found = strict(told.out)
    assert found["same"] is False
    assert found["differences"] == [{"setting": "scoring.variant", "a": '"paper"', "b": '"exact"'}]
    assert [row["detector"] for row in found["detectors"]] == ["locos"]
    assert found["passed"] == [3, 4]


def test_compare_refuses(call, runs):  # noqa: F811
    assert "did you mean 'locos'?" in one_line(call("compare", runs / "first", runs / "other", "--detector", "loco"))
    assert "no such folder" in one_line(call("compare", runs / "first", runs / "gone"))


# --- export -----------------------------------------------------------------------------------------------


def test_export_writes_what_it_says(call, runs):  # noqa: F811
    held = Scores.load(runs / "first")["wu"]
    for form, name in (("head-list", "heads.json"), ("kv-gates", "gates.tsv"), ("csv", "heads.csv")):
        told = call("export", runs / "first", "--detector", "wu", "--format", form, "-o", runs / "out" / name)
        assert (told.code, told.out) == (0, f"{(runs / 'out' / name).resolve()}\n"), told.err
    assert HeadScores.from_head_list(runs / "out" / "heads.json").ranking() == held.ranking()
    np.testing.assert_allclose(np.loadtxt(runs / "out" / "gates.tsv"), held.to_kv_gates(), rtol=1e-6)
    assert len(list(csv.DictReader((runs / "out" / "heads.csv").open()))) == 12


def test_export_prints_json(call, runs):  # noqa: F811
    found = strict(call("export", runs / "first", "-o", runs / "heads.json", "--json").out)
    assert found == {"path": str((runs / "heads.json").resolve()), "format": "head-list", "detector": "locos"}


def test_export_refuses(call, runs):  # noqa: F811
    command = ("export", runs / "first", "-o")
    assert "no detector 'loco' in this run (did you mean 'locos'?)" in one_line(
        call(*command, runs / "x", "--detector", "loco")
    )
    assert "unknown --format 'tsv'" in one_line(call(*command, runs / "x", "--format", "tsv"))
    assert not (runs / "x").exists()
    folder = runs / "first" / "scores"
    assert one_line(call(*command, folder)) == f"error: {folder}: a folder, where a file is expected\n"


# --- check ------------------------------------------------------------------------------------------------


def test_check_shows_the_hooks(call, tiny_loaded):  # noqa: F811
    told = call("check", "m", "--hooks")
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[1].split() == ["hook", "axes", "shape", "holds", "read_for"]
    assert lines[2].startswith("blocks.{layer}.attn.hook_pattern  batch head query key")
    assert "1 x 4 x 11 x 11" in lines[2]
    found = strict(call("check", "m", "--hooks", "--json").out)
    assert [row["hook"] for row in found["hooks"]] == [line.split("  ")[0] for line in lines[2:]]


def test_check_tiny_needs_no_model(call, monkeypatch):  # noqa: F811
    from locos_tl.models import tiny

    monkeypatch.setattr(cli.options, "load", lambda *_: pytest.fail("a model was loaded"))
    real = tiny.check_families
    monkeypatch.setattr(tiny, "check_families", lambda **options: real(("llama",), **options))
    told = call("check", "--tiny")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0] == "tiny random models: all checks pass"
    assert lines[2].split() == ["llama", "pass", "7"]
    found = strict(call("check", "--tiny", "--json").out)
    assert found["passed"] is True
    assert list(found["families"]) == ["llama"]


def test_check_tiny_fails_with_its_families(call, monkeypatch):  # noqa: F811
    from locos_tl.models import tiny
    from locos_tl.models.check import CheckReport, CheckRow

    broken = CheckReport("llama", (CheckRow("logits", False, float("nan"), 1e-4, "why"),))
    monkeypatch.setattr(tiny, "check_families", lambda **_: {"llama": broken})
    told = call("check", "--tiny")
    assert told.code == 1
    assert "FAILED" in told.out
    assert "logits" in told.out
    told = call("check", "--tiny", "--json")
    assert told.code == 1
    assert strict(told.out)["passed"] is False


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give a MODEL to check, or --tiny for none"),
        (("m", "--tiny"), "not both"),
        (("--tiny", "--hooks"), "--hooks shows those of one model"),
        (("--tiny", "--dtype", "bfloat16"), "run on the CPU in float32"),
    ],
)
def test_check_says_what_it_needs(call, tiny_loaded, args, message):  # noqa: F811
    assert message in one_line(call("check", *args))


# --- JSON everywhere --------------------------------------------------------------------------------------


def test_paths_are_bare_or_json(call, runs, monkeypatch):  # noqa: F811
    monkeypatch.setenv("LOCOS_TL_CACHE", str(runs))
    monkeypatch.setattr("locos_tl.models.bundled.ensure", lambda name: runs / name)
    bare = call("model", "path").out.strip()
    assert strict(call("model", "path", "--json").out) == {"path": bare, "name": "smollm2-135m"}
    assert strict(call("model", "get", "--json").out) == {"path": str(runs / "smollm2-135m"), "name": "smollm2-135m"}
    page = call("report", runs / "first", "--json")
    assert strict(page.out) == {"report": str((runs / "first" / "report.html").resolve())}


def test_every_command_that_prints_has_json():
    from tests.test_cli_help import COMMANDS

    for path, command in COMMANDS.items():
        assert "--json" in {name for option in command.params for name in option.opts}, path


# --- tables -----------------------------------------------------------------------------------------------

ROWS = [{"name": "a[b]c\x1b[31m", "x": "1.5", "share": "50%"}, {"name": "b", "x": "10.25", "share": "-"}]


def test_a_piped_table_is_plain_and_aligned(capsys):
    """Numbers to the right, no markup, no escape codes from foreign names."""
    cli.output.print_rows(ROWS, False, title="t")
    assert capsys.readouterr().out.splitlines() == [
        "t",
        "name               x  share",
        "a[b]c\\x1b[31m    1.5    50%",
        "b              10.25      -",
    ]


def test_an_empty_table_is_its_title(capsys):
    cli.output.print_rows([], False, title="nothing there")
    assert capsys.readouterr().out == "nothing there\n"


def test_a_terminal_gets_a_table_with_lines(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    cli.output.print_rows(ROWS, False, title="[t]")
    out = capsys.readouterr().out
    assert "[t]" in out
    assert "a[b]c\\x1b[31m" in out
    assert "┃" in out or "│" in out


# --- errors -----------------------------------------------------------------------------------------------


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "/data/x: no permission; choose another place"),
        (OSError(errno.EROFS, "Read-only file system", "/x"), "/x: read-only; choose another place"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "/x: the disk is full"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/t/.x-1", None, "/t/x"), "/t/x: a folder, where a file"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/f/x"), "/f/x: a part of this path is a file"),
        (OSError(errno.EIO, "Input/output error", "/x"), "/x: Input/output error"),
        (OSError("the Hub cannot be reached"), "the Hub cannot be reached"),
        (KeyError("no detector 'x'"), "no detector 'x'"),
        (ValueError(), "ValueError"),
        (OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nmore"), "out of memory: CUDA out of memory. Tried 2 GiB;"),
        (MemoryError(), "out of memory; try shorter contexts, --dtype bfloat16 or --device cpu"),
    ],
)
def test_an_error_is_one_line_that_helps(error, message):
    assert told(error).startswith(message)
    assert "\n" not in told(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_without_permission(call, runs):  # noqa: F811
    (runs / "closed").mkdir(mode=0o500)
    told = one_line(call("export", runs / "first", "-o", runs / "closed" / "x.json"))
    assert "no permission" in told


def test_a_file_in_the_way_of_a_run(call, tiny_loaded, tmp_path):  # noqa: F811
    (tmp_path / "run").write_text("")
    given = trials_file(tmp_path, PASSES)
    told = one_line(call("score", "m", "--trials", given, "--out", tmp_path / "run"))
    assert told == f"error: {tmp_path / 'run'}: a file, where a folder for the run is expected\n"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_may_stand_anywhere(runs, place):
    args = ["report", str(runs / "gone")]
    args.insert(place, "--debug")
    done = process(*args)
    assert "Traceback (most recent call last)" in done.err
    assert "no such folder" in done.err


def test_warnings_and_log_messages_are_plain_lines(capsys):
    with plain_notices():
        warnings.warn("contexts repeat", stacklevel=1)
        logging.getLogger("locos_tl.x").warning("prefill runs in chunks")
        logging.getLogger("locos_tl.x").info("not said")
        print("follows", file=sys.stderr)
    assert capsys.readouterr().err == "warning: contexts repeat\nprefill runs in chunks\nfollows\n"
