"""Ablation figures draw the numbers of the sweep, tell the methods apart, and show the control once."""

from __future__ import annotations

import numpy as np
import pytest

from locos_tl.figures import ablation_bars, compare_sweeps, dissociation, sweep, theme
from locos_tl.results.dissociation import Dissociation
from locos_tl.results.dissociation import dissociation as compute_dissociation
from locos_tl.results.sweep import Sweep


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def test_lines_are_the_curves_at_even_distances(make_sweep):
    held = make_sweep()
    figure = sweep(held)
    line, curve = named(figure, "locos"), held.curve("locos", "rouge_l")
    np.testing.assert_allclose(line.y, curve["mean"], rtol=1e-6)
    np.testing.assert_array_equal(line.x, range(7))
    assert list(figure.layout.xaxis.ticktext) == ["none", "1", "5", "10", "20", "50", "100"]
    high, low = np.split(np.asarray(named(figure, "locos: band").y), 2)
    np.testing.assert_allclose(high, curve["ci_high"], rtol=1e-6)
    np.testing.assert_allclose(low[::-1], curve["ci_low"], rtol=1e-6)
    assert "40 trials; drop" in line.customdata[3]
    assert "q replaced by its mean" in figure.layout.title.subtitle.text


def test_the_baseline_is_dashed_and_as_wide_as_the_figure(make_sweep):
    held = make_sweep()
    figure = sweep(held)
    base = named(figure, "baseline")
    assert base.line.dash == "dash"
    np.testing.assert_allclose(base.y, held.baseline("rouge_l").mean(), rtol=1e-6)
    assert tuple(base.x) == figure.layout.xaxis.range
    assert named(figure, "baseline: band")


def test_the_random_control_is_one_line_over_its_seeds(make_sweep):
    held = make_sweep()
    line = named(sweep(held), "random heads")
    np.testing.assert_allclose(line.y[1], held.values("random", 1, "rouge_l").mean(), rtol=1e-6)


def test_methods_differ_by_more_than_colour(make_sweep):
    figure = sweep(make_sweep())
    best, worst = named(figure, "locos"), named(figure, "locos, worst heads")
    assert best.line.color == worst.line.color == theme.DETECTOR_COLORS["locos"]
    assert best.line.dash != worst.line.dash


def test_methods_and_metric_as_asked(make_sweep):
    figure = sweep(make_sweep(), metric="contains", methods=["random", "locos"])
    assert [t.name for t in figure.data if "band" not in t.name] == ["baseline", "random heads", "locos"]
    assert figure.layout.yaxis.title.text == "answer in the text"


def test_an_unfinished_sweep_is_drawn_as_far_as_it_goes(make_sweep):
    whole = make_sweep()
    rows = tuple(r for r in whole.rows if r.method != "baseline" and not (r.k == 50 and r.trial_id > "nonliteral-010"))
    figure = sweep(Sweep(rows, whole.rankings))
    assert all(trace.name != "baseline" for trace in figure.data)
    assert "11 trials" in named(figure, "locos").customdata[4]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"metric": "f1"}, "no metric 'f1' in this sweep; there are: rouge_l, contains"),
        ({"methods": ["wu"]}, "no method 'wu'"),
        ({"methods": []}, "no method to draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make_sweep, settings, error):
    with pytest.raises(ValueError, match=error):
        sweep(make_sweep(), **settings)
    with pytest.raises(ValueError, match="no metric None"):
        sweep(Sweep(()))


# --- comparisons ----------------------------------------------------------------------------------


def test_two_kinds_of_questions_share_a_scale(make_sweep):
    sweeps = {"non-literal": make_sweep(), "lite<b>ral": make_sweep(strength=0.25, level=0.85, seed=1)}
    figure = compare_sweeps(sweeps)
    for name, label in (("non-literal", "non-literal"), ("lite<b>ral", "lite&lt;b&gt;ral")):
        line = named(figure, label)
        np.testing.assert_allclose(line.y, sweeps[name].relative("locos", "rouge_l")["kept"], rtol=1e-6)
        assert line.y[0] == 1
    assert "of the baseline; ROUGE-L" in line.customdata[2]
    assert len({trace.line.dash for trace in figure.data if "band" not in trace.name}) == 2
    with pytest.raises(ValueError, match="no sweep to compare"):
        compare_sweeps({})


def test_bars_stand_for_baseline_method_and_control(make_sweep):
    held = make_sweep()
    figure = ablation_bars(held, k=50, methods=["locos", "random"])
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == ["baseline", "locos", "random heads"]
    curve = held.curve("locos", "rouge_l").set_index("k").loc[50]
    assert bars[1].y[0] == pytest.approx(curve["mean"], rel=1e-6)
    assert bars[1].y[0] + bars[1].error_y.array[0] == pytest.approx(curve["ci_high"], rel=1e-5)
    assert bars[0].y[0] == pytest.approx(held.baseline("rouge_l").mean(), rel=1e-6)
    assert named(figure, "locos: number").text == (f"{curve['mean']:.2f}",)


def test_a_group_of_bars_a_task_each_with_its_metric(make_sweep):
    tasks = {"MuSiQue": make_sweep(("locos",), metrics=("f1",)), "BABILong": make_sweep(metrics=("contains",))}
    figure = ablation_bars(tasks, k=50, metric={"MuSiQue": "f1", "BABILong": "contains"})
    attention = named(figure, "attention_spatial")
    assert list(attention.x) == ["MuSiQue", "BABILong"]
    assert np.isnan(attention.y[0])
    assert np.isfinite(attention.y[1])
    with pytest.raises(ValueError, match="no sweep ablated 7 heads of 'any method'; there are k = 1, 5, 10"):
        ablation_bars(tasks, k=7)
    with pytest.raises(ValueError, match="no sweep ablated 50 heads of 'wu'"):
        ablation_bars(tasks, methods=["wu"])


def test_dissociation_marks_the_best_k(make_sweep):
    control = make_sweep(strength=0.05, level=0.9, metrics=("contains",), seed=2)
    result = compute_dissociation(make_sweep(), control)
    figure = dissociation(result)
    rows = result.to_frame().query("method == 'locos'")
    np.testing.assert_allclose(named(figure, "locos").y, rows["score"], rtol=1e-6)
    mark = named(figure, "locos: k*")
    assert mark.y[0] == result.best("locos").score
    assert named(figure, "locos").customdata[0].count("retrieval") == 1
    with pytest.raises(ValueError, match="no dissociation to draw"):
        dissociation(Dissociation((), "rouge_l", "contains"))
