"""Dissociation scores: the formula by hand, k*, and sweeps that must not be compared (A27)."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from locos_tl.results.dissociation import Dissociation, dissociation
from locos_tl.results.files import ResultFileError
from locos_tl.results.sweep import Sweep
from tests.results.conftest import sweep, sweep_rows


def control(**fields):
    """Closed-book questions: k = 3 costs a quarter of them, k = 1 none."""
    rows = sweep_rows(
        {
            ("baseline", 0): [1.0, 1.0, 1.0, 1.0, 0.0],
            ("locos", 1): [1.0, 1.0, 1.0, 1.0, 0.0],
            ("locos", 3): [1.0, 1.0, 1.0, 0.0, 0.0],
            ("locos", 20): [0.0, 0.0, 0.0, 0.0, 0.0],
        },
        metric="contains",
    )
    return replace(sweep(), rows=tuple(rows), **fields)


def test_the_score_by_hand():
    """R: 0.625 -> 0.5 -> 0.125; P: 0.8 -> 0.8 -> 0.6."""
    found = dissociation(sweep(), control())
    assert found.methods == ("locos",)
    first, second = found.rows
    assert (first.k, second.k) == (1, 3)
    assert (first.retrieval_drop, first.control_drop, first.score) == pytest.approx((0.2, 0.0, 0.2))
    assert (second.retrieval_drop, second.control_drop, second.score) == pytest.approx((0.8, 0.25, 0.55))
    assert (second.n_trials, second.n_control_trials) == (4, 5)
    assert found.best("locos") == second
    assert "locos: DS 0.55" in repr(found)
    assert "at k* = 3" in repr(found)


def test_the_interval_encloses_the_score_and_is_reproducible():
    rng = np.random.default_rng(0)
    before = rng.random(40)
    one = sweep_rows({("baseline", 0): list(before), ("locos", 5): list(before * rng.random(40) * 0.5)})
    other = sweep_rows({("baseline", 0): [1.0] * 30, ("locos", 5): list(0.8 + 0.2 * rng.random(30))}, metric="contains")
    row, again = (dissociation(Sweep(tuple(one)), Sweep(tuple(other))).rows[0] for _ in range(2))
    assert row == again
    assert row.score_low < row.score < row.score_high
    assert row.score_high - row.score_low < 0.3
    assert row.retrieval_low < row.retrieval_drop < row.retrieval_high


def test_heads_that_cost_everything_alike_score_zero():
    rows = sweep_rows({("baseline", 0): [0.8, 0.4], ("locos", 5): [0.4, 0.2]})
    same = replace(sweep(), rows=tuple(rows))
    assert dissociation(same, same, control_metric="rouge_l").rows[0].score == pytest.approx(0)


def test_only_trials_with_both_answers_count():
    rows = sweep_rows({("baseline", 0): [1.0, 0.2], ("locos", 1): [0.5, None]})
    row = dissociation(replace(sweep(), rows=tuple(rows)), control()).rows[0]
    assert row.retrieval_drop == pytest.approx(0.5)
    assert row.n_trials == 1


def test_sweeps_without_anything_in_common_are_refused():
    none = replace(control(), rows=tuple(r for r in control().rows if r.k in (0, 20)))
    with pytest.raises(ValueError, match="share no method"):
        dissociation(sweep(), replace(control(), rows=()))
    with pytest.raises(ValueError, match="the sweeps share no method 'nope'; there are: locos"):
        dissociation(sweep(), control(), method="nope")
    with pytest.raises(ValueError, match="share no k of the method 'locos'"):
        dissociation(sweep(), none, method="locos")
    with pytest.raises(ValueError, match="no method 'wu' here; there are: locos"):
        dissociation(sweep(), control()).best("wu")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"provenance": {"model": {"name": "other"}, "ablation": {"at": "q", "mode": "mean"}}},
            "differ in model: 'tiny'",
        ),
        (
            {"provenance": {"model": {"name": "tiny"}, "ablation": {"at": "z", "mode": "mean"}}},
            "differ in at: 'q' and 'z'",
        ),
        ({"provenance": {"model": {"name": "tiny"}, "ablation": {"at": "q", "mode": "zero"}}}, "differ in mode"),
        ({"rankings": {"locos": ((2, 1), (0, 0), (1, 2))}}, "different heads under 'locos'"),
        ({"rankings": {}}, "different heads under 'locos'"),
    ],
)
def test_sweeps_of_other_heads_or_models_are_refused(fields, error):
    with pytest.raises(ValueError, match=error):
        dissociation(sweep(), control(**fields))


def test_other_weights_under_the_same_name_are_refused():
    """A27; where one of them does not tell, the name has to do."""
    one, other, untold = (
        {"model": {"name": "tiny"} | told, "ablation": {"at": "q", "mode": "mean"}}
        for told in ({"weights": "aa"}, {"weights": "bb"}, {})
    )
    with pytest.raises(ValueError, match="the sweeps differ in weights: 'aa' and 'bb'"):
        dissociation(sweep(provenance=one), control(provenance=other))
    for provenance in (one, untold):
        assert dissociation(sweep(provenance=one), control(provenance=provenance)).rows


def test_a_longer_list_of_the_same_heads_will_do():
    assert dissociation(sweep(), control(rankings={"locos": (*sweep().rankings["locos"], (2, 3))})).rows


def test_random_controls_must_be_of_the_same_heads():
    rows = sweep_rows({("baseline", 0): [1.0], ("random", 3): [1.0]}, metric="contains", seed=42)
    fewer = replace(sweep(), rows=tuple(rows))
    with pytest.raises(ValueError, match=r"differ in random seeds: \[42, 43\] and \[42\]"):
        dissociation(sweep(), fewer)
    same = replace(fewer, rows=(*rows, *sweep_rows({("random", 3): [1.0]}, metric="contains", seed=43)))
    assert dissociation(sweep(), same).methods == ("random",)
    other = replace(same, rankings={"random-42": ((0, 3), (0, 2), (2, 2))})
    with pytest.raises(ValueError, match="different heads under 'random-42'"):
        dissociation(sweep(), other)


def test_a_baseline_of_zero_cannot_be_divided_by():
    rows = sweep_rows({("baseline", 0): [0.0, 0.0], ("locos", 1): [0.0, 0.0]})
    with pytest.raises(ValueError, match="retrieval sweep: locos, k = 1: the baseline's rouge_l is 0"):
        dissociation(replace(sweep(), rows=tuple(rows)), control())
    rows = sweep_rows({("locos", 1): [0.0, 0.0]})
    with pytest.raises(ValueError, match="shares no trial"):
        dissociation(replace(sweep(), rows=tuple(rows)), control())


def test_a_saved_dissociation_comes_back_whole(tmp_path):
    found = dissociation(sweep(), control())
    assert found.save(tmp_path) == tmp_path / "dissociation.json"
    back = Dissociation.load(tmp_path)
    assert back.rows == found.rows
    assert (back.metric, back.control_metric) == ("rouge_l", "contains")
    assert back.provenance == found.provenance
    assert back.to_frame().equals(found.to_frame())
    assert "<table" in back._repr_html_()


def test_damaged_files_are_refused(tmp_path):
    path = dissociation(sweep(), control()).save(tmp_path)
    whole = json.loads(path.read_text())
    whole["rows"][0]["score_low"] = None
    path.write_text(json.dumps(whole))
    assert math.isnan(Dissociation.load(path).rows[0].score_low)
    for change in ({"kind": "Sweep"}, {"rows": [{}]}, {"rows": 3}, {"rows": [whole["rows"][0] | {"k": "x"}]}):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(ResultFileError, match=r"not a (usable )?dissociation"):
            Dissociation.load(path)
