"""Attribution patching: the total effect of all heads, to first order, from two forwards and one backward."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..models.hooked import HookedModel
from ..results.effects import Effects
from .pair_runs import PairRuns, head_axis
from .pairs import as_pairs
from .patching import measure_pairs, require_site


def attribution_patching(
    model: HookedModel,
    clean: Any,
    corrupt: Any = None,
    *,
    at: str = "z",
    positions: str = "all",
    metric: str = "logit_diff",
    progress: bool | None = None,
) -> Effects:
    """First-order estimate of `patch_heads` for every head: (clean - corrupt) . d metric / d activation.

    The gradient is taken in the corrupt run (Nanda 2023). It misses what saturates, such as a softmax far from where
    the patch would put it; `Effects.agreement` with exact effects says how well it does on a given model.

    Args:
        model, clean, corrupt, at, positions, metric, progress: as in `patch_heads`.

    Returns:
        Effects of kind "attribution", in the metric's own unit like those of `patch_heads`.

    Raises:
        RuntimeError: when no gradient reaches some layer, or one that is not finite.
    """
    require_site(at)
    return measure_pairs(
        model,
        as_pairs(model, clean, corrupt),
        lambda runs: attribution_map(runs, at, positions),
        "attribution",
        at,
        metric,
        positions,
        progress=progress,
    )


def attribution_map(runs: PairRuns, at: str = "z", positions: str = "all") -> Float[np.ndarray, "layer head"]:
    """Estimated effect of restoring each head in one pair's corrupt run."""
    where = runs.positions(positions)
    found = []
    for layer, gradient in enumerate(gradients(runs, at)):
        delta = (runs.clean[layer, at] - runs.corrupt[layer, at]).float()
        found.append((delta * gradient)[where].sum((0, 2)).cpu())
    return torch.stack(found).numpy()


def gradients(runs: PairRuns, at: str) -> list[Tensor]:
    """Gradient of the corrupt run's metric with respect to a site, one float32 tensor [pos head ...] a layer.

    The gradient is that of a zero added to the activation, so it is the one of the tensor the model goes on with.
    """
    if any(parameter.is_inference() for parameter in runs.model.hooked.parameters()):
        raise RuntimeError(
            f"{runs.model.info.name} was built under torch.inference_mode, so no gradient can pass its weights: "
            "build it outside"
        )
    probes: dict[int, Tensor] = {}

    def probe(layer: int) -> Any:
        def edit(value: Tensor) -> Tensor:
            probes[layer] = torch.zeros_like(value, requires_grad=True)
            return value + probes[layer]

        return edit

    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as block:
        for layer in range(runs.stack.n_layers):
            block.enter_context(runs.stack.edit(layer, at, probe(layer)))
        logits = runs.stack.run(runs.ids.clone(), cache=_trainable(runs.prefix), keep=runs.n_answer)
        value = runs.metric(logits)[0]
        layers = sorted(probes)
        found = torch.autograd.grad(value, [probes[layer] for layer in layers], allow_unused=True)
    if len(layers) != runs.stack.n_layers or any(g is None for g in found):
        lost = next(i for i in range(runs.stack.n_layers) if i not in probes or found[layers.index(i)] is None)
        raise RuntimeError(f"no gradient reaches hook_{at} of layer {lost}")
    if not all(g.isfinite().all() for g in found):
        raise RuntimeError(f"a gradient at hook_{at} is not finite; load the model as float32")
    return [head_axis(g, at)[0].float() for g in found]


def _trainable(cache: Any) -> Any:
    """A cache made under inference mode, in tensors that a backward pass may save."""
    if cache is None:
        return None
    twin = copy.copy(cache)
    twin.layers = []
    for part in cache.layers:
        part = copy.copy(part)
        if part.is_initialized:
            part.keys, part.values = part.keys.clone(), part.values.clone()
        twin.layers.append(part)
    return twin
