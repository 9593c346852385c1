"""locos_tl: find the attention heads by which a language model answers from the meaning of its context.

The public names follow the flow: load a model, load trials, score heads, intervene, look. Imports are lazy, so that
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
    "split_by_needle": "trials.split",
    "save_trials": "trials.trial",
    "read_trials": "trials.trial",
    "score_heads": "scoring.run",
    "NoTrialPassed": "scoring.run",
    "generate": "scoring.explore",
    "phi": "scoring.explore",
    "read_heads": "scoring.reading",
    "explore": "figures.explorer.explorer",
    "ablation": "causal.ablation",
    "calibrate_means": "causal.means",
    "HeadMeans": "causal.means",
    "ablate_sweep": "causal.sweep",
    "corrupt": "causal.corrupt",
    "PromptPair": "causal.pairs",
    "patch_heads": "causal.patching",
    "patch_together": "causal.patching",
    "total_effects": "causal.patching",
    "direct_effects": "causal.paths",
    "path_patching": "causal.paths",
    "attribution_patching": "causal.attribution",
    "patch_trials": "causal.validation",
    "validate_late_layers": "causal.validation",
    "HeadScores": "results.head_scores",
    "HeadReading": "results.reading",
    "Scores": "results.scores",
    "TrialOutcome": "results.scores",
    "Sweep": "results.sweep",
    "Comparison": "results.comparison",
    "compare": "results.comparison",
    "Dissociation": "results.dissociation",
    "dissociation": "results.dissociation",
    "Effects": "results.effects",
    "LateLayers": "results.late_layers",
    "ResultFileError": "results.files",
}
_ROOMS = ("models", "trials", "scoring", "causal", "results", "figures")
__all__ = [
    "Comparison",
    "Dissociation",
    "Effects",
    "HeadMeans",
    "HeadReading",
    "HeadScores",
    "HookedModel",
    "LateLayers",
    "NoTrialPassed",
    "PromptPair",
    "PromptTemplate",
    "ResultFileError",
    "Scores",
    "Sweep",
    "Trial",
    "TrialGrid",
    "TrialOutcome",
    "__version__",
    "ablate_sweep",
    "ablation",
    "attribution_patching",
    "calibrate_means",
    "causal",
    "compare",
    "corrupt",
    "direct_effects",
    "dissociation",
    "explore",
    "figures",
    "generate",
    "load_model",
    "load_trials",
    "models",
    "patch_heads",
    "patch_together",
    "patch_trials",
    "path_patching",
    "phi",
    "read_heads",
    "read_trials",
    "results",
    "save_trials",
    "score_heads",
    "scoring",
    "split_by_needle",
    "total_effects",
    "trials",
    "validate_late_layers",
]

if TYPE_CHECKING:
    from . import causal, figures, models, results, scoring, trials
    from .causal.ablation import ablation
    from .causal.attribution import attribution_patching
    from .causal.corrupt import corrupt
    from .causal.means import HeadMeans, calibrate_means
    from .causal.pairs import PromptPair
    from .causal.patching import patch_heads, patch_together, total_effects
    from .causal.paths import direct_effects, path_patching
    from .causal.sweep import ablate_sweep
    from .causal.validation import patch_trials, validate_late_layers
    from .figures.explorer.explorer import explore
    from .models.hooked import HookedModel
    from .models.load import load_model
    from .results.comparison import Comparison, compare
    from .results.dissociation import Dissociation, dissociation
    from .results.effects import Effects
    from .results.files import ResultFileError
    from .results.head_scores import HeadScores
    from .results.late_layers import LateLayers
    from .results.reading import HeadReading
    from .results.scores import Scores, TrialOutcome
    from .results.sweep import Sweep
    from .scoring.explore import generate, phi
    from .scoring.reading import read_heads
    from .scoring.run import NoTrialPassed, score_heads
    from .trials.load import load_trials
    from .trials.needle import PromptTemplate
    from .trials.split import split_by_needle
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
