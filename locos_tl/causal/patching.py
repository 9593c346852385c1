"""Activation patching, head by head: what restoring one clean activation does to a corrupt run.

1. Run both prompts once; keep clean activations and the corrupt stream that enters every layer.
2. For each layer, enter there with the corrupt stream, one row per head, and give each row its head's clean
   activation. Layers below are not run again, positions before the first difference never.
3. Effect of a head: metric of its row minus metric of the corrupt run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..choices import did_you_mean
from ..models.check import versions
from ..models.hooked import HookedModel
from ..models.stack import SITES
from ..progress import progress_bar
from ..results.effects import Effects
from .heads import as_heads, by_layer
from .pair_runs import PairRuns, head_axis
from .pairs import PromptPair, as_pairs


def patch_heads(
    model: HookedModel,
    clean: Any,
    corrupt: Any = None,
    *,
    at: str = "z",
    positions: str = "all",
    metric: str = "logit_diff",
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Effects:
    """Exact activation patching of every head (CRI at "z" and all positions; arXiv 2607.01002, section 5).

    Args:
        model: from `load_model`.
        clean: a `Trial` with its fact, a `PromptPair` of any two prompts, or a sequence of either.
        corrupt: the trial's twin from `corrupt`, one for each clean trial; nothing for pairs.
        at: what is restored: "z" (output), "q", "k", "v" or "pattern". k and v belong to key-value heads, so under
            grouped-query attention the result's head axis counts those.
        positions: restored at "all" positions, at the "needle" (for pairs: from the first to the last difference),
            or at the queries of the "answer".
        metric: "logit_diff", gold minus counterfactual at the first answer token, or "answer_logprob", the mean over
            the answer's tokens.
        batch_size: heads that go through together; default: as many as a few thousand tokens allow.
        progress: show a bar; default: on a terminal.

    Returns:
        Effects of kind "total": metric of the patched minus metric of the corrupt run.

    Raises:
        ValueError: for prompts of unequal length, or an unknown option.
        RuntimeError: when a hook does not fire.
    """
    require_site(at)

    def measure(runs: PairRuns) -> np.ndarray:
        return patch_map(runs, at, positions, batch_size)

    return measure_pairs(
        model, as_pairs(model, clean, corrupt), measure, "total", at, metric, positions, progress=progress
    )


def total_effects(
    model: HookedModel,
    clean: Any,
    corrupt: Any = None,
    *,
    metric: str = "logit_diff",
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Effects:
    """The total effect of every head: its output z restored at all positions, through every path.

    Args:
        model, clean, corrupt, metric, batch_size, progress: as in `patch_heads`, which restores other sites too.
    """
    return patch_heads(model, clean, corrupt, metric=metric, batch_size=batch_size, progress=progress)


def patch_together(
    model: HookedModel,
    clean: Any,
    corrupt: Any = None,
    *,
    heads: Any,
    at: str = "z",
    positions: str = "all",
    metric: str = "logit_diff",
) -> np.ndarray:
    """Recovery of the metric when several heads are restored in one run: (patched - corrupt) / (clean - corrupt).

    Args:
        model, clean, corrupt, at, positions, metric: as in `patch_heads`.
        heads: the heads; under grouped-query attention key-value heads at "k" and "v".

    Returns:
        One number per pair; NaN where clean and corrupt do not differ.
    """
    pairs = as_pairs(model, clean, corrupt)
    chosen = by_layer(as_heads(heads, model.n_layers, axis_size(model, at), kv=on_kv_heads(model, at)))
    found = []
    for pair in pairs:
        runs = PairRuns(model, pair, [at], metric)
        where = runs.positions(positions)
        first = min(chosen)
        edits = [(layer, at, _restore_all(runs, layer, at, indices, where)) for layer, indices in chosen.items()]
        value = float(runs.patched(first, runs.streams[first], edits)[0])
        gap = runs.clean_metric - runs.corrupt_metric
        found.append((value - runs.corrupt_metric) / gap if abs(gap) > 1e-6 else np.nan)
    return np.array(found)


def require_site(at: str) -> None:
    """Refuse an unknown site before anything runs."""
    if at not in SITES:
        raise ValueError(f"at must be one of {', '.join(SITES)}, got {at!r}{did_you_mean(at, SITES)}")


def on_kv_heads(model: HookedModel, at: str) -> bool:
    """True for sites that belong to key-value heads which several query heads share."""
    return at in ("k", "v") and model.n_key_value_heads < model.n_heads


def axis_size(model: HookedModel, at: str) -> int:
    """Number of heads that a site has in each layer."""
    return model.n_key_value_heads if at in ("k", "v") else model.n_heads


def measure_pairs(
    model: HookedModel,
    pairs: Sequence[PromptPair],
    measure: Callable[[PairRuns], np.ndarray],
    kind: str,
    at: str,
    metric: str,
    positions: str = "all",
    *,
    sites: Iterable[str] = (),
    settings: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Effects:
    """Run every pair, measure a [layer, head] map on each, and stack the maps.

    Args:
        measure: from a pair's runs to its effects.
        sites: sites to keep besides ``at``.
        settings: what else decides the numbers, for the provenance.
    """
    maps, runs_of = [], []
    with progress_bar(f"{kind} effects", len(pairs), show=progress) as advance:
        for pair in pairs:
            runs = PairRuns(model, pair, list(dict.fromkeys([at, *sites])), metric)
            maps.append(measure(runs))
            runs_of.append((runs.clean_metric, runs.corrupt_metric, runs.counterfactual))
            advance(f"{metric} {runs.clean_metric:.2f} clean, {runs.corrupt_metric:.2f} corrupt")
    clean, corrupted, counterfactuals = zip(*runs_of, strict=True)
    return Effects(
        kind=kind,
        at=at,
        metric=metric,
        positions=positions,
        per_trial=np.stack(maps),
        clean=np.array(clean),
        corrupt=np.array(corrupted),
        trial_ids=_unique([pair.pair_id for pair in pairs]),
        n_heads=model.n_heads,
        n_key_value_heads=model.n_key_value_heads,
        provenance={
            "model": model.describe(),
            "versions": versions(),
            "patching": {"counterfactuals": list(counterfactuals), **(settings or {})},
        }
        | ({"trials": {"prompts": [pair.prompt for pair in pairs]}} if all(pair.prompt for pair in pairs) else {}),
    )


def patch_map(
    runs: PairRuns, at: str = "z", positions: str = "all", batch_size: int | None = None
) -> Float[np.ndarray, "layer head"]:
    """Effect of restoring each head in one pair's corrupt run."""
    where = runs.positions(positions)
    layers = [_patch_layer(runs, layer, at, where, batch_size) for layer in range(runs.stack.n_layers)]
    return torch.stack(layers).numpy() - runs.corrupt_metric


def _patch_layer(runs: PairRuns, layer: int, at: str, where: Tensor, batch_size: int | None) -> Tensor:
    """Metric with each head of one layer restored, [head]."""
    n_heads = runs.clean[layer, at].shape[1]
    stream = runs.streams[layer]
    found = []
    for heads in torch.arange(n_heads).split(runs.rows_at_once(batch_size)):
        edit = restore_each(runs.clean[layer, at], at, heads, where)
        found.append(runs.patched(layer, stream.expand(len(heads), -1, -1), [(layer, at, edit)]).cpu())
    return torch.cat(found)


def restore_each(clean: Tensor, at: str, heads: Tensor, where: Tensor) -> Callable[[Tensor], Tensor]:
    """An edit that gives row i the clean activation of ``heads[i]`` at the positions ``where``."""

    def edit(value: Tensor) -> Tensor:
        out = value.clone()
        rows = torch.arange(len(heads))[:, None]
        head_axis(out, at)[rows, where[None], heads[:, None]] = clean[where[None], heads[:, None]].to(value)
        return out

    return edit


def _restore_all(runs: PairRuns, layer: int, at: str, heads: list[int], where: Tensor) -> Callable[[Tensor], Tensor]:
    """An edit that restores several heads in every row."""
    clean = runs.clean[layer, at]

    def edit(value: Tensor) -> Tensor:
        out = value.clone()
        head_axis(out, at)[:, where[:, None], heads] = clean[where[:, None], heads].to(value)
        return out

    return edit


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with a number behind those that occur again."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(out)
