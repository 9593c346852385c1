"""`patch_trials` and `validate_late_layers`: same trials, same answers, resumable, and right in kind."""

from __future__ import annotations

import numpy as np
import pytest

from locos_tl import score_heads
from locos_tl.causal import validation
from locos_tl.causal.corrupt import corrupt
from locos_tl.causal.patching import total_effects
from locos_tl.causal.paths import direct_effects
from locos_tl.causal.validation import patch_trials, validate_late_layers
from locos_tl.results.effects import Effects
from locos_tl.results.files import ResultFileError
from locos_tl.results.late_layers import LateLayers
from locos_tl.trials.trial import Trial
from tests import tiny


def _trials(n=3):
    return [tiny.trial(30 + i, needle=(5 + i, 11 + i), trial_id=f"t{i}") for i in range(n)]


@pytest.fixture
def fillers(monkeypatch):
    """Prose of the tiny vocabulary in place of the bundled one, whose words it does not have."""
    monkeypatch.setattr(
        validation, "corrupt", lambda trial, how, model, seed: corrupt(trial, "swap", model, pool=["w1 w2 w3 w4 w5 w6"])
    )


def test_the_effects_are_those_of_single_pairs(tiny_model, fillers):
    model, trials = tiny_model("gemma3"), _trials()
    found = patch_trials(model, trials, ("total", "direct", "attribution"))
    assert [found[kind].kind for kind in found] == ["total", "direct", "attribution"]
    twins = [corrupt(trial, "swap", model, pool=["w1 w2 w3 w4 w5 w6"]) for trial in trials]
    np.testing.assert_allclose(found["total"].per_trial, total_effects(model, trials, twins).per_trial, atol=1e-4)
    np.testing.assert_allclose(found["direct"].per_trial, direct_effects(model, trials, twins).per_trial, atol=1e-4)
    assert found["total"].trial_ids == ("t0", "t1", "t2")
    assert found["total"].minus(found["direct"]).kind == "indirect"


def test_a_killed_run_resumes_where_it_stopped(tiny_model, fillers, tmp_path, monkeypatch):
    model, trials = tiny_model("llama"), _trials()
    whole = patch_trials(model, trials, out=tmp_path / "whole")
    real, calls = validation.PairRuns, []

    def third_time_unlucky(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(validation, "PairRuns", third_time_unlucky)
    with pytest.raises(KeyboardInterrupt):
        patch_trials(model, trials, out=tmp_path / "cut")
    resumed = patch_trials(model, trials, out=tmp_path / "cut")
    assert len(calls) == 4, "finished trials were patched again"
    for kind in whole:
        np.testing.assert_array_equal(resumed[kind].per_trial, whole[kind].per_trial)
        loaded = Effects.load(tmp_path / "cut" / f"{kind}.safetensors")
        np.testing.assert_array_equal(loaded.per_trial, whole[kind].per_trial)
    with pytest.raises(ResultFileError, match=r"other settings \(patching.metric"):
        patch_trials(model, trials, metric="answer_logprob", out=tmp_path / "cut")


def test_validation_takes_the_trials_that_count(tiny_model, fillers, tmp_path):
    """Those that passed the gate, with the answers given when they were scored."""
    model = tiny_model("gemma3")
    trials = [*_trials(3), tiny.trial(40, generated=(40, 41, 42), trial_id="failed")]
    scores = score_heads(model, trials)
    assert scores.passed == 3
    found = validate_late_layers(model, trials, scores, out=tmp_path / "late")
    assert set(found.maps) == {"locos", "attention_spatial", "direct", "total"}
    assert found.maps["total"].trial_ids == ("t0", "t1", "t2")
    np.testing.assert_array_equal(found.maps["locos"].per_trial, scores["locos"].per_trial)
    assert found.verdict == "undecided"
    assert "3 trials are too few" in found.reason
    assert LateLayers.load(tmp_path / "late").verdict == "undecided"
    assert Effects.load(tmp_path / "late" / "effects" / "direct.safetensors").kind == "direct"
    again = validate_late_layers(model, trials, total="attribution")
    np.testing.assert_allclose(again.maps["locos"].per_trial, scores["locos"].per_trial, atol=1e-5)
    assert set(again.maps) == {"locos", "attention_spatial", "direct", "attribution"}
    assert again.causal == "attribution"


def test_what_does_not_fit_is_refused(tiny_model, fillers):
    model, trials = tiny_model("llama"), _trials()
    scores = score_heads(model, trials)
    with pytest.raises(ValueError, match="no trial counts in the scores"):
        validate_late_layers(model, [tiny.trial(50, trial_id="t0")], scores)
    with pytest.raises(ValueError, match="layers x"):
        validate_late_layers(tiny_model("gemma3"), trials, scores)
    with pytest.raises(ValueError, match="of another model"):
        validate_late_layers(tiny_model("qwen3"), trials, scores)
    with pytest.raises(ValueError, match="total must be"):
        validate_late_layers(model, trials, scores, total="exact")
    with pytest.raises(ValueError, match="kinds must be some of"):
        patch_trials(model, trials, ("totals",))
    with pytest.raises(ValueError, match="how must be one of"):
        patch_trials(model, trials, how="noise")
    closed = Trial(tuple(tiny.words(12)), None, "Yuki", trial_id="closed")
    with pytest.raises(ValueError, match="'closed' has no needle"):
        patch_trials(model, [closed])


def test_trials_without_ids_are_named_alike_everywhere(tiny_model, fillers):
    model = tiny_model("llama")
    trials = [*_trials(2), tiny.trial(40, trial_id=""), tiny.trial(41, trial_id="")]
    scores = score_heads(model, trials)
    found = validate_late_layers(model, trials, scores, total="attribution")
    assert found.maps["direct"].trial_ids == ("t0", "t1", "trial-0002", "trial-0003")


def test_the_decode_limit_is_the_one_asked_for(tiny_model, fillers, monkeypatch):
    from locos_tl.causal import pairs

    asked = []
    monkeypatch.setattr(pairs, "generate", lambda model, trial, n: asked.append(n) or trial.with_generation([7, 3]))
    patch_trials(tiny_model("llama"), [tiny.trial(30, generated=None)], ("attribution",), max_new_tokens=5)
    assert asked == [5]
