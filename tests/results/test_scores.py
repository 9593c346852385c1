"""`Scores`: a run of all detectors with every trial's outcome, saved whole or refused (A13, A28)."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locos_tl.results import files
from locos_tl.results.files import ResultFileError
from locos_tl.results.scores import Scores, TrialOutcome
from tests.results.conftest import outcome, random_scores, run


def edit(path: Path, change: dict[str, Any]) -> None:
    """Change fields of a JSON file; `...` takes one out."""
    value = json.loads(path.read_text()) | change
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not ...}))


# --- in memory ------------------------------------------------------------------------------------


def test_a_run_is_a_mapping_of_detectors():
    scores = run(("locos", "wu", "headkv"))
    assert list(scores) == ["locos", "wu", "headkv"]
    assert len(scores) == 3
    assert "wu" in scores
    assert "dla" not in scores
    assert scores["wu"].detector == "wu"
    assert scores.get("dla") is None
    with pytest.raises(KeyError, match="no detector 'dla' in this run; there are: locos, wu, headkv"):
        scores["dla"]


def test_passed_of_total():
    """A13: the rate counts failed trials; head means do not."""
    scores = run(n_passed=1, n_total=5)
    assert (scores.passed, scores.total, scores.pass_rate) == (1, 5, 0.2)
    assert scores["locos"].n_trials == 1
    np.testing.assert_array_equal(scores["locos"].mean, scores["locos"].per_trial[0])
    assert "1 of 5 trials passed" in repr(scores)
    assert math.isnan(Scores({}, ()).pass_rate)


def test_a_run_without_provenance_has_a_repr():
    assert "model '?'" in repr(Scores(run().heads, run().outcomes))


def test_frames_hold_every_detector_and_every_trial():
    scores = run(n_passed=3, n_total=5)
    frame = scores.to_frame()
    assert len(frame) == 2 * 3 * 4
    assert frame.groupby("detector")["rank"].max().to_dict() == {"locos": 12, "wu": 12}
    one = frame[frame["detector"] == "wu"].drop(columns="detector").reset_index(drop=True)
    assert one.equals(scores["wu"].to_frame())
    told = scores.outcomes_frame()
    assert told["passed"].tolist() == [True, True, True, False, False]
    assert told["depth"].tolist() == [0.5] * 5
    assert "trial" not in told


# --- files ----------------------------------------------------------------------------------------


def test_a_saved_run_comes_back_whole(tmp_path):
    outcomes = (
        outcome("t0", True, stop_token_id=2, min_margin=0.25, stopped_early=True),
        outcome("t1", True, teacher_forced=True, generated_text='\n\u2028\x00 \\ "'),
        outcome("t2", False, generated_ids=(), generated_text=""),
    )
    heads = {"locos": random_scores(2, n_total=3, provenance={"detector": {"gated": True}})}
    scores = Scores(heads, outcomes, {"model": {"name": "é"}, "versions": {"torch": "2"}})
    folder = scores.save(tmp_path / "a" / "run")
    back = Scores.load(folder)
    assert back.outcomes == outcomes
    assert back.provenance == scores.provenance
    assert list(back) == ["locos"]
    assert back["locos"].per_trial.tobytes() == heads["locos"].per_trial.tobytes()
    assert back["locos"].trial_ids == heads["locos"].trial_ids
    assert back["locos"].provenance == heads["locos"].provenance
    assert Scores.load(str(folder)).outcomes == outcomes


def test_a_second_save_has_the_same_bytes(tmp_path):
    """A28."""
    one = run().save(tmp_path / "one")
    two = Scores.load(one).save(tmp_path / "two")
    names = sorted(p.relative_to(one) for p in one.rglob("*") if p.is_file())
    assert [str(n) for n in names] == [
        "outcomes.jsonl",
        "run.json",
        "scores/locos.safetensors",
        "scores/wu.safetensors",
    ]
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_the_file_states_passed_of_total(tmp_path):
    """A13: for a reader who opens run.json alone."""
    folder = run(n_passed=3, n_total=5).save(tmp_path)
    told = files.read_json(folder / "run.json")
    assert (told["passed"], told["total"]) == (3, 5)
    assert told["detectors"] == ["locos", "wu"]


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    with pytest.raises(ResultFileError, match=rf"{tmp_path}: no run.json, so not a finished run; .*to resume"):
        Scores.load(tmp_path)
    with pytest.raises(ResultFileError, match=r"gone: no such folder$"):
        Scores.load(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultFileError, match=r"file: a file, not a run folder$"):
        Scores.load(tmp_path / "file")


def test_a_save_that_breaks_off_is_not_a_finished_run(tmp_path, monkeypatch):
    """Old scores must not stand beside new outcomes as if they were one run."""
    run(n_passed=3, n_total=5).save(tmp_path)
    real, left = os.replace, [2]

    def fail_later(source: str, target: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", fail_later)
    with pytest.raises(OSError, match="No space"):
        run(n_passed=2, n_total=5).save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ResultFileError, match=r"no run\.json"):
        Scores.load(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".hidden", "a\\b", "", "/etc/passwd", "a\x00b", "a\nb", "x" * 300]
)
def test_a_detector_name_is_no_path(tmp_path, name):
    """Neither a foreign run.json nor a detector of one's own reaches out of the folder."""
    folder = run().save(tmp_path / "run")
    edit(folder / "run.json", {"detectors": [name]})
    with pytest.raises(ResultFileError, match=r"run\.json: the detector .* is not a plain name"):
        Scores.load(folder)
    mine = Scores({name: random_scores()}, (), {})
    with pytest.raises(ResultFileError, match="is not a plain name"):
        mine.save(tmp_path / "mine" / "run")
    assert not (tmp_path / "mine").exists()


def test_swapped_detector_files_are_refused(tmp_path):
    scores = {name: replace(random_scores(), detector=name) for name in ("locos", "wu")}
    folder = Scores(scores, (), {}).save(tmp_path) / "scores"
    (folder / "locos.safetensors").write_bytes((folder / "wu.safetensors").read_bytes())
    with pytest.raises(ResultFileError, match=r"locos\.safetensors: holds the scores of 'wu'"):
        Scores.load(tmp_path)


@pytest.mark.parametrize("name", ["locos", "my detector", "wu-2", "µ", "v1.2", "-x"])
def test_ordinary_names_of_detectors_are_kept(tmp_path, name):
    scores = Scores({name: random_scores(1)}, (outcome(),), {})
    assert list(Scores.load(scores.save(tmp_path))) == [name]


RUN_DAMAGE = {
    "another kind": ({"kind": "Effects"}, "not a scoring run"),
    "no detectors": ({"detectors": ...}, "not a scoring run"),
    "detectors are text": ({"detectors": "locos"}, "not a scoring run"),
    "a number for a name": ({"detectors": [5]}, "'5' is not a plain name"),
    "twice": ({"detectors": ["wu", "wu"]}, "named twice"),
    "newer": ({"format": 99}, r"newer locos_tl \(format 99\); update"),
    "no format": ({"format": ...}, "no format version"),
    "format is text": ({"format": "1"}, "no format version"),
    "provenance": ({"provenance": ["model"]}, "provenance is no JSON object"),
    "scores gone": ({"detectors": ["locos", "dla"]}, r"scores/dla\.safetensors: no such file"),
    "total": ({"total": 6}, "3 of 5 outcomes passed, run.json has 3 of 6"),
    "passed": ({"passed": 5}, "3 of 5 outcomes passed, run.json has 5 of 5"),
    "no counts": ({"passed": ..., "total": ...}, "run.json has None of None"),
}


@pytest.mark.parametrize("damage", RUN_DAMAGE)
def test_a_damaged_run_is_refused_by_name(tmp_path, damage):
    folder = run(n_passed=3, n_total=5).save(tmp_path / "myrun")
    change, message = RUN_DAMAGE[damage]
    edit(folder / "run.json", change)
    with pytest.raises(ResultFileError, match=rf"myrun.*{message}"):
        Scores.load(folder)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"kind": NaN}', '{"kind": 1, "kind": 1}'])
def test_an_unreadable_run_is_refused_by_name(tmp_path, text):
    folder = run().save(tmp_path)
    (folder / "run.json").write_text(text)
    with pytest.raises(ResultFileError, match=r"run\.json"):
        Scores.load(folder)


def test_missing_outcomes_are_refused(tmp_path):
    folder = run(n_passed=3, n_total=5).save(tmp_path)
    files.write_jsonl(folder / "outcomes.jsonl", list(files.read_jsonl(folder / "outcomes.jsonl"))[:-1])
    with pytest.raises(ResultFileError, match=r"3 of 4 outcomes passed, run.json has 3 of 5"):
        Scores.load(folder)
    (folder / "outcomes.jsonl").unlink()
    with pytest.raises(ResultFileError, match=r"outcomes\.jsonl: no such file"):
        Scores.load(folder)


OUTCOME_DAMAGE = {
    "unknown field": ({"colour": 1}, "unknown field 'colour'"),
    "no id": ({"trial_id": ...}, "no field 'trial_id'"),
    "no ids": ({"generated_ids": ...}, "no field 'generated_ids'"),
    "id": ({"trial_id": 5}, "field 'trial_id' must be str"),
    "passed is text": ({"passed": "false"}, "field 'passed' must be bool, got 'false'"),
    "passed is a number": ({"passed": 1}, "field 'passed' must be bool"),
    "gate": ({"gate_value": "100"}, "field 'gate_value' must be float"),
    "gate null": ({"gate_value": None}, "field 'gate_value' must be float"),
    "gate bool": ({"gate_value": True}, "field 'gate_value' must be float"),
    "ids are text": ({"generated_ids": "123"}, "field 'generated_ids' must be"),
    "ids are texts": ({"generated_ids": ["1"]}, "field 'generated_ids' must be"),
    "ids are fractions": ({"generated_ids": [1.5]}, "field 'generated_ids' must be"),
    "ids null": ({"generated_ids": None}, "field 'generated_ids' must be"),
    "steps are bools": ({"answer_steps": [True]}, "field 'answer_steps' must be"),
    "text null": ({"generated_text": None}, "field 'generated_text' must be str"),
    "answer": ({"answer": ["Yuki"]}, "field 'answer' must be str"),
    "trial null": ({"trial": None}, "field 'trial' must be"),
    "trial is a list": ({"trial": []}, "field 'trial' must be"),
    "margin": ({"min_margin": "0.1"}, "field 'min_margin' must be"),
    "stop token": ({"stop_token_id": 2.5}, "field 'stop_token_id' must be"),
}


@pytest.mark.parametrize("damage", OUTCOME_DAMAGE)
def test_a_damaged_outcome_is_refused_by_file_and_number(tmp_path, damage):
    """The file, the row and the field: enough to find it in a thousand rows."""
    folder = run(n_passed=3, n_total=5).save(tmp_path)
    change, message = OUTCOME_DAMAGE[damage]
    rows = list(files.read_jsonl(folder / "outcomes.jsonl"))
    rows[1] = {k: v for k, v in (rows[1] | change).items() if v is not ...}
    files.write_jsonl(folder / "outcomes.jsonl", rows)
    with pytest.raises(ResultFileError, match=rf"outcomes\.jsonl, outcome 2: not a trial outcome: .*{message}"):
        Scores.load(folder)


@pytest.mark.parametrize("row", [None, 5, "text", [], ["trial_id"], True])
def test_a_row_that_is_no_object_is_refused(tmp_path, row):
    folder = run(n_total=3).save(tmp_path)
    files.write_jsonl(folder / "outcomes.jsonl", [row] * 3)
    with pytest.raises(ResultFileError, match=r"outcome 1: not a trial outcome: no JSON object"):
        Scores.load(folder)


# --- outcomes, fuzzed -----------------------------------------------------------------------------

leaf = st.none() | st.booleans() | st.integers(-9, 10**20) | st.floats() | st.text(max_size=4)
value = st.one_of(leaf, st.lists(leaf, max_size=3), st.dictionaries(st.text(max_size=3), leaf, max_size=2))
names = st.sampled_from(list(outcome().to_dict()))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, value, max_size=4), st.sets(names, max_size=1))
def test_any_row_is_an_outcome_or_refused(change, gone):
    """Nothing but ResultFileError comes out, and what is read has the types that counting rests on."""
    row = {k: v for k, v in (outcome().to_dict() | change).items() if k not in gone}
    try:
        read = TrialOutcome.from_dict(row)
    except ResultFileError:
        return
    assert isinstance(read.passed, bool)
    assert all(type(i) is int for i in (*read.generated_ids, *read.answer_steps))
    scores = Scores({}, (read,))
    assert scores.passed + (not read.passed) == 1
    assert TrialOutcome.from_dict(read.to_dict()).trial_id == read.trial_id


outcome_fields = st.fixed_dictionaries(
    {
        "trial_id": st.text(max_size=5),
        "passed": st.booleans(),
        "gate_value": st.floats(0, 100),
        "generated_ids": st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
        "generated_text": st.text(max_size=8),
        "answer_steps": st.lists(st.integers(0, 50), max_size=3).map(tuple),
        "answer": st.text(max_size=5),
        "stop_token_id": st.none() | st.integers(0, 9),
        "stopped_early": st.booleans(),
        "min_margin": st.none() | st.floats(0, 9),
        "teacher_forced": st.booleans(),
        "trial": st.dictionaries(st.text(max_size=4), st.none() | st.integers() | st.text(max_size=4), max_size=3),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(outcome_fields, max_size=3, unique_by=lambda row: row["trial_id"]))
def test_outcomes_come_back_from_a_file(tmp_path_factory, rows):
    outcomes = tuple(TrialOutcome(**row) for row in rows)
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    assert Scores.load(Scores({}, outcomes).save(folder)).outcomes == outcomes


def test_whole_numbers_are_read_as_floats():
    """JSON of other writers has 100 where Python's has 100.0."""
    read = TrialOutcome.from_dict(outcome().to_dict() | {"gate_value": 100, "min_margin": 0})
    assert (type(read.gate_value), type(read.min_margin)) == (float, float)
    with pytest.raises(ResultFileError, match="field 'gate_value' must be float"):
        TrialOutcome.from_dict(outcome().to_dict() | {"gate_value": 10**400})


def test_one_outcome_is_found_by_its_trial(tmp_path):
    outcome = TrialOutcome("a", True, 100.0, (1,), "Mara", (0,), "Mara")
    scores = Scores({}, (replace(outcome, trial_id="b", passed=False), outcome))
    assert scores.outcome("a") is outcome
    with pytest.raises(KeyError, match="no trial 'c' among the 2 of this run"):
        scores.outcome("c")
