"""A transformer built by hand: its only path from needle to answer is one head that reads one token, writes another.

The needle holds a cue token; the planted head attends to the cue and writes the answer, which occurs
nowhere in the prompt. A second head attends to the same place and writes nothing; a third copies the
token it attends to. LOCOS must rank the planted head first; the copy score must not.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from locos_tl import Trial, load_model, score_heads
from tests import tiny

CUE, ANSWER, ASK, COPIED = 40, 3, 41, 42
PLANTED, READER, COPIER = (1, 2), (1, 0), (0, 1)
D = 64


@pytest.fixture(scope="module")
def planted():
    """Residual coordinates: 0 cue seen, 1 answer, 2 question asked, 3 token to copy, 4 its copy, 5.. other words."""
    config = LlamaConfig(
        vocab_size=tiny.D_VOCAB, hidden_size=D, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=128, eos_token_id=1, pad_token_id=2,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e12},
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for layer in model.model.layers:
            layer.input_layernorm.weight.fill_(1.0)
            layer.post_attention_layernorm.weight.fill_(1.0)
        model.model.norm.weight.fill_(1.0)
        embed, unembed = model.get_input_embeddings().weight, model.lm_head.weight
        embed[:, 8:] = torch.randn(tiny.D_VOCAB, D - 8, generator=generator) * 0.3
        embed[CUE, 0], embed[ASK, 2], embed[COPIED, 3] = 6.0, 6.0, 6.0
        unembed[ANSWER, 1], unembed[COPIED, 4] = 1.0, 1.0
        _attend(model, PLANTED, wanted=0)
        _write(model, PLANTED, source=0, target=1, size=40.0)
        _attend(model, READER, wanted=0)
        _attend(model, COPIER, wanted=3)
        _write(model, COPIER, source=3, target=4, size=2.0)
    return load_model(model, tokenizer=tiny.tokenizer())


def _attend(model, head, wanted):
    """The question token's query matches keys that carry ``wanted``; at base 1e12 high pairs hardly rotate."""
    layer, index = head
    attention, row = model.model.layers[layer].self_attn, 16 * index + 7
    attention.q_proj.weight[row, 2] = 6.0
    attention.k_proj.weight[row, wanted] = 6.0


def _write(model, head, source, target, size):
    layer, index = head
    attention, row = model.model.layers[layer].self_attn, 16 * index
    attention.v_proj.weight[row, source] = 1.0
    attention.o_proj.weight[target, row] = size


@pytest.fixture(scope="module")
def scores(planted):
    trials = []
    for seed in range(4):
        words = [w if w not in (CUE, ASK, COPIED, ANSWER) else 50 for w in tiny.words(40, seed=seed)]
        words[10 + seed], words[12 + seed] = CUE, COPIED
        words[-1] = ASK
        trials.append(Trial.from_ids(words, needle=(9 + seed, 14 + seed), answer="Yuki", trial_id=f"planted-{seed}"))
    return score_heads(planted, trials, max_new_tokens=1)


def test_the_model_answers_by_meaning(scores):
    assert scores.passed == scores.total == 4
    assert all(o.generated_ids == (ANSWER,) for o in scores.outcomes)


def test_locos_finds_the_planted_head(scores):
    assert scores["locos"].ranking()[0] == PLANTED
    best, second = scores["locos"].top(2)["score"]
    assert best > 10 * abs(second)


def test_the_copy_score_does_not(scores):
    assert scores["wu"].mean[PLANTED] == 0.0
    assert scores["wu"].mean.max() == 0.0  # nothing was copied at all


def test_attention_alone_cannot_tell_the_writer_from_the_reader(scores):
    attention = scores["attention_spatial"].mean
    assert attention[PLANTED] == pytest.approx(attention[READER], abs=1e-4)
    assert scores["locos"].mean[READER] == pytest.approx(0.0, abs=1e-5)
    assert attention[COPIER] > 0.5


def test_the_copying_head_would_be_found_if_it_answered(planted):
    """The same model, teacher-forced to say the copied token: now the copy score points at the copier."""
    words = [w if w not in (CUE, ASK, COPIED, ANSWER) else 50 for w in tiny.words(40)]
    words[12], words[-1] = COPIED, ASK
    answer = planted.tokenizer.decode([COPIED])
    trial = Trial.from_ids(words, needle=(10, 15), answer=answer, generated_ids=(COPIED,))
    scores = score_heads(planted, trial)
    assert scores["wu"].ranking()[0] == COPIER
    assert scores["locos"].ranking()[0] == COPIER
