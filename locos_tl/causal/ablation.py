"""`ablation`: a model without some of its heads, in prefill and every decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..choices import did_you_mean
from ..models.hooked import HookedModel
from ..models.stack import Edit, hooked_stack, plain_stack
from .heads import Head, as_heads, head_name
from .means import ABLATED, HeadMeans

MODES = ("mean", "zero", "resample")


@dataclass
class Ablation:
    """An ablation in force.

    Attributes:
        heads: the ablated heads.
        at: "q" (the query) or "z" (the head's output).
        mode: what it is replaced by.
        firings: per ablated layer, how often its activation was replaced.
    """

    heads: tuple[Head, ...]
    at: str
    mode: str
    firings: dict[int, int] = field(default_factory=dict)


@contextmanager
def ablation(
    model: HookedModel,
    heads: Any,
    *,
    at: str = "q",
    mode: str = "mean",
    means: HeadMeans | None = None,
    seed: int = 42,
) -> Iterator[Ablation]:
    """Replace the activations of some heads at every position of everything the model runs inside the block.

    The default is the released setting of arXiv 2607.01002 (section 4): the head's query, before rotary embedding
    and query norm, becomes its mean over calibration prompts, so that the head attends as it would on average.
    At "z" the head's output before W_O is replaced, the field's other standard. Query heads that share a key-value
    head are ablated one by one: keys and values stay. (OLMo-2 and 3 norm the queries of all heads together: there a
    head's replaced query also rescales those of its neighbours. "z" touches no other head.)

    Args:
        model: from `load_model`.
        heads: (layer, head) pairs, names like "L23H1", or a table from `HeadScores.top`.
        at: "q" or "z".
        mode: "mean", "zero", or "resample": at absolute position p the activation that the head had at one
            position of the calibration prompts, drawn by ``seed`` and the same for all heads.
        means: from `calibrate_means`; not needed for "zero".
        seed: draws the positions of "resample".

    Runs with ``out=`` inside the block have the ablation in their settings, so that they never mix with others.

    Yields:
        The ablation, whose ``firings`` count the replacements in each layer.

    Raises:
        ValueError: for impossible heads, sites or modes, or means that are missing or of another model.
        RuntimeError: at the end of the block, when some layer was never run, so that nothing was ablated there.
    """
    chosen = as_heads(heads, model.n_layers, model.n_heads)
    check_ablation(model, at, mode, means)
    with ablated_rows(model, [chosen], at=at, mode=mode, means=means, seed=seed) as state:
        yield state


@contextmanager
def ablated_rows(
    model: HookedModel,
    rows: Sequence[Sequence[Head]],
    *,
    at: str = "q",
    mode: str = "mean",
    means: HeadMeans | None = None,
    seed: int = 42,
) -> Iterator[Ablation]:
    """`ablation` of a batch in which every row is without heads of its own.

    Args:
        model, at, mode, means, seed: see `ablation`; taken as they are, since `check_ablation` reads every weight.
        rows: checked heads for each row; one entry alone holds for all rows.
    """
    layers = sorted({layer for heads in rows for layer, _ in heads})
    state = Ablation(tuple(dict.fromkeys(head for heads in rows for head in heads)), at, mode)
    plain, hooked = plain_stack(model), hooked_stack(model)
    position = _Position()
    with ExitStack() as block:
        views = [hooked]
        if plain is not None and plain.can_edit(at):
            views.append(plain)
        elif model.fused is not None:
            block.callback(setattr, model, "fused", model.fused)
            model.fused = None  # it could not be ablated, so everything runs on the hooked model
        for view in views:
            if mode == "resample":
                block.enter_context(position.followed(view.model))  # type: ignore[attr-defined]
            for layer in layers:
                new = _replacement(layer, at, mode, means, position, seed, model.device)
                edit = _edit(rows, layer, model.n_heads, new, state.firings)
                block.enter_context(view.edit(layer, at, edit))
        model.interventions.append(_told(state, means, seed))
        block.callback(model.interventions.pop)
        yield state
    missed = [layer for layer in layers if not state.firings.get(layer)]
    if missed:
        lost = ", ".join(head_name(head) for head in state.heads if head[0] in missed)
        raise RuntimeError(
            f"{lost}: the ablation never fired, so nothing was ablated there. Run the model inside the block, through "
            "`HookedModel` or its `hooked` model."
        )


def _told(state: Ablation, means: HeadMeans | None, seed: int) -> str:
    """The ablation in a line, for the settings of runs made under it."""
    names = ",".join(head_name(head) for head in sorted(state.heads))
    source = {"zero": "", "mean": f" {means.digest()}" if means else "", "resample": f" seed {seed}"}[state.mode]
    return f"ablation at {state.at}, {state.mode}{source}: {names}"


def check_kind(at: str, mode: str) -> None:
    """Refuse an unknown site or mode."""
    if at not in ABLATED:
        raise ValueError(f"at must be one of {', '.join(ABLATED)}, got {at!r}{did_you_mean(at, ABLATED)}")
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}{did_you_mean(mode, MODES)}")


def check_ablation(model: HookedModel, at: str, mode: str, means: HeadMeans | None) -> None:
    """Refuse an impossible site or mode, and means that are missing or of another model.

    Raises:
        ValueError: saying which.
    """
    check_kind(at, mode)
    if mode == "zero":
        return
    if means is None:
        raise ValueError(
            f"mode {mode!r} needs to know what heads are replaced by: give means=calibrate_means(model, trials), "
            "or calibration=trials to ablate_sweep"
        )
    if tuple(means.mean[at].shape) != (model.n_layers, model.n_heads, model.d_head):
        raise ValueError(
            f"the means have shape {tuple(means.mean[at].shape)} [layer, head, d_head], the model "
            f"{(model.n_layers, model.n_heads, model.d_head)}"
        )
    if means.weights != model.weights_fingerprint():
        raise ValueError("the means are of another model (its weights differ); run calibrate_means on this one")


Replacement = Callable[[int], Tensor]
"""From the number of positions of a run to what the heads of a layer become, [pos or 1, head, d_head], or a scalar."""


def _replacement(
    layer: int, at: str, mode: str, means: HeadMeans | None, position: _Position, seed: int, device: torch.device
) -> Replacement:
    if mode == "zero":
        zero = torch.zeros((), device=device)
        return lambda n: zero
    assert means is not None
    if mode == "mean":
        fixed = means.mean[at][layer][None].to(device)
        return lambda n: fixed
    bank = means.sample[at][:, layer].to(device)
    return lambda n: bank[position.draws(n, bank.shape[0], seed)]


def _edit(rows: Sequence[Sequence[Head]], layer: int, n_heads: int, new: Replacement, firings: dict[int, int]) -> Edit:
    """Replace, in each row, the heads that this row is without."""
    mask = torch.zeros(len(rows), 1, n_heads, 1, dtype=torch.bool)
    for row, heads in enumerate(rows):
        mask[row, :, [head for at_layer, head in heads if at_layer == layer]] = True

    def edit(value: Tensor) -> Tensor:
        nonlocal mask
        firings[layer] = firings.get(layer, 0) + 1
        mask = mask.to(value.device)
        return torch.where(mask, new(value.shape[1]).to(value), value)

    return edit


class _Position:
    """The absolute position at which the present run starts, so that cached steps draw what one run would."""

    def __init__(self) -> None:
        self.start = 0
        self._drawn: np.ndarray = np.zeros(0, np.int64)

    @contextmanager
    def followed(self, module: torch.nn.Module) -> Iterator[None]:
        """Learn the start of every run of ``module`` from the cache it is given."""

        def note(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
            cache = kwargs.get("past_key_values", kwargs.get("past_kv_cache"))
            if cache is None:
                self.start = 0
            elif hasattr(cache, "get_seq_length"):
                self.start = int(cache.get_seq_length())
            else:
                self.start = int(cache[0].past_keys.shape[1])

        handle = module.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def draws(self, n: int, size: int, seed: int) -> Tensor:
        """Which of ``size`` samples stands at each of the run's ``n`` positions."""
        needed = self.start + n
        if needed > len(self._drawn):
            self._drawn = np.random.default_rng(seed).integers(size, size=2 * needed)
        return torch.from_numpy(self._drawn[self.start : needed])
