"""Literal needles in a haystack, in the format of Wu et al. (2025), "Retrieval Head".

A folder holds ``needles.jsonl`` (``needle``, ``question``, ``real_needle``) and one haystack per needle:
folders of ``.txt`` files (``part1``, ``part2``, ...) or the files themselves, in the order of the numbers
in their names; a single one serves every needle.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..results.files import ResultFileError, read_jsonl
from .haystack import Haystack, read_haystacks, split_sentences
from .needle import PromptTemplate, Recipe, build
from .nonliteral import DEPTHS, balanced, grid_cells
from .public import existing, numbered
from .tables import text_field
from .trial import TrialGrid

LENGTHS = (500, 1_000, 2_000, 4_000)
NIAH_TEMPLATE = PromptTemplate(
    before="Read the text and answer the question in the words of the text.\n\n",
    after="\n\nQuestion: {question}",
)
_NEEDLES = "needles.jsonl"


@dataclass(frozen=True)
class LiteralNeedle:
    """A sentence, the part of it that answers (``real``), and the question."""

    text: str
    real: str
    question: str


def niah(
    n: int = 60,
    *,
    path: str | Path | None = None,
    lengths: Iterable[int] = LENGTHS,
    depths: Iterable[float] = DEPTHS,
    seed: int = 42,
    haystack: str | Path | Iterable[str | Path] | None = None,
    span: str = "needle",
    template: PromptTemplate = NIAH_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Literal retrieval: the question repeats the needle's words and the answer is to be copied.

    Args:
        n: number of trials.
        path: folder with ``needles.jsonl`` and haystacks (``haystack_for_detect`` of the published code), or
            the file itself together with ``haystack``.
        lengths: context lengths in tokens; `nolima.LENGTHS` is the published range.
        depths: relative needle positions, 0 to 1.
        seed: draws needles and cells.
        haystack: text files for every needle instead of the folder's own.
        span: what is tracked as the needle: the whole inserted sentence (default), or only ``real_needle``,
            the answering part, as Wu et al. count it; the rest of the sentence is then context.
        template: the words around the context.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Raises:
        FileNotFoundError: without ``path``: there is no data set of this kind to fetch.
        ResultFileError: for a malformed file, naming line and field.
        ValueError: for an unknown ``span`` or impossible lengths and depths.
    """
    if span not in ("needle", "real_needle"):
        raise ValueError(f"unknown span {span!r}; choose from needle, real_needle")
    source = _needles_file(path)
    needles = read_needles(source)
    haystacks = _common(haystack, needles) if haystack is not None else find_haystacks(source, len(needles))
    rng = random.Random(seed)
    drawn = zip(balanced(range(len(needles)), n, rng), grid_cells(lengths, depths, n, rng), strict=True)
    turn = [0] * len(needles)
    recipes = []
    for number, (which, (length, depth)) in enumerate(drawn):
        needle, choice = needles[which], haystacks[which]
        lead, trail = _around(needle, f"{source}, needle {which + 1}") if span == "real_needle" else ("", "")
        recipes.append(
            Recipe(
                needle=needle.real if span == "real_needle" else needle.text,
                question=needle.question,
                answer=needle.real,
                haystack=choice[turn[which] % len(choice)],
                length=length,
                depth=depth,
                template=template,
                trial_id=f"niah-{seed}-{number:04d}-{which + 1}",
                needle_id=str(which + 1),
                kind="literal",
                literal=True,
                lead=lead,
                trail=trail,
            )
        )
        turn[which] += 1
    return TrialGrid(recipes, build, tokenizer)


def read_needles(path: Path) -> list[LiteralNeedle]:
    """Read a ``needles.jsonl``.

    Raises:
        ResultFileError: naming the needle and the field that is wrong.
    """
    needles = []
    for number, row in enumerate(read_jsonl(path), 1):
        where = f"{path}, needle {number}"
        if not isinstance(row, dict):
            raise ResultFileError(f"{where}: not a JSON object")
        needles.append(
            LiteralNeedle(*(text_field(row, name, where).strip() for name in ("needle", "real_needle", "question")))
        )
    if not needles:
        raise ResultFileError(f"{path}: holds no needles")
    return needles


def find_haystacks(source: Path, n_needles: int) -> list[list[Haystack]]:
    """For every needle the haystack of its number beside ``needles.jsonl``; a single one serves all.

    Raises:
        ResultFileError: when there is none, or their number is not that of the needles.
    """
    folder = source.parent
    parts = numbered([part for part in folder.iterdir() if part.is_dir() and any(part.glob("*.txt"))])
    files = numbered(list(folder.glob("*.txt")))
    found = [_whole(part) for part in parts] if parts else read_haystacks(files) if files else []
    if len(found) not in (1, n_needles):
        raise ResultFileError(
            f"{folder}: {len(found)} haystacks for {n_needles} needles; there must be one for each needle, or one for "
            "all: folders of .txt files, or .txt files (or give text files: haystack=...)"
        )
    return [[found[i % len(found)]] for i in range(n_needles)]


def _whole(folder: Path) -> Haystack:
    """All files of a folder as one text."""
    texts = read_haystacks(numbered(list(folder.glob("*.txt"))))
    return Haystack(folder.name, split_sentences("\n\n".join("".join(text.sentences) for text in texts)))


def _common(haystack: str | Path | Iterable[str | Path], needles: list[LiteralNeedle]) -> list[list[Haystack]]:
    texts = read_haystacks(haystack)
    return [texts for _ in needles]


def _needles_file(path: str | Path | None) -> Path:
    if path is None:
        raise FileNotFoundError(
            f"niah: no data set of this kind is fetched for you: give a folder with {_NEEDLES} and haystacks, "
            "path=... (--path on the command line), for instance haystack_for_detect of the Retrieval_Head repository. "
            "The bundled literal trials need none: load_trials('nonliteral', kinds=['literal'])"
        )
    found = existing(path)
    if found.is_file():
        return found
    for folder in (found, *sorted(inner for inner in found.iterdir() if inner.is_dir())):
        if (folder / _NEEDLES).is_file():
            return folder / _NEEDLES
    raise FileNotFoundError(f"{found} holds no {_NEEDLES}")


def _around(needle: LiteralNeedle, where: str) -> tuple[str, str]:
    """The words of the sentence in front of and behind ``real_needle``."""
    if (times := needle.text.count(needle.real)) != 1:
        raise ResultFileError(
            f"{where}, field 'real_needle': occurs {times} times in the needle, so it cannot be the span; "
            "use span='needle'"
        )
    lead, _, trail = needle.text.partition(needle.real)
    return lead, trail
