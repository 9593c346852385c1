"""Late layers: verdicts on planted effects, cross-fitted numbers that noise cannot move, files (A32)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locos_tl.results import statistics
from locos_tl.results.effects import Effects
from locos_tl.results.files import ResultFileError, read_arrays, write_arrays
from locos_tl.results.late_layers import LateLayers, late_layers
from tests.results.conftest import effects, head_scores, random_scores

LAYERS, HEADS = 24, 6


def planted(profile, n_trials=30, noise=0.0, spread=0.3, seed=0, detector="locos"):
    """Scores whose heads follow a layer profile, with noise on every head of every trial."""
    rng = np.random.default_rng(seed)
    strength = np.asarray(profile)[:, None] * rng.gamma(0.5, 1.0, (LAYERS, HEADS))
    shape = (n_trials, LAYERS, HEADS)
    values = strength * (1 + spread * rng.normal(size=shape)) + noise * rng.normal(size=shape)
    return head_scores(values, detector=detector)


LATE = np.exp(-(((np.linspace(0, 1, LAYERS) - 0.85) / 0.1) ** 2))
MIDDLE = np.exp(-(((np.linspace(0, 1, LAYERS) - 0.5) / 0.2) ** 2))
FLAT = np.ones(LAYERS)


def judged(total, locos=None, **settings_):
    maps = {"locos": planted(LATE, total.n_trials) if locos is None else locos, "total": total}
    return late_layers(maps, **({"n_resamples": 300, "n_permutations": 2000} | settings_))


# --- the verdict ----------------------------------------------------------------------------------


def test_a_total_effect_as_late_as_locos_holds():
    found = judged(planted(LATE, seed=1))
    assert found.verdict == "holds"
    assert found.p_values["total"] < 0.01
    assert found.reason.startswith("Of the positive mass of the total effect, 9")


@pytest.mark.parametrize("profile", [FLAT, MIDDLE, LATE[::-1]])
def test_a_total_effect_elsewhere_does_not_hold(profile):
    found = judged(planted(profile, seed=1))
    assert found.verdict == "does not hold"
    assert found.difference().high < -0.1


@pytest.mark.parametrize("profile", [LATE, FLAT, MIDDLE])
def test_below_ten_trials_nothing_is_decided(profile):
    found = judged(planted(profile, n_trials=9, seed=1))
    assert found.verdict == "undecided"
    assert found.reason == "9 trials are too few; at least 10 are needed."


def test_few_noisy_trials_decide_nothing():
    found = judged(planted(LATE, n_trials=12, noise=3.0, seed=1), planted(LATE, n_trials=12))
    assert found.verdict == "undecided"


def test_noise_does_not_make_a_late_effect_look_early():
    """The plain mass in the last third falls, and alone would say "does not hold"; the profile's stays."""
    noisy = planted(LATE, n_trials=60, noise=0.3, seed=1)
    found = judged(noisy, planted(LATE, n_trials=60, seed=1))
    truth = statistics.last_third(planted(LATE, n_trials=60, seed=1).mean)
    assert found.concentration("total").value < truth - 0.1
    assert found.depth("total").value == pytest.approx(truth, abs=0.1)
    assert found.depth("total").low < truth < found.depth("total").high
    assert found.verdict == "holds"


def test_a_locos_that_is_not_late_is_told():
    found = judged(planted(FLAT, seed=1), planted(FLAT))
    assert found.verdict != "holds"
    assert "locos itself is not concentrated there" in found.reason


def test_effects_that_are_never_positive_decide_nothing():
    found = judged(head_scores(-np.ones((20, LAYERS, HEADS))))
    assert (found.verdict, found.reason) == ("undecided", "Of no head is the total effect positive beyond noise.")
    assert found.p_values["total"] == 1


def test_an_estimate_is_called_one():
    maps = {"locos": planted(LATE), "attribution": planted(LATE, seed=1)}
    found = late_layers(maps, causal="attribution", n_resamples=50, n_permutations=200)
    assert found.causal_name == "attribution estimate of the total effect"
    assert found.reason.startswith("Of the positive mass of the attribution estimate of the total effect, 9")
    assert {"attribution", "attribution_rank"} <= set(found.missed())


def test_missing_numbers_are_told_in_words():
    """No "nan": a reference without positive mass, and an effect that most resamples lose."""
    nothing = judged(planted(LATE, seed=1), head_scores(-np.ones((30, LAYERS, HEADS))))
    assert "locos has no mass that is positive beyond noise, so there is no difference" in nothing.reason
    shaky = judged(planted(LATE, n_trials=12, noise=12.0, seed=4), planted(LATE, n_trials=12))
    assert not np.isfinite(shaky.depth("total").low)
    assert np.isfinite(shaky.depth("total").value)
    assert shaky.reason.count("(no interval, as too many resamples keep no positive mass") == 2
    assert "nan" not in nothing.reason + shaky.reason


@given(st.integers(1, 12), st.integers(1, 2), st.integers(1, 3), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_every_result_has_a_verdict_and_a_table(n_trials, n_layers, n_heads, seed):
    """Also with one trial, one layer, one head."""
    maps = {n: random_scores(n_trials, n_layers, n_heads, seed + i, n_key_value_heads=1) for i, n in enumerate("ab")}
    found = late_layers(maps, reference="a", causal="b", n_resamples=20, n_permutations=20)
    assert found.verdict == "undecided"
    assert len(found.to_frame()) == 2
    assert repr(found)


# --- the numbers ----------------------------------------------------------------------------------


def test_statistics_are_those_of_the_mean_maps():
    found = judged(planted(LATE, seed=1))
    for name, scores in found.maps.items():
        for statistic, compute in statistics.CONCENTRATION.items():
            interval = found.concentration(name, statistic)
            assert interval.value == compute(scores.mean)
            assert interval.low <= interval.high
        np.testing.assert_allclose(found.profiles[name].share, statistics.layer_mass(scores.mean), atol=0.01)
    assert found.chance == pytest.approx(1 / 3)


def test_cross_fitted_mass_by_hand():
    """Four trials, two a half: each half's sign chooses, the other half's mean counts."""
    values = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, -3.0], [2.0, -3.0]])[:, None, :]
    masses = {round(float(m), 6) for m in statistics.cross_fitted_mass(values, 50)[:, 0]}
    # Head 0 always adds 2. Head 1: halves (1, -3) add -3 / 2; halves (-1, -1) add nothing.
    assert masses == {0.5, 2.0}


def test_heads_without_effect_add_no_mass_on_average():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20, 4, 5000))
    plain = np.clip(noise.mean(0), 0, None).sum(-1)
    assert (np.abs(statistics.cross_fitted_mass(noise, 20).mean(0)) < 0.05 * plain).all()


def test_identical_maps_do_not_differ():
    """Splits and resamples are the same for all maps, so that differences are paired."""
    total = planted(MIDDLE, noise=0.5)
    found = judged(total, total)
    assert found.difference() == (0, 0, 0)
    assert found.difference("centre_of_mass") == (0, 0, 0)
    assert found.agreement("locos")["spearman_low"] == pytest.approx(1)


def test_the_permutation_test_counts_layer_orders():
    """All mass in the last of three layers: one order in three is as late."""
    values = np.zeros((4, 3, 2))
    values[:, 2] = 1
    found = late_layers({"locos": head_scores(values), "total": head_scores(values)}, n_permutations=3000)
    assert found.p_values["total"] == pytest.approx(1 / 3, abs=0.03)
    late = judged(planted(LATE, seed=1), n_permutations=99)
    assert late.p_values["total"] == 1 / 100


def test_agreement_is_that_of_the_statistics_module():
    found = judged(planted(LATE, seed=1, noise=0.1))
    agreement = found.agreement("locos")
    plain = statistics.rank_agreement(found.maps["locos"].mean, found.maps["total"].mean)
    assert {k: agreement[k] for k in plain} == plain
    assert agreement["spearman_low"] <= agreement["spearman_high"]


def test_missed_heads_are_named_with_both_values():
    locos, total = np.zeros((12, 5, 10)), np.zeros((12, 5, 10))
    locos[:, 4] = np.arange(10, 0, -1)
    locos[:, 3] = np.arange(10, 0, -1) / 100  # the first twenty
    total[:, 4] = np.arange(10, 0, -1)
    total[:, 1, 7], total[:, 0, 2] = 20.0, 0.5
    missed = late_layers({"locos": head_scores(locos), "total": head_scores(total)}).missed()
    assert missed["head"].tolist() == ["L1H7", "L0H2"]
    assert missed["total"].tolist() == [20.0, 0.5]
    assert missed["locos"].tolist() == [0.0, 0.0]
    assert missed["total_rank"].tolist() == [1, 12]
    assert missed["locos_rank"].min() > 20
    assert len(late_layers({"locos": head_scores(locos), "total": head_scores(total)}).missed(1)) == 1


def test_a_head_that_locos_cannot_see_has_no_rank_there():
    total = np.zeros((12, 3, 10))
    total[:, 0, 0] = 1
    seen = np.ones(total.shape, bool)
    seen[:, 0] = False
    missed = late_layers({"locos": head_scores(total, seen=seen), "total": head_scores(total)}).missed()
    assert missed["head"].tolist() == ["L0H0"]
    assert missed["locos_rank"].isna().all()
    assert np.isnan(missed["locos"]).all()


def test_effects_come_in_as_head_scores():
    total = effects(np.random.default_rng(0).normal(size=(12, 6, 4)))
    found = late_layers({"locos": head_scores(total.per_trial), "total": total.to_head_scores()})
    assert found.agreement("locos")["spearman"] == pytest.approx(1)
    frame = found.to_frame().set_index("method")
    assert {"last_third", "gini_high", "profile_last_third", "p_value", "kendall", "overlap@10"} <= set(frame)
    assert np.isnan(frame.loc["total", "spearman"])


@pytest.mark.parametrize(
    ("maps", "error"),
    [
        ({"locos": random_scores()}, "no causal map 'total'; there are: locos"),
        ({"total": random_scores()}, "no reference map 'locos'"),
        ({"locos": random_scores(4), "total": random_scores(5)}, "same trials in the same order"),
        (
            {"locos": random_scores(2, trial_ids=("t1", "t0")), "total": random_scores(2)},
            "same trials in the same order",
        ),
        ({"locos": random_scores(n_layers=4), "total": random_scores()}, "differ in size"),
    ],
)
def test_maps_that_cannot_be_compared_are_refused(maps, error):
    with pytest.raises(ValueError, match=error):
        late_layers(maps)


@pytest.mark.parametrize("setting", [{"n_resamples": 0}, {"n_permutations": 0}, {"margin": 1.0}, {"margin": -0.1}])
def test_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(ValueError, match="must be at least 1, margin"):
        judged(planted(LATE), **setting)


# --- files ----------------------------------------------------------------------------------------


def test_a_saved_result_comes_back_with_the_same_numbers(tmp_path):
    found = judged(planted(LATE, seed=1, noise=0.1), margin=0.2, seed=3)
    assert found.save(tmp_path) == tmp_path / "late_layers.safetensors"
    back = LateLayers.load(tmp_path)
    assert list(back.maps) == ["locos", "total"]
    assert (back.margin, back.seed, back.n_resamples) == (0.2, 3, 300)
    assert back.to_frame().equals(found.to_frame())
    assert back.reason == found.reason
    assert found.verdict in found._repr_html_()


def test_damaged_files_are_refused(tmp_path):
    path = judged(planted(LATE, seed=1)).save(tmp_path)
    arrays, meta = read_arrays(path)
    for change in ({"settings": {}}, {"maps": [{"name": "locos"}]}, {"trial_ids": ["a"]}, {"maps": []}):
        write_arrays(path, arrays, meta | change)
        with pytest.raises(ResultFileError, match="not a usable LateLayers file"):
            LateLayers.load(path)
    write_arrays(path, arrays, meta | {"kind": "Effects"})
    with pytest.raises(ResultFileError, match="holds Effects, not LateLayers"):
        LateLayers.load(path)
    with pytest.raises(ResultFileError):
        Effects.load(path)
