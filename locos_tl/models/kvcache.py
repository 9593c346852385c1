"""Key-value caches that can be put back to an earlier length.

One trial fills the prompt's cache once (fused attention), decodes on it, goes back to just before the
last prompt tokens and runs the hooked segment on top. Layers with full attention go back by slicing,
without a copy. Sliding-window layers forget old keys, so their small state is set aside by `mark`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class KVCache(Protocol):
    """What the scoring code needs of a cache, whichever library owns it."""

    native: Any

    @property
    def length(self) -> int: ...
    def can_rewind(self, highest: int) -> bool: ...
    def mark(self) -> None: ...
    def rewind(self, length: int) -> None: ...
    def values_before(self, layer: int, start: int) -> Float[Tensor, "pos kv_head d_head"]: ...


class HFCache:
    """A transformers ``DynamicCache``; batch size 1."""

    def __init__(self, config: Any) -> None:
        from transformers import DynamicCache

        self.native = DynamicCache(config=config)
        self._marked: dict[int, Any] = {}
        self._marked_length = 0

    @property
    def length(self) -> int:
        return int(self.native.get_seq_length())

    def _sliding(self) -> dict[int, Any]:
        return {i: part for i, part in enumerate(self.native.layers) if part.is_sliding}

    def can_rewind(self, highest: int) -> bool:
        """True when slicing alone can undo any growth up to ``highest`` tokens."""
        return all(highest < part.sliding_window for part in self._sliding().values())

    def mark(self) -> None:
        """Set the sliding layers' present state aside (references: updates never write in place)."""
        self._marked = {i: copy.copy(part) for i, part in self._sliding().items()}
        self._marked_length = self.length

    def rewind(self, length: int) -> None:
        """Forget every token from ``length`` on.

        Raises:
            RuntimeError: when a sliding layer has lost what it would need; call `mark` at that length.
        """
        for index, part in enumerate(self.native.layers):
            if self._marked and self._marked_length == length and index in self._marked:
                self.native.layers[index] = copy.copy(self._marked[index])
                continue
            if part.is_sliding and part.cumulative_length >= part.sliding_window:
                raise RuntimeError(f"layer {index} slides and cannot go back to {length} tokens without a mark")
            part.keys, part.values = part.keys[:, :, :length], part.values[:, :, :length]
            if part.is_sliding:
                part.cumulative_length = length

    def copy(self, device: Any = None) -> HFCache:
        """A cache of its own with the same content: references, since updates never write in place.

        Args:
            device: put keys and values there, which copies them if they are elsewhere; None: leave them.
        """
        twin = copy.copy(self)
        twin.native = copy.copy(self.native)
        twin.native.layers = [copy.copy(part) for part in self.native.layers]
        twin._marked, twin._marked_length = {}, 0
        if device is not None:
            for part in twin.native.layers:
                if part.is_initialized:
                    part.keys, part.values = part.keys.to(device), part.values.to(device)
        return twin

    @property
    def nbytes(self) -> int:
        """Memory that its keys and values take."""
        return sum(part.keys.nbytes + part.values.nbytes for part in self.native.layers if part.is_initialized)

    def borrow(self, other: HFCache, below: int, length: int) -> None:
        """Show the first ``length`` positions of another cache in the layers below ``below`` (references, no copy).

        A sliding layer that has forgotten some of these positions is right only at the length ``other`` has now;
        at any other it merely claims the length, which is enough for a run that enters above it.
        """
        for index in range(below):
            part = copy.copy(other.native.layers[index])
            part.keys, part.values = part.keys[:, :, :length], part.values[:, :, :length]
            if part.is_sliding:
                part.cumulative_length = length
            self.native.layers[index] = part

    def read_only(self) -> Any:
        """The native cache as it is now, for runs of any batch size that leave it unchanged."""
        native = copy.copy(self.native)
        native.layers = [_read_only(part) for part in self.native.layers]
        return native

    def values_before(self, layer: int, start: int) -> Float[Tensor, "pos kv_head d_head"]:
        """Values of the positions before ``start`` that this layer still holds or held when marked."""
        part = self.native.layers[layer]
        if part.is_sliding and layer in self._marked and self._marked_length == start:
            part = self._marked[layer]
            held = part.values[0] if part.is_initialized else None
        else:
            held = part.values[0][:, :start]
        if held is None:
            raise RuntimeError(f"layer {layer} holds no values before position {start}")
        return held.transpose(0, 1)


def stacked(caches: Sequence[HFCache]) -> Any:
    """One native cache with a row for each of these caches, which hold equally many tokens."""
    native = copy.copy(caches[0].native)
    native.layers = [copy.copy(part) for part in native.layers]
    for index, part in enumerate(native.layers):
        rows = [cache.native.layers[index] for cache in caches]
        part.keys, part.values = torch.cat([row.keys for row in rows]), torch.cat([row.values for row in rows])
    return native


def _read_only(part: Any) -> Any:
    """A copy of a cache layer that shows new keys and values to the attention without keeping them."""

    def join(held: Tensor, new: Tensor) -> Tensor:
        return torch.cat([held.expand(new.shape[0], -1, -1, -1), new], dim=-2)

    def update(self: Any, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return join(self.keys, keys), join(self.values, values)

    kind = type(part)
    twin = copy.copy(part)
    twin.__class__ = type(f"ReadOnly{kind.__name__}", (kind,), {"update": update})
    return twin


class TLCache:
    """A transformer-lens 3 ``TransformerLensKeyValueCache``; batch size 1."""

    def __init__(self, cfg: Any, device: Any) -> None:
        from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache

        self.native = TransformerLensKeyValueCache.init_cache(cfg, device, 1)

    @property
    def length(self) -> int:
        return int(self.native[0].past_keys.shape[1])

    def can_rewind(self, highest: int) -> bool:
        return True

    def mark(self) -> None:
        return None

    def rewind(self, length: int) -> None:
        for entry in self.native.entries:
            entry.past_keys = entry.past_keys[:, :length]
            entry.past_values = entry.past_values[:, :length]
        self.native.previous_attention_mask = self.native.previous_attention_mask[:, :length]

    def values_before(self, layer: int, start: int) -> Float[Tensor, "pos kv_head d_head"]:
        return self.native[layer].past_values[0, :start]


def attended_values(
    cache: KVCache, layer: int, start: int, new_values: Float[Tensor, "segment kv_head d_head"], width: int
) -> Float[Tensor, "key kv_head d_head"]:
    """The values that a segment's pattern weights, in the order of the pattern's ``width`` columns.

    Args:
        cache: cache that held the positions before the segment.
        layer: layer index.
        start: absolute position of the segment's first token.
        new_values: `hook_v` of the segment.
        width: number of key columns of `hook_pattern`.
    """
    n_past = width - new_values.shape[0]
    if n_past == 0:
        return new_values
    past = cache.values_before(layer, start)[-n_past:].to(new_values.device)
    if past.shape[0] != n_past:
        raise RuntimeError(
            f"layer {layer}: the pattern covers {n_past} cached keys but the cache holds {past.shape[0]} values"
        )
    return torch.cat([past, new_values.to(past.dtype)])
