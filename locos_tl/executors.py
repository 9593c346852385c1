"""Where trials are run: in this process, in several on this machine, or on the machines of a Ray cluster.

1. A worker is sent once how to load the model and what to do with a trial. It loads the model at its first trial.
2. A worker that is free is given the next trial. What comes back goes to the caller, who alone writes files.
3. A worker that died is replaced, and its trial goes to the end of the queue, at most `RETRIES` times.

The engines are `concurrent.futures.ProcessPoolExecutor` and Ray's actors; both answer with a `Future`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .choices import unknown

if TYPE_CHECKING:
    from .models.hooked import HookedModel, Recipe
    from .trials.trial import Trial

EXECUTORS = ("local", "processes", "ray")
RETRIES = 2
"""How often a trial is tried again after the worker that ran it died."""
CPU_WORKERS = 2
"""Processes without a GPU when nobody says how many."""

Work = Callable[[Any, "Trial"], Any]
"""From the model and a trial to the record of that trial; for other processes it must be picklable."""
Finished = Generator[tuple["Trial", Any], None, None]
"""Trials with their records, in the order in which they finish; closing it ends the workers."""


@runtime_checkable
class Executor(Protocol):
    """Runs trials somewhere."""

    def run(self, work: Work, trials: Sequence[Trial]) -> Finished:
        """Every trial with its record, in the order in which they finish.

        Raises:
            RuntimeError: when the workers of a trial died again and again.
            Exception: what the work raised. In both cases trials that are under way are handed out first.
        """
        ...


def check_executor(executor: str = "local", workers: int | None = None, address: str | None = None) -> None:
    """Refuse options that do not fit each other, before a model is loaded.

    Raises:
        ValueError: naming the option and the fix.
    """
    if executor not in EXECUTORS:
        raise ValueError(unknown("executor", executor, EXECUTORS))
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if workers is not None and executor == "local":
        raise ValueError("workers are processes of their own: executor='processes' or 'ray'")
    if address is not None and executor != "ray":
        raise ValueError(f"address is that of a Ray cluster: executor='ray', not {executor!r}")


def executor_for(
    model: HookedModel, executor: str = "local", workers: int | None = None, address: str | None = None
) -> Executor:
    """Where trials of a model are run.

    Args:
        model: from `load_model`; for workers loaded by name or path, since they load it themselves.
        executor: "local" (this process), "processes" (several of this machine) or "ray" (a cluster).
        workers: how many; default: one for every GPU; without GPUs 2 processes, or one for every machine of a cluster.
        address: of a Ray cluster: "auto", "host:port", "ray://host:port"; default: RAY_ADDRESS, or a cluster of this
            machine alone, which ends with the run.

    Raises:
        ValueError: for unfitting options, or a model that workers cannot load.
    """
    check_executor(executor, workers, address)
    if executor == "local":
        return Local(model)
    load = loader_of(model)
    if executor == "processes":
        devices = _devices(model, load)
        return Processes(load, workers or (len(devices) if devices[0] else CPU_WORKERS), devices)
    return RayCluster(load, workers, address, load.device)


@dataclass(frozen=True)
class Local:
    """This process, one trial after the other."""

    model: Any

    def run(self, work: Work, trials: Sequence[Trial]) -> Finished:
        for trial in trials:
            yield trial, work(self.model, trial)


# --- what a worker is sent --------------------------------------------------------------------------


@dataclass(frozen=True)
class Loader:
    """Loads the caller's model in a worker.

    Attributes:
        recipe: how it was loaded.
        expected: `model_settings` of the caller's model.
    """

    recipe: Recipe
    expected: Mapping[str, Any]

    @property
    def device(self) -> str | None:
        """Where the caller put the model; None when that was left open."""
        device = self.recipe.options.get("device") or self.recipe.options.get("device_map")
        return None if device is None else str(device)

    def __call__(self, device: str | None, threads: int) -> HookedModel:
        """The model.

        Raises:
            ValueError: when it is not the caller's: other weights, tokenizer or versions.
        """
        import logging
        import warnings

        import torch
        from transformers.utils import logging as hf_logging

        from .runs import first_difference, model_settings

        torch.set_num_threads(threads)
        hf_logging.disable_progress_bar()
        logging.disable(logging.WARNING)  # the caller has read it all when the model was loaded there
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = self.recipe.load(device)
        finally:
            logging.disable(logging.NOTSET)
        if (found := model_settings(model)) != self.expected:
            name, here, there = first_difference(found, self.expected)
            raise ValueError(
                f"a worker loads another {self.recipe.name} than yours ({name}: {here} there, {there} here). Models "
                "that were edited after loading cannot be sent: save yours to a folder and load that"
            )
        return model


def loader_of(model: HookedModel) -> Loader:
    """What loads a model in another process.

    Raises:
        ValueError: for a model made from an object, or one that is being ablated.
    """
    from .runs import model_settings

    if model.recipe is None:
        raise ValueError(
            f"{model.info.name} was made from an object in memory, and workers load a model themselves: save it to a "
            "folder with its tokenizer and load_model(folder), or use executor='local'"
        )
    if model.interventions:
        raise ValueError(f"workers would not see what is being done to the model ({model.interventions[0]})")
    return Loader(model.recipe, model_settings(model))


def packed(load: Callable[[str | None, int], Any], work: Work) -> bytes:
    """What every worker is sent once.

    Raises:
        ValueError: when it cannot be pickled.
    """
    try:
        return pickle.dumps((load, work))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"this work cannot be sent to another process ({error}); use executor='local'") from error


class Worker:
    """Holds the model and runs one trial after the other, in a process of its own.

    Args:
        sent: from `packed`.
        device: where the model goes; None leaves that to the model.
        threads: of torch.
    """

    def __init__(self, sent: bytes, device: str | None, threads: int) -> None:
        self._sent, self._device, self._threads = sent, device, threads
        self._ready: tuple[Any, Work] | None = None

    def run(self, trial: Any) -> Any:
        """The record of a trial."""
        if self._ready is None:
            load, work = pickle.loads(self._sent)
            self._ready = load(self._device, self._threads), work
        model, work = self._ready
        return work(model, trial)


# --- sharing out ------------------------------------------------------------------------------------


class WorkerDied(Exception):
    """A worker is gone, and with it what it was at."""


@runtime_checkable
class Hired(Protocol):
    """A worker as seen from the caller's process."""

    def submit(self, trial: Trial) -> Future:
        """Begin a trial; one at a time."""
        ...

    def result(self, future: Future) -> Any:
        """The record of a trial that has ended.

        Raises:
            WorkerDied: when the worker did not survive it.
            Exception: what the work raised.
        """
        ...

    def stop(self) -> None:
        """End the worker at once."""
        ...


def share_out(hire: Callable[[int], Hired], n: int, trials: Sequence[Trial]) -> Finished:
    """Every trial with its record, as they finish; see `Executor.run`.

    Args:
        hire: starts the worker of a place, 0 to n - 1.
        n: number of places.
        trials: with ids of their own.
    """
    waiting, free = deque(trials), deque(range(min(n, len(trials))))
    crew: dict[int, Hired] = {}
    busy: dict[Future, tuple[int, Trial]] = {}
    deaths: Counter[str] = Counter()
    in_a_row = 0
    failure: Exception | None = None
    try:
        while busy or (waiting and failure is None):
            while waiting and free and failure is None:
                place, trial = free.popleft(), waiting.popleft()
                if place not in crew:
                    crew[place] = hire(place)
                busy[crew[place].submit(trial)] = place, trial
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                place, trial = busy.pop(future)
                free.append(place)
                try:
                    record = crew[place].result(future)
                except WorkerDied as death:
                    crew.pop(place).stop()
                    waiting.append(trial)
                    deaths[trial.trial_id] += 1
                    in_a_row += 1
                    if deaths[trial.trial_id] > RETRIES or in_a_row > RETRIES * n:
                        failure = failure or _too_many_deaths(trial, deaths[trial.trial_id], in_a_row, death)
                except Exception as error:
                    failure = failure or error
                else:
                    in_a_row = 0
                    yield trial, record
    finally:
        for worker in crew.values():
            worker.stop()
    if failure is not None:
        raise failure


def _too_many_deaths(trial: Trial, times: int, in_a_row: int, death: WorkerDied) -> RuntimeError:
    how_often = f"{times} times" if times > RETRIES else f"and so did {in_a_row - 1} before it, one after the other"
    error = RuntimeError(
        f"trial {trial.trial_id!r}: the worker that ran it died, {how_often}. Causes are memory that ran out, a signal "
        "from outside, a crash in a library, or a script without `if __name__ == '__main__':`. Finished trials are kept"
    )
    error.__cause__ = death
    return error


# --- processes of this machine ----------------------------------------------------------------------


@dataclass(frozen=True)
class Processes:
    """Processes of this machine, each with a model of its own.

    Attributes:
        load: makes the model in the worker from its device and number of threads.
        workers: how many.
        devices: of the workers, one after the other; None leaves the device to ``load``.
    """

    load: Callable[[str | None, int], Any]
    workers: int
    devices: Sequence[str | None] = (None,)

    def run(self, work: Work, trials: Sequence[Trial]) -> Finished:
        if not trials:
            return
        sent, threads = packed(self.load, work), _threads(self.workers)

        def hire(place: int) -> Hired:
            return _Process(sent, self.devices[place % len(self.devices)], threads)

        yield from share_out(hire, self.workers, trials)


def _devices(model: HookedModel, load: Loader) -> list[str | None]:
    """One GPU for each worker; that of the caller's own model comes last."""
    if load.device is not None or model.device.type != "cuda":
        return [None]
    import torch

    n, own = torch.cuda.device_count(), model.device.index or 0
    return [f"cuda:{(own + 1 + i) % n}" for i in range(n)]


def _threads(workers: int) -> int:
    """Threads of each worker, so that all together have the cores of this process and no more than it would use."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // workers, torch.get_num_threads()))


class _Process:
    """A pool of one process: when it dies, what it was at is known, and no other is lost with it."""

    def __init__(self, *sent: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, initializer=_begin, initargs=sent)

    def submit(self, trial: Trial) -> Future:
        try:
            return self._pool.submit(_run, trial)
        except BrokenProcessPool as error:  # it died while it had nothing to do
            future: Future = Future()
            future.set_exception(error)
            return future

    def result(self, future: Future) -> Any:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise WorkerDied(str(error)) from error

    def stop(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown()


_worker: Worker | None = None
"""The worker that this process is."""


def _begin(sent: bytes, device: str | None, threads: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller, who ends this process
    threading.Thread(target=_end_with_caller, daemon=True).start()
    _worker = Worker(sent, device, threads)


def _end_with_caller() -> None:
    """A caller that was killed can end nobody, and GPUs would stay taken."""
    caller = multiprocessing.parent_process()
    if caller is not None:
        caller.join()
        os._exit(1)


def _run(trial: Trial) -> Any:
    assert _worker is not None
    return _worker.run(trial)


# --- a Ray cluster ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RayCluster:
    """Actors of a Ray cluster, each with a model of its own.

    Attributes:
        load: makes the model in the worker from its device and number of threads.
        workers: how many; None: one for every GPU, or every machine.
        address: of the cluster; None: RAY_ADDRESS, or a cluster of this machine alone.
        device: where the caller put the model; None: a GPU for every worker where the cluster has some.
    """

    load: Callable[[str | None, int], Any]
    workers: int | None = None
    address: str | None = None
    device: str | None = None

    def run(self, work: Work, trials: Sequence[Trial]) -> Finished:
        if not trials:
            return
        sent = packed(self.load, work)
        with _connected(self.address) as ray:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            n, cpus, gpus = places(nodes, self.workers, self.device)
            actor = ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus)
            shared = ray.put(sent)

            def hire(place: int) -> Hired:
                return _Actor(ray, actor.remote(shared, None, cpus))

            yield from share_out(hire, n, trials)


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected for the time of the block; a connection that the caller made is used and left."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError("executor='ray' needs Ray: pip install 'ray>=2.40' (the extra 'ray')") from None
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    own: dict[str, Any] = {"include_dashboard": False} if where == "local" else {}
    ray.init(where, log_to_driver=False, logging_level="ERROR", **own)
    try:
        yield ray
    finally:
        ray.shutdown()


def places(nodes: Sequence[Mapping[str, Any]], workers: int | None, device: str | None = None) -> tuple[int, int, int]:
    """Number of workers, and CPUs and GPUs of each, so that all of them find a place.

    Args:
        nodes: "CPU" and "GPU" of every machine.
        workers: how many are wanted; None: one for every GPU, or every machine.
        device: where the model is to be; None: on GPUs where there are any.

    Raises:
        ValueError: when there is no room for so many.

    >>> places([{"CPU": 64, "GPU": 8}, {"CPU": 64, "GPU": 8}], None)
    (16, 8, 1)
    >>> places([{"CPU": 8}, {"CPU": 8}], 3)
    (3, 4, 0)
    """
    all_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    gpus = int(all_gpus > 0 if device is None else not device.startswith(("cpu", "mps")))
    wanted = workers or (all_gpus if gpus else len(nodes))

    def room(cpus: int) -> int:
        return sum(min(int(node.get("CPU", 0)) // cpus, int(node.get("GPU", 0)) if gpus else wanted) for node in nodes)

    if not 0 < wanted <= room(1):
        raise ValueError(f"the cluster has room for {room(1)} workers ({all_gpus} GPUs), not for {wanted}")
    most = max(int(node.get("CPU", 0)) for node in nodes)
    return wanted, next(cpus for cpus in range(most, 0, -1) if room(cpus) >= wanted), gpus


class _Actor:
    """A worker on some machine of the cluster."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def submit(self, trial: Trial) -> Future:
        return self._actor.run.remote(trial).future()

    def result(self, future: Future) -> Any:
        errors = self._ray.exceptions
        try:
            return future.result()
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            raise WorkerDied(str(error)) from error
        except errors.RayTaskError as error:
            raise error.cause from error

    def stop(self) -> None:
        self._ray.kill(self._actor)
