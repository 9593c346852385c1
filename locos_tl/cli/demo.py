"""The demo: everything this library is for, small, on the bundled model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from . import app, options
from .causal import CALIBRATION_SEED, EVALUATION_SEED
from .options import Json
from .output import late_json, print_json, print_late, print_scores, print_sweep, scores_json, sweep_json

KS = (1, 5, 10)
N_HELD_OUT = 16
MAX_NEW_TOKENS = 24
"""Small, so that the demo takes minutes; ablated, the model rambles on to this limit."""
TOP = 10


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(min=1, help="Number of trials that are scored.")] = 48,
    as_json: Json = False,
) -> None:
    """The main job on the bundled model: score every head, ablate the best, ask whether they are late, report.

    Example: locos-tl demo

    Example: locos-tl demo --n 24 --out runs/small
    """
    from ..figures import write_report
    from ..scoring.measure import VARIANTS
    from ..scoring.run import score_heads
    from ..trials.load import load_trials

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text)

    started = time.monotonic()
    model = options.load("smollm2-135m", None, None)
    trials = load_trials("nonliteral", n)
    say(f"{model.info.name}: {model.n_layers} layers x {model.n_heads} heads; {len(trials)} non-literal trials")
    say("scoring every head, trial by trial (minutes on two cores) ...")
    scores = score_heads(model, trials, variant=VARIANTS, out=out)
    if not as_json:
        print_scores(scores, TOP, False)
    say(f"\nablating the top heads in {N_HELD_OUT} other trials (query replaced by its mean):")
    sweep = _ablate(model, scores, out)
    if not as_json:
        print_sweep(sweep, False)
    say("\npatching the trials that passed (gradient estimate of every head's total effect):")
    late = _validate(model, trials, scores, out)
    if not as_json:
        print_late(late, False)
    page = write_report(scores, out / "report.html", sweeps=sweep, late=late).resolve()
    seconds = round(time.monotonic() - started)
    if as_json:
        found = {"scores": scores_json(scores, TOP), "sweep": sweep_json(sweep), "late": late_json(late)}
        print_json({"report": str(page), "seconds": seconds, **found})
    say(f"done in {seconds} s; open the report:")
    say(str(page))


def _ablate(model: Any, scores: Any, out: Path) -> Any:
    from ..causal.sweep import ablate_sweep
    from ..trials.load import load_trials

    return ablate_sweep(
        model,
        load_trials("nonliteral", N_HELD_OUT, lengths=[64], seed=EVALUATION_SEED),
        {name: scores[name] for name in ("locos", "attention_spatial")},
        KS,
        random_seeds=(42,),
        calibration=load_trials("nonliteral", 20, lengths=[64], seed=CALIBRATION_SEED),
        max_new_tokens=MAX_NEW_TOKENS,
        batch_size=16,
        out=out / "ablation",
    )


def _validate(model: Any, trials: Any, scores: Any, out: Path) -> Any:
    from ..causal.validation import validate_late_layers

    return validate_late_layers(model, trials, scores, total="attribution", out=out / "late")
