"""`Stack`: a model as a stack of layers that can be entered at any of them, with head activations edited.

Interventions rest on two moves. *Edit*: replace the q, k, v, z or pattern of a layer while it runs. *Enter*: give
the residual stream at some layer and run only the layers from there on, since those below an intervention compute
what they computed before. Both work on a batch of streams over one shared cache of the unchanged prefix.

    view             edits                        is entered by
    plain (fused)    module hooks, q k v z        skipping the layers below
    bridge           TransformerLens hooks, all   skipping the layers below
    HookedTransformer  TransformerLens hooks, all   start_at_layer, without a cache
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .backends import BridgeBackend, FusedView, LegacyBackend, original
from .kvcache import HFCache

if TYPE_CHECKING:
    from .hooked import HookedModel

SITES = ("q", "k", "v", "z", "pattern")
"""What can be edited: before rotary embedding and query or key norm (q, k), values (v), the heads' outputs before
the output projection (z), attention probabilities (pattern)."""

Edit = Callable[[Tensor], Tensor | None]
"""From an activation, [batch pos head d_head] (pattern: [batch head query key]), to its replacement, or None."""

_LAYER = re.compile(r"^(.*?\.\d+)\.")


@runtime_checkable
class Stack(Protocol):
    """What interventions need of a view of a model.

    Attributes:
        n_layers: number of layers.
        takes_cache: runs on top of a cache of earlier positions; otherwise every run starts at position 0.
    """

    n_layers: int
    takes_cache: bool

    def can_edit(self, at: str) -> bool: ...

    def edit(self, layer: int, at: str, fn: Edit) -> AbstractContextManager[None]:
        """Let ``fn`` replace an activation of one layer for the duration of a block."""
        ...

    def streams(self, layers: Sequence[int]) -> AbstractContextManager[Mapping[int, Tensor]]:
        """Collect the residual stream that enters each layer (n_layers: that leaves the last), [batch pos d_model].

        Runs in one block are joined along the positions.
        """
        ...

    def run(
        self,
        ids: Int[Tensor, "_ new"],
        *,
        enter: tuple[int, Float[Tensor, "rows new d_model"]] | None = None,
        cache: Any = None,
        keep: int = 0,
    ) -> Float[Tensor, "_ kept d_vocab"]:
        """Run tokens, or a given residual stream from a layer on; logits of the last ``keep`` positions (0: all)."""
        ...


class _LayerStack:
    """What plain transformers models and bridges share: a list of layer modules that are called in turn."""

    takes_cache = True

    def __init__(self, layers: Sequence[nn.Module], model: nn.Module, keeps_last: bool) -> None:
        self.layers = list(layers)
        self.n_layers = len(self.layers)
        self.model = model
        self._keeps_last = keeps_last
        self._wrapped = False  # whether layers return a tuple; known after the first `streams`

    @contextmanager
    def streams(self, layers: Sequence[int]) -> Iterator[Mapping[int, Tensor]]:
        """See `Stack.streams`."""
        found: dict[int, Tensor] = {}

        def keep(layer: int, value: Tensor) -> None:
            found[layer] = torch.cat([found[layer], value], dim=1) if layer in found else value

        def entering(layer: int) -> Callable[..., None]:
            def hook_fn(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                keep(layer, args[0] if args else kwargs["hidden_states"])

            return hook_fn

        def leaving(module: Any, args: Any, output: Any) -> None:
            self._wrapped = isinstance(output, tuple)
            if self.n_layers in layers:
                keep(self.n_layers, output[0] if self._wrapped else output)

        with ExitStack() as hooks:
            for layer in set(layers) - {self.n_layers}:
                handle = self.layers[layer].register_forward_pre_hook(entering(layer), with_kwargs=True)
                hooks.callback(handle.remove)
            hooks.callback(self.layers[-1].register_forward_hook(leaving).remove)
            yield found

    @contextmanager
    def _entered(self, layer: int, resid: Tensor) -> Iterator[None]:
        """Let the given stream enter at ``layer``; the layers below hand it on without running."""

        def hand_on(*args: Any, **kwargs: Any) -> Any:
            return (resid,) if self._wrapped else resid

        def inject(
            module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return ((resid, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": resid})

        skipped = self.layers[:layer]
        first = self.layers[0].register_forward_pre_hook(inject, with_kwargs=True)
        try:
            for module in skipped:
                module.__dict__["forward"] = hand_on  # a bridge would pass a plain assignment on to what it wraps
            yield
        finally:
            first.remove()
            for module in skipped:
                module.__dict__.pop("forward", None)

    def run(
        self,
        ids: Int[Tensor, "_ new"],
        *,
        enter: tuple[int, Float[Tensor, "rows new d_model"]] | None = None,
        cache: Any = None,
        keep: int = 0,
    ) -> Float[Tensor, "_ kept d_vocab"]:
        """See `Stack.run`."""
        past: dict[str, Any] = {"use_cache": False} if cache is None else {"past_key_values": cache, "use_cache": True}
        if self._keeps_last and keep:
            past["logits_to_keep"] = keep
        with ExitStack() as block:
            if enter is not None:
                block.enter_context(self._entered(*enter))
                ids = ids.expand(enter[1].shape[0], -1)
            out = self.model(ids, **past)
        logits = getattr(out, "logits", out)
        return logits[:, -keep:] if keep else logits


class PlainStack(_LayerStack):
    """The fused view: plain transformers modules over the same weights.

    Its projections are found by the weights they share with the bridge, so no architecture is named here.
    """

    def __init__(self, fused: FusedView, backend: BridgeBackend) -> None:
        geometry = backend.geometry
        self._head_size = geometry.d_head
        self._sites: dict[tuple[int, str], nn.Module] = {}
        by_weight = {
            id(module.weight): (name, module)
            for name, module in fused.model.named_modules()
            if isinstance(getattr(module, "weight", None), nn.Parameter)
        }
        layers: list[nn.Module] = []
        for index in range(geometry.n_layers):
            attention = backend.model.blocks[index].attn
            for at, part in (("q", "q"), ("k", "k"), ("v", "v"), ("z", "o")):
                weight = getattr(original(getattr(attention, part, None)), "weight", None)
                if id(weight) in by_weight:
                    self._sites[index, at] = by_weight[id(weight)][1]
            name, _ = by_weight[id(original(attention.o).weight)]
            inside = _LAYER.match(name)
            if inside is None:
                raise ValueError(f"no layer above the module {name!r}")
            layers.append(fused.model.get_submodule(inside[1]))
        super().__init__(layers, fused.model, fused.keeps_last)

    def can_edit(self, at: str) -> bool:
        """True when every layer has a projection of its own for this activation."""
        return all((layer, at) in self._sites for layer in range(self.n_layers))

    @contextmanager
    def edit(self, layer: int, at: str, fn: Edit) -> Iterator[None]:
        """See `Stack.edit`."""
        module = self._sites[layer, at]

        def edited(flat: Tensor) -> Tensor | None:
            new = fn(flat.unflatten(-1, (-1, self._head_size)))
            return None if new is None else new.flatten(-2).to(flat.dtype)

        if at == "z":
            handle = module.register_forward_pre_hook(lambda _, args: edited(args[0]))
        else:
            handle = module.register_forward_hook(lambda _, args, output: edited(output))
        try:
            yield
        finally:
            handle.remove()


class _Hooked:
    """Edits by TransformerLens hook names."""

    model: Any

    def can_edit(self, at: str) -> bool:
        """Every site has a hook."""
        return True

    @contextmanager
    def edit(self, layer: int, at: str, fn: Edit) -> Iterator[None]:
        """See `Stack.edit`."""

        def hook_fn(value: Tensor, hook: Any) -> Tensor | None:
            new = fn(value)
            return None if new is None else new.to(value.dtype)

        with self.model.hooks(fwd_hooks=[(f"blocks.{layer}.attn.hook_{at}", hook_fn)]):
            yield


class BridgeStack(_Hooked, _LayerStack):
    """The bridge itself: eager attention, every hook."""

    def __init__(self, backend: BridgeBackend) -> None:
        super().__init__(list(backend.model.blocks), backend.model, backend.keeps_last)


class LegacyStack(_Hooked):
    """A HookedTransformer, entered by its own ``start_at_layer``."""

    takes_cache = False

    def __init__(self, backend: LegacyBackend) -> None:
        self.model = backend.model
        self.n_layers = backend.geometry.n_layers

    @contextmanager
    def streams(self, layers: Sequence[int]) -> Iterator[Mapping[int, Tensor]]:
        """See `Stack.streams`."""
        found: dict[int, Tensor] = {}

        def keep(layer: int) -> Callable[..., None]:
            def hook_fn(value: Tensor, hook: Any) -> None:
                found[layer] = torch.cat([found[layer], value], dim=1) if layer in found else value

            return hook_fn

        last = self.n_layers - 1
        names = {n: f"blocks.{n}.hook_resid_pre" if n <= last else f"blocks.{last}.hook_resid_post" for n in layers}
        with self.model.hooks(fwd_hooks=[(name, keep(layer)) for layer, name in names.items()]):
            yield found

    def run(
        self,
        ids: Int[Tensor, "_ new"],
        *,
        enter: tuple[int, Float[Tensor, "rows new d_model"]] | None = None,
        cache: Any = None,
        keep: int = 0,
    ) -> Float[Tensor, "_ kept d_vocab"]:
        """See `Stack.run`."""
        if cache is not None:
            raise ValueError("a HookedTransformer is run without a cache here")
        if enter is None:
            logits = self.model(ids, return_type="logits", attention_mask=torch.ones_like(ids))
        else:
            logits = self.model(enter[1], return_type="logits", start_at_layer=enter[0])
        return logits[:, -keep:] if keep else logits


def stack_for(model: HookedModel, at: Sequence[str]) -> Stack:
    """The fastest view of a model in which the given sites can be edited.

    Raises:
        ValueError: for an unknown site.
    """
    if unknown := set(at) - set(SITES):
        raise ValueError(f"unknown site {min(unknown)!r}; choose from {', '.join(SITES)}")
    plain = plain_stack(model)
    if plain is not None and all(plain.can_edit(site) for site in at):
        return plain
    return hooked_stack(model)


def plain_stack(model: HookedModel) -> PlainStack | None:
    """The fused view as a stack, where the model has one."""
    if model.fused is None or not isinstance(model.backend, BridgeBackend):
        return None
    if model.fused.stack is None:
        model.fused.stack = PlainStack(model.fused, model.backend)
    return model.fused.stack


def hooked_stack(model: HookedModel) -> Stack:
    """The hooked model as a stack."""
    if isinstance(model.backend, LegacyBackend):
        return LegacyStack(model.backend)
    return BridgeStack(model.backend)  # type: ignore[arg-type]


def prefix_cache(model: HookedModel, stack: Stack, ids: Sequence[int]) -> Any:
    """A read-only cache of a prefix that any number of runs, of any batch size, can stand on (None: no prefix)."""
    if not ids or not stack.takes_cache:
        return None
    cache = model.fill(ids)
    assert isinstance(cache, HFCache)
    return cache.read_only()
