"""Attribution patching against finite differences of real patches, and against exact patching (A19)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from locos_tl.causal.attribution import attribution_patching, gradients
from locos_tl.causal.pair_runs import PairRuns
from locos_tl.causal.patching import total_effects
from tests import tiny


def _nudged(runs, layer, at, head, direction, size):
    """Metric with a small step along ``direction`` added to one head."""

    def edit(value):
        out = value.clone()
        target = out.transpose(1, 2) if at == "pattern" else out
        target[0, :, head] += size * direction
        return out

    return float(runs.patched(0, runs.streams[0], [(layer, at, edit)])[0])


@pytest.mark.parametrize("at", ["z", "q", "k", "v", "pattern"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "gemma2"])
def test_gradients_against_central_differences(tiny_model, tiny_pair, family, at):
    model, pair = tiny_model(family), tiny_pair()
    runs = PairRuns(model, pair, [at], "logit_diff")
    found = gradients(runs, at)
    assert len(found) == model.n_layers
    generator = np.random.default_rng(0)
    n_heads = found[0].shape[1]
    for _ in range(5):
        layer, head = int(generator.integers(model.n_layers)), int(generator.integers(n_heads))
        gradient = found[layer][:, head]
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0
        # Along the gradient, where the difference is largest against float32 rounding.
        direction = gradient / gradient.norm()
        size = 2e-2 if at != "pattern" else 5e-3
        slope = _nudged(runs, layer, at, head, direction, size) - _nudged(runs, layer, at, head, direction, -size)
        assert slope / (2 * size) == pytest.approx(float(gradient.norm()), rel=0.01, abs=2e-3)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_gives_gradients_and_leaves_nothing_behind(tiny_model, tiny_pair, family):
    model, pair = tiny_model(family), tiny_pair()
    before = model.forward(pair.clean_ids)
    effects = attribution_patching(model, pair)
    assert np.isfinite(effects.per_trial).all()
    assert (np.abs(effects.per_trial) > 0).all()
    assert torch.equal(model.forward(pair.clean_ids), before)
    assert all(parameter.grad is None for parameter in model.hooked.parameters())


def test_exact_where_the_metric_is_linear_in_the_head(tiny_pair):
    """In the last layer, without MLP and with a final norm that hardly moves, the estimate is the effect."""
    from locos_tl import load_model

    hf = tiny.hf_model("llama")
    with torch.no_grad():
        hf.model.layers[-1].mlp.down_proj.weight.zero_()
        hf.model.layers[-1].self_attn.o_proj.weight.mul_(1e-3)
    model, pair = load_model(hf, tokenizer=tiny.tokenizer()), tiny_pair()
    exact, estimate = total_effects(model, pair), attribution_patching(model, pair)
    scale = np.abs(exact.per_trial[0, -1]).max()
    np.testing.assert_allclose(estimate.per_trial[0, -1] / scale, exact.per_trial[0, -1] / scale, atol=0.02)


def test_a_model_built_under_inference_mode_is_refused(tiny_pair):
    from locos_tl import load_model

    with torch.inference_mode():
        hf = tiny.hf_model("llama")
    with pytest.raises(RuntimeError, match=r"built under torch.inference_mode"):
        attribution_patching(load_model(hf, tokenizer=tiny.tokenizer()), tiny_pair())


def test_positions_are_respected(tiny_model, tiny_pair):
    model, pair = tiny_model("llama"), tiny_pair()
    runs = PairRuns(model, pair, ["z"], "logit_diff")
    gradient = gradients(runs, "z")[0]
    delta = (runs.clean[0, "z"] - runs.corrupt[0, "z"]) * gradient
    needle = attribution_patching(model, pair, positions="needle").per_trial[0, 0]
    at = slice(9 - runs.start, 12 - runs.start)
    np.testing.assert_allclose(needle, delta[at].sum((0, 2)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.bundled
def test_close_to_exact_patching_on_the_bundled_model(bundled):
    from locos_tl.causal.pairs import PromptPair

    pair = PromptPair.from_text(
        bundled,
        "When Mary and John went to the shop, John gave a drink to",
        "When Mary and John went to the shop, Mary gave a drink to",
        answer=" Mary",
        counterfactual=" John",
    )
    found = total_effects(bundled, pair).agreement(attribution_patching(bundled, pair))
    assert found["pearson"] > 0.7
    assert found["overlap@10"] >= 0.6
