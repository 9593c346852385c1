"""The command line: parse, call one public function, save, print a short table."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from . import names, options
from .errors import EXPECTED, plain_notices, told
from .names import one_of
from .options import (
    Address,
    Depths,
    Detectors,
    Device,
    Dtype,
    Executor,
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
    Workers,
    make_trials,
    words,
)
from .output import degrade, print_path, print_scores, say

_FLOW = ("demo", "check", "estimate", "score", "report", "compare", "export", "ablate", "patch", "validate", "model")


class _Root(typer.core.TyperGroup):
    """Says what a stop means; typer itself ends silently on both before `main` could see them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order in which they are used."""
        return sorted(super().list_commands(ctx), key=lambda name: _FLOW.index(name) if name in _FLOW else len(_FLOW))

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


def main() -> None:
    """Entry point: errors a user can meet are one line, not a traceback (``--debug``, anywhere, shows it)."""
    debug = "--debug" in sys.argv
    while "--debug" in sys.argv:
        sys.argv.remove("--debug")
    degrade()
    with plain_notices():
        try:
            app()
        except EXPECTED as error:
            if debug:
                raise
            typer.echo(f"error: {told(error)}", err=True)
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
    debug: Annotated[bool, typer.Option("--debug", help="Full tracebacks of errors; may stand anywhere.")] = False,
) -> None:
    """Find the attention heads by which a language model answers from the meaning of its context."""


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
    detectors: Detectors = "all",
    variant: Annotated[
        str,
        typer.Option(
            help="paper, folded or exact; or several, measured in one pass: paper,exact.",
            autocompletion=one_of(names.VARIANTS),
            callback=options.known("--variant", names.VARIANTS),
        ),
    ] = "paper",
    max_new_tokens: MaxNewTokens = 50,
    top: Top = 10,
    device: Device = None,
    dtype: Dtype = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell trials, tokens and memory: no weights are loaded.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Score every attention head of MODEL on a set of trials.

    Every trial is written to --out as it finishes; the same command resumes after a stop.

    Example: locos-tl score smollm2-135m --trials nonliteral --n 48 --out runs/first

    Example: locos-tl score Qwen/Qwen3-8B --lengths 512,2048 --detectors locos,wu --dtype bfloat16 --out runs/qwen
    """
    asked = make_trials(trials, n, lengths=lengths, depths=depths, kinds=kinds, seed=seed, path=path, haystack=haystack)
    where = options.many(executor, workers, address)
    wanted = "all" if detectors == "all" else words(detectors) or []
    from ..scoring.detectors import resolve
    from ..scoring.run import score_heads

    resolve(wanted)  # before the model, which may take minutes to load
    if dry_run:
        from .dry import dry_run_of, print_dry_run

        print_dry_run(dry_run_of(model, asked, max_new_tokens, device, dtype), as_json)
        return
    scores = score_heads(
        options.load(model, device, dtype), asked, wanted, words(variant) or (), max_new_tokens, out=out, **where
    )
    print_scores(scores, top, as_json)
    if not as_json:
        say(f"written to {out}; look at it with: locos-tl report {out}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: report.html in the folder.")] = None,
    sweep: Annotated[
        list[Path] | None, typer.Option(help="Folder of an ablation to show, under its name; may be repeated.")
    ] = None,
    late: Annotated[Path | None, typer.Option(help="Folder of a late-layer validation to show.")] = None,
    patched: Annotated[
        Path | None, typer.Option(help="Folder of patching effects, which the explorer shows beside the scores.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a finished run as one HTML file that opens without a network; prints its path.

    Example: locos-tl report runs/first --sweep runs/ablated --late runs/late

    Example: locos-tl report runs/first --patched runs/patched --output first.html
    """
    from ..figures import write_report
    from ..progress import working
    from ..results.effects import load_effects
    from ..results.late_layers import LateLayers
    from ..results.scores import Scores
    from ..results.sweep import Sweep

    with working("writing the report"):
        sweeps = {name: Sweep.load(folder) for name, folder in _named(sweep or []).items()}
        found = None if late is None else LateLayers.load(late)
        effects = None if patched is None else load_effects(patched)
        where = output or run / "report.html"
        page = write_report(Scores.load(run), where, sweeps=sweeps or None, late=found, effects=effects)
    print_path("report", page.resolve(), as_json)


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
from . import causal, demo, models, results  # noqa: E402, F401
