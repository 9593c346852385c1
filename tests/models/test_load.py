"""Loading from every kind of source, and what loading leaves untouched (A07, A08, A17, A20, A26, A30, A31)."""

from __future__ import annotations

import gc
import shutil
import weakref

import pytest
import torch

from locos_tl import load_model, phi, score_heads
from locos_tl.models.load import _placeholder_tokenizer
from tests import tiny

TRIAL = tiny.trial(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint in a folder whose name says nothing of its architecture."""
    path = tmp_path_factory.mktemp("checkpoints") / "my model v1"
    tiny.hf_model("llama").save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


def test_local_folder_offline(folder):
    """A30: the architecture comes from the config, and nothing is asked of the network."""
    model = load_model(folder)
    assert (model.n_layers, model.n_heads, model.n_key_value_heads, model.d_head, model.d_model) == (2, 4, 2, 16, 48)
    again = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    torch.testing.assert_close(phi(model, TRIAL), phi(again, TRIAL), atol=1e-6, rtol=1e-5)
    assert model.check()


def test_pair_and_bridge_give_the_same_phi():
    from transformer_lens.model_bridge import TransformerBridge

    wanted = phi(load_model((tiny.hf_model("gemma3"), tiny.tokenizer())), TRIAL)
    hf = tiny.hf_model("gemma3")
    hf.config.architectures = [type(hf).__name__]
    bridge = TransformerBridge.boot_transformers("x", hf_model=hf, tokenizer=_placeholder_tokenizer(), device="cpu")
    model = load_model(bridge, tokenizer=tiny.tokenizer())
    assert model.hooked is bridge
    assert model.info.prefill == "fused"
    torch.testing.assert_close(phi(model, TRIAL), wanted)
    assert model.check()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_users_model_is_left_alone(family):
    """A20: same logits before and after, no hook, no other attention, and no wrapped module."""
    hf = tiny.hf_model(family)
    before, attention = hf(input_ids=torch.tensor([TRIAL.prompt_ids])).logits, hf.config._attn_implementation
    modules = [type(m) for m in hf.modules()]
    model = load_model(hf, tokenizer=tiny.tokenizer())
    score_heads(model, TRIAL)
    assert torch.equal(hf(input_ids=torch.tensor([TRIAL.prompt_ids])).logits, before)
    assert hf.config._attn_implementation == attention
    assert [type(m) for m in hf.modules()] == modules


def test_no_hooks_are_left_behind(tiny_model):
    """A20: also when something raises in the middle of a segment."""
    model = tiny_model("llama")

    def counted():
        return sum(len(point.fwd_hooks) for point in model.hooked.hook_dict.values())

    kept = []
    model.hooked.add_hook("blocks.0.attn.hook_pattern", lambda x, hook: kept.append(1))
    before = counted()
    score_heads(model, TRIAL)
    with pytest.raises(ZeroDivisionError):
        model.segment(TRIAL.prompt_ids, None, lambda read: 1 / 0)
    assert counted() == before
    assert kept  # the caller's own hook survived and fired
    model.hooked.reset_hooks()


def test_views_share_every_weight(tiny_model):
    model = tiny_model("llama")
    mine = {p.data_ptr() for p in model.hooked.parameters()}
    assert {p.data_ptr() for p in model.fused.model.parameters()} <= mine


def test_without_fused_attention_it_says_so(caplog):
    """Gemma-2's soft cap has no fused kernel here: chunked prefill on the hooked model, and a warning."""
    model = load_model(tiny.hf_model("gemma2"), tokenizer=tiny.tokenizer())
    assert model.fused is None
    assert model.info.prefill == "hooked, in chunks"
    assert "prefill runs in chunks" in caplog.text


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "llama"])
def test_chunked_prefill_gives_the_same_scores(tiny_model, family, monkeypatch):
    from dataclasses import replace

    import numpy as np

    from locos_tl.models import hooked

    model = tiny_model(family)
    trial = tiny.trial(40)
    whole = score_heads(model, trial)
    monkeypatch.setattr(hooked, "CHUNK", 7)
    chunked = hooked.HookedModel(model.backend, None, model.tokenizer, replace(model.info, prefill="hooked, in chunks"))
    parts = score_heads(chunked, trial)
    for name in whole:
        np.testing.assert_allclose(parts[name].per_trial, whole[name].per_trial, atol=1e-4, err_msg=name)


def test_rope_scaling_is_kept():
    """A26: with llama3-type scaling, logits at position 90 are those of plain transformers."""
    hf = tiny.hf_model("llama3")
    ids = tiny.words(100)
    wanted = hf(input_ids=torch.tensor([ids])).logits[0]
    model = load_model(hf, tokenizer=tiny.tokenizer())
    torch.testing.assert_close(model.forward(ids)[90], wanted[90], atol=1e-4, rtol=1e-4)
    hf.model.rotary_emb.inv_freq = load_model(tiny.hf_model("llama")).fused.model.model.rotary_emb.inv_freq
    assert not torch.allclose(hf(input_ids=torch.tensor([ids])).logits[0, 90], wanted[90], atol=1e-2)


def test_frequencies_that_change_with_the_length_limit_the_context():
    """longrope (Phi-3 with 128k): beyond the original length, cached keys and fresh ones would not go together."""
    from transformers import AutoModelForCausalLM, Phi3Config

    n = tiny._COMMON["hidden_size"] // tiny._COMMON["num_attention_heads"] // 2
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * n, "long_factor": [4.0] * n}
    rope["original_max_position_embeddings"] = 64
    config = Phi3Config(**{k: v for k, v in tiny._COMMON.items() if k != "head_dim"} | {"num_hidden_layers": 2})
    config = type(config)(**config.to_dict() | {"rope_parameters": rope, "original_max_position_embeddings": 64})
    model = load_model(AutoModelForCausalLM.from_config(config).float(), tokenizer=tiny.tokenizer())
    assert model.geometry.n_ctx == 64
    with pytest.raises(ValueError, match=r"65 tokens exceed the context limit .*\(64\)"):
        model.forward(tiny.words(65))


def test_context_limit_is_refused_never_cut(tiny_model):
    model = tiny_model("llama")
    with pytest.raises(ValueError, match=r"300 tokens exceed.*256"):
        model.forward(tiny.words(300))
    with pytest.raises(ValueError, match="256"):
        score_heads(model, tiny.trial(254))


def test_bad_sources(tmp_path):
    with pytest.raises(ValueError, match="cannot load a dict"):
        load_model({})
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_model(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_model("./not/there")
    with pytest.raises(FileNotFoundError, match="smollm2-135m"):
        load_model("someone/a-model")


@pytest.mark.parametrize(
    ("option", "message"),
    [({"device": "cuda:99"}, "device 'cuda:99'"), ({"dtype": "foo"}, "'foo'"), ({"dtype": torch.int8}, "int8")],
)
def test_unusable_device_or_dtype_is_one_clear_error(folder, option, message):
    with pytest.raises(ValueError, match=message):
        load_model(folder, **option)


def test_damaged_weights_or_missing_tokenizer(folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="weights cannot be read"):
        load_model(broken)
    weights.write_bytes(whole)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (broken / name).unlink()
    with pytest.raises(ValueError, match="no usable tokenizer"):
        load_model(broken)


def test_training_mode_is_left_alone():
    hf = tiny.hf_model("llama").train()
    load_model(hf, tokenizer=tiny.tokenizer())
    assert hf.training
    assert all(module.training for module in hf.modules())


def test_unhookable_architecture():
    from transformers import AutoModelForCausalLM, BioGptConfig

    config = BioGptConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    with pytest.raises(ValueError, match="cannot hook BioGptForCausalLM"):
        load_model(AutoModelForCausalLM.from_config(config), tokenizer=tiny.tokenizer())


def test_without_a_tokenizer_scoring_says_what_is_missing():
    model = load_model(tiny.hf_model("llama"))
    assert model.check(quick=True)
    with pytest.raises(ValueError, match="tokenizer="):
        score_heads(model, TRIAL)


def test_bfloat16_scores_are_float32(folder):
    """A25: bf16 weights with float32 scores, and no dtype clash."""
    model = load_model(folder, dtype=torch.bfloat16)
    assert model.info.dtype == "bfloat16"
    scores = score_heads(model, TRIAL)
    assert scores["locos"].per_trial.dtype == "float32"
    exact = score_heads(load_model(folder, dtype="float32"), TRIAL)
    a, b = scores["locos"].mean, exact["locos"].mean
    assert abs(a - b).max() < 0.05 * abs(b).max()


def test_a_deleted_model_is_freed(folder):
    """A31: no cycle or global keeps the weights."""
    model = load_model(folder)
    score_heads(model, TRIAL)
    weight = weakref.ref(next(iter(model.hooked.parameters())))
    del model
    gc.collect()
    assert weight() is None


def test_hub_cache_is_used_offline(folder, tmp_path, monkeypatch):
    """A Hub id that is in the local cache loads without the Hub."""
    import huggingface_hub.constants as constants

    cache = tmp_path / "hub"
    snapshot = cache / "models--someone--tiny" / "snapshots" / ("a" * 40)
    shutil.copytree(folder, snapshot)
    refs = cache / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    found = __import__("huggingface_hub").try_to_load_from_cache("someone/tiny", "config.json", cache_dir=str(cache))
    assert isinstance(found, str)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *a, **k: found)
    from locos_tl.models.hub import checkpoint_for

    assert checkpoint_for("someone/tiny") == ("someone/tiny", True)
