"""The demo: everything this library is for, small, on the bundled model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from . import app, options
from .causal import CALIBRATION_SEED, EVALUATION_SEED
from .output import print_late, print_scores, print_sweep

KS = (1, 5, 10)
N_HELD_OUT = 16
MAX_NEW_TOKENS = 24
"""Small, so that the demo takes minutes; ablated, the model rambles on to this limit."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(min=1, help="Number of trials that are scored.")] = 48,
) -> None:
    """The main job on the bundled model: score every head, ablate the best, ask whether they are late, report.

    Example: locos-tl demo
    """
    from ..figures import write_report
    from ..scoring.run import score_heads
    from ..trials.load import load_trials

    started = time.monotonic()
    model = options.load("smollm2-135m", None, None)
    trials = load_trials("nonliteral", n)
    typer.echo(f"{model.info.name}: {model.n_layers} layers x {model.n_heads} heads; {len(trials)} non-literal trials")
    scores = score_heads(model, trials, out=out)
    print_scores(scores, 10, False)
    sweep = _ablate(model, scores, out)
    late = _validate(model, trials, scores, out)
    page = write_report(scores, out / "report.html", sweeps=sweep, late=late)
    typer.echo(f"done in {time.monotonic() - started:.0f} s; open the report:")
    typer.echo(str(page.resolve()))


def _ablate(model: Any, scores: Any, out: Path) -> Any:
    from ..causal.sweep import ablate_sweep
    from ..trials.load import load_trials

    held_out = load_trials("nonliteral", N_HELD_OUT, lengths=[64], seed=EVALUATION_SEED)
    calibration = load_trials("nonliteral", 20, lengths=[64], seed=CALIBRATION_SEED)
    typer.echo(f"\nablating the top heads in {len(held_out)} other trials (query replaced by its mean):")
    chosen = {name: scores[name] for name in ("locos", "attention_spatial")}
    sweep = ablate_sweep(
        model,
        held_out,
        chosen,
        KS,
        random_seeds=(42,),
        calibration=calibration,
        max_new_tokens=MAX_NEW_TOKENS,
        batch_size=16,
        out=out / "ablation",
    )
    print_sweep(sweep, False)
    return sweep


def _validate(model: Any, trials: Any, scores: Any, out: Path) -> Any:
    from ..causal.validation import validate_late_layers

    typer.echo("\npatching the trials that passed (gradient estimate of every head's total effect):")
    late = validate_late_layers(model, trials, scores, total="attribution", out=out / "late")
    print_late(late, False)
    return late
