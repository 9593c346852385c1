"""paper, folded and exact: what is summed, and that exact sums to the logit (A05, A06)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from locos_tl import phi, score_heads
from tests import tiny

TRIAL = tiny.trial(30)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_exact_sums_to_the_logit(tiny_model, family):
    """Heads + MLPs + embedding + biases, through the frozen norms, are the (uncapped) logit."""
    model, step = tiny_model(family), 3
    token, query = TRIAL.generated_ids[step], TRIAL.n_tokens - 1 + step
    ids = [*TRIAL.prompt_ids, *TRIAL.generated_ids]
    with torch.inference_mode():
        logits, cache = model.hooked.run_with_cache(torch.tensor([ids]))
    norm = model.final_norm()
    scale = norm.scale(cache[f"blocks.{model.n_layers - 1}.hook_resid_post"][0, query])
    u = norm.pull_back(model.unembed([token]))[0] / scale
    total = phi(model, TRIAL, steps=[step], variant="exact").sum()
    total += u @ cache["blocks.0.hook_resid_pre"][0, query]
    for layer in range(model.n_layers):
        total += u @ cache[f"blocks.{layer}.hook_mlp_out"][0, query]
        b_O, post = model.b_O(layer), model.post_attention_norm(layer)
        if b_O is not None:
            assert post is None
            total += u @ b_O
    total += model.unembed([token])[0] @ norm.bias + model.unembed_bias([token])[0]
    logit = logits[0, query, token]
    cap = {"gemma2": 3.0}.get(family)
    wanted = cap * torch.atanh(logit.double() / cap) if cap else logit
    assert float(total) == pytest.approx(float(wanted), abs=2e-4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "olmo3"])
def test_exact_attention_is_what_enters_the_residual(tiny_model, family):
    """A05: summed over heads and keys, exact phi is u.(resid_mid - resid_pre), post-norm included."""
    model, query = tiny_model(family), TRIAL.n_tokens - 1 + 3
    ids = [*TRIAL.prompt_ids, *TRIAL.generated_ids]
    with torch.inference_mode():
        _, cache = model.hooked.run_with_cache(torch.tensor([ids]))
    norm = model.final_norm()
    scale = norm.scale(cache[f"blocks.{model.n_layers - 1}.hook_resid_post"][0, query])
    u = norm.pull_back(model.unembed([ids[query + 1]]))[0] / scale
    exact = phi(model, TRIAL, steps=[3], variant="exact").sum((1, 2, 3))
    paper = phi(model, TRIAL, steps=[3]).sum((1, 2, 3))
    for layer in range(model.n_layers):
        added = cache[f"blocks.{layer}.hook_resid_mid"][0, query] - cache[f"blocks.{layer}.hook_resid_pre"][0, query]
        assert float(exact[layer]) == pytest.approx(float(u @ added), abs=1e-4)
    assert (exact - paper).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_folded_is_raw_u_times_the_gain(tiny_model, family):
    model = tiny_model(family)
    token = TRIAL.generated_ids[3]
    gain = model.final_norm().gain
    u = model.unembed([token])[0]
    folded, paper = phi(model, TRIAL, variant="folded"), phi(model, TRIAL)
    assert (folded - paper).abs().max() > 1e-3
    last = model.n_layers - 1
    with torch.inference_mode():
        _, cache = model.hooked.run_with_cache(torch.tensor([[*TRIAL.prompt_ids, *TRIAL.generated_ids]]))
    z = cache[f"blocks.{last}.attn.hook_z"][0, TRIAL.n_tokens + 2].reshape(model.n_heads, model.d_head)
    wanted = torch.einsum("hd,hdm,m->h", z, model.W_O(last), u * gain)
    torch.testing.assert_close(folded[last, :, 0].sum(-1), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "olmo3", "gpt2"])
@pytest.mark.parametrize("variant", ["paper", "folded", "exact"])
def test_scores_are_the_contrast_of_phi(tiny_model, family, variant):
    """score_heads and phi share one definition in every variant."""
    model = tiny_model(family)
    full = phi(model, TRIAL, variant=variant)[:, :, 0]
    (start, end), n = TRIAL.needle_span, full.shape[-1]
    inside = full[..., start:end].sum(-1)
    outside = full.sum(-1) - inside
    wanted = inside - (end - start) / (n - (end - start)) * outside
    scores = score_heads(model, TRIAL, ["locos", "dla"], variant)
    np.testing.assert_allclose(scores["locos"].per_trial[0], wanted, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(scores["dla"].per_trial[0], full.sum(-1), atol=1e-5, rtol=1e-4)
    assert ("not logits" in scores["locos"].provenance["detector"]["units"]) == (variant != "exact")


def test_unknown_variant(tiny_model):
    with pytest.raises(ValueError, match="paper, folded, exact"):
        score_heads(tiny_model("llama"), TRIAL, variant="raw")
