"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Argument(help="Bundled name, Hub id or local folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps ...; default: a GPU if there is one.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 ...; default: the checkpoint's own.")]
TrialSet = Annotated[
    str,
    typer.Option(
        "--trials",
        help="nonliteral, nolima, niah, babi, babilong, musique, city_country, arithmetic, popqa, or a .jsonl file.",
    ),
]
N = Annotated[int | None, typer.Option("--n", min=1, help="Number of trials.")]
Lengths = Annotated[str | None, typer.Option(help="Context lengths in tokens, e.g. 64,128,256.")]
Depths = Annotated[str | None, typer.Option(help="Needle depths from 0 to 1, e.g. 0,0.5,1.")]
Kinds = Annotated[str | None, typer.Option(help="onehop, twohop, literal; e.g. onehop,twohop.")]
Seed = Annotated[int | None, typer.Option(help="Seed that draws the trials.")]
SetPath = Annotated[
    Path | None,
    typer.Option(
        "--path", help="Local file or folder of a public set (all but nonliteral, babi, city_country, arithmetic)."
    ),
]
HaystackPath = Annotated[Path | None, typer.Option("--haystack", help="Text file or folder of .txt files.")]
Run = Annotated[Path, typer.Option("--out", help="Folder for the run; the same command resumes it.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Decode limit.")]
Top = Annotated[int, typer.Option(min=1, help="Heads to print.")]


def load(model: str, device: str | None, dtype: str | None) -> Any:
    """The model, without the bars of the library below."""
    from transformers.utils import logging as hf_logging

    from ..models.load import load_model

    hf_logging.disable_progress_bar()
    return load_model(model, device=device, dtype=dtype)


def make_trials(
    name: str,
    n: int | None,
    *,
    lengths: str | None = None,
    depths: str | None = None,
    kinds: str | None = None,
    **options: Any,
) -> Any:
    """Trials as the options say; those not given are left to the set."""
    from ..trials.load import load_trials

    options |= {
        "lengths": numbers(lengths, int, "--lengths"),
        "depths": numbers(depths, float, "--depths"),
        "kinds": words(kinds),
    }
    return load_trials(name, n, **{k: v for k, v in options.items() if v is not None})


def numbers(text: str | None, kind: type, option: str) -> list[Any] | None:
    """Numbers with commas between them."""
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{option} takes numbers with commas between them, got {text!r}") from None


def words(text: str | None) -> list[str] | None:
    """Words with commas between them."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
