"""`HookedModel`: a causal language model whose attention can be read and whose weights are at hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from .backends import CHUNK, Backend, FusedView, Geometry, Hook, weights_fingerprint
from .kvcache import KVCache, attended_values
from .norms import LinearNorm

if TYPE_CHECKING:
    from .check import CheckReport
    from .prefixes import PrefixStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelInfo:
    """Where a model came from; goes into every result file."""

    name: str
    revision: str | None = None
    dtype: str = "float32"
    backend: str = "TransformerBridge"
    prefill: str = "fused"
    processing: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How a model was loaded, so that another process can load the same.

    Attributes:
        name: what the model is called.
        source: bundled name, Hub id or absolute path.
        options: of `load_model`.
    """

    name: str
    source: str
    options: Mapping[str, Any]

    def load(self, device: str | None = None) -> HookedModel:
        """The model.

        Args:
            device: where it goes; default: as the options say.
        """
        from .load import load_model

        options = dict(self.options)
        if device is not None:
            options["device"] = device
        model = load_model(self.source, **options)
        model.info = replace(model.info, name=self.name)
        return model


@dataclass(frozen=True)
class Decoding:
    """Greedy continuation of a prompt.

    Attributes:
        ids: generated token ids; the stop token is not among them.
        stop_token_id: the token that ended decoding, or None when the step limit did.
        stopped_early: True when the caller's ``enough`` ended decoding before the model did.
        margins: logit margin of the greedy choice over the runner-up, a value per decoded token
            (the stop token included). Below about 0.01 another build may choose another token.
    """

    ids: tuple[int, ...]
    stop_token_id: int | None
    stopped_early: bool
    margins: tuple[float, ...]


@dataclass(frozen=True)
class LayerRead:
    """What the hooks saw in one layer of a segment.

    Attributes:
        pattern: attention probabilities ``hook_pattern``, [head query key], model dtype.
        values: the values those probabilities weight, [key kv_head d_head]: past ones from the
            cache, the segment's own from ``hook_v``.
        first_key: absolute position of column 0; above 0 in sliding-window layers that forgot keys.
    """

    layer: int
    pattern: Float[Tensor, "head query key"]
    values: Float[Tensor, "key kv_head d_head"]
    first_key: int


class HookedModel:
    """A model as the rest of the library sees it: tokens in, logits, patterns, values and weights out.

    Two views share one set of weights: the hooked model (eager attention, `hook_pattern` and `hook_v`)
    and, where the architecture allows, a fused-attention view without hooks for prefill and decoding.
    Batch size is 1 throughout.
    """

    def __init__(self, backend: Backend, fused: FusedView | None, tokenizer: Any, info: ModelInfo) -> None:
        self.backend = backend
        self.fused = fused
        self.tokenizer = tokenizer
        self.info = info
        self._newline: dict[int, bool] = {}
        self._norms: dict[int | str, LinearNorm | None] = {}
        self._stop_ids = _stop_ids(backend, fused, tokenizer)
        self.interventions: list[str] = []
        """What is being done to the model just now (see `causal.ablation`); goes into the settings of every run."""
        self.recipe: Recipe | None = None
        """How to load it once more; None for a model made from an object in memory."""

    # --- geometry -------------------------------------------------------------------------------

    @property
    def hooked(self) -> Any:
        """The underlying TransformerBridge or HookedTransformer, for your own hooks."""
        return self.backend.model

    @property
    def geometry(self) -> Geometry:
        return self.backend.geometry

    @property
    def n_layers(self) -> int:
        return self.geometry.n_layers

    @property
    def n_heads(self) -> int:
        return self.geometry.n_heads

    @property
    def n_key_value_heads(self) -> int:
        return self.geometry.n_key_value_heads

    @property
    def d_head(self) -> int:
        return self.geometry.d_head

    @property
    def d_model(self) -> int:
        return self.geometry.d_model

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Per layer, the sliding window in keys (the query's own position included), or None."""
        return self.geometry.windows

    @property
    def device(self) -> torch.device:
        return self.backend.device

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every token that ends a generation, as declared by model and tokenizer."""
        return self._stop_ids

    def __repr__(self) -> str:
        g = self.geometry
        return (
            f"HookedModel({self.info.name!r}, {g.n_layers} layers x {g.n_heads} heads "
            f"({g.n_key_value_heads} KV), d_head {g.d_head}, {self.info.backend}, {self.info.prefill} prefill)"
        )

    def _repr_html_(self) -> str:
        from .. import html

        g, info = self.geometry, self.info
        shared = "" if g.group_size == 1 else f" ({g.n_key_value_heads} KV heads, {g.group_size} query heads on each)"
        about = {
            "layers x heads": f"{g.n_layers} x {g.n_heads}{shared}",
            "sizes": f"d_model {g.d_model}, d_head {g.d_head}, vocabulary {g.d_vocab}",
            "context": "no limit in the config" if g.n_ctx is None else f"{g.n_ctx} tokens",
            "windows": window_text(g),
            "weights": f"{info.dtype} on {self.device}",
            "backend": f"{info.backend}, {info.prefill} prefill",
            "processing": ", ".join(name for name, done in info.processing.items() if done),
            "revision": (info.revision or "")[:16],
            "interventions": ", ".join(self.interventions),
        }
        return html.card(info.name, html.pairs(about))

    # --- weights --------------------------------------------------------------------------------

    def W_O(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """The output projection of a layer, one [d_head, d_model] slice per query head."""
        return self.backend.W_O(layer).detach()

    def b_O(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """The bias of a layer's output projection, where there is one."""
        return self.backend.b_O(layer)

    def unembed(self, ids: Sequence[int]) -> Float[Tensor, "token d_model"]:
        """Raw rows u[y] of the unembedding for the given token ids, in float32."""
        return self.backend.unembed_rows(ids).float()

    def unembed_bias(self, ids: Sequence[int]) -> Float[Tensor, "token"]:
        return self.backend.unembed_bias(ids).float()

    def final_norm(self) -> LinearNorm:
        """The norm before the unembedding.

        Raises:
            ValueError: when the model has none, or one that is not an affine norm.
        """
        if "final" not in self._norms:
            self._norms["final"] = self.backend.final_norm()
        norm = self._norms["final"]
        if norm is None:
            raise ValueError(f"{self.info.name} has no final norm: use variant='paper'")
        return norm

    def post_attention_norm(self, layer: int) -> LinearNorm | None:
        """The norm between a layer's output projection and the residual add (Gemma-2/3, OLMo-2/3), or None."""
        if layer not in self._norms:
            self._norms[layer] = self.backend.post_attention_norm(layer)
        return self._norms[layer]

    def weights_fingerprint(self) -> str:
        """Short hash of a spread of entries of every weight as it is now, in whichever way it got there.

        Equal on every machine. An edit of a few single numbers can escape it; an edited head cannot.
        """
        return weights_fingerprint(self.hooked)

    def describe(self) -> dict[str, Any]:
        """Name, weights, dtype, sizes and present interventions, for the settings of a run."""
        info = self.info
        return ({"interventions": list(self.interventions)} if self.interventions else {}) | {
            "name": info.name,
            "revision": info.revision,
            "weights": self.weights_fingerprint(),
            "dtype": info.dtype,
            "backend": info.backend,
            "attention": {"hooked": "eager", "prefill": info.prefill},
            "processing": dict(info.processing),
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "n_key_value_heads": self.n_key_value_heads,
            "sliding_window_layers": list(self.geometry.sliding_layers),
        }

    # --- running --------------------------------------------------------------------------------

    def tokens(self, ids: Sequence[int]) -> Tensor:
        """Token ids as a [1, pos] tensor on the model's device.

        Raises:
            ValueError: when an id is outside the vocabulary or the context limit is exceeded.
        """
        limit = self.geometry.n_ctx
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"{len(ids)} tokens exceed the context limit of {self.info.name} ({limit}). "
                "Nothing is cut: use shorter trials or a model with a longer context."
            )
        if strange := [i for i in ids if not 0 <= i < self.geometry.d_vocab]:
            raise ValueError(f"token {strange[0]} is outside the vocabulary of {self.geometry.d_vocab} tokens")
        return torch.tensor([list(ids)], device=self.device)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int]) -> Float[Tensor, "pos d_vocab"]:
        """Logits of the hooked model at every position, without a cache."""
        return self.backend.run(self.tokens(ids), None)

    def new_cache(self) -> KVCache:
        return (self.fused or self.backend).new_cache()

    @torch.inference_mode()
    def extend(self, cache: KVCache, ids: Sequence[int]) -> Float[Tensor, "d_vocab"]:
        """Run tokens on top of a cache without hooks; returns the last position's logits."""
        tokens = torch.tensor([list(ids)], device=self.device)
        if self.fused is not None:
            return self.fused.run(tokens, cache, last_only=True)[-1]
        logits = None
        for part in tokens.split(CHUNK, dim=1):
            logits = self.backend.run(part, cache, last_only=True)[-1]
        assert logits is not None
        return logits

    def prefill(
        self,
        ids: Sequence[int],
        rewind_to: int,
        room: int = 0,
        *,
        store: PrefixStore | None = None,
        cuts: Sequence[int] = (),
    ) -> tuple[KVCache, Float[Tensor, "d_vocab"]]:
        """Fill a cache with a prompt so that it can later be rewound to ``rewind_to`` tokens.

        Args:
            ids: the whole prompt.
            rewind_to: length the cache will be put back to, 0 < rewind_to < len(ids).
            room: tokens that will be decoded before rewinding.
            store: beginnings that were read for other prompts.
            cuts: where this prompt parts from others, see `models.prefixes.boundaries`.

        Returns:
            The cache, and the logits after the last prompt token.
        """
        self.tokens(ids)
        cache = self.new_cache() if store is None else store.start(ids, cuts, rewind_to)
        if not cache.can_rewind(len(ids) + room):
            if cache.length < rewind_to:
                self.extend(cache, ids[cache.length : rewind_to])
            cache.mark()
        return cache, self.extend(cache, ids[cache.length :])

    def fill(self, ids: Sequence[int]) -> KVCache:
        """A cache that holds ``ids`` and can be rewound to just after them, however much is added."""
        cache = self.new_cache()
        self.extend(cache, ids)
        cache.mark()
        return cache

    @torch.inference_mode()
    def decode(
        self,
        cache: KVCache,
        logits: Float[Tensor, "d_vocab"],
        max_new_tokens: int,
        enough: Callable[[list[int]], bool] | None = None,
    ) -> Decoding:
        """Greedy decoding; stops at an end token or at a token that holds a newline (neither is kept).

        Args:
            cache: filled with the prompt.
            logits: logits after the last prompt token.
            max_new_tokens: most tokens to keep.
            enough: called with the ids so far after each token; True ends decoding.

        Raises:
            FloatingPointError: when the logits are not finite.
        """
        ids: list[int] = []
        margins: list[float] = []
        while True:
            best, runner_up = logits.float().topk(2)[0].tolist()
            if best != best or best in (float("inf"), float("-inf")):
                raise FloatingPointError(
                    f"{self.info.name}: logits are not finite after {len(ids)} generated tokens "
                    f"(dtype {self.info.dtype}); load with dtype=torch.float32"
                )
            token = int(logits.argmax())
            margins.append(best - runner_up)
            if self.is_stop(token):
                return Decoding(tuple(ids), token, False, tuple(margins))
            ids.append(token)
            if enough is not None and enough(ids):
                return Decoding(tuple(ids), None, True, tuple(margins))
            if len(ids) >= max_new_tokens:
                return Decoding(tuple(ids), None, False, tuple(margins))
            logits = self.extend(cache, [token])

    def is_stop(self, token: int) -> bool:
        """True for end tokens and for tokens whose text holds a newline."""
        if token in self._stop_ids:
            return True
        if self.tokenizer is None:
            return False
        if token not in self._newline:
            self._newline[token] = "\n" in self.tokenizer.decode([token])
        return self._newline[token]

    @torch.inference_mode()
    def segment(
        self,
        ids: Sequence[int],
        cache: KVCache | None,
        read: Callable[[LayerRead], None],
        hooks: Sequence[Hook] = (),
        last_only: bool = False,
    ) -> Float[Tensor, "query d_vocab"]:
        """Run a few tokens through the hooked model on top of a cache and read every layer.

        Args:
            ids: the segment's token ids; they become the queries.
            cache: holds the positions before the segment (None: the segment is the whole input).
            read: called once per layer, in order, inside the forward pass.
            hooks: further TransformerLens hooks for the same pass.
            last_only: unembed only the last position.

        Returns:
            Logits at the segment's positions, or at its last one.

        Raises:
            RuntimeError: when a layer's hooks did not fire (a name that resolves to nothing).
        """
        start = 0 if cache is None else cache.length
        width = start + len(ids)
        fresh: dict[int, Tensor] = {}
        seen: list[int] = []

        def on_value(layer: int) -> Callable[..., None]:
            def hook_fn(value: Tensor, hook: Any) -> None:
                fresh[layer] = value[0]

            return hook_fn

        def on_pattern(layer: int) -> Callable[..., None]:
            def hook_fn(pattern: Tensor, hook: Any) -> None:
                keys = pattern.shape[-1]
                new = fresh.pop(layer)
                values = new if cache is None else attended_values(cache, layer, start, new, keys)
                seen.append(layer)
                read(LayerRead(layer, pattern[0], values, width - keys))

            return hook_fn

        reading: list[Hook] = []
        for layer in range(self.n_layers):
            reading.append((f"blocks.{layer}.attn.hook_v", on_value(layer)))
            reading.append((f"blocks.{layer}.attn.hook_pattern", on_pattern(layer)))
        logits = self.backend.run(torch.tensor([list(ids)], device=self.device), cache, [*reading, *hooks], last_only)
        if seen != list(range(self.n_layers)):
            raise RuntimeError(
                f"{self.info.name}: hook_pattern fired in layers {seen} instead of all {self.n_layers}; "
                "run `locos-tl check` on this model"
            )
        return logits

    @contextmanager
    def hooks(self, fwd_hooks: Sequence[Hook]) -> Iterator[HookedModel]:
        """Put TransformerLens hooks on the hooked model for the duration of a block."""
        with self.hooked.hooks(fwd_hooks=list(fwd_hooks)):
            yield self

    def check(self, *, quick: bool = False) -> CheckReport:
        """Compare this model with plain transformers and with the identities that scores rest on.

        Args:
            quick: only the part that runs at every load.
        """
        from .check import check_model

        return check_model(self, quick=quick)


def window_text(geometry: Geometry) -> str:
    """Which layers see how far back: "512 tokens in 5 of 6 layers"; nothing where all see everything."""
    sizes = sorted({window for window in geometry.windows if window is not None})
    told = [f"{size} tokens in {geometry.windows.count(size)} of {geometry.n_layers} layers" for size in sizes]
    return ", ".join(told)


def _stop_ids(backend: Any, fused: FusedView | None, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    hf_model = fused.model if fused is not None else getattr(backend.model, "original_model", None)
    for holder in (
        getattr(hf_model, "generation_config", None),
        getattr(hf_model, "config", None),
        getattr(backend.model, "cfg", None),
        tokenizer,
    ):
        ids = getattr(holder, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return frozenset(int(i) for i in found)
