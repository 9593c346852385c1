"""Prompts that begin alike are read once: a store of key-value caches at the places where prompts part.

1. `boundaries` sorts the prompts of a run, so that those with a common beginning are neighbours, and finds for each
   prompt where it parts from others.
2. Prompts are run in that order. Each is read from one boundary to the next; the cache is kept at every boundary, and
   the next prompt starts at the last one that it shares.

Where a prompt is cut depends on the run's list of prompts alone, not on which of them ran before: a resumed run, or
one shared out over several workers, computes the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .kvcache import HFCache

if TYPE_CHECKING:
    from .hooked import HookedModel

LEAST = 32
"""Tokens between two boundaries below which a stop is not worth it."""
BUDGET = 2**31
"""Bytes of keys and values that a store holds at most."""
PLACES = ("device", "cpu", "off")


def boundaries(prompts: Sequence[Sequence[int]], least: int = LEAST) -> tuple[list[int], list[tuple[int, ...]]]:
    """The order in which prompts share most, and where each is cut.

    Args:
        prompts: token ids of the prompts of a run.
        least: smallest distance between two cuts.

    Returns:
        Places of the prompts in the best order; and for each prompt (in the order given) the lengths of the beginnings
        that it shares with others, ascending.
    """
    order = sorted(range(len(prompts)), key=lambda place: (tuple(prompts[place]), place))
    shared = [_common(prompts[a], prompts[b]) for a, b in itertools.pairwise(order)]
    cuts: list[tuple[int, ...]] = [()] * len(prompts)
    for rank, place in enumerate(order):
        found = {*_falling(shared[rank:]), *_falling(shared[:rank][::-1])}
        cuts[place] = _spaced(sorted(found), least, len(prompts[place]))
    return order, cuts


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _falling(shared: Sequence[int]) -> list[int]:
    """The lengths shared with prompts further and further away, each once."""
    found: list[int] = []
    for length in shared:
        if not found or length < found[-1]:
            found.append(length)
        if length == 0:
            break
    return found


def _spaced(lengths: Sequence[int], least: int, n: int) -> tuple[int, ...]:
    """Lengths at least so far apart, from the shortest on: what all prompts of a group share is the same for all."""
    kept: list[int] = []
    for length in lengths:
        if length - (kept[-1] if kept else 0) >= least and length < n:
            kept.append(length)
    return tuple(kept)


def check_place(place: str) -> None:
    """Refuse an unknown place.

    Raises:
        ValueError: naming those there are.
    """
    if place not in PLACES:
        raise ValueError(f"prefixes must be one of {', '.join(PLACES)}, got {place!r}")


class PrefixStore:
    """The caches of the prompt at hand at its boundaries.

    Args:
        model: whose caches are kept.
        place: "device" to keep them where they are, "cpu" to move them there, "off" to keep none.
        budget: bytes that they may take; beyond it the longest are not kept.
    """

    def __init__(self, model: HookedModel, place: str = "device", budget: int = BUDGET) -> None:
        check_place(place)
        self.model, self.place, self.budget = model, place, budget
        self._kept: list[tuple[tuple[int, ...], HFCache]] = []
        self.read, self.reused = 0, 0
        """Prompt tokens asked for, and those that were there already."""

    @property
    def share(self) -> float:
        """Share of the prompt tokens that was not computed again."""
        return self.reused / self.read if self.read else 0.0

    @property
    def nbytes(self) -> int:
        """Memory of the caches kept."""
        return sum(cache.nbytes for _, cache in self._kept)

    def start(self, ids: Sequence[int], cuts: Sequence[int], end: int) -> Any:
        """A cache that holds the prompt up to its last boundary.

        Args:
            ids: the prompt.
            cuts: its `boundaries`.
            end: boundaries beyond this length are left out.
        """
        ids = tuple(ids)
        while self._kept and ids[: len(self._kept[-1][0])] != self._kept[-1][0]:
            self._kept.pop()
        cache = self._kept[-1][1].copy(self.model.device) if self._kept else self.model.new_cache()
        self.read += len(ids)
        self.reused += cache.length
        if self.place == "off" or not isinstance(cache, HFCache):
            return cache
        for cut in cuts:
            if cache.length < cut <= end:
                self.model.extend(cache, ids[cache.length : cut])
                self._keep(ids[:cut], cache)
        return cache

    def _keep(self, ids: tuple[int, ...], cache: HFCache) -> None:
        if self.nbytes + cache.nbytes <= self.budget:
            self._kept.append((ids, cache.copy("cpu" if self.place == "cpu" else None)))
