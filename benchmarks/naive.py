"""Against the usual TransformerLens way: generate on the hooked model, then cache every pattern and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .common import extra_memory, interleaved, median, trial_of

TIMED = 2000
LONG = 8000


def naive(model: Any, trial: Any, n_new: int) -> torch.Tensor:
    """LOCOS over all keys from a cache of everything (the answer step is the last token)."""
    bridge = model.hooked
    ids = torch.tensor([trial.prompt_ids])
    with torch.inference_mode():
        out = bridge.generate(ids, max_new_tokens=n_new, do_sample=False, stop_at_eos=False, verbose=False)
        return cached_scores(model, out[0].tolist())


def cached_scores(model: Any, ids: list[int]) -> torch.Tensor:
    """The caching part alone: every pattern and value of the whole sequence, then phi at its last step."""
    with torch.inference_mode():
        wanted = lambda name: name.endswith(("attn.hook_pattern", "attn.hook_v", "attn.v.hook_out"))  # noqa: E731
        _, cache = model.hooked.run_with_cache(torch.tensor([ids[:-1]]), names_filter=wanted)
        u = model.unembed([ids[-1]])[0]
        scores = []
        for layer in range(model.n_layers):
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0]
            v = cache[f"blocks.{layer}.attn.hook_v"][0].reshape(len(ids) - 1, model.n_key_value_heads, model.d_head)
            v = v.repeat_interleave(model.geometry.group_size, dim=1)
            scores.append(torch.einsum("hk,khd,hdm,m->hk", pattern[:, -1], v, model.W_O(layer), u).sum(-1))
        return torch.stack(scores)


def _load() -> tuple[Any, Any]:
    from locos_tl import load_model, score_heads

    return load_model("smollm2-135m"), score_heads


def work(mark: Callable[[], None], way: str, length: int) -> None:
    """One way at one length, for `extra_memory`: everything loaded and warm, then the mark, then the work."""
    model, score_heads = _load()
    short, _ = trial_of(model, 300)
    trial = trial_of(model, length)[0] if way == "score_heads" else _bare_trial(model, length)
    if way == "score_heads":
        score_heads(model, short, progress=False)
        mark()
        score_heads(model, trial, progress=False)
    elif way == "plain forward":
        model.forward(short.prompt_ids)
        mark()
        with torch.inference_mode():
            model.fused.run(torch.tensor([trial.prompt_ids]), model.new_cache(), last_only=True)
    else:
        cached_scores(model, list(short.prompt_ids))
        mark()
        cached_scores(model, [*trial.prompt_ids, *trial.prompt_ids[:12]])


def _bare_trial(model: Any, length: int) -> Any:
    """The prompt alone: decoding it first would raise the peak before the mark."""
    from locos_tl import load_trials

    return load_trials("nonliteral", 1, lengths=[length - 60], depths=[0.5], tokenizer=model)[0]


def run(repeats: int = 3) -> list[dict[str, Any]]:
    model, score_heads = _load()
    trial, n_new = trial_of(model, TIMED)
    sequence = [*trial.prompt_ids, *trial.prompt_ids[:n_new]]
    seconds = interleaved(
        {
            "score_heads": lambda: score_heads(model, trial, progress=False),
            "run_with_cache alone": lambda: cached_scores(model, sequence),
            "generate + run_with_cache": lambda: naive(model, trial, n_new),
        },
        repeats,
    )
    del model
    rows = []
    base = median(seconds["score_heads"])
    for way, values in seconds.items():
        kind = "score_heads" if way == "score_heads" else "run_with_cache"
        rows.append(
            {
                "way": way,
                "prompt tokens": TIMED,
                "seconds": median(values),
                "times score_heads": median(values) / base,
                "extra peak memory (MiB)": extra_memory(work, kind, TIMED)
                if way != "generate + run_with_cache"
                else "",
            }
        )
    rows.append(
        {
            "way": "plain fused forward",
            "prompt tokens": TIMED,
            "seconds": "",
            "times score_heads": "",
            "extra peak memory (MiB)": extra_memory(work, "plain forward", TIMED),
        }
    )
    rows.append(
        {
            "way": "score_heads",
            "prompt tokens": LONG,
            "seconds": "",
            "times score_heads": "",
            "extra peak memory (MiB)": extra_memory(work, "score_heads", LONG),
        }
    )
    return rows
