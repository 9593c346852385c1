"""Two runs in, one answer out: same or different, the first setting that differs, and what agreement means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import locos_tl
from locos_tl.results.comparison import Comparison, Difference, compare, differences
from locos_tl.results.scores import Scores
from tests.results.conftest import head_scores, random_scores, run

MADE_BY = {
    "model": {"name": "tiny", "revision": "r1", "weights": "w1", "dtype": "float32"},
    "tokenizer": "t1",
    "versions": {"torch": "2.6", "transformers": "5.9"},
    "scoring": {"variant": "paper", "max_new_tokens": 50},
    "trials": {"count": 5, "digest": "d1", "prompts": ["p1"], "passed": 3},
}


def made(**changes: object) -> dict[str, object]:
    """`MADE_BY` with some leaves changed: made(scoring__variant="exact")."""
    out = {key: dict(value) if isinstance(value, dict) else value for key, value in MADE_BY.items()}
    for path, value in changes.items():
        part, _, leaf = path.partition("__")
        if leaf:
            out[part] = {**out[part], leaf: value}  # type: ignore[dict-item]
        else:
            out[part] = value
    return out


def test_a_run_is_the_same_as_itself(tmp_path):
    first = replace(run(), provenance=MADE_BY)
    first.save(tmp_path / "a")
    found = compare(first, Scores.load(tmp_path / "a"))
    assert found.same
    assert found.verdict == "the same: settings and every score"
    assert found.differences == ()
    assert (found.passed, found.total) == ((3, 3), (5, 5))
    for row in found.detectors:
        assert row.identical
        assert row.spearman == pytest.approx(1)
        assert row.overlap_at_10 == 1
        assert row.moved == ()
        assert row.split_half_a == row.split_half_b


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"scoring__variant": "exact", "versions__torch": "2.7"}, "scoring.variant"),
        ({"model__dtype": "bfloat16", "scoring__variant": "exact"}, "model.dtype"),
        ({"model__weights": "w2", "model__name": "other", "trials__digest": "d2"}, "model.name"),
        ({"trials__digest": "d2", "trials__prompts": ["p2"], "trials__count": 9}, "trials.digest"),
        ({"tokenizer": "t2", "versions__torch": "2.7"}, "tokenizer"),
        ({"versions__torch": "2.7"}, "versions.torch"),
        ({"model__name": "/models/tiny", "versions__torch": "2.7"}, "versions.torch"),  # the weights are the same
        ({"model__name": "/models/tiny"}, "model.name"),
        ({"something": "new"}, "something"),
    ],
)
def test_the_first_setting_that_differs_is_the_most_consequential(changes, first):
    found = differences(made(), made(**changes))
    assert found[0].setting == first
    assert "trials.prompts" not in {difference.setting for difference in found}


def test_the_verdict_names_both_values():
    a, b = (replace(run(), provenance=made(scoring__variant=variant)) for variant in ("paper", "exact"))
    assert compare(a, b).verdict == (
        'different, though the scores are the same: scoring.variant is "paper" in A, "exact" in B'
    )
    b = replace(b, heads={**b.heads, "locos": random_scores(3, seed=9, detector="locos", n_total=5)})
    assert compare(a, b).verdict == 'different: scoring.variant is "paper" in A, "exact" in B'
    assert not compare(a, b).same
    b = replace(b, provenance=made(scoring__variant="exact", tokenizer="t2", versions__torch="3"))
    assert compare(a, b).verdict == 'different: tokenizer is "t1" in A, "t2" in B, and 2 more'


def test_scores_that_differ_without_a_setting_are_told_so():
    a, b = (replace(run(), provenance=MADE_BY) for _ in range(2))
    b = replace(b, heads={**b.heads, "wu": random_scores(3, seed=9, detector="wu", n_total=5)})
    assert compare(a, b).verdict == "different: the scores differ, though every recorded setting is the same"
    c = replace(a, heads={"locos": a["locos"]})
    assert compare(a, c).verdict == "different: only one has wu, though every recorded setting is the same"
    assert (compare(a, c).only_a, compare(c, a).only_b) == (("wu",), ("wu",))


def test_a_setting_that_one_run_does_not_record():
    assert differences({"model": {"weights": "w"}}, {"model": {}}) == (
        Difference("model.weights", '"w"', "not recorded"),
        Difference("model", "not recorded", "{}"),
    )


def test_agreement_is_that_of_the_means():
    a = head_scores([[[4, 3, 2, 1]]])
    b = head_scores([[[3, 4, 2, 1]]])
    found = compare(Scores({"locos": a}, ()), Scores({"locos": b}, ())).detectors[0]
    assert found.spearman == pytest.approx(0.8)
    assert np.isnan(found.overlap_at_10)  # a model of four heads has no ten
    assert np.isnan(found.split_half_a)  # nor one trial two halves
    assert [(m.layer, m.head, m.rank_a, m.rank_b) for m in found.moved] == [(0, 0, 1, 2), (0, 1, 2, 1)]


def test_the_heads_that_moved_most_by_the_ratio_of_ranks():
    """From 1 to 4 is further than from 9 to 12; a head that lost its rank counts as behind all."""
    order = np.arange(16, 0, -1, dtype=np.float32)
    swapped = order.copy()
    swapped[[0, 3]] = swapped[[3, 0]]
    swapped[[8, 11]] = swapped[[11, 8]]
    a, b = (Scores({"locos": head_scores(values.reshape(1, 4, 4))}, ()) for values in (order, swapped))
    moved = compare(a, b, n_moved=3).detectors[0].moved
    assert [(m.rank_a, m.rank_b) for m in moved] == [(1, 4), (4, 1), (9, 12)]
    seen = np.ones((1, 4, 4), bool)
    seen[0, 0, 0] = False
    blind = Scores({"locos": head_scores(order.reshape(1, 4, 4), seen=seen)}, ())
    first = compare(a, blind).detectors[0].moved[0]
    assert (first.layer, first.head, first.rank_a, first.rank_b) == (0, 0, 1, None)


def test_what_cannot_be_compared_is_refused():
    other = Scores({"locos": random_scores(3, 2, 4)}, ())
    with pytest.raises(ValueError, match="different sizes: 3 layers x 4 heads in A, 2 layers x 4 heads in B"):
        compare(run(), other)
    with pytest.raises(ValueError, match=r"no detector 'loco' in both runs \(did you mean 'locos'\?\); there are"):
        compare(run(), run(), detector="loco")
    with pytest.raises(ValueError, match="n_moved must be at least 1"):
        compare(run(), run(), n_moved=0)


def test_a_comparison_is_a_frame_a_dict_and_a_line():
    found = compare(run(), run(n_passed=4))
    frame = found.to_frame()
    assert list(frame["detector"]) == ["locos", "wu"]
    assert list(frame["n_trials_b"]) == [4, 4]
    assert {"spearman", "overlap_at_10", "split_half_a", "identical"} <= set(frame)
    assert found.to_dict()["passed"] == (3, 4)
    assert found.to_dict()["detectors"][0]["moved"][0].keys() == {"layer", "head", "rank_a", "rank_b"}
    assert repr(found).startswith("Comparison(locos, wu; different: ")
    assert "<table" in found._repr_html_()
    assert compare(run(), run(), detector="wu").detectors[0].detector == "wu"


def test_it_is_public():
    assert locos_tl.compare is compare
    assert locos_tl.Comparison is Comparison
