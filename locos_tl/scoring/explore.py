"""`phi`: the full per-position contributions of one trial, for looking at single heads."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.hooked import HookedModel, LayerRead
from ..trials.trial import Trial
from .answers import answer_steps
from .contribution import contributions
from .measure import decode_trial, exact_hooks, exact_scale, layer_directions, segment_start, target_directions

log = logging.getLogger(__name__)


def generate(model: HookedModel, trial: Trial, max_new_tokens: int = 50) -> Trial:
    """The trial with the model's own greedy answer as ``generated_ids``."""
    start = segment_start(trial, window=False)
    _, decoding = decode_trial(model, trial, max_new_tokens, rewind_to=start)
    return trial.with_generation(decoding.ids)


def phi(
    model: HookedModel,
    trial: Trial,
    *,
    target: int | str | Sequence[int] | None = None,
    steps: int | Sequence[int] | None = None,
    variant: str = "paper",
    max_new_tokens: int = 50,
) -> Float[Tensor, "layer head step position"]:
    """phi[l,h,t,j] = alpha[l,h,t,j] u[y_t]^T W_O[l,h] v[l,h,j] of one trial (arXiv 2607.01002, section 2).

    Args:
        model: from `load_model`.
        trial: its ``generated_ids`` are used if given, else the model decodes.
        target: the token y whose logit is asked about: an id, a text of one token, or one id per step;
            default: the token generated at each step.
        steps: decode steps, one or several; step t is the query that produces generated token t, step 0 the last prompt
            token. Default: the answer steps, or step 0 where the answer was not generated.
        variant: "paper", "folded" or "exact"; see `score_heads`.

    Returns:
        float32; the last axis are absolute positions of prompt and generated tokens up to the last
        step's query. Keys a query cannot see are 0. Summed over positions: u.(z W_O) per head.

    Raises:
        ValueError: for a step that was not generated, or a text that is not one token.
    """
    if not isinstance(trial, Trial):
        raise ValueError(f"phi takes one Trial, got {type(trial).__name__}: give trials[0]")
    fixed = None if target is None else _as_ids(model, target)
    if trial.generated_ids is None:
        trial = generate(model, trial, max_new_tokens)
    generated = trial.generated_ids or ()
    if steps is None:
        steps = answer_steps(model.tokenizer, generated, trial.answer) if model.tokenizer is not None else ()
        if not steps:
            log.warning("trial %r: the answer was not generated, so this is phi at step 0", trial.trial_id)
            steps = (0,)
    steps = [steps] if isinstance(steps, int) else [int(step) for step in steps]
    ids, n = (*trial.prompt_ids, *generated), trial.n_tokens
    if not steps or min(steps) < 0 or max(steps) > len(generated) or (target is None and max(steps) >= len(generated)):
        raise ValueError(f"steps {steps} do not fit {len(generated)} generated tokens")
    targets = [ids[n + step] for step in steps] if fixed is None else fixed * (len(steps) if len(fixed) == 1 else 1)
    if len(targets) != len(steps):
        raise ValueError(f"{len(targets)} targets for {len(steps)} steps")
    start = segment_start(trial, window=False)
    n_positions = n + max(steps)
    rows = [n - 1 + step - start for step in steps]
    directions = target_directions(model, targets, variant)
    out = torch.zeros(model.n_layers, model.n_heads, len(steps), n_positions)
    post_scales: dict[int, Tensor] = {}
    final: list[Tensor] = []

    def read(layer: LayerRead) -> None:
        Wu = layer_directions(model, layer, directions, variant)
        out[layer.layer, :, :, layer.first_key :] = contributions(layer.pattern[:, rows], layer.values, Wu).cpu()

    cache = model.fill(trial.prompt_ids[:start])
    hooks = exact_hooks(model, rows, post_scales.__setitem__, final.append) if variant == "exact" else []
    model.segment(ids[start:n_positions], cache, read, hooks, last_only=True)
    if variant == "exact":
        out /= exact_scale(model.n_layers, post_scales, final[0])[:, None, :, None]
    return out


def _as_ids(model: HookedModel, target: int | str | Sequence[int]) -> list[int]:
    """Target token ids from an id, a text of one token, or ids."""
    if isinstance(target, str):
        if model.tokenizer is None:
            raise ValueError(f"{model.info.name} has no tokenizer, so a target must be a token id")
        found = model.tokenizer(target, add_special_tokens=False)["input_ids"]
        if len(found) != 1:
            hint = (
                "" if not target.strip() or target.startswith(" ") else f"; inside a text it would be {' ' + target!r}"
            )
            raise ValueError(f"{target!r} is {len(found)} tokens for this tokenizer; a target is one{hint}")
        return [int(found[0])]
    ids = [int(t) for t in target] if isinstance(target, Sequence) else [int(target)]
    if not all(0 <= t < model.geometry.d_vocab for t in ids):
        raise ValueError(f"a target is outside the vocabulary of {model.geometry.d_vocab} tokens")
    return ids
