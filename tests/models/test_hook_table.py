"""The table of hook points is true of every family: names, axes and shapes."""

from __future__ import annotations

import pytest

from locos_tl.models.hook_table import PROBE, hook_table
from tests import tiny


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_shapes_are_what_the_axes_say(tiny_model, family):
    model = tiny_model(family)
    g = model.geometry
    sizes = {"batch": 1, "pos": PROBE, "query": PROBE, "key": PROBE, "head": g.n_heads, "kv_head": g.n_key_value_heads}
    sizes |= {"d_head": g.d_head, "d_model": g.d_model, "1": 1}
    rows = hook_table(model)
    assert len({row.hook for row in rows}) == len(rows)
    for row in rows:
        assert row.shape == " x ".join(str(sizes[axis]) for axis in row.axes.split()), row
    names = {row.hook.replace("{layer}", str(layer)) for row in rows for layer in range(model.n_layers)}
    assert names <= set(model.hooked.hook_dict)


def test_what_a_model_has_of_its_own_is_told(tiny_model):
    by_hook = {row.hook: row for row in hook_table(tiny_model("gemma3"))}
    assert "8 tokens in 5 of 6 layers" in by_hook["blocks.{layer}.attn.hook_pattern"].holds
    assert "one for each 4 query heads" in by_hook["blocks.{layer}.attn.hook_v"].holds
    assert by_hook["blocks.5.hook_resid_post"].read_for
    assert "blocks.{layer}.attn.hook_out" in by_hook  # the norm behind the attention
    plain = hook_table(tiny_model("gpt2"))
    assert "kv_head" not in " ".join(row.axes for row in plain)
    assert not any(row.hook.endswith("hook_out") for row in plain)


def test_every_hook_that_is_edited_is_in_the_table(tiny_model):
    from locos_tl.models.stack import SITES

    hooks = {row.hook for row in hook_table(tiny_model("llama"))}
    assert {f"blocks.{{layer}}.attn.hook_{site}" for site in SITES} <= hooks


def test_no_hook_stays_on_the_model(tiny_model):
    model = tiny_model("llama")
    hook_table(model)
    assert all(not point.fwd_hooks for point in model.hooked.hook_dict.values())


def test_a_hook_that_is_not_there_is_told(tiny_model, monkeypatch):
    model = tiny_model("llama")
    hooks = dict(model.hooked.hook_dict)
    del hooks["blocks.0.hook_mlp_out"]
    monkeypatch.setattr(type(model.hooked), "hook_dict", property(lambda _: hooks))
    (row,) = (row for row in hook_table(model) if row.hook.endswith("hook_mlp_out"))
    assert row.shape == "not there"
