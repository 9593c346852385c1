"""The command line: parse, call one public function, save, print a short table."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from . import options
from .options import (
    Depths,
    Device,
    Dtype,
    HaystackPath,
    Json,
    Kinds,
    Lengths,
    MaxNewTokens,
    Model,
    N,
    Run,
    Seed,
    SetPath,
    Top,
    TrialSet,
    make_trials,
    words,
)
from .output import print_check, print_json, print_rows, print_scores


class _Root(typer.core.TyperGroup):
    """Says what a stop means; typer itself ends silently on both before `main` could see them."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\nstopped (a scoring run keeps its finished trials; the same command resumes it)", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # A reader like `head` went away; nothing of ours is lost.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
model_app = typer.Typer(help="Models that install from PyPI.", no_args_is_help=True)
app.add_typer(model_app, name="model")


def main() -> None:
    """Entry point: errors a user can meet are one line, not a traceback (``--debug`` shows it)."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
    except (ValueError, KeyError, RuntimeError, OSError, FloatingPointError) as error:
        if debug:
            raise
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        typer.echo(f"error: {text or type(error).__name__}", err=True)
        sys.exit(2)


def _version(show: bool) -> bool:
    if show:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit
    return show


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the attention heads by which a language model answers from the meaning of its context.

    Add --debug to any command for full tracebacks.
    """


# --- look at a model ------------------------------------------------------------------------------


@app.command()
def check(
    model: Model,
    device: Device = None,
    dtype: Dtype = None,
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of the probe prompt.")] = None,
    as_json: Json = False,
) -> None:
    """Compare a model with plain transformers and with the identities that scores rest on.

    Exit code 1 when a check fails.

    Example: locos-tl check smollm2-135m
    """
    from ..models.check import check_model

    report = check_model(options.load(model, device, dtype), length=length)
    if as_json:
        print_json({"model": report.model, "passed": report.passed, "checks": report.to_dicts()})
    else:
        print_check(report)
    if not report:
        raise typer.Exit(1)


@model_app.command("list")
def model_list(as_json: Json = False) -> None:
    """Bundled models and whether they are ready."""
    from ..models.bundled import BUNDLED, checkpoint_path, is_ready

    rows = [
        {
            "name": m.name,
            "ready": is_ready(m.name),
            "license": m.license,
            "about": m.about,
            "path": str(checkpoint_path(m.name)),
        }
        for m in BUNDLED.values()
    ]
    print_rows(rows, as_json)


@model_app.command("get")
def model_get(name: Annotated[str, typer.Argument(help="Name of a bundled model.")] = "smollm2-135m") -> None:
    """Fetch and convert a bundled model once; prints its folder.

    Example: locos-tl model get smollm2-135m
    """
    from ..models.bundled import ensure

    typer.echo(str(ensure(_bundled(name))))


@model_app.command("path")
def model_path(name: Annotated[str, typer.Argument(help="Name of a bundled model.")] = "smollm2-135m") -> None:
    """Print a bundled model's folder, whether it is there yet or not."""
    from ..models.bundled import checkpoint_path

    typer.echo(str(checkpoint_path(_bundled(name))))


def _bundled(name: str) -> str:
    from ..models.bundled import checkpoint_path

    checkpoint_path(name)
    return name


# --- score and look -------------------------------------------------------------------------------


@app.command()
def score(
    model: Model,
    out: Run,
    trials: TrialSet = "nonliteral",
    n: N = None,
    lengths: Lengths = None,
    depths: Depths = None,
    kinds: Kinds = None,
    seed: Seed = None,
    path: SetPath = None,
    haystack: HaystackPath = None,
    detectors: Annotated[str, typer.Option(help="all, or e.g. locos,wu.")] = "all",
    variant: Annotated[str, typer.Option(help="paper, folded or exact.")] = "paper",
    max_new_tokens: MaxNewTokens = 50,
    top: Top = 10,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Score every attention head of MODEL on a set of trials.

    Every trial is written to --out as it finishes; the same command resumes after a stop.

    Example: locos-tl score smollm2-135m --trials nonliteral --n 48 --out runs/first
    """
    asked = make_trials(trials, n, lengths=lengths, depths=depths, kinds=kinds, seed=seed, path=path, haystack=haystack)
    wanted = "all" if detectors == "all" else words(detectors) or []
    from ..scoring.detectors import resolve
    from ..scoring.measure import VARIANTS
    from ..scoring.run import score_heads

    # Before the model, which may take minutes to load.
    resolve(wanted)
    if variant not in VARIANTS:
        raise ValueError(f"unknown --variant {variant!r}; choose from {', '.join(VARIANTS)}")
    scores = score_heads(options.load(model, device, dtype), asked, wanted, variant, max_new_tokens, out=out)
    print_scores(scores, top, as_json)
    if not as_json:
        typer.echo(f"written to {out}; look at it with: locos-tl report {out}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: report.html in the folder.")] = None,
    sweep: Annotated[
        list[Path] | None, typer.Option(help="Folder of an ablation to show, under its name; may be repeated.")
    ] = None,
    late: Annotated[Path | None, typer.Option(help="Folder of a late-layer validation to show.")] = None,
) -> None:
    """Write a finished run as one HTML file that opens without a network; prints its path.

    Example: locos-tl report runs/first --sweep runs/ablated --late runs/late
    """
    from ..figures import write_report
    from ..results.late_layers import LateLayers
    from ..results.scores import Scores
    from ..results.sweep import Sweep

    sweeps = {name: Sweep.load(folder) for name, folder in _named(sweep or []).items()}
    found = None if late is None else LateLayers.load(late)
    page = write_report(Scores.load(run), output or run / "report.html", sweeps=sweeps or None, late=found)
    typer.echo(str(page.resolve()))


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """Each folder by the last parts of its path, as many as tell it from the others: "a/x" and "b/x"."""
    paths = [folder.resolve() for folder in folders]
    if twice := [str(folder) for folder, path in zip(folders, paths, strict=True) if paths.count(path) > 1]:
        raise ValueError(f"--sweep names the same folder twice: {' and '.join(twice)}")

    named = {}
    for folder, path in zip(folders, paths, strict=True):
        lengths = range(1, len(path.parts) + 1)
        n = next(n for n in lengths if sum(other.parts[-n:] == path.parts[-n:] for other in paths) == 1)
        named[str(Path(*path.parts[-n:]))] = folder
    return named


# Further commands add themselves to `app`.
from . import causal, demo  # noqa: E402, F401
