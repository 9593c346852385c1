"""`Trial` and `TrialGrid`: what they refuse, what survives a file, and when trials are built."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locos_tl.results.files import ResultFileError
from locos_tl.trials.trial import Trial, TrialGrid, read_trials, save_trials


def test_from_ids_keeps_ids_and_span():
    trial = Trial.from_ids([5, 6, 7, 8, 9], needle=(1, 3), answer="Anna", question="Who?")
    assert trial.prompt_ids == (5, 6, 7, 8, 9)
    assert trial.needle_span == (1, 3)
    assert trial.n_tokens == 5
    assert trial.question == "Who?"


@pytest.mark.parametrize("make", [torch.tensor, np.array, tuple, iter], ids=["torch", "numpy", "tuple", "iterator"])
def test_from_ids_takes_every_sequence_of_integers(make):
    trial = Trial.from_ids(make([1, 2, 3]), (0, 1), "x")
    assert trial.prompt_ids == (1, 2, 3)
    assert all(type(i) is int for i in trial.prompt_ids)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((2, 2), "empty"),
        ((3, 2), "empty"),
        ((2, 5), "outside"),
        ((-1, 2), "needle_span"),
        ((0, 4), "whole prompt"),
    ],
)
def test_impossible_spans_are_refused(span, message):
    with pytest.raises(ValueError, match=message):
        Trial.from_ids([1, 2, 3, 4], span, "Anna")


@pytest.mark.parametrize(
    "ids",
    [
        [1, -2, 3],
        [1, 2.0, 3],
        [1, "2", 3],
        [1, True, 3],
        [1, 2**31, 3],
        torch.tensor([[1, 2, 3]]),
        [[1, 2, 3]],
        {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "x": 1},
    ],
    ids=["negative", "float", "text", "bool", "too large", "batch tensor", "batch list", "tokenizer output"],
)
def test_ids_that_are_none_are_refused(ids):
    with pytest.raises(ValueError, match="prompt_ids"):
        Trial.from_ids(ids, (0, 1), "Anna")


@pytest.mark.parametrize("answer", ["", "  \n"])
def test_an_empty_answer_is_refused(answer):
    with pytest.raises(ValueError, match="answer"):
        Trial.from_ids([1, 2, 3], (0, 1), answer)


def test_a_closed_book_trial_has_no_needle():
    trial = Trial(prompt_ids=(1,), needle_span=None, answer="Paris", trial_id="c")
    assert trial.needle_span is None
    with pytest.raises(ValueError, match=r"trial 'c' has no needle \(closed book\): it can be ablated, not scored"):
        trial.require_needle()
    assert Trial.from_ids([1, 2, 3], (0, 1), "Anna").require_needle() == (0, 1)


def test_aliases_are_further_answers():
    trial = Trial.from_ids([1, 2, 3], (0, 1), "UK", aliases=("Britain", "England"))
    assert trial.answers == ("UK", "Britain", "England")
    assert Trial.from_ids([1, 2, 3], (0, 1), "UK").answers == ("UK",)
    with pytest.raises(ValueError, match="aliases must be a list of texts"):
        Trial.from_ids([1, 2, 3], (0, 1), "UK", aliases=("Britain", " "))


def test_supports_lie_inside_the_prompt():
    assert Trial.from_ids([1, 2, 3], (0, 1), "x", supports=((0, 1), (2, 3))).supports == ((0, 1), (2, 3))
    for wrong in (((0, 1), (2, 4)), ((1, 1),), ((-1, 2),)):
        with pytest.raises(ValueError, match=r"supports .* empty or outside"):
            Trial.from_ids([1, 2, 3], (0, 1), "x", supports=wrong)


def test_a_file_written_before_aliases_and_supports_loads(tmp_path):
    row = Trial.from_ids([1, 2, 3], (0, 1), "Anna", question="Who?").to_dict()
    for name in ("aliases", "supports"):
        del row[name]
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(row))
    assert read_trials(path) == [Trial.from_ids([1, 2, 3], (0, 1), "Anna", question="Who?")]


def test_with_generation_checks_the_generated_ids_too():
    trial = Trial.from_ids([1, 2, 3], (0, 1), "Anna")
    assert trial.with_generation(torch.tensor([4, 5])).generated_ids == (4, 5)
    assert trial.generated_ids is None
    with pytest.raises(ValueError, match="generated_ids"):
        trial.with_generation([4, -5])


def test_about_is_everything_but_ids_and_answer():
    about = Trial.from_ids([1, 2, 3], (0, 1), "Anna", kind="onehop", depth=0.5).about()
    assert about["kind"] == "onehop"
    assert about["n_tokens"] == 3
    assert not {"prompt_ids", "generated_ids", "answer", "trial_id"} & set(about)
    json.dumps(about)


def test_from_text_joins_pieces_tokenised_once(plain_tokenizer):
    trial = Trial.from_text(
        plain_tokenizer, before="Rain fell.", needle=" Anna slept.", after=" Snow fell.", question="Who?", answer="Anna"
    )
    start, end = trial.needle_span
    assert plain_tokenizer.decode(trial.prompt_ids[start:end]) == " Anna slept."
    text = plain_tokenizer.decode(trial.prompt_ids)
    assert "Rain fell. Anna slept. Snow fell." in text
    assert text.endswith("Question: Who?\nAnswer:")
    pieces = [plain_tokenizer(t, add_special_tokens=False)["input_ids"] for t in ("Rain fell.", " Anna slept.")]
    assert list(trial.prompt_ids[start - len(pieces[0]) : end]) == pieces[0] + pieces[1]


def test_from_text_takes_a_hooked_model(plain_tokenizer):
    words = {"before": "Rain fell.", "needle": " Anna slept.", "after": "", "question": "Who?", "answer": "Anna"}
    model = SimpleNamespace(tokenizer=plain_tokenizer)
    assert Trial.from_text(model, **words) == Trial.from_text(plain_tokenizer, **words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"needle": "  "}, "needle is empty"),
        ({"answer": ""}, "answer is empty"),
        ({"after": " Once more Anna slept."}, "second time"),
        ({"before": "ANNA\nslept."}, "second time"),
        ({"before": "Rain fell.</s>"}, "special token '</s>'"),
        ({"needle": " Anna slept.<|end|>"}, "special token"),
        ({"question": "Who?<|assistant|>"}, "question holds the special token"),
    ],
)
def test_from_text_refuses(plain_tokenizer, change, message):
    words = {"before": "Rain.", "needle": " Anna slept.", "after": " Snow.", "question": "Who?", "answer": "Anna"}
    with pytest.raises(ValueError, match=message):
        Trial.from_text(plain_tokenizer, **(words | change))


TEXT = st.text(max_size=20)
UNIT = st.none() | st.floats(0, 1)


@st.composite
def any_fields(draw):
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=30))
    start = draw(st.integers(0, len(ids) - 1))
    end = draw(st.integers(start + 1, len(ids) if start else len(ids) - 1))
    return {
        "prompt_ids": tuple(ids),
        "needle_span": draw(st.sampled_from([None, (start, end)])),
        "answer": draw(st.text(min_size=1).filter(str.strip)),
        "trial_id": draw(TEXT),
        "question": draw(TEXT),
        "needle": draw(TEXT),
        "kind": draw(TEXT),
        "literal": draw(st.sampled_from([None, True, False])),
        "length": draw(st.none() | st.integers(1, 10**6)),
        "depth": draw(UNIT),
        "depth_actual": draw(UNIT),
        "unique_share": draw(UNIT),
        "aliases": tuple(draw(st.lists(st.text(min_size=1).filter(str.strip), max_size=2))),
        "supports": tuple(draw(st.lists(st.just((start, end)), max_size=2))),
        "generated_ids": draw(st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)),
    }


@given(rows=st.lists(any_fields(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_trials_survive_a_file(tmp_path_factory, rows):
    trials = [Trial(**row) for row in rows]
    path = save_trials(tmp_path_factory.mktemp("trials") / "t.jsonl", trials)
    assert read_trials(path) == trials


def _file(tmp_path, *lines):
    good = json.dumps(Trial.from_ids([1, 2, 3], (0, 1), "Anna").to_dict())
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([good, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ('{"answer": NaN}', "line 2.*NaN"),
        ('{"answer": "a", "answer": "b"}', "line 2.*twice"),
        ("[1, 2]", "trial 2: not a JSON object"),
        ('{"prompt_ids": [1, 2], "needle_span": [0, 1]}', "trial 2: no field 'answer'"),
        (
            '{"prompt_ids": [1, 2], "needle_span": [0, 1], "answer": "a", "colour": 1}',
            "trial 2: unknown field 'colour'",
        ),
        ('{"prompt_ids": [1, 2], "needle_span": [0, 1], "answer": 7}', "trial 2: the field 'answer'"),
        ('{"prompt_ids": [1, 2], "needle_span": [0, 1], "answer": "a", "depth": "0.5"}', "trial 2: the field 'depth'"),
        ('{"prompt_ids": [1, 2], "needle_span": [0, 1], "answer": "a", "length": true}', "trial 2: the field 'length'"),
        ('{"prompt_ids": [1, 2], "needle_span": [0, 1], "answer": "a", "literal": 1}', "trial 2: the field 'literal'"),
        ('{"prompt_ids": [1, 2, 3], "needle_span": [0, 1.5], "answer": "a"}', "trial 2: needle_span"),
        ('{"prompt_ids": [1, 2, 3], "needle_span": [true, 2], "answer": "a"}', "trial 2: needle_span"),
        ('{"prompt_ids": [1, 2, 3], "needle_span": [0, 1, 2], "answer": "a"}', "trial 2: needle_span"),
        ('{"prompt_ids": "12", "needle_span": [0, 1], "answer": "a"}', "trial 2: prompt_ids"),
        ('{"prompt_ids": [1, 2], "needle_span": [1, 1], "answer": "a"}', "trial 2: needle_span"),
        ('{"prompt_ids": [1, 2], "needle_span": 1, "answer": "a"}', "trial 2"),
        ('{"prompt_ids": 5, "needle_span": [0, 1], "answer": "a"}', "trial 2"),
        ('{"prompt_ids": [1, -2], "needle_span": [0, 1], "answer": "a"}', "trial 2: prompt_ids"),
        ('{"prompt_ids": [1, 2], "answer": "a"}', "trial 2: no field 'needle_span'"),
        ('{"prompt_ids": [1, 2], "needle_span": null, "answer": "a", "aliases": "b"}', "trial 2: aliases"),
        ('{"prompt_ids": [1, 2], "needle_span": null, "answer": "a", "aliases": [1]}', "trial 2: aliases"),
        ('{"prompt_ids": [1, 2], "needle_span": null, "answer": "a", "supports": [1, 2]}', "trial 2: supports"),
        ('{"prompt_ids": [1, 2], "needle_span": null, "answer": "a", "supports": [[0, 5]]}', "trial 2: supports"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    with pytest.raises(ResultFileError, match=message):
        read_trials(_file(tmp_path, line))


def test_a_whole_number_is_read_as_a_depth(tmp_path):
    path = _file(tmp_path, '{"prompt_ids": [1, 2], "needle_span": [0, 1], "answer": "a", "depth": 1}')
    assert read_trials(path)[1].depth == 1.0


def test_blank_lines_and_windows_line_ends_are_no_trials(tmp_path):
    path = _file(tmp_path, "", "   ")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_trials(path)) == 1


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(ResultFileError, match="no such file"):
        read_trials(tmp_path / "nowhere.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultFileError, match=r"b\.jsonl"):
        read_trials(tmp_path / "b.jsonl")


class Builder:
    """Builds trials and remembers for what."""

    def __init__(self):
        self.built = []

    def __call__(self, recipe, tokenizer):
        self.built.append((recipe, tokenizer))
        return Trial.from_ids([recipe, 1, 2], (0, 1), str(tokenizer))


def test_a_grid_builds_each_trial_once_and_only_when_looked_at():
    builder = Builder()
    grid = TrialGrid(range(5), builder, "tok")
    assert len(grid) == 5
    assert builder.built == []
    assert grid[3] is grid[3]
    assert grid[-1].prompt_ids[0] == 4
    assert builder.built == [(3, "tok"), (4, "tok")]
    assert [trial.prompt_ids[0] for trial in grid] == [0, 1, 2, 3, 4]
    assert len(builder.built) == 5


def test_a_slice_is_a_grid_and_builds_nothing():
    builder = Builder()
    part = TrialGrid(range(5), builder, "tok")[1:4:2]
    assert isinstance(part, TrialGrid)
    assert len(part) == 2
    assert builder.built == []
    assert [trial.prompt_ids[0] for trial in part] == [1, 3]


def test_an_index_outside_is_an_index_error():
    with pytest.raises(IndexError):
        TrialGrid(range(2), Builder(), "tok")[2]


def test_bind_makes_the_same_trials_for_another_tokenizer():
    builder = Builder()
    grid = TrialGrid(range(2), builder, "one")
    assert grid.bind("one") is grid
    other = grid.bind(SimpleNamespace(tokenizer="two"))
    assert [trial.answer for trial in other] == ["two", "two"]
    assert [trial.answer for trial in grid] == ["one", "one"]


def test_a_grid_says_what_it_is_bound_to(plain_tokenizer):
    assert repr(TrialGrid(range(3), Builder())) == "TrialGrid(3 trials, not yet bound to a model)"
    assert type(plain_tokenizer).__name__ in repr(TrialGrid(range(3), Builder(), plain_tokenizer))


def test_trials_are_values():
    trial = Trial.from_ids([1, 2, 3], (0, 1), "Anna")
    assert trial == replace(trial)
    assert len({trial, replace(trial), replace(trial, trial_id="other")}) == 2
