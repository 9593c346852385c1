"""Public data as rows: JSON, JSON lines, TSV, CSV and parquet read alike, and what is wrong named by file and row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..results.files import ResultFileError, read_json, read_numbered_jsonl

SUFFIXES = (".jsonl", ".json", ".tsv", ".csv", ".parquet")


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a table, with the place to name in an error ("data.tsv, line 3").

    The format follows from the suffix; a ``.json`` may hold one list or JSON lines.

    Raises:
        ResultFileError: for a file of another kind, one that cannot be read, or a row that is no object.
    """
    readers = {".tsv": _separated, ".csv": _separated, ".parquet": _parquet, ".json": _json, ".jsonl": _json}
    if path.suffix not in readers:
        raise ResultFileError(f"{path}: not a table that can be read; give {', '.join(SUFFIXES)}")
    empty = True
    for where, row in readers[path.suffix](path):
        empty = False
        if not isinstance(row, dict):
            raise ResultFileError(f"{path}, {where}: not a JSON object")
        yield f"{path}, {where}", row
    if empty:
        raise ResultFileError(f"{path}: holds no rows")


def find_table(found: Path, *words: str) -> Path:
    """The table at ``found``, or in it the one whose relative path holds every word; the first in sorted order.

    Words are compared whole: "1k" is in ``data/qa2/1k.json`` and not in ``data/qa2/11k.json``.

    Raises:
        FileNotFoundError: when there is none.
    """
    if found.is_file():
        return found
    wanted = {word.lower() for word in words}
    for path in sorted(found.rglob("*")):
        if path.suffix in SUFFIXES and wanted <= _words(path.relative_to(found)):
            return path
    named = f" with {' and '.join(words)} in its name" if words else ""
    raise FileNotFoundError(f"{found} holds no table{named} ({', '.join(SUFFIXES)})")


def text_field(row: Mapping[str, Any], field: str, where: str) -> str:
    """A field that must hold text.

    Raises:
        ResultFileError: naming row and field when it does not.
    """
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ResultFileError(f"{where}, field {field!r}: missing, empty or not text")
    return value


def _words(path: Path) -> set[str]:
    text = "".join(c if c.isalnum() else " " for c in path.as_posix().lower())
    return set(text.split())


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    if _opens_a_list(path):
        for number, row in enumerate(read_json(path), 1):
            yield f"row {number}", row
    else:
        for number, row in read_numbered_jsonl(path):
            yield f"line {number}", row


def _opens_a_list(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError:
        return False  # the reader of lines says why


def _separated(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        lines = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
        for row in lines:
            if None in row or None in row.values():
                raise ResultFileError(f"{path}, line {lines.line_num}: not as many columns as the first line names")
            yield f"line {lines.line_num}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultFileError(f"{path}: cannot be read ({error})") from error


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from pyarrow import ArrowException  # type: ignore[import-untyped]
    from pyarrow.parquet import read_table  # type: ignore[import-untyped]

    try:
        rows = read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise ResultFileError(f"{path}: not a readable parquet file ({error})") from error
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row
