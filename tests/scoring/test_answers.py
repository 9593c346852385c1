"""Gate and answer steps (A04, A14, A22)."""

from __future__ import annotations

import pytest

from locos_tl.scoring.answers import GATE_THRESHOLD, answer_steps, decode_text, rouge1_recall, settled
from tests import tiny

tok = tiny.tokenizer()
YUKI, OMAR, ANNA, LEE, THE, IS = 3, 4, 5, 6, 7, 9


def test_gate_is_recall_with_stemming():
    gold = "eat a sandwich in the park"
    assert rouge1_recall("It is best to read a book in the park", gold) == pytest.approx(400 / 6)
    assert rouge1_recall("They were walking", "walk") == 100.0
    assert rouge1_recall("", gold) == 0.0
    assert rouge1_recall("Yuki!", "yuki") == 100.0


def test_first_contiguous_occurrence():
    assert answer_steps(tok, [THE, YUKI, IS, YUKI], "Yuki") == (1,)
    assert answer_steps(tok, [ANNA, THE, ANNA, LEE, IS], "Anna Lee") == (2, 3)
    assert answer_steps(tok, [THE, IS], "Yuki") == ()
    assert answer_steps(tok, [], "Yuki") == ()


def test_text_fallback_takes_every_overlapping_token(bundled):
    """Another casing has other ids; the steps are the tokens whose text overlaps it."""
    t = bundled.tokenizer
    ids = t("It was ADAM who came", add_special_tokens=False)["input_ids"]
    steps = answer_steps(t, ids, "Adam")
    assert steps
    assert "ADAM" in t.decode([ids[i] for i in steps])
    assert "was" not in t.decode([ids[i] for i in steps])


def test_ids_are_never_reencoded(bundled):
    """A04: a generation whose text would tokenise differently keeps its own ids and steps."""
    t = bundled.tokenizer
    pieces = [i for part in (" Ad", "am", " came") for i in t(part, add_special_tokens=False)["input_ids"]]
    text = t.decode(pieces)
    assert t(text, add_special_tokens=False)["input_ids"] != pieces
    assert answer_steps(t, pieces, "Adam") == tuple(range(len(t(" Ad", add_special_tokens=False)["input_ids"]) + 1))


def test_thinking_does_not_count(bundled):
    t = bundled.tokenizer
    encode = lambda text: t(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    thought = encode("<think>Maybe Adam?</think>")
    ids = [*thought, *encode(" It is Linda")]
    assert "Adam" not in decode_text(t, ids)
    assert answer_steps(t, ids, "Adam") == ()
    steps = answer_steps(t, [*thought, *encode(" It is Adam")], "Adam")
    assert min(steps) >= len(thought)
    assert decode_text(t, encode("<think>It must be Adam")) == ""
    assert answer_steps(t, encode("<think>It must be Adam"), "Adam") == ()


def test_settled_only_when_nothing_can_change():
    assert not settled(tok, [THE, IS], "Yuki")
    assert not settled(tok, [THE, YUKI], "Yuki")  # the word could still grow
    assert settled(tok, [THE, YUKI, IS], "Yuki")
    assert not settled(tok, [THE, ANNA, IS], "Anna Lee")
    assert settled(tok, [THE, ANNA, LEE, IS], "Anna Lee")


def test_threshold():
    assert GATE_THRESHOLD == 50.0
    assert not rouge1_recall("Anna", "Anna Lee") > GATE_THRESHOLD  # exactly 50 does not pass
