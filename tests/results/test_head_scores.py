"""`HeadScores`: what counts, what is ranked, and files that come back bit by bit (A13, A27, A28, A32)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from locos_tl.results.files import ResultFileError, read_arrays, write_arrays
from locos_tl.results.head_scores import HeadScores
from tests.results.conftest import head_scores, random_scores

NAN = float("nan")
FULL = {f"{layer}-{head}": [layer + head / 10] for layer in range(2) for head in range(4)}


def partly_seen() -> HeadScores:
    """Three trials, 2 x 2 heads: L0H1 seen in two of them, L1H0 in none."""
    scores = [[[1.0, 9.0], [50.0, 4.0]], [[2.0, 5.0], [60.0, 4.0]], [[3.0, 7.0], [70.0, 1.0]]]
    seen = np.ones((3, 2, 2), bool)
    seen[0, 0, 1] = False
    seen[:, 1, 0] = False
    return head_scores(scores, seen=seen, n_total=8)


# --- making one -----------------------------------------------------------------------------------


def test_shapes_are_trial_layer_head():
    """In a process of its own: here jaxtyping's checks, which users do not run, would refuse first."""
    code = """
import numpy as np
from locos_tl.results.head_scores import HeadScores
zeros, seen = np.zeros, np.ones((1, 3, 4), bool)
for scores, mask in [(zeros((2, 3)), None), (zeros((1, 2, 3, 4)), None), (zeros((5, 3, 4), int), seen)]:
    try:
        HeadScores("locos", scores, ("a",) * len(scores), 9, 1, seen=mask)
    except ValueError as error:
        print(error)
"""
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines() == [
        "per_trial must be [trial, layer, head] with no empty axis, got shape (2, 3)",
        "per_trial must be [trial, layer, head] with no empty axis, got shape (1, 2, 3, 4)",
        "seen has shape (1, 3, 4), per_trial (5, 3, 4)",
    ]


@pytest.mark.parametrize("shape", [(0, 2, 2), (1, 0, 2), (1, 2, 0)])
def test_no_axis_is_empty(shape):
    """A13: a result without a trial, a layer or a head is not made."""
    with pytest.raises(ValueError, match=r"\[trial, layer, head\] with no empty axis"):
        HeadScores("locos", np.zeros(shape, np.float32), ("a",) * shape[0], 9, 1)


def test_ids_groups_and_counts_must_fit():
    with pytest.raises(ValueError, match="3 trial ids for 2 rows"):
        random_scores(2, trial_ids=("a", "b", "c"))
    with pytest.raises(ValueError, match="4 query heads cannot share 3 key-value heads"):
        random_scores(n_key_value_heads=3)
    with pytest.raises(ValueError, match="cannot share 0"):
        random_scores(n_key_value_heads=0)
    with pytest.raises(ValueError, match="5 trials cannot count when 4 were run"):
        random_scores(5, n_total=4)


def test_sizes_and_numbers_of_trials():
    held = random_scores(5, 3, 4, n_total=9)
    assert (held.n_trials, held.n_layers, held.n_heads) == (5, 3, 4)
    assert (held.passed, held.total) == (5, 9)
    assert [held.kv_group(head) for head in range(4)] == [0, 0, 1, 1]


def test_scores_are_float32_whatever_was_given():
    held = HeadScores("x", np.ones((1, 1, 2), np.float64) / 3, ("a",), 1, 1)
    assert held.per_trial.dtype == np.float32


def test_a_result_cannot_be_changed():
    with pytest.raises(AttributeError):
        random_scores().detector = "other"  # type: ignore[misc]


# --- what a reader asks ---------------------------------------------------------------------------


def test_mean_rank_top_and_bottom_by_hand():
    held = head_scores([[[1.0, -4.0], [3.0, 2.0]], [[3.0, -2.0], [5.0, 2.0]]])
    assert held.mean.tolist() == [[2.0, -3.0], [4.0, 2.0]]
    assert held.ranking() == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert held.top(2)[["layer", "head", "score", "rank"]].values.tolist() == [[1, 0, 4.0, 1], [0, 0, 2.0, 2]]
    assert held.bottom(1)[["layer", "head", "score", "rank"]].values.tolist() == [[0, 1, -3.0, 4]]
    assert len(held.top()) == len(held.bottom()) == 4
    assert held.ranking("t0") == [(1, 0), (1, 1), (0, 0), (0, 1)]


def test_frame_holds_every_head_in_layer_head_order():
    held = random_scores(5, 3, 4, n_total=9)
    frame = held.to_frame()
    assert list(frame.columns) == [
        "layer", "head", "score", "ci_low", "ci_high", "rank", "kv_group", "n_trials", "sees_needle",
    ]  # fmt: skip
    assert list(zip(frame["layer"], frame["head"], strict=True)) == [(i, j) for i in range(3) for j in range(4)]
    np.testing.assert_array_equal(frame["score"].to_numpy().reshape(3, 4), held.mean)
    low, high = held.ci()
    np.testing.assert_array_equal(frame["ci_low"].to_numpy().reshape(3, 4), low)
    np.testing.assert_array_equal(frame["ci_high"].to_numpy().reshape(3, 4), high)
    assert sorted(frame["rank"]) == list(range(1, 13))
    assert [tuple(row) for row in frame.sort_values("rank")[["layer", "head"]].values] == held.ranking()
    assert frame["kv_group"].tolist() == [0, 0, 1, 1] * 3
    assert (frame["n_trials"] == 5).all()
    assert frame["sees_needle"].all()


@pytest.mark.parametrize("k", [0, -3])
def test_top_of_nothing_is_refused(k):
    for ask in (random_scores().top, random_scores().bottom):
        with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
            ask(k)


def test_an_unknown_trial_is_refused():
    with pytest.raises(ValueError, match="no trial 'nine' among 5 counted trials of 'locos'"):
        random_scores().ranking("nine")


def test_intervals_follow_level_and_seed():
    held = random_scores(20)
    low, high = held.ci()
    narrow_low, narrow_high = held.ci(level=0.5)
    assert (low < narrow_low).all()
    assert (narrow_high < high).all()
    assert not np.array_equal(held.ci(seed=1)[0], low)
    np.testing.assert_array_equal(held.ci(0.95, 1000, 0)[0], low)


def test_repr_says_how_many_trials_count():
    """A13: passed of total goes with the result."""
    assert repr(partly_seen()) == "HeadScores('locos', 2 layers x 2 heads, 3 of 8 trials, top: L0H1, L1H1, L0H0)"


# --- heads that cannot see the needle -------------------------------------------------------------


def test_unseen_entries_take_no_part():
    """Mean, interval and rank are those of the seen trials; the stored equation's value is kept."""
    held = partly_seen()
    assert held.per_trial[0, 0, 1] == 9.0
    assert held.mean[0].tolist() == [2.0, 6.0]
    low, high = held.ci()
    assert 5.0 <= low[0, 1] <= high[0, 1] <= 7.0
    assert held.ranking("t0") == [(1, 1), (0, 0)]


def test_a_head_never_seen_has_no_score_no_rank_and_is_marked():
    held = partly_seen()
    assert np.isnan(held.mean[1, 0])
    assert np.isnan(held.ci()[0][1, 0])
    assert held.ranking() == [(0, 1), (1, 1), (0, 0)]
    frame = held.to_frame().set_index(["layer", "head"])
    assert not frame.loc[(1, 0), "sees_needle"]
    assert frame.loc[(1, 0), "rank"] is pd.NA
    assert frame["n_trials"].tolist() == [3, 2, 0, 3]
    assert frame["rank"].dropna().tolist() == [3, 1, 2]
    for table in (held.top(), held.bottom()):
        assert (1, 0) not in set(zip(table["layer"], table["head"], strict=True))
        assert len(table) == 3


def test_scores_that_are_no_numbers_are_gaps():
    """A32: one NaN and one inf neither spread over the head nor rank it first."""
    values = np.ones((2, 2, 2), np.float32)
    values[0, 0, 0], values[:, 0, 1], values[1, 1, 1] = NAN, math.inf, -math.inf
    held = head_scores(values)
    assert held.mean[0, 0] == 1.0
    assert np.isnan(held.mean[0, 1])
    assert held.ranking() == [(0, 0), (1, 0), (1, 1)]


def test_nothing_seen_at_all_is_an_empty_ranking():
    held = random_scores(2, seen=np.zeros((2, 3, 4), bool))
    assert held.ranking() == []
    assert held.top().empty
    assert "top: " in repr(held)
    assert held._repr_html_()


@settings(max_examples=30, deadline=None)
@given(arrays(bool, (3, 2, 2)), st.floats(-1e6, 1e6, width=32), st.permutations(range(3)))
def test_unseen_values_and_the_order_of_trials_never_matter(seen, junk, order):
    scores = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    one = head_scores(scores, seen=seen)
    other = head_scores(np.where(seen, scores, junk)[order], seen=seen[order])
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(one.mean), ~seen.any(0))
    assert one.ranking() == other.ranking()
    same = head_scores(np.where(seen, scores, junk), seen=seen)
    np.testing.assert_array_equal(one.ci(), same.ci())


# --- halves ---------------------------------------------------------------------------------------


def test_split_half_tells_signal_from_noise():
    """A28: near 1 where every trial says the same, near 0 for noise."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40, 10, 10))
    steady = rng.normal(size=(10, 10))
    assert abs(head_scores(noise).split_half()) < 0.3
    assert head_scores(steady + 0.1 * noise).split_half() > 0.95
    assert head_scores(np.repeat(steady[None], 2, 0)).split_half() == pytest.approx(1.0)


def test_split_half_is_by_disjoint_halves():
    """Of two opposite trials the halves disagree fully, whatever the seed."""
    x = np.random.default_rng(0).normal(size=(1, 4, 4))
    for seed in range(5):
        assert head_scores(np.concatenate([x, -x])).split_half(seed) == pytest.approx(-1.0)


def test_split_half_needs_two_trials():
    assert math.isnan(random_scores(1).split_half())
    assert random_scores(6).split_half(3) == random_scores(6).split_half(3)


# --- files ----------------------------------------------------------------------------------------


def test_saved_scores_come_back_bit_by_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    values[0, 0] = [-0.0, 1e-45]
    values[1, 1] = [NAN, math.inf]
    provenance = {"model": {"name": "é\u2028", "layers": [1, 2]}, "none": None, "x": 0.1}
    held = head_scores(values, seen=partly_seen().seen, n_total=8, n_key_value_heads=2, provenance=provenance)
    path = held.save(tmp_path / "deep" / "locos.safetensors")
    back = HeadScores.load(path)
    assert back.per_trial.tobytes() == held.per_trial.tobytes()
    np.testing.assert_array_equal(back.seen, held.seen)
    for name in ("detector", "trial_ids", "n_total", "n_key_value_heads", "provenance"):
        assert getattr(back, name) == getattr(held, name), name
    again = back.save(tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()


def test_another_process_writes_the_same_bytes(tmp_path):
    """A28: byte-identical result files; hash order of sets and dicts must not show."""
    code = (
        "import sys, numpy as np; from locos_tl.results.head_scores import HeadScores; "
        "HeadScores('locos', np.arange(6, dtype=np.float32).reshape(1, 2, 3), ('a',), 1, 1, "
        "provenance={'layers': {f'l{i}' for i in range(9)}, 'b': 1, 'a': 2}).save(sys.argv[1])"
    )
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], check=True, env=env)
    one, two = ((tmp_path / f"{seed}.safetensors").read_bytes() for seed in ("1", "2"))
    assert one == two


@pytest.mark.parametrize("name", ["locos", "locos.safetensors", "run.2026"])
def test_save_and_load_take_the_same_path(tmp_path, name):
    """`save("x")` writes x.safetensors, so `load("x")` must find it."""
    held = random_scores()
    path = held.save(tmp_path / name)
    assert path.suffix == ".safetensors"
    assert HeadScores.load(tmp_path / name).trial_ids == held.trial_ids
    assert HeadScores.load(str(path)).trial_ids == held.trial_ids


def test_missing_truncated_and_foreign_files_are_refused_by_name(tmp_path):
    path = random_scores().save(tmp_path / "x")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ResultFileError, match=r"x\.safetensors: not a readable"):
        HeadScores.load(path)
    path.write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ResultFileError, match=r"x\.safetensors: not a readable"):
        HeadScores.load(path)
    path.unlink()
    with pytest.raises(ResultFileError, match=r"x\.safetensors: no such file"):
        HeadScores.load(path)


DAMAGE = {
    "kind": ({"kind": "Sweep"}, "holds Sweep, not HeadScores"),
    "kind gone": ({"kind": ...}, "holds no named result, not HeadScores"),
    "ids gone": ({"trial_ids": ...}, "'trial_ids'"),
    "too few ids": ({"trial_ids": ["a"]}, "1 trial ids for 5 rows"),
    "ids null": ({"trial_ids": None}, "not a usable HeadScores file"),
    "total is text": ({"n_total": "many"}, "not a usable HeadScores file"),
    "total null": ({"n_total": None}, "not a usable HeadScores file"),
    "groups": ({"n_key_value_heads": 3}, "cannot share 3"),
    "provenance": ({"provenance": 7}, "not a usable HeadScores file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_metadata_is_refused_by_name(tmp_path, damage):
    path = random_scores().save(tmp_path / "x")
    found, meta = read_arrays(path)
    change, message = DAMAGE[damage]
    meta = {k: v for k, v in (meta | change).items() if v is not ...}
    write_arrays(path, found, meta)
    with pytest.raises(ResultFileError, match=rf"x\.safetensors: .*{message}"):
        HeadScores.load(path)


@pytest.mark.parametrize("name", ["per_trial", "seen"])
def test_a_missing_array_is_refused_by_name(tmp_path, name):
    path = random_scores().save(tmp_path / "x")
    found, meta = read_arrays(path)
    del found[name]
    write_arrays(path, found, meta)
    with pytest.raises(ResultFileError, match=rf"x\.safetensors: .*{name}"):
        HeadScores.load(path)


def test_a_newer_file_asks_for_an_update(tmp_path):
    path = random_scores().save(tmp_path / "x")
    found, meta = read_arrays(path)
    write_arrays(path, found, meta | {"format": 99})
    with pytest.raises(ResultFileError, match=r"x\.safetensors: written by a newer locos_tl \(format 99\)"):
        HeadScores.load(path)


# --- the field's head lists -----------------------------------------------------------------------


@pytest.mark.parametrize("envelope", [False, True])
def test_head_lists_come_back(tmp_path, envelope):
    held = partly_seen()
    path = tmp_path / "heads.json"
    told = held.to_head_list(path, envelope=envelope)
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == told
    back = HeadScores.from_head_list(path)
    np.testing.assert_array_equal(back.mean, held.mean)
    assert back.ranking() == held.ranking()
    assert back.seen.sum(0).tolist() == held.seen.sum(0).tolist()  # type: ignore[union-attr]
    assert back.provenance["imported_from"] == str(path)
    assert back.detector == ("locos" if envelope else "imported")
    assert back.n_total == (8 if envelope else 3)
    assert HeadScores.from_head_list(told).mean.tobytes() == back.mean.tobytes()


def test_the_plain_list_is_that_of_the_field():
    """{"layer-head": [scores]} as Retrieval_Head writes it: every head, only counted trials, no null."""
    held = partly_seen()
    assert held.to_head_list() == {"0-0": [1.0, 2.0, 3.0], "0-1": [5.0, 7.0], "1-0": [], "1-1": [4.0, 4.0, 1.0]}


def test_gaps_are_left_out_of_head_lists(tmp_path):
    """A32: our own reader takes what our writer wrote, also with a NaN among the scores."""
    held = head_scores([[[1.0, NAN]], [[math.inf, 2.0]]])
    path = tmp_path / "x.json"
    assert held.to_head_list(path) == {"0-0": [1.0], "0-1": [2.0]}
    assert HeadScores.from_head_list(path).mean.tolist() == [[1.0, 2.0]]


@settings(max_examples=30, deadline=None)
@given(arrays(np.float32, (2, 2, 3), elements=st.floats(-(2.0**90), 2.0**90, width=32)))
def test_head_lists_lose_no_bit(values):
    told = json.loads(json.dumps(head_scores(values).to_head_list()))
    np.testing.assert_array_equal(HeadScores.from_head_list(told).per_trial, values)


def test_lists_may_differ_in_length():
    """Published files hold a list per head; a short one has fewer trials, not zeros (A13)."""
    held = HeadScores.from_head_list({"0-0": [1.0, 3.0], "0-1": [5], "1-0": [], "1-1": 2.5})
    assert held.n_trials == 2
    assert held.mean[0].tolist() == [2.0, 5.0]
    assert np.isnan(held.mean[1, 0])
    assert held.mean[1, 1] == 2.5
    assert held.to_frame()["n_trials"].tolist() == [2, 1, 0, 1]


def test_a_list_of_another_model_is_refused_naming_both_shapes():
    """A27: 4 x 8 heads do not fit 2 x 4, nor 2 x 4 heads 4 x 8."""
    big = {f"{layer}-{head}": [0.1] for layer in range(4) for head in range(8)}
    assert HeadScores.from_head_list(big, n_layers=4, n_heads=8).per_trial.shape == (1, 4, 8)
    with pytest.raises(ResultFileError, match=r"4 layers x 8 heads, the model has 2 x 4"):
        HeadScores.from_head_list(big, n_layers=2, n_heads=4)
    with pytest.raises(ResultFileError, match=r"2 layers x 4 heads, .* 4 layers x 8 heads is expected"):
        HeadScores.from_head_list(FULL, n_layers=4, n_heads=8)
    with pytest.raises(ResultFileError, match=r"2 layers x 4 heads, the model has 4 x 2"):
        HeadScores.from_head_list(FULL, n_layers=4, n_heads=2)  # as many heads, another shape


BAD_LISTS = {
    "duplicate": (FULL | {"01-2": [1.0]}, "head 1-2 occurs twice"),
    "gap": ({k: v for k, v in FULL.items() if k != "1-2"}, "lists 7 heads"),
    "huge head": (FULL | {"999999-999999": [1.0]}, "lists 9 heads, up to 1000000 layers x 1000000"),
    "negative": (FULL | {"-1-2": [1.0]}, "'-1-2' is no \"layer-head\" pair"),
    "spaces": (FULL | {" 1-2": [1.0]}, 'no "layer-head" pair'),
    "other keys": ({"layer": 1}, "'layer' is no \"layer-head\" pair"),
    "long key": ({"x" * 500: 1}, 'no "layer-head" pair'),
    "NaN": (FULL | {"1-2": [NAN]}, "head 1-2 are not all finite"),
    "inf": (FULL | {"1-2": [1.0, math.inf]}, "head 1-2 are not all finite"),
    "null": (FULL | {"1-2": [None]}, "head 1-2 are not all finite"),
    "text": (FULL | {"1-2": ["0.5"]}, "head 1-2 are not all finite"),
    "one text": (FULL | {"1-2": "0.5"}, "head 1-2 are not all finite"),
    "bool": (FULL | {"1-2": [True]}, "head 1-2 are not all finite"),
    "huge": (FULL | {"1-2": [1e39]}, "head 1-2 are not all finite"),
    "huge integer": (FULL | {"1-2": [10**400]}, "head 1-2 are not all finite"),
    "nested": (FULL | {"1-2": [[1.0]]}, "head 1-2 are not all finite"),
    "object": (FULL | {"1-2": {"score": 1}}, "head 1-2 are not all finite"),
    "empty": ({}, "expected"),
    "no scores": ({"0-0": [], "0-1": []}, "holds no scores"),
    "empty envelope": ({"scores": {}}, "expected"),
    "total is text": ({"scores": FULL, "total": "many"}, "not a usable head list"),
    "total null": ({"scores": FULL, "total": None}, "not a usable head list"),
    "total too small": ({"scores": FULL, "total": 0}, "1 trials cannot count when 0"),
    "groups": ({"scores": FULL, "n_key_value_heads": 3}, "cannot share 3"),
    "provenance": ({"scores": FULL, "provenance": 5}, "not a usable head list"),
}


@pytest.mark.parametrize("kind", BAD_LISTS)
def test_unusable_lists_are_refused_by_name(tmp_path, kind):
    """A27, from a file (whose path is named) and from parsed JSON."""
    table, message = BAD_LISTS[kind]
    with pytest.raises(ResultFileError, match=f"head list: .*{message}"):
        HeadScores.from_head_list(table)
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(table))
    # NaN and Infinity are no JSON, so the file falls at that already.
    with pytest.raises(ResultFileError, match=rf"theirs\.json: .*({message}|not a number)"):
        HeadScores.from_head_list(path)


@pytest.mark.parametrize(
    "text",
    ['{"0-0": [1], "0-0": [2]}', '[["0-0", 1]]', '{"scores": [1]}', '"0-0"', "5", "null", "", "{", '{"0-0": [1e999]}'],
)
def test_unusable_list_files_are_refused_by_name(tmp_path, text):
    path = tmp_path / "theirs.json"
    path.write_text(text)
    with pytest.raises(ResultFileError, match=r"theirs\.json: "):
        HeadScores.from_head_list(path)
    with pytest.raises(ResultFileError, match=r"gone\.json: no such file"):
        HeadScores.from_head_list(tmp_path / "gone.json")


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["0-0", "0-1", "1-0", "1-1", "00-0", "scores", "total", "n_key_value_heads", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["0-0", "0-1"]), inner),
            max_leaves=4,
        ),
        max_size=5,
    )
)
def test_any_json_is_read_or_refused(table):
    try:
        held = HeadScores.from_head_list(table)
    except ResultFileError:
        return
    assert held.n_layers * held.n_heads >= 1


def test_options_win_over_the_envelope():
    told = random_scores(2, n_key_value_heads=2).to_head_list(envelope=True)
    assert HeadScores.from_head_list(told).n_key_value_heads == 2
    held = HeadScores.from_head_list(told, n_key_value_heads=4, detector="theirs")
    assert (held.n_key_value_heads, held.detector) == (4, "theirs")
    assert HeadScores.from_head_list(FULL).n_key_value_heads == 4


def test_require_fit_names_both_shapes():
    """A27."""
    held = random_scores(1, 4, 8)
    held.require_fit(4, 8)
    with pytest.raises(ValueError, match=r"'locos' scores are for 4 layers x 8 heads, the model has 2 x 4"):
        held.require_fit(2, 4)
    with pytest.raises(ValueError, match="8 x 4"):
        held.require_fit(8, 4)


# --- notebooks ------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "<img src=x onerror='alert(1)'>", "&lt;b&gt;"])
def test_a_hostile_detector_name_is_text(name):
    """A file of a stranger is shown in a notebook; its names are text there."""
    html = random_scores(detector=name)._repr_html_()
    harmless = random_scores()._repr_html_()
    assert Tags(html).tags == Tags(harmless).tags
    assert name not in html


def test_a_notebook_shows_the_ten_best():
    html = random_scores(5, 10, 10)._repr_html_()
    assert Tags(html).tags.count("tr") == 11
    assert "5 of 5 trials" in html
