"""`check` passes on every family, and fails when something is really wrong."""

from __future__ import annotations

import pytest
import torch

from locos_tl.models.check import refuse_broken
from locos_tl.models.hooked import HookedModel
from tests import tiny


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_passes(tiny_model, family):
    report = tiny_model(family).check()
    assert report, report.rows
    by_name = {row.name: row for row in report.rows}
    if family in tiny.SLIDING:
        assert by_name["sliding windows align with absolute positions"].passed is True
    if family != "gemma2":
        assert by_name["logits against plain transformers (eager)"].error < 1e-5
        assert by_name["logits against the fused-attention view"].passed is True
    assert by_name["exact decomposition sums to the logit"].passed is True


@pytest.mark.bundled
def test_bundled_model_passes(bundled):
    assert bundled.check(), bundled.check().rows


def test_an_ignored_cache_is_refused(tiny_model, monkeypatch):
    """The fault of transformers 5.24: the cache is accepted and silently not used."""
    model = tiny_model("llama")
    backend = model.backend
    run = type(backend).run
    monkeypatch.setattr(type(backend), "run", lambda self, ids, cache, *a, **k: run(self, ids, None, *a, **k))
    broken = HookedModel(backend, model.fused, model.tokenizer, model.info)
    with pytest.raises(RuntimeError, match=r"transformers 5\.\d+.*transformers>=5\.9,<5\.24"):
        refuse_broken(broken)


def test_a_gated_attention_is_refused(tiny_model):
    """Whatever comes between the values and the output projection would silently be missing from phi."""
    from locos_tl import load_model

    model = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    model.hooked.blocks[1].attn.o.hook_in.add_hook(lambda z, hook: z * 0.5, is_permanent=True)
    with pytest.raises(RuntimeError, match=r"sum of phi.*such as a gate.*not supported"):
        refuse_broken(model)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_half_precision_is_not_refused(family, tmp_path):
    from locos_tl import load_model

    model = load_model(tiny.hf_model(family).to(torch.bfloat16), tokenizer=tiny.tokenizer())
    assert model.info.dtype == "bfloat16"
    assert model.check(), model.check().rows


def test_values_that_are_not_the_attended_ones_are_refused(tiny_model, monkeypatch):
    from locos_tl.models.kvcache import HFCache

    held = HFCache.values_before
    monkeypatch.setattr(HFCache, "values_before", lambda self, layer, start: held(self, layer, start) * 1.01)
    with pytest.raises(RuntimeError, match="hook_v"):
        refuse_broken(tiny_model("llama"))


def test_other_weights_in_the_fused_view_are_noticed(tiny_model):
    from locos_tl.models.backends import FusedView, shared_copy

    good = tiny_model("llama")
    other = FusedView(shared_copy(tiny.hf_model("llama", seed=5), "sdpa"))
    report = HookedModel(good.backend, other, good.tokenizer, good.info).check()
    failed = {row.name for row in report.rows if row.passed is False}
    assert "logits against the fused-attention view" in failed
    assert not report


def test_a_wrong_output_projection_is_noticed(tiny_model, monkeypatch):
    """A03's kin: heads cut from the wrong axis of o_proj do not sum to z W_O."""
    model = tiny_model("llama-square")
    W_O = type(model.backend).W_O
    monkeypatch.setattr(
        type(model.backend), "W_O", lambda self, layer: W_O(self, layer).reshape(48, 48).T.reshape(3, 16, 48)
    )
    failed = {row.name for row in model.check().rows if row.passed is False}
    assert "exact decomposition sums to the logit" in failed


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_hook_points_hold_what_they_are_named_for(tiny_model, family):
    """A17: shapes and values of pattern, v and z against a hand computation from the weights."""
    model = tiny_model(family)
    ids = tiny.words(20)
    with torch.inference_mode():
        _, cache = model.hooked.run_with_cache(torch.tensor([ids]))
    for layer in range(model.n_layers):
        name = f"blocks.{layer}"
        pattern, v = cache[f"{name}.attn.hook_pattern"][0], cache[f"{name}.attn.hook_v"][0]
        z = cache[f"{name}.attn.hook_z"][0].reshape(20, model.n_heads, model.d_head)
        assert pattern.shape == (model.n_heads, 20, 20)
        assert v.numel() == 20 * model.n_key_value_heads * model.d_head
        v = v.reshape(20, model.n_key_value_heads, model.d_head)
        each = v.repeat_interleave(model.geometry.group_size, dim=1)
        torch.testing.assert_close(torch.einsum("hqk,khd->qhd", pattern, each), z, atol=1e-5, rtol=1e-4)
        written = torch.einsum("qhd,hdm->qm", z, model.W_O(layer))
        if model.b_O(layer) is not None:
            written = written + model.b_O(layer)
        post = model.post_attention_norm(layer)
        if post is not None:
            written = post(written)
        torch.testing.assert_close(written, cache[f"{name}.hook_attn_out"][0], atol=1e-4, rtol=1e-3)
        window = model.windows[layer]
        seen = (pattern > 0).sum(-1)
        limit = torch.arange(1, 21).clamp(max=window or 20)
        assert (seen == limit).all(), "sliding window one too wide or on the wrong layers"


def test_windows_are_those_of_the_config(tiny_model):
    assert tiny_model("gemma3").windows == (8, 8, 8, 8, 8, None)
    assert tiny_model("gemma2").windows == (8, None)
    assert tiny_model("olmo3").windows == (8, 8, 8, None)
    assert tiny_model("mistral").windows == (8, 8)
    assert tiny_model("llama").windows == (None, None)


@pytest.mark.parametrize("length", [0, 7, 257, 100_000])
def test_impossible_probe_lengths_are_refused(tiny_model, length):
    from locos_tl.models.check import check_model

    with pytest.raises(ValueError, match="8 to 256 tokens"):
        check_model(tiny_model("llama"), length=length)
