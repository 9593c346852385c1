"""Commands over finished runs, which need no model: compare, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import app, names, options
from .names import one_of
from .options import Json, OneDetector
from .output import print_json, print_path, print_rows, say

if TYPE_CHECKING:
    from ..results.comparison import Comparison

RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished scoring run.")]


@app.command()
def compare(
    run_a: RunFolder,
    run_b: RunFolder,
    detector: Annotated[
        str | None,
        typer.Option(help="Only this detector; default: all that both have.", autocompletion=one_of(names.DETECTORS)),
    ] = None,
    moved: Annotated[int, typer.Option(min=1, help="Heads to name that moved most.")] = 5,
    as_json: Json = False,
) -> None:
    """Are two scoring runs the same, and if not, which setting differs first and which heads moved?

    Example: locos-tl compare runs/first runs/again

    Example: locos-tl compare runs/small runs/large --detector locos --json
    """
    from ..results.comparison import compare as compare_runs
    from ..results.scores import Scores

    found = compare_runs(Scores.load(run_a), Scores.load(run_b), detector=detector, n_moved=moved)
    if as_json:
        print_json(found.to_dict())
        return
    _print_comparison(found, str(run_a), str(run_b))


def _print_comparison(found: Comparison, name_a: str, name_b: str) -> None:
    say(f"A: {name_a}, {found.passed[0]} of {found.total[0]} trials passed")
    say(f"B: {name_b}, {found.passed[1]} of {found.total[1]} trials passed")
    say(found.verdict)
    print_rows(found.table(), False, title="rankings of the heads")
    for row in found.detectors:
        if row.moved and not row.identical:
            told = ", ".join(f"L{m.layer}H{m.head} {m.rank_a} to {m.rank_b}" for m in row.moved)
            say(f"{row.detector}, moved most (rank in A to rank in B): {told}")


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    detector: OneDetector = "locos",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="head-list: the field's JSON; kv-gates: a TSV of KV-head gates, 0 to 1; csv: one row a head.",
            autocompletion=one_of(names.FORMATS),
            callback=options.known("--format", names.FORMATS),
        ),
    ] = "head-list",
    as_json: Json = False,
) -> None:
    """Write one detector's scores in a form that other projects read; prints the path.

    kv-gates: one row a layer, one column a key-value head, as DuoAttention publishes; the largest positive score of
    the query heads that share a key-value head, over the largest of all.

    Example: locos-tl export runs/first --detector locos -o heads.json

    Example: locos-tl export runs/first --format kv-gates -o gates.tsv
    """
    from ..results.scores import Scores

    held = Scores.load(run)[detector]
    if form == "head-list":
        held.to_head_list(out)
    elif form == "kv-gates":
        held.to_kv_gates(out)
    else:
        held.to_csv(out)
    print_path("path", out.resolve(), as_json, format=form, detector=detector)
