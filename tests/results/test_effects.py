"""`Effects`: sign, recovery, total - direct = indirect, key-value heads, files (A01, A32)."""

from __future__ import annotations

from dataclasses import replace

import jaxtyping
import numpy as np
import pytest

from locos_tl.results.effects import Effects, load_effects
from locos_tl.results.files import ResultFileError, read_arrays, write_arrays
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.late_layers import late_layers
from tests.results.conftest import effects, head_scores


def test_recovery_is_the_share_of_the_gap():
    held = effects([[[2.0, 0.0, -1.0, 1.0]]])
    np.testing.assert_array_equal(held.gap, [2.0])
    np.testing.assert_array_equal(held.recovery[0, 0], [1.0, 0.0, -0.5, 0.5])
    assert "positive = towards the clean answer" in repr(held)


def test_a_trial_without_a_gap_has_no_recovery():
    held = effects(np.ones((2, 1, 4)), clean=np.array([1.0, 3.0]), corrupt=np.array([1.0, 1.0]))
    assert np.isnan(held.recovery[0]).all()
    np.testing.assert_array_equal(held.recovery[1], 0.5)


def test_one_small_gap_does_not_rule_the_mean_recovery():
    """Mean effect over mean gap: 1 / 1.0005, where the mean of the ratios is about 500."""
    held = effects(np.ones((2, 1, 4)), clean=np.array([0.001, 2.0]), corrupt=np.zeros(2))
    np.testing.assert_allclose(held.mean_recovery, 1 / 1.0005, rtol=1e-5)


def test_undefined_effects_are_left_out_not_counted_as_zero():
    values = np.ones((3, 2, 4))
    values[1, 0, 0] = np.nan
    values[:, 1, 2] = np.nan
    values[:, 1, 3] = np.inf
    held = effects(values)
    assert held.mean[0, 0] == 1
    assert np.isnan(held.mean[1, 2:]).all()
    assert len(held.ranking()) == 6
    frame = held.to_frame().set_index(["layer", "head"])
    assert frame.loc[(0, 0), "n_trials"] == 2
    assert frame.loc[(1, 2), "n_trials"] == 0
    assert np.isnan(frame.loc[(1, 2), "recovery"])
    assert len(held.top(20)) == 6


def test_the_top_heads():
    held = effects()
    top = held.top(3)
    assert list(top) == ["layer", "head", "effect", "ci_low", "ci_high", "recovery", "rank", "n_trials"]
    assert [tuple(row) for row in top[["layer", "head"]].to_numpy()] == held.ranking()[:3]
    np.testing.assert_allclose(top["recovery"], top["effect"] / 2, rtol=1e-6)
    assert "<table" in held._repr_html_()
    with pytest.raises(ValueError, match="k must be at least 1"):
        held.top(0)


# --- arithmetic -----------------------------------------------------------------------------------


def test_indirect_is_total_minus_direct():
    total, direct = effects(), effects(np.full((5, 3, 4), 0.25), kind="direct")
    indirect = total.minus(direct)
    assert indirect.kind == "indirect"
    np.testing.assert_allclose(indirect.per_trial + direct.per_trial, total.per_trial, atol=1e-6)
    np.testing.assert_array_equal(indirect.gap, total.gap)
    assert indirect.provenance["difference"] == ["total", "direct"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"at": "q"}, "different at: 'z' and 'q'"),
        ({"metric": "answer_logprob"}, "different metric"),
        ({"positions": "needle"}, "different positions"),
        ({"trial_ids": tuple("abcde")}, "different trial_ids"),
        ({"n_key_value_heads": 1}, "different n_key_value_heads"),
        ({"values": np.ones((5, 2, 4))}, "different n_layers"),
        ({"clean": np.full(5, 9.0)}, "different clean or corrupt runs"),
    ],
)
def test_effects_of_different_runs_cannot_be_subtracted(fields, error):
    with pytest.raises(ValueError, match=error):
        effects().minus(effects(kind="direct", **fields))


def test_stacked_parts_are_the_whole():
    whole = effects()
    parts = [
        effects(whole.per_trial[rows], trial_ids=whole.trial_ids[rows], clean=whole.clean[rows])
        for rows in (slice(0, 2), slice(2, 5))
    ]
    joined = Effects.stack(parts)
    np.testing.assert_array_equal(joined.per_trial, whole.per_trial)
    assert joined.trial_ids == whole.trial_ids
    assert joined.provenance == whole.provenance
    assert Effects.stack([whole]).to_frame().equals(whole.to_frame())


def test_parts_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="no effects to stack"):
        Effects.stack([])
    with pytest.raises(ValueError, match="different kind: 'total' and 'direct'"):
        Effects.stack([effects(), effects(kind="direct", trial_ids=tuple("abcde"))])
    with pytest.raises(ValueError, match="5 different trial ids for 10 rows"):
        Effects.stack([effects(), effects()])
    other = effects(trial_ids=tuple("abcde"), provenance={"model": {"name": "tiny"}, "seed": 2})
    assert len(Effects.stack([effects(), other]).provenance["parts"]) == 2


# --- heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["k", "v"])
def test_at_keys_and_values_the_axis_counts_key_value_heads(at):
    """A01: under grouped-query attention, k and v have fewer heads."""
    held = effects(np.ones((5, 3, 2)), at=at)
    assert held.head_axis == "KV head"
    assert "2 KV heads" in repr(held)
    assert held.to_head_scores().per_trial.shape == (5, 3, 2)
    with pytest.raises(ValueError, match=rf"with 2 heads at '{at}', got shape \(5, 3, 4\)"):
        effects(at=at)
    assert effects(at=at, n_key_value_heads=4).head_axis == "query head"


def test_effects_turn_into_head_scores():
    values = effects().per_trial.copy()
    values[0, 0, 0] = np.nan
    held = effects(values)
    scores = held.to_head_scores("cri")
    assert isinstance(scores, HeadScores)
    assert (scores.detector, held.to_head_scores().detector) == ("cri", "total")
    assert scores.ranking() == held.ranking()
    np.testing.assert_array_equal(scores.mean, held.mean)
    np.testing.assert_array_equal(scores.ci(), held.ci())
    assert scores.provenance["effects"]["metric"] == "logit_diff"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": "partial"}, "kind must be one of total, direct, indirect, attribution, path, got 'partial'"),
        ({"at": "o"}, "at must be one of"),
        ({"metric": "loss"}, "metric must be one of"),
        ({"positions": "last"}, "positions must be one of"),
        ({"n_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"trial_ids": ("a",) * 5}, "1 different trial ids for 5 rows"),
        ({"values": np.ones((5, 3, 3))}, "with 4 heads at 'z'"),
        ({"values": np.ones((0, 3, 4))}, "per_trial must be"),
    ],
)
def test_effects_that_cannot_be_are_refused(fields, error):
    with pytest.raises(ValueError, match=error):
        effects(**fields)


def test_a_metric_a_trial():
    """With jaxtyping's checks, which users do not run, switched off: they would refuse first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match=r"clean must hold one number a trial, got shape \(4,\) for 5 trials"):
            effects(clean=np.ones(4))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


# --- files ----------------------------------------------------------------------------------------


def test_saved_effects_come_back_whole(tmp_path):
    values = effects().per_trial.copy()
    values[0, 1, 2] = np.nan
    held = effects(values, kind="indirect", positions="needle", provenance={"difference": ["total", "direct"]})
    assert held.save(tmp_path) == tmp_path / "effects.safetensors"
    back = Effects.load(tmp_path)
    for name in ("kind", "at", "metric", "positions", "trial_ids", "n_heads", "n_key_value_heads", "provenance"):
        assert getattr(back, name) == getattr(held, name)
    for name in ("per_trial", "clean", "corrupt"):
        np.testing.assert_array_equal(getattr(back, name), getattr(held, name))


def test_damaged_files_are_refused(tmp_path):
    with pytest.raises(ResultFileError, match="no such file"):
        Effects.load(tmp_path)
    head_scores(np.ones((2, 3, 4))).save(tmp_path / "scores")
    with pytest.raises(ResultFileError, match="holds HeadScores, not Effects"):
        Effects.load(tmp_path / "scores")
    path = effects().save(tmp_path)
    arrays, meta = read_arrays(path)
    for change in ({"effect": "partial"}, {"n_heads": "x"}, {"trial_ids": ["a"]}, {"provenance": None}):
        write_arrays(path, arrays, meta | change)
        with pytest.raises(ResultFileError, match="not a usable Effects file"):
            Effects.load(path)
    write_arrays(path, {"per_trial": arrays["per_trial"]}, meta)
    with pytest.raises(ResultFileError, match="not a usable Effects file"):
        Effects.load(path)


def test_the_same_id_of_another_prompt_is_not_the_same_trial():
    told = {"trials": {"ids": ["a", "b"], "prompts": ["1", "2"]}}
    other = {"trials": {"ids": ["a", "b"], "prompts": ["1", "3"]}}
    one = Effects(
        "total", "z", "logit_diff", "all", np.ones((2, 3, 4)), np.ones(2), np.zeros(2), ("a", "b"), 4, 2, told
    )
    assert one.agreement(one)["overlap@10"] == 1
    with pytest.raises(ValueError, match="effects of different prompts: 'b' names another prompt in each"):
        one.agreement(replace(one, provenance=other))
    with pytest.raises(ValueError, match="'x' and 'total' are over other prompts: trial 'b'"):
        late_layers(
            {"x": replace(one, provenance=other).to_head_scores(), "total": one.to_head_scores()}, reference="x"
        )


def test_a_folder_without_effects_says_so(tmp_path):
    with pytest.raises(ResultFileError, match="holds no finished effects"):
        load_effects(tmp_path)
