"""locos_tl: find the attention heads by which a language model answers from the meaning of its context.

The public names follow the flow: load a model, load trials, score heads, look. Imports are lazy, so that
``import locos_tl`` and the command line's ``--help`` cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load_model": "models.load",
    "HookedModel": "models.hooked",
    "load_trials": "trials.load",
    "Trial": "trials.trial",
    "TrialGrid": "trials.trial",
    "PromptTemplate": "trials.needle",
    "save_trials": "trials.trial",
    "read_trials": "trials.trial",
    "score_heads": "scoring.run",
    "NoTrialPassed": "scoring.run",
    "generate": "scoring.explore",
    "phi": "scoring.explore",
    "HeadScores": "results.head_scores",
    "Scores": "results.scores",
    "TrialOutcome": "results.scores",
    "ResultFileError": "results.files",
}
_ROOMS = ("models", "trials", "scoring", "results", "figures")
__all__ = [
    "HeadScores",
    "HookedModel",
    "NoTrialPassed",
    "PromptTemplate",
    "ResultFileError",
    "Scores",
    "Trial",
    "TrialGrid",
    "TrialOutcome",
    "__version__",
    "figures",
    "generate",
    "load_model",
    "load_trials",
    "models",
    "phi",
    "read_trials",
    "results",
    "save_trials",
    "score_heads",
    "scoring",
    "trials",
]

if TYPE_CHECKING:
    from . import figures, models, results, scoring, trials
    from .models.hooked import HookedModel
    from .models.load import load_model
    from .results.files import ResultFileError
    from .results.head_scores import HeadScores
    from .results.scores import Scores, TrialOutcome
    from .scoring.explore import generate, phi
    from .scoring.run import NoTrialPassed, score_heads
    from .trials.load import load_trials
    from .trials.needle import PromptTemplate
    from .trials.trial import Trial, TrialGrid, read_trials, save_trials


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
