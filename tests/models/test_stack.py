"""Runs that enter at a layer, and edits, give what whole runs with TransformerLens hooks give."""

from __future__ import annotations

import pytest
import torch

from locos_tl.models.stack import SITES, hooked_stack, plain_stack, prefix_cache, stack_for
from tests import tiny

PREFIX = 13


def _views(model):
    return [stack for stack in (plain_stack(model), hooked_stack(model)) if stack is not None]


def _close(a, b, tolerance=2e-4):
    return torch.allclose(a.float(), b.float(), atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_entering_at_any_layer_gives_the_logits_of_a_whole_run(tiny_model, family):
    """Longer than the windows of the sliding families; the last stop is the final norm alone."""
    model = tiny_model(family)
    ids = tiny.words(30)
    whole = model.forward(ids)
    for stack in _views(model):
        cache = prefix_cache(model, stack, ids[:PREFIX])
        rest = model.tokens(ids[PREFIX:])
        with stack.streams(range(stack.n_layers + 1)) as streams:
            logits = stack.run(rest, cache=cache)
        assert _close(logits[0], whole[PREFIX:])
        for layer in range(stack.n_layers + 1):
            pair = torch.cat([streams[layer], streams[layer].flip(-1)])
            again = stack.run(rest, enter=(layer, pair), cache=cache, keep=2)
            assert again.shape[:2] == (2, 2)
            assert _close(again[0], whole[-2:])
            assert not _close(again[1], whole[-2:])
        assert _close(stack.run(rest, cache=cache)[0], whole[PREFIX:]), "the cache or a layer was changed"


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_an_edit_means_the_same_in_both_views(tiny_model, family):
    """A17, A21: the value that is edited has the documented shape and is the one the model goes on with."""
    model = tiny_model(family)
    ids = model.tokens(tiny.words(20))
    g = model.geometry
    plain = plain_stack(model)
    for at in SITES:
        heads = g.n_key_value_heads if at in ("k", "v") else g.n_heads
        seen = {}

        def turn(value, at=at, seen=seen):
            seen[at] = value
            return value.flip(-1) * 0.5  # a factor alone would be lost in a query norm

        results = []
        for stack in _views(model):
            if not stack.can_edit(at):
                continue
            before = stack.run(ids)
            with stack.edit(1, at, turn):
                edited = stack.run(ids)
            assert _close(stack.run(ids), before), "an edit outlived its block"
            assert (edited - before).abs().max() > 1e-3
            wanted = (1, g.n_heads, 20, 20) if at == "pattern" else (1, 20, heads, g.d_head)
            assert seen[at].shape == wanted
            results.append((edited, seen[at]))
        assert all(_close(results[0][0], r[0]) and _close(results[0][1], r[1]) for r in results)
    if plain is not None:
        assert plain.can_edit("z")
        assert not plain.can_edit("pattern")


def test_the_fastest_view_that_has_the_site_is_taken(tiny_model):
    assert stack_for(tiny_model("llama"), ["q", "z"]) is plain_stack(tiny_model("llama"))
    assert stack_for(tiny_model("gpt2"), ["z"]) is plain_stack(tiny_model("gpt2"))
    assert stack_for(tiny_model("gpt2"), ["q"]) is not plain_stack(tiny_model("gpt2"))
    with pytest.raises(ValueError, match=r"unknown site 'resid'.*pattern"):
        stack_for(tiny_model("llama"), ["resid"])


@torch.inference_mode()
def test_an_error_in_an_edit_leaves_nothing_behind(tiny_model):
    model = tiny_model("llama")
    ids = model.tokens(tiny.words(12))
    for stack in _views(model):
        with stack.streams(range(2)) as streams:
            before = stack.run(ids)

        def fail(value):
            raise RuntimeError("inside")

        with pytest.raises(RuntimeError, match="inside"), stack.edit(1, "z", fail):
            stack.run(ids, enter=(1, streams[1]))
        assert torch.equal(stack.run(ids), before)
