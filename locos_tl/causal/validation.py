"""The late-layer question: is the total effect of heads as late as their LOCOS score?

phi counts only the direct path from a head to the logits, which could favour late layers by construction. So each
trial is patched head by head (arXiv 2607.01002, section 5), and the layer profiles are compared over the same trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..choices import did_you_mean
from ..executors import executor_for
from ..memory import require_memory
from ..models.hooked import HookedModel
from ..results.effects import Effects
from ..results.files import read_arrays, write_arrays
from ..results.late_layers import LateLayers, late_layers
from ..results.scores import Scores
from ..runs import RunFolder, bound_trials, model_settings, named, prepare_trials, run_trials, trials_settings
from ..scoring.run import score_heads
from ..trials.trial import Trial, TrialGrid
from .attribution import attribution_map
from .corrupt import WAYS, corrupt
from .pair_runs import METRICS, PairRuns
from .pairs import PromptPair
from .patching import patch_map
from .paths import direct_map

MEASURES: Mapping[str, Callable[[PairRuns], np.ndarray]] = {
    "total": patch_map,
    "direct": direct_map,
    "attribution": attribution_map,
}
"""Effects of every head that one pair of runs can be asked for, at z and all positions."""
COMPARED = ("locos", "attention_spatial")


def patch_trials(
    model: HookedModel,
    trials: TrialGrid | Sequence[Trial] | Trial,
    kinds: Sequence[str] = ("total", "direct"),
    *,
    how: str = "filler",
    metric: str = "logit_diff",
    max_new_tokens: int = 50,
    seed: int = 42,
    out: str | Path | None = None,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> dict[str, Effects]:
    """Effects of every head on needle trials, each against its own corrupt twin.

    Args:
        model: from `load_model`.
        trials: needle trials, answered rightly or not (`validate_late_layers` takes those that passed); one that
            brings ``generated_ids`` is not answered again.
        kinds: "total" (exact patching, slow), "attribution" (its gradient estimate), "direct".
        how: "filler" or "swap", see `corrupt`.
        metric: "logit_diff" or "answer_logprob", see `patch_heads`.
        max_new_tokens: decode limit of the model's own answer.
        seed: draws what replaces the needles.
        out: new or empty folder; every trial is written there as it finishes, and the same call resumes.
        executor, workers, address: share the trials out, see `score_heads`.
        progress: show a bar; default: when stderr is a terminal.

    Returns:
        `Effects` by kind, over the same trials.

    Raises:
        ValueError: for unknown kinds, ways or metrics, or trials without a needle; for workers when the model was made
            from an object in memory.
        RuntimeError: when the workers of a trial died again and again.
        NotEnoughMemory: when the longest trial would not fit, see `locos_tl.memory`.
        ResultFileError: when ``out`` holds something else, or a run with other settings or trials.
    """
    check_options(kinds, how, metric)
    where = executor_for(model, executor, workers, address)
    ready = prepare_trials(model, trials, max_new_tokens)
    for trial in ready:
        trial.require_needle()
    longest = max(trial.n_tokens for trial in ready)
    require_memory(model, longest, "patch", max_new_tokens=max_new_tokens, kinds=kinds)
    patching = {"kinds": sorted(kinds), "how": how, "metric": metric, "seed": seed, "max_new_tokens": max_new_tokens}
    settings = model_settings(model) | {"patching": patching}
    with ExitStack() as block:
        store = block.enter_context(_Folder(Path(out), settings).open()) if out is not None else None
        if store is not None:
            store.claim(ready)
        work = partial(
            patch_trial, kinds=tuple(kinds), how=how, metric=metric, seed=seed, max_new_tokens=max_new_tokens
        )

        def status(records: Sequence[Mapping[str, np.ndarray]]) -> str:
            clean, corrupt = records[-1]["clean"][0], records[-1]["corrupt"][0]
            return f"{metric} {clean:.1f} clean, {corrupt:.1f} corrupt"

        records = run_trials(work, ready, where, store, what="patching", status=status, progress=progress)
        effects = {
            kind: Effects(
                kind=kind,
                at="z",
                metric=metric,
                positions="all",
                per_trial=np.stack([record[kind] for record in records]),
                clean=np.concatenate([record["clean"] for record in records]),
                corrupt=np.concatenate([record["corrupt"] for record in records]),
                trial_ids=tuple(trial.trial_id for trial in ready),
                n_heads=model.n_heads,
                n_key_value_heads=model.n_key_value_heads,
                provenance=settings | {"trials": trials_settings(ready)},
            )
            for kind in kinds
        }
        if store is not None:
            for kind, found in effects.items():
                found.save(store.folder / f"{kind}.safetensors")
    return effects


def validate_late_layers(
    model: HookedModel,
    trials: TrialGrid | Sequence[Trial],
    scores: Scores | None = None,
    *,
    total: str = "total",
    how: str = "filler",
    metric: str = "logit_diff",
    margin: float = 0.1,
    seed: int = 42,
    out: str | Path | None = None,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> LateLayers:
    """Compare the layer profiles of LOCOS and attention with those of direct and total effects.

    Args:
        model: from `load_model`.
        trials: those that ``scores`` are over; trials that did not pass the gate are left out.
        scores: from `score_heads`, with "locos" and "attention_spatial"; default: computed now.
        total: "total" for exact patching of every head, or "attribution" for its gradient estimate, which costs less
            than a hundredth.
        how, metric, seed: see `patch_trials`.
        margin: see `results.late_layers.late_layers`.
        out: new or empty folder for the effects of every trial; the same call resumes.
        executor, workers, address: share the trials out, see `score_heads`.
        progress: show a bar; default: when stderr is a terminal.

    Returns:
        `LateLayers`: profiles, statistics with intervals, and a verdict. Its maps are named "locos",
        "attention_spatial", "direct", and "total" or "attribution".

    Raises:
        ValueError: when no trial of ``scores`` is among ``trials``, or the scores are of another model.
        ResultFileError: see `patch_trials`.
    """
    if total not in ("total", "attribution"):
        raise ValueError(f"total must be 'total' or 'attribution', got {total!r}")
    check_options((total,), how, metric)
    folder = Path(out) if out is not None else None
    run: dict[str, Any] = {"executor": executor, "workers": workers, "address": address, "progress": progress}
    if scores is None:
        scores = score_heads(model, trials, COMPARED, out=None if folder is None else folder / "scores", **run)
    told = _answered(model, trials, scores)
    where = None if folder is None else folder / "effects"
    effects = patch_trials(model, told, (total, "direct"), how=how, metric=metric, seed=seed, out=where, **run)
    ids = [trial.trial_id for trial in told]
    maps = {name: scores[name].over(ids) for name in COMPARED}
    maps |= {kind: found.to_head_scores() for kind, found in effects.items()}
    result = late_layers({name: maps[name] for name in (*COMPARED, "direct", total)}, causal=total, margin=margin)
    if folder is not None:
        result.save(folder)
    return result


def _answered(model: HookedModel, trials: TrialGrid | Sequence[Trial], scores: Scores) -> list[Trial]:
    """The trials that count in the scores, with the answers that were given there."""
    for name in COMPARED:
        scores[name].require_fit(model.n_layers, model.n_heads)
    model_told = scores.provenance.get("model")
    weights = model_told.get("weights") if isinstance(model_told, Mapping) else None
    if weights is not None and weights != model.weights_fingerprint():
        raise ValueError("the scores are of another model (its weights differ)")
    bound = named(bound_trials(model, trials))
    said = {outcome.trial_id: outcome.generated_ids for outcome in scores.outcomes}
    prompts = dict(zip(said, scores.provenance.get("trials", {}).get("prompts", ()), strict=False))
    counted = set(scores[COMPARED[0]].trial_ids) & set(scores[COMPARED[1]].trial_ids)
    told = [
        trial.with_generation(said[trial.trial_id])
        for trial in bound
        if trial.trial_id in counted and prompts.get(trial.trial_id, trial.prompt_digest()) == trial.prompt_digest()
    ]
    if not told:
        raise ValueError("no trial counts in the scores: give the trials that were scored, or leave scores out")
    return told


def check_options(kinds: Sequence[str], how: str, metric: str) -> None:
    """Refuse unknown names, before a model is loaded.

    Raises:
        ValueError: naming the unknown one and the choices.
    """
    for what, value, known in (("how", how, WAYS), ("metric", metric, METRICS)):
        if value not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}")
    if isinstance(kinds, str) or not kinds or set(kinds) - set(MEASURES):
        strange = [] if isinstance(kinds, str) else [kind for kind in kinds if kind not in MEASURES]
        hint = did_you_mean(strange[0], MEASURES) if strange else ""
        raise ValueError(f"kinds must be some of {', '.join(MEASURES)}, got {kinds!r}{hint}")


class _Folder(RunFolder):
    """A patching run's folder, with one safetensors file per finished trial."""

    suffix = ".safetensors"

    def read(self, trial: Trial) -> dict[str, np.ndarray] | None:
        path = self.path(trial)
        if not path.exists():
            return None
        arrays, meta = read_arrays(path)
        if meta.get("kind") != "PatchedTrial" or meta.get("trial_id") != trial.trial_id:
            raise self.damaged(trial, "it is none of a patched trial of this name")
        heads = self.settings["model"]["n_layers"], self.settings["model"]["n_heads"]
        shapes = {"clean": (1,), "corrupt": (1,)} | dict.fromkeys(self.settings["patching"]["kinds"], heads)
        if {name: array.shape for name, array in arrays.items()} != shapes:
            raise self.damaged(trial, "its effects are not those asked for")
        return arrays

    def write(self, trial: Trial, record: Mapping[str, np.ndarray]) -> None:
        write_arrays(self.path(trial), record, {"kind": "PatchedTrial", "trial_id": trial.trial_id})


def patch_trial(
    model: HookedModel, trial: Trial, kinds: Sequence[str], how: str, metric: str, seed: int, max_new_tokens: int
) -> dict[str, np.ndarray]:
    """The effects of every head on one trial by kind, and the metric of its two runs; see `patch_trials`."""
    twin = corrupt(trial, how, model, seed=seed)
    runs = PairRuns(model, PromptPair.from_trials(model, trial, twin, max_new_tokens), ["z"], metric)
    effects = {kind: np.asarray(MEASURES[kind](runs), np.float32) for kind in kinds}
    return effects | {"clean": np.array([runs.clean_metric]), "corrupt": np.array([runs.corrupt_metric])}
