"""Commands that intervene: ablate, patch, validate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import app, names, options
from .names import one_of, some_of
from .options import (
    Address,
    Depths,
    Device,
    Dtype,
    Executor,
    HaystackPath,
    How,
    Json,
    Kinds,
    Lengths,
    MaxNewTokens,
    Model,
    N,
    PatchMetric,
    Run,
    ScoresFolder,
    Seed,
    SetPath,
    Top,
    TrialSet,
    Workers,
    make_trials,
    numbers,
    words,
)
from .output import print_effects, print_late, print_sweep, say


@app.command()
def ablate(
    model: Model,
    scores: ScoresFolder,
    out: Run,
    trials: TrialSet = "nonliteral",
    n: N = None,
    lengths: Lengths = None,
    depths: Depths = None,
    kinds: Kinds = None,
    seed: Seed = None,
    path: SetPath = None,
    haystack: HaystackPath = None,
    methods: Annotated[
        str,
        typer.Option(help="Detectors whose heads to ablate, best first.", autocompletion=some_of(names.DETECTORS)),
    ] = "locos",
    ks: Annotated[str, typer.Option(help="Numbers of heads.")] = "1,5,10,20,50",
    controls: Annotated[
        str,
        typer.Option(help="random, bottom, both or '' for none.", autocompletion=some_of(names.CONTROLS)),
    ] = "random,bottom",
    metrics: Annotated[
        str, typer.Option(help=f"{', '.join(names.METRICS)}.", autocompletion=some_of(names.METRICS))
    ] = "rouge_l,contains",
    at: Annotated[str, typer.Option(help="q (query) or z (head output).", autocompletion=one_of(names.SITES))] = "q",
    mode: Annotated[str, typer.Option(help="mean, zero or resample.", autocompletion=one_of(names.MODES))] = "mean",
    calibrate: Annotated[int, typer.Option(min=1, help="Prompts for the means.")] = 50,
    calibration: Annotated[
        str,
        typer.Option(
            help="Set or .jsonl file whose prompts give the means; drawn by another seed.",
            autocompletion=one_of(names.TRIAL_SETS),
        ),
    ] = "nonliteral",
    calibration_seed: Annotated[
        int | None, typer.Option(help="Seed that draws these; default: one that is not the seed of the trials.")
    ] = None,
    max_new_tokens: MaxNewTokens = 50,
    device: Device = None,
    dtype: Dtype = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Answer trials without the top heads of a scoring run, and without as many others.

    The trials must not be those the heads were ranked on: nonliteral trials are drawn by another seed than the
    default of `score`. Every trial is written to --out as it finishes; the same command resumes.

    Example: locos-tl ablate smollm2-135m --scores runs/first --n 40 --ks 1,5,10,20 --out runs/ablated

    Example: locos-tl ablate smollm2-135m --scores runs/first --at z --methods locos,wu --out runs/ablated-z
    """
    from ..results.scores import Scores

    where = options.many(executor, workers, address)
    ranked = Scores.load(scores)
    chosen = {name: ranked[name] for name in words(methods) or ()}
    if not chosen:
        raise ValueError("--methods names no detector")
    shape: dict[str, Any] = {"lengths": lengths, "depths": depths, "kinds": kinds, "path": path, "haystack": haystack}
    drawn = _other_seed(trials, seed, EVALUATION_SEED)
    asked = make_trials(trials, n, seed=drawn, **shape)
    means_from = None
    if mode != "zero":
        own = shape if calibration == trials else {}
        other = EVALUATION_SEED if drawn == CALIBRATION_SEED else CALIBRATION_SEED
        by_seed = _other_seed(calibration, calibration_seed, other)
        means_from = make_trials(calibration, calibrate, seed=by_seed, **own)
    from ..causal.sweep import ablate_sweep, check_options

    sizes, beside, by = numbers(ks, int, "--ks") or (), words(controls) or (), words(metrics) or ()
    check_options(beside, by, at, mode)
    sweep = ablate_sweep(
        options.load(model, device, dtype),
        asked,
        chosen,
        sizes,
        controls=beside,
        metrics=by,
        at=at,
        mode=mode,
        calibration=means_from,
        n_calibration=calibrate,
        max_new_tokens=max_new_tokens,
        out=out,
        **where,
    )
    print_sweep(sweep, as_json)
    if not as_json:
        say(f"written to {out}; look at it with: locos-tl report {scores} --sweep {out}")


EVALUATION_SEED, CALIBRATION_SEED = 43, 44
"""Seeds of trials that are neither those of `score` (42) nor each other's."""


def _other_seed(trials: str, seed: int | None, default: int) -> int | None:
    """The seed given; else one of our own for sets that are drawn, none for ready trials in a file."""
    from ..trials.load import SETS

    return default if seed is None and trials in SETS else seed


@app.command()
def patch(
    model: Model,
    out: Run,
    trials: TrialSet = "nonliteral",
    n: N = 20,
    lengths: Lengths = None,
    depths: Depths = None,
    kinds: Kinds = None,
    seed: Seed = None,
    path: SetPath = None,
    haystack: HaystackPath = None,
    effects: Annotated[
        str, typer.Option(help="total, direct, attribution.", autocompletion=some_of(names.EFFECTS))
    ] = "total,direct",
    how: How = "filler",
    metric: PatchMetric = "logit_diff",
    top: Top = 10,
    device: Device = None,
    dtype: Dtype = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Restore each head's clean activation in a run without the needle, and measure what comes back.

    Every trial is written to --out as it finishes; the same command resumes.

    Example: locos-tl patch smollm2-135m --n 5 --lengths 64 --out runs/patched

    Example: locos-tl patch smollm2-135m --effects attribution --how swap --out runs/estimated
    """
    from ..causal.validation import check_options, patch_trials

    where = options.many(executor, workers, address)
    check_options(words(effects) or (), how, metric)
    asked = make_trials(trials, n, lengths=lengths, depths=depths, kinds=kinds, seed=seed, path=path, haystack=haystack)
    found = patch_trials(
        options.load(model, device, dtype), asked, words(effects) or (), how=how, metric=metric, out=out, **where
    )
    print_effects(found, top, as_json)
    if not as_json:
        say(f"written to {out}")


@app.command()
def validate(
    model: Model,
    scores: ScoresFolder,
    out: Run,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Use only the first trials of the run.")] = None,
    total: Annotated[
        str,
        typer.Option(
            help="total (every head patched) or attribution (a quick estimate of it).",
            autocompletion=one_of(names.TOTALS),
            callback=options.known("--total", names.TOTALS),
        ),
    ] = "total",
    how: How = "filler",
    metric: PatchMetric = "logit_diff",
    device: Device = None,
    dtype: Dtype = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Are the heads of a scoring run late because of how they are scored? Compare with patching.

    Takes the run's own trials, those that passed. Every trial is written to --out as it finishes; the same command
    resumes.

    Example: locos-tl validate smollm2-135m --scores runs/first --total attribution --out runs/late
    """
    from ..causal.validation import check_options, validate_late_layers
    from ..results.scores import Scores
    from ..trials.trial import read_trials

    where = options.many(executor, workers, address)
    check_options((total,), how, metric)
    if out.resolve() == scores.resolve():
        raise ValueError(f"--out {out} is the folder of the scoring run (--scores): give the validation one of its own")
    ranked = Scores.load(scores)
    asked = read_trials(scores / "trials.jsonl")[:n]
    result = validate_late_layers(
        options.load(model, device, dtype), asked, ranked, total=total, how=how, metric=metric, out=out, **where
    )
    print_late(result, as_json)
    if not as_json:
        say(f"written to {out}; look at it with: locos-tl report {scores} --late {out}")
