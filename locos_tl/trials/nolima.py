"""NoLiMa (Modarressi et al. 2025): needles and questions that share no words, in shuffled books.

The data (Hub: ``amodaresi/NoLiMa``) are for research only and are never bundled: they are read from a
folder of yours, the Hub's cache or the Hub.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..results.files import ResultFileError, read_json
from .haystack import Haystack, read_haystacks
from .needle import PromptTemplate, Recipe, build
from .nonliteral import absent_names, balanced, grid_cells
from .public import PublicData, dataset_folder, numbered
from .tables import text_field
from .trial import TrialGrid

NOLIMA = PublicData(
    name="nolima",
    repo_id="amodaresi/NoLiMa",
    files=("needlesets/needle_set.json", "haystack/rand_shuffle/*.txt"),
    licence="Its licence allows research use only.",
)
LENGTHS = tuple(round(1_000 + i * 49_000 / 19) for i in range(20))
"""20 context lengths, linear from 1,000 to 50,000 tokens."""
DEPTHS = tuple(i / 9 for i in range(10))
"""10 depths, 0 to 100 %."""
LITERAL_KINDS = frozenset({"direct", "literal"})

_NEEDLE_SET = Path("needlesets") / "needle_set.json"
_BOOKS = (Path("haystack") / "rand_shuffle", Path("haystack") / "rand_shuffle_long", Path("haystack"))
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Entry:
    """One needle of the set: its words with slots, and the tests that fill them."""

    entry_id: str
    needle: str
    questions: Mapping[str, str]
    names: tuple[str, ...]
    tests: Mapping[str, tuple[str, ...]]
    template: PromptTemplate
    relation: str = ""


def nolima(
    n: int = 200,
    *,
    path: str | Path | None = None,
    lengths: Iterable[int] | None = None,
    depths: Iterable[float] | None = None,
    kinds: Iterable[str] = ("onehop",),
    seed: int = 42,
    haystack: str | Path | Iterable[str | Path] | None = None,
    template: PromptTemplate | None = None,
    tokenizer: Any = None,
) -> TrialGrid:
    """Trials of NoLiMa, stratified over needles x tests, kinds, lengths, depths and books.

    The defaults are the published grid: 20 lengths from 1,000 to 50,000 tokens, 10 depths, 200 trials
    (each cell once), seed 42, one-hop.

    Args:
        n: number of trials.
        path: the data set's folder (or one above it), or a ``needle_set.json``; default: the Hub's copy.
        lengths: context lengths in tokens; default `LENGTHS`.
        depths: relative needle positions, 0 to 1; default `DEPTHS`.
        kinds: names of questions in the set: "onehop", "twohop".
        seed: draws needles, tests, names, cells and books.
        haystack: text files of your own instead of the set's books.
        template: the words around the context; default: the set's ``task_template`` and ``system_prompt``.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Names of the ``character_set`` that occur in a haystack are not drawn.

    Raises:
        FileNotFoundError: when the data are neither at ``path`` nor cached nor to be had from the Hub.
        ResultFileError: for a malformed set, naming entry and field.
        ValueError: for a kind that no entry has, or impossible lengths and depths.
    """
    needle_set = find_needle_set(dataset_folder(NOLIMA, path))
    entries = read_entries(needle_set, template)
    haystacks = read_haystacks(haystack if haystack is not None else find_books(needle_set))
    rng = random.Random(seed)
    tests = draw_tests(entries, kinds, n, rng)
    names = draw_names([entry for entry, _, _ in tests], haystacks, needle_set, rng)
    drawn = zip(
        tests,
        names,
        grid_cells(LENGTHS if lengths is None else lengths, DEPTHS if depths is None else depths, n, rng),
        balanced(haystacks, n, rng),
        strict=True,
    )
    recipes = []
    for number, ((entry, test, kind), name, (length, depth), hay) in enumerate(drawn):
        slots = {"CHAR": name, **{str(i): arg for i, arg in enumerate(entry.tests[test], 1)}}
        recipes.append(
            Recipe(
                needle=fill(entry.needle, slots).strip(),
                question=fill(entry.questions[kind], slots),
                answer=name,
                haystack=hay,
                length=length,
                depth=depth,
                template=entry.template,
                trial_id=f"nolima-{seed}-{number:04d}-{entry.entry_id}-{test}-{kind}",
                needle_id=f"{entry.entry_id}/{test}",
                relation=entry.relation,
                kind=kind,
                literal=kind in LITERAL_KINDS,
            )
        )
    return TrialGrid(recipes, build, tokenizer)


def draw_tests(
    entries: Iterable[Entry], kinds: Iterable[str], n: int, rng: random.Random
) -> list[tuple[Entry, str, str]]:
    """n triples (entry, test, kind): kinds equally often, and within a kind every entry x test.

    Raises:
        ValueError: for a kind that no entry has.
    """
    entries, kinds = list(entries), (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not kinds:
        raise ValueError("give at least one kind")
    known = sorted({kind for entry in entries for kind in entry.questions})
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"unknown kind {kind!r}; this set has {', '.join(known)}")
    order = balanced(kinds, n, rng)
    queues = {
        kind: iter(balanced([(e, test) for e in entries if kind in e.questions for test in e.tests], count, rng))
        for kind, count in Counter(order).items()
    }
    return [(*next(queues[kind]), kind) for kind in order]


def draw_names(entries: list[Entry], haystacks: list[Haystack], source: Path, rng: random.Random) -> list[str]:
    """A name for every trial's entry: those of its character set in turn, without names in a haystack.

    Raises:
        ResultFileError: naming the entry all of whose names occur in a haystack.
    """
    queues = {}
    for entry, count in Counter(entry.entry_id for entry in entries).items():
        characters = next(e.names for e in entries if e.entry_id == entry)
        try:
            queues[entry] = iter(balanced(absent_names(characters, haystacks), count, rng))
        except ValueError as error:
            raise ResultFileError(f"{source}, entry {entry!r}, field 'character_set': {error}") from error
    return [next(queues[entry.entry_id]) for entry in entries]


def fill(text: str, slots: Mapping[str, str]) -> str:
    """The text with its slots filled, in one pass (an argument may hold braces)."""
    return _SLOT.sub(lambda match: slots[match[1]], text)


def find_needle_set(found: Path) -> Path:
    """The ``needle_set.json`` at, in, or one folder below ``found``.

    Raises:
        FileNotFoundError: when there is none.
    """
    if found.is_file():
        return found
    folders = [found, *sorted(folder for folder in found.iterdir() if folder.is_dir())]
    for folder in folders:
        if (folder / _NEEDLE_SET).is_file():
            return folder / _NEEDLE_SET
    raise FileNotFoundError(f"{found} holds no {_NEEDLE_SET}: not a folder of NoLiMa")


def find_books(needle_set: Path) -> list[Path]:
    """The haystack files beside a ``needle_set.json``.

    Raises:
        FileNotFoundError: when there are none.
    """
    root = needle_set.parent.parent
    for folder in _BOOKS:
        if books := numbered(list((root / folder).glob("*.txt"))):
            return books
    raise FileNotFoundError(f"{root} holds no {_BOOKS[0]}/*.txt; give text files: haystack=...")


def read_entries(path: Path, template: PromptTemplate | None = None) -> list[Entry]:
    """Read and check a ``needle_set.json``.

    Raises:
        ResultFileError: naming the entry and the field that is wrong.
    """
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise ResultFileError(f"{path}: not a list of entries")
    entries = [_entry(row, f"{path}, entry {i}", template) for i, row in enumerate(rows, 1)]
    ids = Counter(entry.entry_id for entry in entries)
    if twice := [name for name, count in ids.items() if count > 1]:
        raise ResultFileError(f"{path}, field 'id': {twice[0]!r} occurs {ids[twice[0]]} times")
    return entries


def _entry(row: Any, where: str, template: PromptTemplate | None) -> Entry:
    if not isinstance(row, dict):
        raise ResultFileError(f"{where}: not a JSON object")
    entry_id = str(row.get("id", "")).strip()
    if not entry_id:
        raise ResultFileError(f"{where}, field 'id': missing or empty")
    where = f"{where} ({entry_id})"
    needle = text_field(row, "needle", where)
    if "{CHAR}" not in needle:
        raise ResultFileError(f"{where}, field 'needle': holds no {{CHAR}}")
    questions = _table(row, "questions", where)
    for kind in questions:
        text_field(questions, kind, f"{where}, field 'questions'")
    names = _texts(row.get("character_set"), f"{where}, field 'character_set'")
    tests = {
        test: _texts(
            value.get("input_args") if isinstance(value, dict) else None, f"{where}, test {test!r}, 'input_args'"
        )
        for test, value in _table(row, "tests", where).items()
    }
    for test, args in tests.items():
        given = {str(i) for i in range(1, len(args) + 1)}
        for field, text in {"needle": needle, **questions}.items():
            allowed = given | {"CHAR"} if field == "needle" else given
            if missing := set(_SLOT.findall(text)) - allowed:
                raise ResultFileError(
                    f"{where}, field {field!r}: nothing fills {{{min(missing)}}} in test {test!r} ('input_args')"
                )
    relation = row.get("reasoning_type")
    return Entry(
        entry_id=entry_id,
        needle=needle,
        questions=questions,
        names=names,
        tests=tests,
        template=_template(row, where) if template is None else template,
        relation=relation if isinstance(relation, str) else "",
    )


def _template(row: dict[str, Any], where: str) -> PromptTemplate:
    text = text_field(row, "task_template", where)
    if text.count("{haystack}") != 1 or "{question}" not in text.partition("{haystack}")[2]:
        raise ResultFileError(f"{where}, field 'task_template': must hold {{haystack}} once and {{question}} behind it")
    before, _, after = text.partition("{haystack}")
    if "{question}" in before:
        raise ResultFileError(f"{where}, field 'task_template': {{question}} stands before {{haystack}} too")
    system = row.get("system_prompt")
    if not isinstance(system, str | None):
        raise ResultFileError(f"{where}, field 'system_prompt': not text")
    return PromptTemplate(before, after, system if system and system.strip() else None)


def _table(row: Mapping[str, Any], field: str, where: str) -> dict[str, Any]:
    value = row.get(field)
    if not isinstance(value, dict) or not value:
        raise ResultFileError(f"{where}, field {field!r}: missing, empty or not an object")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(x, str) and x.strip() for x in value):
        raise ResultFileError(f"{where}: missing, empty or not a list of texts")
    return tuple(value)
