"""The layer profile draws shares, bands and centres as `results.statistics` computes them."""

from __future__ import annotations

import numpy as np
import pytest

from locos_tl.figures import layer_profile, theme
from locos_tl.results import statistics


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def texts(figure):
    return [annotation.text for annotation in figure.layout.annotations]


def test_line_is_the_share_of_positive_mass(make_scores):
    scores = make_scores()
    line = named(layer_profile(scores), "locos")
    np.testing.assert_allclose(line.y, statistics.layer_mass(scores["locos"].mean), rtol=1e-5)
    assert "%{customdata[0]" in line.hovertemplate
    assert line.line.color == theme.DETECTOR_COLORS["locos"]


def test_band_encloses_most_of_the_line_and_is_reproducible(make_scores):
    scores = make_scores()
    one, other = layer_profile(scores["locos"]), layer_profile(scores["locos"])
    band = named(one, "locos: band")
    high, low = np.split(np.asarray(band.y), 2)
    share = np.asarray(named(one, "locos").y)
    assert ((low[::-1] <= share + 1e-6) & (share <= high + 1e-6)).mean() > 0.9
    np.testing.assert_array_equal(band.y, named(other, "locos: band").y)


def test_centre_of_mass_stands_at_its_layer(make_scores):
    scores = make_scores()["locos"]
    mark = named(layer_profile(scores), "locos: centre of mass")
    assert mark.x[0] == pytest.approx(statistics.centre_of_mass(scores.mean) * (scores.n_layers - 1))
    assert mark.error_x.array[0] > 0


def test_last_third_is_shaded_and_told(make_scores):
    scores = make_scores()["locos"]
    figure = layer_profile(scores)
    (shade,) = figure.layout.shapes
    assert (shade.x0, shade.x1) == (19.5, 29.5)
    share = f"{statistics.last_third(scores.mean) * 100:.0f}\u00a0% in last third"
    assert any(share in text for text in texts(figure))


def test_a_row_a_detector_in_the_order_asked(make_scores):
    figure = layer_profile(make_scores(), detectors=["wu", "locos"])
    assert [trace.name for trace in figure.data if trace.mode == "lines" and not trace.fill] == ["wu", "locos"]
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]  # wu above locos
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range


def test_random_rows_are_called_seeds(make_scores):
    found = texts(layer_profile(make_scores(), detectors=["locos", "random"]))
    assert any("random" in text and "3 seeds" in text for text in found)
    assert any("locos" in text and "19 of 48 trials" in text for text in found)


def test_without_positive_scores_there_is_no_centre(head_scores):
    figure = layer_profile(head_scores(-np.ones((4, 3, 2))))
    assert "no positive score" not in texts(figure)[0]
    assert all("centre of mass" not in trace.name for trace in figure.data)
    np.testing.assert_array_equal(named(figure, "locos").y, 0)


def test_one_trial_has_no_band(head_scores):
    figure = layer_profile(head_scores(np.ones((6, 2))))
    assert all("band" not in trace.name for trace in figure.data)
    assert any("no band" in text for text in texts(figure))


def test_heads_that_see_nothing_are_not_counted_as_zero(head_scores):
    values = np.ones((5, 4, 2))
    values[:, 1] = np.nan
    np.testing.assert_allclose(
        named(layer_profile(head_scores(values)), "locos").y, [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-5
    )


def test_two_layers_have_no_last_third(head_scores):
    assert not layer_profile(head_scores(np.ones((3, 2, 4)))).layout.shapes


def test_what_cannot_be_drawn_is_refused(head_scores, make_scores):
    with pytest.raises(ValueError, match="no detector 'wo'; there are: locos"):
        layer_profile(make_scores(), detectors=["wo"])
    with pytest.raises(ValueError, match="no detector to draw"):
        layer_profile({})
    with pytest.raises(ValueError, match=r"\[3, 4\] layers"):
        layer_profile({"a": head_scores(np.ones((3, 2))), "b": head_scores(np.ones((4, 2)))})
