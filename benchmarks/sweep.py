"""An ablation sweep over five nested sets of heads against plain generation of the same trials."""

from __future__ import annotations

import statistics as stats
from typing import Any

import numpy as np

from .common import interleaved, median

KS = (1, 5, 10, 20, 40)


def run(n_trials: int = 6, n_tokens: int = 300, ks: tuple[int, ...] = KS, repeats: int = 2) -> list[dict[str, Any]]:
    from locos_tl import load_model, load_trials
    from locos_tl.causal.means import calibrate_means
    from locos_tl.causal.sweep import ablate_sweep

    model = load_model("smollm2-135m")
    # The question and the chat markup take about 55 tokens.
    trials = list(load_trials("nonliteral", n=n_trials + 4, lengths=[n_tokens - 55], tokenizer=model))
    asked, means = trials[:n_trials], calibrate_means(model, trials[n_trials:], progress=False)
    order = [
        divmod(int(i), model.n_heads) for i in np.random.default_rng(0).permutation(model.n_layers * model.n_heads)
    ]
    late = [head for head in order if head[0] >= 2 * model.n_layers // 3]

    def plain() -> list[int]:
        lengths = []
        for trial in asked:
            cache = model.new_cache()
            lengths.append(len(model.decode(cache, model.extend(cache, trial.prompt_ids), 50).ids))
        return lengths

    def sweep(heads):
        return ablate_sweep(model, asked, {"heads": heads}, ks, controls=(), means=means, progress=False)

    ways = {"plain": plain, "any layer": lambda: sweep(order), "last third": lambda: sweep(late)}
    seconds = interleaved(ways, repeats)
    rows = []
    for name, heads in (("any layer", order), ("last third", late)):
        pairs = [b / a for a, b in zip(seconds["plain"], seconds[name], strict=True)]
        rows.append(
            {
                "ablated heads from": name,
                "answers a trial": 1 + len(ks),
                "prompt tokens": round(stats.mean(trial.n_tokens for trial in asked)),
                "new tokens, whole model": float(stats.mean(plain())),
                "new tokens, ablated": stats.mean(len(row.generated_ids) for row in sweep(heads).rows if row.k),
                "plain (s)": median(seconds["plain"]),
                "sweep (s)": median(seconds[name]),
                "ratio of medians": median(seconds[name]) / median(seconds["plain"]),
                "median of pairwise ratios": median(pairs),
            }
        )
    return rows
