"""Ablation does by hooks what editing the weights by hand does, wherever the model runs (A02, A03, A20, A27)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from locos_tl import load_model
from locos_tl.causal.ablation import MODES, ablated_rows, ablation
from locos_tl.causal.means import ABLATED, calibrate_means
from locos_tl.models.stack import hooked_stack, plain_stack
from tests import tiny

IDS = tiny.words(26)
HEADS = [(1, 2), (0, 1)]


@cache
def means_of(model):
    return calibrate_means(model, [tiny.trial(n) for n in (20, 25, 33)])


def _attention(hf, layer):
    """The attention module of a layer, whatever the family calls it."""
    body = hf.get_decoder()
    block = (body.h if hasattr(body, "h") else body.layers)[layer]
    return next(getattr(block, name) for name in ("self_attn", "attention", "attn") if hasattr(block, name))


def without_output(hf, heads, d_head):
    """Zero the output projection's inputs of these heads: what "zero at z" means."""
    with torch.no_grad():
        for layer, head in heads:
            attn, rows = _attention(hf, layer), slice(head * d_head, (head + 1) * d_head)
            if hasattr(attn, "c_proj"):
                attn.c_proj.weight[rows] = 0
            else:
                (attn.o_proj if hasattr(attn, "o_proj") else attn.dense).weight[:, rows] = 0
    return hf


def with_fixed_query(hf, heads, d_head, means):
    """Give these heads a constant query, before rotary embedding and query norm: what "mean at q" means."""
    with torch.no_grad():
        for layer, head in heads:
            attn, first, value = _attention(hf, layer), head * d_head, means.mean["q"][layer, head]
            if hasattr(attn, "c_attn"):
                rows = slice(first, first + d_head)
                attn.c_attn.weight[:, rows], attn.c_attn.bias[rows] = 0, value
                continue
            name = next(n for n in ("q_proj", "qkv_proj", "query_key_value") if hasattr(attn, n))
            q = getattr(attn, name)
            if name == "query_key_value":  # query, key and value of each head in turn
                first *= 3
            rows = slice(first, first + d_head)
            if q.bias is None:
                q.bias = torch.nn.Parameter(torch.zeros(q.out_features))
            q.weight[rows], q.bias[rows] = 0, value
    return hf


def _same(a, b, tolerance=1e-5):
    return (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


def _said(model, ids, n=8):
    cache = model.new_cache()
    logits = model.extend(cache, ids)
    return logits, model.decode(cache, logits, n).ids


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("at", ABLATED)
def test_ablation_equals_weights_edited_by_hand(tiny_model, family, at):
    """A03; with query norm (qwen3, gemma3, olmo3), windows, and 4 x 16 = 64 heads beside a stream of 48."""
    model = tiny_model(family)
    heads = [(1, 2), (0, 1)] if model.n_heads > 2 else [(1, 0)]
    hf, d = tiny.hf_model(family), model.d_head
    means = means_of(model)
    if at == "z":
        mode, edited = "zero", without_output(hf, heads, d)
    else:
        mode, edited = "mean", with_fixed_query(hf, heads, d, means)
    with torch.inference_mode():
        wanted = edited(torch.tensor([IDS])).logits[0]
    hand = load_model(edited, tokenizer=tiny.tokenizer())
    before = model.forward(IDS)
    with ablation(model, heads, at=at, mode=mode, means=means):
        assert _same(model.forward(IDS), wanted)
        logits, ids = _said(model, IDS)
    assert _same(logits, wanted[-1], 5e-5)
    assert ids == _said(hand, IDS)[1]
    assert (wanted - before).abs().max() > 1e-3
    assert torch.equal(model.forward(IDS), before)


def test_a_head_is_no_slice_of_the_stream(tiny_model):
    """A03: on a square model, zeroing residual coordinates would run without an error too."""
    model = tiny_model("llama-square")
    with ablation(model, [(1, 0)], at="z", mode="zero"):
        ablated = model.forward(IDS)

    def slice_of_output(value, hook):
        value[:, :, : model.d_head] = 0
        return value

    with model.hooks([("blocks.1.hook_attn_out", slice_of_output)]):
        assert not _same(model.forward(IDS), ablated, 1e-3)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_cached_steps_equal_one_uncached_run(tiny_model, family):
    """Every mode, and whatever the chunks; "resample" puts the same activation at the same absolute position."""
    model = tiny_model(family)
    for at in ABLATED:
        for mode in MODES:
            with ablation(model, [(0, 0), (1, 2)], at=at, mode=mode, means=means_of(model)):
                whole = model.forward(IDS)
                for cuts in ((25,), (3, 4, 20), (9, 18, 19, 20, 21, 22)):
                    cache = model.new_cache()
                    for start, end in zip((0, *cuts), (*cuts, 26), strict=True):
                        logits = model.extend(cache, IDS[start:end])
                        assert _same(logits, whole[end - 1], 1e-4), (at, mode, cuts)
                cache = model.fill(IDS[:20])  # the hooked segment on a cache that the fused view filled
                assert _same(model.segment(IDS[20:], cache, lambda read: None), whole[20:], 1e-4)


def test_resampled_activations_are_drawn_by_the_seed(tiny_model):
    model = tiny_model("llama")
    runs = []
    for seed in (1, 1, 2):
        with ablation(model, HEADS, mode="resample", means=means_of(model), seed=seed):
            runs.append(model.forward(IDS))
    assert torch.equal(runs[0], runs[1])
    assert not _same(runs[0], runs[2], 1e-3)


def test_resampled_activations_come_from_the_calibration(tiny_model):
    model, means = tiny_model("llama"), means_of(tiny_model("llama"))
    seen = {}
    with ablation(model, [(1, 2), (1, 3)], at="z", mode="resample", means=means):
        hook = ("blocks.1.attn.hook_z", lambda value, hook: seen.update(z=value[0].clone()))
        with model.hooks([hook]):
            model.forward(IDS)
    distance = (seen["z"][:, None, 2:] - means.sample["z"][None, :, 1, 2:]).abs().amax((2, 3))
    assert distance.min(1).values.max() == 0, "both heads at a position come from one calibration position"
    assert len(set(distance.argmin(1).tolist())) > 10


def activations(model) -> dict[str, torch.Tensor]:
    """What layer 1 computes, by TransformerLens hooks."""
    seen = {}

    def keep(name):
        return lambda value, hook: seen.update({name: value[0].clone()})

    with model.hooks([(f"blocks.1.attn.hook_{name}", keep(name)) for name in ("q", "k", "v", "pattern")]):
        model.forward(IDS)
    return seen


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt2"])
def test_only_that_query_head_changes(tiny_model, family):
    """Grouped queries: the patterns of the other heads stay, and so do keys and values, bit for bit."""
    model = tiny_model(family)

    before = activations(model)
    with ablation(model, [(1, 1)], means=means_of(model)):
        after = activations(model)
    others = [0, 2, 3]
    assert torch.equal(after["k"], before["k"])
    assert torch.equal(after["v"], before["v"])
    assert torch.equal(after["q"][:, others], before["q"][:, others])
    assert torch.equal(after["pattern"][others], before["pattern"][others])
    assert (after["pattern"][1] - before["pattern"][1]).abs().max() > 1e-3
    assert torch.equal(after["q"][:, 1], means_of(model).mean["q"][1, 1].expand(len(IDS), -1))


def test_olmo_norms_the_queries_of_all_heads_together(tiny_model):
    """The documented exception: there, a query fixed in front of the norm rescales those of the other heads."""
    model = tiny_model("olmo3")
    before = activations(model)
    with ablation(model, [(1, 1)], means=means_of(model)):
        after = activations(model)
    assert torch.equal(after["q"][:, 2], before["q"][:, 2])
    assert (after["pattern"][2] - before["pattern"][2]).abs().max() > 1e-4
    before = activations(model)
    with ablation(model, [(1, 1)], at="z", mode="zero"):
        assert torch.equal(activations(model)["pattern"], before["pattern"])


@pytest.mark.parametrize("at", ABLATED)
def test_all_heads_of_the_first_layer(at):
    """A02: on a fresh bridge with every flag at its default."""
    model = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    before = model.forward(IDS)
    with ablation(model, [(0, head) for head in range(4)], at=at, mode="zero") as state:
        after = model.forward(IDS)
    assert (after - before).abs().max() > 1e-3
    assert state.firings == {0: 1}


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "olmo3"])
def test_every_run_is_counted(tiny_model, family):
    """Prefill once and every decoding step, in each ablated layer."""
    model = tiny_model(family)
    with ablation(model, HEADS, means=means_of(model)) as state:
        assert state.firings == {}
        _, ids = _said(model, IDS, 5)
        assert state.firings == {0: len(ids), 1: len(ids)}
        model.forward(IDS)
    assert state.firings == {0: len(ids) + 1, 1: len(ids) + 1}
    assert state.heads == tuple(HEADS)
    assert (state.at, state.mode) == ("q", "mean")


def test_an_ablation_that_never_fires_is_an_error(tiny_model):
    """A02: silence would look like a head that does not matter."""
    model = tiny_model("llama")
    with (
        pytest.raises(RuntimeError, match=r"L1H2, L0H1: the ablation never fired"),
        ablation(model, HEADS, at="z", mode="zero"),
    ):
        pass
    other = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    with pytest.raises(RuntimeError, match="never fired"), ablation(model, HEADS, at="z", mode="zero"):
        other.forward(IDS)
    stack = plain_stack(model)
    with torch.inference_mode(), stack.streams([1]) as streams:
        stack.run(model.tokens(IDS))
    only_above = pytest.raises(RuntimeError, match=r"^L0H1: the ablation never")
    with only_above, ablation(model, HEADS, at="z", mode="zero"), torch.inference_mode():
        stack.run(model.tokens(IDS), enter=(1, streams[1]))


def _n_hooks(model) -> int:
    modules = [*model.hooked.modules(), *(model.fused.model.modules() if model.fused else ())]
    plain = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules)
    return plain + sum(len(getattr(m, "fwd_hooks", ())) for m in modules)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("mode", MODES)
def test_an_exception_leaves_nothing_behind(tiny_model, family, mode):
    """A20: logits bit for bit, hook counts, and the fused view."""
    model = tiny_model(family)
    before, (fast, _), hooks, fused = model.forward(IDS), _said(model, IDS, 1), _n_hooks(model), model.fused

    def leave():
        with ablation(model, HEADS, mode=mode, means=means_of(model)):
            _said(model, IDS, 2)
            raise KeyError("inside")

    for _ in range(2):
        with pytest.raises(KeyError, match="inside"):
            leave()
    assert model.fused is fused
    assert _n_hooks(model) == hooks
    assert torch.equal(model.forward(IDS), before)
    assert torch.equal(_said(model, IDS, 1)[0], fast)


def test_hooks_of_the_caller_survive(tiny_model):
    """A20: TransformerLens hooks and torch hooks that were there, and those that come and go inside the block."""
    model = load_model(tiny.hf_model("llama"), tokenizer=tiny.tokenizer())
    calls = {"lens": 0, "torch": 0, "inner": 0}

    def count(name):
        def hook(*args, **kwargs):
            calls[name] += 1

        return hook

    point = "blocks.0.attn.hook_z"
    handle = plain_stack(model).model.register_forward_hook(count("torch"))
    with model.hooks([(point, count("lens"))]):
        with ablation(model, HEADS, at="z", mode="zero") as state:
            with model.hooks([(point, count("inner"))]):
                model.forward(IDS)
            ablated = model.forward(IDS)
            _said(model, IDS, 1)
        assert state.firings == {0: 3, 1: 3}
        assert calls == {"lens": 2, "torch": 1, "inner": 1}
        model.forward(IDS)
        _said(model, IDS, 1)
    assert calls == {"lens": 3, "torch": 2, "inner": 1}
    handle.remove()
    with ablation(model, HEADS, at="z", mode="zero"):
        assert torch.equal(model.forward(IDS), ablated)


def test_nested_ablations_compose(tiny_model):
    """Two inside each other are one of both, also where one is at q and the other at z."""
    model, means = tiny_model("llama"), means_of(tiny_model("llama"))
    with ablation(model, [(1, 2), (0, 1), (1, 0)], means=means):
        wanted, ids = model.forward(IDS), _said(model, IDS)[1]
    with ablation(model, [(1, 2)], means=means), ablation(model, [(0, 1), (1, 0)], means=means):
        assert torch.equal(model.forward(IDS), wanted)
        assert _said(model, IDS)[1] == ids
    with ablation(model, [(1, 2)], means=means), ablation(model, [(1, 2)], at="z", mode="zero"):
        both = model.forward(IDS)
    with ablation(model, [(1, 2)], at="z", mode="zero"):
        assert torch.equal(model.forward(IDS), both)
    gpt2 = tiny_model("gpt2")
    fused = gpt2.fused
    with ablation(gpt2, [(1, 2)], at="z", mode="zero"), ablation(gpt2, [(0, 1)], mode="zero"):
        nested = _said(gpt2, IDS, 4)[0]
    assert gpt2.fused is fused
    with ablation(gpt2, [(0, 1)], mode="zero"), ablation(gpt2, [(1, 2)], at="z", mode="zero"):
        assert _same(_said(gpt2, IDS, 4)[0], nested)


def test_rows_are_without_heads_of_their_own(tiny_model):
    """Each row of a batch equals the ablation of its heads alone."""
    model, means = tiny_model("llama"), means_of(tiny_model("llama"))
    rows = [[(0, 1)], [(1, 2), (1, 3)], [(0, 0), (1, 0)]]
    for at in ABLATED:
        for mode in MODES:
            for stack in (plain_stack(model), hooked_stack(model)):
                with torch.inference_mode(), ablated_rows(model, rows, at=at, mode=mode, means=means):
                    together = stack.run(model.tokens(IDS).expand(3, -1))
                for row, heads in enumerate(rows):
                    with torch.inference_mode(), ablation(model, heads, at=at, mode=mode, means=means):
                        assert _same(stack.run(model.tokens(IDS))[0], together[row])


def test_impossible_ablations_are_refused(tiny_model):
    """A27; and means that are missing or of another model."""
    model, means = tiny_model("llama"), means_of(tiny_model("llama"))
    edited = load_model(tiny.hf_model("llama", seed=1), tokenizer=tiny.tokenizer())
    cases = [
        ((model, []), {"mode": "zero"}, "no head given"),
        ((model, [(2, 0)]), {"mode": "zero"}, "outside a model of 2 layers x 4 heads"),
        ((model, [(0, -1)]), {"mode": "zero"}, "outside"),
        ((model, ["L0H1", "L0H1"]), {"mode": "zero"}, "named twice"),
        ((model, HEADS), {"at": "k", "mode": "zero"}, "at must be one of q, z, got 'k'"),
        ((model, HEADS), {"mode": "median"}, "mode must be one of mean, zero, resample"),
        ((model, HEADS), {}, "calibrate_means"),
        ((model, HEADS), {"mode": "resample"}, "calibrate_means"),
        ((edited, HEADS), {"means": means}, "of another model"),
        ((tiny_model("llama-6-heads"), HEADS), {"means": means}, r"\(2, 4, 16\).*\(2, 6, 16\)"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(ValueError, match=message), ablation(*arguments, **options):
            pytest.fail("the block was entered")


def test_names_and_tables_are_heads(tiny_model):
    import pandas as pd

    model = tiny_model("llama")
    runs = []
    for heads in (HEADS, ["L1H2", "L0H1"], pd.DataFrame({"layer": [1, 0], "head": [2, 1]})):
        with ablation(model, heads, at="z", mode="zero"):
            runs.append(model.forward(IDS))
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


def test_runs_made_under_an_ablation_say_so_and_never_mix(tiny_model, tmp_path):
    """A20: a folder begun on the whole model is not resumed on an ablated one, nor the other way round."""
    from locos_tl import score_heads
    from locos_tl.results.files import ResultFileError

    model, trials = tiny_model("llama"), [tiny.trial(n, trial_id=f"t{n}") for n in (24, 33)]
    whole = score_heads(model, trials, out=tmp_path / "run")
    with ablation(model, [(0, 0), (1, 1)], mode="zero"):
        ablated = score_heads(model, trials)
        assert ablated.provenance["model"]["interventions"] == ["ablation at q, zero: L0H0,L1H1"]
        with pytest.raises(ResultFileError, match="other settings"):
            score_heads(model, trials, out=tmp_path / "run")
        means = calibrate_means(model, trials)
    assert means.interventions == ("ablation at q, zero: L0H0,L1H1",)
    assert means.digest() != calibrate_means(model, trials).digest()
    assert "interventions" not in whole.provenance["model"]
    assert model.interventions == []


def test_what_is_no_query_head_is_refused(tiny_model, tiny_pair):
    from locos_tl import patch_heads
    from locos_tl.causal.patching import patch_together

    model = tiny_model("llama")
    kv_heads = patch_heads(model, tiny_pair(), at="k").top(2)
    with pytest.raises(ValueError, match="the table holds kv_heads, and heads are needed"), ablation(model, kv_heads):
        pass
    assert np.isfinite(patch_together(model, tiny_pair(), heads=kv_heads, at="k")).all()
    with pytest.raises(ValueError, match="kv_heads are needed"):
        patch_together(model, tiny_pair(), heads=patch_heads(model, tiny_pair()).top(2), at="v")
    with ablation(model, (np.int64(1), np.int64(0)), mode="zero") as state:
        model.forward(tiny.words(5))
    assert state.heads == ((1, 0),)
