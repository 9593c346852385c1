"""Small results with known numbers: no model."""

from __future__ import annotations

from typing import Any

import numpy as np

from locos_tl.results.effects import Effects
from locos_tl.results.head_scores import HeadScores
from locos_tl.results.scores import Scores, TrialOutcome
from locos_tl.results.sweep import Sweep, SweepRow


def head_scores(values: Any, **fields: Any) -> HeadScores:
    """HeadScores from nested lists [trial, layer, head]."""
    array = np.asarray(values, np.float32)
    defaults: dict[str, Any] = {
        "detector": "locos",
        "trial_ids": tuple(f"t{i}" for i in range(len(array))),
        "n_total": len(array),
        "n_key_value_heads": 1,
    }
    return HeadScores(per_trial=array, **(defaults | fields))


def random_scores(n_trials: int = 5, n_layers: int = 3, n_heads: int = 4, seed: int = 0, **fields: Any) -> HeadScores:
    rng = np.random.default_rng(seed)
    return head_scores(rng.normal(size=(n_trials, n_layers, n_heads)), **({"n_key_value_heads": 2} | fields))


def outcome(trial_id: str = "t0", passed: bool = True, **fields: Any) -> TrialOutcome:
    defaults: dict[str, Any] = {
        "gate_value": 100.0 if passed else 0.0,
        "generated_ids": (7, 8, 3),
        "generated_text": "the character Yuki",
        "answer_steps": (2,) if passed else (),
        "answer": "Yuki",
        "trial": {"question": "Who — «é» \u2028?", "depth": 0.5, "literal": None},
    }
    return TrialOutcome(trial_id, passed, **(defaults | fields))


def run(detectors: tuple[str, ...] = ("locos", "wu"), n_passed: int = 3, n_total: int = 5, **fields: Any) -> Scores:
    """A scoring run in which the first trials passed."""
    heads = {name: random_scores(n_passed, seed=i, detector=name, n_total=n_total) for i, name in enumerate(detectors)}
    outcomes = tuple(outcome(f"t{i}", i < n_passed) for i in range(n_total))
    return Scores(heads, outcomes, {"model": {"name": "tiny", "revision": "r1"}} | fields)


def sweep_rows(values: dict[tuple[str, int], list[float]], metric: str = "rouge_l", seed: int | None = None) -> Any:
    """Rows of a sweep from {(method, k): [value of each trial]}; None leaves a trial out."""
    return [
        SweepRow(method, k, f"t{i}", f"text {i}", {metric: value}, "Yuki", seed if method == "random" else None)
        for (method, k), trials in values.items()
        for i, value in enumerate(trials)
        if value is not None
    ]


LOCOS = ((2, 1), (0, 0), (1, 3), (1, 0))


def sweep(**fields: Any) -> Sweep:
    """Four trials: locos kills retrieval at k = 3, random does not."""
    rows = sweep_rows(
        {
            ("baseline", 0): [1.0, 0.5, 1.0, 0.0],
            ("locos", 1): [1.0, 0.5, 0.5, 0.0],
            ("locos", 3): [0.0, 0.0, 0.5, 0.0],
            ("random", 3): [1.0, 0.5, 1.0, 0.0],
        },
        seed=42,
    )
    rows += sweep_rows({("random", 3): [0.5, 0.5, 1.0, 0.0]}, seed=43)
    defaults: dict[str, Any] = {
        "rankings": {"locos": LOCOS, "random-42": ((0, 1), (0, 2), (2, 2)), "random-43": ((1, 1), (0, 2), (2, 0))},
        "provenance": {"model": {"name": "tiny"}, "ablation": {"at": "q", "mode": "mean"}},
    }
    return Sweep(tuple(rows), **(defaults | fields))


def effects(values: Any = None, **fields: Any) -> Effects:
    """Effects [trial, layer, head] with a gap of 2 in every trial."""
    array = np.asarray(np.random.default_rng(3).normal(size=(5, 3, 4)) if values is None else values, np.float32)
    defaults: dict[str, Any] = {
        "kind": "total",
        "at": "z",
        "metric": "logit_diff",
        "positions": "all",
        "clean": np.full(len(array), 1.5),
        "corrupt": np.full(len(array), -0.5),
        "trial_ids": tuple(f"t{i}" for i in range(len(array))),
        "n_heads": 4,
        "n_key_value_heads": 2,
        "provenance": {"model": {"name": "tiny"}},
    }
    return Effects(per_trial=array, **(defaults | fields))
