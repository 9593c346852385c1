"""Parts of a split share no needle and have the sizes asked for."""

from __future__ import annotations

import pytest

from locos_tl.trials.split import split_by_needle
from tests import tiny


def _trials(n_needles: int, each: int):
    return [
        tiny.trial(30 + 7 * each * needle + i, needle_id=f"n{needle}", trial_id=f"{needle}-{i}")
        for i in range(each)
        for needle in range(n_needles)
    ]


def test_no_needle_is_in_two_parts_and_no_trial_is_lost():
    trials = _trials(10, 3)
    parts = split_by_needle(trials, (0.5, 0.2, 0.3))
    assert [len(part) for part in parts] == [15, 6, 9]
    needles = [{trial.needle_id for trial in part} for part in parts]
    assert sum(map(len, needles)) == len(set.union(*needles)) == 10
    assert sorted(t.trial_id for part in parts for t in part) == sorted(t.trial_id for t in trials)
    for part in parts:
        places = [trials.index(trial) for trial in part]
        assert places == sorted(places)


def test_only_proportions_count_and_the_seed_draws():
    trials = _trials(8, 2)
    assert split_by_needle(trials, (5, 2, 3)) == split_by_needle(trials, (0.5, 0.2, 0.3))
    assert split_by_needle(trials, (1, 1), seed=1) != split_by_needle(trials, (1, 1), seed=2)


def test_every_part_gets_a_needle():
    for seed in range(20):
        assert all(split_by_needle(_trials(3, 4), (0.98, 0.01, 0.01), seed=seed))
    with pytest.raises(ValueError, match="8 trials of 2 needles cannot be split into 3"):
        split_by_needle(_trials(2, 4), (1, 1, 1))
    for shares in ((), (1, 0), (1, -1)):
        with pytest.raises(ValueError, match="positive"):
            split_by_needle(_trials(3, 1), shares)


def test_closed_book_trials_are_told_apart_by_their_prompts():
    one, two = tiny.trial(30, needle_id=""), tiny.trial(31, needle_id="")
    parts = split_by_needle([one, two, tiny.trial(30, needle_id="", trial_id="again")], (2, 1))
    assert sorted(len({t.prompt_ids for t in part}) for part in parts) == [1, 1]
    assert sorted(len(part) for part in parts) == [1, 2]
