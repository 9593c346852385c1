"""`Sweep`: paired drops, the random control once a trial, files read strictly (A13, A27, A32)."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from locos_tl.results import statistics
from locos_tl.results.files import ResultFileError
from locos_tl.results.sweep import Sweep, SweepRow
from tests.results.conftest import LOCOS, sweep, sweep_rows

# --- in memory ------------------------------------------------------------------------------------


def test_what_is_in_it():
    held = sweep()
    assert held.methods == ("locos", "random")
    assert held.ks("locos") == (1, 3)
    assert held.ks("baseline") == (0,)
    assert held.metrics == ("rouge_l",)
    assert held.trial_ids == ("t0", "t1", "t2", "t3")
    assert held.seeds == (42, 43)
    assert (held.model, held.ablation["at"]) == ("tiny", "q")
    assert repr(held) == "Sweep(locos, random; k = 1, 3; 4 trials; rouge_l; model 'tiny', q by mean)"
    assert "<table" in held._repr_html_()


def test_values_follow_the_trials_and_average_the_seeds():
    held = sweep()
    np.testing.assert_array_equal(held.values("locos", 3, "rouge_l"), [0, 0, 0.5, 0])
    np.testing.assert_array_equal(held.values("random", 3, "rouge_l"), [0.75, 0.5, 1, 0])
    np.testing.assert_array_equal(held.baseline("rouge_l"), [1, 0.5, 1, 0])
    shuffled = replace(held, rows=(*held.rows[:4], *held.rows[:3:-1]))
    np.testing.assert_array_equal(shuffled.values("random", 3, "rouge_l"), [0.75, 0.5, 1, 0])


def test_a_curve_starts_at_the_baseline_and_tells_the_drop():
    curve = sweep().curve("locos", "rouge_l")
    assert curve["k"].tolist() == [0, 1, 3]
    np.testing.assert_allclose(curve["mean"], [0.625, 0.5, 0.125])
    np.testing.assert_allclose(curve["drop"], [0, 0.125, 0.5])
    assert curve["n_trials"].tolist() == [4, 4, 4]
    assert curve.loc[0, ["drop_low", "drop_high"]].tolist() == [0, 0]


def test_the_drop_is_paired():
    """Trials that differ wildly among each other but all lose 0.1 have a drop without uncertainty."""
    before = np.linspace(0.1, 1.0, 10)
    rows = sweep_rows({("baseline", 0): list(before), ("locos", 5): list(before - 0.1)})
    last = Sweep(tuple(rows)).curve("locos", "rouge_l").iloc[-1]
    np.testing.assert_allclose([last["drop"], last["drop_low"], last["drop_high"]], 0.1)
    assert last["ci_high"] - last["ci_low"] > 0.2


def test_intervals_are_the_bootstrap_of_the_statistics_module():
    curve = sweep().curve("random", "rouge_l", n_resamples=200, seed=5)
    low, high = statistics.bootstrap_ci(np.array([0.75, 0.5, 1, 0]), n_resamples=200, seed=5)
    assert curve.loc[1, ["ci_low", "ci_high"]].tolist() == [low, high]


def test_an_unfinished_sweep_uses_the_trials_that_are_there():
    """A13: a trial that was not run is no zero."""
    rows = sweep_rows(
        {("baseline", 0): [1.0, 0.0, 0.5], ("locos", 1): [0.5, None, None], ("locos", 5): [None, None, 0.5]}
    )
    held = Sweep(tuple(rows))
    assert np.isnan(held.values("locos", 1, "rouge_l")).tolist() == [False, True, True]
    curve = held.curve("locos", "rouge_l").set_index("k")
    assert curve["n_trials"].tolist() == [3, 1, 1]
    assert curve["drop"].tolist() == [0, 0.5, 0]


def test_without_a_baseline_there_is_no_drop():
    curve = Sweep(tuple(sweep_rows({("locos", 1): [0.5, 0.5]}))).curve("locos", "rouge_l")
    assert curve["n_trials"].tolist() == [0, 2]
    assert np.isnan(curve["drop"]).all()


def test_what_is_left_relative_to_the_baseline():
    found = sweep().relative("locos", "rouge_l")
    assert found["k"].tolist() == [0, 1, 3]
    np.testing.assert_allclose(found["kept"], [1, 0.8, 0.2])
    assert found.loc[0, ["kept_low", "kept_high"]].tolist() == [1, 1]
    assert (found["kept_low"] <= found["kept"]).all()
    rows = sweep_rows({("baseline", 0): [0.0], ("locos", 1): [0.5]})
    with pytest.raises(ValueError, match="the baseline's rouge_l is 0"):
        Sweep(tuple(rows)).relative("locos", "rouge_l")


def test_the_tables():
    held = sweep()
    frame = held.to_frame()
    assert list(frame) == ["method", "k", "seed", "trial_id", "rouge_l", "text", "answer"]
    assert len(frame) == len(held.rows)
    assert frame["seed"].isna().sum() == 12
    summary = held.summary()
    assert summary["method"].tolist() == ["baseline", "locos", "locos", "random"]
    assert Sweep(()).summary().empty
    assert list(Sweep(()).to_frame()) == ["method", "k", "seed", "trial_id", "text", "answer"]


def test_unknown_names_are_told():
    with pytest.raises(ValueError, match="no method 'wu' in this sweep; there are: locos, random"):
        sweep().ks("wu")
    with pytest.raises(ValueError, match="no metric 'f1' in this sweep; there are: rouge_l"):
        sweep().curve("locos", "f1")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"k": 0}, "k is 0 for the baseline and only there"),
        ({"k": -1}, "k is 0 for the baseline"),
        ({"method": "baseline"}, "k is 0 for the baseline"),
        ({"values": {"rouge_l": 1.5}}, "must lie between 0 and 1, got 1.5"),
        ({"values": {"rouge_l": math.nan}}, "must lie between 0 and 1, got nan"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(fields, error):
    with pytest.raises(ValueError, match=error):
        replace(sweep().rows[4], **fields)


def test_contradictions_between_answers_are_refused():
    held = sweep()
    with pytest.raises(ValueError, match="two answers for random, k = 3, seed 42, trial 't0'"):
        replace(held, rows=(*held.rows, replace(held.rows[12], text="another")))
    other = replace(held.rows[0], trial_id="t9", values={"f1": 1.0})
    with pytest.raises(ValueError, match="trial 't9' has the metrics"):
        replace(held, rows=(*held.rows, other))


@pytest.mark.parametrize("heads", [((0, 1), (0, 1)), ((0, -1),)])
def test_a_ranking_that_cannot_be_is_refused(heads):
    """A27: duplicate and negative heads."""
    with pytest.raises(ValueError, match="names a head twice, or a negative"):
        sweep(rankings={"locos": heads})


# --- files ----------------------------------------------------------------------------------------


def test_a_saved_sweep_comes_back_whole(tmp_path):
    odd = SweepRow(
        "locos", 100, "t0", 'a\n\u2028\x00"', {"rouge_l": 1.0}, "Yuki", generated_ids=(3, 1), stop_token_id=2
    )
    held = replace(sweep(), rows=(*sweep().rows, odd))
    path = held.save(tmp_path)
    assert path == tmp_path / "sweep.jsonl"
    back = Sweep.load(tmp_path)
    assert back.rows == held.rows
    assert back.rankings == held.rankings
    assert back.rankings["locos"] == LOCOS
    assert back.provenance == held.provenance
    assert held.save(tmp_path / "mine") == tmp_path / "mine.jsonl"
    assert Sweep.load(tmp_path / "mine").summary().equals(held.summary())


def edited(path, number, change):
    """The sweep file with one line (counted from 1) replaced, or with fields of it changed."""
    lines = path.read_text().splitlines()
    if isinstance(change, dict):
        value = json.loads(lines[number - 1]) | change
        change = json.dumps({k: v for k, v in value.items() if v is not ...})
    lines[number - 1] = change
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "change",
    [
        "{",
        "[]",
        "null",
        '{"method": NaN}',
        {"text": ...},
        {"more": 1},
        {"k": "5"},
        {"k": True},
        {"values": {"rouge_l": "1"}},
        {"values": {"rouge_l": 2}},
        {"seed": 1.5},
        {"generated_ids": [1, "2"]},
        {"stop_token_id": "x"},
    ],
)
def test_a_damaged_line_is_named(tmp_path, change):
    path = sweep().save(tmp_path)
    edited(path, 7, change)
    with pytest.raises(ResultFileError, match=r"sweep\.jsonl, line 7: "):
        Sweep.load(path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "Scores"}, "not a sweep"),
        ("[]", "not a sweep"),
        ({"format": 99}, "newer locos_tl"),
        ({"format": ...}, "no format version"),
        ({"rankings": ...}, "not a usable sweep"),
        ({"rankings": {"locos": [[1]]}}, r"list of \[layer, head\] pairs"),
        ({"rankings": {"locos": [[0, 1], [0, 1]]}}, "names a head twice"),
        ({"provenance": 3}, "not a usable sweep"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path, change, error):
    path = sweep().save(tmp_path)
    edited(path, 1, change)
    with pytest.raises(ResultFileError, match=error):
        Sweep.load(path)


def test_a_repeated_answer_and_a_missing_file_are_refused(tmp_path):
    path = sweep().save(tmp_path)
    path.write_text(path.read_text() + path.read_text().splitlines()[3] + "\n")
    with pytest.raises(ResultFileError, match=r"sweep\.jsonl: not a usable sweep \(two answers for baseline"):
        Sweep.load(path)
    with pytest.raises(ResultFileError, match="no such file"):
        Sweep.load(tmp_path / "none")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ResultFileError, match="not a sweep"):
        Sweep.load(tmp_path / "empty.jsonl")
