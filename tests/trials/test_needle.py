"""From text to prompt: BOS once, the span tracked, the needle where it was asked for, the context exactly as long."""

from dataclasses import replace
from itertools import accumulate

import pytest

from locos_tl.trials.haystack import Haystack, encode_all, encode_start, split_sentences
from locos_tl.trials.needle import (
    DEFAULT_TEMPLATE,
    PromptTemplate,
    Recipe,
    build,
    fingerprint,
    frame,
    template_hash,
    warn_if_repeating,
)
from locos_tl.trials.trial import Trial

PLAIN = PromptTemplate(before="Text: ", after="\nQuestion: {question}")
QUESTION = "Which character has been to Paris?"


def recipe(haystack, needle="Anna lives near the Eiffel Tower.", length=120, depth=0.5, **more):
    words = {"question": QUESTION, "answer": "Anna", "template": PLAIN, "trial_id": "t-1"}
    return Recipe(needle=needle, haystack=haystack, length=length, depth=depth, **(words | more))


def context(trial, tokenizer, template=PLAIN):
    """The trial's ids without frame, and the needle's span in them."""
    head, tail = frame(tokenizer, template, trial.question)
    ids = trial.prompt_ids[len(head) : len(trial.prompt_ids) - len(tail)]
    return list(ids), trial.needle_span[0] - len(head), trial.needle_span[1] - len(head)


# --- special tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("habits", "n_bos"),
    [
        ({"chat": "writes BOS"}, 1),
        ({"chat": "no BOS"}, 1),
        ({"chat": None}, 1),
        ({"chat": None, "bos": False}, 0),
        ({"chat": "no BOS", "bos": False}, 0),
        ({"chat": "writes BOS", "adds_bos": False}, 1),
        ({"chat": None, "adds_bos": False}, 0),
        ({"chat": None, "kind": "prefixed"}, 1),
        ({"chat": "writes BOS", "kind": "prefixed"}, 1),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value),
)
def test_bos_stands_once_and_first(make_tokenizer, prose, habits, n_bos):
    tokenizer = make_tokenizer(**habits)
    trial = build(recipe(prose), tokenizer)
    bos = tokenizer.convert_tokens_to_ids("<s>") if habits.get("bos", True) else -1
    assert trial.prompt_ids.count(bos) == n_bos
    assert (trial.prompt_ids[0] == bos) == bool(n_bos)


def test_a_template_that_writes_bos_twice_is_refused(make_tokenizer, prose):
    with pytest.raises(ValueError, match="two BOS"):
        build(recipe(prose), make_tokenizer("two BOS"))


def test_the_context_holds_no_special_token(tokenizer, prose):
    trial = build(recipe(prose), tokenizer)
    ids, _, _ = context(trial, tokenizer)
    assert len(ids) == 120
    assert not set(ids) & set(tokenizer.added_tokens_decoder)


@pytest.mark.parametrize("text", ["</s>", "<s>", "<|end|>", "<|assistant|>"])
@pytest.mark.parametrize("where", ["haystack", "needle", "question"])
def test_special_tokens_in_the_text_are_refused(tokenizer, prose, text, where):
    bad = {
        "haystack": {
            "haystack": Haystack("bad", (*prose.sentences[:2], f" A mark {text} here.", *prose.sentences[2:]))
        },
        "needle": {"needle": f"Anna wrote {text} on the wall."},
        "question": {"question": f"Who{text}?"},
    }[where]
    with pytest.raises(ValueError, match="holds the special token"):
        build(replace(recipe(prose), **bad), tokenizer)


def test_a_special_token_that_doubles_as_unknown_is_refused_too(make_tokenizer, prose):
    """Byte-level tokenizers never meet an unknown character: their "unknown token" is a control token."""
    tokenizer = make_tokenizer("no BOS", bos=False, adds_bos=False)
    before = tokenizer.unk_token
    tokenizer.unk_token = "</s>"
    try:
        with pytest.raises(ValueError, match="holds the special token '</s>'"):
            build(recipe(Haystack("bad", ("A mark </s> here.", *prose.sentences[1:]))), tokenizer)
    finally:
        tokenizer.unk_token = before


def test_unknown_characters_of_the_haystack_are_no_special_tokens(make_tokenizer, prose):
    tokenizer = make_tokenizer(kind="prefixed")
    trial = build(recipe(Haystack("snow", ("A \u2744 fell.", *prose.sentences[1:]))), tokenizer)
    assert tokenizer.unk_token_id in context(trial, tokenizer)[0]


# --- the span -------------------------------------------------------------------------------------------------------

NEEDLES = [
    "Anna lives near the Eiffel Tower.",
    "41 jars belong to Anna.",
    "\u201cAnna was here\u201d, says the wall.",
    "'Anna' is cut into the beam.",
    '"Anna," the parrot said.',
    "\nAnna sleeps late.",
    "anna has no key.",
    "🙂 Anna smiled at the tram 🚋.",
    "Анна живёт у реки.",
    "安娜住在河边。",
    "Åsa Anna ordered smörgås.",
    "e\u0301mile and Anna ate.",
    "-- Anna left --",
    "Anna",
    "...and Anna, of course!",
    "Anna\u00a0owns 3.50\u00a0€.",
    "(Anna) [sic]",
    "Anna 's dog , she said , ca n't swim .",
]
PLACES = [(needle, depth) for needle in NEEDLES for depth in (0.0, 0.4, 1.0)]


@pytest.mark.parametrize("chat", ["writes BOS", None])
@pytest.mark.parametrize(("needle", "depth"), PLACES)
def test_the_span_reads_back_as_the_needle(make_tokenizer, prose, needle, depth, chat):
    """54 pairs of depth and needle: the tracked span decodes to the needle and to nothing else."""
    tokenizer = make_tokenizer(chat)
    trial = build(recipe(prose, needle, depth=depth, answer="Name"), tokenizer)
    start, end = trial.needle_span
    decoded = tokenizer.decode(trial.prompt_ids[start:end])
    assert decoded == (needle if trial.depth_actual == 0 else " " + needle)
    text = tokenizer.decode(trial.prompt_ids, clean_up_tokenization_spaces=False)
    assert text.count(needle) == 1


def test_the_needles_are_fifty_pairs():
    assert len(PLACES) >= 50


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_tokenizer_that_puts_spaces_in_front_makes_the_same_text(make_tokenizer, prose, depth):
    """Llama-2's kind: pieces tokenised alone would each get a space of their own."""
    tokenizer = make_tokenizer(kind="prefixed")
    trial = build(recipe(prose, depth=depth), tokenizer)
    start, end = trial.needle_span
    assert tokenizer.decode(trial.prompt_ids[start:end]).strip() == "Anna lives near the Eiffel Tower."
    assert tokenizer.convert_ids_to_tokens(trial.prompt_ids[1]).startswith("\u2581T")  # as the tokenizer starts a text
    text = tokenizer.decode(trial.prompt_ids, skip_special_tokens=True)
    assert "  " not in text
    assert f"\nQuestion: {QUESTION}" in text
    assert text.lstrip().startswith("Text: ")


def test_the_span_needs_no_character_offsets(make_tokenizer, prose, monkeypatch):
    """Some tokenizers return offsets of width zero: none are asked for."""
    tokenizer = make_tokenizer("no BOS")
    call = type(tokenizer).__call__

    def watch(self, *args, **kwargs):
        assert not kwargs.get("return_offsets_mapping")
        return call(self, *args, **kwargs)

    expected = build(recipe(prose), tokenizer)
    monkeypatch.setattr(type(tokenizer), "__call__", watch)
    assert build(recipe(prose), tokenizer) == expected


def test_a_needle_the_tokenizer_cannot_hold_is_refused(make_tokenizer, prose):
    with pytest.raises(ValueError, match=r"t-1: this tokenizer cannot hold the needle.*Anna"):
        build(recipe(prose, "Anna draws a \u2744 on the pane."), make_tokenizer(kind="prefixed"))


def test_only_a_part_of_the_inserted_sentence_can_be_the_needle(tokenizer, prose):
    part = recipe(
        prose, "a sandwich in the park", lead="The best thing to do is eat ", trail=" on Sunday.", answer="park"
    )
    trial = build(part, tokenizer)
    start, end = trial.needle_span
    assert tokenizer.decode(trial.prompt_ids[start:end]) == " a sandwich in the park"
    assert " The best thing to do is eat a sandwich in the park on Sunday. " in tokenizer.decode(trial.prompt_ids)
    assert len(context(trial, tokenizer)[0]) == 120


def test_the_part_must_not_stand_in_the_haystack_either(tokenizer, prose):
    part = recipe(prose, "dust lay on each step", lead="By May ", trail=" of his.", answer="his")
    with pytest.raises(ValueError, match="already holds the needle 'dust lay on each step'"):
        build(part, tokenizer)


# --- place and length -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("habits", [{"bos": False}, {"kind": "prefixed"}], ids=["bytes", "prefixed"])
@pytest.mark.parametrize("length", [40, 97, 200, 333])
@pytest.mark.parametrize("depth", [0.0, 0.1, 1 / 3, 0.5, 0.77, 1.0])
def test_the_needle_goes_to_the_boundary_below_its_depth(make_tokenizer, prose, habits, length, depth):
    """Against a slow search: no sentence starts between the needle's place and depth x haystack tokens."""
    tokenizer = make_tokenizer(**habits)
    trial = build(recipe(prose, length=length, depth=depth), tokenizer)
    ids, start, end = context(trial, tokenizer)
    assert len(ids) == length
    rounds = [" " + s.lstrip() if i else s for i, s in enumerate(prose.sentences * 9)]
    boundaries = list(accumulate((len(encode_all(tokenizer, [s])[0]) for s in rounds), initial=0))
    n_hay = length - max(len(encode_all(tokenizer, [space + trial.needle])[0]) for space in (" ", ""))
    assert start == max(b for b in boundaries if b <= depth * n_hay)
    assert trial.depth == depth
    assert trial.depth_actual == pytest.approx(start / (length - (end - start)), abs=1e-4)
    assert trial.depth_actual <= depth + 1e-3


def test_the_rest_of_the_context_is_the_haystack(plain_tokenizer, prose):
    trial = build(recipe(prose, length=150, depth=0.5), plain_tokenizer)
    ids, start, end = context(trial, plain_tokenizer)
    text = plain_tokenizer.decode(ids[:start] + ids[end:])
    assert "".join(prose.sentences).startswith(text)


def test_at_depth_0_the_needle_opens_the_context(plain_tokenizer, prose):
    trial = build(recipe(prose, depth=0.0), plain_tokenizer)
    ids, start, _ = context(trial, plain_tokenizer)
    assert start == 0
    assert trial.depth_actual == 0.0
    assert plain_tokenizer.decode(ids).startswith("Anna lives near the Eiffel Tower. The ferry left the quay")


def test_at_depth_1_the_needle_stands_at_the_last_boundary(plain_tokenizer, prose):
    whole = sum(len(encode_all(plain_tokenizer, [s])[0]) for s in prose.sentences)
    needle = len(encode_all(plain_tokenizer, [" Anna lives near the Eiffel Tower."])[0])
    trial = build(recipe(prose, depth=1.0, length=whole + needle), plain_tokenizer)
    ids, _, end = context(trial, plain_tokenizer)
    assert end == len(ids) == whole + needle
    assert trial.depth_actual == 1.0
    assert trial.unique_share == 1.0


def test_a_needle_at_the_start_of_a_line_keeps_the_line_break(plain_tokenizer):
    text = "The gate is shut.\n\nThe lamp is lit.\n\nThe road is wet.\n\nThe barn is full and dry."
    trial = build(recipe(Haystack("lines", split_sentences(text)), length=60, depth=0.5), plain_tokenizer)
    ids, _, _ = context(trial, plain_tokenizer)
    before, _, after = plain_tokenizer.decode(ids).partition("Anna lives near the Eiffel Tower.")
    assert before.endswith(".\n\n")
    assert after.startswith(" The ")


@pytest.mark.parametrize(("length", "fits"), [(20, False), (26, True)])
def test_a_context_without_room_is_refused(plain_tokenizer, prose, length, fits):
    needle = len(encode_all(plain_tokenizer, [" Anna lives near the Eiffel Tower."])[0])
    asked = recipe(prose, length=needle + (8 if fits else 7))
    if fits:
        assert len(context(build(asked, plain_tokenizer), plain_tokenizer)[0]) == needle + 8
    else:
        with pytest.raises(ValueError, match=f"t-1: a context of {needle + 7} tokens has no room"):
            build(asked, plain_tokenizer)


# --- what the haystack must not hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "held"),
    [
        (" Later Anna came.", "answer"),
        (" It was ANNA's turn.", "answer"),
        (" In the annals of the town this is new.", None),
        (" Joanna came.", None),
        (" Marta lives near the\nold mill.", "needle"),
    ],
)
def test_a_haystack_with_needle_or_answer_is_refused(plain_tokenizer, prose, sentence, held):
    needle = "Marta lives near the old mill."
    asked = recipe(Haystack("mine", (*prose.sentences, sentence)), needle if held == "needle" else "Anna is here.")
    if held is None:
        assert build(asked, plain_tokenizer).answer == "Anna"
    else:
        with pytest.raises(ValueError, match=f"haystack 'mine' already holds the {held}"):
            build(asked, plain_tokenizer)


def test_a_repeating_haystack_is_recorded_and_warned_about(plain_tokenizer, prose):
    once = sum(len(encode_all(plain_tokenizer, [s])[0]) for s in prose.sentences)
    trial = build(recipe(prose, length=once * 10), plain_tokenizer)
    assert trial.unique_share == pytest.approx(0.1, abs=0.01)
    with pytest.warns(UserWarning, match=rf"1 of 2 contexts repeat.*{once * 10} tokens only 10\.\d%"):
        warn_if_repeating([trial, build(recipe(prose), plain_tokenizer)])


def test_a_file_that_repeats_itself_counts_as_repeating(plain_tokenizer):
    block = ("The grass is green.", " The sky is blue.", " Here we go.")
    haystack = Haystack("block", block + tuple(" " + s.strip() for s in block * 40))
    once = sum(len(encode_all(plain_tokenizer, [s])[0]) for s in block)
    trial = build(recipe(haystack, length=10 * once), plain_tokenizer)
    assert trial.unique_share == pytest.approx(0.1, abs=0.02)


def test_unique_contexts_warn_of_nothing(plain_tokenizer, prose, recwarn):
    warn_if_repeating([build(recipe(prose), plain_tokenizer), Trial.from_ids([1, 2, 3], (0, 1), "a")])
    assert not recwarn.list


# --- chat templates -------------------------------------------------------------------------------------------------


def test_thinking_is_switched_off_where_the_template_has_the_switch(make_tokenizer, prose):
    with_switch = build(recipe(prose), make_tokenizer("thinking"))
    assert make_tokenizer("thinking").decode(with_switch.prompt_ids).endswith("<think>\n\n</think>\n\n")
    without = build(recipe(prose), make_tokenizer("no BOS"))
    assert make_tokenizer("no BOS").decode(without.prompt_ids).endswith("<|assistant|>\n")


def test_a_thinking_block_that_the_template_opens_is_closed(make_tokenizer, prose):
    """Templates of models that always think (Qwen3-Thinking, OLMo-3-Think, R1) have no switch."""
    tokenizer = make_tokenizer("always thinks")
    trial = build(recipe(prose), tokenizer)
    text = tokenizer.decode(trial.prompt_ids)
    assert text.endswith("<|assistant|>\n<think>\n\n</think>\n\n")
    assert text.count("<think>") == text.count("</think>") == 1


SYSTEM = replace(PLAIN, system="You answer in one word.")


def test_a_system_message_gets_its_own_turn(make_tokenizer, prose):
    tokenizer = make_tokenizer("no BOS")
    text = tokenizer.decode(build(recipe(prose, template=SYSTEM), tokenizer).prompt_ids)
    assert "<|system|>\nYou answer in one word.<|end|>\n<|user|>\nText: " in text


@pytest.mark.parametrize("chat", ["no system", "drops system", None])
def test_a_system_message_is_never_lost(make_tokenizer, prose, chat):
    tokenizer = make_tokenizer(chat)
    text = tokenizer.decode(build(recipe(prose, template=SYSTEM), tokenizer).prompt_ids)
    assert text.count("You answer in one word.") == 1
    assert "You answer in one word.\n\nText: " in text


def test_a_template_that_drops_the_user_is_refused(make_tokenizer, prose):
    with pytest.raises(ValueError, match="drops or repeats"):
        build(recipe(prose), make_tokenizer("drops user"))


def test_the_frame_is_the_chat_template_cut_at_the_context(make_tokenizer):
    tokenizer = make_tokenizer("writes BOS")
    head, tail = frame(tokenizer, DEFAULT_TEMPLATE, QUESTION)
    user = f"{DEFAULT_TEMPLATE.before}XYZ{DEFAULT_TEMPLATE.after.format(question=QUESTION)}"
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(head) + "XYZ" + tokenizer.decode(tail) == whole


def test_a_template_without_a_question_is_refused():
    with pytest.raises(ValueError, match=r"\{question\}"):
        PromptTemplate(before="Read.", after="Answer.")


def test_braces_in_a_question_are_plain_text(plain_tokenizer):
    _, tail = frame(plain_tokenizer, PLAIN, "Who wrote {haystack} and {0}?")
    assert plain_tokenizer.decode(tail) == "\nQuestion: Who wrote {haystack} and {0}?"


# --- hashes ---------------------------------------------------------------------------------------------------------


def test_the_template_hash_follows_every_word(make_tokenizer):
    one, other = make_tokenizer("no BOS"), make_tokenizer("thinking")
    hashes = [
        template_hash(one, PLAIN),
        template_hash(other, PLAIN),
        template_hash(one, replace(PLAIN, before="Text:")),
        template_hash(one, replace(PLAIN, after="\nQuestion: {question} ")),
        template_hash(one, SYSTEM),
    ]
    assert len(set(hashes)) == len(hashes)
    assert template_hash(one, replace(PLAIN)) == hashes[0]


def test_trials_carry_template_hash_and_fingerprint(tokenizer, prose):
    trial = build(recipe(prose), tokenizer)
    assert trial.template == template_hash(tokenizer, PLAIN)
    assert trial.tokenizer == fingerprint(tokenizer)


def test_the_fingerprint_tells_tokenizers_apart_but_not_copies(make_tokenizer, tmp_path):
    one = make_tokenizer(bos=False)
    one.save_pretrained(tmp_path)
    copy = type(one).from_pretrained(tmp_path)
    assert fingerprint(copy) == fingerprint(one)
    assert fingerprint(make_tokenizer(kind="prefixed")) != fingerprint(one)
    before = fingerprint(copy)
    copy.add_tokens(["<new>"])
    assert fingerprint(copy) != before


def test_the_fingerprint_does_not_depend_on_what_was_padded_before(make_tokenizer, tmp_path):
    one = make_tokenizer()
    one.save_pretrained(tmp_path)
    copy = type(one).from_pretrained(tmp_path)
    copy.pad_token = copy.eos_token
    copy(["a", "a b c d e f"], padding=True, truncation=True, max_length=3)
    assert fingerprint(copy) == fingerprint(one)


def test_encode_all_continues_where_encode_start_starts(make_tokenizer):
    tokenizer = make_tokenizer(kind="prefixed")
    assert tokenizer.convert_ids_to_tokens(encode_start(tokenizer, ["Anna"])[0])[0].startswith("▁")
    assert not tokenizer.convert_ids_to_tokens(encode_all(tokenizer, ["Anna"])[0])[0].startswith("▁")
    plain = make_tokenizer()
    texts = ["Anna", " Anna", "\n\nAnna", "", "."]
    assert encode_all(plain, texts) == encode_start(plain, texts)
