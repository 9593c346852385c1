"""Single paths: from a head straight to the logits, or from a head into another head's query, key or value.

A direct path leaves everything between sender and receiver as in the corrupt run. The sender's write is what its
output adds to the residual stream, (z_clean - z_corrupt) W_O, through the norm that some models put behind the
attention (Gemma-2/3, OLMo-2/3).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from ..models.check import soft_cap
from ..models.hooked import HookedModel
from ..results.effects import Effects
from .heads import Head, as_heads, by_layer, head_name
from .pair_runs import PairRuns
from .pairs import as_pairs
from .patching import axis_size, measure_pairs, on_kv_heads

NORMS = ("recomputed", "frozen")
_VOCAB_CHUNK = 16384


def direct_effects(
    model: HookedModel,
    clean: Any,
    corrupt: Any = None,
    *,
    metric: str = "logit_diff",
    norm: str = "recomputed",
    progress: bool | None = None,
) -> Effects:
    """The direct effect of every head: its clean output restored, allowed to reach only the logits.

    No layer is run again: the head's write is added to the corrupt stream in front of the final norm, at the
    queries of the answer (arXiv 2607.01002, section 5: path patching head -> logits).

    Args:
        model, clean, corrupt, metric, progress: as in `patch_heads`.
        norm: "recomputed": the final norm (and a norm behind the attention) sees the changed stream; "frozen": it
            keeps the corrupt run's scale, so that effects of several heads add up before the soft cap.

    Raises:
        ValueError: for an unknown option, or a final norm that is not affine.
        RuntimeError: when the corrupt run's own logits cannot be reproduced from its stream.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")

    return measure_pairs(
        model,
        as_pairs(model, clean, corrupt),
        lambda runs: direct_map(runs, norm),
        "direct",
        "z",
        metric,
        settings={"norm": norm},
        progress=progress,
    )


@torch.inference_mode()
def direct_map(runs: PairRuns, norm: str = "recomputed") -> Float[np.ndarray, "layer head"]:
    """Effect of each head's clean write on the logits alone, in one pair's corrupt run."""
    model, last = runs.model, slice(-runs.n_answer, None)
    stream = runs.streams[model.n_layers][0, last].float()
    base = _metric_of_stream(runs, stream[None], stream, norm)[0]
    _require_same_metric(model, float(base), runs)
    found = []
    for layer in range(model.n_layers):
        written = writes(model, runs, layer, norm)[:, last].to(stream.device)
        found.append(_metric_of_stream(runs, stream + written, stream, norm) - base)
    return torch.stack(found).cpu().numpy()


@torch.inference_mode()
def writes(
    model: HookedModel, runs: PairRuns, layer: int, norm: str = "recomputed"
) -> Float[Tensor, "head pos d_model"]:
    """What restoring each head of a layer adds to the residual stream at once, float32."""
    W_O = model.W_O(layer).float()
    clean, corrupted = (acts[layer, "z"].float().to(W_O.device) for acts in (runs.clean, runs.corrupt))
    delta = einsum(clean - corrupted, W_O, "pos head d_head, head d_head d_model -> head pos d_model")
    post = model.post_attention_norm(layer)
    if post is None:
        return delta
    b_O = model.b_O(layer)
    out = einsum(corrupted, W_O, "pos head d_head, head d_head d_model -> pos d_model")
    out = out if b_O is None else out + b_O.float()
    if norm == "frozen":
        return post.frozen(delta, post.scale(out).expand(delta.shape[:-1]))
    return post(out + delta) - post(out)


def _metric_of_stream(
    runs: PairRuns, x: Float[Tensor, "row answer d_model"], corrupted: Float[Tensor, "answer d_model"], norm: str
) -> Float[Tensor, "row"]:
    """The metric that streams in front of the final norm lead to, in float32."""
    final = runs.model.final_norm()
    normed = (
        final(x) if norm == "recomputed" else final.frozen(x, final.scale(corrupted).expand(x.shape[:-1])) + final.bias
    )
    if runs.metric_name == "logit_diff":
        ids = [runs.pair.answer_ids[0], runs.counterfactual]
        gold, other = _logits(runs.model, normed[:, 0], ids).unbind(-1)
        return gold - other
    gold = torch.stack([_logits(runs.model, normed[:, i], [y])[:, 0] for i, y in enumerate(runs.pair.answer_ids)], 1)
    d_vocab = runs.model.geometry.d_vocab
    parts = [
        _logits(runs.model, normed, range(first, min(first + _VOCAB_CHUNK, d_vocab))).logsumexp(-1)
        for first in range(0, d_vocab, _VOCAB_CHUNK)
    ]
    return (gold - torch.stack(parts).logsumexp(0)).mean(-1)


def _logits(model: HookedModel, normed: Tensor, ids: Any) -> Tensor:
    ids = list(ids)
    logits = normed @ model.unembed(ids).to(normed.device).T + model.unembed_bias(ids).to(normed.device)
    cap = soft_cap(model)
    return cap * torch.tanh(logits / cap) if cap else logits


def _require_same_metric(model: HookedModel, found: float, runs: PairRuns) -> None:
    tolerance = 1e-2 if model.info.dtype in ("float32", "float64") else 0.5
    if abs(found - runs.corrupt_metric) > tolerance * max(1.0, abs(runs.corrupt_metric)):
        raise RuntimeError(
            f"{model.info.name}: final norm and unembedding give {found:.4g} for the corrupt run's {runs.metric_name}, "
            f"the model itself {runs.corrupt_metric:.4g}; something else stands between stream and logits, so direct "
            "effects would be wrong. total_effects does not need them."
        )


def path_patching(
    model: HookedModel,
    clean: Any,
    corrupt: Any = None,
    *,
    sender: Any = None,
    receivers: Any,
    through: str = "q",
    metric: str = "logit_diff",
    progress: bool | None = None,
) -> Effects:
    """Effect of each sender on the answer by way of the receivers' query, key or value alone.

    For each sender, its clean write is added to the corrupt stream that each receiver reads for ``through``; the
    receiver's other inputs, and all that lies between, stay corrupt. The run then goes on with the receivers' changed
    q, k or v (direct path patching, Wang et al. 2022, arXiv 2211.00593).

    Args:
        model, clean, corrupt, metric, progress: as in `patch_heads`.
        sender: one head or several; default: every head below the last receiver.
        receivers: one head or several, patched together. Through "k" and "v" they are key-value heads.
        through: "q", "k" or "v".

    Returns:
        Effects of kind "path" over senders; NaN for heads that are none.

    Raises:
        ValueError: for heads outside the model, or a sender that is not below every receiver.
    """
    if through not in ("q", "k", "v"):
        raise ValueError(f"through must be q, k or v, got {through!r}")
    targets = as_heads(
        receivers, model.n_layers, axis_size(model, through), "receivers", kv=on_kv_heads(model, through)
    )
    top = max(layer for layer, _ in targets)
    everyone = [(layer, head) for layer in range(top) for head in range(model.n_heads)]
    if sender is None and not everyone:
        raise ValueError("the receivers are in the first layer: no head is below them")
    senders = as_heads(everyone if sender is None else sender, model.n_layers, model.n_heads, "sender")
    if late := [head for head in senders if head[0] >= top]:
        raise ValueError(f"sender {head_name(late[0])} is not below any receiver (the last is in layer {top})")

    def measure(runs: PairRuns) -> np.ndarray:
        found = np.full((model.n_layers, model.n_heads), np.nan, np.float32)
        for layer, heads in by_layer(senders).items():
            for some in torch.tensor(heads).split(runs.rows_at_once(None)):
                values = _through_receivers(model, runs, layer, some, targets, through)
                found[layer, some.numpy()] = values.cpu().numpy() - runs.corrupt_metric
        return found

    return measure_pairs(
        model,
        as_pairs(model, clean, corrupt),
        measure,
        "path",
        "z",
        metric,
        sites=[through],
        settings={"receivers": [head_name(head) for head in targets], "through": through},
        progress=progress,
    )


class _Read(Exception):
    pass


@torch.inference_mode()
def _through_receivers(
    model: HookedModel, runs: PairRuns, layer: int, heads: Tensor, receivers: tuple[Head, ...], through: str
) -> Tensor:
    """Metric of one run per sender, [sender]; receivers that are not above the senders stay corrupt."""
    delta = writes(model, runs, layer)[heads.tolist()]
    above = {where: indices for where, indices in by_layer(receivers).items() if where > layer}
    edits = []
    for where, indices in above.items():
        changed = _activation_after(runs, where, through, runs.streams[where].float() + delta)
        edits.append((where, through, partial(_set_heads, new=changed[:, :, indices], heads=indices)))
    first = min(above)
    return runs.patched(first, runs.streams[first].expand(len(heads), -1, -1), edits)


def _activation_after(runs: PairRuns, layer: int, at: str, stream: Tensor) -> Tensor:
    """The q, k or v that a layer computes from a stream, [row pos head d_head]."""
    found: list[Tensor] = []

    def read(value: Tensor) -> None:
        found.append(value)
        raise _Read

    with runs.stack.edit(layer, at, read):
        try:
            runs.stack.run(runs.ids, enter=(layer, stream.to(runs.streams[layer].dtype)), cache=runs.prefix, keep=1)
        except _Read:
            return found[0]
    raise RuntimeError(f"hook_{at} of layer {layer} did not fire: no path to follow")


def _set_heads(value: Tensor, new: Tensor, heads: list[int]) -> Tensor:
    out = value.clone()
    out[:, :, heads] = new.to(value)
    return out
