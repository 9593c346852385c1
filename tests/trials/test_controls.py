"""Closed-book sets: the facts, the sums, PopQA's format (the rows here are our own), and prompts without a needle."""

import json
import re
from collections import Counter

import pandas as pd
import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.scoring.run import score_heads
from locos_tl.trials.controls import (
    OPERATIONS,
    arithmetic,
    bundled_cities,
    city_country,
    number_word,
    popqa,
    problems,
)
from locos_tl.trials.needle import PromptTemplate
from locos_tl.trials.trial import read_trials, save_trials
from tests import tiny

WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
SETS = {"city_country": city_country, "arithmetic": arithmetic}


# --- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_a_prompt_is_instruction_and_question_in_one_chat_turn(name, tokenizer):
    for trial in SETS[name](6, tokenizer=tokenizer):
        text = tokenizer.decode(trial.prompt_ids)
        assert text.count("<s>") == 1
        assert text.startswith("<s>")
        assert text.count(trial.question) == 1
        assert text.index("Answer") < text.index(trial.question)
        assert text.endswith("<|assistant|>\n")
        assert trial.needle_span is None
        assert (trial.supports, trial.needle, trial.kind) == ((), "", "closed_book")
        assert trial.tokenizer
        assert trial.template


@pytest.mark.parametrize("name", SETS)
def test_without_a_chat_template_a_cue_invites_the_answer(name, plain_tokenizer):
    for trial in SETS[name](3, tokenizer=plain_tokenizer):
        assert plain_tokenizer.decode(trial.prompt_ids).endswith("\nAnswer:")


@pytest.mark.parametrize("name", SETS)
def test_the_seed_decides_and_every_prompt_is_there_once(name, plain_tokenizer):
    ids = [[t.prompt_ids for t in SETS[name](40, seed=seed, tokenizer=plain_tokenizer)] for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]
    assert len(set(ids[0])) == 40
    grid = SETS[name](40)
    assert len({recipe.trial_id for recipe in grid.recipes}) == 40


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n", [0, -1, 1000])
def test_impossible_numbers_are_refused(name, n):
    with pytest.raises(ValueError, match=f"n must be at least 1, got {n}|cannot be had; ask for"):
        SETS[name](n)


def test_the_template_can_be_changed(plain_tokenizer):
    template = PromptTemplate(before="Hm.\n", after="{question} So?")
    trial = city_country(1, template=template, tokenizer=plain_tokenizer)[0]
    assert plain_tokenizer.decode(trial.prompt_ids) == f"Hm.\n{trial.question} So?"


def test_closed_book_trials_survive_a_file(tmp_path, plain_tokenizer):
    trials = list(city_country(5, tokenizer=plain_tokenizer))
    assert read_trials(save_trials(tmp_path / "t.jsonl", trials)) == trials


def test_closed_book_trials_are_not_scored(tiny_model):
    """The tiny tokenizer reads most words as unknown; the refusal is about the needle."""
    trials = city_country(2, tokenizer=tiny.tokenizer())
    with pytest.raises(ValueError, match=r"trial 'city-country-42-0000' has no needle \(closed book\)"):
        score_heads(tiny_model("llama"), trials, detectors="locos")


@pytest.mark.bundled
def test_the_bundled_model_knows_some_of_it(bundled):
    from locos_tl import generate
    from locos_tl.scoring.answers import decode_text
    from locos_tl.scoring.metrics import METRICS

    hits = []
    for trial in [*city_country(6).bind(bundled), *arithmetic(6).bind(bundled)]:
        text = decode_text(bundled.tokenizer, generate(bundled, trial, 20).generated_ids)
        hits.append(METRICS["contains"](text, trial.answers))
    assert sum(hits) >= 4


# --- facts ----------------------------------------------------------------------------------------------------------


def test_the_facts_are_many_and_unambiguous():
    cities = bundled_cities()
    assert len(cities) >= 150
    assert max(Counter(city.casefold() for city, _, _ in cities).values()) == 1
    assert len({country for _, country, _ in cities}) >= 60
    for city, country, aliases in cities:
        assert country not in aliases
        assert len(set(aliases)) == len(aliases)
        for name in (country, *aliases):
            assert name == name.strip() != ""
            assert not re.search(rf"\b{re.escape(name)}\b", city), f"{city} gives {name} away"


def test_other_names_of_a_country_are_aliases():
    named = {city: {country, *aliases} for city, country, aliases in bundled_cities()}
    assert named["Chicago"] >= {"United States", "USA", "America", "US"}
    assert named["London"] >= {"United Kingdom", "UK", "England"}
    assert "England" not in named["Edinburgh"]
    assert "Holland" in named["Rotterdam"]


# --- arithmetic -----------------------------------------------------------------------------------------------------


def everything():
    return {name: problems(name) for name in OPERATIONS}


def test_every_sum_is_right():
    for name, sums in everything().items():
        for left, right, result in sums:
            assert result == {"addition": left + right, "subtraction": left - right}.get(name, left * right)
            assert result >= 0
            assert result not in (left, right)  # an echo of the question is no answer
    assert {name: len(sums) for name, sums in everything().items()} == {
        "addition": 81,
        "subtraction": 41,
        "multiplication": 64,
    }


def test_arithmetic_is_balanced_and_holds_digits_and_words():
    recipes = arithmetic(100).recipes
    assert sorted(Counter(r.relation for r in recipes).values()) == [33, 33, 34]
    assert len({r.text for r in recipes}) == 100
    for recipe in recipes:
        left, sign, right = re.search(r"(\d) (.) (\d)\?", recipe.text).groups()
        result = {"+": int(left) + int(right), "-": int(left) - int(right)}.get(sign, int(left) * int(right))
        assert (recipe.answer, recipe.aliases) == (str(result), (number_word(result),))


def test_number_words():
    assert [number_word(i) for i in range(20)] == WORDS.split()
    assert [number_word(i) for i in (20, 21, 35, 40, 81, 90, 99)] == [
        "twenty",
        "twenty-one",
        "thirty-five",
        "forty",
        "eighty-one",
        "ninety",
        "ninety-nine",
    ]


def test_operations_are_chosen():
    assert {r.relation for r in arithmetic(5, operations="addition").recipes} == {"addition"}
    with pytest.raises(ValueError, match="unknown operation 'division'; choose from addition"):
        arithmetic(5, operations=("division",))
    with pytest.raises(ValueError, match="unknown operation none"):
        arithmetic(5, operations=())
    with pytest.raises(ValueError, match="subtraction holds 41 problems, so n=42 cannot be had; ask for 41 at most"):
        arithmetic(42, operations="subtraction")


@pytest.mark.parametrize("seed", range(4))
def test_a_balanced_draw_ends_with_the_smallest_operation(seed):
    """Whatever the seed: 41 of each."""
    assert len(arithmetic(123, seed=seed).recipes) == 123
    assert len(arithmetic(128, operations=("addition", "multiplication"), seed=seed).recipes) == 128
    with pytest.raises(ValueError, match="subtraction holds 41 problems, so n=124 cannot be had; ask for 123 at most"):
        arithmetic(124, seed=seed)


# --- PopQA ----------------------------------------------------------------------------------------------------------

QUESTIONS = [
    ("What is Wenna Hale's trade?", ["potter", "ceramist", "potter"], 500),
    ("In what town was Bram Oak born?", ["Millford"], 90),
    ("Who wrote Grey Tides?", ["Odile Fenn", "O. Fenn"], 7000),
    ("Who wrote Grey Tides?", ["Tariq Moss"], 12),
    ("What is the capital of Nowhere?", ['Some "Place"'], 3),
]


def popqa_rows():
    return [
        {
            "id": i,
            "subj": "x",
            "prop": "p",
            "obj": a[0],
            "s_pop": pop,
            "o_pop": 1,
            "question": q,
            "possible_answers": json.dumps(a),
        }
        for i, (q, a, pop) in enumerate(QUESTIONS)
    ]


def popqa_file(path, rows):
    table = pd.DataFrame(rows)
    match path.suffix:
        case ".tsv":
            table.to_csv(path, sep="\t", index=False)
        case ".parquet":
            table.to_parquet(path)
        case _:
            path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize("name", ["test.tsv", "popqa.parquet", "popqa.jsonl"])
def test_popqa_takes_the_most_popular_subjects(tmp_path, name, plain_tokenizer):
    path = popqa_file(tmp_path / name, popqa_rows())
    grid = popqa(2, path=path, tokenizer=plain_tokenizer)
    assert {t.question for t in grid} == {"Who wrote Grey Tides?", "What is Wenna Hale's trade?"}
    answers = {t.question: t.answers for t in grid}
    assert answers["Who wrote Grey Tides?"] == ("Odile Fenn", "O. Fenn", "Tariq Moss")
    assert answers["What is Wenna Hale's trade?"] == ("potter", "ceramist")
    assert {t.relation for t in grid} == {"p"}
    assert {r.text for r in popqa(4, path=tmp_path).recipes} == {q for q, _, _ in QUESTIONS}
    with pytest.raises(ValueError, match="popqa holds 4 questions, so n=5"):
        popqa(5, path=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"possible_answers": "[1"}, "line 3, field 'possible_answers': not a JSON list"),
        ({"possible_answers": "[]"}, "line 3, field 'possible_answers': missing, empty"),
        ({"possible_answers": "[3]"}, "line 3, field 'possible_answers'.*list of texts"),
        ({"possible_answers": '"x"'}, "line 3, field 'possible_answers'.*list of texts"),
        ({"question": ""}, "line 3, field 'question': missing"),
        ({"s_pop": "many"}, "line 3, field 's_pop': missing or not a finite number"),
        ({"s_pop": "nan"}, "line 3, field 's_pop': missing or not a finite number"),
        ({"s_pop": "-inf"}, "line 3, field 's_pop': missing or not a finite number"),
        ({"s_pop": "9" * 5000}, "line 3, field 's_pop': missing or not a finite number"),
    ],
)
def test_a_malformed_row_of_popqa_is_named(tmp_path, change, message):
    rows = popqa_rows()
    rows[1] = {**rows[1], **change}
    with pytest.raises(ResultFileError, match=rf"test\.tsv, {message}"):
        popqa(2, path=popqa_file(tmp_path / "test.tsv", rows))


def test_a_popularity_beyond_all_numbers_is_named(tmp_path):
    rows = popqa_rows()
    rows[1]["s_pop"] = 10**400
    with pytest.raises(ResultFileError, match=r"test\.jsonl, line 2, field 's_pop'"):
        popqa(2, path=popqa_file(tmp_path / "test.jsonl", rows))


def test_a_missing_column_of_popqa_is_named(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "s_pop"} for row in popqa_rows()]
    with pytest.raises(ResultFileError, match="line 2, field 's_pop'"):
        popqa(2, path=popqa_file(tmp_path / "test.tsv", rows))
