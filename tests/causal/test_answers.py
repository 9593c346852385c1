"""Answers without sets of heads are those of step-by-step decoding under `ablation`, at the cost that is promised."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from locos_tl import load_model
from locos_tl.causal import answers as answers_module
from locos_tl.causal.ablation import ablation
from locos_tl.causal.answers import Answer, PromptAnswers
from locos_tl.causal.means import calibrate_means
from locos_tl.models.stack import plain_stack
from tests import tiny

LIMIT = 9


def untied(family: str):
    """A model that says more than its last token again: with a random unembedding of its own."""
    hf = tiny.hf_model(family)
    hf.config.tie_word_embeddings = False
    head = hf.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn(head.weight.shape) * 0.3)
    return load_model(hf, tokenizer=tiny.tokenizer())


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def model(request):
    return untied(request.param)


def sets_of(model) -> list[frozenset]:
    last = model.n_layers - 1
    return [
        frozenset({(0, 0)}),
        frozenset({(last, 1)}),
        frozenset({(last, 0), (last, 1)}),
        frozenset({(1, 0), (0, 2)}),
        frozenset((last, head) for head in range(model.n_heads)),
    ]


def plainly(model, ids, heads, **how) -> Answer:
    """Prefill and greedy decoding inside `ablation`."""
    with ablation(model, sorted(heads), **how):
        cache = model.new_cache()
        decoding = model.decode(cache, model.extend(cache, ids), LIMIT)
    return Answer(decoding.ids, decoding.stop_token_id)


def test_answers_are_those_of_plain_decoding(model, monkeypatch):
    """Every family, mode and batch; prompts shorter and longer than a window; with an entry and without."""
    monkeypatch.setattr(answers_module, "CHUNK", 7)
    means = calibrate_means(model, [tiny.trial(n) for n in (20, 25, 33)])
    agreeing = []
    for n, (at, mode) in product((5, 26), (("q", "mean"), ("z", "zero"), ("q", "resample"))):
        ids = tiny.words(n, seed=n)
        for entries in ([1], [])[: 1 + (n > 5)]:
            answers = PromptAnswers(model, ids, LIMIT, entries)
            how = {"at": at, "mode": mode, "means": means}
            wanted = {heads: plainly(model, ids, heads, **how) for heads in sets_of(model)}
            for batch_size in (1, 3):
                assert answers.without(sets_of(model), batch_size, **how) == wanted, (n, at, mode, batch_size)
            agreeing += [
                next((i for i, (a, b) in enumerate(zip(x.ids, answers.whole.ids, strict=False)) if a != b), -1)
                for x in wanted.values()
            ]
    assert len(set(agreeing)) >= 3, "the ablations change nothing, or everything at once"


def test_rows_that_stop_early_keep_their_answer(monkeypatch):
    """A stop token ends its row at once, whatever the rows beside it still say."""
    model = untied("llama")
    ids = tiny.words(30, seed=3)
    free = PromptAnswers(model, ids, LIMIT).without(sets_of(model), at="z", mode="zero")
    said = [answer.ids for answer in free.values()]
    for stop in {answer[1] for answer in said} | {said[0][0], said[1][-1]}:
        monkeypatch.setattr(model, "_stop_ids", frozenset({stop}))
        answers = PromptAnswers(model, ids, LIMIT, [1])
        for batch_size in (1, 5):
            got = answers.without(sets_of(model), batch_size, at="z", mode="zero")
            assert got == {heads: plainly(model, ids, heads, at="z", mode="zero") for heads in sets_of(model)}
            assert any(answer.stop_token_id == stop for answer in got.values())


def test_a_limit_of_one_token():
    model = untied("llama")
    answers = PromptAnswers(model, tiny.words(12), 1, [1])
    for heads, answer in answers.without(sets_of(model), 2, at="z", mode="zero").items():
        cache = model.new_cache()
        with ablation(model, sorted(heads), at="z", mode="zero"):
            assert answer.ids == model.decode(cache, model.extend(cache, tiny.words(12)), 1).ids


def _layer_calls(model):
    calls = [0] * model.n_layers
    stack = plain_stack(model)

    def count(layer):
        def hook(*_):
            calls[layer] += 1

        return hook

    # The attention, since a skipped layer is called as well, but only hands its input on.
    handles = [stack._sites[layer, "z"].register_forward_hook(count(layer)) for layer in range(model.n_layers)]
    return calls, handles


@pytest.mark.parametrize("family", ["olmo3", "qwen3"])
def test_layers_below_the_ablation_run_for_decoded_tokens_only(family):
    """The prompt is read once below the first ablated layer, and a draft that is right costs no step at all."""
    model = untied(family)
    last = model.n_layers - 1
    ids = tiny.words(7 if family == "qwen3" else 40)
    answers = PromptAnswers(model, ids, LIMIT, [last])
    calls, handles = _layer_calls(model)
    with torch.no_grad():  # a head that writes nothing: its ablation changes nothing
        model.W_O(last)[1].zero_()
    answers = PromptAnswers(model, ids, LIMIT, [last])
    whole = len(answers.whole.ids)
    calls[:] = [0] * model.n_layers
    same = answers.without([frozenset({(last, 1)})], at="z", mode="zero")
    assert list(same.values()) == [answers.whole]
    if family == "qwen3":  # no window: the draft rides along
        assert calls == [0] * last + [1]
    else:
        assert calls == [whole - 1] * last + [whole]
    for handle in handles:
        handle.remove()


def test_a_batch_takes_as_many_steps_as_its_longest_row():
    model = untied("llama")
    answers = PromptAnswers(model, tiny.words(30), LIMIT)
    sets = sets_of(model)
    alone = answers.without(sets, 1, at="z", mode="zero")
    calls, handles = _layer_calls(model)
    assert answers.without(sets, len(sets), at="z", mode="zero") == alone
    assert calls[0] <= len(sets) + LIMIT
    for handle in handles:
        handle.remove()


def test_what_the_prompt_left_is_not_changed(model):
    """Runs without heads borrow the whole model's keys and values; asked again, the answers are the same."""
    answers = PromptAnswers(model, tiny.words(21), LIMIT, [1])
    before = [part.keys.clone() for part in answers._cache.native.layers]
    first = answers.without(sets_of(model), 2, at="z", mode="zero")
    assert answers.without(sets_of(model), 2, at="z", mode="zero") == first
    assert all(torch.equal(a, b.keys) for a, b in zip(before, answers._cache.native.layers, strict=True))


def test_little_memory_makes_small_batches(monkeypatch):
    monkeypatch.setattr(answers_module, "BATCH_BYTES", 1)
    model = untied("llama")
    answers = PromptAnswers(model, tiny.words(21), LIMIT, [1])
    calls, handles = _layer_calls(model)
    answers.without(sets_of(model), 5, at="z", mode="zero")
    assert calls[1] > 5 + LIMIT
    for handle in handles:
        handle.remove()


def test_logits_that_are_no_numbers_are_an_error():
    model = untied("llama")
    answers = PromptAnswers(model, tiny.words(21), LIMIT)
    with torch.no_grad():
        model.hooked.unembed.original_component.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="not finite"):
        answers.without(sets_of(model), at="z", mode="zero")
