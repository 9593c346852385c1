"""Exact patching against TransformerLens's own tools, against hooks by hand, and by its identities (A16, A18)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from locos_tl.causal.pair_runs import PairRuns
from locos_tl.causal.pairs import PromptPair
from locos_tl.causal.patching import patch_heads, patch_together, total_effects
from locos_tl.results.effects import Effects
from tests import tiny

GOLDEN = Path(__file__).parent.parent / "golden"


def _metric(pair: PromptPair, counterfactual: int):
    """Logit difference at the query of the first answer token, from logits over all positions."""
    query = pair.answer_span[0] - 1
    return lambda logits: logits[0, query, pair.answer_ids[0]] - logits[0, query, counterfactual]


def _by_hand(model, pair, at, layer, head, positions, counterfactual):
    """One head patched in a whole run of the bridge, without a cache."""
    name = f"blocks.{layer}.attn.hook_{at}"
    kept = {}
    with torch.inference_mode():
        with model.hooked.hooks(fwd_hooks=[(name, lambda value, hook: kept.update(clean=value.clone()))]):
            model.hooked(model.tokens(pair.clean_ids))

        def restore(value, hook):
            out = value.clone()
            if at == "pattern":
                out[:, head, positions] = kept["clean"][:, head, positions]
            else:
                out[:, positions, head] = kept["clean"][:, positions, head]
            return out

        with model.hooked.hooks(fwd_hooks=[(name, restore)]):
            logits = model.hooked(model.tokens(pair.corrupt_ids))
    return float(_metric(pair, counterfactual)(logits))


@pytest.mark.parametrize("at", ["z", "q", "k", "v", "pattern"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "olmo3", "gpt2"])
def test_every_site_of_every_family_against_hooks_by_hand(tiny_model, tiny_pair, family, at):
    """Shared prefix, batched heads and entering at a layer change nothing; windows are shorter than the prompt."""
    model, pair = tiny_model(family), tiny_pair()
    for positions, span in (("all", slice(None)), ("needle", slice(9, 12))):
        effects = patch_heads(model, pair, at=at, positions=positions, batch_size=3)
        counterfactual = effects.provenance["patching"]["counterfactuals"][0]
        wanted = np.array(
            [
                [
                    _by_hand(model, pair, at, layer, head, span, counterfactual)
                    for head in range(effects.per_trial.shape[2])
                ]
                for layer in range(model.n_layers)
            ]
        )
        scale = max(1.0, abs(effects.corrupt[0]))
        assert np.abs(effects.per_trial[0] + effects.corrupt[0] - wanted).max() < 1e-3 * scale
        assert np.abs(effects.per_trial).max() > 1e-3


@pytest.mark.parametrize("family", ["llama-square", "gpt2"])
def test_transformer_lens_own_patching_is_the_oracle(tiny_model, tiny_pair, family):
    """`transformer_lens.patching` patches one head a run; models without grouped-query attention, which it can do."""
    from transformer_lens import patching

    tools = {
        "z": patching.get_act_patch_attn_head_out_all_pos,
        "q": patching.get_act_patch_attn_head_q_all_pos,
        "k": patching.get_act_patch_attn_head_k_all_pos,
        "v": patching.get_act_patch_attn_head_v_all_pos,
        "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
    }
    model, pair = tiny_model(family), tiny_pair()
    bridge = model.hooked
    with torch.no_grad():
        _, clean_cache = bridge.run_with_cache(model.tokens(pair.clean_ids))
        for at, tool in tools.items():
            effects = patch_heads(model, pair, at=at)
            metric = _metric(pair, effects.provenance["patching"]["counterfactuals"][0])
            wanted = tool(bridge, model.tokens(pair.corrupt_ids), clean_cache, metric)
            wanted = getattr(wanted, "tensor", wanted)
            found = effects.per_trial[0] + effects.corrupt[0]
            np.testing.assert_allclose(found, wanted.detach().numpy().reshape(found.shape), atol=2e-4)


def test_under_grouped_query_attention_the_axis_counts_key_value_heads(tiny_model, tiny_pair):
    """A18: patching a KV head equals patching the outputs that its query heads compute from its values."""
    model, pair = tiny_model("llama"), tiny_pair()
    effects = patch_heads(model, pair, at="v")
    assert effects.per_trial.shape == (1, 2, 2)
    assert effects.head_axis == "KV head"
    assert patch_heads(model, pair, at="z").head_axis == "query head"
    with pytest.raises(ValueError, match="L0H2 is outside"):
        patch_together(model, pair, heads=[(0, 2)], at="v")
    # With the corrupt pattern and the clean values of both group mates, z is what patching their KV head gives.
    whole = tiny_pair(first=0)
    runs = PairRuns(model, whole, ["v", "z", "pattern"], "logit_diff")
    values = runs.clean[1, "v"].repeat_interleave(2, dim=1)
    restored = torch.einsum("qhk,khd->qhd", runs.corrupt[1, "pattern"], values)

    def edit(value):
        out = value.clone()
        out[0, :, :2] = restored[:, :2]
        return out

    by_outputs = float(runs.patched(1, runs.streams[1], [(1, "z", edit)])[0])
    by_values = patch_heads(model, whole, at="v")
    assert by_outputs == pytest.approx(by_values.per_trial[0, 1, 0] + by_values.corrupt[0], abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_identities(tiny_model, tiny_pair, family):
    """A16: clean into clean changes nothing; all heads together recover all; nothing patched recovers nothing."""
    model, pair = tiny_model(family), tiny_pair()
    same = PromptPair(pair.clean_ids, pair.clean_ids, pair.answer_span, needle_span=(9, 12))
    for at in ("z", "q", "k", "v", "pattern"):
        unchanged = patch_heads(model, same, at=at, positions="needle" if at == "v" else "all")
        assert np.abs(unchanged.per_trial).max() < 1e-4
        assert unchanged.clean == pytest.approx(unchanged.corrupt, abs=1e-5)
    everything = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    for positions in ("all", "answer"):  # the answer's queries are the same tokens, so their streams become clean
        assert patch_together(model, pair, heads=everything, positions=positions) == pytest.approx([1.0], abs=1e-4)
    runs = PairRuns(model, pair, ["z"], "logit_diff")
    for layer in range(model.n_layers + 1):
        assert float(runs.patched(layer, runs.streams[layer], [])[0]) == pytest.approx(runs.corrupt_metric, abs=1e-4)


def test_together_with_one_head_is_that_head(tiny_model, tiny_pair):
    model, pair = tiny_model("qwen3"), tiny_pair()
    effects = total_effects(model, pair)
    assert patch_together(model, pair, heads="L1H2")[0] == pytest.approx(effects.recovery[0, 1, 2], abs=1e-4)


def test_unequal_lengths_are_refused_with_both_named(tiny_model):
    with pytest.raises(ValueError, match=r"clean prompt has 12 tokens, the corrupt one 13"):
        PromptPair(tuple(tiny.words(12)), tuple(tiny.words(13)), (11, 12))
    clean = tiny.trial(30)
    longer = tiny.trial(31)
    with pytest.raises(ValueError, match=r"clean prompt has 30 tokens, the corrupt one 31"):
        patch_heads(tiny_model("llama"), clean, longer)


def test_bad_arguments_say_what_is_wrong(tiny_model, tiny_pair):
    model, pair = tiny_model("llama"), tiny_pair()
    with pytest.raises(ValueError, match="at must be one of q, k, v, z, pattern"):
        patch_heads(model, pair, at="mlp")
    with pytest.raises(ValueError, match="metric must be one of"):
        patch_heads(model, pair, metric="kl")
    with pytest.raises(ValueError, match="positions must be one of"):
        patch_heads(model, pair, positions="last")
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        patch_heads(model, pair, batch_size=0)
    with pytest.raises(ValueError, match="a PromptPair holds its corrupt prompt"):
        patch_heads(model, pair, pair)
    with pytest.raises(ValueError, match="1 clean trials for 2 corrupt"):
        patch_heads(model, tiny.trial(), [tiny.trial(), tiny.trial()])
    with pytest.raises(ValueError, match="give a clean Trial"):
        patch_heads(model, "some text")
    with pytest.raises(ValueError, match=r"answer_span \[20, 21\) must end"):
        PromptPair(tuple(range(28)), tuple(range(28)), (20, 21))
    with pytest.raises(ValueError, match="same answer tokens"):
        PromptPair((12, 13, 14), (12, 15, 16), (2, 3))


def test_several_pairs_stack_and_keep_their_names(tiny_model, tiny_pair, tmp_path):
    model = tiny_model("llama")
    pairs = [tiny_pair(pair_id="a"), tiny_pair(seed=5, pair_id="b"), tiny_pair(n=30, first=0, pair_id="b")]
    together = total_effects(model, pairs, metric="answer_logprob")
    assert together.trial_ids == ("a", "b", "b#2")
    for row, pair in enumerate(pairs):
        alone = total_effects(model, pair, metric="answer_logprob")
        np.testing.assert_allclose(together.per_trial[row], alone.per_trial[0], atol=1e-5)
    assert Effects.load(together.save(tmp_path / "effects.safetensors")).provenance["model"]["n_layers"] == 2


def test_answer_logprob_is_the_mean_over_the_answer_tokens(tiny_model, tiny_pair):
    model, pair = tiny_model("llama"), tiny_pair()
    effects = total_effects(model, pair, metric="answer_logprob")
    log_probs = model.forward(pair.clean_ids).float().log_softmax(-1)
    start, end = pair.answer_span
    wanted = np.mean([float(log_probs[i - 1, pair.clean_ids[i]]) for i in range(start, end)])
    assert effects.clean[0] == pytest.approx(wanted, abs=1e-5)


def test_the_counterfactual_is_the_corrupt_runs_best_token_but_the_answer(tiny_model, tiny_pair):
    model, pair = tiny_model("llama"), tiny_pair()
    logits = model.forward(pair.corrupt_ids)[pair.answer_span[0] - 1].clone()
    logits[pair.answer_ids[0]] = -torch.inf
    found = total_effects(model, pair).provenance["patching"]["counterfactuals"]
    assert found == [int(logits.argmax())]
    given = tiny_pair(counterfactual=40)
    assert total_effects(model, given).provenance["patching"]["counterfactuals"] == [40]


@pytest.mark.bundled
@pytest.mark.parametrize("metric", ["logit_diff", "answer_logprob"])
def test_golden_patching(bundled, metric):
    """The released code's numbers for one pair, all 270 heads."""
    name = {"logit_diff": "cri_first_token_logit_diff", "answer_logprob": "cri_answer_logprob"}[metric]
    trial = json.loads((GOLDEN / "smollm2_135m_instruct.json").read_text())["cri_trials"][0]
    pair = PromptPair(tuple(trial["clean_ids"]), tuple(trial["corrupt_ids"]), tuple(trial["answer_span"]))
    effects = total_effects(bundled, pair, metric=metric)
    wanted = np.load(GOLDEN / "smollm2_135m_instruct.npz")[name][0]
    assert np.abs(effects.per_trial[0] - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert effects.provenance["patching"]["counterfactuals"] == [trial["counterfactual_token_id"]]
    key = {"logit_diff": "first_token_logit_diff", "answer_logprob": "answer_logprob_mean"}[metric]
    assert effects.clean[0] == pytest.approx(trial[f"clean_{key}"], abs=1e-4)
    assert effects.corrupt[0] == pytest.approx(trial[f"corrupt_{key}"], abs=1e-4)


@pytest.mark.bundled
def test_indirect_object_identification(bundled):
    """A pair that is no needle trial: who gets the drink (Wang et al. 2022)."""
    pair = PromptPair.from_text(
        bundled,
        "When Mary and John went to the shop, John gave a drink to",
        "When Mary and John went to the shop, Mary gave a drink to",
        answer=" Mary",
        counterfactual=" John",
    )
    assert len(pair.differing) == 1
    effects = total_effects(bundled, pair)
    assert effects.clean[0] > 0 > effects.corrupt[0]
    best = effects.top(5)
    assert patch_together(bundled, pair, heads=best)[0] > effects.recovery[0].max()
    with pytest.raises(ValueError, match="begin with the same token"):
        PromptPair.from_text(bundled, "a b", "a c", answer=" Mary", counterfactual=" Mary Ann")
