"""What every run over trials shares: checked trials, what made the result, and a folder that resumes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from .executors import Executor, Work
from .models.check import versions
from .models.hooked import HookedModel
from .progress import progress_bar
from .results.files import ResultFileError, clear_temporary, plain, read_json, to_json, write_json
from .trials.needle import fingerprint, warn_if_repeating
from .trials.trial import Trial, TrialGrid, read_trials, save_trials


def bound_trials(model: HookedModel, trials: Any, what: str = "trials") -> list[Trial]:
    """Trials as a list, a grid bound to the model, and none of another tokenizer.

    Args:
        model: what they will be run on.
        trials: a grid, a sequence of trials, or one.
        what: the argument's name, for errors.

    Raises:
        ValueError: for something else, none at all, or a trial of another tokenizer.
    """
    if isinstance(trials, Trial):
        trials = [trials]
    if isinstance(trials, str) or not isinstance(trials, Iterable):
        raise ValueError(f"{what} must be trials, got {str(trials)[:40]!r}: load_trials(...) gives some")
    bound = list(trials.bind(model.tokenizer) if isinstance(trials, TrialGrid) else trials)
    if not bound:
        raise ValueError(f"no {what} given")
    for trial in bound:
        if not isinstance(trial, Trial):
            raise ValueError(f"{what} must be trials, got {type(trial).__name__}")
        if trial.tokenizer and model.tokenizer is not None and trial.tokenizer != fingerprint(model.tokenizer):
            raise ValueError(
                f"trial {trial.trial_id!r} was made for another tokenizer than that of {model.info.name}: "
                "bind the TrialGrid to this model, trials.bind(model)"
            )
    return bound


def named(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, those without an id numbered by their place."""
    return [t if t.trial_id else replace(t, trial_id=f"trial-{i:04d}") for i, t in enumerate(trials)]


def prepare_trials(
    model: HookedModel,
    trials: TrialGrid | Sequence[Trial] | Trial,
    max_new_tokens: int,
    *,
    teacher_forced: bool = True,
) -> list[Trial]:
    """Bind, name and check trials before any of them costs time.

    Args:
        model: what they will be run on.
        trials: a grid is bound to the model; trials without an id get one.
        max_new_tokens: tokens to be generated on top of each prompt, where a trial brings none of its own.
        teacher_forced: keep the generated tokens that a trial brings along; otherwise it is answered anew.

    Raises:
        ValueError: for no trials, repeated ids, or a trial that the model cannot take; it is named.
    """
    if model.tokenizer is None:
        raise ValueError(f"{model.info.name} has no tokenizer, and answers are text: load_model(..., tokenizer=...)")
    bound = bound_trials(model, trials)
    ready = named(bound)
    if not teacher_forced:
        ready = [replace(trial, generated_ids=None) for trial in ready]
    ids = [trial.trial_id for trial in ready]
    if len(set(ids)) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise ValueError(f"the trial id {twice!r} occurs {ids.count(twice)} times")
    refuse_long(ready, max_new_tokens, model.geometry.n_ctx, model.info.name)
    d_vocab = model.geometry.d_vocab
    for trial in ready:
        given = trial.generated_ids
        if (largest := max((*trial.prompt_ids, *(given or ())))) >= d_vocab:
            raise ValueError(f"trial {trial.trial_id!r} holds token {largest}, the vocabulary ends at {d_vocab - 1}")
        if trial.n_tokens < 2:
            raise ValueError(f"trial {trial.trial_id!r} has a prompt of {trial.n_tokens} token; at least 2 are needed")
    warn_if_repeating(ready)
    distinct = len({trial.prompt_ids for trial in ready})
    if distinct < len(ready):
        warnings.warn(
            f"only {distinct} of {len(ready)} trials have a prompt of their own; repeats make intervals too narrow. "
            "Ask for fewer trials, or give more needles, lengths or depths.",
            stacklevel=4,
        )
    return ready


def refuse_long(trials: Sequence[Trial], max_new_tokens: int, limit: int | None, name: str) -> None:
    """Refuse trials that exceed a model's context limit with what is generated on top of them.

    Args:
        trials: all of a run; the first that is too long is named.
        max_new_tokens: tokens to be generated where a trial brings none.
        limit: the context limit, None where there is none.
        name: the model's.
    """
    for trial in trials:
        given = trial.generated_ids
        length = trial.n_tokens + (max_new_tokens if given is None else len(given))
        if limit is not None and length > limit:
            raise ValueError(
                f"trial {trial.trial_id!r} needs {length} tokens (prompt {trial.n_tokens}), the context limit of "
                f"{name} is {limit}. Nothing is cut: use shorter trials."
            )


def model_settings(model: HookedModel) -> dict[str, Any]:
    """The model, tokenizer and versions that a run rests on; a resumed run must agree with them."""
    return {
        "model": model.describe(),
        "tokenizer": fingerprint(model.tokenizer),
        "versions": versions(),
    }


def trials_settings(trials: Sequence[Trial]) -> dict[str, Any]:
    """What a result says of its trials; ``ids`` and ``prompts`` let later steps keep other trials apart."""
    return {
        "count": len(trials),
        "digest": hashlib.sha256("".join(map(trial_digest, trials)).encode()).hexdigest()[:24],
        "ids": [trial.trial_id for trial in trials],
        "prompts": [trial.prompt_digest() for trial in trials],
        "templates": sorted({trial.template for trial in trials}),
        "haystacks": sorted({trial.haystack for trial in trials}),
    }


def trial_digest(trial: Trial) -> str:
    """Identity of a trial: its ids, span, answer and given generation."""
    parts: tuple[Any, ...] = (trial.trial_id, trial.prompt_ids, trial.needle_span, trial.answer, trial.generated_ids)
    parts += (trial.aliases,) if trial.aliases else ()
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


class RunFolder:
    """A run's folder: ``settings.json``, ``trials.jsonl``, and one file per finished trial under ``trials/``.

    Every file is written whole or not at all, so a killed run loses at most the trial it was at.
    """

    suffix = ".json"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = plain(settings)

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Hold the folder for this run alone.

        Raises:
            ResultFileError: when another run holds it, it was made with other settings, or it cannot be written.
        """
        from filelock import FileLock, Timeout

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise ResultFileError(f"{self.folder}: another run is writing there; give another folder") from None
        except FileExistsError:
            raise ResultFileError(f"{self.folder}: a file, where a folder for the run is expected") from None
        except OSError as error:
            raise ResultFileError(f"{self.folder}: cannot write there ({error.strerror or error})") from error
        try:
            clear_temporary(self.folder)
            self._match_settings()
            yield self
        finally:
            lock.release()

    def _match_settings(self) -> None:
        path = self.folder / "settings.json"
        if not path.exists():
            foreign = sorted(p.name for p in self.folder.iterdir() if p.name != ".lock")
            if foreign:
                raise ResultFileError(
                    f"{self.folder}: is not empty ({foreign[0]!r}) and not a run of ours; give a new or empty folder"
                )
            write_json(path, self.settings)
            return
        there = read_json(path)
        if there != self.settings:
            name, old, new = first_difference(there, self.settings)
            raise ResultFileError(
                f"{self.folder}: holds a run with other settings ({name}: {old} there, {new} now). "
                "Give another folder, or the same settings to resume."
            )

    def claim(self, trials: Sequence[Trial]) -> None:
        """Write down the run's trials; those of an earlier call must be among them.

        Raises:
            ResultFileError: when the folder holds a run over other trials.
        """
        path = self.folder / "trials.jsonl"
        if path.exists():
            mine = {trial_digest(trial) for trial in trials}
            lost = [trial.trial_id for trial in read_trials(path) if trial_digest(trial) not in mine]
            if lost:
                raise ResultFileError(
                    f"{self.folder}: holds a run over other trials ({len(lost)} of them, such as {lost[0]!r}, are not "
                    "among yours). Give another folder, or the same trials to resume; more may be added "
                    "to them, but another n draws others."
                )
        save_trials(path, trials)

    def damaged(self, trial: Trial, why: object) -> ResultFileError:
        """The error for a record of a trial that cannot be used."""
        return ResultFileError(f"{self.path(trial)}: not a record of this run's trial ({why}); delete it and run again")

    def path(self, trial: Trial) -> Path:
        """Where the record of a trial lies."""
        return self.folder / "trials" / f"{trial_digest(trial)}{self.suffix}"

    def read(self, trial: Trial) -> Any:
        """The record of a trial that is already finished, or None."""
        raise NotImplementedError

    def write(self, trial: Trial, record: Any) -> None:
        """Keep the record of a finished trial."""
        raise NotImplementedError


def run_trials(
    work: Work,
    trials: Sequence[Trial],
    executor: Executor,
    store: RunFolder | None = None,
    *,
    what: str,
    status: Callable[[Sequence[Any]], str],
    check: Callable[[Trial, Any], None] | None = None,
    progress: bool | None = None,
) -> list[Any]:
    """The record of every trial, in the order of the trials; those already finished are read, not run again.

    Args:
        work: what makes the record of a trial.
        trials: with ids of their own.
        executor: where the work is done.
        store: keeps every record as it comes in.
        what: name of the work, for the bar.
        status: a few words on the records so far, of which the newest is the last.
        check: refuses a record of an earlier call, by a ValueError, when it is not what ``work`` would make.
        progress: show a bar; default: when stderr is a terminal.
    """
    records = {}
    for trial in trials:
        if store is not None and (record := store.read(trial)) is not None:
            try:
                if check is not None:
                    check(trial, record)
            except ValueError as error:
                raise store.damaged(trial, str(error)) from None
            records[trial.trial_id] = record
    left = [trial for trial in trials if trial.trial_id not in records]
    with progress_bar(what, len(trials), len(records), progress) as advance, closing(executor.run(work, left)) as run:
        for trial, record in run:
            if store is not None:
                store.write(trial, record)
            records[trial.trial_id] = record
            advance(status([*records.values()]))
    return [records[trial.trial_id] for trial in trials]


def first_difference(a: Any, b: Any, name: str = "settings") -> tuple[str, str, str]:
    """Path and both values of the first place where two JSON trees differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if a.get(key) != b.get(key):
                return first_difference(a.get(key), b.get(key), str(key) if name == "settings" else f"{name}.{key}")
    return name, to_json(a)[:80], to_json(b)[:80]
