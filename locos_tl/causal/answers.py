"""`PromptAnswers`: a model's greedy answers to one prompt without this or that set of heads, at little cost.

1. The whole model reads the prompt and answers. Its keys and values are kept, and the residual streams that enter
   some layers.
2. Layers below the first ablated one compute what they computed before. So a run without some heads enters there
   with the stream that was kept, and borrows the keys and values below.
3. The whole model's answer rides along with the prompt as a draft: the run yields the arg-max after each of its
   tokens, and what agrees needs no decoding.
4. Where they part, several sets of heads are decoded together, one in each row of a batch: a step takes about as
   long for eight rows as for one, since both read all weights once.

The tokens are those of step-by-step greedy decoding under `ablation`. Only where two tokens tie to within rounding can
another batch prefer the other one, as another machine can; in half precision such ties are not rare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models.backends import CHUNK
from ..models.hooked import HookedModel
from ..models.kvcache import HFCache, stacked
from ..models.stack import PlainStack, Stack, hooked_stack, plain_stack
from .ablation import ablated_rows, ablation
from .heads import Head

BATCH_BYTES = 2**32
"""Memory for the keys and values of the rows that are decoded together (twice as much while they are joined)."""

HeadSet = frozenset[Head]


@dataclass(frozen=True)
class Answer:
    """Generated tokens without the stop token, and the stop token (None at the limit)."""

    ids: tuple[int, ...]
    stop_token_id: int | None


@dataclass(frozen=True)
class _Begun:
    """A prompt read without some heads: how far the draft is right, and where decoding goes on."""

    heads: HeadSet
    agreed: int
    cache: HFCache
    logits: Float[Tensor, "kept d_vocab"]


class PromptAnswers:
    """One prompt, answered by the whole model at once and without sets of heads on demand.

    Args:
        model: from `load_model`.
        prompt_ids: the prompt.
        max_new_tokens: most tokens to generate.
        entries: layers at which ablated runs may enter; the stream of each is held in memory.

    Attributes:
        whole: the whole model's answer.
    """

    @torch.inference_mode()
    def __init__(
        self, model: HookedModel, prompt_ids: Sequence[int], max_new_tokens: int, entries: Sequence[int] = ()
    ) -> None:
        self.model, self.prompt, self.limit = model, tuple(prompt_ids), max_new_tokens
        model.tokens(self.prompt)  # refuses what does not fit
        stack = _fastest(model)
        self.entries = sorted(entries) if stack.takes_cache else []
        self._cache = model.new_cache()
        rides_along = stack.takes_cache and self._cache.can_rewind(len(self.prompt) + max_new_tokens)
        with stack.streams(self.entries) as of_prompt:
            logits = model.extend(self._cache, self.prompt)
        self._cache.mark()
        with stack.streams(self.entries if rides_along else ()) as of_answer:
            decoding = model.decode(self._cache, logits, max_new_tokens)
        self.whole = Answer(decoding.ids, decoding.stop_token_id)
        if not rides_along:
            self._cache.rewind(len(self.prompt))
        self._draft = self.whole.ids[: self._cache.length - len(self.prompt)]
        self._streams = {
            layer: torch.cat([of_prompt[layer], of_answer[layer]], 1) if layer in of_answer else of_prompt[layer]
            for layer in self.entries
        }

    @torch.inference_mode()
    def without(self, sets: Sequence[HeadSet], batch_size: int = 1, **how: Any) -> Mapping[HeadSet, Answer]:
        """The answers under ``ablation(model, heads, **how)`` for each of these sets of heads.

        Args:
            sets: heads to do without.
            batch_size: at most so many sets are decoded together.
            how: site, mode, means and seed of the ablation.
        """
        if not _fastest(self.model).takes_cache:
            return {heads: self._one_by_one(heads, how) for heads in sets}
        found: dict[HeadSet, Answer] = {}
        begun: list[_Begun] = []
        assert isinstance(self._cache, HFCache)
        room = max(1, min(batch_size, BATCH_BYTES // max(1, self._cache.nbytes)))
        for heads in sets:
            one = self._begin(heads, how)
            if isinstance(one, Answer):
                found[heads] = one
            else:
                begun.append(one)
            if begun and (len(begun) == room or heads == sets[-1]):
                found |= self._decode(begun, how)
                begun = []
        return found

    def _one_by_one(self, heads: HeadSet, how: Mapping[str, Any]) -> Answer:
        with ablation(self.model, sorted(heads), **how):
            cache = self.model.new_cache()
            decoding = self.model.decode(cache, self.model.extend(cache, self.prompt), self.limit)
        return Answer(decoding.ids, decoding.stop_token_id)

    def _begin(self, heads: HeadSet, how: Mapping[str, Any]) -> Answer | _Begun:
        """Read prompt and draft without these heads; an answer where nothing is left to decode."""
        with ablated_rows(self.model, [sorted(heads)], **how):
            cache, logits = self._read(min(layer for layer, _ in heads))
        wanted = logits.argmax(-1).tolist()
        agreed = next((i for i, token in enumerate(self._draft) if token != wanted[i]), len(self._draft))
        ids, token = self._draft[:agreed], wanted[agreed]
        if self.model.is_stop(token):
            return Answer(ids, token)
        if agreed + 1 == self.limit:
            return Answer((*ids, token), None)
        return _Begun(heads, agreed, cache, logits)

    def _read(self, first_ablated: int) -> tuple[HFCache, Float[Tensor, "kept d_vocab"]]:
        """Run prompt and draft from the nearest entry on; logits after the prompt and after each draft token."""
        cache, stack = self.model.new_cache(), _fastest(self.model)
        assert isinstance(cache, HFCache)
        assert isinstance(self._cache, HFCache)
        entry = max((layer for layer in self.entries if layer <= first_ablated), default=0)
        ids, keep = self.model.tokens((*self.prompt, *self._draft)), len(self._draft) + 1
        logits = None
        for start, end in pairwise(_cuts(ids, keep, stack)):
            cache.borrow(self._cache, entry, start)
            enter = (entry, self._streams[entry][:, start:end]) if entry else None
            logits = stack.run(ids[:, start:end], enter=enter, cache=cache.native, keep=keep)[0]
        cache.borrow(self._cache, entry, ids.shape[1])
        assert logits is not None
        return cache, logits

    def _decode(self, begun: Sequence[_Begun], how: Mapping[str, Any]) -> dict[HeadSet, Answer]:
        """Go on from where all of these still agree with the draft, one in each row of a batch."""
        agreed = min(one.agreed for one in begun)
        for one in begun:
            if agreed < len(self._draft):
                one.cache.rewind(len(self.prompt) + agreed)
        ids = [list(self._draft[:agreed]) for _ in begun]
        ends: dict[int, int | None] = {}
        logits, native = torch.stack([one.logits[agreed] for one in begun]), stacked([one.cache for one in begun])
        with ablated_rows(self.model, [sorted(one.heads) for one in begun], **how):
            stack = _fastest(self.model)
            while True:
                for row, token in enumerate(_greedy(self.model, logits)):
                    if row not in ends and self.model.is_stop(token):
                        ends[row] = token
                    elif row not in ends:
                        ids[row].append(token)
                        if len(ids[row]) == self.limit:
                            ends[row] = None
                if len(ends) == len(begun):
                    break
                last = torch.tensor([row[-1:] or [self.prompt[-1]] for row in ids], device=self.model.device)
                logits = stack.run(last, cache=native, keep=1)[:, -1]
        return {one.heads: Answer(tuple(ids[row]), ends[row]) for row, one in enumerate(begun)}


def _greedy(model: HookedModel, logits: Float[Tensor, "row d_vocab"]) -> list[int]:
    if not bool(logits.amax(-1).isfinite().all()):
        raise FloatingPointError(
            f"{model.info.name}: logits are not finite under ablation (dtype {model.info.dtype}); load with "
            "dtype=torch.float32"
        )
    return logits.argmax(-1).tolist()


def _fastest(model: HookedModel) -> Stack:
    """The view that `HookedModel.extend` runs on."""
    return plain_stack(model) or hooked_stack(model)


def _cuts(ids: Int[Tensor, "1 n"], keep: int, stack: Stack) -> list[int]:
    """Where to cut a run: eager attention takes chunks, of which the last holds all positions to keep."""
    n = ids.shape[1]
    return [0, n] if isinstance(stack, PlainStack) else [*range(0, n - keep + 1, CHUNK), n]
