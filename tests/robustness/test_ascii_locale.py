"""Under LC_ALL=C, with stdout in a pipe that knows only ASCII: nothing crashes, and no text is lost in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from locos_tl.models import tiny as tiny_models
from locos_tl.results.scores import Scores
from locos_tl.trials.trial import save_trials
from tests import tiny

TEXTS = {"question": "Wer wohnt in Köln?", "needle": "雪 — Yuki’s flat", "haystack": "Ωραία prose", "kind": "näher"}

ENVIRONMENT = {
    **{"LC_ALL": "C", "PYTHONUTF8": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": os.defpath},
    "PYTHONPATH": os.pathsep.join(sys.path),
}
MANY = """
import json, sys
from locos_tl import cli
for line in sys.stdin.buffer:
    sys.argv = ["locos-tl", *(word.encode().decode(sys.getfilesystemencoding(), "surrogateescape")
                              for word in json.loads(line))]
    try:
        cli.main()
    except SystemExit as end:
        print("\\nEXIT", end.code, flush=True)
"""
"""Several commands in one process, which spares the others the imports; each word as the system would pass it."""


def commands(*asked: list[object]) -> list[tuple[int, bytes]]:
    """Exit code and output of every command."""
    lines = "".join(json.dumps([str(word) for word in words]) + "\n" for words in asked)
    done = subprocess.run([sys.executable, "-c", MANY], input=lines.encode(), capture_output=True, env=ENVIRONMENT)
    parts = done.stdout.split(b"\nEXIT ")
    assert len(parts) == len(asked) + 1, done.stderr.decode()
    codes = [int(part.split(b"\n")[0].replace(b"None", b"0")) for part in parts[1:]]
    outs = [parts[0], *(part.partition(b"\n")[2] for part in parts[1:-1])]
    assert not any(codes), done.stderr.decode()
    assert b"Error" not in done.stderr, done.stderr.decode()
    return list(zip(codes, outs, strict=True))


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> tuple[Path, Path, Path]:
    """Folder with a name that is not ASCII, a tiny model, and trials with such texts.

    The model's own name is plain: the tokenizers library opens no other under this locale.
    """
    folder, model = (tmp_path_factory.mktemp("ascii") / name for name in ("Läufe-雪", "model"))
    folder.mkdir()
    tiny_models.hf_model("llama").save_pretrained(model)
    tiny_models.tokenizer().save_pretrained(model)
    trials = [replace(tiny.trial(40 + i), trial_id=f"prüf-{i}", **TEXTS) for i in range(2)]
    return folder, model, save_trials(folder / "trials.jsonl", trials)


def test_every_step_of_a_run(places):
    folder, model, trials = places
    run, heads = folder / "erster", folder / "köpfe.json"
    outs = [
        out
        for _, out in commands(
            ["--help"],
            ["score", "--help"],
            ["score", model, "--trials", trials, "--out", run],
            ["score", model, "--trials", trials, "--out", run, "--json"],
            ["compare", run, run],
            ["export", run, "-o", heads],
            ["report", run],
        )
    ]
    assert b"Usage" in outs[0]
    assert b"--trials" in outs[1]
    assert b"written to" in outs[2]
    assert str(run).encode() in outs[2]
    told = json.loads(outs[3].decode())
    assert told["passed"] == 2
    assert outs[6].decode().strip() == str(run / "report.html")
    held = Scores.load(run)
    for outcome in held.outcomes:
        assert {name: outcome.trial[name] for name in TEXTS} == TEXTS
        assert outcome.trial_id.startswith("prüf-")
    assert TEXTS["question"] in (run / "trials.jsonl").read_text(encoding="utf-8")
    assert TEXTS["question"] in (run / "report.html").read_text(encoding="utf-8")
    assert json.loads(heads.read_bytes())


def test_errors_name_what_ascii_cannot(places):
    folder, _, _ = places
    done = subprocess.run(
        [sys.executable, "-m", "locos_tl.cli", "compare", folder / "fehlt", folder / "fehlt"],
        capture_output=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1
    assert b"no such folder" in done.stderr
    assert b"fehlt" in done.stderr
