"""`load_trials`: names, files, options."""

import json

import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.trials.load import load_trials
from locos_tl.trials.nonliteral import nonliteral
from locos_tl.trials.trial import Trial, TrialGrid, save_trials

ROW = {
    "id": "a",
    "relation": "work",
    "needle": "Quentin bakes rye loaves.",
    "question": "Who is a baker?",
    "answer": "Quentin",
}


def test_a_name_makes_the_set_with_its_own_defaults():
    assert load_trials("nonliteral").recipes == nonliteral().recipes
    assert len(load_trials("nonliteral", 7)) == 7


def test_options_reach_the_set(plain_tokenizer):
    grid = load_trials("nonliteral", n=4, kinds=("twohop",), lengths=(64,), seed=3, tokenizer=plain_tokenizer)
    assert grid.recipes == nonliteral(4, kinds=("twohop",), lengths=(64,), seed=3).recipes
    assert {trial.length for trial in grid} == {64}


@pytest.mark.parametrize("name", ["nonliteral", "nolima", "niah"])
def test_an_unknown_option_is_named_with_those_there_are(name):
    told = rf"trials '{name}' have no option 'lenghts' \(did you mean 'lengths'\?\); there are: .*lengths.*seed"
    with pytest.raises(ValueError, match=told):
        load_trials(name, lenghts=(64,))


def test_an_unknown_set_is_named_with_those_there_are():
    told = r"unknown trials 'nonlit' \(did you mean 'nonliteral'\?\); choose from nonliteral, nolima, niah.*\.jsonl"
    with pytest.raises(ValueError, match=told):
        load_trials("nonlit")


@pytest.mark.parametrize(
    ("name", "repo"),
    [("popqa", "akariasai/PopQA"), ("musique", "dgslibisey/MuSiQue"), ("babilong", "RMT-team/babilong")],
)
def test_offline_a_public_set_names_path(name, repo, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=rf"{name}: the Hub cannot be reached.*{repo}.*path=.*--path"):
        load_trials(name)


@pytest.mark.parametrize("name", ["babi", "city_country", "arithmetic"])
def test_the_bundled_sets_need_no_network(name, plain_tokenizer):
    grid = load_trials(name, n=3, seed=5, tokenizer=plain_tokenizer)
    assert len({trial.trial_id for trial in grid}) == 3
    assert all(trial.answers for trial in grid)


def test_niah_without_a_path_says_so():
    with pytest.raises(FileNotFoundError, match="path="):
        load_trials("niah")


def test_ready_trials_come_back_as_they_were_saved(tmp_path, plain_tokenizer):
    trials = list(nonliteral(3, tokenizer=plain_tokenizer))
    path = save_trials(tmp_path / "t.jsonl", trials)
    assert load_trials(path) == trials
    assert load_trials(str(path), 2) == trials[:2]


def test_ready_trials_take_no_options(tmp_path):
    path = save_trials(tmp_path / "t.jsonl", [Trial.from_ids([1, 2, 3], (0, 1), "x")])
    with pytest.raises(ValueError, match="ready trials; the option 'seed'"):
        load_trials(path, seed=1)
    with pytest.raises(ValueError, match="n must be at least 1"):
        load_trials(path, 0)


def test_needles_of_ones_own_become_a_grid(tmp_path, plain_tokenizer):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(ROW))
    grid = load_trials(path, 4, lengths=(64,), tokenizer=plain_tokenizer)
    assert isinstance(grid, TrialGrid)
    assert {trial.answer for trial in grid} == {"Quentin"}
    assert len(load_trials(path)) == 1
    with pytest.raises(ValueError, match="no option 'kinds'"):
        load_trials(path, kinds=("onehop",))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "holds no trials"), ("{", "line 1"), ("[1]", "needle 1: not a JSON object"), (None, "no such file")],
)
def test_unusable_files_are_named(tmp_path, text, message):
    path = tmp_path / "mine.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ResultFileError, match=rf"mine\.jsonl.*{message}"):
        load_trials(path)
