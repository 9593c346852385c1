"""Rewinding a cache is as if the later tokens had never been run (sliding windows included)."""

from __future__ import annotations

import pytest
import torch

from tests import tiny

IDS = tiny.words(40)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("n_prompt", [6, 20, 33])
def test_rewind(tiny_model, family, n_prompt):
    """Prefill, decode 5 tokens, rewind to 4 before the end, run on: same logits and values as from scratch."""
    model, back = tiny_model(family), n_prompt - 4
    cache, _ = model.prefill(IDS[:n_prompt], rewind_to=back, room=5)
    for token in IDS[n_prompt : n_prompt + 5]:
        model.extend(cache, [token])
    cache.rewind(back)
    assert cache.length == back
    reads = {}
    logits = model.segment(IDS[back : n_prompt + 2], cache, lambda read: reads.__setitem__(read.layer, read))
    whole = {}
    wanted = model.segment(IDS[: n_prompt + 2], None, lambda read: whole.__setitem__(read.layer, read))
    torch.testing.assert_close(logits, wanted[back:], atol=1e-4, rtol=1e-4)
    for layer, read in reads.items():
        torch.testing.assert_close(read.pattern, whole[layer].pattern[:, back:, read.first_key :], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(read.values, whole[layer].values[read.first_key :], atol=1e-5, rtol=1e-4)
        assert read.first_key + read.pattern.shape[-1] == n_prompt + 2
        assert (whole[layer].pattern[:, back:, : read.first_key] == 0).all()


def test_a_lost_window_is_an_error(tiny_model):
    model = tiny_model("mistral")
    cache = model.new_cache()
    model.extend(cache, IDS[:20])
    with pytest.raises(RuntimeError, match="slides"):
        cache.rewind(10)


def test_decoding_is_greedy_whatever_the_generation_config_says():
    """A24: several end tokens, and sampling defaults that must not apply."""
    from locos_tl import load_model

    hf = tiny.hf_model("llama")
    plain = load_model(hf, tokenizer=tiny.tokenizer())
    cache, logits = plain.prefill(IDS[:20], 19)
    first = plain.decode(cache, logits, 12).ids
    hf.generation_config.update(do_sample=True, temperature=0.7, eos_token_id=[1, first[4]])
    model = load_model(hf, tokenizer=tiny.tokenizer())
    runs = []
    for _ in range(2):
        cache, logits = model.prefill(IDS[:20], 19)
        runs.append(model.decode(cache, logits, 12))
    stop = first.index(first[4])
    assert runs[0].ids == runs[1].ids == first[:stop]
    assert runs[0].stop_token_id == first[4]
    assert len(runs[0].margins) == stop + 1


def test_decode_equals_no_cache(tiny_model):
    """Cached decoding picks the arg-max of the uncached forward at every step, on every kind of cache."""
    for family in tiny.FAMILIES:
        model = tiny_model(family)
        cache, logits = model.prefill(IDS[:20], 19, room=6)
        ids = list(IDS[:20])
        for token in model.decode(cache, logits, 6).ids:
            assert int(model.forward(ids)[-1].argmax()) == token, family
            ids.append(token)


def test_a_newline_ends_decoding(tiny_model, monkeypatch):
    model = tiny_model("llama")
    newline = tiny.tokenizer().convert_tokens_to_ids("\n")
    assert model.is_stop(newline)
    assert model.is_stop(1)
    assert not model.is_stop(3)


def test_non_finite_logits_are_an_error(tiny_model):
    model = tiny_model("llama")
    with pytest.raises(FloatingPointError, match="not finite"):
        model.decode(model.new_cache(), torch.full((96,), float("nan")), 3)
