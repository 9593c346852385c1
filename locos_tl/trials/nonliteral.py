"""The bundled trials: our own needles, names and prose, asked by meaning or literally."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import cycle, islice
from math import lcm
from pathlib import Path
from typing import Any, TypeVar

from .. import choices
from ..results.files import ResultFileError, read_jsonl
from .haystack import Haystack, bundled_haystack, read_haystacks
from .needle import DEFAULT_TEMPLATE, PromptTemplate, Recipe, build
from .trial import TrialGrid

T = TypeVar("T")
U = TypeVar("U")
KINDS = ("onehop", "twohop", "literal")
LENGTHS = (64, 128, 256, 512)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Needle:
    """A sentence about {CHAR} and the questions that ask for it, by kind."""

    needle_id: str
    relation: str
    text: str
    questions: dict[str, str]


@cache
def bundled_needles() -> tuple[Needle, ...]:
    """The library's own needles, in nine relations that need world knowledge."""
    text = files("locos_tl").joinpath("data/nonliteral/needles.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return tuple(Needle(r["id"], r["relation"], r["needle"], {k: r[k] for k in KINDS}) for r in rows)


@cache
def bundled_names() -> tuple[str, ...]:
    """Answer names; none occurs in the bundled haystack."""
    return tuple(files("locos_tl").joinpath("data/nonliteral/names.txt").read_text(encoding="utf-8").split())


def nonliteral(
    n: int = 60,
    *,
    lengths: Iterable[int] | int = LENGTHS,
    depths: Iterable[float] | float = DEPTHS,
    kinds: Iterable[str] = ("onehop",),
    seed: int = 42,
    haystack: str | Path | Iterable[str | Path] | None = None,
    template: PromptTemplate = DEFAULT_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Trials of the bundled set, balanced over lengths, depths, kinds, needles and names.

    Args:
        n: number of trials.
        lengths: context lengths in tokens.
        depths: relative needle positions, 0 to 1.
        kinds: "onehop", "twohop", "literal"; "literal" is the literal twin of the same needles.
        seed: draws needles, names, cells and the order of the haystack's sentences.
        haystack: text files of your own instead of the bundled prose.
        template: the words around the context.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Grids that differ in one kind only hold the same needles, names and places: twins, trial by trial.

    Raises:
        ValueError: for an unknown kind, an impossible length or depth, or a haystack that cannot be used.
    """
    kinds = _checked_kinds(kinds)
    rng = random.Random(seed)
    haystacks = read_haystacks(haystack) if haystack is not None else five_orders(bundled_haystack(), seed)
    drawn = zip(
        balanced_pairs(bundled_needles(), kinds, n, rng),
        grid_cells(lengths, depths, n, rng),
        balanced(absent_names(bundled_names(), haystacks), n, rng),
        balanced(haystacks, n, rng),
        strict=True,
    )
    recipes = []
    for number, ((needle, kind), (length, depth), name, hay) in enumerate(drawn):
        recipes.append(
            Recipe(
                needle=needle.text.replace("{CHAR}", name),
                question=needle.questions[kind],
                answer=name,
                haystack=hay,
                length=length,
                depth=depth,
                template=template,
                trial_id=f"nonliteral-{seed}-{number:04d}-{needle.needle_id}-{kind}",
                needle_id=needle.needle_id,
                relation=needle.relation,
                kind=kind,
                literal=kind == "literal",
            )
        )
    return TrialGrid(recipes, build, tokenizer)


def custom(
    needles: str | Path,
    n: int | None = None,
    *,
    lengths: Iterable[int] | int = LENGTHS,
    depths: Iterable[float] | float = DEPTHS,
    seed: int = 42,
    haystack: str | Path | Iterable[str | Path] | None = None,
    template: PromptTemplate = DEFAULT_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Your own needles from JSON lines with five fields: id, relation, needle, question, answer.

    ``{CHAR}`` in needle or question is replaced by the answer. A sixth field ``literal`` (true or false)
    is optional.

    Args:
        needles: the file.
        n: number of trials; default: every needle once.
        lengths: context lengths in tokens.
        depths: relative needle positions, 0 to 1.
        seed: draws cells and the order of needles and sentences.
        haystack: text files of your own instead of the bundled prose.
        template: the words around the context.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Raises:
        ResultFileError: naming the needle and the field that is wrong.
    """
    rows = [_five_fields(row, f"{needles}, needle {i}") for i, row in enumerate(read_jsonl(Path(needles)), 1)]
    if not rows:
        raise ResultFileError(f"{needles}: holds no needles")
    n = len(rows) if n is None else n
    rng = random.Random(seed)
    haystacks = read_haystacks(haystack) if haystack is not None else five_orders(bundled_haystack(), seed)
    cells = grid_cells(lengths, depths, n, rng)
    drawn = zip(balanced(rows, n, rng), cells, balanced(haystacks, n, rng), strict=True)
    recipes = []
    for number, (row, (length, depth), hay) in enumerate(drawn):
        answer = row["answer"]
        recipes.append(
            Recipe(
                needle=row["needle"].replace("{CHAR}", answer),
                question=row["question"].replace("{CHAR}", answer),
                answer=answer,
                haystack=hay,
                length=length,
                depth=depth,
                template=template,
                trial_id=f"custom-{seed}-{number:04d}-{row['id']}",
                needle_id=row["id"],
                relation=row["relation"],
                kind="literal" if row.get("literal") else "custom",
                literal=row.get("literal"),
            )
        )
    return TrialGrid(recipes, build, tokenizer)


def five_orders(haystack: Haystack, seed: int) -> list[Haystack]:
    """Five sentence orders of one text, so that trials share prefixes but not one single context."""
    return [haystack.shuffled(seed * 1000 + i) for i in range(5)]


def grid_cells(
    lengths: Iterable[int] | int, depths: Iterable[float] | float, n: int, rng: random.Random
) -> list[tuple[int, float]]:
    """n draws of a length with a depth, balanced over lengths, over depths and over their pairs.

    Raises:
        ValueError: for a length that is not positive or a depth outside 0 to 1.
    """
    lengths = [lengths] if isinstance(lengths, int) else list(lengths)
    depths = [depths] if isinstance(depths, int | float) else [float(x) for x in depths]
    if not lengths or not depths:
        raise ValueError("give at least one length and one depth")
    for length in lengths:
        if int(length) != length or length < 1:
            raise ValueError(f"length {length} is not a positive whole number of tokens")
    for depth in depths:
        if not 0.0 <= depth <= 1.0:
            raise ValueError(f"depth {depth} is outside 0 to 1 (50 % is 0.5)")
    return balanced_pairs(lengths, depths, n, rng)


def absent_names(names: Iterable[str], haystacks: Iterable[Haystack]) -> list[str]:
    """The names that occur in none of the haystacks.

    Raises:
        ValueError: when none is left.
    """
    haystacks = list(haystacks)
    left = [name for name in names if not any(haystack.contains(name) for haystack in haystacks)]
    if not left:
        raise ValueError(f"every name occurs in the haystack ({', '.join(h.name for h in haystacks[:3])})")
    return left


def balanced_pairs(first: Sequence[T], second: Sequence[U], n: int, rng: random.Random) -> list[tuple[T, U]]:
    """n pairs in random order; every first, every second and every pair occurs equally often, give or take one."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    a, b = list(first), list(second)
    rng.shuffle(a)
    rng.shuffle(b)
    period = lcm(len(a), len(b))  # after a period the same pairs would come again: shift the second by one
    pairs = [(a[i % len(a)], b[(i + i // period) % len(b)]) for i in range(n)]
    rng.shuffle(pairs)
    return pairs


def balanced(items: Sequence[T], n: int, rng: random.Random) -> list[T]:
    """n draws in random order in which every item occurs equally often, give or take one."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    pool = list(items)
    rng.shuffle(pool)
    drawn = list(islice(cycle(pool), n))
    rng.shuffle(drawn)
    return drawn


def distinct(items: Sequence[T], n: int, rng: random.Random, name: str) -> list[T]:
    """n different items in random order.

    Raises:
        ValueError: when there are fewer, or n is not positive.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if n > len(items):
        raise ValueError(f"{name} holds {len(items)} questions, so n={n} cannot be had; ask for fewer")
    return rng.sample(list(items), n)


def _checked_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = set(kinds) - set(KINDS)
    if not kinds:
        raise ValueError(f"give at least one kind of {', '.join(KINDS)}")
    if unknown:
        raise ValueError(choices.unknown("kind", min(unknown), KINDS))
    return kinds


def _five_fields(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ResultFileError(f"{where}: not a JSON object")
    for name in ("id", "relation", "needle", "question", "answer"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ResultFileError(f"{where}: the field {name!r} is missing, empty or not text")
    if not isinstance(row.get("literal"), bool | None):
        raise ResultFileError(f"{where}: the field 'literal' is neither true nor false")
    if row["answer"] not in row["needle"].replace("{CHAR}", row["answer"]):
        raise ResultFileError(f"{where}: the answer {row['answer'][:40]!r} does not occur in the needle")
    return row
