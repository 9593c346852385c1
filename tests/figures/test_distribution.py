"""Head scores by layer: every head once, at its layer, with its own axis for each detector."""

from __future__ import annotations

import numpy as np
import pytest

from locos_tl.figures import layer_distribution
from locos_tl.figures.stretch import Stretch


def test_every_head_with_a_score_is_one_point_of_its_layer(make_scores):
    scores = make_scores()
    figure = layer_distribution(scores, detectors=["locos", "wu"])
    points = [trace for trace in figure.data if trace.type == "scatter"]
    for trace, name in zip(points, ("locos", "wu"), strict=True):
        held = scores[name]
        layers, heads = np.nonzero(np.isfinite(held.mean))
        assert list(trace.customdata) == [f"L{a}H{b}" for a, b in zip(layers, heads, strict=True)]
        np.testing.assert_array_equal(np.rint(trace.x), layers)
        up = Stretch(held.mean[layers, heads].astype(float))
        np.testing.assert_allclose(trace.y, up(held.mean[layers, heads]), rtol=1e-5)
    best = scores["locos"].ranking()[0]
    texts = dict(zip(points[0].customdata, points[0].text, strict=True))
    assert "rank 1" in texts[f"L{best[0]}H{best[1]}"]


def test_few_heads_have_points_but_no_violins(make_scores):
    kinds = {trace.type for trace in layer_distribution(make_scores(6, 2, 1)["locos"]).data}
    assert kinds == {"scatter"}
    kinds = {trace.type for trace in layer_distribution(make_scores(6, 8, 1)["locos"]).data}
    assert kinds == {"scatter", "violin"}


def test_unknown_detectors_are_refused(make_scores):
    with pytest.raises(ValueError, match="no detector 'lcos'"):
        layer_distribution(make_scores(), detectors=["lcos"])
