"""Files are whole or not there, strict JSON, and never unpickled (A32)."""

from __future__ import annotations

import json
import math
import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locos_tl.results import files
from locos_tl.results.files import ResultFileError

BAD_JSON = {
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "-Infinity": b"[-Infinity]",
    "1e999": b'{"a": 1e999}',
    "twice": b'{"a": 1, "a": 1}',
    "twice, deeper": b'[{"b": {"a": 1, "a": 2}}]',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "cut off": b'{"a": [1, 2',
    "empty": b"",
    "trailing": b'{"a": 1} {"a": 2}',
    "too deep": b"[" * 100_000,
    "huge integer": b"[" + b"9" * 5000 + b"]",
    "a pickle": pickle.dumps({"a": 1}),
}


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, error, broken):
    path = tmp_path / "run.json"
    files.write_json(path, {"old": True})

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(type(error)):
        files.write_json(path, {"new": True})
    monkeypatch.undo()
    assert files.read_json(path) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_failed_first_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        files.write_atomic(tmp_path / "a" / "x.bin", b"x")
    assert list((tmp_path / "a").iterdir()) == []


def test_the_file_is_complete_before_it_gets_its_name(tmp_path, monkeypatch):
    """What is renamed into place already holds every byte, so a killed process leaves no half file."""
    seen: list[bytes] = []
    rename = os.replace

    def look(source: str, target: Path) -> None:
        seen.append(Path(source).read_bytes())
        assert not Path(target).exists()
        rename(source, target)

    monkeypatch.setattr(os, "replace", look)
    files.write_atomic(tmp_path / "x.bin", b"x" * 100_000)
    assert seen == [b"x" * 100_000]
    assert (tmp_path / "x.bin").read_bytes() == seen[0]


def test_unserialisable_rows_leave_the_old_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    files.write_jsonl(path, [1])
    with pytest.raises(TypeError):
        files.write_jsonl(path, [1, object()])
    assert list(files.read_jsonl(path)) == [1]


def test_files_can_be_read_by_others(tmp_path):
    """A temporary file is 0600; a result file on a shared disk must not be."""
    files.write_atomic(tmp_path / "x", b"")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


# --- strict JSON ----------------------------------------------------------------------------------


def test_what_is_no_number_becomes_null():
    value = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf, 1.5],
        "numpy": (np.float32("nan"), np.float64(2.0), np.int64(3), np.bool_(True)),
        "array": np.array([[1.0, np.nan]]),
        7: None,
    }
    text = files.to_json(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "nan": None,
        "inf": [None, None, 1.5],
        "numpy": [None, 2.0, 3, True],
        "array": [[1.0, None]],
        "7": None,
    }


def test_sets_are_written_in_one_order():
    """A28: the order of a set of texts changes from process to process; the file must not."""
    names = {f"layer-{i}" for i in range(20)}
    assert json.loads(files.to_json(names)) == sorted(names)
    assert json.loads(files.to_json(frozenset({3, 1, 2}))) == [1, 2, 3]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None)
@given(json_values)
def test_json_comes_back_as_it_was(tmp_path_factory, value):
    folder = tmp_path_factory.getbasetemp()
    files.write_json(folder / "x.json", value)
    assert files.read_json(folder / "x.json") == value
    files.write_jsonl(folder / "x.jsonl", [value, value])
    assert list(files.read_jsonl(folder / "x.jsonl")) == [value, value]


@pytest.mark.parametrize("kind", BAD_JSON)
def test_unusable_json_is_refused_by_name(tmp_path, kind):
    path = tmp_path / "bad.json"
    path.write_bytes(BAD_JSON[kind])
    with pytest.raises(ResultFileError, match=r"bad\.json: not a usable JSON file"):
        files.read_json(path)


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    for read in (files.read_json, lambda p: list(files.read_jsonl(p)), files.read_arrays):
        with pytest.raises(ResultFileError, match=r"gone\.json: no such file"):
            read(tmp_path / "gone.json")
        with pytest.raises(ResultFileError, match=str(tmp_path)):
            read(tmp_path)


@pytest.mark.parametrize("kind", [k for k in BAD_JSON if k not in ("not UTF-8", "UTF-16", "empty", "a pickle")])
def test_a_bad_line_is_named_by_its_number(tmp_path, kind):
    """Blank lines count as lines, as in an editor."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + BAD_JSON[kind] + b"\n")
    rows = files.read_jsonl(path)
    assert next(rows) == {"a": 1}
    with pytest.raises(ResultFileError, match=r"rows\.jsonl, line 3"):
        next(rows)


@pytest.mark.parametrize("kind", ["not UTF-8", "UTF-16", "a pickle"])
def test_lines_that_are_no_text_are_refused(tmp_path, kind):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(BAD_JSON[kind])
    with pytest.raises(ResultFileError, match=r"rows\.jsonl"):
        list(files.read_jsonl(path))


def test_lines_end_at_newlines_alone(tmp_path):
    """Texts may hold U+2028 and U+0085, at which str.splitlines would cut; Windows line ends are fine."""
    rows = [{"text": "a\u2028b\x85c\x0bd"}, {"text": "e"}]
    files.write_jsonl(tmp_path / "rows.jsonl", rows)
    assert list(files.read_jsonl(tmp_path / "rows.jsonl")) == rows
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\r\n{"a": 2}\r\n')
    assert list(files.read_jsonl(tmp_path / "rows.jsonl")) == [{"a": 1}, {"a": 2}]


# --- arrays ---------------------------------------------------------------------------------------


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    odd = np.array([np.nan, np.inf, -0.0, 1e-45, np.float32(1) / 3], np.float32)
    return {"a": rng.normal(size=(2, 3, 4)).astype(np.float32), "odd": odd, "seen": np.array([[True, False]])}


def write_header(path: Path, metadata: dict[str, str]) -> None:
    """A safetensors file of our own making, with any metadata."""
    header = json.dumps(
        {"__metadata__": metadata, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.0))


def test_arrays_come_back_bit_by_bit(tmp_path):
    path = tmp_path / "x.safetensors"
    files.write_arrays(path, arrays(), {"note": "é\u2028", "n": math.nan})
    found, meta = files.read_arrays(path)
    assert meta == {"format": files.FORMAT, "note": "é\u2028", "n": None}
    assert found.keys() == arrays().keys()
    for name, wanted in arrays().items():
        assert found[name].dtype == wanted.dtype
        assert found[name].shape == wanted.shape
        assert found[name].tobytes() == wanted.tobytes()


def test_views_are_written_as_they_look(tmp_path):
    """A transposed or reversed view holds its numbers in another order in memory."""
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    files.write_arrays(tmp_path / "x", {"t": base.T, "r": base[::-1]}, {})
    found, _ = files.read_arrays(tmp_path / "x")
    np.testing.assert_array_equal(found["t"], base.T)
    np.testing.assert_array_equal(found["r"], base[::-1])


@pytest.mark.parametrize("keep", [0, 4, 8, 60, -1])
def test_truncated_arrays_are_refused(tmp_path, keep):
    path = tmp_path / "x.safetensors"
    files.write_arrays(path, arrays(), {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ResultFileError, match=r"x\.safetensors: not a readable .* delete it and run again"):
        files.read_arrays(path)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    path.write_bytes(data)
    with pytest.raises(ResultFileError, match=r"noise\.safetensors"):
        files.read_arrays(path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_changed_byte_never_crashes(tmp_path_factory, data):
    """A flipped byte is refused by name or changes a number; there is no other way out."""
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    files.write_arrays(path, arrays(), {"kind": "x"})
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    with suppress(ResultFileError):
        found, meta = files.read_arrays(path)
        assert meta["format"] == files.FORMAT
        assert all(isinstance(array, np.ndarray) for array in found.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
def test_a_model_checkpoint_is_no_result_file(tmp_path, dtype):
    """Also in number types that numpy does not know."""
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(2, dtype=getattr(torch, dtype))}, path)
    with pytest.raises(ResultFileError, match=r"model\.safetensors: .*not written by locos_tl"):
        files.read_arrays(path)


def test_a_strange_number_type_under_our_header_is_refused(tmp_path):
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    save_file({"w": torch.zeros(2, dtype=torch.bfloat16)}, path, metadata={"locos_tl": '{"format": 1}'})
    with pytest.raises(ResultFileError, match=r"x\.safetensors: not a readable"):
        files.read_arrays(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"format": 2}', r"written by a newer locos_tl \(format 2\); update locos_tl"),
        ('{"format": "1"}', "names no format version"),
        ('{"format": true}', "names no format version"),
        ('{"format": 0}', "names no format version"),
        ("{}", "names no format version"),
        ("[1]", "metadata cannot be read"),
        ("{", "metadata cannot be read"),
        ('{"format": 1, "x": NaN}', "metadata cannot be read"),
        ('{"format": 1, "format": 1}', "occurs twice"),
        ("[" * 100_000, "metadata cannot be read"),
    ],
)
def test_newer_and_damaged_headers_are_refused_by_name(tmp_path, header, message):
    path = tmp_path / "x.safetensors"
    write_header(path, {"locos_tl": header})
    with pytest.raises(ResultFileError, match=rf"x\.safetensors: .*{message}"):
        files.read_arrays(path)


@pytest.mark.parametrize("name", ["x.safetensors", "x.json", "x.jsonl"])
def test_pickles_are_never_opened(tmp_path, name):
    """A result file from a stranger must not be able to run code."""
    path, mark = tmp_path / name, tmp_path / "executed"
    readers = {
        "x.safetensors": files.read_arrays,
        "x.json": files.read_json,
        "x.jsonl": lambda p: list(files.read_jsonl(p)),
    }
    for protocol in (0, 5):
        path.write_bytes(pickle.dumps(Bomb(mark), protocol=protocol))
        with pytest.raises(ResultFileError, match="x\\."):
            readers[name](path)
    assert not mark.exists()
    pickle.loads(path.read_bytes()).close()
    assert mark.exists()  # the pickle does what the test thinks it does


def test_numpy_object_arrays_are_refused(tmp_path):
    """An .npz or .npy can carry a pickle; neither is a result file."""
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ResultFileError, match=r"x\.npz: not a readable safetensors file"):
        files.read_arrays(tmp_path / "x.npz")
