"""`corrupt`: the same prompt without the fact, token for token as long."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ..trials.haystack import Haystack, bundled_haystack, encode_all, tokenised
from ..trials.needle import fingerprint
from ..trials.nonliteral import bundled_names, bundled_needles
from ..trials.trial import Trial, TrialGrid

WAYS = ("filler", "swap")


def corrupt(
    trial: Trial,
    how: str = "filler",
    tokenizer: Any = None,
    *,
    seed: int = 42,
    pool: Sequence[str] | None = None,
) -> Trial:
    """The trial with its needle replaced by as many other tokens; everything outside the needle is identical.

    Of several supporting facts only the needle, which holds the answer, is replaced.

    Args:
        trial: a trial with a needle.
        how: "filler": haystack prose that does not hold the answer; "swap": a sentence that says another thing about
            another name: a needle of the same relation where one has the right length, else of any other; where
            none has, the needle itself about another name.
        tokenizer: the trial's tokenizer, or a `HookedModel`; default: the bundled model's.
        seed: draws filler or sentence, for each trial anew.
        pool: sentences to swap in, instead of the bundled needles; needed for needles of your own.

    Returns:
        A trial whose ``needle`` is the new text; ``answer`` is still the gold answer of the clean trial.

    Raises:
        ValueError: when the trial has no needle, is of another tokenizer, or no sentence of the pool has the
            needle's number of tokens.
    """
    if how not in WAYS:
        raise ValueError(f"how must be one of {', '.join(WAYS)}, got {how!r}")
    if trial.needle_span is None:
        raise ValueError(f"trial {trial.trial_id!r} has no needle, so there is nothing to corrupt")
    if tokenizer is None and not trial.tokenizer:
        raise ValueError(f"trial {trial.trial_id!r} does not tell its tokenizer: give tokenizer=model")
    tokenizer = getattr(tokenizer, "tokenizer", None) or tokenizer or TrialGrid((), lambda *_: trial).tokenizer
    if trial.tokenizer and trial.tokenizer != fingerprint(tokenizer):
        raise ValueError(f"trial {trial.trial_id!r} was made for another tokenizer: give tokenizer=model")
    start, end = trial.needle_span
    spaced = tokenizer.decode(list(trial.prompt_ids[start:end]))[:1].isspace()
    rng = random.Random(f"{seed}-{trial.trial_id}-{how}")
    if how == "filler":
        ids = _filler(trial, tokenizer, end - start, spaced, rng)
    else:
        ids = _swapped(trial, tokenizer, end - start, spaced, rng, pool)
    prompt = (*trial.prompt_ids[:start], *ids, *trial.prompt_ids[end:])
    return replace(trial, prompt_ids=prompt, needle=tokenizer.decode(ids).strip(), generated_ids=None)


@cache
def _prose(spaced: bool) -> Haystack:
    """The bundled prose, every sentence with or without a space in front."""
    return Haystack("prose", tuple((" " if spaced else "") + s.strip() for s in bundled_haystack().sentences))


def _filler(trial: Trial, tokenizer: Any, n: int, spaced: bool, rng: random.Random) -> list[int]:
    """n tokens of prose: one whole sentence where one fits."""
    prose = _prose(spaced)
    sentences = list(zip(prose.sentences, tokenised(prose, tokenizer), strict=True))
    rng.shuffle(sentences)
    # Sentences of the right length first; else as many as are needed, cut.
    sentences.sort(key=lambda pair: len(pair[1]) != n)
    ids: list[int] = []
    for text, tokens in sentences:
        if not _tells(text, trial):
            ids += tokens if not ids or spaced else encode_all(tokenizer, [" " + text])[0]
        if len(ids) >= n:
            break
    return ids[:n]


def _tells(sentence: str, trial: Trial) -> bool:
    """True when a sentence holds the answer or an alias of it."""
    return any(Haystack("sentence", (sentence,)).contains(answer) for answer in trial.answers)


def _swapped(
    trial: Trial, tokenizer: Any, n: int, spaced: bool, rng: random.Random, pool: Sequence[str] | None
) -> list[int]:
    """A sentence of n tokens about somebody else."""
    tried = 0
    for sentences in _candidates(trial, pool):
        usable = [s for s in sentences if not _tells(s, trial)]
        rng.shuffle(usable)
        tried += len(usable)
        for ids in encode_all(tokenizer, [(" " if spaced else "") + s for s in usable]) if usable else ():
            if len(ids) == n:
                return ids
    raise ValueError(
        f"trial {trial.trial_id!r}: none of {tried} sentences to swap in has the needle's {n} tokens; "
        "give pool= with more of them, or use how='filler'"
    )


def _candidates(trial: Trial, pool: Sequence[str] | None) -> Iterable[list[str]]:
    """Sentences about other names: of the same relation first, then any other, last the needle's own."""
    if pool is not None:
        yield list(pool)
        return
    if trial.needle_id not in {needle.needle_id for needle in bundled_needles()}:
        raise ValueError(
            f"trial {trial.trial_id!r} is none of the bundled needles: give pool= with sentences to swap in, or use "
            "how='filler'"
        )
    others = [needle for needle in bundled_needles() if needle.needle_id != trial.needle_id]
    alike = [needle for needle in others if needle.relation == trial.relation]
    for needles in (alike, [needle for needle in others if needle not in alike]):
        yield [needle.text.replace("{CHAR}", name) for needle in needles for name in bundled_names()]
    yield [trial.needle.strip().replace(trial.answer, name) for name in bundled_names()]
