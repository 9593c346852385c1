"""`ablate_sweep`: do the answers go when a detector's best heads go?

For every trial, and for the first k heads of every ranking: generate greedily while these heads are ablated, in prefill
and in every decode step, and score the text. Two controls stand beside the rankings: as many heads at random, and the
lowest of the first ranking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..choices import unknown
from ..executors import executor_for
from ..memory import require_memory
from ..models.hooked import HookedModel
from ..results.files import FORMAT, UNFIT, check_format, read_json, to_json, write_json
from ..results.sweep import BASELINE, Sweep, SweepRow
from ..runs import RunFolder, bound_trials, model_settings, prepare_trials, run_trials, trials_settings
from ..scoring.answers import decode_text
from ..scoring.metrics import METRICS
from ..trials.trial import Trial, TrialGrid
from .ablation import check_ablation, check_kind
from .answers import Answer, PromptAnswers
from .means import HeadMeans, calibrate_means
from .rankings import CONTROLS, Arm, Prompts, about, keep_apart, named_rankings, plan_arms, prompts_of

STREAM_BYTES = 2**30
"""Memory for the residual streams at which ablated runs enter."""


def ablate_sweep(
    model: HookedModel,
    trials: TrialGrid | Sequence[Trial] | Trial,
    rankings: Any,
    ks: Sequence[int] | int = (1, 5, 10, 20, 50, 100),
    *,
    controls: Collection[str] = CONTROLS,
    metrics: Sequence[str] = ("rouge_l", "contains"),
    at: str = "q",
    mode: str = "mean",
    means: HeadMeans | None = None,
    calibration: TrialGrid | Sequence[Trial] | None = None,
    n_calibration: int = 50,
    random_seeds: Sequence[int] = (42, 43, 44),
    max_new_tokens: int = 50,
    seed: int = 42,
    batch_size: int | None = None,
    out: str | Path | None = None,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Answer every trial without the first k heads of every ranking (arXiv 2607.01002, section 4).

    Args:
        model: from `load_model`.
        trials: questions to be answered; none of them may have served for ranking or calibration. Generated tokens
            that a trial brings along are not used.
        rankings: a `Scores` (its random maps are left out: that control draws its own), a `HeadScores` or `Effects`,
            or a mapping from names to these or to lists of heads, best first.
        ks: numbers of heads to ablate.
        controls: "random" ablates k heads of the model drawn by each of ``random_seeds``, "bottom" the k lowest of the
            first ranking. The heads at a smaller k are among those at a larger one.
        metrics: names in `locos_tl.scoring.metrics.METRICS`.
        at, mode: what is replaced by what, see `ablation`. Default: the query by its mean.
        means: what heads are replaced by, if it has been computed before.
        calibration: trials over whose prompts it is computed otherwise; not needed for mode "zero".
        n_calibration: at most this many of them.
        max_new_tokens: decode limit (the paper: 50).
        seed: draws the activations of mode "resample".
        batch_size: sets of heads that are decoded together, as far as memory allows; default: 8, and 1 in half
            precision, where another batch size can tip a near-tie between two tokens.
        out: new or empty folder; every trial is written there as it finishes, and the same call resumes. More trials
            may be added to those of a finished sweep.
        executor, workers, address: share the trials out, see `score_heads`; means are computed in this process.
        progress: show a bar; default: when stderr is a terminal.

    Returns:
        `Sweep`: an answer for every trial, k and method, and for the whole model.

    Raises:
        ValueError: for unknown names, heads outside the model, a k above the number of ranked heads, missing means, or
            prompts that occur twice among evaluation, ranking and calibration; for workers when the model was made
            from an object in memory.
        RuntimeError: when the workers of a trial died again and again.
        NotEnoughMemory: when the longest trial would not fit, see `locos_tl.memory`.
        ResultFileError: when ``out`` holds something else, or a sweep with other settings or trials.
    """
    if not isinstance(model, HookedModel):
        raise ValueError(f"ablate_sweep takes a loaded model, got {type(model).__name__}: load_model(...) first")
    check_options(controls, metrics, at, mode)
    for name, value in (
        ("max_new_tokens", max_new_tokens),
        ("batch_size", batch_size),
        ("n_calibration", n_calibration),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if isinstance(ks, int):
        ks = (ks,)
    where = executor_for(model, executor, workers, address)
    ready = prepare_trials(model, trials, max_new_tokens, teacher_forced=False)
    sources = named_rankings(rankings)
    arms = plan_arms(model, sources, ks, controls, random_seeds)
    keep_apart(ready, {name: prompts_of(source) for name, source in sources.items()}, "the ranking {!r}")
    if batch_size is None:
        batch_size = 8 if model.info.dtype == "float32" else 1
    longest = max(trial.n_tokens for trial in ready)
    require_memory(model, longest, "ablate", max_new_tokens=max_new_tokens, batch_size=batch_size)
    means = _means(model, ready, sources, mode, means, calibration, n_calibration, seed, progress)
    check_ablation(model, at, mode, means)
    how = {"at": at, "mode": mode, "means": means, "seed": seed}
    sizes = sorted({int(k) for k in ks})
    settings = model_settings(model) | {
        "ablation": {"at": at, "mode": mode} | _told(means, seed if mode == "resample" else None),
        "sweep": {
            "ks": sizes,
            "controls": sorted(controls),
            "random_seeds": list(random_seeds) if "random" in controls else [],
            "metrics": list(metrics),
            "max_new_tokens": max_new_tokens,
            "decoding": "greedy",
            "batch_size": batch_size,
            "rankings": hashlib.sha256(to_json([(a.name, a.heads) for a in arms]).encode()).hexdigest()[:24],
        },
    }
    runner = _Runner(arms, sizes, how, tuple(metrics), max_new_tokens, batch_size)
    with ExitStack() as block:
        store = block.enter_context(SweepFolder(Path(out), settings).open()) if out is not None else None
        if store is not None:
            store.claim(ready)
        by_trial = run_trials(
            runner.run,
            ready,
            where,
            store,
            what="ablating",
            status=runner.status,
            check=runner.check,
            progress=progress,
        )
        sweep = Sweep(
            rows=tuple(row for rows in by_trial for row in rows),
            rankings={arm.name: arm.heads for arm in arms},
            provenance=settings
            | {"trials": trials_settings(ready), "rankings": {n: about(source) for n, source in sources.items()}},
        )
        if store is not None:
            sweep.save(store.folder)
    return sweep


def _means(
    model: HookedModel,
    trials: Sequence[Trial],
    sources: Mapping[str, Any],
    mode: str,
    means: HeadMeans | None,
    calibration: TrialGrid | Sequence[Trial] | None,
    n: int,
    seed: int,
    progress: bool | None,
) -> HeadMeans | None:
    """The means given or computed; their prompts must not be evaluated."""
    if mode == "zero" or (means is None and calibration is None):
        return None
    bound = [] if means is not None else bound_trials(model, calibration, "calibration trials")[:n]
    prompts = {trial.prompt_digest() for trial in bound} if means is None else set(means.prompts)
    for name, source in sources.items():
        if shared := prompts & set(prompts_of(source).digests):
            raise ValueError(f"{len(shared)} calibration prompts were used for the ranking {name!r} too: take others")
    keep_apart(trials, {"": Prompts(prompts)}, "calibration")
    return means or calibrate_means(model, bound, n, seed=seed, progress=progress)


# --- the run ----------------------------------------------------------------------------------------


class _Runner:
    """Answers one trial in every arm of the sweep; what it holds besides the model is sent to a worker once."""

    def __init__(
        self,
        arms: Sequence[Arm],
        ks: Sequence[int],
        how: Mapping[str, Any],
        metrics: tuple[str, ...],
        max_new_tokens: int,
        batch_size: int,
    ) -> None:
        self.how, self.metrics, self.limit = how, metrics, max_new_tokens
        self.batch_size = batch_size
        self.cells = [(arm, k, frozenset(arm.heads[:k])) for arm in arms for k in ks]
        self.sets = list(dict.fromkeys(heads for _, _, heads in self.cells))
        self.firsts = [min(heads)[0] for heads in self.sets]

    def run(self, model: HookedModel, trial: Trial) -> list[SweepRow]:
        """The rows of one trial, the baseline first; equal sets of heads are run once."""
        per_layer = trial.n_tokens * model.d_model * next(model.hooked.parameters()).element_size()
        entries = best_entries(self.firsts, STREAM_BYTES // per_layer)
        answers = PromptAnswers(model, trial.prompt_ids, self.limit, entries)
        ablated = answers.without(self.sets, self.batch_size, **self.how)
        rows = [self._row(model, trial, BASELINE, 0, None, answers.whole)]
        rows += [self._row(model, trial, arm.method, k, arm.seed, ablated[heads]) for arm, k, heads in self.cells]
        return rows

    def status(self, records: Sequence[Sequence[SweepRow]]) -> str:
        """How well the whole model has answered so far."""
        metric = self.metrics[0]
        return f"{metric} {np.mean([rows[0].values[metric] for rows in records]):.2f} before ablation"

    def keys(self, trial: Trial) -> list[tuple[str, int, int | None, str]]:
        """What names the rows of one trial, see `SweepRow.key`."""
        return [(BASELINE, 0, None, trial.trial_id)] + [(a.method, k, a.seed, trial.trial_id) for a, k, _ in self.cells]

    def check(self, trial: Trial, rows: Sequence[SweepRow]) -> None:
        """Refuse rows of an earlier call that are not those that this one would make.

        Raises:
            ValueError: saying what does not fit.
        """
        if [r.key for r in rows] != self.keys(trial) or any(set(r.values) != set(self.metrics) for r in rows):
            raise ValueError(f"its {len(rows)} answers are not those asked for")

    def _row(self, model: HookedModel, trial: Trial, method: str, k: int, seed: int | None, answer: Answer) -> SweepRow:
        text = decode_text(model.tokenizer, answer.ids)
        return SweepRow(
            method=method,
            k=k,
            trial_id=trial.trial_id,
            text=text,
            values={name: METRICS[name](text, trial.answers) for name in self.metrics},
            answer=trial.answer,
            seed=seed,
            generated_ids=answer.ids,
            stop_token_id=answer.stop_token_id,
        )


def best_entries(firsts: Sequence[int], room: int) -> list[int]:
    """At which layers runs should enter when only ``room`` streams can be kept.

    Args:
        firsts: for each run, the layer below which it need not compute.

    Returns:
        Layers that together save most, found one after the other, in ascending order.
    """
    chosen: list[int] = []

    def saved(layers: list[int]) -> int:
        return sum(max((layer for layer in layers if layer <= first), default=0) for first in firsts)

    candidates = sorted(set(firsts) - {0})
    while len(chosen) < room and (rest := [layer for layer in candidates if layer not in chosen]):
        chosen.append(max(rest, key=lambda layer: saved([*chosen, layer])))
    return sorted(chosen)


class SweepFolder(RunFolder):
    """The folder of a sweep, with one JSON file per finished trial."""

    def read(self, trial: Trial) -> list[SweepRow] | None:
        """The rows of a trial that is already finished, or None."""
        path = self.path(trial)
        if not path.exists():
            return None
        record = read_json(path)
        try:
            check_format(path, record)
            return [SweepRow.from_dict(row) for row in record["rows"]]
        except UNFIT as error:
            raise self.damaged(trial, error) from error

    def write(self, trial: Trial, rows: Sequence[SweepRow]) -> None:
        """Keep the rows of a finished trial."""
        record = {"format": FORMAT, "kind": "SweepTrial", "rows": [row.to_dict() for row in rows]}
        write_json(self.path(trial), record)


# --- small parts ------------------------------------------------------------------------------------


def check_options(controls: Collection[str], metrics: Collection[str], at: str, mode: str) -> None:
    """Refuse unknown names, before a model is loaded.

    Raises:
        ValueError: naming the unknown one and the choices.
    """
    _check_names("metric", metrics, METRICS)
    _check_names("control", controls, CONTROLS)
    check_kind(at, mode)


def _check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    if isinstance(names, str):
        raise ValueError(f"{what}s must be a sequence of names, got {names!r}")
    if strange := [name for name in names if name not in known]:
        raise ValueError(unknown(what, strange[0], known))
    if what == "metric" and not names:
        raise ValueError("no metric given")


def _told(means: HeadMeans | None, seed: int | None) -> dict[str, Any]:
    if means is None:
        return {}
    told = {"means": means.digest(), "calibration": {"prompts": len(means.prompts), "tokens": means.n_tokens}}
    return told if seed is None else told | {"seed": seed}
