"""Where a hook is and what it holds: the hook points that this library reads, as they are in one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from .hooked import HookedModel, window_text

PROBE = 11
"""Tokens of the prompt that shapes are read from."""


class HookRow(NamedTuple):
    """One hook point.

    Attributes:
        hook: its name in TransformerLens; {layer} stands for each layer's number.
        axes: what its axes count.
        shape: their sizes for a prompt of `PROBE` tokens; "not there" where the model has no such hook.
        holds: what is in it.
        read_for: what it is read for here.
    """

    hook: str
    axes: str
    shape: str
    holds: str
    read_for: str


def hook_table(model: HookedModel) -> list[HookRow]:
    """The hook points that are read on this model, with the shapes that a short prompt gives them.

    Args:
        model: any loaded model; it is run once.
    """
    rows = _rows(model)
    last = model.n_layers - 1
    names = {row.hook: row.hook.replace("{layer}", "0").replace("{last}", str(last)) for row in rows}
    seen: dict[str, tuple[int, ...]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook_fn(value: Tensor, hook: Any) -> None:
            seen[name] = tuple(value.shape)

        return hook_fn

    hooks = [(name, keep(name)) for name in names.values() if name in model.hooked.hook_dict]
    model.segment([i % model.geometry.d_vocab for i in range(5, 5 + PROBE)], None, lambda read: None, hooks=hooks)
    return [
        row._replace(
            hook=row.hook.replace("{last}", str(last)),
            shape=" x ".join(map(str, seen[names[row.hook]])) if names[row.hook] in seen else "not there",
        )
        for row in rows
    ]


def _rows(model: HookedModel) -> list[HookRow]:
    """The hook points and what they hold; shapes are yet to be read."""
    grouped = model.n_key_value_heads < model.n_heads
    kv = "kv_head" if grouped else "head"
    shared = f", one for each {model.geometry.group_size} query heads" if grouped else ""
    windows = window_text(model.geometry)
    narrow = f"; sliding windows: {windows}" if windows else ""
    rows = [
        (
            "blocks.{layer}.attn.hook_pattern",
            "batch head query key",
            f"attention probabilities alpha, after the softmax{narrow}",
            "every detector",
        ),
        (
            "blocks.{layer}.attn.hook_v",
            f"batch pos {kv} d_head",
            f"values, as they are cached{shared}",
            "every score of what heads write",
        ),
        (
            "blocks.{layer}.attn.hook_q",
            "batch pos head d_head",
            "queries, before rotary embedding and query norm",
            "ablation and patching at q",
        ),
        (
            "blocks.{layer}.attn.hook_k",
            f"batch pos {kv} d_head",
            f"keys, before rotary embedding and key norm{shared}",
            "patching at k",
        ),
        (
            "blocks.{layer}.attn.hook_z",
            "batch pos head d_head",
            "head outputs: values weighted by the pattern, before W_O",
            "ablation and patching at z; check",
        ),
        (
            "blocks.0.hook_resid_pre",
            "batch pos d_model",
            "residual stream that enters the first layer",
            "check of the exact decomposition; entering at a layer",
        ),
        (
            "blocks.{layer}.hook_mlp_out",
            "batch pos d_model",
            "what the MLP adds to the residual stream, after any post-norm",
            "check of the exact decomposition",
        ),
        (
            "blocks.{last}.hook_resid_post",
            "batch pos d_model",
            "residual stream that leaves the last layer",
            "scale of the final norm (variant exact)",
        ),
    ]
    if model.post_attention_norm(0) is not None:
        name = model.backend.post_scale_hook(0).replace("blocks.0.", "blocks.{layer}.", 1)
        holds = "its scale" if name.endswith("scale") else "its input: what all heads of the layer write"
        axes = "batch pos 1" if name.endswith("scale") else "batch pos d_model"
        rows.append((name, axes, f"of the norm behind the attention, {holds}", "variant exact"))
    return [HookRow(hook, axes, "", holds, use) for hook, axes, holds, use in rows]
