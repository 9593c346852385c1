"""What the bundled model says: scores, ablations with controls, and the late-layer question, on held-out trials.

Needles that rank heads, calibrate means and evaluate are three disjoint groups. Every stage writes as it goes under
``runs/findings`` and resumes; with two quiet cores all of it takes about an hour and a half.

    python -m benchmarks.findings            # all stages, in order
    python -m benchmarks.findings sweep-q    # one of them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from .common import RESULTS, save

FOLDER = Path("runs/findings")
OUT = RESULTS / "findings"
KS = (1, 5, 10, 20, 40)
METHODS = ("locos", "attention_spatial", "wu", "headkv")
POOL = {"n": 400, "lengths": (64, 128), "seed": 11}
N_RANKING, N_CALIBRATION, N_EVALUATION = 180, 50, 110


@cache
def model() -> Any:
    from locos_tl import load_model

    return load_model("smollm2-135m")


@cache
def parts() -> tuple[list[Any], list[Any], list[Any]]:
    """Trials for ranking, calibration and evaluation; no needle is in two of them."""
    from locos_tl import load_trials
    from locos_tl.trials.split import split_by_needle

    drawn = load_trials("nonliteral", **POOL, tokenizer=model())
    pool = list({trial.prompt_ids: trial for trial in drawn}.values())  # the draw may repeat a prompt
    ranking, calibration, evaluation = split_by_needle(pool, (N_RANKING, N_CALIBRATION, N_EVALUATION))
    return ranking[:N_RANKING], calibration[:N_CALIBRATION], evaluation[:N_EVALUATION]


def literal_twins() -> list[Any]:
    """The evaluated needles, names, places and depths, asked in the needle's own words."""
    from locos_tl import load_trials

    def place(trial: Any) -> str:
        return trial.trial_id.rsplit("-", 1)[0]

    wanted = {place(trial) for trial in parts()[2]}
    literal = load_trials("nonliteral", **POOL, kinds=("literal",), tokenizer=model())
    return [trial for trial in literal if place(trial) in wanted]


@cache
def scores() -> Any:
    from locos_tl import score_heads

    return score_heads(model(), parts()[0], out=FOLDER / "scores")


@cache
def means() -> Any:
    from locos_tl import calibrate_means

    return calibrate_means(model(), parts()[1])


def sweep(
    name: str, trials: Any, at: str, methods: tuple[str, ...] = METHODS, ks: tuple[int, ...] = KS, **more: Any
) -> Any:
    from locos_tl import ablate_sweep

    chosen = {method: scores()[method] for method in methods}
    return ablate_sweep(model(), trials, chosen, ks, at=at, means=means(), out=FOLDER / f"{name}-{at}", **more)


def closed_book(name: str, at: str) -> Any:
    from locos_tl import load_trials

    trials = load_trials(name, 100, tokenizer=model())
    return sweep(name, trials, at, ("locos", "attention_spatial"), controls=("random",), metrics=("contains", "exact"))


def downstream(at: str) -> Any:
    from locos_tl import load_trials

    trials = load_trials("babi", 80, kinds="two_facts", tokenizer=model())
    return sweep(
        "babi",
        trials,
        at,
        ("locos", "attention_spatial"),
        (20, 40),
        controls=("random",),
        metrics=("subspan", "em", "f1"),
    )


def late() -> Any:
    from locos_tl import validate_late_layers

    return validate_late_layers(model(), parts()[0], scores(), out=FOLDER / "late")


def attribution() -> Any:
    from locos_tl.causal.validation import patch_trials

    told = {o.trial_id: o.generated_ids for o in scores().outcomes if o.passed}
    trials = [t.with_generation(told[t.trial_id]) for t in parts()[0] if t.trial_id in told]
    return patch_trials(model(), trials, ("attribution",), out=FOLDER / "attribution")["attribution"]


STAGES: dict[str, Callable[[], Any]] = {
    "scores": scores,
    "sweep-q": lambda: sweep("nonliteral", parts()[2], "q"),
    "late": late,
    "sweep-z": lambda: sweep("nonliteral", parts()[2], "z"),
    "attribution": attribution,
    "city_country-q": lambda: closed_book("city_country", "q"),
    "arithmetic-q": lambda: closed_book("arithmetic", "q"),
    "literal-q": lambda: sweep("literal", literal_twins(), "q", ("locos",), controls=("random",)),
    "babi-q": lambda: downstream("q"),
    "city_country-z": lambda: closed_book("city_country", "z"),
    "arithmetic-z": lambda: closed_book("arithmetic", "z"),
    "literal-z": lambda: sweep("literal", literal_twins(), "z", ("locos",), controls=("random",)),
    "babi-z": lambda: downstream("z"),
}


def main(names: list[str]) -> None:
    """Run stages and keep their numbers under benchmarks/results/findings."""
    from locos_tl.results.sweep import Sweep

    OUT.mkdir(parents=True, exist_ok=True)
    for name in names or list(STAGES):
        found = STAGES[name]()
        if isinstance(found, Sweep):
            save(f"findings/{name}", found.summary().to_dict("records"))
        elif hasattr(found, "save"):
            found.save(OUT / f"{name}.safetensors") if name != "scores" else None
        print(f"{name}: done\n{found!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
