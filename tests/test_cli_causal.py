"""ablate, patch, validate and demo on the command line: they save, resume, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from locos_tl import cli
from locos_tl.cli.output import print_late
from locos_tl.results.effects import Effects
from locos_tl.results.late_layers import LateLayers, late_layers
from locos_tl.results.sweep import Sweep
from locos_tl.trials.trial import save_trials
from tests import tiny
from tests.results.conftest import head_scores
from tests.test_cli import FAILS, PASSES, call, one_line, tiny_loaded, trials  # noqa: F401 - fixtures


def _others(first: int, n: int = 3) -> list:
    """Trials whose prompts are not those of `trials`."""
    return [tiny.trial(first + i, trial_id=f"other-{first + i}", generated=None) for i in range(n)]


@pytest.fixture
def scored(call, tiny_loaded, tmp_path) -> Path:  # noqa: F811
    given = save_trials(tmp_path / "ranking.jsonl", trials(PASSES, FAILS, PASSES))
    assert call("score", "m", "--trials", given, "--out", tmp_path / "scored").code == 0
    return tmp_path / "scored"


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    """Trials to evaluate, and trials to calibrate."""
    return save_trials(tmp_path / "eval.jsonl", _others(60)), save_trials(tmp_path / "cal.jsonl", _others(80))


def test_ablate_saves_prints_and_resumes(call, scored, files, tmp_path):  # noqa: F811
    command = ("ablate", "m", "--scores", scored, "--trials", files[0], "--calibration", files[1])
    command += ("--ks", "1,3", "--out", tmp_path / "ablated", "--max-new-tokens", 4)
    told = call(*command)
    assert told.code == 0, told.err
    assert "rouge_l without these heads (q, mean)" in told.out
    assert "contains without these heads" in told.out
    for name in ("baseline", "locos", "bottom-locos", "random"):
        assert name in told.out
    sweep = Sweep.load(tmp_path / "ablated")
    assert sweep.ks("locos") == (1, 3)
    assert len(sweep.trial_ids) == 3
    assert call(*command) == told
    found = json.loads(call(*command, "--json").out, parse_constant=pytest.fail)
    assert {row["method"] for row in found["summary"]} == {"baseline", "locos", "bottom-locos", "random"}
    page = call("report", scored, "--sweep", tmp_path / "ablated", "-o", tmp_path / "page.html")
    assert page.code == 0
    assert "What happens without these heads" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_ablate_refuses_the_trials_that_ranked_the_heads(call, scored, files, tmp_path):  # noqa: F811
    told = call(
        "ablate", "m", "--scores", scored, "--trials", tmp_path / "ranking.jsonl", "--calibration", files[1],
        "--ks", "1", "--out", tmp_path / "ablated",
    )  # fmt: skip
    assert "3 of 3 trials were used for the ranking 'locos' too" in one_line(told)


@pytest.mark.parametrize(
    ("option", "wrong", "message"),
    [
        ("--ks", "9", "k = 9 heads cannot be ablated"),
        ("--ks", "a", "--ks takes numbers"),
        ("--methods", "attention", "no detector 'attention'"),
        ("--controls", "none", "unknown control 'none'"),
        ("--metrics", "bleu", "unknown metric 'bleu'"),
        ("--at", "k", "at must be one of"),
        ("--mode", "noise", "mode must be one of"),
    ],
)
def test_ablate_says_what_is_wrong(call, scored, files, tmp_path, option, wrong, message):  # noqa: F811
    command = {"--ks": "1", "--out": str(tmp_path / "o")} | {option: wrong}
    flat = [part for pair in command.items() for part in pair]
    told = call("ablate", "m", "--scores", scored, "--trials", files[0], "--calibration", files[1], *flat)
    assert message in one_line(told)


def test_ablate_calibrates_by_another_seed(call, scored, tmp_path, monkeypatch):  # noqa: F811
    drawn = []

    def draw(name, n, *, seed=None, **options):
        drawn.append(seed)
        return _others(20 + 2 * seed, n)

    monkeypatch.setattr("locos_tl.cli.causal.make_trials", draw)
    command = ("ablate", "m", "--scores", scored, "--n", 2, "--calibrate", 2, "--ks", "1", "--max-new-tokens", 2)
    for i, seeds in enumerate([(), ("--seed", 44), ("--seed", 7), ("--calibration-seed", 9)]):
        told = call(*command, *seeds, "--out", tmp_path / f"ablated-{i}")
        assert told.code == 0, told.err
    assert drawn == [43, 44, 44, 43, 7, 44, 43, 9]


@pytest.mark.parametrize("command", ["ablate", "validate"])
def test_scores_that_are_not_there_are_told_so(call, tmp_path, command):  # noqa: F811
    told = call(command, "m", "--scores", tmp_path / "nope", "--out", tmp_path / "o")
    assert one_line(told) == f"error: {tmp_path / 'nope'}: no such folder\n"


def test_patch_saves_prints_and_resumes(call, tiny_loaded, files, tmp_path):  # noqa: F811
    command = ("patch", "m", "--trials", files[0], "--n", 2, "--out", tmp_path / "patched", "--top", 3)
    told = call(*command)
    assert told.code == 0, told.err
    assert "total effect on logit_diff, 2 trials" in told.out
    assert "direct effect on logit_diff, 2 trials" in told.out
    assert Effects.load(tmp_path / "patched" / "total.safetensors").n_trials == 2
    assert call(*command) == told
    assert len(json.loads(call(*command, "--json").out)["direct"]) == 3
    assert "kinds must be some of" in one_line(call(*command[:-2], "--effects", "all"))


def test_validate_takes_the_runs_own_trials(call, scored, tmp_path):  # noqa: F811
    command = ("validate", "m", "--scores", scored, "--out", tmp_path / "late", "--total", "attribution")
    told = call(*command)
    assert told.code == 0, told.err
    assert "where the positive mass lies, 2 trials" in told.out
    assert "late-layer concentration: undecided" in told.out
    header = next(line for line in told.out.splitlines() if line.startswith("method"))
    assert header.split("  ")[0] == "method"
    assert all(name in header for name in ("last third", "centre of mass", "permutation p", "gini", "spearman"))
    assert "nan" not in told.out
    assert LateLayers.load(tmp_path / "late").n_trials == 2
    assert call(*command) == told
    found = json.loads(call(*command, "--json").out, parse_constant=pytest.fail)
    assert found["verdict"] == "undecided"
    assert [row["method"] for row in found["statistics"]] == ["locos", "attention_spatial", "direct", "attribution"]
    assert call("report", scored, "--late", tmp_path / "late").code == 0
    assert "Are they late because of how they are scored?" in (scored / "report.html").read_text(encoding="utf-8")


def test_validate_refuses_before_a_model_is_loaded(call, scored, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(cli.options, "load", lambda *_: pytest.fail("a model was loaded"))
    command = ("validate", "m", "--scores", scored, "--out")
    for wrong in ("attr", "direct"):
        told = one_line(call(*command, tmp_path / "late", "--total", wrong))
        assert f"unknown --total '{wrong}'; choose from total, attribution" in told
    same = tmp_path / "late" / ".." / scored.name
    assert "is the folder of the scoring run" in one_line(call(*command, same))


def test_the_late_table_shows_the_numbers_of_the_verdict(capsys):
    """Cross-fitted, as the verdict quotes them; the Gini is the plain one. An estimate is called one."""
    rng = np.random.default_rng(0)
    layer = np.arange(9)[:, None]
    locos, estimate = (
        head_scores((layer**4 / 4096 + 2 * rng.normal(size=(40, 9, 12))).astype(np.float32)) for _ in range(2)
    )
    estimate.per_trial[:, 0, :2] += 20  # high there, low in locos
    late = late_layers({"locos": locos, "attribution": estimate}, causal="attribution", n_resamples=50)
    print_late(late, False)
    told = capsys.readouterr().out
    row = next(line for line in told.splitlines() if line.startswith("attribution")).split()
    shown = late.depth("attribution").value
    assert abs(shown - late.concentration("attribution").value) > 0.02
    assert row[1:5] == [
        f"{shown:.0%}",
        f"{late.depth('attribution', 'centre_of_mass').value:.3f}",
        f"{late.p_values['attribution']:.2g}",
        f"{late.concentration('attribution', 'gini').value:.3f}",
    ]
    assert f"{shown * 100:.0f} % lies in the last third" in told
    assert row[5:] == ["-", "-"]
    assert "high attribution estimate of the total effect, low locos: L0H" in told


def test_demo_scores_ablates_validates_and_reports(call, tiny_loaded, tmp_path, monkeypatch):  # noqa: F811
    def some(name, n, **options):
        return _others(60 if options["seed"] == 43 else 90, n) if options else trials(*[PASSES] * n)

    monkeypatch.setattr("locos_tl.trials.load.load_trials", some)
    monkeypatch.setattr("locos_tl.cli.demo.KS", (1, 2))
    told = call("demo", "--n", 2, "--out", tmp_path / "run")
    assert told.code == 0, told.err
    assert "2 layers x 4 heads; 2 non-literal trials" in told.out
    assert "2 of 2 trials passed" in told.out
    assert "ablating the top heads in 16 other trials" in told.out
    assert "late-layer concentration: undecided" in told.out
    page = Path(told.out.splitlines()[-1])
    assert page == (tmp_path / "run" / "report.html").resolve()
    assert "What happens without these heads" in page.read_text(encoding="utf-8")
    assert tiny_loaded == [("smollm2-135m", None, None)]
