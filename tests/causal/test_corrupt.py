"""A corrupt prompt is as long, token for token, and differs in the needle alone."""

from __future__ import annotations

import pytest

from locos_tl.causal.corrupt import corrupt
from locos_tl.causal.pairs import PromptPair
from locos_tl.trials.load import load_trials
from locos_tl.trials.trial import Trial
from tests import tiny


@pytest.mark.bundled
@pytest.mark.parametrize("how", ["filler", "swap"])
def test_bundled_trials(bundled, how):
    trials = load_trials("nonliteral", 40, lengths=[64, 128], kinds=["onehop", "literal"]).bind(bundled)
    fillers = set()
    for trial in trials:
        twin = corrupt(trial, how, bundled)
        start, end = trial.needle_span
        assert len(twin.prompt_ids) == len(trial.prompt_ids)
        assert twin.needle_span == trial.needle_span
        assert twin.prompt_ids[:start] == trial.prompt_ids[:start]
        assert twin.prompt_ids[end:] == trial.prompt_ids[end:]
        assert twin.prompt_ids[start:end] != trial.prompt_ids[start:end]
        text = bundled.tokenizer.decode(list(twin.prompt_ids[start:end]))
        assert text.strip() == twin.needle
        assert trial.answer not in text
        original = bundled.tokenizer.decode(list(trial.prompt_ids[start:end]))
        assert text[:1].isspace() == original[:1].isspace()
        assert twin == corrupt(trial, how, bundled), "deterministic"
        fillers.add(twin.needle)
    assert len(fillers) > 20
    assert any(n.endswith((".", "!", "?")) for n in fillers)
    assert corrupt(trials[0], how, bundled, seed=1).needle != corrupt(trials[0], how, bundled, seed=2).needle


@pytest.mark.bundled
def test_the_bundled_tokenizer_is_the_default_and_others_are_refused(bundled):
    trial = load_trials("nonliteral", 1, lengths=64).bind(bundled)[0]
    assert corrupt(trial) == corrupt(trial, tokenizer=bundled)
    with pytest.raises(ValueError, match="another tokenizer"):
        corrupt(trial, tokenizer=tiny.tokenizer())


def test_what_cannot_be_corrupted_says_why():
    trial = tiny.trial()
    with pytest.raises(ValueError, match="how must be one of filler, swap"):
        corrupt(trial, "noise", tiny.tokenizer())
    with pytest.raises(ValueError, match=r"none of 2 sentences to swap in has the needle's 6 tokens"):
        corrupt(trial, "swap", tiny.tokenizer(), pool=["w1 w2", "w3"])
    closed = Trial(tuple(tiny.words(8)), None, "Yuki", trial_id="closed")
    with pytest.raises(ValueError, match="'closed' has no needle"):
        corrupt(closed, tokenizer=tiny.tokenizer())


def test_a_pool_of_ones_own_sentences():
    twin = corrupt(tiny.trial(), "swap", tiny.tokenizer(), pool=["w9", "w1 w2 w3 w4 w5 w6", "Yuki w1 w2 w3 w4 w5"])
    assert twin.needle == "w1 w2 w3 w4 w5 w6"


def test_pairs_follow_the_models_own_answer(tiny_model):
    """What was said before the answer stays in both prompts; without an answer the gold one is put there."""
    model, trial = tiny_model("llama"), tiny.trial()
    twin = corrupt(trial, "swap", model, pool=["w1 w2 w3 w4 w5 w6"])
    pair = PromptPair.from_trials(model, trial, twin)
    assert pair.clean_ids == (*trial.prompt_ids, 7, 8, 9, 3)
    assert pair.corrupt_ids == (*twin.prompt_ids, 7, 8, 9, 3)
    assert pair.answer_span == (33, 34)
    assert pair.needle_span == trial.needle_span
    assert pair.first_difference == 5
    silent = PromptPair.from_trials(model, tiny.trial(generated=(40, 41)), twin)
    assert silent.clean_ids == (*trial.prompt_ids, 3)
    assert silent.answer_ids == (3,)


def test_a_trial_that_does_not_tell_its_tokenizer_needs_one():
    with pytest.raises(ValueError, match="does not tell its tokenizer: give tokenizer=model"):
        corrupt(tiny.trial())


def test_only_bundled_needles_have_sentences_to_swap_in():
    """A place in place of a name would be nonsense."""
    with pytest.raises(ValueError, match="none of the bundled needles: give pool="):
        corrupt(tiny.trial(), "swap", tiny.tokenizer())


def test_no_alias_is_put_in():
    trial = tiny.trial(answer="Omar", aliases=("Yuki",))
    pool = ["Yuki w1 w2 w3 w4 w5", "Omar w1 w2 w3 w4 w5", "w9 w1 w2 w3 w4 w5"]
    assert corrupt(trial, "swap", tiny.tokenizer(), pool=pool).needle == "w9 w1 w2 w3 w4 w5"


def test_a_pair_ends_with_the_alias_that_was_given(tiny_model):
    model, trial = tiny_model("llama"), tiny.trial(answer="Omar", aliases=("Yuki",))
    twin = corrupt(trial, tokenizer=model)
    assert PromptPair.from_trials(model, trial, twin).clean_ids[-1] == 3


@pytest.mark.bundled
def test_an_answer_that_was_not_given_continues_the_prompt_as_text_would(bundled):
    """With its space behind a word, without one at the start of a line."""
    ids = bundled.tokenizer("It was in May. Question: Who was it? Answer:")["input_ids"]
    for end, wanted in (("", " Hugo"), ("\n", "Hugo")):
        prompt = [*ids, *bundled.tokenizer(end)["input_ids"]] if end else ids
        trial = Trial.from_ids(prompt, (0, 3), "Hugo", generated_ids=(260, 284))
        pair = PromptPair.from_trials(bundled, trial, corrupt(trial, tokenizer=bundled))
        assert bundled.tokenizer.decode(list(pair.answer_ids)) == wanted


def test_a_needle_that_ends_before_the_prompts_differ_is_refused():
    with pytest.raises(ValueError, match="ends before the prompts differ"):
        PromptPair((1, 2, 3, 4, 5, 6), (1, 2, 3, 9, 5, 6), (5, 6), needle_span=(1, 3))
