"""The explorer's data: what it holds, how small it stays, and what it refuses."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from plotly.offline import get_plotlyjs_version

from locos_tl.figures.explorer import Explorer, explore
from locos_tl.figures.explorer.payload import BUDGET, payload
from locos_tl.figures.plotly_js import plotly_js, plotly_js_version
from locos_tl.results.effects import Effects
from locos_tl.results.files import to_json
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.scores import Scores


def floats(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


def quantised(value, shape):
    steps = np.frombuffer(base64.b64decode(value["values"]), "<i2").reshape(shape)
    return steps * floats(value["scale"]).reshape(shape[:-1])[..., None]


@pytest.fixture(scope="module")
def scores(make_scores, make_reading):
    run = make_scores()
    passed = [o.trial_id for o in run.outcomes if o.passed]
    return replace(run, readings=tuple(make_reading(i, seed=n) for n, i in enumerate(passed[:2])))


def test_the_bundle_is_the_version_that_plotly_draws_with():
    assert plotly_js_version() == get_plotlyjs_version()
    assert "</script" not in plotly_js()
    assert "MIT license" in plotly_js()[:400]


def test_maps_come_back_as_they_are(scores):
    data = payload(scores)
    assert (data["layers"], data["heads"], data["kv"]) == (30, 9, 3)
    assert [m["name"] for m in data["maps"]] == list(scores)
    for told in data["maps"]:
        held = scores[told["name"]]
        np.testing.assert_array_equal(floats(told["mean"]), held.mean.reshape(-1))
        np.testing.assert_array_equal(floats(told["low"]), held.ci()[0].astype(np.float32).reshape(-1))
        assert set(told["unseen"]) == set(np.flatnonzero(~held.seen.any(0)))


def test_a_trials_own_map_is_its_row(scores):
    data = payload(scores)
    held = scores["locos"]
    own = data["maps"][0]["trials"]
    assert list(own)[:2] == [r.trial_id for r in scores.readings]
    for trial_id, text in own.items():
        row = held.counted[held.trial_ids.index(trial_id)].reshape(-1)
        np.testing.assert_array_equal(floats(text), row)
    assert {t["id"] for t in data["trials"]} == set(own)
    assert not data["maps"][-1]["trials"], "the random detector has seeds, no trials"


def test_readings_keep_four_digits(scores):
    for told, reading in zip(payload(scores)["readings"], scores.readings, strict=True):
        assert told["positions"] == list(range(120))
        shape = reading.attention.shape
        for value, wanted in [
            (told["attention"], reading.attention),
            *zip(told["phi"], reading.phi, strict=True),
        ]:
            error = np.abs(quantised(value, shape) - wanted).max(-1)
            assert (error <= np.abs(wanted).max(-1) / 60_000 + 1e-9).all()
        words = np.frombuffer(base64.b64decode(told["promoted"]), "<u2").reshape(reading.promoted.shape)
        assert told["words"][words[29, 8, 0]] == reading.vocabulary[int(reading.promoted[29, 8, 0])]


def test_a_long_context_holds_only_the_kept_positions(scores, make_reading):
    kept = [*range(8), *range(30, 60), *range(5000, 5100)]
    reading = make_reading(scores.readings[0].trial_id, n_keys=5100, kept=kept, n_own=6)
    told = payload(replace(scores, readings=(reading,)))["readings"][0]
    assert set(kept) <= set(told["positions"])
    assert len(told["positions"]) <= len(kept) + 30 * 9 * 5
    assert len(told["tokens"]) == len(told["positions"])
    assert told["tokens"][told["positions"].index(41)] == " word41"
    places = np.frombuffer(base64.b64decode(told["own"]), "<u2").reshape(reading.own.shape)
    back = np.where(places == 0xFFFF, -1, np.append(told["positions"], -1)[np.minimum(places, len(told["positions"]))])
    np.testing.assert_array_equal(back, reading.own)


@pytest.mark.parametrize("size", [(36, 32), (64, 40), (64, 64)])
def test_the_data_of_large_models_stay_in_bounds(size, make_scores, make_reading):
    run = make_scores(*size, n_key_value_heads=8, n_passed=30)
    passed = [o.trial_id for o in run.outcomes if o.passed]
    kept = [*range(8), *range(28, 60), *range(7900, 8000)]
    one = make_reading(passed[0], *size, n_keys=8000, kept=kept, n_own=30, variants=("paper", "folded", "exact"))
    readings = tuple(replace(one, trial_id=i) for i in passed[:3])
    text = to_json(payload(replace(run, readings=readings)))
    assert len(text) < BUDGET * 4 / 3 + 1.5e6
    assert json.loads(text)["readings"]


def test_variants_stand_side_by_side(scores):
    about = {"detector": {"variant": "exact", "units": "logits"}}
    more = dict(scores.heads) | {"locos_exact": replace(scores["locos"], provenance=about)}
    told = payload(replace(scores, heads=more))["maps"]
    assert [m["name"] for m in told][:2] == ["locos", "locos_exact"]
    assert told[1]["detector"] == "locos"
    assert told[1]["variant"] == "exact"
    assert told[1]["units"] == "logits"


def test_causal_maps_join_the_detectors(scores, make_late, make_sweep):
    ids = ("nonliteral-000", "nonliteral-001")
    effects = Effects("total", "k", "logit_diff", "all", np.ones((2, 30, 3)), np.ones(2), np.zeros(2), ids, 9, 3)
    data = payload(scores, late=make_late(), sweeps={"needles": make_sweep()}, effects={"keys": effects})
    names = {m["name"]: m for m in data["maps"]}
    assert names["total effect"]["effect"]
    assert names["attribution estimate"]["effect"]
    assert names["keys"]["heads"] == 3
    assert names["keys"]["units"] == "change of the logit difference"
    assert not names["locos"]["effect"]
    sweep = data["sweeps"][0]
    assert sweep["name"] == "needles"
    assert {m["name"] for m in sweep["methods"]} >= {"locos", "attention_spatial"}
    assert all(len(m["ks"]) == len(m["means"]) for m in sweep["methods"])


def test_parts_of_another_model_are_refused(scores, make_late):
    with pytest.raises(ValueError, match=r"of 4 layers x 9 heads, the scores of 30 x 9: another model"):
        payload(scores, late=make_late(n_layers=4))


def test_what_cannot_be_explored_is_refused():
    with pytest.raises(ValueError, match="no head scores"):
        explore(Scores({}, ()))


def test_one_detector_is_enough(scores):
    explorer = explore(scores["wu"])
    assert [m["name"] for m in explorer.data["maps"]] == ["wu"]
    assert explorer.data["readings"] == []


def test_head_scores_without_numbers_make_strict_json():
    held = HeadScores("locos", np.full((2, 2, 4), np.inf, np.float32), ("a", "b"), 2, 2)
    json.loads(to_json(payload(Scores({"locos": held}, ()))), parse_constant=lambda text: pytest.fail(text))


def test_the_page_is_whole_and_its_texts_are_data(scores, make_reading, tmp_path):
    hostile = "</script><script>alert(1)</script>"
    reading = make_reading(scores.readings[0].trial_id, word=hostile)
    path = explore(replace(scores, readings=(reading,))).save(tmp_path / "page.html")
    text = path.read_text()
    assert "<script>alert(1)" not in text
    assert len(text) < 8e6
    assert "http" not in text.replace(plotly_js(), "").replace("http-equiv", "")


def test_in_a_notebook_it_is_a_widget_and_a_still_picture(scores):
    explorer = explore(scores)
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["application/vnd.plotly.v1+json"]["data"][0]["type"] == "heatmap"
    assert bundle["text/plain"].startswith("Explorer(Scores(")
    explorer.selected = (23, 1)
    assert explorer.selected == (23, 1)
    with pytest.raises(ValueError, match=r"no head \(30, 0\) in a model of 30 layers x 9 heads"):
        explorer.selected = (30, 0)


def test_without_anywidget_the_picture_says_how_to_get_it(scores, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr("locos_tl.figures.explorer.explorer.find_spec", lambda name: None)
    explorer = Explorer(scores)
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" not in bundle
    notes = [a["text"] for a in bundle["application/vnd.plotly.v1+json"]["layout"]["annotations"]]
    assert any("pip install anywidget" in note for note in notes)
    with pytest.raises(ImportError, match="pip install anywidget"):
        _ = explorer.widget


def test_the_same_id_of_another_prompt_is_not_the_same_trial(scores):
    ids = [r.trial_id for r in scores.readings]
    told = {"trials": {"ids": ids, "prompts": ["1", "2"]}}
    other = {"trials": {"ids": ids, "prompts": ["1", "3"]}}
    run = replace(scores, provenance=dict(scores.provenance) | told)
    effects = Effects(
        "total", "z", "logit_diff", "all", np.ones((2, 30, 9)), np.ones(2), np.zeros(2), tuple(ids), 9, 3, other
    )
    maps = {m["name"]: m for m in payload(run, effects={"total": effects})["maps"]}
    assert list(maps["total effect"]["trials"]) == [ids[0]]


def test_two_maps_of_one_name_are_both_there(scores, make_late):
    late = make_late()
    effects = Effects("total", "z", "logit_diff", "all", np.ones((1, 30, 9)), np.ones(1), np.zeros(1), ("a",), 9, 3)
    names = [m["name"] for m in payload(scores, late=late, effects={"total": effects})["maps"]]
    assert {"total effect", "total effect (2)"} <= set(names)
