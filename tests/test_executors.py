"""Trials shared out to workers: the same results as in one process, whatever dies, fails or is stopped (A28)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from locos_tl import ablate_sweep, load_model, patch_trials, score_heads, validate_late_layers
from locos_tl.causal.ablation import ablation
from locos_tl.executors import EXECUTORS, Processes, RayCluster, check_executor, executor_for, loader_of, places
from locos_tl.runs import RunFolder, run_trials
from locos_tl.scoring import run as run_module
from tests import crew, tiny

TRIALS = [tiny.trial(30), tiny.trial(31, generated=(7, 8, 9)), tiny.trial(34), tiny.trial(38), tiny.trial(42)]
IDS = [trial.trial_id for trial in TRIALS]
DONE = [("model on None", trial_id) for trial_id in IDS]
TWO = {"executor": "processes", "workers": 2, "progress": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A tiny model and its tokenizer in a folder."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny.hf_model("llama").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(checkpoint) -> Any:
    return load_model(checkpoint)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


class Store(RunFolder):
    """Keeps records in memory."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Any]] = []

    def read(self, trial: Any) -> Any:
        return dict(self.kept).get(trial.trial_id)

    def write(self, trial: Any, record: Any) -> None:
        self.kept.append((trial.trial_id, record))


def shared(work: Any, store: Store | None = None, workers: int = 2) -> list[Any]:
    """The work done by processes that need no model."""
    return run_trials(
        work, TRIALS, Processes(crew.no_model, workers), store, what="t", status=lambda _: "", progress=False
    )


def no_children() -> bool:
    return not multiprocessing.active_children()


# --- the same results -------------------------------------------------------------------------------


def test_scores_of_two_processes_are_those_of_one(model, tmp_path, monkeypatch):
    """File by file and bit for bit, although a worker is killed; the run resumes in either way."""
    whole = score_heads(model, TRIALS, out=tmp_path / "one", progress=False)
    dying = partial(crew.score_dying_once, at=IDS[2], mark=tmp_path / "mark")
    monkeypatch.setattr(run_module, "score_trial", dying)
    found = score_heads(model, TRIALS, out=tmp_path / "two", **TWO)
    assert (tmp_path / "mark").exists()
    assert files(tmp_path / "two") == files(tmp_path / "one")
    assert found.outcomes == whole.outcomes
    for name in whole:
        np.testing.assert_array_equal(found[name].per_trial, whole[name].per_trial)
    monkeypatch.setattr(run_module, "score_trial", lambda *_, **__: pytest.fail("a finished trial was run again"))
    score_heads(model, TRIALS, out=tmp_path / "two", progress=False)
    score_heads(model, TRIALS, out=tmp_path / "one", **TWO)
    assert no_children()


def test_a_sweep_in_two_processes_is_that_of_one(model, tmp_path):
    asked = [replace(tiny.trial(n), generated_ids=None, trial_id=f"asked-{n}") for n in (50, 53, 57)]
    options = {"calibration": [tiny.trial(n) for n in (20, 25)], "max_new_tokens": 5, "random_seeds": (1,)}
    rankings = {"mine": [(layer, head) for layer in (1, 0) for head in range(4)]}
    whole = ablate_sweep(model, asked, rankings, (1, 3), out=tmp_path / "one", progress=False, **options)
    found = ablate_sweep(model, asked, rankings, (1, 3), out=tmp_path / "two", **TWO, **options)
    assert found.rows == whole.rows
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_effects_of_two_processes_are_those_of_one(model, tmp_path):
    trials = [tiny.trial(30 + i, needle=(5 + i, 11 + i), trial_id=f"t{i}") for i in range(3)]
    whole = patch_trials(model, trials, ("total", "attribution"), out=tmp_path / "one", progress=False)
    found = patch_trials(model, trials, ("total", "attribution"), out=tmp_path / "two", **TWO)
    assert files(tmp_path / "two") == files(tmp_path / "one")
    for kind in whole:
        np.testing.assert_array_equal(found[kind].per_trial, whole[kind].per_trial)
        np.testing.assert_array_equal(found[kind].clean, whole[kind].clean)


# --- workers that die, trials that fail ---------------------------------------------------------------


def test_every_worker_has_one_process_and_runs_many_trials():
    pids = shared(crew.process_of)
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    assert no_children()


def test_workers_take_their_devices_in_turn():
    runs = Processes(crew.no_model, 2, ["cuda:1", "cuda:0"]).run(crew.name, TRIALS[:2])
    assert {model for _, (model, _) in runs} == {"model on cuda:1", "model on cuda:0"}


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_killed_worker_is_replaced_and_its_trial_counts_once(tmp_path, at):
    store = Store()
    assert shared(partial(crew.dies_once, at=IDS[at], mark=tmp_path / "mark"), store) == DONE
    assert (tmp_path / "mark").exists()
    assert sorted(trial_id for trial_id, _ in store.kept) == sorted(IDS)


def test_a_trial_that_always_kills_its_worker_is_named(tmp_path):
    """It is tried three times; all others are kept, and the next call runs only this one."""
    store, log = Store(), tmp_path / "log"
    with pytest.raises(RuntimeError, match=rf"trial '{IDS[1]}': the worker that ran it died, 3 times") as error:
        shared(partial(crew.always_dies, at=IDS[1], log=log), store)
    assert "memory that ran out" in str(error.value)
    begun = log.read_text().split()
    assert begun.count(IDS[1]) == 3
    assert sorted(set(begun)) == sorted(IDS)
    assert sorted(store.kept) == sorted((i, done) for i, done in zip(IDS, DONE, strict=True) if i != IDS[1])
    assert no_children()
    assert shared(crew.name, store) == DONE
    assert len(store.kept) == len(IDS)


def test_workers_that_die_at_every_trial_end_the_run(tmp_path):
    """Not after three attempts at each of them."""
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match="and so did 2 before it, one after the other"):
        list(Processes(crew.no_model, 1).run(partial(crew.always_dies, at=None, log=log), TRIALS))
    assert log.read_text().split() == IDS[:3]


def test_an_error_in_a_trial_is_the_one_of_a_local_run(tmp_path):
    """The trial that was under way at that moment is kept."""
    store = Store()
    with pytest.raises(ValueError, match=rf"^trial '{IDS[0]}' is of no use$"):
        shared(partial(crew.fails, at=IDS[0], mark=tmp_path / "mark"), store)
    assert store.kept == [(IDS[1], DONE[1])]
    assert no_children()


def test_an_error_in_loading_is_told():
    with pytest.raises(ValueError, match=r"^the checkpoint is damaged$"):
        list(Processes(crew.broken_model, 2).run(crew.name, TRIALS))
    assert no_children()


def test_ctrl_c_ends_the_workers(tmp_path):
    def interrupt() -> None:
        for _ in range(600):
            if len(list(tmp_path.iterdir())) == 2:
                break
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        shared(partial(crew.sleeps, mark=tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert not any(alive(int(mark.name)) for mark in tmp_path.iterdir())


def test_workers_end_with_a_caller_that_was_killed(tmp_path):
    """Nothing is left behind that holds a GPU."""
    run = Processes(crew.no_model, 1).run(partial(crew.sleeps, mark=tmp_path), TRIALS)
    caller = multiprocessing.get_context("fork").Process(target=next, args=(run,))
    caller.start()
    for _ in range(600):
        if list(tmp_path.iterdir()):
            break
        time.sleep(0.1)
    caller.kill()
    caller.join()
    worker = int(next(tmp_path.iterdir()).name)
    for _ in range(100):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)


def alive(pid: int) -> bool:
    """True for a process that runs (a killed one that nobody waits for does not)."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_a_caller_that_stops_reading_ends_the_workers():
    with closing(Processes(crew.no_model, 2).run(crew.name, TRIALS)) as run:
        next(run)
    assert no_children()


def test_work_that_cannot_be_sent_is_refused():
    with pytest.raises(ValueError, match=r"cannot be sent to another process .*executor='local'"):
        shared(lambda model, trial: None)


# --- what workers can load ----------------------------------------------------------------------------


@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "local"])
def test_a_model_from_an_object_is_refused_at_once(tiny_model, monkeypatch, executor):
    """Before any trial is looked at: such a model exists in one process only."""
    model, where = tiny_model("llama"), {"executor": executor, "workers": 2}
    monkeypatch.setattr(run_module, "score_trial", lambda *_, **__: pytest.fail("work was done"))
    for run in (score_heads, patch_trials, validate_late_layers):
        with pytest.raises(ValueError, match=r"from an object in memory.*load_model\(folder\).*executor='local'"):
            run(model, TRIALS, **where)
    with pytest.raises(ValueError, match="from an object in memory"):
        ablate_sweep(model, TRIALS, {"mine": [(0, 0)]}, 1, mode="zero", **where)


def test_a_model_edited_after_loading_is_refused(checkpoint):
    model = load_model(checkpoint)
    with torch.no_grad():
        model.W_O(1)[2].zero_()
    with pytest.raises(ValueError, match=r"a worker loads another .* than yours \(model.weights: .*edited"):
        loader_of(model)(None, torch.get_num_threads())


def test_an_ablated_model_is_refused(model):
    with ablation(model, [(0, 0)], mode="zero"):
        model.forward([20, 21])
        with pytest.raises(ValueError, match="workers would not see what is being done to the model"):
            score_heads(model, TRIALS, executor="processes")


def test_a_recipe_loads_the_same_model(checkpoint, monkeypatch):
    """A relative path is found from another folder too, and the model keeps its name and dtype."""
    monkeypatch.chdir(checkpoint.parent)
    model = load_model(checkpoint.name, dtype=torch.bfloat16, device="cpu")
    monkeypatch.chdir("/")
    again = model.recipe.load()
    assert again.describe() == model.describe()
    assert again.info.name == checkpoint.name
    assert executor_for(model, "processes").devices == [None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "process"}, "did you mean 'processes'"),
        ({"executor": "processes", "workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": 2}, "executor='processes' or 'ray'"),
        ({"executor": "processes", "address": "auto"}, "executor='ray', not 'processes'"),
    ],
)
def test_unfitting_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check_executor(**options)


# --- Ray ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "workers", "device", "found"),
    [
        ([(2, 0)], 2, None, (2, 1, 0)),
        ([(8, 0), (8, 0)], None, None, (2, 8, 0)),
        ([(8, 0), (8, 0)], 3, None, (3, 4, 0)),
        ([(64, 8)], None, None, (8, 8, 1)),
        ([(64, 8), (4, 0)], 3, None, (3, 21, 1)),
        ([(64, 8)], 16, "cpu", (16, 4, 0)),
        ([(4, 0), (64, 8)], 2, "cuda", (2, 32, 1)),
    ],
)
def test_every_worker_finds_a_place_in_the_cluster(nodes, workers, device, found):
    assert places([{"CPU": cpus, "GPU": gpus} for cpus, gpus in nodes], workers, device) == found


@pytest.mark.parametrize(("workers", "device"), [(9, None), (65, "cpu")])
def test_more_workers_than_the_cluster_has_room_for(workers, device):
    """They would wait for ever."""
    with pytest.raises(ValueError, match=f"room for {workers - 1} workers .* not for {workers}"):
        places([{"CPU": 64, "GPU": 8}], workers, device)


def test_ray_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'ray>=2\.40'"):
        list(RayCluster(crew.no_model).run(crew.name, TRIALS))


@pytest.fixture(scope="module")
def ray() -> Any:
    """A cluster of this machine that says it has two cores."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "disabled"  # it would write a token into the home folder
    ray = pytest.importorskip("ray", reason="the ray extra is not installed")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_scores_of_a_cluster_are_those_of_one_process(ray, model, tmp_path):
    whole = score_heads(model, TRIALS, out=tmp_path / "one", progress=False)
    found = score_heads(model, TRIALS, out=tmp_path / "ray", executor="ray", workers=2, progress=False)
    assert found.outcomes == whole.outcomes
    assert files(tmp_path / "ray") == files(tmp_path / "one")


def test_a_cluster_replaces_workers_and_tells_errors(ray, tmp_path):
    cluster = RayCluster(crew.no_model, 2)
    run = cluster.run(partial(crew.dies_once, at=IDS[1], mark=tmp_path / "dead"), TRIALS)
    assert sorted(record for _, record in run) == sorted(DONE)
    with pytest.raises(RuntimeError, match=f"trial '{IDS[1]}': .* 3 times"):
        list(cluster.run(partial(crew.always_dies, at=IDS[1], log=tmp_path / "log"), TRIALS))
    with pytest.raises(ValueError, match=rf"^trial '{IDS[0]}' is of no use$"):
        list(cluster.run(partial(crew.fails, at=IDS[0], mark=tmp_path / "mark"), TRIALS))
    assert ray.is_initialized(), "a connection of the caller's was closed"
