"""BABILong read from tables in the published format (the texts here are our own)."""

import json
from collections import Counter

import pandas as pd
import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.trials.babilong import babilong, published
from tests.trials.conftest import PROSE

PLACES = ("kitchen", "garden", "office")


def rows(task, length, n=6):
    return [
        {
            "input": f"{PROSE[i]} Mary got the milk. {length} {task}. Mary went to the {PLACES[i % 3]}. {PROSE[-1]}",
            "question": f"Where is the milk of row {i}? ",
            "target": PLACES[i % 3],
        }
        for i in range(n)
    ]


def layout(root, kind):
    """The published tables: a folder for each length (parquet), or for each task (JSON)."""
    for task in ("qa2", "qa3", "qa12"):
        for length in ("1k", "11k", "2k"):
            table = rows(task, length)
            path = root / (
                f"{length}/{task}-00000-of-00001.parquet" if kind == "parquet" else f"data/{task}/{length}.json"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "parquet":
                pd.DataFrame(table).to_parquet(path)
            else:
                path.write_text(json.dumps(table))
    return root


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_one_length_and_the_tasks_are_read_from_either_layout(tmp_path, kind, tokenizer):
    grid = babilong(6, path=layout(tmp_path, kind), length="1k", tokenizer=tokenizer)
    assert Counter(t.kind for t in grid) == {"qa2": 3, "qa3": 3}
    for trial in grid:
        text = tokenizer.decode(trial.prompt_ids)
        assert f" 1k {trial.kind}." in text
        assert f"Answer with one word only. {trial.question}<|end|>" in text
        assert f"Mary went to the {trial.answer}." in text
        assert trial.needle_span is None
    assert babilong(6, path=tmp_path).recipes == grid.recipes
    assert babilong(6, path=tmp_path, seed=1).recipes != grid.recipes


def test_a_single_table_serves_a_single_task(tmp_path):
    path = layout(tmp_path, "json") / "data/qa3/2k.json"
    assert {r.task for r in babilong(3, path=path, tasks="qa3", length="2k").recipes} == {"qa3"}
    with pytest.raises(ValueError, match="one table, but there are 2 tasks"):
        babilong(3, path=path)


def test_what_is_not_there_is_named(tmp_path):
    layout(tmp_path, "json")
    with pytest.raises(FileNotFoundError, match="no table with 4k and qa2 in its name"):
        babilong(3, path=tmp_path, length="4k")
    with pytest.raises(ValueError, match="unknown task 'qa21'"):
        babilong(3, path=tmp_path, tasks=("qa21",))
    with pytest.raises(ValueError, match="at least one task"):
        babilong(3, path=tmp_path, tasks=())
    with pytest.raises(ValueError, match=r"1k\.json holds 6 questions, so n=50"):
        babilong(100, path=tmp_path)


@pytest.mark.parametrize("column", ["input", "question", "target"])
def test_a_missing_column_is_named(tmp_path, column):
    table = rows("qa2", "1k")
    del table[0][column]
    path = tmp_path / "qa2.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ResultFileError, match=rf"qa2\.json, row 1, field '{column}'"):
        babilong(6, path=path, tasks="qa2")


def test_what_is_fetched_is_one_length(tmp_path):
    layout(tmp_path, "parquet")
    patterns = published("x/y", "1k", ["qa2"]).files[0].split("|")
    found = {str(p.relative_to(tmp_path)) for pattern in patterns for p in tmp_path.glob(pattern)}
    assert found == {"1k/qa2-00000-of-00001.parquet"}
