"""Means over calibration prompts are the means of what the TransformerLens hooks show, whatever the batch and chunk."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from locos_tl.causal import means as means_module
from locos_tl.causal.means import ABLATED, calibrate_means
from locos_tl.models.stack import BridgeStack, PlainStack
from locos_tl.runs import bound_trials
from tests import tiny

TRIALS = [tiny.trial(n) for n in (33, 20, 26)]


def by_hand(model, trials) -> dict[str, torch.Tensor]:
    """Every activation at q and z, [pos layer head d_head], by TransformerLens hooks on whole prompts."""
    found = {at: [[] for _ in range(model.n_layers)] for at in ABLATED}

    def keep(at, layer):
        return lambda value, hook: found[at][layer].append(value[0])

    hooks = [(f"blocks.{n}.attn.hook_{at}", keep(at, n)) for at in ABLATED for n in range(model.n_layers)]
    with model.hooks(hooks):
        for trial in trials:
            model.forward(trial.prompt_ids)
    return {at: torch.stack([torch.cat(layer) for layer in found[at]], 1) for at in ABLATED}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_means_are_those_of_the_hooks(tiny_model, family, monkeypatch):
    """Prompts longer than the windows and than a chunk; alone and padded in a batch (A09)."""
    model = tiny_model(family)
    monkeypatch.setattr(means_module, "CHUNK", 7)
    seen = by_hand(model, TRIALS)
    for batch_size in (1, 2, 3):
        means = calibrate_means(model, TRIALS, batch_size=batch_size, n_samples=5)
        assert means.n_tokens == 79
        assert means.prompts == tuple(trial.prompt_digest() for trial in TRIALS)
        for at in ABLATED:
            torch.testing.assert_close(means.mean[at], seen[at].mean(0), atol=1e-5, rtol=1e-4)
            distance = (means.sample[at][:, None] - seen[at][None]).abs().amax((2, 3, 4))
            assert means.sample[at].shape == (5, model.n_layers, model.n_heads, model.d_head)
            nearest = distance.min(1)
            assert nearest.values.max() < 1e-4, "a sample is one position's activation, the same one in every layer"
            assert len(set(nearest.indices.tolist())) == 5


def test_the_first_n_prompts_count(tiny_model):
    model = tiny_model("llama")
    two = calibrate_means(model, TRIALS, 2, n_samples=9)
    assert two.digest() == calibrate_means(model, TRIALS[:2], n_samples=9).digest()
    assert two.prompts == tuple(trial.prompt_digest() for trial in TRIALS[:2])
    assert two.digest() != calibrate_means(model, TRIALS, n_samples=9).digest()
    assert two.digest() != calibrate_means(model, TRIALS[:2], n_samples=9, seed=1).digest()


def test_more_samples_than_positions(tiny_model):
    means = calibrate_means(tiny_model("llama"), TRIALS[1:2], n_samples=100)
    assert means.sample["q"].shape[0] == 20


@pytest.mark.parametrize("kind", [PlainStack, BridgeStack])
def test_a_hook_that_misses_positions_is_an_error(tiny_model, monkeypatch, kind):
    """A02: means over part of the positions would be wrong without a sign of it."""
    model = tiny_model("llama" if kind is PlainStack else "gemma2")
    edit = kind.edit
    monkeypatch.setattr(
        kind, "edit", lambda self, n, at, fn: nullcontext() if (n, at) == (1, "z") else edit(self, n, at, fn)
    )
    with pytest.raises(RuntimeError, match=r"hook_z of layer 1 fired for 0 of 79 positions"):
        calibrate_means(model, TRIALS)


def test_impossible_calibrations_are_refused(tiny_model):
    model = tiny_model("llama")
    long = replace(TRIALS[0], prompt_ids=tuple(tiny.words(300)))
    for arguments, options, message in (
        (([],), {}, "no calibration trials"),
        ((TRIALS, 0), {}, "n must be at least 1"),
        ((TRIALS,), {"batch_size": 0}, "at least 1"),
        ((TRIALS,), {"n_samples": 0}, "at least 1"),
        (([long],), {}, "exceed the context limit"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrate_means(model, *arguments, **options)


def test_calibration_leaves_the_model_as_it_was(tiny_model):
    """A20, A31: no hook stays, and nothing that was kept needs a gradient."""
    model = tiny_model("llama")
    before = model.forward(tiny.words(20))
    means = calibrate_means(model, TRIALS)
    assert torch.equal(model.forward(tiny.words(20)), before)
    assert not any(part.requires_grad for at in ABLATED for part in (means.mean[at], means.sample[at]))
    assert means.weights == model.weights_fingerprint()


def test_means_are_saved_and_loaded(tiny_model, tmp_path):
    from locos_tl.causal.means import HeadMeans
    from locos_tl.results.files import ResultFileError

    means = calibrate_means(tiny_model("qwen3"), [tiny.trial(20), tiny.trial(31)], n_samples=5)
    again = HeadMeans.load(means.save(tmp_path / "means.safetensors"))
    for at in ("q", "z"):
        assert torch.equal(again.mean[at], means.mean[at])
        assert torch.equal(again.sample[at], means.sample[at])
    assert again.digest() == means.digest()
    (tmp_path / "means.safetensors").write_bytes(b"no")
    with pytest.raises(ResultFileError, match="not a readable safetensors file"):
        HeadMeans.load(tmp_path / "means.safetensors")


def test_calibration_trials_are_trials_of_this_model(tiny_model):
    from dataclasses import replace

    model = tiny_model("llama")
    assert calibrate_means(model, tiny.trial(20)).n_tokens == 20
    with pytest.raises(ValueError, match="calibration trials must be trials, got 'nonliteral'"):
        bound_trials(model, "nonliteral", "calibration trials")
    with pytest.raises(ValueError, match="another tokenizer"):
        calibrate_means(model, [replace(tiny.trial(20), tokenizer="deadbeef")])
    with pytest.raises(ValueError, match="token 500 is outside the vocabulary of 96"):
        model.tokens([1, 500])
