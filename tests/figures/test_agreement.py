"""The agreement matrix: Spearman below the diagonal, overlap at k above."""

from __future__ import annotations

import json

import numpy as np
import pytest

from locos_tl.figures import agreement
from locos_tl.results.statistics import rank_agreement


def test_both_triangles_hold_their_measure(make_scores):
    scores = make_scores(detectors=("locos", "dla", "headkv"))
    trace = agreement(scores, k=20).data[0]
    found = rank_agreement(scores["locos"].mean, scores["headkv"].mean, ks=(20,))
    assert trace.z[2][0] == pytest.approx(found["spearman"])
    assert trace.z[0][2] == pytest.approx(found["overlap@20"])
    assert f"Spearman {found['spearman']:.3g}".replace("-", "\N{MINUS SIGN}") in trace.customdata[2][0]
    assert f"{round(found['overlap@20'] * 20)} of the top 20 heads in common" in trace.customdata[0][2]
    assert np.isnan(np.diag(np.asarray(trace.z, float))).all()


def test_numbers_stand_in_the_cells(make_scores):
    trace = agreement(make_scores(detectors=("locos", "dla"))).data[0]
    assert trace.texttemplate == "%{text}"
    assert trace.text[1][0] == f"{trace.z[1][0]:z.2f}".replace("-", "\N{MINUS SIGN}")
    assert trace.text[0][1] == f"{trace.z[0][1] * 100:.0f}\u00a0%"
    assert (trace.zmin, trace.zmax) == (-1, 1)


def test_first_detector_is_at_the_top(make_scores):
    figure = agreement(make_scores())
    low, high = figure.layout.yaxis.range
    assert low > high
    assert figure.layout.yaxis.ticktext == figure.layout.xaxis.ticktext
    assert figure.layout.yaxis.ticktext[0] == "locos"


def test_cells_without_a_value_say_why(head_scores):
    flat, varied = head_scores(np.zeros((2, 4))), head_scores(np.arange(8.0).reshape(2, 4))
    figure = agreement({"flat": flat, "varied": varied})
    dashes = figure.data[1]
    assert dashes.text[1][0] == dashes.text[0][1] == "\N{EN DASH}"
    assert "gives all heads the same score" in dashes.customdata[1][0]
    assert "only 8 heads" in dashes.customdata[0][1]
    json.loads(figure.to_json(), parse_constant=pytest.fail)


def test_what_cannot_be_compared_is_refused(head_scores):
    with pytest.raises(ValueError, match="no detector to compare"):
        agreement({})
    with pytest.raises(ValueError, match="k must be at least 1"):
        agreement({"a": head_scores([[1.0]])}, k=0)
    with pytest.raises(ValueError, match="different models"):
        agreement({"a": head_scores(np.ones((2, 2))), "b": head_scores(np.ones((3, 2)))})
