"""Whatever is in a file, it becomes a usable object or an error that names the file; nothing in it is run or obeyed.

Files are damaged byte by byte, field by field and array by array.
"""

from __future__ import annotations

import ast
import copy
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as to_bytes

import locos_tl
from locos_tl.cli import errors, output
from locos_tl.results.dissociation import Dissociation, dissociation
from locos_tl.results.effects import Effects
from locos_tl.results.files import ResultFileError, read_arrays, read_json, read_jsonl, to_json, write_json, write_jsonl
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.late_layers import LateLayers, late_layers
from locos_tl.results.reading import HeadReading
from locos_tl.results.scores import Scores
from locos_tl.results.sweep import Sweep
from locos_tl.scoring.records import RecordStore, TrialRecord
from locos_tl.trials.load import load_trials
from locos_tl.trials.nonliteral import custom
from locos_tl.trials.trial import read_trials, save_trials
from tests import tiny
from tests.results import conftest as results

FUZZ = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NEEDLE = {"id": "1", "relation": "lives", "needle": "{CHAR} wohnt in Köln.", "question": "Wer?", "answer": "Yuki"}
TRIAL = tiny.trial(40, depth=0.5, aliases=("Yuki San",), supports=((5, 11),))
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 0.5, 2**40, 10**400, 1e308, [], {}, [[]], {"a": None}, "", "x" * 9000, "7", "NaN"),
    *("<script>alert(1)</script>", "../../../etc/passwd", "/etc/passwd", "a\x1b[31mb\n\x00", "\ud800", "nul\u202e"),
    *(json.loads("[" * 300 + "]" * 300), [1, 2, 3], [["a", 1]], [-1, 10**30]),
)


# --- one good file of each kind -----------------------------------------------------------------------


def reading() -> HeadReading:
    zeros = np.zeros
    return HeadReading(
        trial_id="t0",
        ids=tuple(range(8)),
        tokens=tuple(f"w{i}" for i in range(8)),
        n_prompt=6,
        needle_span=(2, 4),
        answer_steps=(1,),
        n_keys=7,
        variants=("paper",),
        shared=np.arange(3),
        attention=zeros((2, 2, 3)),
        phi=zeros((1, 2, 2, 3)),
        own=np.full((2, 2, 1), -1),
        own_attention=zeros((2, 2, 1)),
        own_phi=zeros((1, 2, 2, 1)),
        phi_total=zeros((1, 2, 2)),
        promoted=zeros((2, 2, 1), int),
        promoted_logits=zeros((2, 2, 1)),
        suppressed=zeros((2, 2, 1), int),
        suppressed_logits=zeros((2, 2, 1)),
        vocabulary={0: "w0"},
        about={"question": "Who?"},
    )


def means(path: Path) -> None:
    import torch

    from locos_tl.causal.means import HeadMeans

    site = {"q": torch.zeros(2, 2, 3), "z": torch.ones(2, 2, 3)}
    HeadMeans(site, {at: v[None] for at, v in site.items()}, 10, ("abc",), "f00", 42, ()).save(path)


def load_means(path: Path) -> object:
    from locos_tl.causal.means import HeadMeans

    return HeadMeans.load(path)


def write_record(path: Path) -> None:
    maps = {"locos": np.zeros((2, 2), np.float32)}
    record = TrialRecord(results.outcome(TRIAL.trial_id), maps, {"locos": np.ones((2, 2), bool)})
    store = RecordStore(path.parent, {})
    store.write(TRIAL, record)
    store.path(TRIAL).replace(path)


def read_record(path: Path) -> object:
    class Store(RecordStore):
        def path(self, trial: Any) -> Path:
            return path

    return Store(path.parent, {}).read(TRIAL)


def save_late(path: Path) -> None:
    maps = {"locos": results.random_scores(3), "total": results.random_scores(3, seed=1)}
    late_layers(maps, n_resamples=20, n_permutations=20).save(path)


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a good one is written, how it is read, and how its object is written again."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    again: Callable[[Any, Path], object] | None = None


def saved(held: Any, path: Path) -> object:
    return held.save(path)


def save_all(held: Any, path: Path) -> object:
    return save_trials(path, held)


KINDS = {
    "HeadScores": Kind("x.safetensors", results.random_scores().save, HeadScores.load, saved),
    "Effects": Kind("x.safetensors", results.effects().save, Effects.load, saved),
    "LateLayers": Kind("x.safetensors", save_late, LateLayers.load, saved),
    "HeadReading": Kind("x.safetensors", lambda path: reading().save(path), HeadReading.load, saved),
    "HeadMeans": Kind("x.safetensors", means, load_means, saved),
    "record": Kind("x.safetensors", write_record, read_record),
    "Sweep": Kind("x.jsonl", results.sweep().save, Sweep.load, saved),
    "Dissociation": Kind(
        "x.json",
        lambda path: dissociation(results.sweep(), results.sweep(), control_metric="rouge_l").save(path),
        Dissociation.load,
        saved,
    ),
    "head list": Kind(
        "x.json",
        lambda path: results.random_scores().to_head_list(path, envelope=True),
        HeadScores.from_head_list,
        lambda held, path: held.to_head_list(path, envelope=True),
    ),
    "gates": Kind(
        "x.tsv",
        results.random_scores().to_kv_gates,
        lambda path: HeadScores.from_kv_gates(path, n_heads=4),
        lambda held, path: held.to_kv_gates(path),
    ),
    "trials": Kind("x.jsonl", lambda path: save_trials(path, [TRIAL, tiny.trial(41)]), read_trials, save_all),
    "needles": Kind("x.jsonl", lambda path: write_jsonl(path, [NEEDLE, NEEDLE | {"id": "2"}]), custom),
    "either": Kind("x.jsonl", lambda path: save_trials(path, [TRIAL]), load_trials),
}
BINARY = [name for name, kind in KINDS.items() if kind.name.endswith(".safetensors")]
JSON = [name for name, kind in KINDS.items() if ".json" in kind.name]


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, Path]:
    """A good file of every kind."""
    found = {}
    for name, kind in KINDS.items():
        found[name] = tmp_path_factory.mktemp("good") / kind.name
        kind.write(found[name])
    return found


def tried(read: Callable[[Path], Any], path: Path) -> tuple[Any, ValueError | None]:
    """What a reader gives, or how it refuses."""
    try:
        return read(path), None
    except ValueError as error:
        return None, error


def loads_or_is_refused(kind: Kind, path: Path) -> None:
    """The one thing that must hold of every file."""
    held, refused = tried(kind.read, path)
    if refused is not None:
        assert path.name in str(refused), refused
        assert len(str(refused)) < 1000
        assert "\n" not in errors.told(refused)
        return
    repr(held)
    if hasattr(held, "_repr_html_") and not isinstance(held, LateLayers):
        assert "<script" not in held._repr_html_()
    if kind.again:
        kind.again(held, path.with_name("again" + path.suffix))
        assert type(kind.read(path.with_name("again" + path.suffix))) is type(held)


@pytest.mark.parametrize("name", KINDS)
def test_good_files_load(good, name):
    kind = KINDS[name]
    kind.read(good[name])
    loads_or_is_refused(kind, good[name])


# --- bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@FUZZ
@given(data=st.data())
def test_damaged_bytes(good, name, data):
    """Flipped, cut off, or with something put between."""
    content = bytearray(good[name].read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "flip header", "cut", "insert"])):
        case "flip":
            content[place] = data.draw(st.integers(0, 255))
        case "flip header":
            content[place % min(len(content), 400)] = data.draw(st.integers(0, 255))
        case "cut":
            content = content[:place]
        case _:
            content[place:place] = data.draw(st.binary(min_size=1, max_size=8))
    path = good[name].with_name("damaged" + good[name].suffix)
    path.write_bytes(bytes(content))
    loads_or_is_refused(KINDS[name], path)


# --- fields -------------------------------------------------------------------------------------------


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every part of a JSON value, no more than three of a list."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [here, *(place for key, part in inner for place in places(part, (*here, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with another part at a place; without the part for `...`."""
    if not place:
        return None if new is ... else new
    value = copy.deepcopy(value)
    part = value
    for key in place[:-1]:
        part = part[key]
    if new is ...:
        del part[place[-1]]
    else:
        part[place[-1]] = new
    return value


def draw_change(data: Any, value: Any) -> Any:
    place = data.draw(st.sampled_from(places(value)))
    return changed(value, place, data.draw(st.sampled_from([*HOSTILE, ...])))


@pytest.mark.parametrize("name", JSON)
@FUZZ
@given(data=st.data())
def test_hostile_fields(good, name, data):
    path = good[name].with_name("hostile" + good[name].suffix)
    if path.suffix == ".json":
        path.write_text(json.dumps(draw_change(data, read_json(good[name]))), encoding="utf-8")
    else:
        rows = draw_change(data, list(read_jsonl(good[name])))
        rows = rows if isinstance(rows, list) else [rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    loads_or_is_refused(KINDS[name], path)


@pytest.mark.parametrize("name", BINARY)
@FUZZ
@given(data=st.data())
def test_hostile_metadata(good, name, data):
    arrays, meta = read_arrays(good[name])
    path = good[name].with_name("hostile.safetensors")
    path.write_bytes(to_bytes(arrays, metadata={"locos_tl": json.dumps(draw_change(data, meta))}))
    loads_or_is_refused(KINDS[name], path)


ODD_ARRAYS = (
    lambda a: a.reshape(-1),
    lambda a: a[None],
    lambda a: a[..., :0],
    lambda a: a.reshape(-1)[0],
    lambda a: a[:1],
    lambda a: a.astype(np.float64) * np.float64(1e308),
    lambda a: np.full(a.shape, np.nan, np.float32),
    lambda a: np.full(a.shape, np.inf, np.float16),
    lambda a: np.full(a.shape, -7, np.int64),
    lambda a: np.full(a.shape, 2**40, np.int64),
    lambda a: np.full(a.shape, 1, np.complex64),
    lambda a: np.zeros(a.shape, bool),
    None,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BINARY)
@FUZZ
@given(data=st.data())
def test_odd_arrays(good, name, data):
    arrays, meta = read_arrays(good[name])
    which, change = data.draw(st.sampled_from(sorted(arrays))), data.draw(st.sampled_from(ODD_ARRAYS))
    array = arrays.pop(which)
    if change is not None:
        arrays[which] = np.ascontiguousarray(change(array))
    path = good[name].with_name("odd.safetensors")
    path.write_bytes(to_bytes(arrays, metadata={"locos_tl": to_json(meta)}))
    loads_or_is_refused(KINDS[name], path)


# --- run folders --------------------------------------------------------------------------------------


@FUZZ
@given(data=st.data())
def test_damaged_run_folders(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damaged-run"
    results.run(detectors=("locos",), n_passed=2, n_total=3).save(folder)
    path = folder / data.draw(st.sampled_from(["run.json", "outcomes.jsonl"]))
    value = read_json(path) if path.suffix == ".json" else list(read_jsonl(path))
    value = draw_change(data, value)
    lines = value if path.suffix == ".jsonl" and isinstance(value, list) else [value]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    held, refused = tried(Scores.load, folder)
    if refused is not None:
        assert isinstance(refused, ResultFileError)
        assert "damaged-run" in str(refused)
        return
    repr(held)
    assert "<script" not in held._repr_html_()
    held.outcomes_frame()
    Scores.load(held.save(folder.with_name("damaged-again")))


def test_detectors_of_different_sizes_are_no_run(tmp_path):
    folder = results.run().save(tmp_path / "run")
    results.random_scores(3, 2, 4, detector="wu").save(folder / "scores" / "wu")
    with pytest.raises(ResultFileError, match=r"models of different sizes, \[\(2, 4\), \(3, 4\)\]"):
        Scores.load(folder)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "..", "a/b", "a\\b", "", "C:", "\x00", ".hidden"])
def test_names_lead_nowhere(tmp_path, name):
    """A detector's name is a file name: none leads out of the folder."""
    folder = results.run().save(tmp_path / "run")
    run = read_json(folder / "run.json")
    write_json(folder / "run.json", run | {"detectors": [name]})
    with pytest.raises(ResultFileError, match=r"run\.json: the detector .* is not a plain name"):
        Scores.load(folder)
    with pytest.raises(ResultFileError, match="not a plain name"):
        Scores({name: results.random_scores()}, ()).save(tmp_path / "other")


# --- shapes of JSON -----------------------------------------------------------------------------------


def test_deep_json_is_refused_as_it_is_read(tmp_path):
    """What can be read can also be written again; a text full of brackets is not deep."""
    for depth, fits in ((90, True), (150, False), (900, False), (100_000, False)):
        path = tmp_path / "deep.json"
        path.write_text('{"a": ' + "[" * depth + "]" * depth + "}", encoding="utf-8")
        if fits:
            write_json(path, read_json(path))
            continue
        with pytest.raises(ResultFileError, match=r"deep\.json: not a usable JSON file"):
            read_json(path)
    write_json(path, {"a": "[" * 1000, "b": [[i] for i in range(1000)]})
    assert read_json(path)["a"] == "[" * 1000


def test_long_lines_are_read(tmp_path):
    path = tmp_path / "needles.jsonl"
    write_jsonl(path, [NEEDLE | {"question": "Wer? " * 400_000}])
    assert len(custom(path)) == 1
    path.write_bytes(b"x" * 5_000_000)
    with pytest.raises(ResultFileError, match=r"needles\.jsonl, line 1") as refused:
        custom(path)
    assert len(str(refused.value)) < 300


def test_half_characters_are_refused_as_they_are_read(tmp_path):
    """JSON can spell half of a character, which no file can hold."""
    path = tmp_path / "needles.jsonl"
    path.write_text(json.dumps(NEEDLE | {"question": "Wer \ud83d?"}), encoding="ascii")
    with pytest.raises(ResultFileError, match=r"needles\.jsonl, line 1: .*half of a character"):
        custom(path)
    path.write_text(json.dumps(NEEDLE | {"question": "Wer \U0001f600 \\ud83d?"}), encoding="ascii")
    assert len(custom(path)) == 1


# --- code and control characters ----------------------------------------------------------------------


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", KINDS)
def test_no_reader_unpickles(tmp_path, name):
    """Neither a bare pickle, nor one in the archives of torch and numpy."""
    kind, mark = KINDS[name], tmp_path / "executed"
    bomb = pickle.dumps(Bomb(mark))
    path = tmp_path / kind.name
    path.write_bytes(bomb)
    with pytest.raises(ResultFileError, match=path.name):
        kind.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", bomb)
    with pytest.raises(ResultFileError, match=path.name):
        kind.read(path)
    assert not mark.exists()


FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@cache
def library() -> list[tuple[Path, ast.Module]]:
    root = Path(locos_tl.__file__).parent
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in root.rglob("*.py")]


def test_the_library_knows_no_way_to_unpickle():
    for path, tree in library():
        if path.name == "executors.py":  # speaks to processes of its own, and reads no file
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not FORBIDDEN & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "torch.load", "np.load", "numpy.load", "pd.read_pickle"), path
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert given.get("allow_pickle", "False") == "False", path
                assert given.get("trust_remote_code", "False") == "False", path


def test_every_text_file_is_opened_with_an_encoding():
    """The locale must not decide how a file is read."""
    for path, tree in library():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [ast.unparse(argument) for argument in node.args]
            named = any(keyword.arg == "encoding" for keyword in node.keywords)
            if called in ("read_text", "write_text"):
                assert named, f"{path}:{node.lineno}"
            if called in ("open", "fdopen") and given:
                binary = any("b'" in mode or mode.startswith("os.") for mode in given)
                assert named or binary, f"{path}:{node.lineno}"


def test_messages_obey_no_control_character(tmp_path, capsys):
    """A key or name from a stranger's file must not move the cursor, nor look like another line."""
    path = tmp_path / "sweep.jsonl"
    write_jsonl(path, [{"format": 1, "kind": "Sweep", "rankings": {}, "provenance": {}}, {"\x1b[2J\nfine": 1}])
    with pytest.raises(ResultFileError) as refused:
        Sweep.load(path)
    assert "\x1b" not in errors.told(refused.value)
    assert "\n" not in errors.told(refused.value)
    assert errors.told(ValueError("a\x1b[2Jb")) == "a\\x1b[2Jb"
    output.print_rows([{"na\x1b[2Jme": "x\ny"}], False, title="t\x07")
    assert capsys.readouterr().out == "t\\x07\nna\\x1b[2Jme\nx\\ny\n"
