"""Readings of single heads: what is shown token by token is what the scores and the logits are made of."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from locos_tl import HeadReading, ResultFileError, Scores, phi, read_heads, score_heads
from locos_tl.results.files import write_arrays
from locos_tl.scoring import reading as module
from tests import tiny

TRIAL = tiny.trial(40, generated=(7, 3, 9, 3, 10))  # "Yuki" (token 3) is said at steps 1 and 3
STEPS = (1, 3)
VARIANTS = ("paper", "folded", "exact")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_phi_is_that_of_the_explorer_function(tiny_model, family):
    model = tiny_model(family)
    found = read_heads(model, TRIAL, steps=STEPS, variant=VARIANTS)
    assert found.complete
    for index, variant in enumerate(VARIANTS):
        wanted = phi(model, TRIAL, steps=STEPS, variant=variant).mean(2)
        torch.testing.assert_close(torch.from_numpy(found.phi[index]), wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.phi_total[index], wanted.sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3", "olmo3", "gpt2"])
def test_attention_is_the_mean_pattern_of_the_answer_steps(tiny_model, family):
    model = tiny_model(family)
    found = read_heads(model, TRIAL, steps=STEPS)
    ids = [*TRIAL.prompt_ids, *TRIAL.generated_ids]
    with torch.inference_mode():
        _, cache = model.hooked.run_with_cache(torch.tensor([ids]))
    rows = [TRIAL.n_tokens - 1 + step for step in STEPS]
    for layer in range(model.n_layers):
        wanted = cache[f"blocks.{layer}.attn.hook_pattern"][0, :, rows, : found.n_keys].mean(1)
        np.testing.assert_allclose(found.attention[layer], wanted, atol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_promoted_logits_are_exact_phi_of_those_tokens(tiny_model, family):
    """The lens of a head's output on a token is its exact phi for it, summed over keys, less the vocabulary's mean."""
    model = tiny_model(family)
    found = read_heads(model, TRIAL, steps=STEPS)
    layer, head = model.n_layers - 1, model.n_heads - 1
    shown = dict(zip(found.promoted[layer, head].tolist(), found.promoted_logits[layer, head].tolist(), strict=True))
    shown |= dict(
        zip(found.suppressed[layer, head].tolist(), found.suppressed_logits[layer, head].tolist(), strict=True)
    )
    wanted = {t: float(phi(model, TRIAL, steps=STEPS[0], target=t, variant="exact")[layer, head].sum()) for t in shown}
    first = next(iter(shown))
    for token, value in shown.items():  # between tokens, since the mean drops out
        assert value - shown[first] == pytest.approx(wanted[token] - wanted[first], abs=1e-4)


def test_promoted_tokens_are_the_largest_of_all(tiny_model):
    model = tiny_model("llama")
    found = read_heads(model, TRIAL, steps=STEPS)
    size = min(model.geometry.d_vocab, len(model.tokenizer))
    logits = torch.stack([phi(model, TRIAL, steps=1, target=t, variant="exact")[1, 2, 0].sum() for t in range(size)])
    logits -= logits.mean()
    best = logits.topk(found.promoted.shape[-1])
    assert set(found.promoted[1, 2]) == set(best.indices.tolist())
    np.testing.assert_allclose(found.promoted_logits[1, 2], best.values, atol=1e-5)
    assert set(found.vocabulary) >= set(found.promoted[1, 2].tolist())


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_long_context_keeps_its_ends_the_needle_and_each_heads_peaks(tiny_model, family, monkeypatch):
    model = tiny_model(family)
    long = tiny.trial(200, needle=(60, 66), generated=(7, 3, 9))
    whole = read_heads(model, long, steps=(1,), variant=VARIANTS)
    assert whole.complete
    monkeypatch.setattr(module, "DENSE", 0)
    found = read_heads(model, long, steps=(1,), variant=VARIANTS)
    assert set(found.shared) == {*range(8), *range(48, 78), *range(152, 201)}
    np.testing.assert_allclose(found.attention, whole.attention[..., found.shared], atol=1e-6)
    np.testing.assert_allclose(found.phi_total, whole.phi_total, atol=1e-5)
    rest = np.setdiff1d(np.arange(201), found.shared)
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            own = found.own[layer, head]
            kept = own[own >= 0]
            assert len(set(kept)) == len(kept)
            assert not set(kept) & set(found.shared)
            for values in (whole.attention, whole.phi[0], -whole.phi[0]):
                peak = rest[values[layer, head, rest].argmax()]
                assert peak in kept or values[layer, head, peak] <= 0, "a window that reaches no further"
            at = own >= 0
            np.testing.assert_allclose(found.own_phi[:, layer, head, at], whole.phi[:, layer, head, kept], atol=1e-6)
            assert not found.own_phi[:, layer, head, ~at].any()


def test_a_trial_whose_answer_was_not_said_is_refused(tiny_model):
    model = tiny_model("llama")
    with pytest.raises(ValueError, match=r"the answer 'Yuki' was not generated, so no head wrote it"):
        read_heads(model, replace(TRIAL, generated_ids=(7, 8, 9)))
    with pytest.raises(ValueError, match=r"steps \(9,\) do not fit 5 generated tokens"):
        read_heads(model, TRIAL, steps=(9,))


# --- in a run -------------------------------------------------------------------------------------


def test_a_run_keeps_its_first_passed_trials(tiny_model, tmp_path):
    model = tiny_model("qwen3")
    trials = [tiny.trial(n) for n in range(30, 35)]
    scores = score_heads(model, trials, variant=("paper", "exact"), examples=2, out=tmp_path / "run")
    assert [r.trial_id for r in scores.readings] == [t.trial_id for t in trials[:2]]
    assert scores.readings[0].variants == ("paper", "exact")
    again = Scores.load(tmp_path / "run")
    for one, other in zip(scores.readings, again.readings, strict=True):
        assert (one.tokens, one.about, one.vocabulary) == (other.tokens, other.about, other.vocabulary)
        np.testing.assert_array_equal(one.phi, other.phi)
    assert score_heads(model, trials, examples=0).readings == ()


def test_a_resumed_run_does_not_read_again(tiny_model, tmp_path, monkeypatch):
    model = tiny_model("qwen3")
    trials = [tiny.trial(n) for n in range(30, 34)]
    score_heads(model, trials[:3], examples=3, out=tmp_path / "run")
    calls = []
    real = read_heads
    monkeypatch.setattr("locos_tl.scoring.run.read_heads", lambda *a, **k: calls.append(a[1]) or real(*a, **k))
    scores = score_heads(model, trials, examples=4, out=tmp_path / "run")
    assert [t.trial_id for t in calls] == [trials[3].trial_id]
    assert len(scores.readings) == 4


def test_several_variants_in_one_pass_equal_single_runs(tiny_model):
    model = tiny_model("gemma3")
    trials = [tiny.trial(n) for n in (30, 40)]
    together = score_heads(model, trials, ("locos", "dla", "wu"), VARIANTS)
    assert list(together) == ["locos", "dla", "wu", "locos_folded", "dla_folded", "locos_exact", "dla_exact"]
    for variant in VARIANTS:
        alone = score_heads(model, trials, ("locos", "dla", "wu"), variant)
        for name in ("locos", "dla"):
            found = together[name if variant == "paper" else f"{name}_{variant}"]
            np.testing.assert_allclose(found.per_trial, alone[name].per_trial, rtol=1e-6)
            assert found.detector == name
            assert found.provenance["detector"] == alone[name].provenance["detector"]
            assert found.provenance["detector"]["variant"] == variant


@pytest.mark.parametrize("variant", ["raw", (), ("paper", "paper"), ("paper", "raw")])
def test_unknown_variants_are_refused(tiny_model, variant):
    with pytest.raises(ValueError, match="variant"):
        score_heads(tiny_model("llama"), TRIAL, variant=variant)


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tiny_model, tmp_path):
    found = read_heads(tiny_model("llama"), TRIAL, steps=STEPS)
    return found, found.save(tmp_path / "reading.safetensors")


def test_a_reading_survives_its_file(saved):
    found, path = saved
    again = HeadReading.load(path)
    for name in ("trial_id", "ids", "tokens", "needle_span", "answer_steps", "variants", "vocabulary", "about"):
        assert getattr(again, name) == getattr(found, name), name
    for name in ("attention", "phi", "own", "promoted", "suppressed_logits", "phi_total"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "HeadScores"}, "holds HeadScores, not HeadReading"),
        ({"tokens": ["a"]}, "1 token texts for 45 tokens"),
        ({"needle_span": [9, 900]}, "do not fit 45 tokens"),
        ({"answer_steps": [77]}, "outside the generated text"),
        ({"variants": ["paper", "exact"]}, r"phi must have the shape \(2,"),
    ],
)
def test_a_spoilt_file_is_refused(saved, change, message):
    from locos_tl.results.files import read_arrays

    _, path = saved
    arrays, meta = read_arrays(path)
    write_arrays(path, arrays, json.loads(json.dumps(meta)) | change)
    with pytest.raises(ResultFileError, match=message):
        HeadReading.load(path)


def test_what_is_not_finite_or_out_of_reach_is_refused(saved):
    found, _ = saved
    with pytest.raises(ValueError, match=r"phi of trial .* is not finite"):
        replace(found, phi=np.full_like(found.phi, np.nan))
    with pytest.raises(ValueError, match="shared holds a position outside"):
        replace(found, shared=found.shared + 100)
