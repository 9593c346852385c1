"""Exact patching of every head on one trial, against one whole forward of the hooked model per head."""

from __future__ import annotations

from typing import Any

import torch

from .common import interleaved, median, trial_of

EVERY = 9
"""The rival is timed on every ninth head and scaled up: its cost does not depend on the head."""


def naive(
    model: Any, pair: Any, heads: list[tuple[int, int]], clean: dict[str, Any], counterfactual: int
) -> list[float]:
    """The usual TransformerLens loop: restore one head's z in a run of the whole corrupt prompt, read the metric."""
    ids = model.tokens(pair.corrupt_ids)
    query, gold = pair.answer_span[0] - 1, pair.answer_ids[0]
    found = []
    for layer, head in heads:
        name = f"blocks.{layer}.attn.hook_z"

        def restore(z: Any, hook: Any, head: int = head, name: str = name) -> Any:
            z[:, :, head] = clean[name][:, :, head]
            return z

        with torch.inference_mode():
            logits = model.hooked.run_with_hooks(ids, fwd_hooks=[(name, restore)])
        found.append(float(logits[0, query, gold] - logits[0, query, counterfactual]))
    return found


def run(n_tokens: int = 300, repeats: int = 2, every: int = EVERY) -> list[dict[str, Any]]:
    from locos_tl import attribution_patching, corrupt, generate, load_model, total_effects
    from locos_tl.causal.pairs import PromptPair

    model = load_model("smollm2-135m")
    trial, _ = trial_of(model, n_tokens)
    trial = generate(model, trial)
    pair = PromptPair.from_trials(model, trial, corrupt(trial, "filler", model))
    heads = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    some = heads[::every]
    with torch.inference_mode():
        _, cache = model.hooked.run_with_cache(
            model.tokens(pair.clean_ids), names_filter=lambda name: name.endswith("hook_z")
        )
    clean = {f"blocks.{layer}.attn.hook_z": cache[f"blocks.{layer}.attn.hook_z"] for layer in range(model.n_layers)}
    exact = total_effects(model, pair)
    counterfactual = exact.provenance["patching"]["counterfactuals"][0]
    rival = naive(model, pair, some, clean, counterfactual)
    gap = max(abs(exact.per_trial[0][head] + exact.corrupt[0] - value) for head, value in zip(some, rival, strict=True))
    assert gap < 1e-2, f"the ways disagree by {gap}"
    seconds = interleaved(
        {
            "one forward per head": lambda: naive(model, pair, some, clean, counterfactual),
            "patch_heads": lambda: total_effects(model, pair, progress=False),
            "attribution_patching": lambda: attribution_patching(model, pair, progress=False),
        },
        repeats,
    )
    seconds["one forward per head"] = [s * len(heads) / len(some) for s in seconds["one forward per head"]]
    ours = median(seconds["patch_heads"])
    return [
        {
            "way": name,
            "prompt tokens": len(pair.corrupt_ids),
            "needle from token": pair.first_difference,
            "heads": len(heads),
            "seconds": median(times),
            "times patch_heads": median(times) / ours,
        }
        for name, times in seconds.items()
    ]
