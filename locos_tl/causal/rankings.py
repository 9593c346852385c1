"""Which heads a sweep ablates, and which prompts they were chosen on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..models.hooked import HookedModel
from ..results.effects import Effects
from ..results.head_scores import HeadScores
from ..results.sweep import BASELINE
from ..trials.trial import Trial
from .heads import Head, as_heads

CONTROLS = ("random", "bottom")


@dataclass(frozen=True)
class Arm:
    """One line of a sweep: heads in the order in which they are ablated."""

    method: str
    heads: tuple[Head, ...]
    seed: int | None = None

    @property
    def name(self) -> str:
        """Its name among `Sweep.rankings`."""
        return self.method if self.seed is None else f"{self.method}-{self.seed}"


def named_rankings(rankings: Any) -> dict[str, Any]:
    """Sources of head orders by name; random maps are left out.

    Raises:
        ValueError: when there is none, or a name is taken by a control.
    """
    if isinstance(rankings, HeadScores):
        rankings = {rankings.detector: rankings}
    elif isinstance(rankings, Effects):
        rankings = {rankings.kind: rankings}
    if not isinstance(rankings, Mapping):
        raise ValueError("rankings must be Scores, HeadScores, Effects, or a mapping {name: heads}, best head first")
    found = {
        str(name): source
        for name, source in rankings.items()
        if not (isinstance(source, HeadScores) and source.detector == "random")
    }
    if not found:
        raise ValueError("no ranking given (random maps do not count)")
    for name in found:
        if name in (BASELINE, "random") or name.startswith(("bottom-", "random-")):
            raise ValueError(f"a ranking cannot be called {name!r}: a control has that name")
    return found


def plan_arms(
    model: HookedModel, sources: Mapping[str, Any], ks: Sequence[int], controls: Collection[str], seeds: Sequence[int]
) -> list[Arm]:
    """Every ranking and control, cut to the largest k.

    Raises:
        ValueError: for a k that is no positive number or above the number of ranked heads, for scores of a model of
            another size, or when the lowest heads of a partial list are asked for.
    """
    n_all = model.n_layers * model.n_heads
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"random_seeds must differ, got {tuple(seeds)}")
    if not len(ks) or any(isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 for k in ks):
        raise ValueError(f"ks must be positive whole numbers, got {tuple(ks)}")
    largest = max(ks)
    ranked = {name: _ranked(model, name, source) for name, source in sources.items()}
    for name, heads in ranked.items():
        if largest > len(heads):
            some = "" if len(heads) == n_all else f" of the model's {n_all}"
            raise ValueError(
                f"k = {largest} heads cannot be ablated: {name!r} ranks {len(heads)}{some}; give smaller ks"
            )
    arms = [Arm(name, heads[:largest]) for name, heads in ranked.items()]
    if "bottom" in controls:
        name, heads = next(iter(ranked.items()))
        if not hasattr(sources[name], "ranking") and len(heads) < n_all:
            raise ValueError(
                f"{name!r} lists {len(heads)} of {n_all} heads, so its lowest are not known: leave 'bottom' out of "
                "controls, or give scores"
            )
        arms.append(Arm(f"bottom-{name}", heads[::-1][:largest]))
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    for seed in seeds if "random" in controls else ():
        drawn = np.random.default_rng(seed).permutation(n_all)[:largest]
        arms.append(Arm("random", tuple(every[i] for i in drawn), seed))
    return arms


def _ranked(model: HookedModel, name: str, source: Any) -> tuple[Head, ...]:
    what = f"the ranking {name!r}"
    if not hasattr(source, "ranking"):
        return as_heads(source, model.n_layers, model.n_heads, what)
    if getattr(source, "head_axis", "query head") != "query head":
        raise ValueError(f"{what} is of KV heads, and query heads are ablated")
    if (source.n_layers, source.n_heads) != (model.n_layers, model.n_heads):
        raise ValueError(
            f"{what} is for {source.n_layers} layers x {source.n_heads} heads, "
            f"the model has {model.n_layers} x {model.n_heads}"
        )
    return as_heads(source.ranking(), model.n_layers, model.n_heads, what)


@dataclass(frozen=True)
class Prompts:
    """What is known of the trials that something was computed from: digests of prompts, or at least ids."""

    digests: Collection[str] = ()
    ids: Collection[str] = ()


def prompts_of(source: Any) -> Prompts:
    """The trials that a ranking was made on, as far as it tells; a plain list of heads tells nothing."""
    provenance = getattr(source, "provenance", None) or {}
    told = provenance.get("trials")
    if isinstance(told, Mapping) and "prompts" in told:
        return Prompts(digests=set(told["prompts"]))
    return Prompts(ids=set(() if "imported_from" in provenance else getattr(source, "trial_ids", ())))


def keep_apart(trials: Sequence[Trial], others: Mapping[str, Prompts], what: str) -> None:
    """Refuse to evaluate on prompts that something was computed from.

    Raises:
        ValueError: naming some of the trials.
    """
    for name, prompts in others.items():
        shared = [t.trial_id for t in trials if t.prompt_digest() in prompts.digests or t.trial_id in prompts.ids]
        if shared:
            raise ValueError(
                f"{len(shared)} of {len(trials)} trials were used for {what.format(name)} too, such as "
                f"{', '.join(map(repr, shared[:3]))}: evaluate on trials of their own (see split_by_needle)"
            )


def about(source: Any) -> dict[str, Any]:
    """Where a ranking came from, for the provenance."""
    provenance = getattr(source, "provenance", None) or {}
    if isinstance(source, HeadScores):
        told: dict[str, Any] = {"kind": "HeadScores", "detector": source.detector, "trials": source.n_trials}
    elif isinstance(source, Effects):
        told = {"kind": f"{source.kind} effect", "at": source.at, "trials": source.n_trials}
    else:
        told = {"kind": "heads"}
    trials = provenance.get("trials")
    return told | ({"digest": trials["digest"]} if isinstance(trials, Mapping) and "digest" in trials else {})
