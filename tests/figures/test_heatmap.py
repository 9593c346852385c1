"""The heatmap shows what HeadScores holds: sign, limits, gaps and the top heads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from locos_tl.figures import heatmap, theme
from locos_tl.results.effects import Effects


def color_at(trace, value):
    """Colour of a value by the trace's scale, interpolated as plotly does."""
    at = (value - trace.zmin) / (trace.zmax - trace.zmin)
    places = [place for place, _ in trace.colorscale]
    channels = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for _, color in trace.colorscale]
    mixed = [np.interp(at, places, channel) for channel in zip(*channels, strict=True)]
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def outlined(figure):
    return {(shape.y0 + 0.5, shape.x0 + 0.5) for shape in figure.layout.shapes}


def test_layer_is_row_and_head_is_column_on_a_2_by_4_model(head_scores):
    values = np.arange(8.0).reshape(2, 4)
    figure = heatmap(head_scores(values, n_key_value_heads=2), top_k=1)
    trace = figure.data[0]
    np.testing.assert_array_equal(trace.z, values)
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("head", "layer")
    assert tuple(figure.layout.yaxis.range) == (-0.5, 1.5)  # layer 0 at the bottom
    assert tuple(figure.layout.xaxis.range) == (-0.5, 3.5)
    assert outlined(figure) == {(1, 3)}


def test_hover_tells_interval_rank_group_and_trials(head_scores):
    rng = np.random.default_rng(0)
    scores = head_scores(rng.normal(size=(12, 2, 4)), n_key_value_heads=2)
    trace = heatmap(scores).data[0]
    best = scores.top(1).iloc[0]
    interval, rank, group, counted = trace.customdata[best.layer][best["head"]]
    assert interval == f"{best.ci_low:.3g} to {best.ci_high:.3g}".replace("-", "\N{MINUS SIGN}")
    assert (rank, group, counted) == ("1 of 8", best.kv_group, "12 trials counted")
    for field in ("L%{y}H%{x}", "score", "95 % interval", "rank", "KV group"):
        assert field in trace.hovertemplate


def test_top_k_heads_are_outlined(head_scores):
    scores = head_scores(np.random.default_rng(1).normal(size=(6, 5, 7)))
    assert outlined(heatmap(scores, top_k=4)) == set(scores.ranking()[:4])
    assert outlined(heatmap(scores, top_k=0)) == set()


def test_minus_one_to_five_keeps_zero_neutral_and_shows_its_limits(head_scores):
    trace = heatmap(head_scores(np.linspace(-1, 5, 13).reshape(1, 13))).data[0]
    assert color_at(trace, 0) == theme.NEUTRAL
    assert (trace.zmin, trace.zmax) == (-1, 5)
    assert trace.colorbar.ticktext[0] == "\N{MINUS SIGN}1"
    assert trace.colorbar.ticktext[-1] == "5"
    # Equal sizes are equally strong: the pale end of the negative side is a fifth of the way out.
    assert color_at(trace, -1) == color_at(heatmap(head_scores([[-5.0, 5.0]])).data[0], -1)


@pytest.mark.parametrize("values", [[[0.0, 2.0]], [[-3.0, 0.0]], [[-3.0, 2.0]], [[1.0, 2.0]]])
def test_zero_is_neutral_and_inside_the_bar(values, head_scores):
    trace = heatmap(head_scores(values)).data[0]
    assert trace.zmin <= 0 <= trace.zmax
    assert color_at(trace, 0) == theme.NEUTRAL


def test_all_zero_scores_are_neutral_and_nothing_is_outlined(head_scores):
    figure = heatmap(head_scores(np.zeros((2, 4))))
    trace = figure.data[0]
    assert {color for _, color in trace.colorscale} == {theme.NEUTRAL}
    assert tuple(trace.colorbar.ticktext) == ("0",)
    assert not figure.layout.shapes
    assert "outlined" not in figure.layout.title.subtitle.text


def test_nan_and_inf_are_gaps_with_a_reason(head_scores):
    values = np.ones((3, 2, 4))
    values[:, 0, 1], values[:, 1, 2] = np.nan, np.inf
    seen = np.ones(values.shape, bool)
    seen[:, 1, 0] = False
    figure = heatmap(head_scores(values, seen=seen))
    main, gaps = figure.data
    missing = ~np.isfinite(np.asarray(main.z, float))
    assert {tuple(map(int, cell)) for cell in np.argwhere(missing)} == {(0, 1), (1, 0), (1, 2)}
    np.testing.assert_array_equal(np.isfinite(np.asarray(gaps.z, float)), missing)
    assert gaps.customdata[1][0] == "cannot see the needle: sliding-window layer"
    assert "not a finite number" in gaps.customdata[0][1]
    assert "not a finite number" in gaps.customdata[1][2]
    assert "%{customdata}" in gaps.hovertemplate
    json.loads(figure.to_json(), parse_constant=pytest.fail)


def test_trials_that_do_not_count_for_a_head_are_told(head_scores):
    values = np.ones((4, 1, 2))
    values[0, 0, 1] = np.inf
    seen = np.ones(values.shape, bool)
    seen[:2, 0, 0] = False
    cells = heatmap(head_scores(values, seen=seen)).data[0].customdata[0]
    assert [cell[3] for cell in cells] == ["2 trials counted", "3 trials counted, 1 left out: not finite"]


def test_one_trial_has_no_interval(head_scores):
    assert heatmap(head_scores([[1.0, 2.0]])).data[0].customdata[0][0][0] == "needs more than 1 trial"


def test_limit_is_shared_and_says_what_lies_beyond(head_scores):
    one, other = (heatmap(head_scores(values), limit=3.0).data[0] for values in ([[-1.0, 5.0]], [[0.0, 1.0]]))
    assert (one.zmin, one.zmax, one.colorscale) == (other.zmin, other.zmax, other.colorscale)
    assert one.colorbar.ticktext[-1] == "≥ 3"
    assert other.colorbar.ticktext[-1] == "3"
    ranged = heatmap(head_scores([[-1.0, 5.0]]), limit=(-0.5, 6.0)).data[0]
    assert (ranged.zmin, ranged.zmax) == (-0.5, 6.0)
    assert ranged.colorbar.ticktext[0] == "≤ \N{MINUS SIGN}0.5"


@pytest.mark.parametrize("limit", [0.0, -2.0, float("nan"), (1.0, 2.0), (0.0, 0.0)])
def test_limit_must_enclose_zero(limit, head_scores):
    with pytest.raises(ValueError, match="limit must be"):
        heatmap(head_scores([[1.0, 2.0]]), limit=limit)


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (30, 9), (64, 64), (128, 8)])
def test_labels_do_not_crowd_on_any_size(shape, head_scores):
    figure = heatmap(head_scores(np.random.default_rng(2).normal(size=shape)))
    layout = figure.layout
    for axis, n, pixels, room in (
        (layout.xaxis, shape[1], layout.width - layout.margin.l - layout.margin.r, 26),
        (layout.yaxis, shape[0], layout.height - layout.margin.t - layout.margin.b, 17),
    ):
        gaps = np.diff(axis.tickvals) * pixels / n
        assert axis.tickvals[0] == 0
        assert all(gaps >= room - 1)
    assert layout.width < 1000
    assert layout.dragmode == "zoom"


def test_random_counts_seeds(head_scores):
    figure = heatmap(head_scores(np.random.default_rng(3).random((3, 2, 4)), detector="random", n_total=48))
    assert figure.layout.title.subtitle.text.startswith("3 seeds")
    assert figure.data[0].customdata[0][0][3] == "3 seeds counted"


def test_names_cannot_inject_markup_or_hover_fields(head_scores):
    figure = heatmap(head_scores([[1.0, 2.0]], detector="<a href='x'>%{z}</a>"))
    assert figure.layout.title.text == "Head scores: &lt;a href='x'&gt;% {z}&lt;/a&gt;"


# --- effects --------------------------------------------------------------------------------------


def effects(at="z", n_axis=6, **more):
    values = np.random.default_rng(0).normal(size=(5, 4, n_axis))
    fields = {"kind": "total", "metric": "logit_diff", "positions": "all", "n_heads": 6, "n_key_value_heads": 2} | more
    ids = tuple(f"t{i}" for i in range(5))
    return Effects(at=at, per_trial=values, clean=np.ones(5), corrupt=np.zeros(5), trial_ids=ids, **fields)


def test_effects_are_drawn_as_effects():
    held = effects()
    figure = heatmap(held)
    np.testing.assert_array_equal(figure.data[0].z, held.mean)
    assert figure.layout.title.text == "Total effect of z"
    assert figure.layout.title.subtitle.text.startswith("logit difference · 5 of 5 trials")
    assert "effect %{z" in figure.data[0].hovertemplate
    assert "KV group" in figure.data[0].hovertemplate
    assert figure.layout.xaxis.title.text == "head"
    assert heatmap(held.to_head_scores("cri")).layout.title.text == figure.layout.title.text
    needle = heatmap(effects(kind="attribution", positions="needle")).layout.title
    assert needle.text == "Estimated total effect of z"
    assert "(needle positions)" in needle.subtitle.text


def test_effects_of_keys_are_those_of_key_value_heads():
    """A01: no one takes KV head 1 for query head 1."""
    figure = heatmap(effects("k", 2))
    assert figure.layout.xaxis.title.text == "KV head"
    assert "KV head %{x}" in figure.data[0].hovertemplate
    assert "KV group" not in figure.data[0].hovertemplate
    assert "L%{y}H%{x}" not in figure.data[0].hovertemplate
