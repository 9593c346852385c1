"""`load_trials`: every set of trials by name, or your own files by path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..choices import did_you_mean, unknown
from ..results.files import ResultFileError, read_jsonl
from .babi import babi
from .babilong import babilong
from .controls import arithmetic, city_country, popqa
from .musique import musique
from .niah import niah
from .nolima import nolima
from .nonliteral import custom, nonliteral
from .trial import Trial, TrialGrid, read_trials

SETS: dict[str, Callable[..., TrialGrid]] = {
    "nonliteral": nonliteral,
    "nolima": nolima,
    "niah": niah,
    "babi": babi,
    "babilong": babilong,
    "musique": musique,
    "city_country": city_country,
    "arithmetic": arithmetic,
    "popqa": popqa,
}


def load_trials(name: str | Path, n: int | None = None, **options: Any) -> TrialGrid | Sequence[Trial]:
    """Trials of a named set, or from a file of yours.

    Args:
        name: needles: "nonliteral" (bundled), "nolima" (from the Hub, or ``path=`` a local folder), "niah"
            (``path=`` a local folder); several facts: "babi" (bundled), "babilong", "musique" (from the Hub or
            ``path=``); closed book: "city_country", "arithmetic" (bundled), "popqa" (from the Hub or ``path=``). Or the
            path of a JSON-lines file: trials written by `save_trials`, or needles with the five fields id, relation,
            needle, question, answer.
        n: number of trials; default: what the set says.
        options: passed to the set: ``lengths``, ``depths``, ``seed``, ``haystack``, ``path``, ``kinds``,
            ``template``, ``tokenizer`` ...; see the function of the set's name, and `custom` for needles of yours.

    Raises:
        ValueError: for an unknown set or option.
        ResultFileError: for a file that cannot be read, naming the line.
        FileNotFoundError: when a public set is neither local nor reachable.
    """
    if str(name) in SETS:
        make = SETS[str(name)]
        return _call(make, name, {**options, **({} if n is None else {"n": n})})
    path = Path(name)
    if path.suffix not in (".jsonl", ".json") and not path.exists():
        raise ValueError(f"{unknown('trials', name, SETS)}, or give the path of a .jsonl file")
    first = next(iter(read_jsonl(path)), None)
    if first is None:
        raise ResultFileError(f"{path}: holds no trials")
    if isinstance(first, dict) and "prompt_ids" in first:
        if options:
            raise ValueError(f"{path} holds ready trials; the option {sorted(options)[0]!r} has no use")
        if n is not None and n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        return read_trials(path)[:n]
    return _call(custom, name, {"needles": path, "n": n, **options})


def _call(make: Callable[..., Any], name: Any, options: dict[str, Any]) -> Any:
    import inspect

    known = inspect.signature(make).parameters
    if extra := sorted(set(options) - set(known)):
        hint = did_you_mean(extra[0], known)
        raise ValueError(f"trials {str(name)!r} have no option {extra[0]!r}{hint}; there are: {', '.join(known)}")
    return make(**options)
