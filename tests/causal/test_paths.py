"""Direct effects and path patching against whole runs of the bridge and TransformerLens's direct path patching."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from locos_tl.causal.pairs import PromptPair
from locos_tl.causal.patching import total_effects
from locos_tl.causal.paths import direct_effects, path_patching
from tests import tiny


def _captured(model, ids, names, hooks=()):
    kept = {}
    reads = [(name, lambda value, hook, name=name: kept.update({name: value.clone()})) for name in names]
    with torch.inference_mode(), model.hooked.hooks(fwd_hooks=[*hooks, *reads]):
        logits = model.hooked(model.tokens(ids))
    return logits, kept


def _restored(value, hook, head, clean):
    out = value.clone()
    out[:, :, head] = clean[:, :, head]
    return out


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "olmo3", "gpt2"])
@pytest.mark.parametrize("metric", ["logit_diff", "answer_logprob"])
def test_direct_effect_is_the_write_added_to_the_last_stream(tiny_model, tiny_pair, family, metric):
    """A05: behind the attention norms too. The reference lets the bridge itself normalise, unembed and cap."""
    model, pair = tiny_model(family), tiny_pair()
    effects = direct_effects(model, pair, metric=metric)
    counterfactual = effects.provenance["patching"]["counterfactuals"][0]
    start, end = pair.answer_span
    last = f"blocks.{model.n_layers - 1}.hook_resid_post"

    def measure(logits):
        if metric == "logit_diff":
            return float(logits[0, start - 1, pair.answer_ids[0]] - logits[0, start - 1, counterfactual])
        log_probs = logits[0].log_softmax(-1)
        return float(np.mean([float(log_probs[i - 1, pair.clean_ids[i]]) for i in range(start, end)]))

    for layer in range(model.n_layers):
        z, out = f"blocks.{layer}.attn.hook_z", f"blocks.{layer}.hook_attn_out"
        _, clean = _captured(model, pair.clean_ids, [z])
        base, before = _captured(model, pair.corrupt_ids, [out])
        for head in range(model.n_heads):
            patch = (z, partial(_restored, head=head, clean=clean[z]))
            _, after = _captured(model, pair.corrupt_ids, [out], [patch])
            write = after[out] - before[out]
            logits, _ = _captured(model, pair.corrupt_ids, [], [(last, lambda value, hook, w=write: value + w)])
            wanted = measure(logits) - measure(base)
            assert effects.per_trial[0, layer, head] == pytest.approx(wanted, abs=2e-3)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_frozen_and_recomputed_norms_differ_and_frozen_ones_add_up(tiny_model, tiny_pair, family):
    """A19: an option that changed nothing would be ignored somewhere."""
    model, pair = tiny_model(family), tiny_pair()
    frozen, recomputed = (direct_effects(model, pair, norm=norm) for norm in ("frozen", "recomputed"))
    assert np.abs(frozen.per_trial - recomputed.per_trial).max() > 1e-3
    assert frozen.provenance["patching"]["norm"] == "frozen"
    # Linear in the write: half a swap has half the effect, so effects of the pair and of its mirror are opposite
    # once both use the same frozen scale; here it is enough that the sum is that of all writes at once.
    from locos_tl.causal.pair_runs import PairRuns
    from locos_tl.causal.paths import _metric_of_stream, writes

    runs = PairRuns(model, pair, ["z"], "logit_diff")
    last = slice(-runs.n_answer, None)
    stream = runs.streams[model.n_layers][0, last].float()
    everything = sum(writes(model, runs, layer, "frozen")[:, last].sum(0) for layer in range(model.n_layers))
    together = _metric_of_stream(runs, (stream + everything)[None], stream, "frozen")[0]
    assert float(frozen.per_trial.sum()) == pytest.approx(float(together) - runs.corrupt_metric, rel=1e-3, abs=2e-3)


def test_in_the_last_layer_only_the_mlp_parts_direct_from_total(tiny_model, tiny_pair):
    """With the last MLP silenced, a last-layer head has no other way to the logits than the direct one."""
    hf = tiny.hf_model("llama")
    with torch.no_grad():
        hf.model.layers[-1].mlp.down_proj.weight.zero_()
    from locos_tl import load_model

    model, pair = load_model(hf, tokenizer=tiny.tokenizer()), tiny_pair()
    total, direct = total_effects(model, pair), direct_effects(model, pair)
    np.testing.assert_allclose(total.per_trial[0, -1], direct.per_trial[0, -1], atol=1e-3)
    indirect = total.minus(direct)
    assert indirect.kind == "indirect"
    assert np.abs(indirect.per_trial[0, -1]).max() < 1e-3 < np.abs(indirect.per_trial[0, 0]).max()


@pytest.mark.parametrize("through", ["q", "k", "v"])
def test_transformer_lens_direct_path_patching_is_the_oracle(tiny_model, tiny_pair, through):
    from transformer_lens.patching import get_act_patch_direct_path

    for family in ("llama-square", "gpt2") if through != "q" else ("llama", "llama-square", "qwen3"):
        model, pair = tiny_model(family), tiny_pair()
        bridge = model.hooked
        with torch.no_grad():
            _, clean = bridge.run_with_cache(model.tokens(pair.clean_ids))
            _, corrupted = bridge.run_with_cache(model.tokens(pair.corrupt_ids))
            effects = path_patching(model, pair, sender=[(0, 0), (0, 2)], receivers=[(1, 1)], through=through)
            counterfactual = effects.provenance["patching"]["counterfactuals"][0]
            query = pair.answer_span[0] - 1
            for head in (0, 2):
                wanted = get_act_patch_direct_path(
                    bridge,
                    model.tokens(pair.corrupt_ids),
                    clean,
                    corrupted,
                    lambda logits, at=(query, pair.answer_ids[0], counterfactual): (
                        logits[0, at[0], at[1]] - logits[0, at[0], at[2]]
                    ),
                    0,
                    head,
                    through,
                    verbose=False,
                )[1, 1]
                assert effects.per_trial[0, 0, head] + effects.corrupt[0] == pytest.approx(float(wanted), abs=1e-3)
        assert np.isnan(effects.per_trial[0, 0, 1])
        assert np.isnan(effects.per_trial[0, 1]).all()


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "olmo3"])
def test_paths_behind_an_attention_norm_against_hooks_by_hand(tiny_model, tiny_pair, family):
    """Where TransformerLens's tool refuses: the write goes through the norm, and a receiver at k is a KV head."""
    model, pair = tiny_model(family), tiny_pair()
    z, out, k = "blocks.0.attn.hook_z", "blocks.0.hook_attn_out", "blocks.1.attn.hook_k"
    _, clean = _captured(model, pair.clean_ids, [z])
    _, before = _captured(model, pair.corrupt_ids, [out])
    effects = path_patching(model, pair, sender="L0H3", receivers=[(1, 0)], through="k")
    counterfactual = effects.provenance["patching"]["counterfactuals"][0]
    patch = (z, partial(_restored, head=3, clean=clean[z]))
    _, after = _captured(model, pair.corrupt_ids, [out], [patch])
    write = after[out] - before[out]
    _, changed = _captured(
        model, pair.corrupt_ids, [k], [("blocks.1.hook_resid_pre", lambda value, hook: value + write)]
    )
    logits, _ = _captured(model, pair.corrupt_ids, [], [(k, partial(_restored, head=0, clean=changed[k]))])
    query = pair.answer_span[0] - 1
    wanted = float(logits[0, query, pair.answer_ids[0]] - logits[0, query, counterfactual])
    assert effects.per_trial[0, 0, 3] + effects.corrupt[0] == pytest.approx(wanted, abs=1e-3)


def test_the_same_prompt_twice_has_no_effects(tiny_model, tiny_pair):
    model, pair = tiny_model("gemma3"), tiny_pair()
    same = PromptPair(pair.clean_ids, pair.clean_ids, pair.answer_span)
    assert np.abs(direct_effects(model, same).per_trial).max() < 1e-4
    found = path_patching(model, same, receivers=[(2, 0), (4, 1)]).per_trial[0]
    assert np.nanmax(np.abs(found)) < 1e-4
    assert np.isfinite(found[:4]).all()
    assert np.isnan(found[4:]).all()


def test_bad_arguments_say_what_is_wrong(tiny_model, tiny_pair):
    model, pair = tiny_model("llama"), tiny_pair()
    with pytest.raises(ValueError, match="norm must be one of recomputed, frozen"):
        direct_effects(model, pair, norm="none")
    with pytest.raises(ValueError, match="through must be q, k or v"):
        path_patching(model, pair, receivers="L1H0", through="z")
    with pytest.raises(ValueError, match="sender L1H1 is not below any receiver"):
        path_patching(model, pair, sender="L1H1", receivers="L1H0")
    with pytest.raises(ValueError, match="first layer"):
        path_patching(model, pair, receivers="L0H0")
    with pytest.raises(ValueError, match="receivers: L1H2 is outside"):
        path_patching(model, pair, receivers="L1H2", through="v")
