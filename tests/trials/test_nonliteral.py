"""The bundled set: what it promises about words and names, how trials are drawn, and needles of one's own."""

import json
import random
import re
from collections import Counter
from itertools import product

import pytest
from nltk.stem.porter import PorterStemmer

from locos_tl.results.files import ResultFileError
from locos_tl.trials.haystack import bundled_haystack
from locos_tl.trials.needle import PromptTemplate
from locos_tl.trials.nonliteral import (
    DEPTHS,
    KINDS,
    LENGTHS,
    balanced,
    balanced_pairs,
    bundled_names,
    bundled_needles,
    custom,
    five_orders,
    grid_cells,
    nonliteral,
)

STOP = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these those and or but of to in on at by for with from into over under up down out off
        past around round along inside outside near next behind before after during without within through across
        between is are was were be been being am has have had do does did can could will would may might must should
        shall he she it they them his her its their who whom whose which what where when how why as than then there
        here not no so very too also just only more most some any each every all both few own same other such one two
        once s t""",
    )
)
STEM = PorterStemmer().stem


def stems(text):
    """Stems of the content words."""
    words = re.findall(r"[^\W_]+", text.replace("{CHAR}", " ").lower())
    return {STEM(word) for word in words if word not in STOP}


# --- the data -------------------------------------------------------------------------------------------------------


def test_the_set_is_large_and_varied():
    needles = bundled_needles()
    assert len(needles) >= 40
    assert len({n.relation for n in needles}) >= 6
    assert len({n.needle_id for n in needles}) == len(needles)
    assert len({n.text for n in needles}) == len(needles)
    assert min(Counter(n.relation for n in needles).values()) >= 3


@pytest.mark.parametrize("needle", bundled_needles(), ids=lambda needle: needle.needle_id)
def test_a_needle_shares_no_content_word_with_its_questions(needle):
    """Non-literal: no stem in common. Literal: most of the question's stems are the needle's."""
    assert needle.text.count("{CHAR}") == 1
    for kind in ("onehop", "twohop"):
        question = needle.questions[kind]
        assert "{CHAR}" not in question
        assert question.endswith("?")
        assert stems(question) & stems(needle.text) == set()
    literal = stems(needle.questions["literal"]) - {STEM("character")}
    assert literal <= stems(needle.text)
    assert len(literal) >= 2


def test_names_are_single_words_that_the_prose_and_the_needles_lack():
    names = bundled_names()
    assert len(names) >= 12
    assert len({name.lower() for name in names}) == len(names)
    words = " ".join(n.text + " " + " ".join(n.questions.values()) for n in bundled_needles())
    for name in names:
        assert re.fullmatch(r"\w+", name)
        assert not bundled_haystack().contains(name)
        assert not re.search(rf"\b{name}\b", words, re.IGNORECASE)


def test_no_needle_stands_in_the_prose():
    for needle in bundled_needles():
        fixed = max(needle.text.split("{CHAR}"), key=len).strip(" .")
        assert not bundled_haystack().contains(fixed)


# --- drawing --------------------------------------------------------------------------------------------------------


def spread(values):
    counts = Counter(values).values()
    return max(counts) - min(counts)


@pytest.mark.parametrize("n", [40, 60, 73, 100, 219])
def test_every_margin_is_balanced(n):
    """Lengths, depths, their pairs, kinds, needles, names, haystacks: each equally often, give or take one."""
    recipes = nonliteral(n, kinds=KINDS).recipes
    assert len(recipes) == n
    assert {r.length for r in recipes} == set(LENGTHS)
    assert {r.depth for r in recipes} == set(DEPTHS)
    assert Counter(r.kind for r in recipes).keys() == set(KINDS)
    assert spread(r.length for r in recipes) <= 1
    assert spread(r.depth for r in recipes) <= 1
    assert spread((r.length, r.depth) for r in recipes) <= 1
    assert spread(r.kind for r in recipes) <= 1
    assert spread(r.needle_id for r in recipes) <= 1
    assert spread(r.answer for r in recipes) <= 1
    assert spread(r.haystack.name for r in recipes) <= 1


@pytest.mark.parametrize(("a", "b"), product([1, 2, 4, 6], [1, 3, 4, 9]))
def test_balanced_pairs_cover_every_pair_before_any_comes_again(a, b):
    for n in (1, a, a * b - 1, a * b, a * b + 1, 2 * a * b + 3):
        if n < 1:
            continue
        pairs = balanced_pairs(range(a), range(b), n, random.Random(n))
        counts = Counter(pairs)
        assert sum(counts.values()) == n
        assert max(counts.values()) == -(-n // (a * b))
        for side, size in ((0, a), (1, b)):
            times = Counter(pair[side] for pair in pairs)
            assert max(times.values()) - min(times.get(i, 0) for i in range(size)) <= 1


def test_balanced_draws_every_item_before_any_comes_again():
    drawn = balanced("abcd", 10, random.Random(0))
    assert sorted(Counter(drawn).values()) == [2, 2, 3, 3]


def test_the_same_seed_makes_the_same_trials_and_another_seed_others(plain_tokenizer):
    one = list(nonliteral(6, tokenizer=plain_tokenizer))
    again = list(nonliteral(6, tokenizer=plain_tokenizer))
    other = list(nonliteral(6, tokenizer=plain_tokenizer, seed=43))
    assert one == again
    assert not {t.prompt_ids for t in one} & {t.prompt_ids for t in other}
    assert len({t.trial_id for t in one + other}) == 12


def test_a_small_draw_is_not_always_the_same_needles():
    drawn = [frozenset(r.needle_id for r in nonliteral(8, seed=seed).recipes) for seed in range(5)]
    assert len(set(drawn)) == 5
    assert len(frozenset.union(*drawn)) > 20


def test_literal_twins_differ_in_the_question_only():
    for asked, twin in zip(nonliteral(30).recipes, nonliteral(30, kinds="literal").recipes, strict=True):
        assert (asked.needle, asked.answer, asked.length, asked.depth, asked.haystack) == (
            twin.needle,
            twin.answer,
            twin.length,
            twin.depth,
            twin.haystack,
        )
        assert asked.question != twin.question
        assert (asked.literal, twin.literal) == (False, True)


def test_trials_are_what_their_recipes_say(tokenizer):
    for trial in nonliteral(20, kinds=KINDS, tokenizer=tokenizer):
        start, end = trial.needle_span
        decoded = tokenizer.decode(trial.prompt_ids[start:end]).strip()
        assert decoded == trial.needle
        assert trial.answer in trial.needle
        assert "{" not in trial.needle + trial.question
        assert tokenizer.decode(trial.prompt_ids).count(trial.answer) == 1
        assert trial.unique_share == 1.0
        assert trial.length in LENGTHS


def test_a_grid_builds_nothing_until_it_is_read(plain_tokenizer, monkeypatch):
    """No tokenizer is needed to look at a grid's recipes, and none is loaded."""
    monkeypatch.setattr("locos_tl.models.bundled.ensure", lambda name: pytest.fail("loaded a tokenizer"))
    grid = nonliteral(5)
    assert len(grid[1:3]) == 2
    assert grid.bind(plain_tokenizer)[0].tokenizer


def test_five_orders_are_five():
    orders = five_orders(bundled_haystack(), 42)
    assert len({order.sentences for order in orders}) == 5
    assert len({order.name for order in orders}) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"kinds": ("threehop",)}, "unknown kind .*threehop.*onehop, twohop, literal"),
        ({"kinds": ()}, "at least one kind"),
        ({"lengths": ()}, "at least one length"),
        ({"depths": ()}, "at least one length and one depth"),
        ({"lengths": (0,)}, "length 0"),
        ({"depths": (50.0,)}, r"depth 50\.0 is outside 0 to 1 \(50 % is 0\.5\)"),
        ({"depths": (float("nan"),)}, "depth nan"),
    ],
)
def test_impossible_grids_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        nonliteral(**options)


def test_a_haystack_of_ones_own_takes_away_the_names_in_it(tmp_path, plain_tokenizer, long_prose):
    path = tmp_path / "mine.txt"
    path.write_text("".join(long_prose.sentences) + " Anna met Peter.", encoding="utf-8")
    trials = list(nonliteral(60, haystack=path, lengths=(64,), tokenizer=plain_tokenizer))
    assert {t.haystack for t in trials} == {"mine"}
    assert {t.answer for t in trials} == set(bundled_names()) - {"Anna", "Peter"}


def test_a_haystack_with_every_name_is_refused(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(" met ".join(bundled_names()) + ".", encoding="utf-8")
    with pytest.raises(ValueError, match=r"every name occurs in the haystack.*mine"):
        nonliteral(5, haystack=path)


def test_the_template_is_the_users(plain_tokenizer):
    template = PromptTemplate(before="BOOK: ", after="\nQ: {question}\nA:")
    trial = nonliteral(1, template=template, tokenizer=plain_tokenizer)[0]
    text = plain_tokenizer.decode(trial.prompt_ids)
    assert text.startswith("BOOK: ")
    assert text.endswith(f"\nQ: {trial.question}\nA:")
    assert trial.template != nonliteral(1, tokenizer=plain_tokenizer)[0].template


def test_cells_take_whole_numbers_from_any_iterable():
    cells = grid_cells(iter([10, 20]), iter([0.0, 1.0]), 4, random.Random(0))
    assert sorted(cells) == [(10, 0.0), (10, 1.0), (20, 0.0), (20, 1.0)]


# --- needles of one's own -------------------------------------------------------------------------------------------

ROWS = [
    {
        "id": "a",
        "relation": "colour",
        "needle": "{CHAR} painted the fence teal.",
        "question": "Who likes green-blue?",
        "answer": "Zelda",
    },
    {
        "id": "b",
        "relation": "work",
        "needle": "Quentin bakes rye loaves.",
        "question": "Who is a baker?",
        "answer": "Quentin",
    },
]


def write(tmp_path, *rows):
    path = tmp_path / "needles.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_five_fields_are_enough(tmp_path, tokenizer):
    trials = list(custom(write(tmp_path, *ROWS), tokenizer=tokenizer))
    assert {t.needle for t in trials} == {"Zelda painted the fence teal.", "Quentin bakes rye loaves."}
    assert {(t.needle_id, t.relation, t.kind, t.literal) for t in trials} == {
        ("a", "colour", "custom", None),
        ("b", "work", "custom", None),
    }
    for trial in trials:
        start, end = trial.needle_span
        assert tokenizer.decode(trial.prompt_ids[start:end]).strip() == trial.needle


def test_the_sixth_field_says_literal(tmp_path):
    recipes = custom(write(tmp_path, ROWS[0] | {"literal": True}, ROWS[1] | {"literal": False}), 2).recipes
    assert {(r.needle_id, r.literal, r.kind) for r in recipes} == {("a", True, "literal"), ("b", False, "custom")}


def test_n_may_exceed_the_needles(tmp_path):
    grid = custom(write(tmp_path, *ROWS), 7, lengths=(64, 128), depths=(0.0, 1.0), seed=1)
    assert spread(r.needle_id for r in grid.recipes) <= 1
    assert len({r.trial_id for r in grid.recipes}) == 7


@pytest.mark.parametrize("field", ["id", "relation", "needle", "question", "answer"])
@pytest.mark.parametrize("value", [None, "", "  ", 7, ["x"]])
def test_a_bad_field_is_named_with_its_needle(tmp_path, field, value):
    row = {k: v for k, v in ROWS[1].items() if k != field} | ({} if value is None else {field: value})
    with pytest.raises(ResultFileError, match=f"needle 2: the field {field!r}"):
        custom(write(tmp_path, ROWS[0], row))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "needle 2: not a JSON object"),
        (ROWS[1] | {"answer": "Marta"}, "needle 2: the answer 'Marta' does not occur in the needle"),
        (ROWS[1] | {"literal": "false"}, "needle 2: the field 'literal'"),
        ("{oops", "line 2"),
    ],
)
def test_other_faults_are_named_too(tmp_path, row, message):
    with pytest.raises(ResultFileError, match=message):
        custom(write(tmp_path, ROWS[0], row))


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(ResultFileError, match="holds no needles"):
        custom(write(tmp_path, ""))
