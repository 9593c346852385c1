"""Late-layer figures draw profiles and heads as `results.late_layers` computes them."""

from __future__ import annotations

import numpy as np
import pytest

from locos_tl.figures import late_layers, locos_against_total, theme
from locos_tl.figures.late_layers import _label_places
from locos_tl.figures.stretch import Stretch
from locos_tl.results.late_layers import late_layers as compute
from tests.results.conftest import random_scores


def line(figure, start):
    return next(t for t in figure.data if t.name.startswith(start) and "band" not in t.name)


def test_profiles_lie_over_each_other(make_late):
    result = make_late()
    figure = late_layers(result)
    for name, label in (("locos", "locos"), ("total", "total effect"), ("attribution", "attribution estimate")):
        drawn = line(figure, label)
        np.testing.assert_allclose(drawn.y, result.profiles[name].share, rtol=1e-5, atol=1e-7)
        assert drawn.line.color == theme.detector_color(name)
        assert "in last third" in drawn.name
    assert len({(t.line.color, t.line.dash) for t in figure.data if "band" not in t.name}) == 4


def test_the_last_third_is_shaded(make_late):
    (shade,) = late_layers(make_late()).layout.shapes
    assert (shade.x0, shade.x1) == (19.5, 29.5)


def test_every_head_is_a_point_coloured_by_layer(make_late):
    result = make_late()
    figure = locos_against_total(result)
    points = figure.data[0]
    assert len(points.x) == 270
    assert points.marker.color[-1] == 29
    best = result.maps["total"].ranking()[0]
    place = best[0] * 9 + best[1]
    assert points.customdata[place].startswith(f"<b>L{best[0]}H{best[1]}</b>")
    assert "total effect" in points.customdata[place]
    assert "rank 1" in points.customdata[place].split("<br>")[2]


def test_an_estimate_is_called_one(make_late):
    late = make_late()
    result = compute({n: late.maps[n] for n in ("locos", "attribution")}, causal="attribution", n_resamples=20)
    figure = locos_against_total(result)
    assert figure.layout.title.text == "locos against attribution estimate of the total effect, head by head"
    assert figure.layout.yaxis.title.text == "attribution estimate of the total effect"
    assert line(late_layers(result), "attribution estimate").line.width == 2.5


def test_missed_heads_are_ringed_and_named(make_late):
    result = make_late(0.45)
    ringed = next(t for t in locos_against_total(result).data if t.name == "missed")
    missed = result.missed()
    assert len(ringed.x) == len(missed) > 0
    assert ringed.text[0] == missed["head"][0]
    assert set(ringed.text) <= {*missed["head"], ""}


def test_small_results_are_drawn_too():
    """Two layers have no last third, one trial no bands, heads without a score no point."""
    locos, total = random_scores(1, 2, 3, n_key_value_heads=1), random_scores(1, 2, 3, seed=1, n_key_value_heads=1)
    locos.per_trial[0, 0, 0] = np.nan
    result = compute({"locos": locos, "total": total}, n_resamples=10, n_permutations=10)
    figure = late_layers(result)
    assert not figure.layout.shapes
    assert all("band" not in trace.name for trace in figure.data)
    assert len(locos_against_total(result).data[0].x) == 5


def test_the_stretched_axis_keeps_order_and_sign():
    values = np.array([-0.5, 0.0, 0.001, 2.0, 40.0])
    axis = Stretch(values)
    assert (np.diff(axis(values)) > 0).all()
    assert axis(np.zeros(1))[0] == 0
    settings = axis.axis("x")
    assert "0" in settings["ticktext"]
    assert settings["ticktext"][-1] == "30"
    assert Stretch(np.zeros(3)).axis("x")["ticktext"] == ["0"]


def test_labels_do_not_cover_each_other():
    places = _label_places(np.array([0.0, 2.0, 300.0]), np.array([0.0, 1.0, 0.0]))
    assert places[2] == "middle right"
    assert len({*places[:2]} - {""}) == len([p for p in places[:2] if p])
    assert "" in _label_places(np.zeros(6), np.linspace(0, 5, 6))


@pytest.mark.parametrize("centre", [0.82, 0.45])
def test_figures_are_reproducible(make_late, centre):
    one, other = (late_layers(make_late(centre)).to_json() for _ in range(2))
    assert one == other
