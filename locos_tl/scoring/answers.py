"""Did the model answer, and which generated tokens are the answer?

Gate: ROUGE-1 recall of the gold answer in the generated text (with stemming) x 100 above 50, and at
least one answer step. Answer steps: the first place where the gold answer's token ids occur in the
generated ids; else every token that overlaps the first case-insensitive occurrence of its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

GATE_THRESHOLD = 50.0
_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_WORD_END = re.compile(r"[^a-z0-9](?=[a-z0-9]*\Z)", re.IGNORECASE)


@cache
def rouge(kind: str) -> Any:
    """Scorer of "rouge1" or "rougeL", with stemming: ``rouge(kind)(gold, text)`` has precision, recall, fmeasure."""
    from rouge_score import rouge_scorer  # 1 s: it brings nltk along

    scorer = rouge_scorer.RougeScorer([kind], use_stemmer=True)
    return lambda gold, text: scorer.score(gold, text)[kind]


def rouge1_recall(text: str, gold: str) -> float:
    """ROUGE-1 recall of ``gold`` in ``text`` x 100, with stemming; 0 for an empty text."""
    return 100.0 * float(rouge("rouge1")(gold, text).recall)


def decode_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Generated text without special tokens and without a thinking block; "" when cut off inside one."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""
    return _THINKING.sub("", text).strip()


def answer_steps(tokenizer: Any, generated_ids: Sequence[int], answer: str) -> tuple[int, ...]:
    """Indices into ``generated_ids`` of the tokens that make up the answer; empty when it is not there."""
    ids = list(generated_ids)
    first = _thinking_ends(tokenizer, ids)
    golds = answer_token_ids(tokenizer, answer)
    starts = [start for gold in golds if (start := _find(ids, gold, first)) is not None]
    if starts:
        start = min(starts)
        length = max(len(g) for g in golds if ids[start : start + len(g)] == g)
        return tuple(range(start, start + length))
    return _steps_by_text(tokenizer, ids, answer, first)


def answer_token_ids(tokenizer: Any, answer: str) -> list[list[int]]:
    """The answer's own token ids, as a word inside a text and as its beginning."""
    encodings = tokenizer([" " + answer, answer], add_special_tokens=False)["input_ids"]
    return [list(ids) for ids in encodings if ids]


def _find(ids: list[int], gold: list[int], first: int) -> int | None:
    for start in range(first, len(ids) - len(gold) + 1):
        if ids[start : start + len(gold)] == gold:
            return start
    return None


def _steps_by_text(tokenizer: Any, ids: list[int], answer: str, first: int) -> tuple[int, ...]:
    # Offsets come from the growing decoded prefix: decoding token by token would break multi-byte text.
    ends = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    text = tokenizer.decode(ids) if ids else ""
    skip = ends[first - 1] if first else 0
    at = text.lower().find(answer.lower(), skip)
    if at < 0 or len(text.lower()) != len(text):
        return ()
    end = at + len(answer)
    starts = [0, *ends[:-1]]
    return tuple(i for i, (a, b) in enumerate(zip(starts, ends, strict=True)) if i >= first and a < end and b > at)


def _thinking_ends(tokenizer: Any, ids: list[int]) -> int:
    """Index of the first token after a thinking block; len(ids) when the block never closes."""
    text = tokenizer.decode(ids) if ids else ""
    if "<think>" not in text:
        return 0
    for i in range(len(ids)):
        if "</think>" in tokenizer.decode(ids[: i + 1]):
            return i + 1
    return len(ids)


def settled(tokenizer: Any, generated_ids: list[int], answer: str) -> bool:
    """True when further tokens can change neither the gate (passed) nor the answer steps.

    The steps are fixed once the gold ids have occurred contiguously. ROUGE-1 recall counts whole words and only
    grows with more of them, so it is enough that the text up to the last complete word passes.
    """
    if _thinking_ends(tokenizer, generated_ids):
        return False
    golds = answer_token_ids(tokenizer, answer)
    starts = [start for gold in golds if (start := _find(generated_ids, gold, 0)) is not None]
    if not starts:
        return False
    if min(starts) + max(map(len, golds)) > len(generated_ids):
        return False  # a longer spelling of the answer could still complete from the same place
    text = decode_text(tokenizer, generated_ids)
    cut = _WORD_END.search(text)
    return cut is not None and rouge1_recall(text[: cut.start() + 1], answer) > GATE_THRESHOLD
