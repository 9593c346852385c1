"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import names
from .names import one_of, some_of

Model = Annotated[
    str, typer.Argument(help="Bundled name, Hub id or local folder.", autocompletion=one_of(names.MODELS))
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1, mps ...; default: a GPU if there is one.", autocompletion=one_of(names.DEVICES)
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32, bfloat16 ...; default: the checkpoint's own.", autocompletion=one_of(names.DTYPES)),
]
TrialSet = Annotated[
    str,
    typer.Option(
        "--trials", help=f"{', '.join(names.TRIAL_SETS)}, or a .jsonl file.", autocompletion=one_of(names.TRIAL_SETS)
    ),
]
N = Annotated[int | None, typer.Option("--n", min=1, help="Number of trials.")]
Lengths = Annotated[str | None, typer.Option(help="Context lengths in tokens, e.g. 64,128,256.")]
Depths = Annotated[str | None, typer.Option(help="Needle depths from 0 to 1, e.g. 0,0.5,1.")]
Kinds = Annotated[
    str | None,
    typer.Option(help="onehop, twohop, literal; e.g. onehop,twohop.", autocompletion=some_of(names.KINDS)),
]
Seed = Annotated[int | None, typer.Option(help="Seed that draws the trials.")]
SetPath = Annotated[
    Path | None,
    typer.Option(
        "--path", help="Local file or folder of a public set (all but nonliteral, babi, city_country, arithmetic)."
    ),
]
HaystackPath = Annotated[Path | None, typer.Option("--haystack", help="Text file or folder of .txt files.")]
Run = Annotated[Path, typer.Option("--out", help="Folder for the run; the same command resumes it.")]
ScoresFolder = Annotated[Path, typer.Option("--scores", help="Folder of a finished scoring run: whose heads.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Decode limit.")]
Top = Annotated[int, typer.Option(min=1, help="Heads to print.")]
How = Annotated[
    str,
    typer.Option(
        help="What replaces the needle: filler, or swap (another name and fact).", autocompletion=one_of(names.WAYS)
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        help="local; or share the trials out to processes of this machine, or to a Ray cluster (ray).",
        autocompletion=one_of(names.EXECUTORS),
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes with a model each; default: one for every GPU, 2 without.")
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster: auto, host:port or ray://host:port; default: this machine alone.")
]
PatchMetric = Annotated[
    str, typer.Option(help="logit_diff or answer_logprob.", autocompletion=one_of(names.PATCH_METRICS))
]


def _known_detectors(value: str) -> str:
    """Refuse an unknown detector with the nearest there is."""
    if value not in ("all", ""):
        # "cri" is known to be something else, which the library says.
        refuse_unknown("detector", words(value) or (), [*names.DETECTORS, "cri"], shown=names.DETECTORS)
    return value


Detectors = Annotated[
    str,
    typer.Option(
        help="all, or e.g. locos,wu.",
        autocompletion=some_of(["all", *names.DETECTORS]),
        callback=_known_detectors,
    ),
]
OneDetector = Annotated[
    str, typer.Option("--detector", help="Which detector's scores.", autocompletion=one_of(names.DETECTORS))
]


def known(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    """A callback that refuses values other than the choices, or several of them with commas between."""

    def check(value: str) -> str:
        refuse_unknown(what, words(value) or [value], choices)
        return value

    return check


def refuse_unknown(what: str, given: Sequence[str], known: Sequence[str], shown: Sequence[str] | None = None) -> None:
    """Refuse names that are not among the known ones.

    Args:
        shown: the choices to name; default: all known ones.

    Raises:
        ValueError: naming the unknown one, the nearest, and the choices.
    """
    from ..choices import unknown

    for name in given:
        if name not in known:
            raise ValueError(unknown(what, name, shown or known))


def load(model: str, device: str | None, dtype: str | None) -> Any:
    """The model, with one sign of life instead of the bars of the library below."""
    from ..progress import working

    with working(f"loading {model}"):
        from transformers.utils import logging as hf_logging

        from ..models.load import load_model

        hf_logging.disable_progress_bar()
        return load_model(model, device=device, dtype=dtype)


def many(executor: str, workers: int | None, address: str | None) -> dict[str, Any]:
    """Where trials are run, checked before a model is loaded."""
    from ..executors import check_executor

    check_executor(executor, workers, address)
    return {"executor": executor, "workers": workers, "address": address}


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
        whole = "whole numbers" if kind is int and _all_numbers(text) else "numbers"
        raise ValueError(f"{option} takes {whole} with commas between them, got {text!r}") from None


def _all_numbers(text: str) -> bool:
    """True where every part is a number of some kind."""
    try:
        return bool([float(part) for part in text.split(",") if part.strip()])
    except ValueError:
        return False


def words(text: str | None) -> list[str] | None:
    """Words with commas between them."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
