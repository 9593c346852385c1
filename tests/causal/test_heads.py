"""Heads in every way users write them, and no head that is not there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from locos_tl.causal.heads import as_heads, by_layer, head_name


@pytest.mark.parametrize(
    "given",
    [
        [(1, 2), (0, 3)],
        ["L1H2", "L0H3"],
        ["L1H2", (0, 3)],
        ([1, 2], [0, 3]),
        np.array([[1, 2], [0, 3]]),
        iter([(np.int64(1), np.int64(2)), (0, 3)]),
        pd.DataFrame({"rank": [1, 2], "layer": [1, 0], "head": [2, 3], "score": [0.5, 0.1]}),
    ],
)
def test_the_same_heads(given):
    assert as_heads(given, 2, 4) == ((1, 2), (0, 3))


@pytest.mark.parametrize("given", ["L1H2", (1, 2), [1, 2], [(1, 2)], ["L1H2"]])
def test_one_head(given):
    assert as_heads(given, 2, 4) == ((1, 2),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no head given"),
        (pd.DataFrame({"layer": [], "head": []}), "no head given"),
        ([(2, 0)], "L2H0 is outside a model of 2 layers x 4 heads"),
        ([(0, 4)], "L0H4 is outside"),
        ([(-1, 0)], "outside"),
        ([(0, -1)], "outside"),
        ([(0, 1), (1, 1), (0, 1)], "L0H1 is named twice"),
        (["L0H1", (0, 1)], "named twice"),
        (["L0"], "'L0' is no head"),
        (["L-1H0"], "no head"),
        (["L0H1 "], "no head"),
        ([3, 4], "outside"),
        ([1, 2, 3], "no head"),
        ([(0, 1, 2)], "no head"),
        ([(0.0, 1.0)], "no head"),
        ([(True, False)], "no head"),
        ((True, False), "no head"),
        ([None], "no head"),
        (None, "got 'None'"),
        (5, "got '5'"),
    ],
)
def test_what_is_no_head_is_refused(given, message):
    """A27."""
    with pytest.raises(ValueError, match=message):
        as_heads(given, 2, 4)


def test_the_argument_is_named():
    with pytest.raises(ValueError, match=r"^the ranking 'x': L9H0"):
        as_heads([(9, 0)], 2, 4, "the ranking 'x'")


def test_names_and_layers():
    assert head_name((23, 1)) == "L23H1"
    assert by_layer([(3, 1), (0, 2), (3, 0)]) == {0: [2], 3: [0, 1]}
    assert list(by_layer([(3, 1), (0, 2)])) == [0, 3]


def test_tables_of_scores(tiny_model):
    from locos_tl import score_heads
    from tests import tiny

    scores = score_heads(tiny_model("llama"), [tiny.trial(30)], ["locos"])["locos"]
    assert as_heads(scores.top(3), 2, 4) == tuple(scores.ranking()[:3])
    assert as_heads(scores.bottom(2), 2, 4) == tuple(scores.ranking()[::-1][:2])
