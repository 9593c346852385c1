"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import visible

if TYPE_CHECKING:
    from ..memory import MemoryEstimate
    from ..models.check import CheckReport
    from ..results.effects import Effects
    from ..results.late_layers import LateLayers
    from ..results.scores import Scores
    from ..results.sweep import Sweep

FEW_TRIALS = 20


def print_scores(scores: Scores, top: int, as_json: bool) -> None:
    """The best heads of a run and how far to trust them."""
    if as_json:
        print_json(scores_json(scores, top))
        return
    main_detector = "locos" if "locos" in scores else next(iter(scores))
    table = scores[main_detector].top(top)
    typer.echo(f"{scores.passed} of {scores.total} trials passed the gate ({scores.pass_rate:.0%})")
    columns = ["rank", "layer", "head", "score", "ci_low", "ci_high", "kv_group"]
    rows = [
        {k: (f"{row[k]:.3f}" if isinstance(row[k], float) else str(row[k])) for k in columns}
        for row in table.to_dict("records")
    ]
    print_rows(rows, False, title=f"top {len(rows)} heads by {main_detector}")
    agreement = scores[main_detector].split_half()
    if math.isfinite(agreement):
        typer.echo(f"rank correlation of two halves of the trials: {agreement:.2f}")
    if scores.passed < FEW_TRIALS:
        typer.echo(f"only {scores.passed} trial(s) passed: mind the intervals; ask for more with --n, in a new folder")


def scores_json(scores: Scores, top: int) -> dict[str, Any]:
    """What `score --json` prints."""
    return {
        "passed": scores.passed,
        "total": scores.total,
        "provenance": scores.provenance,
        "top": {name: heads.top(top).to_dict("records") for name, heads in scores.items()},
        "split_half": {name: heads.split_half() for name, heads in scores.items()},
    }


def print_check(report: CheckReport) -> None:
    """The table of `check`."""
    print_rows(report.table(), False, title=f"{report.model}: {'all checks pass' if report else 'FAILED'}")


def print_memory(found: MemoryEstimate, as_json: bool) -> None:
    """An estimate and its parts."""
    if as_json:
        print_json(found.to_dict())
        return
    from ..memory import told

    title = f"{found.name}: about {told(found.total)} to {found.purpose} a prompt of {found.n_tokens} tokens"
    print_rows(found.table(), False, title=title)
    if found.limit is not None and found.n_tokens > found.limit:
        typer.echo(f"longer than the model's context limit of {found.limit} tokens: it would be refused")


def print_json(value: Any) -> None:
    """One value as strict JSON."""
    from ..results.files import to_json

    typer.echo(to_json(value))


def say(text: str) -> None:
    """One line for people."""
    typer.echo(visible(text))


def degrade() -> None:
    """Let stdout show a character that it does not know (under LC_ALL=C, say) by its code, not fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_path(key: str, path: Path, as_json: bool, **about: Any) -> None:
    """Where something lies: the bare path, for `$(...)`, or JSON."""
    if as_json:
        print_json({key: str(path), **about})
    else:
        typer.echo(os.fsencode(path) if os.name == "posix" else str(path))  # its own bytes, whatever the locale


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, title: str = "") -> None:
    """A rich table on a terminal, aligned plain text in a pipe, or JSON. Numbers are aligned to the right."""
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = [visible(column) for column in rows[0]] if rows else []
    cells = [list(map(visible, row.values())) for row in rows]
    right = [all(map(_is_number, values)) for values in zip(*cells, strict=True)]
    if console.is_terminal:
        table = Table(title=Text(visible(title)) if title else None)
        for column, to_right in zip(columns, right, strict=True):
            table.add_column(Text(column), justify="right" if to_right else "left")
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    widths = [max(map(len, values)) for values in zip(columns, *cells, strict=True)]
    for line in ([visible(title)] if title else []) + [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in ([columns, *cells] if columns else [])
    ]:
        typer.echo(line)


def _is_number(cell: str) -> bool:
    """True for a number, a share in percent, and what stands where there is none."""
    text = cell.removesuffix("%").strip()
    if text in ("", "-", "n/a"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def print_sweep(sweep: Sweep, as_json: bool) -> None:
    """The curves of a sweep, one row per method and k."""
    if as_json:
        print_json(sweep_json(sweep))
        return
    summary = sweep.summary()
    for metric in sweep.metrics:
        of_metric = summary[summary["metric"] == metric]
        rows = [
            {
                "method": row["method"],
                "heads": str(row["k"]),
                metric: f"{row['mean']:.3f}",
                "95 % interval": f"{row['ci_low']:.3f} to {row['ci_high']:.3f}",
                "drop": "" if row["k"] == 0 else f"{row['drop']:.3f}",
                "trials": str(row["n_trials"]),
            }
            for row in of_metric.to_dict("records")
        ]
        about = sweep.provenance.get("ablation", {})
        print_rows(rows, False, title=f"{metric} without these heads ({about.get('at')}, {about.get('mode')})")


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """What `ablate --json` prints."""
    return {"summary": sweep.summary().to_dict("records"), "provenance": sweep.provenance}


def print_effects(effects: Mapping[str, Effects], top: int, as_json: bool) -> None:
    """The largest effects of each kind."""
    if as_json:
        print_json({kind: found.top(top).to_dict("records") for kind, found in effects.items()})
        return
    for kind, found in effects.items():
        rows = [
            {str(k): f"{v:.3f}" if isinstance(v, float) else str(v) for k, v in row.items()}
            for row in found.top(top).to_dict("records")
        ]
        print_rows(rows, False, title=f"{kind} effect on {found.metric}, {found.n_trials} trials")


def _or_dash(form: str) -> Callable[[float], str]:
    return lambda value: format(value, form) if math.isfinite(value) else "-"


_LATE_COLUMNS = (
    ("last third", "profile_last_third", _or_dash("z.0%")),
    ("centre of mass", "profile_centre_of_mass", _or_dash("z.3f")),
    ("permutation p", "p_value", _or_dash(".2g")),
    ("gini", "gini", _or_dash(".3f")),
    ("spearman", "spearman", _or_dash("z.3f")),
    ("overlap@10", "overlap@10", _or_dash(".3f")),
)
"""Columns of `print_late`: name, column of `LateLayers.to_frame`, how it is written. The verdict rests on the first."""


def print_late(late: LateLayers, as_json: bool) -> None:
    """Statistics and verdict of a late-layer validation."""
    if as_json:
        print_json(late_json(late))
        return
    frame = late.to_frame()
    missed = late.missed()
    rows = [
        {"method": row["method"]} | {name: write(row.get(column, math.nan)) for name, column, write in _LATE_COLUMNS}
        for row in frame.to_dict("records")
    ]
    print_rows(rows, False, title=f"where the positive mass lies, {late.n_trials} trials")
    if len(missed):
        typer.echo(f"high {visible(late.causal_name)}, low {visible(late.reference)}: {', '.join(missed['head'])}")
    typer.echo(f"late-layer concentration: {late.verdict}. {visible(late.reason)}")


def late_json(late: LateLayers) -> dict[str, Any]:
    """What `validate --json` prints."""
    return {
        "verdict": late.verdict,
        "reason": late.reason,
        "statistics": late.to_frame().to_dict("records"),
        "missed": late.missed().to_dict("records"),
    }
