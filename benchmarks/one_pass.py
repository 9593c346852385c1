"""All detectors on one trial against a plain fused-attention greedy `generate` of the same prompt and length."""

from __future__ import annotations

from typing import Any

import torch

from .common import interleaved, median, trial_of

LENGTHS = (300, 1000, 2000, 4000)


def run(lengths: tuple[int, ...] = LENGTHS, repeats: int = 5) -> list[dict[str, Any]]:
    from locos_tl import load_model, score_heads

    model = load_model("smollm2-135m")
    rows = []
    for length in lengths:
        trial, n_new = trial_of(model, length)
        ids = torch.tensor([trial.prompt_ids])
        # The stop token costs our decode one more step; generate gets the same number of forward passes.
        steps = n_new + 1 if n_new < 50 else n_new

        def plain(ids=ids, steps=steps):
            with torch.inference_mode():
                return model.fused.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=steps,
                    min_new_tokens=steps,
                    do_sample=False,
                )

        def ours(trial=trial):
            scores = score_heads(model, trial, progress=False)
            assert scores.passed == 1
            return scores

        seconds = interleaved({"generate": plain, "score_heads": ours}, repeats)
        pairs = [b / a for a, b in zip(seconds["generate"], seconds["score_heads"], strict=True)]
        rows.append(
            {
                "prompt tokens": trial.n_tokens,
                "new tokens": steps,
                "generate (s)": median(seconds["generate"]),
                "score_heads (s)": median(seconds["score_heads"]),
                "ratio of medians": median(seconds["score_heads"]) / median(seconds["generate"]),
                "median of pairwise ratios": median(pairs),
            }
        )
    return rows
