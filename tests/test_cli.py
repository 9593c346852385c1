"""The command line: quick help, one-line errors before a model is loaded, results that resume (A13, A28)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import locos_tl
from locos_tl import cli
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.scores import Scores
from locos_tl.trials.trial import Trial, save_trials
from tests import tiny
from tests.results import conftest as results

PASSES, FAILS = (7, 8, 9, 3, 10), (7, 8, 9, 10)
"""Generated tokens with the answer "Yuki" (token 3) and without."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(monkeypatch, capsys) -> Callable[..., Done]:
    """`locos-tl ...` in this process, through `main`, with its exit code."""

    def run(*args: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["locos-tl", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return Done(end.value.code or 0, told.out, told.err)  # type: ignore[arg-type]

    return run


@pytest.fixture
def tiny_loaded(monkeypatch, tiny_model) -> list[tuple[Any, ...]]:
    """Every model name loads the tiny llama; holds what was asked for."""
    asked: list[tuple[Any, ...]] = []

    def load(*args: Any) -> Any:
        asked.append(args)
        return tiny_model("llama")

    monkeypatch.setattr(cli.options, "load", load)
    return asked


@pytest.fixture
def no_model(monkeypatch) -> None:
    """Loading a model fails the test."""
    monkeypatch.setattr(cli.options, "load", lambda *_: pytest.fail("a model was loaded"))


def trials(*generated: tuple[int, ...]) -> list[Trial]:
    return [tiny.trial(40 + i, generated=ids, question=f"Who {i}?") for i, ids in enumerate(generated)]


def trials_file(folder: Path, *generated: tuple[int, ...]) -> Path:
    return save_trials(folder / "trials.jsonl", trials(*generated))


def process(*args: object) -> Done:
    """`locos-tl ...` as a process of its own, as users have it (no run-time type checks)."""
    done = subprocess.run(
        [sys.executable, "-m", "locos_tl.cli", *map(str, args)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def one_line(told: Done) -> str:
    """The error of a failed command: exit code 2, one line on stderr, nothing else."""
    assert told.code == 2, told
    assert told.out == ""
    assert told.err.startswith("error: "), told.err
    assert told.err.count("\n") == 1, told.err
    return told.err


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("--help",), ("score", "-h"), ("--version",)])
def test_help_imports_no_heavy_library(args):
    """Help comes at once: nothing but typer is imported for it."""
    code = (
        "import sys, atexit\n"
        "heavy = ['torch', 'transformers', 'transformer_lens', 'numpy', 'pandas', 'plotly', 'scipy']\n"
        "atexit.register(lambda: print('LOADED', *[m for m in heavy if m in sys.modules]))\n"
        "from locos_tl import cli\n"
        f"sys.argv = ['locos-tl', *{args!r}]\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"
    assert len(done.stdout.splitlines()) > 1


COMMANDS = ("demo", "check", "score", "report", "compare", "export", "ablate", "patch", "validate", "model")


def test_help_names_every_command(call):
    told = call("--help").out
    for command in (*COMMANDS, "--version", "--debug", "--install-completion", "--show-completion"):
        assert command in told


def test_version(call):
    assert call("--version").out.strip() == locos_tl.__version__


# --- report ---------------------------------------------------------------------------------------


def test_report_writes_the_page_and_prints_its_absolute_path(call, tmp_path, monkeypatch):
    results.run().save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    told = call("report", "run")
    page = tmp_path / "run" / "report.html"
    assert (told.code, told.out, told.err) == (0, f"{page.resolve()}\n", "")
    assert "3 of 5 trials passed" in page.read_text()
    told = call("report", "run", "-o", "new/place/page.html")
    assert told.out == f"{(tmp_path / 'new/place/page.html').resolve()}\n"
    assert (tmp_path / "new/place/page.html").read_text().startswith("<!")


def test_report_names_sweeps_by_their_folders(call, tmp_path, monkeypatch):
    """Folders of one name are told apart, none is dropped, and "." has a name."""
    results.run().save(tmp_path / "run")
    for folder in ("a/x", "b/x", "c"):
        (tmp_path / folder).mkdir(parents=True)
        results.sweep().save(tmp_path / folder)
    monkeypatch.chdir(tmp_path / "c")
    told = call("report", "../run", "--sweep", "../a/x", "--sweep", "../b/x/", "--sweep", ".")
    assert told.code == 0, told.err
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert [name for name in ("a/x", "b/x", "c", "x") if f"<h3>{name}</h3>" in page] == ["a/x", "b/x", "c"]
    twice = call("report", "../run", "--sweep", "../c", "--sweep", ".")
    assert "--sweep names the same folder twice: ../c and ." in one_line(twice)


def corrupt(folder: Path) -> None:
    path = folder / "scores" / "wu.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def test_report_on_unusable_folders_is_one_line(call, tmp_path):
    assert f"{tmp_path}: no run.json, so not a finished run" in one_line(call("report", tmp_path))
    assert f"{tmp_path / 'nope'}: no such folder" in one_line(call("report", tmp_path / "nope"))
    folder = results.run().save(tmp_path / "run")
    corrupt(folder)
    assert "wu.safetensors: not a readable safetensors file" in one_line(call("report", folder))
    (folder / "run.json").write_text("{")
    assert "run.json: not a usable JSON file" in one_line(call("report", folder))
    assert not list(tmp_path.rglob("*.html"))


def test_report_on_a_corrupt_folder_in_its_own_process(tmp_path):
    """As users have it: no traceback, unless --debug asks for it."""
    folder = results.run().save(tmp_path / "run")
    corrupt(folder)
    assert "wu.safetensors" in one_line(process("report", folder))
    told = process("report", folder, "--debug")
    assert told.code not in (0, 2)
    assert "Traceback (most recent call last)" in told.err
    assert "wu.safetensors: not a readable safetensors file" in told.err


def test_an_error_of_our_own_is_not_hidden(monkeypatch):
    """Only errors that a user can mend are shortened; a bug keeps its traceback."""
    monkeypatch.setattr(cli.options, "load", lambda *_: 1 + "1")  # type: ignore[operator]
    monkeypatch.setattr(sys, "argv", ["locos-tl", "check", "x"])
    with pytest.raises(TypeError):
        cli.main()


@pytest.mark.parametrize("args", [("nothing",), ("report",), ("score", "x"), ("report", "a", "--colour")])
def test_wrong_usage_is_code_2(call, args):
    told = call(*args)
    assert told.code == 2
    assert "Usage" in told.err
    assert "Traceback" not in told.err


def test_a_reader_that_goes_away_is_no_error():
    """`locos-tl model list --json | head -0`."""
    code = (
        "import sys\n"
        "from locos_tl import cli\n"
        "sys.argv = ['locos-tl', 'model', 'list', '--json']\n"
        "sys.stdin.read()\n"
        "cli.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as child:
        assert child.stdout
        assert child.stdin
        assert child.stderr
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


# --- models ---------------------------------------------------------------------------------------


def test_model_list_is_json_and_text(call, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCOS_TL_CACHE", str(tmp_path))
    (row,) = json.loads(call("model", "list", "--json").out)
    assert row["name"] == "smollm2-135m"
    assert row["ready"] is False
    assert Path(row["path"]).is_relative_to(tmp_path)
    assert row["license"] == "Apache-2.0"
    lines = call("model", "list").out.splitlines()
    assert lines[0].split() == ["name", "ready", "license", "about", "path"]
    assert lines[1].startswith("smollm2-135m")
    assert call("model", "path").out == row["path"] + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["get", "path"])
def test_an_unknown_bundled_name_lists_those_there_are(call, command):
    told = one_line(call("model", command, "../gpt5"))
    assert "'../gpt5' is not a bundled model; bundled: smollm2-135m" in told


# --- check ----------------------------------------------------------------------------------------


def test_check_prints_json(call, tiny_loaded):
    told = call("check", "some/model", "--json", "--dtype", "float32", "--device", "cpu")
    assert (told.code, told.err) == (0, "")
    found = json.loads(told.out, parse_constant=pytest.fail)
    assert found["passed"] is True
    assert len(found["checks"]) > 3
    assert found["checks"][0].keys() == {"name", "passed", "error", "tolerance", "note"}
    assert tiny_loaded == [("some/model", "cpu", "float32")]


def test_check_prints_a_table(call, tiny_loaded):
    told = call("check", "some/model")
    assert told.code == 0
    assert "all checks pass" in told.out
    assert " pass " in told.out


@pytest.mark.parametrize("error", [float("nan"), float("inf"), 0.5])
def test_a_failed_check_is_code_1_and_still_strict_json(call, tiny_loaded, monkeypatch, error):
    """A32: a model with broken weights has NaN errors, and NaN is no JSON."""
    from locos_tl.models import check

    report = check.CheckReport("m", (check.CheckRow("logits", False, error, 1e-4, "why"),))
    monkeypatch.setattr(check, "check_model", lambda *_, **__: report)
    told = call("check", "m", "--json")
    assert told.code == 1
    found = json.loads(told.out, parse_constant=pytest.fail)
    assert found["passed"] is False
    assert found["checks"][0]["error"] in (None, 0.5)
    told = call("check", "m")
    assert told.code == 1
    assert "FAIL" in told.out
    assert "why" in told.out


# --- score: refused before a model is loaded ------------------------------------------------------

REFUSED = {
    "trials": (
        ("--trials", "nolimit"),
        "unknown trials 'nolimit' (did you mean 'nolima'?); choose from nonliteral",
    ),
    "trials file": (("--trials", "gone.jsonl"), "gone.jsonl: no such file"),
    "lengths": (("--lengths", "64,x"), "--lengths takes numbers with commas between them, got '64,x'"),
    "length": (("--lengths", "64,-1"), "length -1 is not a positive"),
    "no length": (("--lengths", ","), "at least one length"),
    "fractions": (("--lengths", "64.5"), "--lengths takes whole numbers with commas"),
    "depths": (("--depths", "0;1"), "--depths takes numbers with commas between them, got '0;1'"),
    "depth": (("--depths", "50"), "depth 50.0 is outside 0 to 1 (50 % is 0.5)"),
    "kinds": (("--kinds", "onehop,threehop"), "unknown kind 'threehop'; choose from"),
    "option of another set": (("--trials", "niah", "--kinds", "onehop"), "'niah' have no option 'kinds'"),
    "path": (("--trials", "niah", "--path", "gone"), "gone"),
    "haystack": (("--haystack", "gone.txt"), "gone.txt"),
    "detectors": (("--detectors", "locos,loco"), "unknown detector 'loco' (did you mean 'locos'?); choose from locos,"),
    "no detectors": (("--detectors", ""), "no detector requested"),
    "patching": (("--detectors", "cri"), "use patch_heads"),
    "variant": (("--variant", "raw"), "unknown --variant 'raw'; choose from paper, folded, exact"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_options_are_refused_before_a_model_is_loaded(call, no_model, tmp_path, monkeypatch, kind):
    args, message = REFUSED[kind]
    monkeypatch.chdir(tmp_path)
    assert message in one_line(call("score", "some/model", "--out", "run", *args))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [*((o, v) for o in ("--n", "--top", "--max-new-tokens") for v in ("0", "-1", "many")), ("--seed", "many")],
)
def test_bad_numbers_are_refused_before_a_model_is_loaded(call, no_model, tmp_path, option, value):
    told = call("score", "some/model", "--out", tmp_path / "run", option, value)
    assert told.code == 2
    assert option in told.err
    assert "Traceback" not in told.err
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_loaded_is_one_line(call, tmp_path, monkeypatch):
    """Whatever `load_model` says goes through as it is."""

    def refuse(*_: object) -> None:
        raise OSError("the Hub cannot be reached; give a local folder")

    monkeypatch.setattr(cli.options, "load", refuse)
    told = one_line(call("score", "x", "--out", tmp_path / "run", "--trials", trials_file(tmp_path, PASSES)))
    assert told == "error: the Hub cannot be reached; give a local folder\n"


# --- score ----------------------------------------------------------------------------------------


def test_score_writes_a_run_and_prints_it(call, tiny_loaded, tmp_path):
    """A13: passed of total is printed and written, and failed trials are not averaged in as zeros."""
    given = trials_file(tmp_path, PASSES, FAILS, FAILS, FAILS, FAILS)
    told = call("score", "some/model", "--trials", given, "--out", tmp_path / "run", "--top", 3)
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "1 of 5 trials passed the gate (20%)"
    assert lines[1] == "top 3 heads by locos"
    assert lines[2].split() == ["rank", "layer", "head", "score", "ci_low", "ci_high", "kv_group"]
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert lines[6] == "only 1 trial(s) passed: mind the intervals; ask for more with --n, in a new folder"
    assert lines[7] == f"written to {tmp_path / 'run'}; look at it with: locos-tl report {tmp_path / 'run'}"
    assert "nan" not in told.out
    run = json.loads((tmp_path / "run" / "run.json").read_text(), parse_constant=pytest.fail)
    assert (run["passed"], run["total"]) == (1, 5)
    scores = Scores.load(tmp_path / "run")
    assert {name: held.n_trials for name, held in scores.items()} == {
        "locos": 1, "attention_spatial": 1, "dla": 1, "wu": 1, "contrastive": 1, "headkv": 5, "random": 3,
    }  # fmt: skip
    alone = locos_tl.score_heads(cli.options.load(), trials(PASSES)[0])
    assert scores["locos"].mean.tobytes() == alone["locos"].mean.tobytes()
    assert call("report", tmp_path / "run").code == 0


def test_score_prints_strict_json_alone(call, tiny_loaded, tmp_path):
    given = trials_file(tmp_path, PASSES, PASSES, FAILS)
    told = call(
        "score", "m", "--trials", given, "--out", tmp_path / "run", "--json", "--top", 2, "--detectors", "locos,random"
    )
    assert (told.code, told.err) == (0, "")
    found = json.loads(told.out, parse_constant=pytest.fail)
    assert (found["passed"], found["total"]) == (2, 3)
    assert [len(rows) for rows in found["top"].values()] == [2, 2]
    assert list(found["top"]) == ["locos", "random"]
    assert found["top"]["locos"][0]["rank"] == 1
    assert found["provenance"]["model"]["n_layers"] == 2
    assert -1 <= found["split_half"]["locos"] <= 1


def test_score_tells_how_far_halves_of_the_trials_agree(call, tiny_loaded, tmp_path):
    """A28: whether the trials suffice for a ranking is printed with it."""
    given = trials_file(tmp_path, PASSES, PASSES, PASSES, PASSES)
    told = call("score", "m", "--trials", given, "--out", tmp_path / "run", "--detectors", "locos")
    wanted = Scores.load(tmp_path / "run")["locos"].split_half()
    assert f"rank correlation of two halves of the trials: {wanted:.2f}\n" in told.out


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_second_run_is_byte_identical(call, tiny_loaded, tmp_path):
    """A28: the same command in another folder; every file, scores and provenance, has the same bytes."""
    given = trials_file(tmp_path, PASSES, FAILS, PASSES)
    for name in ("one", "two"):
        assert call("score", "m", "--trials", given, "--out", tmp_path / name).code == 0
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_every_result_file_says_what_made_it(call, tiny_loaded, tmp_path):
    """A28: revision, versions, dtype, attention, processing, template, seeds, trial and passed counts."""
    given = trials_file(tmp_path, PASSES, FAILS, PASSES)
    assert call("score", "m", "--trials", given, "--out", tmp_path / "run").code == 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())["provenance"]
    for path in sorted((tmp_path / "run" / "scores").iterdir()):
        told = HeadScores.load(path).provenance
        assert {"revision", "dtype", "attention", "processing", "backend"} <= set(told["model"]), path
        assert {"torch", "transformers", "transformer-lens"} <= set(told["versions"])
        assert {"variant", "gate", "max_new_tokens", "random_seeds"} <= set(told["scoring"])
        assert (told["trials"]["count"], told["trials"]["passed"]) == (3, 2)
        assert {"digest", "templates"} <= set(told["trials"])
        assert {k: v for k, v in told.items() if k != "detector"} == run


def test_score_resumes_without_scoring_again(call, tiny_loaded, tmp_path, monkeypatch):
    given = trials_file(tmp_path, PASSES, FAILS, PASSES)
    command = ("score", "m", "--trials", given, "--out", tmp_path / "run")
    first = call(*command)
    before = files_of(tmp_path / "run")
    monkeypatch.setattr(
        "locos_tl.scoring.run.score_trial", lambda *_, **__: pytest.fail("a finished trial was scored again")
    )
    assert call(*command) == first
    assert files_of(tmp_path / "run") == before


def test_a_stopped_run_resumes_to_the_same_files(call, tiny_loaded, tmp_path, monkeypatch):
    """Ctrl-C: exit code 130, a word on what is kept, and the same command goes on with the rest only."""
    from locos_tl.scoring import run

    given = trials_file(tmp_path, PASSES, FAILS, PASSES, PASSES)
    assert call("score", "m", "--trials", given, "--out", tmp_path / "whole").code == 0
    real, scored, stop = run.score_trial, [], [True]

    def score_trial(model: Any, trial: Trial, *rest: Any) -> Any:
        if stop and len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(trial.trial_id)
        return real(model, trial, *rest)

    monkeypatch.setattr(run, "score_trial", score_trial)
    told = call("score", "m", "--trials", given, "--out", tmp_path / "run")
    assert told.code == 130
    assert told.err.strip() == "stopped (a scoring run keeps its finished trials; the same command resumes it)"
    assert "Traceback" not in told.err
    assert not (tmp_path / "run" / "run.json").exists()
    assert "no run.json, so not a finished run" in one_line(call("report", tmp_path / "run"))
    stop.clear()
    assert call("score", "m", "--trials", given, "--out", tmp_path / "run").code == 0
    assert len(scored) == len(set(scored)) == 4
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")


def test_other_settings_do_not_mix_into_a_run(call, tiny_loaded, tmp_path):
    given = trials_file(tmp_path, PASSES)
    command = ("score", "m", "--trials", given, "--out", tmp_path / "run", "--detectors", "locos")
    assert call(*command).code == 0
    told = one_line(call(*command, "--variant", "folded"))
    assert 'other settings (scoring.variant: "paper" there, "folded" now)' in told
    assert Scores.load(tmp_path / "run").provenance["scoring"]["variant"] == "paper"


def test_no_passing_trial_is_an_error_and_no_ranking(call, tiny_loaded, tmp_path):
    """A13: "0 of 5" on stderr, a non-zero exit code, no ranking of gated detectors, no mean of nothing."""
    given = trials_file(tmp_path, *[FAILS] * 5)
    told = call("score", "m", "--trials", given, "--out", tmp_path / "run")
    assert told.code == 2
    assert told.out == ""
    assert told.err.startswith("error: 0 of 5 trials passed the gate")
    assert "wanted 'Yuki', got" in told.err
    assert "Who 0?" in told.err
    assert "Traceback" not in told.err
    assert "nan" not in told.err.lower()
    kept = {p.name for p in (tmp_path / "run" / "scores").iterdir()}
    assert kept == {"headkv.safetensors", "random.safetensors"}
    assert call("report", tmp_path / "run").code == 0  # the failed answers can be looked at
    assert "0 of 5 trials passed" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert call("score", "m", "--trials", given, "--out", tmp_path / "run").code == 2  # resumed: still an error


def test_ungated_detectors_need_no_passing_trial(call, tiny_loaded, tmp_path):
    given = trials_file(tmp_path, FAILS, FAILS)
    told = call("score", "m", "--trials", given, "--out", tmp_path / "run", "--detectors", "headkv,random")
    assert told.code == 0
    assert told.out.startswith("0 of 2 trials passed the gate (0%)\ntop 8 heads by headkv")
