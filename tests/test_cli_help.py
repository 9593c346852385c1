"""Help and completion: every example can be typed, every name can be completed, and a Tab imports nothing heavy."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from locos_tl import cli
from locos_tl.cli import names
from tests.test_cli import call, tiny_loaded, trials_file  # noqa: F401 - fixtures


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path: ("model", "get")."""
    group = group or typer.main.get_command(cli.app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands())
EXAMPLES = [
    (path, line.removeprefix("Example: "))
    for path, command in COMMANDS.items()
    for line in map(str.strip, (command.help or "").splitlines())
    if line.startswith("Example: ")
]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_one_or_two_examples(path):
    assert 1 <= sum(of == path for of, _ in EXAMPLES) <= 2


@pytest.mark.parametrize(("path", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_is_accepted_as_it_stands(path, line):
    """Parsed with every option and callback, without running: what help shows is what can be typed."""
    program, *args = shlex.split(line)
    assert program == "locos-tl"
    assert tuple(args[: len(path)]) == path
    command = COMMANDS[path]
    context = command.make_context(" ".join(path), args[len(path) :])
    assert "--out" not in {name for option in command.params for name in option.opts} or context.params.get("out")


def test_help_shows_the_examples(call):  # noqa: F811
    told = call("score", "--help").out
    assert "Example: locos-tl score smollm2-135m" in told
    assert "Example: locos-tl score Qwen/Qwen3-8B" in told


# --- the cheap ones are run -------------------------------------------------------------------------------


def typed(line: str) -> list[str]:
    return shlex.split(line)[1:]


def test_the_examples_over_runs_do_what_they_say(call, tmp_path, monkeypatch):  # noqa: F811
    """report, compare and export need a finished run only."""
    from tests.results import conftest as results

    monkeypatch.chdir(tmp_path)
    for name in ("first", "again", "small", "large"):
        results.run(n_passed=6, n_total=8).save(tmp_path / "runs" / name)
    results.sweep().save(tmp_path / "runs")
    (tmp_path / "runs" / "ablated").mkdir()
    results.sweep().save(tmp_path / "runs" / "ablated")
    results.effects().save(tmp_path / "runs" / "patched" / "total.safetensors")
    ran = 0
    for path, line in EXAMPLES:
        if path[0] in ("compare", "export", "report") and "--late" not in line:
            told = call(*typed(line))
            assert told.code == 0, (line, told.err)
            ran += 1
    assert ran == 5
    assert {"heads.json", "gates.tsv", "first.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_examples_over_models_do_what_they_say(call, tiny_loaded, tmp_path, monkeypatch):  # noqa: F811
    """model and check, on the tiny model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("locos_tl.models.bundled.ensure", lambda name: tmp_path / name)
    for path, line in EXAMPLES:
        if path[0] == "model" or line == "locos-tl check smollm2-135m":
            told = call(*typed(line))
            assert told.code == 0, (line, told.err)


# --- completion -------------------------------------------------------------------------------------------


def completed(*typed_words: str) -> list[str]:
    """What bash would offer after these words, in a process of its own as the shell asks for it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, atexit\n"
            "heavy = ['torch', 'transformers', 'numpy', 'pandas', 'plotly', 'scipy']\n"
            "atexit.register(lambda: print('LOADED', *[m for m in heavy if m in sys.modules], file=sys.stderr))\n"
            "sys.argv = ['locos-tl']\n"
            "from locos_tl import cli\n"
            "cli.app(prog_name='locos-tl')\n",
        ],
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": ":".join(sys.path),
            "_LOCOS_TL_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("locos-tl", *typed_words)),
            "COMP_CWORD": str(len(typed_words)),
        },
    )
    assert done.stderr.splitlines()[-1].strip() == "LOADED", done.stderr
    return done.stdout.split()


def test_completion_offers_names_and_imports_nothing_heavy():
    assert completed("sc") == ["score"]
    assert completed("score", "smol") == ["smollm2-135m"]
    assert completed("score", "smollm2-135m", "--trials", "no") == ["nonliteral", "nolima"]
    assert completed("score", "smollm2-135m", "--detectors", "locos,w") == ["locos,wu"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_can_be_shown(shell):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['locos-tl']; from locos_tl import cli; cli.app()"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "_LOCOS_TL_COMPLETE": f"source_{shell}"},
    )
    assert done.returncode == 0, done.stderr
    assert "_LOCOS_TL_COMPLETE=complete" in done.stdout


@pytest.mark.parametrize(
    ("incomplete", "offered"),
    [
        ("", ["locos", "wu", "dla"]),
        ("l", ["locos"]),
        ("locos,", ["locos,wu", "locos,dla"]),
        ("locos,wu,d", ["locos,wu,dla"]),
        ("x", []),
    ],
)
def test_lists_are_completed_name_by_name(incomplete, offered):
    assert names.some_of(("locos", "wu", "dla"))(incomplete) == offered


def test_completed_names_are_those_the_library_knows():
    from locos_tl import memory
    from locos_tl.causal import means, rankings, validation
    from locos_tl.causal.ablation import MODES
    from locos_tl.causal.corrupt import WAYS
    from locos_tl.causal.pair_runs import METRICS as PATCH_METRICS
    from locos_tl.executors import EXECUTORS
    from locos_tl.models.bundled import BUNDLED
    from locos_tl.scoring.detectors import DETECTORS
    from locos_tl.scoring.measure import VARIANTS
    from locos_tl.scoring.metrics import METRICS
    from locos_tl.trials.load import SETS
    from locos_tl.trials.nonliteral import KINDS

    assert tuple(BUNDLED) == names.MODELS
    assert tuple(SETS) == names.TRIAL_SETS
    assert (*DETECTORS, "random") == names.DETECTORS
    assert tuple(VARIANTS) == names.VARIANTS
    assert tuple(METRICS) == names.METRICS
    assert set(rankings.CONTROLS) == set(names.CONTROLS)
    assert tuple(means.ABLATED) == names.SITES
    assert tuple(MODES) == names.MODES
    assert memory.PURPOSES == names.PURPOSES
    assert set(validation.MEASURES) == set(names.EFFECTS)
    assert set(names.TOTALS) < set(names.EFFECTS)
    assert tuple(WAYS) == names.WAYS
    assert EXECUTORS == names.EXECUTORS
    assert tuple(PATCH_METRICS) == names.PATCH_METRICS
    assert set(KINDS) == set(names.KINDS)
