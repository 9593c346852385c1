"""Gates of key-value heads: aggregated, written and read as plain tab-separated numbers."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.statistics import by_kv_group
from tests.results.conftest import head_scores, random_scores


def test_a_gate_is_the_best_of_its_query_heads_over_the_best_of_all():
    held = head_scores([[[1.0, 4.0, -2.0, -1.0], [2.0, 0.0, 3.0, 3.0]]], n_key_value_heads=2)
    np.testing.assert_allclose(held.to_kv_gates(), [[1.0, 0.0], [0.5, 0.75]])


def test_heads_that_cannot_see_the_needle_are_closed():
    seen = np.ones((1, 1, 4), bool)
    seen[0, 0, :2] = False
    held = head_scores([[[9.0, 9.0, 1.0, 2.0]]], n_key_value_heads=2, seen=seen)
    np.testing.assert_allclose(held.to_kv_gates(), [[0.0, 1.0]])
    assert not head_scores([[[-1.0, 0.0]]]).to_kv_gates().any()


def test_the_file_is_a_plain_table_and_comes_back(tmp_path):
    held = random_scores(4, 3, 4)
    gates = held.to_kv_gates(tmp_path / "gates.tsv")
    np.testing.assert_allclose(np.loadtxt(tmp_path / "gates.tsv", delimiter="\t"), gates, rtol=1e-6)
    back = HeadScores.from_kv_gates(tmp_path / "gates.tsv", n_heads=4)
    assert (back.n_layers, back.n_heads, back.n_key_value_heads) == (3, 4, 2)
    np.testing.assert_allclose(by_kv_group(back.mean, 2, "max"), gates, rtol=1e-6)
    np.testing.assert_array_equal(back.mean[:, 0], back.mean[:, 1])  # one gate for the heads of a group
    np.testing.assert_allclose(back.to_kv_gates(), gates, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no numbers"),
        ("0.1\t0.2\n0.3\n", "row 2: expected a full row of numbers"),
        ("0.1\tx\n", "row 1: could not convert"),
        ("0.1\tnan\n", "row 1: expected a full row"),
        ("0.1\t1e999\n", "row 1: .*larger than any number"),
        ("0.1\t1.5\n", "between 0 and 1, found 0.1 to 1.5"),
        ("0.1\t0.2\t0.3\n", "3 columns cannot be the KV heads of 4 query heads"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "gates.tsv"
    path.write_text(text)
    with pytest.raises(ResultFileError, match=message):
        HeadScores.from_kv_gates(path, n_heads=4)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ResultFileError, match="no such file"):
        HeadScores.from_kv_gates(tmp_path / "gone.tsv", n_heads=4)


def test_groups_are_summed_or_their_best_taken():
    score = np.array([1.0, 2.0, 3.0, -4.0])
    np.testing.assert_array_equal(by_kv_group(score, 2), [3.0, -1.0])
    np.testing.assert_array_equal(by_kv_group(score, 2, "max"), [2.0, 3.0])
    with pytest.raises(ValueError, match="how must be sum or max, got 'mean'"):
        by_kv_group(score, 2, "mean")


def test_csv_has_a_row_a_head(tmp_path):
    held = random_scores()
    held.to_csv(tmp_path / "heads.csv")
    rows = list(csv.DictReader((tmp_path / "heads.csv").open()))
    assert len(rows) == 12
    assert float(rows[5]["score"]) == pytest.approx(float(held.mean[1, 1]))
    assert list(rows[0]) == list(held.to_frame())
