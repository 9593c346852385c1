"""Multimodal wrappers: their language model is read, by itself; what has none of its own is refused."""

from __future__ import annotations

import subprocess

import pytest
import torch

from locos_tl import load_model, phi
from locos_tl.models.wrappers import text_only
from tests import tiny

TRIAL = tiny.trial(30)


def test_a_plain_language_model_is_itself():
    hf = tiny.hf_model("llama")
    assert text_only(hf) is hf


def test_the_language_model_of_a_wrapper_gives_its_logits():
    wrapper = tiny.hf_model("gemma3-multimodal")
    assert type(wrapper).__name__ == "Gemma3ForConditionalGeneration"
    ids = torch.tensor([tiny.words(30)])
    with torch.inference_mode():
        wanted = wrapper(input_ids=ids).logits[0]
    model = load_model(wrapper, tokenizer=tiny.tokenizer())
    torch.testing.assert_close(model.forward(tiny.words(30)), wanted, atol=1e-5, rtol=1e-5)
    assert model.info.name == "Gemma3ForConditionalGeneration"
    assert model.windows == (8, None)
    assert model.stop_ids == {1}
    assert not any("vision" in name for name, _ in model.hooked.named_parameters())


def test_weights_are_shared_and_the_wrapper_stays_whole():
    wrapper = tiny.hf_model("gemma3-multimodal")
    before = {name: p.data_ptr() for name, p in wrapper.named_parameters()}
    alone = text_only(wrapper)
    assert {p.data_ptr() for p in alone.parameters()} <= set(before.values())
    assert {name: p.data_ptr() for name, p in wrapper.named_parameters()} == before
    assert all(not p.is_meta for p in (*alone.parameters(), *alone.buffers()))


def test_a_checkpoint_of_a_wrapper_is_read_from_its_folder(tmp_path):
    """As Gemma-3 from 4B on is on the Hub."""
    hf = tiny.hf_model("gemma3-multimodal")
    hf.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    wanted = phi(load_model(hf, tokenizer=tiny.tokenizer()), TRIAL)
    torch.testing.assert_close(phi(load_model(tmp_path), TRIAL), wanted)


def test_nothing_is_installed_while_loading(monkeypatch):
    """transformer-lens 4.3 runs pip when it hooks a multimodal model without torchvision."""

    def never(*args, **kwargs):
        raise AssertionError(f"started {args}")

    for name in ("check_call", "run", "Popen"):
        monkeypatch.setattr(subprocess, name, never)
    load_model(tiny.hf_model("gemma3-multimodal"), tokenizer=tiny.tokenizer())


def test_a_wrapper_whose_language_model_is_nowhere_alone_is_refused():
    """Qwen2-VL's text model turns positions by time, height and width: it is no Qwen2."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    text = {k: v for k, v in tiny._COMMON.items() if k != "head_dim"} | {"num_hidden_layers": 1}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 48, "num_heads": 2}
    hf = Qwen2VLForConditionalGeneration._from_config(Qwen2VLConfig(text_config=text, vision_config=vision))
    with pytest.raises(ValueError, match=r"Qwen2VLForConditionalGeneration wraps a Qwen2VLTextModel.*Gemma-3"):
        load_model(hf, tokenizer=tiny.tokenizer())
