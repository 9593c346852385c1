"""BABILong (Kuratov et al. 2024): bAbI's facts scattered over books.

Read from the published tables, of yours or from the Hub; never bundled. The format does not say where the
facts stand, so these trials have no needle: they are answered and ablated, not scored. `babi` is our own set
of the same kind with every fact tracked.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .haystack import encode_all
from .needle import PromptTemplate, assemble
from .nonliteral import balanced, distinct
from .public import PublicData, dataset_folder
from .tables import find_table, read_rows, text_field
from .trial import Trial, TrialGrid

TASKS = tuple(f"qa{i}" for i in range(1, 21))
LABELS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
"""The places that answer tasks qa1 to qa3; see `scoring.metrics.sole_label`."""
BABILONG_TEMPLATE = PromptTemplate(
    before="",
    after="\n\nAnswer with one word only. {question}",
    cue="\nAnswer:",
)


@dataclass(frozen=True)
class LongStory:
    """A question over a text, before a tokenizer is chosen."""

    text: str
    question: str
    answer: str
    task: str
    template: PromptTemplate
    trial_id: str


def babilong(
    n: int = 100,
    *,
    length: str = "1k",
    tasks: Iterable[str] = ("qa2", "qa3"),
    path: str | Path | None = None,
    repo: str = "RMT-team/babilong",
    seed: int = 42,
    template: PromptTemplate = BABILONG_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Questions of BABILong at one context length, balanced over tasks.

    Args:
        n: number of trials.
        length: config of the published data: "0k" (facts alone), "1k", "2k", "4k" ...
        tasks: splits of the published data: "qa2" (two facts), "qa3" (three facts), others up to "qa20".
        path: a folder with one table (parquet, JSON or JSON lines, with the columns ``input``, ``question``,
            ``target``) for each task, whose path names length and task (``1k/qa2.parquet``, ``data/qa2/1k.json``);
            or, for a single task, the table itself. Default: the Hub's copy.
        repo: Hub id of the copy.
        seed: draws the questions.
        template: the words around the text.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Answers are scored by the metric "subspan", or by the authors' own rule, `scoring.metrics.sole_label`.

    Raises:
        FileNotFoundError: when the data are neither at ``path`` nor cached nor to be had from the Hub.
        ResultFileError: for a malformed table, naming row and column.
        ValueError: for an unknown task, or more trials than questions.
    """
    tasks = (tasks,) if isinstance(tasks, str) else tuple(dict.fromkeys(tasks))
    if not tasks or (unknown := [task for task in tasks if task not in TASKS]):
        raise ValueError(f"unknown task {unknown[0]!r}; there are qa1 to qa20" if tasks else "give at least one task")
    folder = dataset_folder(published(repo, length, tasks), path)
    if folder.is_file() and len(tasks) > 1:
        raise ValueError(f"{folder} is one table, but there are {len(tasks)} tasks: give a folder, or one task")
    rng = random.Random(seed)
    order = balanced(tasks, n, rng)
    queues = {}
    for task in tasks:
        table = find_table(folder, length, task)
        if count := order.count(task):
            queues[task] = iter(distinct(list(read_rows(table)), count, rng, f"{table}"))
    recipes = []
    for number, task in enumerate(order):
        where, row = next(queues[task])
        recipes.append(
            LongStory(
                text=text_field(row, "input", where).strip(),
                question=text_field(row, "question", where).strip(),
                answer=text_field(row, "target", where).strip(),
                task=task,
                template=template,
                trial_id=f"babilong-{seed}-{number:04d}-{length}-{task}",
            )
        )
    return TrialGrid(recipes, build_long_story, tokenizer)


def build_long_story(recipe: LongStory, tokenizer: Any) -> Trial:
    """The text in its template, without a needle."""
    ids = encode_all(tokenizer, [recipe.text])[0]
    return assemble(
        tokenizer,
        recipe.template,
        [ids],
        {},
        question=recipe.question,
        answer=recipe.answer,
        trial_id=recipe.trial_id,
        kind=recipe.task,
        length=len(ids),
    )


def published(repo: str, length: str, tasks: Iterable[str]) -> PublicData:
    """The tables of one length on the Hub, in either layout: a folder for each length or for each task."""
    return PublicData(
        name="babilong",
        repo_id=repo,
        files=tuple(f"{length}/{task}-*|data/{length}/{task}-*|data/{task}/{length}.*" for task in tasks),
        licence="Its card on the Hub names the licence.",
    )
