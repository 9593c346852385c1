"""Every detector on every family against the slow reference (A01, A05, A15, A21 and the master identity)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from locos_tl import phi, score_heads
from locos_tl.scoring.detectors import DETECTORS
from tests import tiny
from tests.scoring.reference import Reference

TRIALS = (tiny.trial(30), tiny.trial(26, needle=(10, 15), generated=(7, 3, 9)), tiny.trial(40, needle=(0, 4)))
STEPS = ((3,), (1,), (3,))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_all_detectors(tiny_model, family):
    model = tiny_model(family)
    scores = score_heads(model, TRIALS)
    assert (scores.passed, scores.total) == (3, 3)
    for i, (trial, steps) in enumerate(zip(TRIALS, STEPS, strict=True)):
        reference = Reference(model, trial, steps)
        for name in DETECTORS:
            wanted = reference.per_head(getattr(reference, name))
            got = scores[name].per_trial[i]
            assert got.shape == (model.n_layers, model.n_heads)
            np.testing.assert_allclose(got, wanted, atol=1e-4 * max(np.abs(wanted).max(), 1e-3), err_msg=name)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_phi_sums_to_the_head_output_through_u(tiny_model, family):
    """Master identity: sum over all positions of phi is u.(z W_O) for every layer, head and step."""
    model, trial = tiny_model(family), TRIALS[0]
    steps = (0, 2, 4)
    ids = [*trial.prompt_ids, *trial.generated_ids]
    with torch.inference_mode():
        _, cache = model.hooked.run_with_cache(torch.tensor([ids]))
    full = phi(model, trial, steps=steps)
    assert full.shape == (model.n_layers, model.n_heads, 3, trial.n_tokens + 4)
    for layer in range(model.n_layers):
        z = cache[f"blocks.{layer}.attn.hook_z"][0].reshape(len(ids), model.n_heads, model.d_head)
        for i, step in enumerate(steps):
            u = model.unembed([ids[trial.n_tokens + step]])[0]
            wanted = torch.einsum("hd,hdm,m->h", z[trial.n_tokens - 1 + step], model.W_O(layer), u)
            torch.testing.assert_close(full[layer, :, i].sum(-1), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_phi_is_zero_after_the_query(tiny_model, family):
    full = phi(tiny_model(family), TRIALS[0], steps=(0, 4))
    assert (full[:, :, 0, TRIALS[0].n_tokens :] == 0).all()
    assert (full[:, :, 1, -1] != 0).any()


def test_phi_for_any_target(tiny_model):
    """phi is linear in u, so another target is another row; text targets must be one token."""
    model, trial = tiny_model("llama"), TRIALS[0]
    by_id, by_text = phi(model, trial, target=4), phi(model, trial, target="Omar")
    torch.testing.assert_close(by_id, by_text)
    assert (phi(model, trial) - by_id).abs().max() > 1e-3
    with pytest.raises(ValueError, match="2 tokens"):
        phi(model, trial, target="Anna Lee")
    with pytest.raises(ValueError, match="steps"):
        phi(model, trial, steps=[5])
    with pytest.raises(ValueError, match="vocabulary"):
        phi(model, trial, target=10_000)


def test_grouped_heads_read_their_own_values(tiny_model):
    """A01: KV head 0 yields +1 and KV head 1 yields -1; query heads follow in blocks, not in turn."""
    from locos_tl import load_model

    for family, group in (("llama", 2), ("llama-6-heads", 3)):
        hf = tiny.hf_model(family)
        hf.get_input_embeddings().weight.data.abs_()
        for layer in hf.model.layers:
            layer.input_layernorm.weight.data.fill_(1.0)
            v = layer.self_attn.v_proj.weight.data
            v[:16], v[16:] = 1.0, -1.0
            layer.self_attn.o_proj.weight.data.fill_(1.0)
            layer.mlp.down_proj.weight.data.zero_()
        hf.lm_head.weight.data.fill_(0.1)
        model = load_model(hf, tokenizer=tiny.tokenizer())
        first = phi(model, TRIALS[0], steps=[3])[0, :, 0].sum(-1)
        assert (first[:group] > 0).all(), family
        assert (first[group:] < 0).all(), family
