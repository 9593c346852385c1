"""The command line: parse, call one public function, save, print a short table."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from .models.check import CheckReport
    from .results.scores import Scores


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

FEW_TRIALS = 20

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps ...; default: a GPU if there is one.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 ...; default: the checkpoint's own.")]


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
        from . import __version__

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
    model: Annotated[str, typer.Argument(help="Bundled name, Hub id or local folder.")],
    device: Device = None,
    dtype: Dtype = None,
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of the probe prompt.")] = None,
    as_json: Json = False,
) -> None:
    """Compare a model with plain transformers and with the identities that scores rest on.

    Exit code 1 when a check fails.

    Example: locos-tl check smollm2-135m
    """
    from .models.check import check_model

    report = check_model(_load(model, device, dtype), length=length)
    if as_json:
        _print_json({"model": report.model, "passed": report.passed, "checks": report.to_dicts()})
    else:
        _print_check(report)
    if not report:
        raise typer.Exit(1)


@model_app.command("list")
def model_list(as_json: Json = False) -> None:
    """Bundled models and whether they are ready."""
    from .models.bundled import BUNDLED, checkpoint_path, is_ready

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
    _print_rows(rows, as_json)


@model_app.command("get")
def model_get(name: Annotated[str, typer.Argument(help="Name of a bundled model.")] = "smollm2-135m") -> None:
    """Fetch and convert a bundled model once; prints its folder.

    Example: locos-tl model get smollm2-135m
    """
    from .models.bundled import ensure

    typer.echo(str(ensure(_bundled(name))))


@model_app.command("path")
def model_path(name: Annotated[str, typer.Argument(help="Name of a bundled model.")] = "smollm2-135m") -> None:
    """Print a bundled model's folder, whether it is there yet or not."""
    from .models.bundled import checkpoint_path

    typer.echo(str(checkpoint_path(_bundled(name))))


def _bundled(name: str) -> str:
    from .models.bundled import checkpoint_path

    checkpoint_path(name)
    return name


# --- score and look -------------------------------------------------------------------------------


@app.command()
def score(
    model: Annotated[str, typer.Argument(help="Bundled name, Hub id or local folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the run; the same command resumes it.")],
    trials: Annotated[str, typer.Option(help="nonliteral, nolima, niah, or a .jsonl file.")] = "nonliteral",
    n: Annotated[int | None, typer.Option(min=1, help="Number of trials.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Context lengths in tokens, e.g. 64,128,256.")] = None,
    depths: Annotated[str | None, typer.Option(help="Needle depths from 0 to 1, e.g. 0,0.5,1.")] = None,
    kinds: Annotated[str | None, typer.Option(help="onehop, twohop, literal; e.g. onehop,twohop.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed that draws the trials.")] = None,
    path: Annotated[Path | None, typer.Option(help="Local folder of a public set (nolima, niah).")] = None,
    haystack: Annotated[Path | None, typer.Option(help="Text file or folder of .txt files.")] = None,
    detectors: Annotated[str, typer.Option(help="all, or e.g. locos,wu.")] = "all",
    variant: Annotated[str, typer.Option(help="paper, folded or exact.")] = "paper",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Decode limit.")] = 50,
    top: Annotated[int, typer.Option(min=1, help="Heads to print.")] = 10,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Score every attention head of MODEL on a set of trials.

    Every trial is written to --out as it finishes; the same command resumes after a stop.

    Example: locos-tl score smollm2-135m --trials nonliteral --n 48 --out runs/first
    """
    from .trials.load import load_trials

    options: dict[str, Any] = {
        "lengths": _numbers(lengths, int, "--lengths"),
        "depths": _numbers(depths, float, "--depths"),
        "kinds": _words(kinds),
        "seed": seed,
        "path": path,
        "haystack": haystack,
    }
    asked = load_trials(trials, n, **{k: v for k, v in options.items() if v is not None})
    wanted = "all" if detectors == "all" else _words(detectors) or []
    from .scoring.detectors import resolve
    from .scoring.measure import VARIANTS
    from .scoring.run import score_heads

    # Before the model, which may take minutes to load.
    resolve(wanted)
    if variant not in VARIANTS:
        raise ValueError(f"unknown --variant {variant!r}; choose from {', '.join(VARIANTS)}")
    scores = score_heads(_load(model, device, dtype), asked, wanted, variant, max_new_tokens, out=out)
    _print_scores(scores, top, as_json)
    if not as_json:
        typer.echo(f"written to {out}; look at it with: locos-tl report {out}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: report.html in the folder.")] = None,
) -> None:
    """Write a finished run as one HTML file that opens without a network; prints its path.

    Example: locos-tl report runs/first
    """
    from .figures import write_report
    from .results.scores import Scores

    typer.echo(str(write_report(Scores.load(run), output or run / "report.html").resolve()))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/demo"),
    n: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 48,
) -> None:
    """The main job on the bundled model: ask, score every head, write the HTML report.

    Example: locos-tl demo
    """
    from .figures import write_report
    from .scoring.run import score_heads
    from .trials.load import load_trials

    started = time.monotonic()
    model = _load("smollm2-135m", None, None)
    trials = load_trials("nonliteral", n)
    typer.echo(f"{model.info.name}: {model.n_layers} layers x {model.n_heads} heads; {len(trials)} non-literal trials")
    scores = score_heads(model, trials, out=out)
    _print_scores(scores, 10, False)
    page = write_report(scores, out / "report.html")
    typer.echo(f"done in {time.monotonic() - started:.0f} s; open the report:")
    typer.echo(str(page.resolve()))


# --- helpers --------------------------------------------------------------------------------------


def _load(model: str, device: str | None, dtype: str | None) -> Any:
    from transformers.utils import logging as hf_logging

    from .models.load import load_model

    hf_logging.disable_progress_bar()
    return load_model(model, device=device, dtype=dtype)


def _numbers(text: str | None, kind: type, option: str) -> list[Any] | None:
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{option} takes numbers with commas between them, got {text!r}") from None


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _print_scores(scores: Scores, top: int, as_json: bool) -> None:
    main_detector = "locos" if "locos" in scores else next(iter(scores))
    table = scores[main_detector].top(top)
    if as_json:
        _print_json(
            {
                "passed": scores.passed,
                "total": scores.total,
                "provenance": scores.provenance,
                "top": {name: heads.top(top).to_dict("records") for name, heads in scores.items()},
                "split_half": {name: heads.split_half() for name, heads in scores.items()},
            }
        )
        return
    typer.echo(f"{scores.passed} of {scores.total} trials passed the gate ({scores.pass_rate:.0%})")
    columns = ["rank", "layer", "head", "score", "ci_low", "ci_high", "kv_group"]
    rows = [
        {k: (f"{row[k]:.3f}" if isinstance(row[k], float) else str(row[k])) for k in columns}
        for row in table.to_dict("records")
    ]
    _print_rows(rows, False, title=f"top {len(rows)} heads by {main_detector}")
    agreement = scores[main_detector].split_half()
    if math.isfinite(agreement):
        typer.echo(f"rank correlation of two halves of the trials: {agreement:.2f}")
    if scores.passed < FEW_TRIALS:
        typer.echo(f"only {scores.passed} trial(s) passed: mind the intervals, ask for more with --n")


def _print_check(report: CheckReport) -> None:
    words = {True: "pass", False: "FAIL", None: "n/a"}
    rows = [
        {
            "check": row.name,
            "result": words[row.passed],
            "error": "" if row.error is None else f"{row.error:.1e}",
            "allowed": "" if row.tolerance is None else f"{row.tolerance:.0e}",
            "note": row.note if row.passed is not True else "",
        }
        for row in report.rows
    ]
    _print_rows(rows, False, title=f"{report.model}: {'all checks pass' if report else 'FAILED'}")


def _print_json(value: Any) -> None:
    from .results.files import to_json

    typer.echo(to_json(value))


def _print_rows(rows: Sequence[dict[str, Any]], as_json: bool, title: str = "") -> None:
    """A rich table on a terminal, aligned plain text in a pipe, or JSON."""
    if as_json:
        _print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = list(rows[0]) if rows else []
    if console.is_terminal:
        table = Table(title=title or None)
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(Text(str(row[c])) for c in columns))
        console.print(table)
        return
    widths = [max(len(c), *(len(str(row[c])) for row in rows)) for c in columns]
    for line in ([title] if title else []) + [
        "  ".join(str(cell).ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip()
        for cells in [columns, *([row[c] for c in columns] for row in rows)]
    ]:
        typer.echo(line)


if __name__ == "__main__":
    main()
