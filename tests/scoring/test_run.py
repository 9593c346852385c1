"""score_heads as a whole: gate, failures, resume, provenance, refusals (A04, A13, A26, A28, A31)."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from locos_tl import NoTrialPassed, ResultFileError, Scores, generate, load_model, score_heads
from locos_tl.scoring import run as run_module
from locos_tl.trials.trial import Trial
from tests import tiny

PASSING = [tiny.trial(30), tiny.trial(34), tiny.trial(38)]
FAILING = [tiny.trial(n, generated=(7, 8, 9), question=f"Who is at {n}?") for n in (31, 33, 35, 37)]


def test_only_passing_trials_count(tiny_model):
    """A13: a mean over 3 of 7, failed trials are kept as outcomes, headkv counts all."""
    model = tiny_model("llama")
    mixed = score_heads(model, [FAILING[0], PASSING[0], *FAILING[1:], *PASSING[1:]])
    alone = score_heads(model, PASSING)
    assert (mixed.passed, mixed.total) == (3, 7)
    assert mixed["locos"].trial_ids == tuple(t.trial_id for t in PASSING)
    assert (mixed["locos"].passed, mixed["locos"].total) == (3, 7)
    np.testing.assert_array_equal(mixed["locos"].mean, alone["locos"].mean)
    assert mixed["headkv"].n_trials == 7
    failed = next(o for o in mixed.outcomes if not o.passed)
    assert failed.generated_text == "the character is"
    assert failed.gate_value == 0.0
    assert failed.trial["question"] == "Who is at 31?"


def test_zero_passing_is_an_error_that_shows_answers(tiny_model, tmp_path):
    model = tiny_model("llama")
    with pytest.raises(NoTrialPassed) as error:
        score_heads(model, FAILING, out=tmp_path)
    text = str(error.value)
    assert "0 of 4 trials passed" in text
    assert text.count("wanted 'Yuki', got 'the character is'") == 3
    kept = Scores.load(tmp_path)  # the answers, and the detectors that need none
    assert [o.generated_text for o in kept.outcomes] == ["the character is"] * 4
    assert set(kept) == {"headkv", "random"}
    with pytest.raises(NoTrialPassed, match="0 of 4"):
        score_heads(model, FAILING, out=tmp_path)
    only = score_heads(model, FAILING, ["headkv", "random"])  # needs no gate
    assert only.passed == 0
    assert only["headkv"].n_trials == 4


def test_an_older_result_does_not_outlive_its_trials(tiny_model, tmp_path):
    """A finished run over other trials is never replaced."""
    model = tiny_model("llama")
    score_heads(model, PASSING, out=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for others in (FAILING, PASSING[:2]):
        with pytest.raises(ResultFileError, match="other trials"):
            score_heads(model, others, out=tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_folder_of_someone_else_is_left_alone(tiny_model, tmp_path):
    (tmp_path / "trials.jsonl").write_text("mine")
    with pytest.raises(ResultFileError, match=r"trials\.jsonl.*new or empty folder"):
        score_heads(tiny_model("llama"), PASSING, out=tmp_path)
    assert (tmp_path / "trials.jsonl").read_text() == "mine"


def test_edited_weights_are_another_model(tmp_path):
    """A resumed run never mixes the scores of two sets of weights, whatever the model's name."""
    model = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    score_heads(model, PASSING, out=tmp_path)
    other = load_model(tiny.hf_model("llama", seed=1), tokenizer=tiny.tokenizer())
    with pytest.raises(ResultFileError, match=r"model\.weights"):
        score_heads(other, PASSING, out=tmp_path)
    fingerprint = model.weights_fingerprint()
    assert model.weights_fingerprint() == fingerprint
    with torch.no_grad():
        model.W_O(1)[2].zero_()
    assert model.weights_fingerprint() != fingerprint


def test_repeated_prompts_are_warned_about(tiny_model):
    twice = [PASSING[0], replace(PASSING[0], trial_id="again")]
    with pytest.warns(UserWarning, match="only 1 of 2 trials"):
        score_heads(tiny_model("llama"), twice, ["locos"])


def test_random_is_one_map_per_seed(tiny_model):
    scores = score_heads(tiny_model("llama"), PASSING, ["random"])["random"]
    assert scores.trial_ids == ("seed-42", "seed-43", "seed-44")
    assert len({tuple(scores.ranking(i)) for i in scores.trial_ids}) == 3


def test_decoded_equals_teacher_forced(tiny_model):
    """A04: cached decoding, and one teacher-forced pass over the same tokens, give the same scores."""
    for family in tiny.FAMILIES:
        model = tiny_model(family)
        free = replace(tiny.trial(40), generated_ids=None)
        answered = generate(model, free, 12)
        answer = model.tokenizer.decode([answered.generated_ids[2]])
        free, answered = replace(free, answer=answer), replace(answered, answer=answer)
        a, b = score_heads(model, free, max_new_tokens=12), score_heads(model, answered)
        assert a.outcomes[0].generated_ids == b.outcomes[0].generated_ids
        assert a.outcomes[0].answer_steps == b.outcomes[0].answer_steps
        for name in a:
            np.testing.assert_allclose(a[name].per_trial, b[name].per_trial, atol=1e-4, err_msg=f"{family} {name}")


def test_the_last_answer_token_changes_only_u(tiny_model):
    """A04: the row of answer token t is the row of the token before it."""
    from locos_tl import phi

    model = tiny_model("llama")
    first = tiny.trial(30, generated=(7, 8, 3))
    second = replace(first, generated_ids=(7, 8, 4), answer="Omar")
    a = score_heads(model, first, ["attention_spatial"])["attention_spatial"].per_trial
    b = score_heads(model, second, ["attention_spatial"])["attention_spatial"].per_trial
    np.testing.assert_array_equal(a, b)
    assert (phi(model, first) - phi(model, second)).abs().max() > 1e-3


def test_same_run_twice_is_byte_identical(tiny_model, tmp_path):
    """A28."""
    for name in ("a", "b"):
        score_heads(tiny_model("gemma3"), PASSING, out=tmp_path / name)
    files = sorted(
        p.relative_to(tmp_path / "a")
        for p in (tmp_path / "a").rglob("*")
        if p.suffix in (".safetensors", ".json", ".jsonl")
    )
    assert len(files) > 8
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_provenance_holds_what_made_the_scores(tiny_model):
    found = json.loads(json.dumps(dict(score_heads(tiny_model("llama"), PASSING)["locos"].provenance)))
    assert set(found) == {"model", "tokenizer", "versions", "scoring", "trials", "detector"}
    assert {"name", "revision", "dtype", "backend", "attention", "processing"} <= set(found["model"])
    assert {"torch", "transformers", "transformer-lens", "locos_tl"} <= set(found["versions"])
    assert found["scoring"]["gate"] == {"metric": "ROUGE-1 recall x 100, stemmed", "above": 50.0}
    assert found["trials"]["count"] == found["trials"]["passed"] == 3


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_killed_run_resumes(tiny_model, tmp_path, monkeypatch, stop_after):
    """Every finished trial is kept, none is run twice, and the result equals an unbroken run's."""
    model = tiny_model("llama")
    whole = score_heads(model, [*PASSING, *FAILING], out=tmp_path / "whole")
    ran = []
    score_trial = run_module.score_trial

    def interrupted(model, trial, *rest):
        if len(ran) == stop_after:
            raise KeyboardInterrupt
        ran.append(trial.trial_id)
        return score_trial(model, trial, *rest)

    monkeypatch.setattr(run_module, "score_trial", interrupted)
    with pytest.raises(KeyboardInterrupt):
        score_heads(model, [*PASSING, *FAILING], out=tmp_path / "broken")
    with pytest.raises(ResultFileError, match="not a finished run"):
        Scores.load(tmp_path / "broken")
    monkeypatch.setattr(
        run_module, "score_trial", lambda m, t, *rest: (ran.append(t.trial_id), score_trial(m, t, *rest))[1]
    )
    resumed = score_heads(model, [*PASSING, *FAILING], out=tmp_path / "broken")
    assert sorted(ran) == sorted(t.trial_id for t in [*PASSING, *FAILING])
    for name in whole:
        np.testing.assert_array_equal(resumed[name].per_trial, whole[name].per_trial)
    assert resumed.outcomes == whole.outcomes
    for file in ("run.json", "outcomes.jsonl", "trials.jsonl", "scores/locos.safetensors"):
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    loaded = Scores.load(tmp_path / "broken")
    np.testing.assert_array_equal(loaded["locos"].per_trial, whole["locos"].per_trial)


def test_more_trials_into_the_same_folder_reuse_the_finished_ones(tiny_model, tmp_path, monkeypatch):
    model = tiny_model("llama")
    score_heads(model, PASSING[:2], out=tmp_path)
    ran = []
    score_trial = run_module.score_trial
    monkeypatch.setattr(
        run_module, "score_trial", lambda m, t, *rest: (ran.append(t.trial_id), score_trial(m, t, *rest))[1]
    )
    assert score_heads(model, PASSING, out=tmp_path).total == 3
    assert ran == [PASSING[2].trial_id]


def test_a_folder_of_other_settings_is_refused(tiny_model, tmp_path):
    model = tiny_model("llama")
    score_heads(model, PASSING, out=tmp_path)
    with pytest.raises(ResultFileError, match=r"scoring\.variant.*paper.*exact"):
        score_heads(model, PASSING, variant="exact", out=tmp_path)
    with pytest.raises(ResultFileError, match=r"model\.name"):
        score_heads(tiny_model("qwen3"), PASSING, out=tmp_path)


def test_a_damaged_trial_file_is_named(tiny_model, tmp_path):
    model = tiny_model("llama")
    score_heads(model, PASSING, out=tmp_path)
    victim = sorted((tmp_path / "trials").iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:100])
    with pytest.raises(ResultFileError, match=victim.name):
        score_heads(model, PASSING, out=tmp_path)


def test_two_runs_into_one_folder(tiny_model, tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"), pytest.raises(ResultFileError, match="another run"):
        score_heads(tiny_model("llama"), PASSING, out=tmp_path)


def test_unusable_trials_are_refused_before_any_work(tiny_model, monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(run_module, "score_trial", lambda *_, **__: pytest.fail("work was done"))
    cases = [
        ([], "no trials"),
        ([PASSING[0], PASSING[0]], "occurs 2 times"),
        ([replace(PASSING[0], tokenizer="0123456789abcdef")], "another tokenizer"),
        ([tiny.trial(30, needle=(20, 26))], "headkv"),
        ([replace(PASSING[0], prompt_ids=(*PASSING[0].prompt_ids[:-1], 5000))], "vocabulary"),
    ]
    for trials, message in cases:
        with pytest.raises(ValueError, match=message):
            score_heads(model, trials)
    for options, message in (
        ({"detectors": ["locus"]}, "unknown detector 'locus'"),
        ({"detectors": ["cri"]}, "patch_heads"),
        ({"detectors": []}, "no detector"),
        ({"max_new_tokens": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            score_heads(model, PASSING, **options)


def test_memory_does_not_grow_with_trials(tiny_model):
    """A31: after the first few trials, further ones leave no tensor behind."""
    model = tiny_model("llama")

    def alive() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    score_heads(model, [tiny.trial(n) for n in range(30, 33)])
    before = alive()
    scores = score_heads(model, [tiny.trial(n) for n in range(40, 70)])
    assert alive() <= before + 2
    assert scores.total == 30


def test_untrained_model_fails_the_gate(tiny_model):
    """A13: a random model with real decoding."""
    with pytest.raises(NoTrialPassed, match="0 of 5"):
        score_heads(
            tiny_model("qwen3"), [replace(tiny.trial(n), generated_ids=None) for n in range(30, 35)], max_new_tokens=6
        )


def test_halves_of_the_trials_are_compared(bundled_scores):
    assert -1 <= bundled_scores["locos"].split_half() <= 1


@pytest.fixture(scope="module")
def bundled_scores(tiny_model):
    return score_heads(tiny_model("llama"), [tiny.trial(n) for n in range(30, 40)])


def test_two_token_answers(tiny_model):
    """Both tokens of the answer are answer steps, each with its own u."""
    model = tiny_model("llama")
    trial = tiny.trial(30, generated=(7, 5, 6, 9), answer="Anna Lee")
    scores = score_heads(model, trial)
    assert scores.outcomes[0].answer_steps == (1, 2)
    from locos_tl import phi

    full = phi(model, trial)
    assert full.shape[2] == 2
    (start, end), each = trial.needle_span, []
    for i, step in enumerate((1, 2)):
        n_keys = trial.n_tokens + step
        inside = full[:, :, i, start:end].sum(-1)
        each.append(inside - (end - start) / (n_keys - (end - start)) * (full[:, :, i].sum(-1) - inside))
    np.testing.assert_allclose(scores["locos"].per_trial[0], torch.stack(each).mean(0), atol=1e-5, rtol=1e-4)


def test_scored_weights_stay_usable_for_training(tiny_model):
    """Nothing scored needs a gradient, and the model still can have one."""
    model = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    score_heads(model, PASSING)
    logits = model.hooked(torch.tensor([PASSING[0].prompt_ids]))
    logits.sum().backward()
    assert next(iter(model.hooked.parameters())).grad is not None


def test_an_alias_passes_the_gate_where_the_gold_answer_does_not(tiny_model):
    """MuSiQue-like answers: any accepted spelling counts, and its tokens are the answer steps."""
    model = tiny_model("llama")
    named = score_heads(model, [tiny.trial(30, answer="Omar", aliases=("Yuki",))], "locos")
    plain = score_heads(model, [tiny.trial(30)], "locos")
    assert named.outcomes[0].passed
    assert named.outcomes[0].answer_steps == plain.outcomes[0].answer_steps == (3,)
    np.testing.assert_array_equal(named["locos"].per_trial, plain["locos"].per_trial)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_common_beginnings_change_no_score(tiny_model, family):
    """Trials of one text, in another order than they are run, with and without a store of beginnings."""
    model = tiny_model(family)
    text = tiny.words(60, seed=5)
    trials = []
    for number, (needle, end) in enumerate([((40, 46), 7), ((20, 26), 8), ((40, 46), 9), ((20, 26), 6)]):
        ids = [*text[: needle[0]], 4, 3, 5, 6, 9, 11, *text[needle[0] :], *tiny.words(20, seed=end)]
        trials.append(Trial.from_ids(ids, needle=needle, answer="Yuki", generated_ids=(7, 8, 3), trial_id=f"t{number}"))
    on, off = (score_heads(model, trials, examples=0, prefixes=place) for place in ("device", "off"))
    assert [o.trial_id for o in on.outcomes] == ["t0", "t1", "t2", "t3"]
    assert on.passed == 4
    for name in on:
        np.testing.assert_allclose(on[name].per_trial, off[name].per_trial, atol=2e-5)
    with pytest.raises(ValueError, match="prefixes must be one of device, cpu, off, got 'disk'"):
        score_heads(model, trials, prefixes="disk")
