"""ablate_sweep as a whole: rows, controls, refusals, resume, provenance (A13, A20, A25, A27, A31)."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from locos_tl import HeadScores, ResultFileError, Scores, load_model, score_heads
from locos_tl.causal import sweep as sweep_module
from locos_tl.causal.ablation import ablation
from locos_tl.causal.means import calibrate_means
from locos_tl.causal.sweep import ablate_sweep, best_entries
from locos_tl.results.sweep import Sweep
from locos_tl.scoring.metrics import METRICS
from tests import tiny

ALL = [(layer, head) for layer in range(2) for head in range(4)]
RANKING = {"mine": [(1, 2), (0, 1), (1, 0), (0, 3), (1, 3), (0, 0), (1, 1), (0, 2)]}
CALIBRATION = [tiny.trial(n) for n in (20, 25, 33)]
FREE = {"mode": "zero", "at": "z", "max_new_tokens": 6, "progress": False}


def asked(*sizes: int):
    return [replace(tiny.trial(n), generated_ids=None, trial_id=f"asked-{n}") for n in sizes]


TRIALS = asked(40, 44, 47)


def test_every_row_is_the_answer_without_those_heads(tiny_model):
    """Each (method, k, seed, trial) once; text, tokens and metrics are those of plain decoding under ablation."""
    model = tiny_model("llama")
    sweep = ablate_sweep(
        model, TRIALS, RANKING, (2, 1, 5), calibration=CALIBRATION, random_seeds=(1, 2), max_new_tokens=6
    )
    assert sweep.methods == ("mine", "bottom-mine", "random")
    assert sweep.metrics == ("rouge_l", "contains")
    assert sweep.seeds == (1, 2)
    assert len(sweep.rows) == 3 * (1 + 3 * (1 + 1 + 2))
    assert sweep.rankings["mine"] == tuple(RANKING["mine"][:5])
    assert sweep.rankings["bottom-mine"] == tuple(RANKING["mine"][::-1][:5])
    assert set(sweep.rankings["random-1"]) <= set(ALL)
    assert sweep.rankings["random-1"] != sweep.rankings["random-2"]
    means = calibrate_means(model, CALIBRATION)
    by_id = {trial.trial_id: trial for trial in TRIALS}
    for row in sweep.rows:
        trial, cache = by_id[row.trial_id], model.new_cache()
        name = row.method if row.seed is None else f"random-{row.seed}"
        heads = sweep.rankings[name][: row.k] if row.k else []
        if heads:
            with ablation(model, heads, means=means):
                wanted = model.decode(cache, model.extend(cache, trial.prompt_ids), 6)
        else:
            wanted = model.decode(cache, model.extend(cache, trial.prompt_ids), 6)
        assert (row.generated_ids, row.stop_token_id) == (wanted.ids, wanted.stop_token_id)
        assert row.text == model.tokenizer.decode(wanted.ids, skip_special_tokens=True).strip()
        assert row.values == {name: METRICS[name](row.text, ["Yuki"]) for name in sweep.metrics}
        assert row.answer == "Yuki"


def test_equal_sets_of_heads_are_run_once(tiny_model, monkeypatch):
    """The first head of two rankings is one set, and so are all heads in any order."""
    ran = []
    without = sweep_module.PromptAnswers.without
    monkeypatch.setattr(
        sweep_module.PromptAnswers,
        "without",
        lambda self, sets, *a, **k: (ran.extend(sets), without(self, sets, *a, **k))[1],
    )
    both = {"a": RANKING["mine"], "b": [RANKING["mine"][0], *RANKING["mine"][:0:-1]]}
    sweep = ablate_sweep(tiny_model("llama"), TRIALS[:1], both, (1, 8), controls=("random",), random_seeds=(3,), **FREE)
    assert len(ran) == len(set(ran)) <= 3
    texts = {(row.method, row.k): row.generated_ids for row in sweep.rows}
    assert texts["a", 1] == texts["b", 1]
    assert texts["a", 8] == texts["b", 8] == texts["random", 8]


def test_random_heads_are_nested_in_k_and_drawn_by_their_seed(tiny_model):
    """A larger k adds heads to the same draw; the baseline of a run with other seeds is the same."""
    a = ablate_sweep(tiny_model("llama"), TRIALS[:1], RANKING, (2, 6), controls=("random",), **FREE)
    b = ablate_sweep(tiny_model("llama"), TRIALS[:1], RANKING, (2,), controls=("random",), random_seeds=(43,), **FREE)
    assert a.rankings["random-43"][:2] == b.rankings["random-43"]
    assert a.seeds == (42, 43, 44)
    assert len(set(a.rankings["random-42"])) == 6


def test_sources_of_rankings(tiny_model, tmp_path):
    """Scores (without its random maps), HeadScores, saved ones, and effects rank as they say."""
    model = tiny_model("llama")
    scores = score_heads(model, [tiny.trial(30), tiny.trial(34)], ["locos", "headkv", "random"])
    sweep = ablate_sweep(model, TRIALS[:1], scores, (1, 3), **FREE)
    assert sweep.methods == ("locos", "headkv", "bottom-locos", "random")
    assert sweep.rankings["locos"] == tuple(scores["locos"].ranking()[:3])
    assert sweep.rankings["bottom-locos"] == tuple(scores["locos"].ranking()[::-1][:3])
    one = ablate_sweep(model, TRIALS[:1], scores["headkv"], (1,), **FREE)
    assert one.methods == ("headkv", "bottom-headkv", "random")
    assert one.provenance["rankings"]["headkv"]["digest"] == scores.provenance["trials"]["digest"]
    loaded = HeadScores.load(scores["locos"].save(tmp_path / "locos"))
    assert (
        ablate_sweep(model, TRIALS[:1], {"again": loaded}, (1,), **FREE).rankings["again"]
        == sweep.rankings["locos"][:1]
    )


def test_effects_rank_too(tiny_model, effects):
    sweep = ablate_sweep(tiny_model("llama"), TRIALS[:1], effects("total"), (2,), **FREE)
    assert sweep.methods[0] == "total"
    assert sweep.rankings["total"] == tuple(effects("total").ranking()[:2])
    with pytest.raises(ValueError, match="KV heads"):
        ablate_sweep(tiny_model("llama"), TRIALS[:1], {"kv": effects("total", at="k")}, (2,), **FREE)


@pytest.fixture
def effects():
    from locos_tl.results.effects import Effects

    def build(kind, at="z"):
        heads = 2 if at == "k" else 4
        values = np.random.default_rng(0).normal(size=(3, 2, heads))
        return Effects(kind, at, "logit_diff", "all", values, np.ones(3), np.zeros(3), ("a", "b", "c"), 4, 2)

    return build


def test_impossible_sweeps_are_refused_before_any_work(tiny_model, monkeypatch):
    """A13, A27: every refusal names what is wrong."""
    model = tiny_model("llama")
    monkeypatch.setattr(sweep_module, "PromptAnswers", lambda *a: pytest.fail("work was done"))
    unseen = np.ones((1, 2, 4), bool)
    unseen[:, 0] = False
    blind = HeadScores("locos", np.random.default_rng(0).random((1, 2, 4)), ("t",), 1, 2, seen=unseen)
    other = HeadScores("locos", np.random.default_rng(0).random((1, 4, 8)), ("t",), 1, 2)
    cases = [
        ({"rankings": blind, "ks": (5,)}, "k = 5.*'locos' ranks 4 of the model's 8"),
        ({"ks": (9,)}, "k = 9.*'mine' ranks 8;"),
        ({"rankings": other}, "4 layers x 8 heads, the model has 2 x 4"),
        ({"rankings": {"mine": [(2, 0)]}}, "L2H0 is outside"),
        ({"rankings": {"mine": [(0, 0), (0, 0)]}}, "named twice"),
        ({"rankings": {"mine": [(0, 0), (1, 0)]}}, "'bottom'"),
        ({"rankings": [(0, 0)]}, "mapping"),
        ({"rankings": {}}, "no ranking"),
        ({"rankings": {"random": ALL}}, "cannot be called 'random'"),
        ({"rankings": {"bottom-x": ALL}}, "cannot be called 'bottom-x'"),
        ({"ks": ()}, "positive whole numbers"),
        ({"ks": (0, 1)}, "positive whole numbers"),
        ({"metrics": ("bleu",)}, "unknown metric 'bleu'.*rouge_l"),
        ({"metrics": ()}, "no metric"),
        ({"controls": ("top",)}, "unknown control 'top'"),
        ({"controls": "random"}, "sequence of names"),
        ({"at": "k"}, "at must be one of q, z"),
        ({"mode": "shuffle"}, "mode must be one of"),
        ({"mode": "mean"}, "calibration="),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_new_tokens": 250}, "needs 290 tokens"),
        ({"trials": []}, "no trials"),
        ({"trials": [TRIALS[0], TRIALS[0]]}, "occurs 2 times"),
        ({"trials": [replace(TRIALS[0], tokenizer="0123")]}, "another tokenizer"),
    ]
    for options, message in cases:
        given = {"trials": TRIALS, "rankings": RANKING, "ks": (1,)} | FREE | options
        with pytest.raises(ValueError, match=message):
            ablate_sweep(model, **given)


def test_ranking_and_calibration_prompts_are_never_evaluated(tiny_model):
    """An overlap is named, by prompt and whatever the trial is called."""
    model = tiny_model("llama")
    ranked = [tiny.trial(30), tiny.trial(34)]
    scores = score_heads(model, ranked, ["locos"])
    again = replace(ranked[1], generated_ids=None, trial_id="under another name")
    with pytest.raises(ValueError, match=r"1 of 4 trials were used for the ranking 'locos'.*'under another name'"):
        ablate_sweep(model, [*TRIALS, again], scores, (1,), **FREE)
    free = {k: v for k, v in FREE.items() if k != "mode"}
    with pytest.raises(ValueError, match=r"1 of 4 trials were used for calibration.*'under another name'"):
        ablate_sweep(model, [*TRIALS, again], RANKING, (1,), calibration=ranked, **free)
    with pytest.raises(ValueError, match="used for calibration"):
        ablate_sweep(model, [*TRIALS, again], RANKING, (1,), means=calibrate_means(model, ranked), **free)
    ablate_sweep(model, [*TRIALS, again], RANKING, (1,), calibration=[*CALIBRATION, ranked[1]], n_calibration=3, **free)
    old = {name: value for name, value in scores.provenance.items() if name != "trials"}
    older = replace(scores["locos"], provenance=old)  # from before prompts were kept
    ablate_sweep(model, TRIALS, older, (1,), **FREE)
    with pytest.raises(ValueError, match="ranking 'locos'"):
        ablate_sweep(model, [*TRIALS, replace(again, trial_id=ranked[0].trial_id)], older, (1,), **FREE)


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_killed_sweep_resumes(tiny_model, tmp_path, monkeypatch, stop_after):
    """Every finished trial is kept, none is run twice, and the result equals an unbroken run's, byte for byte."""
    model = tiny_model("gemma3")
    options = {"calibration": CALIBRATION, "max_new_tokens": 5, "progress": False}
    heads = {"mine": [(layer, head) for layer in (5, 2, 0) for head in range(4)]}
    options |= {"ks": (1, 6), "controls": ("random",)}
    whole = ablate_sweep(model, TRIALS, heads, out=tmp_path / "whole", **options)
    ran, run = [], sweep_module._Runner.run

    def interrupted(self, model, trial):
        if len(ran) == stop_after:
            raise KeyboardInterrupt
        ran.append(trial.trial_id)
        return run(self, model, trial)

    monkeypatch.setattr(sweep_module._Runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ablate_sweep(model, TRIALS, heads, out=tmp_path / "broken", **options)
    assert not (tmp_path / "broken" / "sweep.jsonl").exists()
    monkeypatch.setattr(sweep_module._Runner, "run", lambda self, m, t: (ran.append(t.trial_id), run(self, m, t))[1])
    resumed = ablate_sweep(model, TRIALS, heads, out=tmp_path / "broken", **options)
    assert ran == [trial.trial_id for trial in TRIALS]
    assert resumed.rows == whole.rows
    for file in ("sweep.jsonl", "settings.json", "trials.jsonl"):
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    loaded = Sweep.load(tmp_path / "broken")
    assert loaded.rows == whole.rows
    assert loaded.rankings == whole.rankings
    more = ablate_sweep(model, [*TRIALS, *asked(50)], heads, out=tmp_path / "broken", **options)
    assert ran[3:] == ["asked-50"]
    assert more.rows[: len(whole.rows)] == whole.rows


def test_folders_of_others_are_refused(tiny_model, tmp_path):
    model = tiny_model("llama")
    ablate_sweep(model, TRIALS, RANKING, (1,), out=tmp_path / "run", **FREE)
    changes = [
        ({"ks": (2,)}, r"sweep\.ks"),
        ({"at": "q"}, r"ablation\.at"),
        ({"rankings": {"mine": RANKING["mine"][::-1]}}, r"sweep\.rankings"),
        ({"metrics": ("em",)}, r"sweep\.metrics"),
        ({"trials": TRIALS[1:]}, "other trials"),
        ({"trials": [replace(TRIALS[0], aliases=("Omar",)), *TRIALS[1:]]}, "other trials"),
    ]
    for change, message in changes:
        given = {"trials": TRIALS, "rankings": RANKING, "ks": (1,)} | FREE | change
        with pytest.raises(ResultFileError, match=message):
            ablate_sweep(model, out=tmp_path / "run", **given)
    with pytest.raises(ResultFileError, match=r"model\.name"):
        ablate_sweep(tiny_model("qwen3"), TRIALS, RANKING, (1,), out=tmp_path / "run", **FREE)
    score_heads(model, [tiny.trial(30)], out=tmp_path / "scores")
    with pytest.raises(ResultFileError, match="other settings"):
        ablate_sweep(model, TRIALS, RANKING, (1,), out=tmp_path / "scores", **FREE)
    for damage in (b"{", b"[]", b'{"format": 1, "rows": [{}]}'):
        victim = sorted((tmp_path / "run" / "trials").iterdir())[0]
        victim.write_bytes(damage)
        with pytest.raises(ResultFileError, match=victim.name):
            ablate_sweep(model, TRIALS, RANKING, (1,), out=tmp_path / "run", **FREE)


def test_an_error_in_the_middle_leaves_the_model_as_it_was(tiny_model, monkeypatch):
    """A20."""
    model = tiny_model("llama")
    before = model.forward(tiny.words(20))
    fused = model.fused

    def broken(text, answers):
        raise RuntimeError("inside a metric")

    monkeypatch.setitem(METRICS, "broken", broken)
    with pytest.raises(RuntimeError, match="inside a metric"):
        ablate_sweep(model, TRIALS, RANKING, (1, 3), metrics=("broken",), **FREE)
    assert torch.equal(model.forward(tiny.words(20)), before)
    assert model.fused is fused


def test_closed_book_and_teacher_forced_trials(tiny_model):
    """A trial needs no needle to be answered, and tokens it brings along are not taken for an answer."""
    model = tiny_model("llama")
    closed = replace(TRIALS[0], needle_span=None, trial_id="closed", aliases=("w3",))
    forced = replace(TRIALS[1], generated_ids=(3, 3, 3), trial_id="forced")
    sweep = ablate_sweep(model, [closed, forced], RANKING, (1,), metrics=("contains",), **FREE)
    free = ablate_sweep(model, TRIALS[:2], RANKING, (1,), metrics=("contains",), **FREE)
    assert [row.generated_ids for row in sweep.rows] == [row.generated_ids for row in free.rows]


def test_grids_are_bound_to_the_model(bundled):
    from locos_tl import load_trials

    grid = load_trials("nonliteral", 2, lengths=[64])
    sweep = ablate_sweep(bundled, grid, {"one": [(20, 1)]}, (1,), controls=(), mode="zero", max_new_tokens=3)
    assert sweep.trial_ids == tuple(trial.trial_id for trial in grid.bind(bundled))


test_grids_are_bound_to_the_model = pytest.mark.bundled(test_grids_are_bound_to_the_model)


def test_provenance_tells_what_was_done(tiny_model):
    model = tiny_model("llama")
    sweep = ablate_sweep(model, TRIALS, RANKING, (1,), calibration=CALIBRATION, max_new_tokens=4)
    found = json.loads(json.dumps(dict(sweep.provenance)))
    assert set(found) == {"model", "tokenizer", "versions", "ablation", "sweep", "trials", "rankings"}
    assert found["ablation"]["at"] == "q"
    assert found["ablation"]["mode"] == "mean"
    assert found["ablation"]["calibration"] == {"prompts": 3, "tokens": 78}
    assert found["trials"]["count"] == 3
    assert found["trials"]["prompts"] == [trial.prompt_digest() for trial in TRIALS]
    assert found["rankings"] == {"mine": {"kind": "heads"}}
    assert found["sweep"]["batch_size"] == 8
    assert sweep.ablation["mode"] == "mean"


def test_half_precision_is_decoded_one_by_one():
    """A25: where the batch can tip near-ties, nothing is batched unless asked for; no dtype clashes."""
    model = load_model(tiny.hf_model("llama").to(torch.bfloat16), tokenizer=tiny.tokenizer())
    options = {"calibration": CALIBRATION, "max_new_tokens": 4, "ks": (1, 2)}
    assert ablate_sweep(model, TRIALS, RANKING, **options).provenance["sweep"]["batch_size"] == 1
    assert ablate_sweep(model, TRIALS, RANKING, batch_size=4, **options).provenance["sweep"]["batch_size"] == 4


def test_memory_does_not_grow_with_trials(tiny_model):
    """A31."""
    model = tiny_model("llama")

    def alive() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    ablate_sweep(model, asked(30, 31), RANKING, (1, 2), **FREE)
    before = alive()
    sweep = ablate_sweep(model, asked(*range(50, 70)), RANKING, (1, 2), **FREE)
    assert alive() <= before + 2
    assert len(sweep.trial_ids) == 20


def test_entries_save_most_in_the_room_there_is():
    firsts = [0, 3, 3, 5, 28]
    assert best_entries(firsts, 9) == [3, 5, 28]
    assert best_entries(firsts, 1) == [28]
    assert best_entries(firsts, 2) == [3, 28]
    assert best_entries(firsts, 0) == best_entries([0], 5) == []


def test_scores_without_a_detector_left(tiny_model):
    scores = score_heads(tiny_model("llama"), [tiny.trial(30)], ["random"])
    assert isinstance(scores, Scores)
    with pytest.raises(ValueError, match="no ranking given"):
        ablate_sweep(tiny_model("llama"), TRIALS, scores, (1,), **FREE)


def test_slips_of_the_pen_are_refused_before_any_work(tiny_model):
    model = tiny_model("llama")
    for rankings, options, message in (
        ({"random-42": RANKING["mine"]}, {}, "cannot be called 'random-42'"),
        (RANKING, {"random_seeds": (42, 42)}, "random_seeds must differ"),
    ):
        with pytest.raises(ValueError, match=message):
            ablate_sweep(model, TRIALS, rankings, (1,), **{**FREE, **options})
    assert ablate_sweep(model, TRIALS[:1], RANKING, 2, **FREE).ks("mine") == (2,)


def test_effects_of_pairs_tell_their_prompts(tiny_model):
    """Rankings by patching are kept apart by prompt, whatever the trials are called."""
    from locos_tl import attribution_patching, corrupt

    model = tiny_model("llama")
    ranked_on = [replace(tiny.trial(n), trial_id="") for n in (24, 33)]
    effects = attribution_patching(model, ranked_on, [corrupt(trial, tokenizer=model) for trial in ranked_on])
    assert effects.provenance["trials"]["prompts"] == [trial.prompt_digest() for trial in ranked_on]
    with pytest.raises(ValueError, match="2 of 2 trials were used for the ranking 'mine' too"):
        ablate_sweep(model, ranked_on, {"mine": effects}, (1,), **FREE)
    with pytest.raises(ValueError, match="1 calibration prompts were used for the ranking 'mine' too"):
        ablate_sweep(model, TRIALS, {"mine": effects}, (1,), calibration=ranked_on[:1], max_new_tokens=6)
