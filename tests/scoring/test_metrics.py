"""Text metrics against hand-computed values and a slow reference (A14)."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locos_tl.scoring.metrics import METRICS, extract_answer, normalise, sole_label
from locos_tl.trials.babilong import LABELS

PARK = ["eat a sandwich in the park"]
WORDY = "According to the text, you should eat a sandwich in the park on a sunny day."
WRONG = "It is best to read a book in the park"


def test_the_registry_holds_them_all():
    assert set(METRICS) == {"rouge_l", "contains", "exact", "em", "f1", "subspan"}
    assert all(METRICS[name].__doc__ for name in METRICS)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("text", ["", " \n", "...", "Answer:", '""'])
def test_an_empty_answer_is_worth_nothing(name, text):
    assert METRICS[name](text, ["Yuki"]) == 0.0
    assert METRICS[name](text, ["Yuki", "Omar"]) == 0.0


@pytest.mark.parametrize("name", METRICS)
def test_the_best_alias_counts(name):
    metric = METRICS[name]
    assert metric("Holland", ["Netherlands", "Holland"]) == 1.0
    assert metric("Holland", ["Netherlands"]) == 0.0
    assert metric("Holland", ["Netherlands", "Belgium"]) == max(
        metric("Holland", [a]) for a in ("Netherlands", "Belgium")
    )


@pytest.mark.parametrize("answers", [[], "Yuki", ()])
def test_answers_are_a_list(answers):
    with pytest.raises(ValueError, match="at least one gold answer"):
        METRICS["em"]("Yuki", answers)


# --- what each of them makes of wordy, wrong and evasive answers (A14) ----------------------------------------------


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence():
    """16 words, 6 of them the gold's, in order: 2 x 6 / (16 + 6)."""
    assert METRICS["rouge_l"](WORDY, PARK) == pytest.approx(12 / 22)
    # "a ... in the park": 4 common words of 10 and 6
    assert METRICS["rouge_l"](WRONG, PARK) == pytest.approx(8 / 16)
    assert METRICS["rouge_l"]("park the in sandwich a eat", PARK) == pytest.approx(1 / 6)
    assert METRICS["rouge_l"]("They were walking", ["walk"]) == pytest.approx(2 / 4)


@pytest.mark.parametrize(("text", "right"), [(WORDY, 1.0), (WRONG, 0.0), ("Eat a\nsandwich in the PARK!", 1.0)])
def test_containment_tells_the_wordy_right_answer_from_the_echo(text, right):
    assert METRICS["contains"](text, PARK) == right
    assert METRICS["subspan"](text, PARK) == right


def test_containment_is_of_whole_words():
    assert METRICS["contains"]("Nigeria", ["Niger"]) == 0.0
    assert METRICS["subspan"]("Nigeria", ["Niger"]) == 0.0
    assert METRICS["contains"]("the Paris-based firm", ["Paris"]) == 1.0
    assert METRICS["contains"]("It is 12.", ["2"]) == 0.0
    assert METRICS["contains"]("in the U.S. today", ["U.S."]) == 1.0
    assert METRICS["contains"]("c++ (1985)", ["C++"]) == 1.0


@pytest.mark.parametrize(
    ("text", "wanted", "right"),
    [
        ("It is -7.", "7", 0.0),
        ("It is \N{MINUS SIGN}7.", "7", 0.0),
        ("It is \N{MINUS SIGN}7.", "-7", 1.0),
        ("It is 12.7", "7", 0.0),
        ("7.5", "7", 0.0),
        ("= .7", "7", 0.0),
        ("7,000", "7", 0.0),
        ("7/2", "7", 0.0),
        ("2/7", "7", 0.0),
        ("3.5 of 35", "35", 1.0),
        ("3.5", "35", 0.0),
        ("It is 7.", "7", 1.0),
        ("...7, or 8", "7", 1.0),
        ("12-7=5", "7", 1.0),
        ("12 - 7", "7", 1.0),
        ("12-7", "-7", 0.0),
        ("Apollo-7", "7", 1.0),
        ("(7)", "7", 1.0),
    ],
)
def test_containment_is_of_whole_numbers(text, wanted, right):
    assert METRICS["contains"](text, [wanted]) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [("7.", 1.0), ("(7)", 1.0), ("...7", 1.0), ("$7", 1.0), ("-7", 0.0), ("**-7**", 0.0), (".7", 0.0), ("7/2", 0.0)],
)
def test_the_sign_belongs_to_the_exact_answer(text, right):
    assert METRICS["exact"](text, ["7"]) == right
    assert METRICS["exact"](text, [text]) == 1.0


@pytest.mark.parametrize("name", ["em", "f1", "subspan"])
def test_the_published_normalisation_drops_the_marks_of_numbers(name):
    """Told in the docstrings: these follow SQuAD to the letter."""
    assert METRICS[name]("3.5", ["35"]) == METRICS[name]("-7", ["7"]) == 1.0


@pytest.mark.parametrize(
    ("text", "wanted", "right"),
    [
        ("答案是东京。", "东京", 1.0),
        ("答案是Paris。", "Paris", 1.0),
        ("答案是7。", "7", 1.0),
        ("答案是-7。", "7", 0.0),
        ("คำตอบคือกรุงเทพ", "กรุงเทพ", 1.0),
        ("それは京都です", "奈良", 0.0),
    ],
)
def test_containment_where_words_have_no_spaces(text, wanted, right):
    assert METRICS["contains"](text, [wanted]) == right


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("gold", ["", " "])
def test_an_empty_gold_answer_is_worth_nothing(name, gold):
    assert METRICS[name]("the", [gold]) == 0.0
    assert METRICS[name]("Yuki", [gold, "Yuki"]) == 1.0


def test_subspan_ignores_articles_and_punctuation_where_contains_does_not():
    assert METRICS["subspan"]("He saw Lord of Rings, twice", ["The Lord of the Rings"]) == 1.0
    assert METRICS["contains"]("He saw Lord of Rings, twice", ["The Lord of the Rings"]) == 0.0
    assert METRICS["subspan"]("a, b", ["the"]) == 0.0  # nothing is left of the gold


def test_the_answer_inside_a_denial():
    text = "Not the bathroom, the kitchen."
    assert METRICS["subspan"](text, ["bathroom"]) == 1.0  # told in the docstring
    assert sole_label(text, ["bathroom"], LABELS) == 0.0
    assert sole_label("It is in the Kitchen. Before, it was in the office.", ["kitchen"], LABELS) == 1.0
    assert sole_label("the bathroom", ["kitchen"], LABELS) == 0.0
    assert sole_label("", ["kitchen"], LABELS) == 0.0
    assert sole_label(", ".join(LABELS), ["kitchen"], LABELS) == 0.0


def test_a_label_of_the_question_is_no_answer():
    question = "Where was the football before the bathroom?"
    text = "It was in the kitchen before the bathroom"
    assert sole_label(text, ["kitchen"], LABELS, question) == 1.0
    assert sole_label(text, ["kitchen"], LABELS) == 0.0


def test_exact_is_stricter_than_em():
    for text in ("Yes.", "yes", "Answer: Yes", "The answer is yes.", '"Yes"', "**Yes**\nbecause it is so"):
        assert METRICS["exact"](text, ["yes"]) == METRICS["em"](text, ["yes"]) == 1.0
    assert (METRICS["exact"]("Hague", ["The Hague"]), METRICS["em"]("Hague", ["The Hague"])) == (0.0, 1.0)
    assert (METRICS["exact"]("dont", ["don't"]), METRICS["em"]("dont", ["don't"])) == (0.0, 1.0)
    assert METRICS["em"]("Yes, he did", ["yes"]) == METRICS["exact"]("Yes, he did", ["yes"]) == 0.0


def test_f1_by_hand():
    assert METRICS["f1"]("The Charles Bridge in Prague", ["Charles Bridge"]) == pytest.approx(2 * 2 / (4 + 2))
    assert METRICS["f1"]("new new york", ["New York"]) == pytest.approx(2 * 2 / (3 + 2))
    assert METRICS["f1"]("London", ["New York"]) == 0.0
    assert METRICS["f1"]("The answer is: New York.\nIt is large.", ["York", "New York"]) == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris", "Paris"),
        ("\n\n  Paris.  \nIt lies on the Seine.", "Paris"),
        ("Answer: Paris.", "Paris"),
        ("A: Paris", "Paris"),
        ("The answer is Paris.", "Paris"),
        ("So, the final answer is: **Paris**.", "Paris"),
        ("Answer: The answer is 'Paris'", "Paris"),
        ('"Paris."', "Paris"),
        ("“Paris”", "Paris"),
        ("Answer", "Answer"),
        ("Answers vary: Paris", "Answers vary: Paris"),
        ("A train to Paris", "A train to Paris"),
        ("Answer:\nParis", "Paris"),
        ("", ""),
    ],
)
def test_the_answer_is_taken_out_of_its_wrapping(text, answer):
    assert extract_answer(text) == answer


# --- a slow reference -----------------------------------------------------------------------------------------------


def slow_words(text):
    """SQuAD's normalisation, character by character and word by word."""
    kept = ""
    for character in text.lower():
        if character not in string.punctuation:
            kept += character
    words = []
    for part in re.split(r"(\W+)", kept):
        words.append(" " if part in ("a", "an", "the") else part)
    return "".join(words).split()


def slow_f1(given, wanted):
    left, shared = list(wanted), 0
    for word in given:
        if word in left:
            left.remove(word)
            shared += 1
    if not given or not wanted:
        return float(given == wanted)
    if shared == 0:
        return 0.0
    precision, recall = shared / len(given), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


WORDS = ("the", "a", "an", "New", "york,", "York", "bridge.", "U.S.", "don't", "(old)", "is-a", "—", "Été")
PHRASE = st.lists(st.sampled_from(WORDS), max_size=7)


@given(PHRASE, st.lists(PHRASE.filter(bool), min_size=1, max_size=3))
def test_em_and_f1_agree_with_the_slow_reference(given_words, gold_words):
    text, answers = " ".join(given_words), [" ".join(words) for words in gold_words]
    assert normalise(text).split() == slow_words(text)
    answer = extract_answer(text)
    if not answer:
        assert METRICS["em"](text, answers) == METRICS["f1"](text, answers) == 0.0
        return
    wanted = [slow_words(gold) for gold in answers]
    assert METRICS["em"](text, answers) == max(float(slow_words(answer) == words) for words in wanted)
    assert METRICS["f1"](text, answers) == pytest.approx(max(slow_f1(slow_words(answer), words) for words in wanted))


@given(st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_every_metric_stays_between_0_and_1_on_any_text(text, gold):
    for metric in METRICS.values():
        assert 0.0 <= metric(text, [gold]) <= 1.0
