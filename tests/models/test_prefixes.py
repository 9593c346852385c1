"""Prompts that begin alike are read once, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locos_tl.models.prefixes import PrefixStore, boundaries
from tests import tiny


def test_prompts_are_cut_where_they_part():
    a, b = list(range(100)), list(range(1000, 1100))
    prompts = [a + b, b, a[:50] + b, a + a, a[:50] + b]
    order, cuts = boundaries(prompts, least=10)
    assert order == [3, 0, 2, 4, 1]
    assert cuts == [(50, 100), (), (50,), (50, 100), (50,)]  # equal prompts part nowhere before their end


def test_cuts_that_lie_close_are_left_out():
    a = list(range(100))
    prompts = [[*a[:40], 900], [*a[:45], 901], [*a[:80], 902], [*a[:80], 903]]
    _, cuts = boundaries(prompts, least=32)
    assert cuts == [(40,), (40,), (40, 80), (40, 80)]


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=8))
@settings(max_examples=100)
def test_a_cut_is_always_shared_and_the_order_holds_everyone(prompts):
    order, cuts = boundaries(prompts, least=1)
    assert sorted(order) == list(range(len(prompts)))
    for place, own in enumerate(cuts):
        assert list(own) == sorted(set(own))
        for cut in own:
            assert 0 < cut < len(prompts[place])
            twins = [other for other in range(len(prompts)) if other != place]
            assert any(prompts[other][:cut] == prompts[place][:cut] for other in twins)


@pytest.mark.parametrize("place", ["device", "cpu"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_a_prompt_from_the_store_is_the_same_prompt(tiny_model, family, place):
    model = tiny_model(family)
    base = tiny.words(60, seed=1)
    prompts = [[*base, *tiny.words(20, seed=s)] for s in (2, 3)] + [[*base[:40], *tiny.words(30, seed=4)]]
    order, cuts = boundaries(prompts, least=8)
    store = PrefixStore(model, place)
    for at in order:
        ids = prompts[at]
        cache, logits = model.prefill(ids, len(ids) - 8, 4, store=store, cuts=cuts[at])
        wanted = model.forward(ids)[-1]
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
        model.decode(cache, logits, 4)
        cache.rewind(len(ids) - 8)
        torch.testing.assert_close(model.extend(cache, ids[-8:]), wanted, atol=1e-4, rtol=1e-4)
    assert store.read == sum(map(len, prompts))
    assert store.reused == 40 + 60
    assert store.share == pytest.approx(100 / store.read)


def test_numbers_do_not_depend_on_what_ran_before(tiny_model):
    model = tiny_model("llama")
    base = tiny.words(60, seed=1)
    prompts = [[*base, *tiny.words(20, seed=s)] for s in (2, 3, 5)]
    order, cuts = boundaries(prompts, least=8)
    store, fresh = PrefixStore(model), []
    together = [model.prefill(prompts[i], 70, store=store, cuts=cuts[i])[1] for i in order]
    for i in order:
        fresh.append(model.prefill(prompts[i], 70, store=PrefixStore(model), cuts=cuts[i])[1])
    for one, other in zip(together, fresh, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_the_budget_bounds_what_is_kept(tiny_model):
    model = tiny_model("llama")
    base = tiny.words(60, seed=1)
    prompts = [[*base, *tiny.words(20, seed=s)] for s in (2, 3)]
    order, cuts = boundaries(prompts, least=8)
    store = PrefixStore(model, budget=10)
    for i in order:
        model.prefill(prompts[i], 70, store=store, cuts=cuts[i])
        assert store.nbytes <= 10
    assert store.reused == 0
    off = PrefixStore(model, "off")
    for i in order:
        model.prefill(prompts[i], 70, store=off, cuts=cuts[i])
    assert (off.reused, off.nbytes) == (0, 0)
    with pytest.raises(ValueError, match="prefixes must be one of device, cpu, off, got 'disk'"):
        PrefixStore(model, "disk")
