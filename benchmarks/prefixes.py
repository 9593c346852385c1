"""Scoring with common beginnings of prompts read once, against reading every prompt whole."""

from __future__ import annotations

import statistics as stats
from typing import Any

from .common import interleaved, median


def run(lengths: tuple[int, ...] = (500, 1000), n_trials: int = 8, repeats: int = 1) -> list[dict[str, Any]]:
    from locos_tl import load_model, load_trials, score_heads
    from locos_tl.models.prefixes import PrefixStore, boundaries

    model = load_model("smollm2-135m")
    rows = []
    for length in lengths:
        trials = list(load_trials("nonliteral", n=n_trials, lengths=[length], tokenizer=model))
        order, cuts = boundaries([trial.prompt_ids for trial in trials])
        store = PrefixStore(model)
        for place in order:
            store.start(trials[place].prompt_ids, cuts[place], trials[place].n_tokens - 8)

        def score(prefixes: str, trials: Any = trials) -> Any:
            return score_heads(model, trials, examples=0, prefixes=prefixes, progress=False)

        seconds = interleaved({"off": lambda: score("off"), "on": lambda: score("device")}, repeats)
        pairs = [off / on for off, on in zip(seconds["off"], seconds["on"], strict=True)]
        rows.append(
            {
                "prompt tokens": round(stats.mean(trial.n_tokens for trial in trials)),
                "trials": len(trials),
                "prompt tokens not computed again": round(store.share, 3),
                "every prompt whole (s)": median(seconds["off"]),
                "beginnings once (s)": median(seconds["on"]),
                "ratio of medians": median(seconds["off"]) / median(seconds["on"]),
                "median of pairwise ratios": median(pairs),
            }
        )
    return rows
