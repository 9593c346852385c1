"""Tables of public data: the same rows from every format, and errors that name file, row and field."""

import json

import pandas as pd
import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.trials.tables import find_table, read_rows, text_field

ROWS = [{"name": 'Ada "the first"', "place": "Łódź"}, {"name": "Bo\tx", "place": "two\nlines"}]


def write(path, rows=ROWS):
    match path.suffix:
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
        case ".json":
            path.write_text(json.dumps(rows))
        case ".tsv":
            pd.DataFrame(rows).to_csv(path, sep="\t", index=False)
        case ".csv":
            pd.DataFrame(rows).to_csv(path, index=False)
        case ".parquet":
            pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".tsv", ".csv", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    path = write(tmp_path / f"data{suffix}")
    assert [row for _, row in read_rows(path)] == ROWS
    assert all(where.startswith(f"{path}, ") for where, _ in read_rows(path))


def test_a_json_file_may_hold_lines(tmp_path):
    path = tmp_path / "data.json"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    assert [row for _, row in read_rows(path)] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.jsonl", '{"a": 1}\n{', "line 2"),
        ("d.jsonl", "\n[1]\n", "row 1: not a JSON object|line 2: not a JSON object"),
        ("d.json", '[{"a": 1}, 2]', "row 2: not a JSON object"),
        ("d.json", "[{", "not a usable JSON file"),
        ("d.jsonl", "", "holds no rows"),
        ("d.json", "[]", "holds no rows"),
        ("d.tsv", "a\tb\n", "holds no rows"),
        ("d.tsv", "a\tb\n1\t2\n3\n", "line 3: not as many columns"),
        ("d.tsv", "a\tb\n1\t2\t3\n", "line 2: not as many columns"),
        ("d.tsv", b"a\tb\n\xff\t2\n", "cannot be read"),
        ("d.parquet", "PAR1 no", "not a readable parquet"),
        ("d.xlsx", "x", r"not a table that can be read; give .*\.parquet"),
        ("d.jsonl", None, "no such file"),
        ("d.tsv", None, "cannot be read"),
    ],
)
def test_unusable_tables_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ResultFileError, match=rf"{name}.*({message})"):
        list(read_rows(path))


def test_a_table_is_found_by_whole_words_of_its_path(tmp_path):
    for name in ("data/qa2/11k.json", "data/qa2/1k.json", "data/qa12/1k.json", "data/qa3/1k.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_table(tmp_path, "1k", "qa2") == tmp_path / "data/qa2/1k.json"
    assert find_table(tmp_path / "data/qa2/11k.json", "1k") == tmp_path / "data/qa2/11k.json"
    with pytest.raises(FileNotFoundError, match="no table with 1k and qa3 in its name"):
        find_table(tmp_path, "1k", "qa3")


@pytest.mark.parametrize("row", [{}, {"a": ""}, {"a": " "}, {"a": 3}, {"a": None}])
def test_a_field_without_text_is_named(row):
    with pytest.raises(ResultFileError, match="line 7, field 'a': missing, empty or not text"):
        text_field(row, "a", "line 7")
