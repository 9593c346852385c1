"""`score_heads`: trials in, head scores of every detector out, one pass over the model per trial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..executors import executor_for
from ..memory import require_memory
from ..models.hooked import HookedModel
from ..models.prefixes import PrefixStore, boundaries, check_place
from ..progress import pass_rate
from ..results.files import plain
from ..results.head_scores import HeadScores
from ..results.reading import HeadReading
from ..results.scores import Scores, TrialOutcome
from ..runs import model_settings, prepare_trials, run_trials, trials_settings
from ..trials.trial import Trial, TrialGrid
from .answers import GATE_THRESHOLD, answer_steps, decode_text, rouge1_recall, settled
from .detectors import RANDOM_SEEDS, Detector, random_scores, resolve
from .measure import TOP_KEYS, WINDOW, check_variants, decode_trial, measure, segment_start
from .reading import read_heads
from .records import RecordStore, TrialRecord

log = logging.getLogger(__name__)


class NoTrialPassed(ValueError):
    """Every trial failed the gate, so there is nothing to rank."""


@dataclass(frozen=True)
class Plan:
    """What to do with every trial."""

    detectors: tuple[Detector, ...]
    variants: tuple[str, ...]
    max_new_tokens: int

    @property
    def further(self) -> Iterator[tuple[str, Detector, str]]:
        """Name, detector and variant of the scores beside those of the first variant."""
        for variant in self.variants[1:]:
            for detector in self.detectors:
                if "phi" in detector.reads:
                    yield f"{detector.name}_{variant}", detector, variant

    def counting(self, passed: bool) -> frozenset[str]:
        """Names of the scores that a trial counts for."""
        named = [*((d.name, d) for d in self.detectors), *((name, d) for name, d, _ in self.further)]
        return frozenset(name for name, d in named if passed or not d.gated)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset().union(*(d.reads for d in self.detectors))

    @property
    def ungated_reads(self) -> frozenset[str]:
        return frozenset().union(*(d.reads for d in self.detectors if not d.gated))

    @property
    def may_stop_early(self) -> bool:
        return not any(d.all_steps for d in self.detectors)


def score_heads(
    model: HookedModel,
    trials: TrialGrid | Sequence[Trial] | Trial,
    detectors: str | Iterable[str] = "all",
    variant: str | Sequence[str] = "paper",
    max_new_tokens: int = 50,
    *,
    out: str | Path | None = None,
    examples: int = 3,
    executor: str = "local",
    workers: int | None = None,
    address: str | None = None,
    prefixes: str = "device",
    progress: bool | None = None,
) -> Scores:
    """Score every attention head with every requested detector.

    One prefill, one greedy decode and one hooked segment per trial serve all detectors.

    Args:
        model: from `load_model`.
        trials: from `load_trials`, or your own `Trial` objects. A trial with ``generated_ids`` is scored
            by teacher forcing, without decoding.
        detectors: names, or "all": locos, attention_spatial, dla, wu, contrastive, headkv, random.
        variant: "paper" (raw unembedding row, the released definition), "folded" or "exact"; applies to
            locos and dla. Of several, measured in the same pass, the first is "locos"; the others are named after
            the variant: "locos_exact".
        max_new_tokens: decode limit (the paper: 50).
        out: new or empty folder; every trial is written there as it finishes, and the same call resumes.
            More trials may be added to those of a finished run.
        examples: of so many passed trials, the first ones, also keep what every head reads and writes token by token
            (`Scores.readings`), for the explorer and the report.
        executor: "local"; "processes" or "ray" share the trials out to workers with a model each.
        workers, address: of these, see `executors.executor_for`.
        prefixes: where the keys and values of beginnings that prompts share are kept, so that they are computed once:
            "device", "cpu" or "off" (see `models.prefixes`).
        progress: show a bar; default: when stderr is a terminal.

    Returns:
        `Scores`: head scores by detector, and what happened in every trial.

    Raises:
        NoTrialPassed: when no trial passes the gate; the message shows three failed answers. With ``out``
            the answers and the detectors without a gate are saved all the same.
        ValueError: for trials of another tokenizer, too long for the model, without a needle, or with repeated ids;
            for workers when the model was made from an object in memory.
        RuntimeError: when the workers of a trial died again and again.
        NotEnoughMemory: when the longest trial would not fit, see `locos_tl.memory`.
        ResultFileError: when ``out`` holds something else, or a run with other settings or trials.
    """
    variants = check_variants(variant)
    if not isinstance(model, HookedModel):
        raise ValueError(f"score_heads takes a loaded model, got {type(model).__name__}: load_model(...) first")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if examples < 0:
        raise ValueError(f"examples must be 0 or more, got {examples}")
    check_place(prefixes)
    chosen, with_random = resolve(detectors)
    plan = Plan(tuple(chosen), variants, max_new_tokens)
    where = executor_for(model, executor, workers, address)
    ready = scorable(model, trials, plan)
    require_memory(model, max(trial.n_tokens for trial in ready), "score", max_new_tokens=max_new_tokens)
    settings = run_settings(model, plan, with_random)
    with ExitStack() as stack:
        store = stack.enter_context(RecordStore(Path(out), settings).open()) if out is not None else None
        if store is not None:
            store.claim(ready)
        order, cuts = boundaries([trial.prompt_ids for trial in ready])
        work = Scoring(
            plan, {trial.trial_id: own for trial, own in zip(ready, cuts, strict=True)}, prefixes, score_trial
        )
        check = partial(_check_record, model=model, plan=plan)
        # Those with a common beginning one after the other.
        queue = [ready[place] for place in order]
        found = run_trials(work, queue, where, store, what="scoring", status=_status, check=check, progress=progress)
        by_id = {record.outcome.trial_id: record for record in found}
        records = [by_id[trial.trial_id] for trial in ready]
        scores = collect(model, ready, records, plan, settings, with_random)
        scores = replace(scores, readings=_read_examples(model, ready, records, plan, examples, store))
        if store is not None:
            scores.save(store.folder)
    if not scores.passed and any(d.gated for d in plan.detectors):
        raise NoTrialPassed(_no_trial_passed(model, scores.outcomes))
    return scores


def _status(records: Sequence[TrialRecord]) -> str:
    return pass_rate(sum(record.outcome.passed for record in records), len(records))


def _check_record(trial: Trial, record: TrialRecord, model: HookedModel, plan: Plan) -> None:
    """Refuse a record of an earlier call that does not hold what this one would measure.

    Raises:
        ValueError: saying what does not fit.
    """
    if set(record.scores) != plan.counting(record.outcome.passed):
        raise ValueError(f"it has scores of {', '.join(sorted(record.scores))[:80] or 'no detector'}")
    shapes = {array.shape for array in (*record.scores.values(), *record.seen.values())}
    if not shapes <= {(model.n_layers, model.n_heads)}:
        raise ValueError(f"it is not for {model.n_layers} layers x {model.n_heads} heads")


@dataclass
class Scoring:
    """What is done with every trial, in this process or in a worker's.

    Attributes:
        plan: what is measured.
        cuts: where each trial's prompt parts from others, by trial.
        prefixes: where the caches of common beginnings are kept.
        score: what makes the record of a trial.
    """

    plan: Plan
    cuts: Mapping[str, tuple[int, ...]]
    prefixes: str
    score: Callable[..., TrialRecord]
    store: PrefixStore | None = field(default=None, init=False, repr=False)

    def __call__(self, model: HookedModel, trial: Trial) -> TrialRecord:
        """The record of one trial."""
        if self.store is None or self.store.model is not model:
            self.store = PrefixStore(model, self.prefixes)
        return self.score(model, trial, self.plan, self.store, self.cuts.get(trial.trial_id, ()))


def score_trial(
    model: HookedModel, trial: Trial, plan: Plan, store: PrefixStore | None = None, cuts: Sequence[int] = ()
) -> TrialRecord:
    """Decode (or take the given tokens), gate, measure and score one trial."""
    wants_window = "window" in plan.reads
    start = segment_start(trial, wants_window)
    tokenizer = model.tokenizer
    if trial.generated_ids is None:

        def enough(ids: list[int]) -> bool:
            return plan.may_stop_early and settled(tokenizer, ids, trial.answer)

        cache, decoding = decode_trial(
            model, trial, plan.max_new_tokens, rewind_to=start, enough=enough, store=store, cuts=cuts
        )
        generated = decoding.ids
        told: dict[str, Any] = {
            "stop_token_id": decoding.stop_token_id,
            "stopped_early": decoding.stopped_early,
            "min_margin": round(min(decoding.margins), 5),
        }
    else:
        cache = None
        generated = trial.generated_ids
        told = {"teacher_forced": True}
    text = decode_text(tokenizer, generated)
    verdicts = [(rouge1_recall(text, gold), answer_steps(tokenizer, generated, gold)) for gold in trial.answers]
    # The gold answer, unless it fails where an alias passes.
    gate, steps = next((v for v in verdicts if v[0] > GATE_THRESHOLD and v[1]), verdicts[0])
    passed = gate > GATE_THRESHOLD and bool(steps)
    outcome = TrialOutcome(
        trial_id=trial.trial_id,
        passed=passed,
        gate_value=round(gate, 4),
        generated_ids=generated,
        generated_text=text,
        answer_steps=steps,
        answer=trial.answer,
        trial=plain(trial.about()),
        **told,
    )
    reads = plan.reads if passed else plan.ungated_reads
    if not reads:
        return TrialRecord(outcome)
    if cache is None:
        cache, _ = model.prefill(trial.prompt_ids[: start + 1], start, store=store, cuts=cuts)
        cache.rewind(start)
    by_variant = measure(
        model, trial, cache, generated if passed else (), steps if passed else (), reads, plan.variants
    )
    first = by_variant[plan.variants[0]]
    counting = {d.name: (d, first) for d in plan.detectors if passed or not d.gated}
    counting |= {name: (d, by_variant[v]) for name, d, v in plan.further if passed or not d.gated}
    scores = {name: d.score(measured).float().numpy() for name, (d, measured) in counting.items()}
    shape = (model.n_layers, model.n_heads)
    seen = {
        name: np.broadcast_to((first.window_seen if "window" in d.reads else first.seen).numpy()[:, None], shape)
        for name, (d, _) in counting.items()
    }
    return TrialRecord(outcome, scores, seen)


def _read_examples(
    model: HookedModel,
    trials: Sequence[Trial],
    records: Sequence[TrialRecord],
    plan: Plan,
    examples: int,
    store: RecordStore | None,
) -> tuple[HeadReading, ...]:
    """Token by token readings of the first passed trials; those of an earlier call are taken as they are."""
    passed = [(t, r.outcome) for t, r in zip(trials, records, strict=True) if r.outcome.passed][:examples]
    known = {} if store is None else store.readings()
    found = []
    for trial, outcome in passed:
        reading = known.get((trial.trial_id, trial.prompt_ids + outcome.generated_ids))
        if reading is None or reading.variants != plan.variants:
            reading = read_heads(
                model,
                trial.with_generation(outcome.generated_ids),
                steps=outcome.answer_steps,
                variant=plan.variants,
            )
        found.append(reading)
    return tuple(found)


def scorable(model: HookedModel, trials: TrialGrid | Sequence[Trial] | Trial, plan: Plan) -> list[Trial]:
    """Checked trials that have a needle, in front of the window that some detectors look back from."""
    ready = prepare_trials(model, trials, plan.max_new_tokens)
    for trial in ready:
        _, end = trial.require_needle()
        if "window" in plan.reads and end > trial.n_tokens - WINDOW:
            raise ValueError(
                f"trial {trial.trial_id!r}: the needle ends inside the last {WINDOW} prompt tokens, from which headkv "
                "looks back at it; put text behind the needle or leave 'headkv' out of detectors"
            )
    return ready


def run_settings(model: HookedModel, plan: Plan, with_random: bool) -> dict[str, Any]:
    """Everything besides the trials that decides what a score is; a resumed run must agree with it."""
    return model_settings(model) | {
        "scoring": {
            "detectors": [d.name for d in plan.detectors] + (["random"] if with_random else []),
            # One variant stays a plain word, as in runs of before there could be several.
            "variant": plan.variants[0] if len(plan.variants) == 1 else list(plan.variants),
            "max_new_tokens": plan.max_new_tokens,
            "decoding": "greedy",
            "gate": {"metric": "ROUGE-1 recall x 100, stemmed", "above": GATE_THRESHOLD},
            "contrastive_top_keys": TOP_KEYS,
            "headkv_window": WINDOW,
            "random_seeds": list(RANDOM_SEEDS) if with_random else [],
        },
    }


def collect(
    model: HookedModel,
    trials: Sequence[Trial],
    records: Sequence[TrialRecord],
    plan: Plan,
    settings: dict[str, Any],
    with_random: bool,
) -> Scores:
    """Stack finished trials into one `HeadScores` per detector."""
    outcomes = tuple(record.outcome for record in records)
    n_passed = sum(outcome.passed for outcome in outcomes)
    if n_passed < len(outcomes):
        log.info("%d of %d trials passed the gate; only they count for gated detectors", n_passed, len(outcomes))
    provenance = settings | {"trials": trials_settings(trials) | {"passed": n_passed}}
    heads: dict[str, HeadScores] = {}
    first = plan.variants[0]
    for name, detector, variant in [*((d.name, d, first) for d in plan.detectors), *plan.further]:
        counted = [record for record in records if name in record.scores]
        if not counted:  # no trial passed: its answers are worth keeping, a ranking there is none
            continue
        about = {"gated": detector.gated, "units": _units(detector, variant)}
        heads[name] = HeadScores(
            detector=detector.name,
            per_trial=np.stack([record.scores[name] for record in counted]),
            trial_ids=tuple(record.outcome.trial_id for record in counted),
            n_total=len(records),
            n_key_value_heads=model.n_key_value_heads,
            seen=np.stack([record.seen[name] for record in counted]),
            provenance=provenance | {"detector": about | ({"variant": variant} if "phi" in detector.reads else {})},
        )
    if with_random:
        heads["random"] = HeadScores(
            detector="random",
            per_trial=random_scores(model.n_layers, model.n_heads),
            trial_ids=tuple(f"seed-{seed}" for seed in RANDOM_SEEDS),
            n_total=len(RANDOM_SEEDS),
            n_key_value_heads=model.n_key_value_heads,
            provenance=provenance | {"detector": {"gated": False, "units": "uniform random, one map per seed"}},
        )
    return Scores(heads, outcomes, provenance)


def _units(detector: Detector, variant: str) -> str:
    if "phi" not in detector.reads:
        return "attention probability or share of steps"
    return {
        "paper": "u.W_O v with the raw unembedding row, before any norm: not logits",
        "folded": "u.W_O v with the final norm's gain, before its scale: not logits",
        "exact": "logits of the answer tokens, through the frozen norms, before any final soft cap",
    }[variant]


def _no_trial_passed(model: HookedModel, outcomes: Sequence[TrialOutcome]) -> str:
    shown = "\n".join(
        f"  {o.trial.get('question') or o.trial_id}\n"
        f"    wanted {o.answer!r}, got {o.generated_text[:120]!r} (gate {o.gate_value:.0f})"
        for o in outcomes[:3]
    )
    return (
        f"0 of {len(outcomes)} trials passed the gate on {model.info.name}, so no head can be ranked:\n{shown}\n"
        "Try shorter contexts, literal questions, or another prompt template; headkv alone needs no gate."
    )
