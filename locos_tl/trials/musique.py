"""MuSiQue (Trivedi et al. 2022): questions of two to four hops over twenty paragraphs.

Read from the published JSON lines, of yours or from the Hub (licence CC BY 4.0); never bundled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..results.files import ResultFileError
from .haystack import encode_all
from .needle import PromptTemplate, assemble
from .nonliteral import distinct
from .public import PublicData, dataset_folder
from .tables import find_table, read_rows, text_field
from .trial import Trial, TrialGrid

MUSIQUE = PublicData(
    name="musique",
    repo_id="dgslibisey/MuSiQue",
    files=("*ans*dev*.jsonl|*validation*|data/*validation*",),
    licence="Its licence is CC BY 4.0.",
)
MUSIQUE_TEMPLATE = PromptTemplate(
    before="Read the passages and answer the question with a name or a few words only.\n\n",
    after="\n\nQuestion: {question}",
    cue="\nAnswer:",
)


@dataclass(frozen=True)
class Passages:
    """A question over paragraphs, before a tokenizer is chosen; ``last_hop`` is the paragraph of the last hop."""

    paragraphs: tuple[str, ...]
    supporting: tuple[int, ...]
    last_hop: int
    question: str
    answer: str
    aliases: tuple[str, ...]
    kind: str
    template: PromptTemplate
    trial_id: str


def musique(
    n: int = 200,
    *,
    path: str | Path | None = None,
    repo: str = MUSIQUE.repo_id,
    seed: int = 42,
    template: PromptTemplate = MUSIQUE_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Answerable questions of MuSiQue's validation split, all paragraphs in the prompt.

    Args:
        n: number of trials.
        path: the published file (``musique_ans_v1.0_dev.jsonl``), or a folder that holds it; default: the Hub's copy.
        repo: Hub id of the copy.
        seed: draws the questions.
        template: the words around the paragraphs.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Every supporting paragraph is tracked in ``supports``; ``needle_span`` is that of the last hop, which
    gives the answer. Score the answers with the metrics "em" and "f1".

    Raises:
        FileNotFoundError: when the data are neither at ``path`` nor cached nor to be had from the Hub.
        ResultFileError: for a malformed file, naming line and field.
        ValueError: for more trials than questions.
    """
    table = find_split(dataset_folder(replace(MUSIQUE, repo_id=repo), path))
    drawn = distinct(list(read_questions(table, template)), n, random.Random(seed), f"{table}")
    named = [replace(p, trial_id=f"musique-{seed}-{i:04d}-{p.trial_id}") for i, p in enumerate(drawn)]
    return TrialGrid(named, build_passages, tokenizer)


def build_passages(recipe: Passages, tokenizer: Any) -> Trial:
    """The paragraphs in their order, an empty line between them."""
    gap = encode_all(tokenizer, ["\n\n"])[0]
    pieces = [encode_all(tokenizer, [text])[0] + gap for text in recipe.paragraphs]
    pieces[-1] = pieces[-1][: len(pieces[-1]) - len(gap)]
    return assemble(
        tokenizer,
        recipe.template,
        pieces,
        {i: recipe.paragraphs[i] for i in recipe.supporting},
        recipe.last_hop,
        question=recipe.question,
        answer=recipe.answer,
        aliases=recipe.aliases,
        trial_id=recipe.trial_id,
        kind=recipe.kind,
        length=sum(map(len, pieces)),
        depth_actual=round(sum(map(len, pieces[: recipe.last_hop])) / sum(map(len, pieces)), 4),
    )


def find_split(found: Path) -> Path:
    """The validation split at or in ``found``; that of the answerable questions, if both are there."""
    for words in (("ans", "dev"), ("ans", "validation"), ("validation",), ("dev",)):
        try:
            return find_table(found, *words)
        except FileNotFoundError:
            continue
    return find_table(found)


def read_questions(path: Path, template: PromptTemplate = MUSIQUE_TEMPLATE) -> Iterator[Passages]:
    """The answerable questions of a file.

    Raises:
        ResultFileError: naming line and field.
    """
    for where, row in read_rows(path):
        answerable = row.get("answerable", True)
        if not isinstance(answerable, bool):
            raise ResultFileError(f"{where}, field 'answerable': neither true nor false")
        if answerable:
            yield _passages(row, where, template)


def _passages(row: dict[str, Any], where: str, template: PromptTemplate) -> Passages:
    paragraphs = _objects(row, "paragraphs", where)
    texts, supporting, by_idx = [], [], {}
    for i, paragraph in enumerate(paragraphs):
        inner = f"{where}, field 'paragraphs', paragraph {i + 1}"
        title, text = (text_field(paragraph, name, inner).strip() for name in ("title", "paragraph_text"))
        texts.append(f"{title}\n{text}")
        by_idx[_index(paragraph, "idx", inner, i)] = i
        if not isinstance(paragraph.get("is_supporting"), bool):
            raise ResultFileError(f"{inner}, field 'is_supporting': neither true nor false")
        if paragraph["is_supporting"]:
            supporting.append(i)
    if not supporting:
        raise ResultFileError(f"{where}, field 'paragraphs': none is supporting, though the question is answerable")
    aliases = row.get("answer_aliases")
    aliases = [] if aliases is None else aliases
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ResultFileError(f"{where}, field 'answer_aliases': not a list of texts")
    answer = text_field(row, "answer", where).strip()
    hops = _objects(row, "question_decomposition", where) if row.get("question_decomposition") else []
    last = by_idx.get(_index(hops[-1], "paragraph_support_idx", f"{where}, last hop", None)) if hops else None
    return Passages(
        paragraphs=tuple(texts),
        supporting=tuple(supporting),
        last_hop=last if last in supporting else _holder(texts, supporting, answer),
        question=text_field(row, "question", where).strip(),
        answer=answer,
        aliases=tuple(a for a in dict.fromkeys(alias.strip() for alias in aliases) if a and a != answer),
        kind=f"{len(hops) or len(supporting)}hop",
        template=template,
        trial_id=str(row.get("id") or ""),
    )


def _holder(texts: list[str], supporting: list[int], answer: str) -> int:
    """The last supporting paragraph that holds the answer, else the last supporting one."""
    return next((i for i in reversed(supporting) if answer.casefold() in texts[i].casefold()), supporting[-1])


def _index(row: dict[str, Any], field: str, where: str, default: int | None) -> Any:
    value = row.get(field, default)
    if isinstance(value, list | dict):
        raise ResultFileError(f"{where}, field {field!r}: not a number")
    return value


def _objects(row: dict[str, Any], field: str, where: str) -> list[dict[str, Any]]:
    value = row.get(field)
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise ResultFileError(f"{where}, field {field!r}: missing, empty or not a list of objects")
    return value
