"""The tiny random models of `locos_tl.models.tiny`, and trials for them."""

from __future__ import annotations

from typing import Any

from locos_tl.models.tiny import _COMMON, CONFIGS, D_VOCAB, FAMILIES, SLIDING, hf_model, tokenizer
from locos_tl.models.tiny import word_ids as words
from locos_tl.trials.trial import Trial

__all__ = ["CONFIGS", "D_VOCAB", "FAMILIES", "SLIDING", "_COMMON", "hf_model", "tokenizer", "trial", "words"]


def trial(
    n: int = 30, needle: tuple[int, int] = (5, 11), generated: tuple[int, ...] = (7, 8, 9, 3, 10), **about: Any
) -> Trial:
    """A teacher-forced trial whose answer "Yuki" (token 3) is generated at step 3."""
    ids = words(n, seed=n)
    ids[needle[0] + 1] = 3
    options = {"answer": "Yuki", "generated_ids": generated, "trial_id": f"tiny-{n}-{needle[0]}"} | about
    return Trial.from_ids(ids, needle=needle, **options)
