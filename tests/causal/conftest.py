from __future__ import annotations

import pytest

from locos_tl.causal.pairs import PromptPair
from tests import tiny


@pytest.fixture(scope="session")
def tiny_pair():
    """Two prompts that differ in three tokens in the middle, and a two-token answer."""

    def build(n: int = 26, first: int = 9, seed: int = 1, **more) -> PromptPair:
        clean = tiny.words(n, seed)
        corrupted = [*clean[:first], *tiny.words(3, seed + 100), *clean[first + 3 :]]
        return PromptPair((*clean, 3, 20), (*corrupted, 3, 20), (n, n + 2), **more)

    return build
