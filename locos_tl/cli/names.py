"""The names that options take, for completion at the prompt: plain text, so that nothing heavy is imported for a Tab.

A test holds them against the registries they repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

MODELS = ("smollm2-135m",)
TRIAL_SETS = ("nonliteral", "nolima", "niah", "babi", "babilong", "musique", "city_country", "arithmetic", "popqa")
KINDS = ("onehop", "twohop", "literal")
DETECTORS = ("locos", "attention_spatial", "dla", "wu", "contrastive", "headkv", "random")
VARIANTS = ("paper", "folded", "exact")
METRICS = ("rouge_l", "contains", "exact", "em", "f1", "subspan")
CONTROLS = ("random", "bottom")
SITES = ("q", "z")
MODES = ("mean", "zero", "resample")
EFFECTS = ("total", "direct", "attribution")
TOTALS = ("total", "attribution")
WAYS = ("filler", "swap")
PATCH_METRICS = ("logit_diff", "answer_logprob")
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps")
EXECUTORS = ("local", "processes", "ray")
PURPOSES = ("score", "patch", "ablate")
FORMATS = ("head-list", "kv-gates", "csv")

Complete = Callable[[str], list[str]]


def one_of(names: Iterable[str]) -> Complete:
    """Completes one name. Where none fits, the shell goes on to files, which models and trials may be too."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def some_of(names: Iterable[str]) -> Complete:
    """Completes the last of several names with commas between them, leaving out those already there."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        *before, last = incomplete.split(",")
        lead = "".join(f"{name}," for name in before)
        return [lead + name for name in known if name.startswith(last) and name not in before]

    return complete
