"""The seam over TransformerLens: what differs between a TransformerBridge and a HookedTransformer.

Everything above this module speaks `HookedModel`. A backend runs tokens on a cache with hooks, and
hands out weights in one layout: ``W_O[head, d_head, d_model]`` and unembedding rows ``u[token, d_model]``.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .kvcache import HFCache, KVCache, TLCache
from .norms import LinearNorm

Hook = tuple[str, Callable[..., Any]]

CHUNK = 512
"""Tokens per step when a long prompt has to be prefilled with eager attention."""


@dataclass(frozen=True)
class Geometry:
    """The sizes a head score depends on.

    Attributes:
        windows: per layer, the sliding window (keys visible to a query, itself included) or None.
        n_ctx: the longest context the model is made for, or None where the config names none.
    """

    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_head: int
    d_model: int
    d_vocab: int
    n_ctx: int | None
    windows: tuple[int | None, ...]

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.n_heads // self.n_key_value_heads

    def kv_head(self, head: int) -> int:
        """The key-value head that query head ``head`` reads."""
        return head // self.group_size

    @property
    def sliding_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, window in enumerate(self.windows) if window is not None)


@runtime_checkable
class Backend(Protocol):
    """One kind of hooked model."""

    kind: str
    model: Any
    geometry: Geometry
    device: torch.device

    def new_cache(self) -> KVCache: ...
    def run(
        self, ids: Int[Tensor, "1 new"], cache: KVCache | None, hooks: Sequence[Hook] = (), last_only: bool = False
    ) -> Float[Tensor, "pos d_vocab"]: ...
    def W_O(self, layer: int) -> Float[Tensor, "head d_head d_model"]: ...
    def b_O(self, layer: int) -> Float[Tensor, "d_model"] | None: ...
    def unembed_rows(self, ids: Sequence[int]) -> Float[Tensor, "token d_model"]: ...
    def unembed_bias(self, ids: Sequence[int]) -> Float[Tensor, "token"]: ...
    def final_norm(self) -> LinearNorm | None: ...
    def post_attention_norm(self, layer: int) -> LinearNorm | None: ...
    def post_scale_hook(self, layer: int) -> str: ...
    def read_post_scale(self, layer: int, value: Tensor) -> Float[Tensor, "row"]: ...
    def processing(self) -> dict[str, bool]: ...


class BridgeBackend:
    """A ``TransformerBridge`` (transformer-lens 3.x/4.x): HF modules wrapped in hook points."""

    kind = "TransformerBridge"

    def __init__(self, bridge: Any) -> None:
        self.model = bridge
        self.hf_config = bridge.original_model.config
        self.device = _device_of(bridge)
        self.keeps_last = "logits_to_keep" in inspect.signature(bridge.original_model.forward).parameters
        self.geometry = _geometry(bridge.cfg, self.hf_config)

    def new_cache(self) -> KVCache:
        return HFCache(self.hf_config)

    def run(
        self, ids: Int[Tensor, "1 new"], cache: KVCache | None, hooks: Sequence[Hook] = (), last_only: bool = False
    ) -> Float[Tensor, "pos d_vocab"]:
        past: dict[str, Any] = {} if cache is None else {"past_key_values": cache.native}
        if last_only and self.keeps_last:
            past["logits_to_keep"] = 1
        with self.model.hooks(fwd_hooks=list(hooks)):
            logits = self.model(ids, **past)
        return logits[0, -1:] if last_only else logits[0]

    def W_O(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        return self.model.blocks[layer].attn.W_O

    def b_O(self, layer: int) -> Float[Tensor, "d_model"] | None:
        bias = getattr(original(self.model.blocks[layer].attn.o), "bias", None)
        return None if bias is None else bias.detach()

    def unembed_rows(self, ids: Sequence[int]) -> Float[Tensor, "token d_model"]:
        return self._unembed().weight[list(ids)].detach()

    def unembed_bias(self, ids: Sequence[int]) -> Float[Tensor, "token"]:
        bias = getattr(self._unembed(), "bias", None)
        return torch.zeros(len(ids)) if bias is None else bias[list(ids)].detach()

    def _unembed(self) -> Any:
        return original(self.model.unembed)

    def final_norm(self) -> LinearNorm | None:
        return self._norm(self.model, "ln_final")

    def post_attention_norm(self, layer: int) -> LinearNorm | None:
        return self._norm(self.model.blocks[layer], "ln1_post")

    def post_scale_hook(self, layer: int) -> str:
        """The hook from which `read_post_scale` learns the post-attention norm's scale."""
        return f"blocks.{layer}.attn.hook_out"

    def read_post_scale(self, layer: int, value: Float[Tensor, "row d_model"]) -> Float[Tensor, "row"]:
        norm = self.post_attention_norm(layer)
        assert norm is not None
        return norm.scale(value)

    def _norm(self, owner: nn.Module, name: str) -> LinearNorm | None:
        module = owner._modules.get(name)
        return None if module is None else LinearNorm.from_module(original(module), self.geometry.d_model)

    def processing(self) -> dict[str, bool]:
        changed = bool(getattr(self.model, "compatibility_mode", False))
        folded = changed and "Pre" in str(getattr(self.model.cfg, "normalization_type", ""))
        return {"fold_ln": folded, "compatibility_mode": changed}


class LegacyBackend:
    """A ``HookedTransformer`` (transformer-lens up to 3.x), which owns its weights."""

    kind = "HookedTransformer"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = torch.device(model.cfg.device)
        self.geometry = _geometry(model.cfg, None)

    def new_cache(self) -> KVCache:
        return TLCache(self.model.cfg, self.device)

    def run(
        self, ids: Int[Tensor, "1 new"], cache: KVCache | None, hooks: Sequence[Hook] = (), last_only: bool = False
    ) -> Float[Tensor, "pos d_vocab"]:
        past = None if cache is None else cache.native
        with self.model.hooks(fwd_hooks=list(hooks)):
            # Spelled out, since it would otherwise mask every token that equals the tokenizer's pad token.
            mask = torch.ones_like(ids)
            logits = self.model(ids, return_type="logits", past_kv_cache=past, attention_mask=mask)
        return logits[0, -1:] if last_only else logits[0]

    def W_O(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        return self.model.blocks[layer].attn.W_O

    def b_O(self, layer: int) -> Float[Tensor, "d_model"] | None:
        return self.model.blocks[layer].attn.b_O.detach()

    def unembed_rows(self, ids: Sequence[int]) -> Float[Tensor, "token d_model"]:
        return self.model.unembed.W_U[:, list(ids)].T.detach()

    def unembed_bias(self, ids: Sequence[int]) -> Float[Tensor, "token"]:
        return self.model.unembed.b_U[list(ids)].detach()

    def final_norm(self) -> LinearNorm | None:
        return self._norm(self.model, "ln_final")

    def post_attention_norm(self, layer: int) -> LinearNorm | None:
        return self._norm(self.model.blocks[layer], "ln1_post")

    def post_scale_hook(self, layer: int) -> str:
        return f"blocks.{layer}.ln1_post.hook_scale"

    def read_post_scale(self, layer: int, value: Float[Tensor, "row 1"]) -> Float[Tensor, "row"]:
        return value.float().squeeze(-1)

    def _norm(self, owner: nn.Module, name: str) -> LinearNorm | None:
        module = owner._modules.get(name)
        if module is None or isinstance(module, nn.Identity):
            return None
        return LinearNorm.from_module(module, self.geometry.d_model)

    def processing(self) -> dict[str, bool]:
        W_U = self.model.unembed.W_U
        return {
            "fold_ln": "Pre" in str(self.model.cfg.normalization_type),
            "center_unembed": bool(W_U.float().mean(-1).abs().max() < 1e-6),
        }


class FusedView:
    """The same weights without hooks and with fused attention: prefill and greedy decoding run here."""

    def __init__(self, hf_model: nn.Module) -> None:
        self.model: Any = hf_model
        self.stack: Any = None  # of `stack.plain_stack`, which builds it once
        self.device = next(hf_model.parameters()).device
        self.keeps_last = "logits_to_keep" in inspect.signature(hf_model.forward).parameters

    def new_cache(self) -> KVCache:
        return HFCache(self.model.config)

    def run(
        self, ids: Int[Tensor, "1 new"], cache: KVCache | None, last_only: bool = False
    ) -> Float[Tensor, "pos d_vocab"]:
        extra: dict[str, Any] = {"logits_to_keep": 1} if last_only and self.keeps_last else {}
        native = None if cache is None else cache.native
        out = self.model(input_ids=ids, past_key_values=native, use_cache=native is not None, **extra)
        return out.logits[0, -1:] if last_only else out.logits[0]


def weights_fingerprint(model: nn.Module, samples: int = 256) -> str:
    """Short hash of a spread of entries of every parameter."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = parameter.detach().reshape(-1)
        stride = max(1, flat.numel() // samples) | 1  # odd, so that it walks through rows and columns alike
        digest.update(f"{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(flat[::stride].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def shared_copy(model: nn.Module, attention: str) -> nn.Module:
    """A second module tree over the same parameter and buffer tensors.

    Args:
        model: a transformers model.
        attention: attention implementation of the copy, "eager" or "sdpa".

    Raises:
        ValueError: when the architecture does not offer this implementation.
    """
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    twin: Any = copy.deepcopy(model, memo)
    try:
        twin.set_attn_implementation(attention)
    except ValueError:
        raise ValueError(f"{type(model).__name__} offers no {attention!r} attention") from None
    got = getattr(twin.config.get_text_config(), "_attn_implementation", None)
    if got != attention:
        raise ValueError(f"{type(model).__name__} offers no {attention!r} attention (got {got!r})")
    return twin.eval()


def unhook(bridge: Any) -> nn.Module:
    """Rebuild the plain transformers model of a bridge over the same tensors.

    Raises:
        RuntimeError: when the bridge's parameters do not map one to one onto the plain model.
    """
    wrapped = bridge.original_model
    with torch.device("meta"):
        plain = type(wrapped)(copy.deepcopy(wrapped.config))
    names = re.compile(r"(\._original_component|\.original_component)")
    tensors = {names.sub("", name): t for name, t in (*_named_tensors(wrapped),)}
    for name, kind in [(n, "parameter") for n, _ in plain.named_parameters(remove_duplicate=False)] + [
        (n, "buffer") for n, _ in plain.named_buffers(remove_duplicate=False)
    ]:
        if name not in tensors:
            raise RuntimeError(f"the bridge holds no {kind} {name!r}")
        owner_name, _, leaf = name.rpartition(".")
        owner: Any = plain.get_submodule(owner_name)
        (owner._parameters if kind == "parameter" else owner._buffers)[leaf] = tensors[name]
    return plain.eval()


def _named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer by its path in the true module tree (bridges narrow named_parameters)."""
    found: list[tuple[str, Tensor]] = []
    for path, part in nn.Module.named_modules(module, remove_duplicate=False):
        held = {**part._parameters, **part._buffers}
        found += [(f"{path}.{leaf}" if path else leaf, t) for leaf, t in held.items() if t is not None]
    return found


def original(component: Any) -> Any:
    """The module that a bridge component wraps, or the module itself."""
    return getattr(component, "original_component", None) or component


def _device_of(model: Any) -> torch.device:
    return next(iter(model.parameters())).device


def _geometry(cfg: Any, hf_config: Any) -> Geometry:
    n_kv = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
    return Geometry(
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        n_key_value_heads=n_kv,
        d_head=cfg.d_head,
        d_model=cfg.d_model,
        d_vocab=cfg.d_vocab,
        n_ctx=int(cfg.n_ctx) if hf_config is None else context_limit(hf_config),
        windows=_windows_of_legacy(cfg) if hf_config is None else windows_of(hf_config, cfg.n_layers),
    )


def context_limit(hf_config: Any) -> int | None:
    """The longest context a transformers config is made for, where it names one."""
    text = hf_config.get_text_config()
    if (fixed := _fixed_rotary(text)) is not None:
        return fixed
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        limit = getattr(text, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def _fixed_rotary(text_config: Any) -> int | None:
    """Tokens up to which "longrope" (Phi-3 with 128k, Phi-4-mini) keeps its rotary frequencies, or None.

    Beyond, those of all positions change with the length, and cached keys would be of another kind than fresh ones.
    """
    rope = getattr(text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return int(rope.get("original_max_position_embeddings") or text_config.original_max_position_embeddings)


def windows_of(hf_config: Any, n_layers: int) -> tuple[int | None, ...]:
    """Per layer, how many keys a query sees; read from the layer list the model itself uses."""
    windows = tuple(
        int(part.sliding_window) if getattr(part, "is_sliding", False) else None
        for part in HFCache(hf_config).native.layers[:n_layers]
    )
    return windows or (None,) * n_layers


def _windows_of_legacy(cfg: Any) -> tuple[int | None, ...]:
    kinds = getattr(cfg, "attn_types", None) or ["global"] * cfg.n_layers
    size = getattr(cfg, "window_size", None)
    return tuple(size if kind == "local" else None for kind in kinds)
