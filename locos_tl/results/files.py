"""Reading and writing result files: atomic writes, strict JSON, no pickles."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..text import readable

FORMAT = 1
"""Version of the result files; readers refuse a newer one."""


UNFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a field gives when it is missing, of another type or shape, or larger than any number here."""
TEMPORARY = ".locos_tl.tmp"
"""Suffix of a file that is being written; its name begins with a dot. Nobody else names files so."""
DEEPEST = 100
"""Lists and objects that a JSON file may hold one within another."""


LONGEST_MESSAGE = 900
"""Characters of a message: what a file holds may be quoted in it."""


class ResultFileError(ValueError):
    """A result file that cannot be used; says which file, what is wrong and what to do, on one line of some length."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())
        super().__init__(line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]} ...")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also when the process dies half-way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}-", suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, f"{error.strerror}, while writing", str(path)) from error
        raise


def clear_temporary(folder: Path) -> None:
    """Remove what killed writers left in a folder and in those inside it; only for a folder that nobody writes to."""
    for pattern in (f".*{TEMPORARY}", f"*/.*{TEMPORARY}"):
        for path in folder.glob(pattern):
            with suppress(OSError):
                path.unlink()


def result_path(path: str | Path, name: str) -> Path:
    """Where a one-file result lies: ``name`` in an existing folder, else the path, with the suffix of ``name``.

    >>> str(result_path("runs/first", "sweep.jsonl"))
    'runs/first.jsonl'
    """
    path, suffix = Path(path), Path(name).suffix
    if path.is_dir():
        return path / name
    return path if path.suffix == suffix else path.with_name(path.name + suffix)


def plain(value: Any) -> Any:
    """A JSON-safe copy: numpy scalars become Python's, NaN and infinities null, sets sorted lists."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, Mapping):
        return {readable(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return [plain(v) for v in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text (no NaN)."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def write_json(path: Path, value: Any) -> None:
    """Write one value as indented strict JSON."""
    write_atomic(path, (to_json(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read strict JSON.

    Raises:
        ResultFileError: when the file is missing, not UTF-8, not JSON, holds NaN or repeats a key.
    """
    try:
        return _strict(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ResultFileError(f"{path}: no such file") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ResultFileError(f"{path}: not a usable JSON file ({error})") from error


def _strict(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a character (a lone surrogate)") from None
    if text.count("[") + text.count("{") > DEEPEST:
        _require_shallow(value)
    return value


def _require_shallow(value: Any) -> None:
    """Refuse what would later end in a RecursionError, where nobody could say of which file."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return
    raise ValueError(f"more than {DEEPEST} lists and objects one within another")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} occurs twice")
        found[key] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is larger than any number here")
    return number


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write one line of strict JSON a row."""
    write_atomic(path, "".join(to_json(row) + "\n" for row in rows).encode())


def read_jsonl(path: Path) -> Iterator[Any]:
    """Read JSON lines.

    Raises:
        ResultFileError: naming the line that cannot be read.
    """
    return (value for _, value in read_numbered_jsonl(path))


def read_numbered_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """`read_jsonl` with the number of each line, for a reader that has more to say about it."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ResultFileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ResultFileError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, _strict(line)
        except (ValueError, RecursionError) as error:
            raise ResultFileError(f"{path}, line {number}: {error}") from error


def read_table(path: Path) -> np.ndarray:
    """A full table of finite numbers with tabs between them, [row, column].

    Raises:
        ResultFileError: naming the line that is not one.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except FileNotFoundError:
        raise ResultFileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ResultFileError(f"{path}: cannot be read ({error})") from error
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = [_finite(cell) for cell in line.rstrip().split("\t")]
        except ValueError as error:
            raise ResultFileError(f"{path}, row {number}: {error}") from error
        if any(value != value for value in row) or (rows and len(row) != len(rows[0])):
            raise ResultFileError(f"{path}, row {number}: expected a full row of numbers with tabs between them")
        rows.append(row)
    if not rows:
        raise ResultFileError(f"{path}: holds no numbers")
    return np.array(rows)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Arrays and their JSON metadata in one safetensors file, so that they cannot be parted."""
    from safetensors.numpy import save

    header = {"locos_tl": to_json({"format": FORMAT, **meta})}
    write_atomic(path, save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, metadata=header))


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_arrays` wrote.

    Raises:
        ResultFileError: when the file is missing, truncated, or not one of ours.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ResultFileError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="numpy") as file:
            meta = _header(path, (file.metadata() or {}).get("locos_tl"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except ResultFileError:
        raise
    # TypeError and AttributeError: a number type that numpy does not have, like bfloat16.
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ResultFileError(f"{path}: not a readable safetensors file ({error}); delete it and run again") from error
    return arrays, meta


def read_result(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """`read_arrays` of a file that holds one kind of result.

    Raises:
        ResultFileError: also when it holds another.
    """
    arrays, meta = read_arrays(path)
    if meta.get("kind") != kind:
        raise ResultFileError(f"{path}: holds {meta.get('kind', 'no named result')}, not {kind}")
    return arrays, meta


@contextmanager
def usable(path: Path, kind: str) -> Iterator[None]:
    """Read the fields of a file in this block: what is missing or impossible there is named with the file.

    Raises:
        ResultFileError: in place of the error that a missing or impossible field gives.
    """
    try:
        yield
    except ResultFileError:
        raise
    except UNFIT as error:
        raise ResultFileError(f"{path}: not a usable {kind} file ({error})") from error


def _header(path: Path, header: str | None) -> dict[str, Any]:
    if header is None:
        raise ResultFileError(f"{path}: a safetensors file, but not written by locos_tl")
    try:
        meta = _strict(header)
        if not isinstance(meta, dict):
            raise ValueError("no JSON object")
    except (ValueError, RecursionError) as error:
        raise ResultFileError(f"{path}: its metadata cannot be read ({error})") from error
    check_format(path, meta)
    return meta


def check_format(path: Path, meta: Mapping[str, Any]) -> None:
    """Refuse a file without a format version, or with a newer one than this.

    Raises:
        ResultFileError: naming the file.
    """
    version = meta.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultFileError(f"{path}: names no format version, so not a file of locos_tl")
    if version > FORMAT:
        raise ResultFileError(f"{path}: written by a newer locos_tl (format {version}); update locos_tl")
