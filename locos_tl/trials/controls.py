"""Closed-book questions: what a model knows and can work out without a context.

Ablating retrieval heads should leave these answers alone (specificity). Three sets: cities and their countries
(bundled), one-digit arithmetic (generated), and PopQA (Mallen et al. 2023; from a file of yours or the Hub).
Their trials have no needle: they are answered and ablated, not scored.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from ..results.files import ResultFileError
from .needle import PromptTemplate, assemble
from .nonliteral import balanced, distinct
from .public import PublicData, dataset_folder
from .tables import find_table, read_rows, text_field
from .trial import Trial, TrialGrid

POPQA = PublicData(
    name="popqa",
    repo_id="akariasai/PopQA",
    files=("*.tsv|*.parquet|data/*.parquet",),
    licence="Its card on the Hub names the licence.",
)
CITY_TEMPLATE = PromptTemplate(
    before="Answer the question with the name of the country only.\n\n", after="Question: {question}", cue="\nAnswer:"
)
ARITHMETIC_TEMPLATE = PromptTemplate(
    before="Answer with the number only.\n\nQuestion: What is 12 + 11?\nAnswer: 23\n\n",
    after="Question: {question}\nAnswer:",
)
POPQA_TEMPLATE = PromptTemplate(
    before="Answer the question with a name or a few words only.\n\n", after="Question: {question}", cue="\nAnswer:"
)
OPERATIONS = {"addition": "+", "subtraction": "-", "multiplication": "\u00d7"}
_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_TEENS = ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@dataclass(frozen=True)
class Question:
    """A closed-book trial in words, before a tokenizer is chosen."""

    text: str
    answer: str
    aliases: tuple[str, ...]
    relation: str
    template: PromptTemplate
    trial_id: str = ""


def ask(question: Question, tokenizer: Any) -> Trial:
    """The question in its template, with no context between instruction and question."""
    return assemble(
        tokenizer,
        question.template,
        [],
        {},
        question=question.text,
        answer=question.answer,
        aliases=question.aliases,
        trial_id=question.trial_id,
        relation=question.relation,
        kind="closed_book",
    )


def city_country(
    n: int = 100,
    *,
    seed: int = 42,
    template: PromptTemplate = CITY_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """In which country is this city? Bundled facts; other names of a country are aliases.

    Args:
        n: number of trials, at most one for each city.
        seed: draws the cities.
        template: the words around the question.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Raises:
        ValueError: for more trials than cities.
    """
    facts = distinct(bundled_cities(), n, random.Random(seed), "city_country")
    return _grid(
        [
            Question(f"In which country is the city of {city}?", country, aliases, "city-country", template)
            for city, country, aliases in facts
        ],
        f"city-country-{seed}",
        tokenizer,
    )


@cache
def bundled_cities() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The library's own facts: (city, country, other names of the country)."""
    text = files("locos_tl").joinpath("data/controls/cities.jsonl").read_text(encoding="utf-8")
    groups = [json.loads(line) for line in text.splitlines()]
    return tuple((city, group["country"], tuple(group["aliases"])) for group in groups for city in group["cities"])


def arithmetic(
    n: int = 100,
    *,
    operations: Iterable[str] = tuple(OPERATIONS),
    seed: int = 42,
    template: PromptTemplate = ARITHMETIC_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Sums, differences and products of two one-digit numbers; "seven" is as good as "7".

    Left out are results below 0 and those that repeat a number of the question (8 - 4, 5 + 0), which an answer
    that only echoes the question would seem to know.

    Args:
        n: number of trials, balanced over operations; all are different. So no operation can give more than the
            smallest holds, 41 if subtraction is among them: at most 123 trials of all three.
        operations: some of "addition", "subtraction", "multiplication".
        seed: draws the problems.
        template: the words around the question.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Raises:
        ValueError: for an unknown operation, or more trials than there are problems.
    """
    operations = (operations,) if isinstance(operations, str) else tuple(dict.fromkeys(operations))
    if not operations or (unknown := sorted(set(operations) - set(OPERATIONS))):
        wrong = repr(unknown[0]) if operations else "none"
        raise ValueError(f"unknown operation {wrong}; choose from {', '.join(OPERATIONS)}")
    sizes = {name: len(problems(name)) for name in operations}
    smallest = min(sizes, key=sizes.__getitem__)
    if n > (most := len(operations) * sizes[smallest]):
        raise ValueError(
            f"arithmetic is balanced over operations and {smallest} holds {sizes[smallest]} problems, so n={n} cannot "
            f"be had; ask for {most} at most"
        )
    rng = random.Random(seed)
    order = balanced(operations, n, rng)
    pools = {name: iter(distinct(problems(name), order.count(name), rng, name)) for name in operations}
    questions = []
    for name in order:
        left, right, result = next(pools[name])
        text = f"What is {left} {OPERATIONS[name]} {right}?"
        questions.append(Question(text, str(result), (number_word(result),), name, template))
    return _grid(questions, f"arithmetic-{seed}", tokenizer)


def problems(operation: str) -> list[tuple[int, int, int]]:
    """Every problem of an operation: two digits and a result that is not negative and neither of them."""
    compute = {"addition": int.__add__, "subtraction": int.__sub__, "multiplication": int.__mul__}[operation]
    return [(a, b, result) for a, b in product(range(10), repeat=2) if 0 <= (result := compute(a, b)) not in (a, b)]


def number_word(number: int) -> str:
    """A number from 0 to 99 in words.

    >>> number_word(7), number_word(40), number_word(63)
    ('seven', 'forty', 'sixty-three')
    """
    tens, ones = divmod(number, 10)
    if number < 20:
        return (_ONES + _TEENS)[number]
    return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")


def popqa(
    n: int = 200,
    *,
    path: str | Path | None = None,
    seed: int = 42,
    template: PromptTemplate = POPQA_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """PopQA's questions about its most popular subjects: the n rows of largest ``s_pop``.

    Args:
        n: number of trials.
        path: the published table (TSV, CSV, JSON, JSON lines or parquet with the columns ``question``,
            ``possible_answers``, ``s_pop``), or a folder that holds it; default: the Hub's copy.
        seed: shuffles them; which they are, popularity alone decides.
        template: the words around the question.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    A question that stands in several rows is asked once, with the answers of all of them.

    Raises:
        FileNotFoundError: when the data are neither at ``path`` nor cached nor to be had from the Hub.
        ResultFileError: for a malformed table, naming line and column.
        ValueError: for more trials than questions.
    """
    table = find_table(dataset_folder(POPQA, path))
    popular: dict[str, Question] = {}
    for _, question in sorted(_popqa_rows(table, template), key=lambda row: -row[0]):
        known = popular.get(question.text)
        if known is None:
            popular[question.text] = question
        else:
            names = dict.fromkeys((*known.aliases, question.answer, *question.aliases))
            popular[question.text] = replace(known, aliases=tuple(a for a in names if a != known.answer))
    top = list(popular.values())[: max(n, 0)]
    return _grid(distinct(top, n, random.Random(seed), "popqa"), f"popqa-{seed}", tokenizer)


def _popqa_rows(table: Path, template: PromptTemplate) -> Iterable[tuple[float, Question]]:
    """Popularity and question of every row."""
    for where, row in read_rows(table):
        try:
            popularity = float(row["s_pop"])
        except (KeyError, TypeError, ValueError, OverflowError):
            popularity = math.nan
        if not math.isfinite(popularity):
            raise ResultFileError(f"{where}, field 's_pop': missing or not a finite number")
        answers = row.get("possible_answers")
        try:
            answers = json.loads(answers) if isinstance(answers, str) else answers
        except ValueError as error:
            raise ResultFileError(f"{where}, field 'possible_answers': not a JSON list ({error})") from None
        if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
            raise ResultFileError(f"{where}, field 'possible_answers': missing, empty or not a list of texts")
        first, *others = dict.fromkeys(answer.strip() for answer in answers)
        relation = row.get("prop") or ""
        text = text_field(row, "question", where).strip()
        yield popularity, Question(text, first, tuple(others), str(relation), template)


def _grid(questions: list[Question], prefix: str, tokenizer: Any) -> TrialGrid:
    named = [replace(question, trial_id=f"{prefix}-{i:04d}") for i, question in enumerate(questions)]
    return TrialGrid(named, ask, tokenizer)
