"""`read_heads`: where every head reads, what it writes and which tokens it promotes, in one trial.

One hooked segment, like that of `measure`:

1. attention and phi of the answer steps, at every position of a short context; of a long one at its ends, around the
   needle, and for each head where it reads and writes most;
2. the head's output z W_O at the first answer step, through the frozen norms and the unembedding: the tokens it makes
   more and less likely (the logit lens of one head).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models.hooked import HookedModel, LayerRead
from ..results.files import plain
from ..results.reading import HeadReading
from ..trials.trial import Trial
from .answers import answer_steps
from .contribution import contributions
from .explore import generate
from .measure import check_variants, exact_hooks, exact_scale, layer_directions, segment_start, target_directions

DENSE = 200_000
"""Contexts are kept whole up to so many positions times heads: 740 tokens of 270 heads."""
EDGE, AROUND, TAIL = 8, 12, 48
"""What a long context is reduced to: so many positions at its beginning, beside the needle, at the prompt's end."""
N_PEAKS = 10
"""Positions of a head's own: so many of the largest attention, of the largest and of the smallest phi."""
N_TOKENS = 10
"""Promoted and suppressed tokens."""
_VOCABULARY_CHUNK = 16_384


def read_heads(
    model: HookedModel,
    trial: Trial,
    *,
    steps: Sequence[int] | None = None,
    variant: str | Sequence[str] = "paper",
    max_new_tokens: int = 50,
) -> HeadReading:
    """What every head reads and writes at the answer steps of one trial.

    Args:
        model: from `load_model`.
        trial: its ``generated_ids`` are used if given, else the model decodes.
        steps: the answer steps; default: where the answer stands in the generated text.
        variant: one or several definitions of phi, see `score_heads`.
        max_new_tokens: decode limit.

    Returns:
        `HeadReading`: means over the answer steps.

    Raises:
        ValueError: when the answer was not generated, the trial has no needle, or a variant is unknown.
    """
    start, end = trial.require_needle()
    if trial.generated_ids is None:
        trial = generate(model, trial, max_new_tokens)
    generated = trial.generated_ids or ()
    chosen = tuple(answer_steps(model.tokenizer, generated, trial.answer) if steps is None else steps)
    if not chosen or not all(0 <= step < len(generated) for step in chosen):
        raise ValueError(
            f"trial {trial.trial_id!r}: the answer {trial.answer!r} was not generated, so no head wrote it"
            if steps is None
            else f"trial {trial.trial_id!r}: steps {chosen} do not fit {len(generated)} generated tokens"
        )
    variants = check_variants(variant)
    ids, n_keys = (*trial.prompt_ids, *generated), trial.n_tokens + max(chosen)
    first = segment_start(trial, window=False)
    reader = _Reader(model, trial, first, ids, chosen, variants, _shared(model, n_keys, trial))
    cache = model.fill(trial.prompt_ids[:first]) if first else None
    model.segment(ids[first:n_keys], cache, reader.read, reader.hooks, last_only=True)
    found = reader.result()
    token_ids = sorted({*found["promoted"].flatten().tolist(), *found["suppressed"].flatten().tolist()})
    return HeadReading(
        trial_id=trial.trial_id,
        ids=ids,
        tokens=tuple(_texts(model, ids)),
        n_prompt=trial.n_tokens,
        needle_span=(start, end),
        answer_steps=chosen,
        n_keys=n_keys,
        variants=variants,
        vocabulary=dict(zip(token_ids, _texts(model, token_ids), strict=True)),
        about=plain(trial.about() | {"answer": trial.answer}),
        **{name: value.numpy().copy() for name, value in found.items()},  # a copy lets go of the tensor
    )


def _texts(model: HookedModel, ids: Sequence[int]) -> list[str]:
    if model.tokenizer is None:
        return [str(i) for i in ids]
    return [model.tokenizer.decode([i]) for i in ids]


def _shared(model: HookedModel, n_keys: int, trial: Trial) -> Int[Tensor, "position"]:
    """Positions that are kept for every head."""
    if n_keys * model.n_layers * model.n_heads <= DENSE:
        return torch.arange(n_keys)
    start, end = trial.require_needle()
    spans = [(0, EDGE), (start - AROUND, end + AROUND), (trial.n_tokens - TAIL, n_keys)]
    kept = torch.zeros(n_keys, dtype=torch.bool)
    for low, high in spans:
        kept[max(0, low) : high] = True
    return kept.nonzero().flatten()


class _Reader:
    """Keeps what a `HeadReading` needs of each layer of the segment."""

    def __init__(
        self,
        model: HookedModel,
        trial: Trial,
        first: int,
        ids: tuple[int, ...],
        steps: tuple[int, ...],
        variants: tuple[str, ...],
        shared: Int[Tensor, "position"],
    ) -> None:
        self.model, self.shared = model, shared
        self.rows = [trial.n_tokens - 1 + step - first for step in steps]
        self.first_answer = steps.index(min(steps))
        targets = [ids[trial.n_tokens + step] for step in steps]
        self.directions = {variant: target_directions(model, targets, variant) for variant in variants}
        self.found: dict[str, list[Tensor]] = {}
        self.post_scales: dict[int, Tensor] = {}
        self.final_scale: Tensor | None = None
        self.has_lens = "exact" in variants or _freezable(model)
        self.hooks = (
            exact_hooks(model, self.rows, self.post_scales.__setitem__, self._keep_final) if self.has_lens else []
        )
        rest = trial.n_tokens + max(steps) - len(shared)
        self.n_peaks = min(N_PEAKS, rest // 3)
        self.n_keys = rest + len(shared)

    def _keep_final(self, scale: Tensor) -> None:
        self.final_scale = scale

    # --- one layer -------------------------------------------------------------------------------

    def read(self, layer: LayerRead) -> None:
        weights = layer.pattern[:, self.rows]
        attention = self._placed(weights.float(), layer.first_key).mean(1)
        phis = {}
        for variant, directions in self.directions.items():
            Wu = layer_directions(self.model, layer, directions, variant)
            phis[variant] = self._placed(contributions(weights, layer.values, Wu), layer.first_key)
        own = self._peaks(attention, next(iter(phis.values())).mean(1))
        self._keep("own", own)
        self._keep("attention", attention[:, self.shared])
        self._keep("own_attention", _at(attention, own))
        for variant, phi in phis.items():
            per_step = own[:, None].expand(-1, phi.shape[1], -1)
            self._keep(f"{variant}:phi", phi[..., self.shared])
            self._keep(f"{variant}:own_phi", _at(phi, per_step))
            self._keep(f"{variant}:phi_total", phi.sum(-1))
        if self.has_lens:
            self._keep("write", self._write(layer))

    def _placed(self, rows: Float[Tensor, "head step key"], first_key: int) -> Float[Tensor, "head step position"]:
        """On all positions; those that a sliding window forgot hold 0."""
        return torch.nn.functional.pad(rows.cpu(), (first_key, self.n_keys - first_key - rows.shape[-1]))

    def _peaks(
        self, attention: Float[Tensor, "head position"], phi: Float[Tensor, "head position"]
    ) -> Int[Tensor, "head own"]:
        """Positions outside the shared ones where a head reads and writes most; -1 for one that comes twice."""
        if not self.n_peaks:
            return torch.empty(len(attention), 0, dtype=torch.long)
        outside = torch.ones(self.n_keys, dtype=torch.bool)
        outside[self.shared] = False
        ranked = [torch.where(outside, values, -torch.inf) for values in (attention, phi, -phi)]
        found = torch.cat([values.topk(self.n_peaks).indices for values in ranked], -1).sort(-1).values
        twice = torch.zeros_like(found, dtype=torch.bool)
        twice[:, 1:] = found[:, 1:] == found[:, :-1]
        return found.masked_fill(twice, -1)

    def _write(self, layer: LayerRead) -> Float[Tensor, "head d_model"]:
        """z W_O at the first answer step, through the gains of the norms; their scales come at the end."""
        n_kv = layer.values.shape[1]
        weights = layer.pattern[:, self.rows[self.first_answer]].float()
        values = layer.values.float().repeat_interleave(weights.shape[0] // n_kv, 1)
        z = torch.einsum("hk,khd->hd", weights, values)
        write = torch.einsum("hd,hdm->hm", z, self.model.W_O(layer.layer).float().to(z.device))
        ones = torch.ones(len(write), device=write.device)
        post = self.model.post_attention_norm(layer.layer)
        if post is not None:
            write = post.frozen(write, ones)
        final = self.model.final_norm()
        return final.frozen(write.to(final.gain.device), ones.to(final.gain.device))

    def _keep(self, name: str, value: Tensor) -> None:
        self.found.setdefault(name, []).append(value.cpu())

    # --- the whole -------------------------------------------------------------------------------

    def result(self) -> dict[str, Tensor]:
        stacked = {name: torch.stack(layers) for name, layers in self.found.items()}
        scale = exact_scale(self.model.n_layers, self.post_scales, self.final_scale) if self.has_lens else torch.ones(0)
        for name, values in stacked.items():
            if name.startswith("exact:"):
                values /= scale[:, None, :, None] if values.ndim == 4 else scale[:, None, :]
        found = {name: stacked[name] for name in ("own", "attention", "own_attention")} | {"shared": self.shared}
        for name in ("phi", "own_phi", "phi_total"):
            found[name] = torch.stack([stacked[f"{variant}:{name}"].mean(2) for variant in self.directions])
        if self.has_lens:
            return found | _lens(self.model, stacked["write"] / scale[:, self.first_answer, None, None])
        none = torch.empty(*found["attention"].shape[:2], 0)
        return found | dict.fromkeys(("promoted", "promoted_logits", "suppressed", "suppressed_logits"), none)


def _freezable(model: HookedModel) -> bool:
    """Whether every norm between a head and the logits is an affine one, whose scale can be frozen."""
    try:
        model.final_norm()
        for layer in range(model.n_layers):
            model.post_attention_norm(layer)
    except ValueError:
        return False
    return True


def _at(values: Float[Tensor, "*rows position"], places: Int[Tensor, "*rows own"]) -> Float[Tensor, "*rows own"]:
    """Values at the places of each row; 0 at place -1."""
    return values.gather(-1, places.clamp(min=0)).masked_fill(places < 0, 0.0)


def _lens(model: HookedModel, write: Float[Tensor, "layer head d_model"]) -> dict[str, Tensor]:
    """The tokens whose logits each output raises and lowers most, against the mean over the vocabulary."""
    flat = write.flatten(0, 1)
    size = model.geometry.d_vocab if model.tokenizer is None else min(model.geometry.d_vocab, len(model.tokenizer))
    k = min(N_TOKENS, size)
    total = torch.zeros(len(flat))
    best = {sign: (torch.empty(len(flat), 0), torch.empty(len(flat), 0, dtype=torch.long)) for sign in (1, -1)}
    for first in range(0, size, _VOCABULARY_CHUNK):
        ids = list(range(first, min(first + _VOCABULARY_CHUNK, size)))
        u = model.unembed(ids)
        logits = (flat.to(u.device) @ u.T).cpu()
        total += logits.sum(-1)
        for sign, (values, tokens) in best.items():
            top = (sign * logits).topk(min(k, len(ids)))
            values, tokens = torch.cat([values, top.values], -1), torch.cat([tokens, top.indices + first], -1)
            kept = values.topk(min(k, values.shape[-1]))
            best[sign] = (kept.values, tokens.gather(-1, kept.indices))
    mean, shape = (total / size)[:, None], (*write.shape[:2], k)
    found = {}
    for name, sign in (("promoted", 1), ("suppressed", -1)):
        values, tokens = best[sign]
        found[name] = tokens.reshape(shape)
        found[f"{name}_logits"] = (sign * values - mean).reshape(shape)
    return found
