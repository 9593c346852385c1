"""Intervals, profiles and agreement: against scipy, against hand cases, and by their invariances."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from locos_tl.results import statistics as s

NAN = float("nan")
few = settings(max_examples=40, deadline=None)
finite = st.floats(-1e3, 1e3, width=32)
trials = arrays(np.float32, st.tuples(st.integers(1, 6), st.just(2), st.just(3)), elements=finite)
maps = arrays(np.float64, (4, 3), elements=finite)
sparse_maps = arrays(np.float64, (4, 3), elements=st.one_of(finite, st.just(NAN), st.just(math.inf)))


def table(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float64)


# --- bootstrap ------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("n_trials", [4, 25, 120])
def test_bootstrap_agrees_with_scipy(n_trials, level):
    """The matrix-product bootstrap is scipy's percentile bootstrap of the mean, drawn anew."""
    x = np.random.default_rng(n_trials).gamma(2.0, size=n_trials)
    wanted = stats.bootstrap(
        (x,), np.mean, method="percentile", n_resamples=8000, confidence_level=level, rng=np.random.default_rng(5)
    ).confidence_interval
    low, high = s.bootstrap_ci(x[:, None, None], level, n_resamples=8000, seed=1)
    allowed = 0.06 * x.std() / math.sqrt(n_trials)  # about four standard errors of such a quantile
    assert low.item() == pytest.approx(wanted.low, abs=allowed)
    assert high.item() == pytest.approx(wanted.high, abs=allowed)


def test_interval_covers_the_true_mean_as_often_as_it_says():
    """Of 400 heads with 60 normal trials each, about 95 % of the intervals hold the true mean."""
    x = np.random.default_rng(3).normal(2.0, 1.0, size=(60, 20, 20))
    low, high = s.bootstrap_ci(x)
    covered = ((low <= 2.0) & (high >= 2.0)).mean()
    assert 0.90 <= covered <= 0.98


def test_resamples_draw_n_trials_with_replacement():
    counts = s.resample_counts(7, 2000, seed=0)
    assert counts.shape == (2000, 7)
    assert (counts.sum(1) == 7).all()
    assert counts.max() > 1
    assert counts.mean(0) == pytest.approx(np.ones(7), abs=0.1)


def test_one_trial_has_an_interval_of_no_width():
    x = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
    low, high = s.bootstrap_ci(x)
    np.testing.assert_array_equal(low, x[0])
    np.testing.assert_array_equal(high, x[0])


@pytest.mark.parametrize("value", [0.1, -3.3, 1e-20, 123456.7])
@pytest.mark.parametrize("n_trials", [2, 3, 48])
def test_a_constant_lies_in_its_own_interval(n_trials, value):
    """The same score in every trial: score, low and high are one number (in float32 sums they were not)."""
    x = np.full((n_trials, 1, 1), value, np.float32)
    low, high = s.bootstrap_ci(x)
    mean = s.nan_mean(x)
    assert low.item() == high.item() == mean.item() == float(np.float32(value))


def test_two_trials_by_hand():
    """Of two trials 0 and 1 a resample's mean is 0, 1/2 or 1, in the ratio 1 : 2 : 1."""
    x = np.array([0.0, 1.0])[:, None, None]
    means = s.resampled_means(x, 4000)
    shares = [(means == value).mean() for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    low, high = s.bootstrap_ci(x)
    assert (low.item(), high.item()) == (0.0, 1.0)
    low, high = s.bootstrap_ci(x, level=0.4)
    assert (low.item(), high.item()) == (0.5, 0.5)


def test_nan_trials_take_no_part():
    """A head that a trial does not count for has the interval of its other trials, never of a zero."""
    x = np.array([5.0, NAN, 7.0, NAN])[:, None, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = s.bootstrap_ci(x)
    assert (low.item(), high.item()) == (5.0, 7.0)
    assert s.nan_mean(x).item() == 6.0


def test_a_head_without_a_trial_has_no_interval():
    x = np.array([[[NAN, 1.0]], [[NAN, 1.0]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = s.bootstrap_ci(x)
        mean = s.nan_mean(x)
    for found in (low, high, mean):
        assert np.isnan(found[0, 0])
        assert found[0, 1] == 1.0


def test_infinities_are_gaps_too():
    x = np.array([[[math.inf, -math.inf]], [[2.0, NAN]]])
    mean = s.nan_mean(x)
    assert mean[0, 0] == 2.0
    assert np.isnan(mean[0, 1])


def test_intervals_repeat_and_depend_on_the_seed():
    """A28: the same trials give the same interval, in every process."""
    x = np.random.default_rng(0).normal(size=(9, 2, 2))
    first, again, other = s.bootstrap_ci(x), s.bootstrap_ci(x), s.bootstrap_ci(x, seed=1)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_all_heads_share_a_resample():
    """Heads are resampled together, so a difference of two heads is resampled right as well."""
    x = np.random.default_rng(0).normal(size=(9, 1, 1))
    means = s.resampled_means(np.concatenate([x, x + 1, -x], axis=2))
    np.testing.assert_allclose(means[..., 1] - means[..., 0], 1.0)
    np.testing.assert_allclose(means[..., 2], -means[..., 0])


@few
@given(trials, st.randoms(use_true_random=False))
def test_the_order_of_trials_changes_neither_mean_nor_centre_of_the_bootstrap(x, random):
    order = random.sample(range(len(x)), len(x))
    np.testing.assert_allclose(s.nan_mean(x[order]), s.nan_mean(x), rtol=1e-12, atol=1e-12)
    for ordered in (x, x[order]):  # other draws, the same centre: six standard errors of 1,000 resamples
        off = np.abs(s.resampled_means(ordered).mean(0) - s.nan_mean(x))
        assert (off <= 6 * x.std(0, dtype=np.float64) / math.sqrt(1000 * len(x)) + 1e-6).all()


@few
@given(trials, st.floats(-100, 100), st.floats(0.01, 100))
def test_shift_and_scale_move_mean_and_interval_alike(x, shift, scale):
    x = x.astype(np.float64)
    moved = x * scale + shift
    near = {"rtol": 1e-9, "atol": 1e-7}
    np.testing.assert_allclose(s.nan_mean(moved), s.nan_mean(x) * scale + shift, **near)
    for a, b in zip(s.bootstrap_ci(moved, n_resamples=200), s.bootstrap_ci(x, n_resamples=200), strict=True):
        np.testing.assert_allclose(a, b * scale + shift, **near)


@few
@given(trials)
def test_an_interval_lies_within_the_trials(x):
    low, high = s.bootstrap_ci(x, n_resamples=200)
    slack = 1e-9 * (1 + np.abs(x).max())
    assert (low <= high).all()
    assert (low >= x.min(0) - slack).all()
    assert (high <= x.max(0) + slack).all()


# --- ranks ----------------------------------------------------------------------------------------


def test_ranks_go_down_ties_in_layer_head_order_and_gaps_are_out():
    score = table([0.5, NAN, 2.0], [2.0, -1.0, 0.5])
    assert s.rank_heads(score) == [(0, 2), (1, 0), (0, 0), (1, 2), (1, 1)]
    assert s.rank_heads(table([NAN, NAN])) == []
    assert s.rank_heads(table([math.inf, 1.0], [-math.inf, 2.0])) == [(1, 1), (0, 1)]


@few
@given(sparse_maps)
def test_a_ranking_holds_every_scored_head_once_in_falling_order(score):
    ranked = s.rank_heads(score)
    assert set(ranked) == {(int(a), int(b)) for a, b in np.argwhere(np.isfinite(score))}
    assert len(set(ranked)) == len(ranked)
    values = [score[head] for head in ranked]
    assert values == sorted(values, reverse=True)


# --- where in the model ---------------------------------------------------------------------------


def test_layer_mass_by_hand():
    """Negative scores and gaps carry no mass."""
    score = table([1.0, 1.0], [-5.0, 2.0], [NAN, 4.0], [-1.0, math.inf])
    assert s.layer_mass(score) == pytest.approx([0.25, 0.25, 0.5, 0.0])
    assert s.layer_mass(table([-1.0], [NAN])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("n_layers", "share"), [(1, 0.0), (2, 0.0), (3, 1 / 3), (4, 1 / 4), (6, 1 / 3), (30, 1 / 3), (32, 10 / 32)]
)
def test_last_third_of_an_even_model(n_layers, share):
    assert s.last_third(np.ones((n_layers, 2))) == pytest.approx(share)


def test_last_third_by_hand():
    assert s.last_third(table([1.0], [1.0], [2.0])) == pytest.approx(0.5)
    assert s.last_third(table([1.0], [1.0], [-2.0])) == 0.0
    assert s.last_third(table([0.0], [0.0], [0.0])) == 0.0


def test_centre_of_mass_by_hand():
    assert s.centre_of_mass(table([1.0], [0.0], [0.0])) == 0.0
    assert s.centre_of_mass(table([0.0], [0.0], [3.0])) == 1.0
    assert s.centre_of_mass(table([1.0], [1.0], [1.0])) == pytest.approx(0.5)
    assert s.centre_of_mass(table([1.0], [0.0], [3.0])) == pytest.approx(0.75)
    assert math.isnan(s.centre_of_mass(table([0.0], [-1.0])))


def test_gini_by_hand():
    """Even 0; one of n heads (n - 1) / n; two heads at 1 and 3 by the definition: 1/4."""
    assert s.gini(np.full((3, 4), 0.7)) == pytest.approx(0.0, abs=1e-12)
    one = np.zeros((10, 10))
    one[4, 2] = 5.0
    assert s.gini(one) == pytest.approx(0.99)
    assert s.gini(table([1.0, 3.0])) == pytest.approx(0.25)
    assert math.isnan(s.gini(table([0.0, -1.0])))


def test_gini_is_the_mean_absolute_difference():
    """G = mean |x_i - x_j| / (2 mean x), the textbook definition, by a double loop."""
    x = np.random.default_rng(0).gamma(0.5, size=(5, 6))
    flat = x.reshape(-1)
    wanted = np.mean([abs(a - b) for a in flat for b in flat]) / (2 * flat.mean())
    assert s.gini(x) == pytest.approx(wanted)


@few
@given(maps, st.floats(0.01, 100))
def test_profiles_do_not_depend_on_the_unit(score, scale):
    for name, measure in s.CONCENTRATION.items():
        assert measure(score * scale) == pytest.approx(measure(score), nan_ok=True, abs=1e-9), name


@few
@given(sparse_maps)
def test_profiles_stay_in_their_range(score):
    mass = s.layer_mass(score)
    assert (mass >= 0).all()
    assert mass.sum() == pytest.approx(1.0) or mass.sum() == 0.0
    for name, measure in s.CONCENTRATION.items():
        value = measure(score)
        assert math.isnan(value) or -1e-9 <= value <= 1 + 1e-9, name


# --- agreement ------------------------------------------------------------------------------------


def test_overlap_by_hand():
    a, b = [(0, 0), (0, 1), (1, 0)], [(1, 0), (0, 1), (0, 0)]
    assert s.overlap_at_k(a, b, 1) == 0.0
    assert s.overlap_at_k(a, b, 2) == 0.5
    assert s.overlap_at_k(a, b, 3) == 1.0
    assert s.overlap_at_k(a, b, 99) == 1.0  # no more heads than there are
    assert s.overlap_at_k(a, b[:1], 3) == 0.0
    assert math.isnan(s.overlap_at_k([], b, 3))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        s.overlap_at_k(a, b, 0)


@pytest.mark.parametrize("seed", range(3))
def test_agreement_is_scipys(seed):
    rng = np.random.default_rng(seed)
    a, noise = rng.normal(size=(6, 5)), rng.normal(size=(6, 5))
    b = np.round(a + noise, 1)  # with ties
    found = s.rank_agreement(a, b, ks=(5, 100))
    assert found["spearman"] == pytest.approx(stats.spearmanr(a.ravel(), b.ravel()).statistic)
    assert found["kendall"] == pytest.approx(stats.kendalltau(a.ravel(), b.ravel()).statistic)
    top = {tuple(map(int, divmod(i, 5))) for i in np.argsort(-a.ravel())[:5]}
    assert found["overlap@5"] == len(top & set(s.rank_heads(b)[:5])) / 5
    assert "overlap@100" not in found  # 30 heads: a top 100 would agree by force


def test_agreement_with_itself_and_its_mirror():
    a = np.random.default_rng(0).normal(size=(4, 5))
    assert s.rank_agreement(a, a) == pytest.approx({"spearman": 1, "kendall": 1, "overlap@10": 1, "overlap@20": 1})
    mirrored = s.rank_agreement(a, -a, ks=(5,))
    assert mirrored == pytest.approx({"spearman": -1.0, "kendall": -1.0, "overlap@5": 0.0})


@pytest.mark.parametrize("other", [np.zeros((3, 4)), np.full((3, 4), NAN)])
def test_a_constant_has_no_rank_correlation(other):
    """NaN without a warning, not a crash and not 0 or 1."""
    a = np.random.default_rng(0).normal(size=(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = s.rank_agreement(a, other)
    assert math.isnan(found["spearman"])
    assert math.isnan(found["kendall"])


def test_agreement_counts_heads_with_both_scores_only():
    a, b = table([1.0, 2.0, 3.0, NAN]), table([1.0, NAN, 5.0, 9.0])
    assert s.rank_agreement(a, b, ks=(1, 2)) == pytest.approx(
        {"spearman": 1.0, "kendall": 1.0, "overlap@1": 1.0, "overlap@2": 1.0}
    )


def test_agreement_of_two_models_is_refused():
    """A27: both shapes are named."""
    with pytest.raises(ValueError, match=r"\(2, 4\) and \(4, 8\)"):
        s.rank_agreement(np.ones((2, 4)), np.ones((4, 8)))


@few
@given(maps, maps)
def test_agreement_is_symmetric_and_depends_on_ranks_alone(a, b):
    near = {"nan_ok": True, "abs": 1e-9}
    found = s.rank_agreement(a, b, ks=(3, 5))
    assert s.rank_agreement(b, a, ks=(3, 5)) == pytest.approx(found, **near)
    assert s.rank_agreement(np.round(a, 3) * 8, np.round(b, 3), ks=(3,)) == pytest.approx(
        s.rank_agreement(np.round(a, 3), np.round(b, 3), ks=(3,)), **near
    )


# --- key-value groups -----------------------------------------------------------------------------


def test_kv_groups_are_neighbours():
    """Query head h reads KV head h // group, as transformers' repeat_kv lays them out."""
    score = table([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0])
    assert s.by_kv_group(score, 2).tolist() == [[3.0, 7.0], [30.0, 70.0]]
    assert s.by_kv_group(score, 1).tolist() == [[10.0], [100.0]]
    np.testing.assert_array_equal(s.by_kv_group(score, 4), score)
    np.testing.assert_array_equal(s.by_kv_group(score[None], 2), s.by_kv_group(score, 2)[None])
    with pytest.raises(ValueError, match="4 query heads do not split into 3"):
        s.by_kv_group(score, 3)
