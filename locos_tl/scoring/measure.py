"""One pass over one trial measures all that the detectors need.

1. The prompt is prefilled once with fused attention.
2. The answer is decoded greedily on that cache (or given: teacher forcing).
3. The cache goes back to just before the last prompt tokens, and one hooked call on those tokens and the
   generated ones yields the attention row of every decode step, layer by layer.
4. Each layer is reduced at once to sums per head and step; no layer's pattern outlives its hook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..choices import unknown
from ..models.hooked import Decoding, HookedModel, LayerRead
from ..models.prefixes import PrefixStore
from ..trials.trial import Trial
from .contribution import contributions, ov_directions

WINDOW = 8
"""Last prompt tokens whose attention `headkv` reads."""
TOP_KEYS = 10
"""Largest attention weights that `contrastive` looks at."""
VARIANTS = ("paper", "folded", "exact")
READS = frozenset({"phi", "attention", "argmax", "top", "window"})


def check_variants(variant: str | Sequence[str]) -> tuple[str, ...]:
    """One variant or several as a tuple.

    Raises:
        ValueError: for an unknown one, one named twice, or none.
    """
    variants = (variant,) if isinstance(variant, str) else tuple(variant)
    if strange := [v for v in variants if v not in VARIANTS]:
        raise ValueError(unknown("variant", strange[0], VARIANTS))
    if not variants or len(set(variants)) < len(variants):
        raise ValueError(f"variant must name one or several of {', '.join(VARIANTS)}, each once; got {variant!r}")
    return variants


@dataclass(frozen=True)
class Measurement:
    """Everything the detectors know of one trial. Sums are float32.

    L layers, H heads, A answer steps, T generated tokens, W window tokens. A field is None when no
    requested detector reads it.

    Attributes:
        phi_needle, phi_off: phi summed over the needle and over all other keys, [L, H, A].
        alpha_needle, alpha_off: the same sums of attention probabilities, [L, H, A].
        n_keys: keys the answer steps' queries can reach by position, [A].
        n_needle: needle tokens.
        argmax_key: absolute position of each step's largest attention weight, [L, H, T].
        top_share: share of the `TOP_KEYS` largest weights that lie in the needle, [L, H, T].
        window_mass: attention mass on the needle from each of the last prompt tokens, [L, H, W].
        seen: layer can see part of the needle at some answer step, [L]; ``window_seen``: from the window.
        ids: prompt and generated token ids.
        n_prompt: prompt tokens.
        answer_steps: indices of the answer steps among the T generated tokens.
    """

    n_layers: int
    n_heads: int
    ids: tuple[int, ...]
    n_prompt: int
    needle_span: tuple[int, int]
    answer_steps: tuple[int, ...]
    n_keys: Float[Tensor, "answer_step"]
    seen: Bool[Tensor, "layer"]
    window_seen: Bool[Tensor, "layer"]
    phi_needle: Float[Tensor, "layer head answer_step"] | None = None
    phi_off: Float[Tensor, "layer head answer_step"] | None = None
    alpha_needle: Float[Tensor, "layer head answer_step"] | None = None
    alpha_off: Float[Tensor, "layer head answer_step"] | None = None
    argmax_key: Int[Tensor, "layer head step"] | None = None
    top_share: Float[Tensor, "layer head step"] | None = None
    window_mass: Float[Tensor, "layer head window"] | None = None

    @property
    def n_needle(self) -> int:
        return self.needle_span[1] - self.needle_span[0]

    @property
    def generated_ids(self) -> tuple[int, ...]:
        return self.ids[self.n_prompt :]

    @property
    def other_steps(self) -> tuple[int, ...]:
        """Content steps (all generated tokens) that are not answer steps."""
        answer = set(self.answer_steps)
        return tuple(step for step in range(len(self.generated_ids)) if step not in answer)


def decode_trial(
    model: HookedModel,
    trial: Trial,
    max_new_tokens: int,
    *,
    rewind_to: int,
    enough: Callable[[list[int]], bool] | None = None,
    store: PrefixStore | None = None,
    cuts: Sequence[int] = (),
) -> tuple[Any, Decoding]:
    """Prefill and decode one trial; the cache comes back rewound to ``rewind_to`` tokens."""
    cache, logits = model.prefill(trial.prompt_ids, rewind_to, max_new_tokens, store=store, cuts=cuts)
    decoding = model.decode(cache, logits, max_new_tokens, enough)
    cache.rewind(rewind_to)
    return cache, decoding


def segment_start(trial: Trial, window: bool) -> int:
    """First prompt token that belongs to the hooked segment; 0 only for prompts of one token."""
    return max(trial.n_tokens - (WINDOW if window else 1), min(1, trial.n_tokens - 1))


def measure(
    model: HookedModel,
    trial: Trial,
    cache: Any,
    generated_ids: Sequence[int],
    answer_steps: Sequence[int],
    reads: frozenset[str],
    variants: Sequence[str] = ("paper",),
) -> dict[str, Measurement]:
    """Run the hooked segment and reduce every layer as it passes.

    Args:
        cache: holds the prompt up to `segment_start` (None: no cache, the whole prompt is the segment).
        generated_ids: tokens decoded or given.
        answer_steps: which of them are the answer.
        reads: what to measure, a subset of `READS`.
        variants: directions of u for phi: "paper" (raw), "folded" (times the final norm's gain) and "exact"
            (through the frozen final norm and, where there is one, the frozen post-attention norm).

    Returns:
        A measurement a variant; they differ in phi alone.

    Raises:
        FloatingPointError: when a measured value is not finite.
    """
    start = 0 if cache is None else cache.length
    ids = (*trial.prompt_ids, *generated_ids)
    # The query that produces generated token t is the token before it; the last one queries nothing.
    segment = ids[start:-1] if generated_ids else ids[start:]
    reader = _Reader(model, trial, start, len(segment), ids, tuple(answer_steps), reads, variants)
    model.segment(segment, cache, reader.read, reader.hooks(), last_only=True)
    return reader.results()


class _Reader:
    """Reduces each layer of a hooked segment to the sums a `Measurement` holds."""

    def __init__(
        self,
        model: HookedModel,
        trial: Trial,
        start: int,
        n_segment: int,
        ids: tuple[int, ...],
        answer_steps: tuple[int, ...],
        reads: frozenset[str],
        variants: Sequence[str],
    ) -> None:
        self.needle_span = trial.require_needle()
        self.model, self.trial, self.start, self.ids, self.reads = model, trial, start, ids, reads
        self.answer_steps, self.variants = answer_steps, tuple(variants)
        n = trial.n_tokens
        self.rows = [n - 1 + step - start for step in answer_steps]
        self.step_rows = slice(n - 1 - start, n_segment)
        self.window_rows = slice(max(0, n - WINDOW - start), n - start)
        self.n_keys = torch.tensor([float(n + step) for step in answer_steps])
        targets = [ids[n + step] for step in answer_steps]
        self.directions = {
            variant: target_directions(model, targets, variant) for variant in variants if "phi" in reads and targets
        }
        self.found: dict[str, list[Tensor]] = {}
        self.post_scales: dict[int, Tensor] = {}
        self.final_scale: Tensor | None = None

    # --- hooks for the frozen norms of `exact` ---------------------------------------------------

    def hooks(self) -> list[tuple[str, Any]]:
        if "exact" not in self.directions:
            return []
        return exact_hooks(self.model, self.rows, self.post_scales.__setitem__, self._keep_final)

    def _keep_final(self, scale: Tensor) -> None:
        self.final_scale = scale

    # --- one layer -------------------------------------------------------------------------------

    def read(self, layer: LayerRead) -> None:
        start, end = (max(0, edge - layer.first_key) for edge in self.needle_span)
        for variant, directions in self.directions.items():
            Wu = layer_directions(self.model, layer, directions, variant)
            phi = contributions(layer.pattern[:, self.rows], layer.values, Wu)
            self._keep_sums(f"{variant}:phi", phi, start, end)
        if "attention" in self.reads and self.rows:
            self._keep_sums("alpha", layer.pattern[:, self.rows].float(), start, end)
        steps = layer.pattern[:, self.step_rows]
        if "argmax" in self.reads:
            self._keep("argmax_key", steps.argmax(-1) + layer.first_key)
        if "top" in self.reads:
            top = steps.topk(min(TOP_KEYS, steps.shape[-1]), dim=-1)
            # A key outside the window or after the query has weight 0 and is not attended, whatever its rank.
            inside = (top.indices >= start) & (top.indices < end) & (top.values > 0)
            self._keep("top_share", inside.float().sum(-1) / min(TOP_KEYS, layer.first_key + steps.shape[-1]))
        if "window" in self.reads:
            self._keep("window_mass", layer.pattern[:, self.window_rows, start:end].float().sum(-1))

    def _keep_sums(self, name: str, per_key: Float[Tensor, "head step key"], start: int, end: int) -> None:
        self._keep(f"{name}_needle", per_key[..., start:end].sum(-1))
        self._keep(f"{name}_off", per_key[..., :start].sum(-1) + per_key[..., end:].sum(-1))

    def _keep(self, name: str, value: Tensor) -> None:
        self.found.setdefault(name, []).append(value.cpu())

    # --- the whole -------------------------------------------------------------------------------

    def results(self) -> dict[str, Measurement]:
        stacked: dict[str, Any] = {name: torch.stack(layers) for name, layers in self.found.items()}
        exact = "exact" in self.directions
        scale = exact_scale(self.model.n_layers, self.post_scales, self.final_scale) if exact else None
        for name, values in stacked.items():
            if scale is not None and name.startswith("exact:"):
                values /= scale[:, None, :]
            if not bool(torch.isfinite(values).all()):
                raise FloatingPointError(
                    f"trial {self.trial.trial_id!r}: {name} is not finite on {self.model.info.name} "
                    f"(dtype {self.model.info.dtype}); load with dtype=torch.float32"
                )
        shared = {name: values for name, values in stacked.items() if ":" not in name}
        return {
            variant: self._measurement(
                shared | {name: stacked.get(f"{variant}:{name}") for name in ("phi_needle", "phi_off")}
            )
            for variant in self.variants
        }

    def _measurement(self, found: dict[str, Any]) -> Measurement:
        n, end = self.trial.n_tokens, self.needle_span[1]
        first_step = self.answer_steps[0] if self.answer_steps else 0
        window_first = max(0, n - WINDOW)
        windows = self.model.windows
        return Measurement(
            n_layers=self.model.n_layers,
            n_heads=self.model.n_heads,
            ids=self.ids,
            n_prompt=n,
            needle_span=self.needle_span,
            answer_steps=self.answer_steps,
            n_keys=self.n_keys,
            seen=torch.tensor([_sees(w, n - 1 + first_step, end) for w in windows]),
            window_seen=torch.tensor([_sees(w, window_first, end) for w in windows]),
            **found,
        )


def _sees(window: int | None, query: int, needle_end: int) -> bool:
    """Whether a query reaches back to the needle's last token (later queries see less of it)."""
    return window is None or needle_end - 1 > query - window


def target_directions(model: HookedModel, targets: Sequence[int], variant: str) -> Float[Tensor, "step d_model"]:
    """u of each step's target token, as the variant defines it (scales of "exact" are applied later)."""
    u = model.unembed(targets)
    if variant == "paper":
        if model.info.processing.get("fold_ln"):
            raise ValueError(
                f"{model.info.name}: its weights have the final norm folded into the unembedding, so the raw u of "
                "variant='paper' is gone. Load it with from_pretrained_no_processing, or use variant='folded'."
            )
        return u
    if variant == "folded":
        return u if model.info.processing.get("fold_ln") else u * model.final_norm().gain.to(u.device)
    if variant == "exact":
        return model.final_norm().pull_back(u.to(model.final_norm().gain.device))
    raise ValueError(f"unknown variant {variant!r}; choose from {', '.join(VARIANTS)}")


def layer_directions(
    model: HookedModel, layer: LayerRead, directions: Float[Tensor, "step d_model"], variant: str
) -> Float[Tensor, "step head d_head"]:
    """W_O u of one layer; in "exact" u first goes back through the layer's post-attention norm, if it has one."""
    post = model.post_attention_norm(layer.layer) if variant == "exact" else None
    if post is not None:
        directions = post.pull_back(directions)
    return ov_directions(model.W_O(layer.layer), directions.to(layer.values.device))


def exact_hooks(
    model: HookedModel,
    rows: Sequence[int],
    keep_post: Callable[[int, Tensor], None],
    keep_final: Callable[[Tensor], None],
) -> list[tuple[str, Any]]:
    """Hooks that record the scale of the final norm and of each post-attention norm at the given rows."""

    def final(resid: Tensor, hook: Any) -> None:
        keep_final(model.final_norm().scale(resid[0, list(rows)]).cpu())

    def post(layer: int) -> Callable[..., None]:
        def hook_fn(value: Tensor, hook: Any) -> None:
            keep_post(layer, model.backend.read_post_scale(layer, value[0, list(rows)]).cpu())

        return hook_fn

    hooks: list[tuple[str, Any]] = [(f"blocks.{model.n_layers - 1}.hook_resid_post", final)]
    for layer in range(model.n_layers):
        if model.post_attention_norm(layer) is not None:
            hooks.append((model.backend.post_scale_hook(layer), post(layer)))
    return hooks


def exact_scale(
    n_layers: int, post_scales: dict[int, Tensor], final_scale: Tensor | None
) -> Float[Tensor, "layer step"]:
    """Divisor of phi per layer and step in the "exact" variant."""
    if final_scale is None:
        raise RuntimeError("the final residual stream was not seen: hook_resid_post of the last layer did not fire")
    ones = torch.ones_like(final_scale)
    return torch.stack([post_scales.get(layer, ones) * final_scale for layer in range(n_layers)])
