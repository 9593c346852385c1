"""Trials in a notebook: the needle marked, long contexts folded, grids without building anything."""

from __future__ import annotations

import pytest

from locos_tl.trials import show
from locos_tl.trials.nonliteral import nonliteral
from locos_tl.trials.trial import Trial
from tests import tiny
from tests.page import Page


def test_a_trial_shows_its_prompt_with_the_needle_marked(plain_tokenizer):
    trial = nonliteral(1, lengths=(512,), depths=(0.5,), tokenizer=plain_tokenizer)[0]
    page = Page(trial._repr_html_())
    assert "".join(page.marked).strip() == trial.needle.strip()
    assert trial.question in page.text
    assert trial.answer in page.text
    assert page.text.count("tokens…]") == 2  # before and behind the needle
    assert len(page.text) < 4000


def test_nothing_is_lost_where_nothing_is_folded(plain_tokenizer):
    trial = nonliteral(1, lengths=(64,), depths=(0.5,), tokenizer=plain_tokenizer)[0]
    shown = Page(show.prompt_html(trial, plain_tokenizer))
    assert "".join(shown.words) == plain_tokenizer.decode(list(trial.prompt_ids))


@pytest.mark.parametrize(
    ("n", "spans", "stretches"),
    [
        (1000, [(400, 410)], [(0, 12), (340, 470), (920, 1000)]),
        (1000, [(0, 10)], [(0, 70), (920, 1000)]),
        (1000, [(990, 1000)], [(0, 12), (920, 1000)]),
        (1000, [(400, 410), (480, 490)], [(0, 12), (340, 550), (920, 1000)]),
        (1000, [], [(0, 12), (920, 1000)]),
        (50, [(10, 20)], [(0, 50)]),
        (300, [(140, 150)], [(0, 12), (80, 300)]),  # ten tokens between are shown
        (1, [], [(0, 1)]),
    ],
)
def test_what_of_a_prompt_is_shown(n, spans, stretches):
    assert show._shown(n, spans) == stretches


def test_a_trial_of_an_unknown_tokenizer_tells_where_its_needle_is():
    told = Page(tiny.trial(30)._repr_html_()).text
    assert "prompt of 30 token ids; needle at (5, 11)" in told


def test_a_closed_book_trial_has_no_needle():
    trial = Trial((5, 6, 7), None, "Paris", question="Capital of France?")
    assert repr(trial) == "Trial('', 3 tokens, no needle, answer 'Paris', 'Capital of France?')"
    assert "needle at no place" in Page(trial._repr_html_()).text


def test_a_grid_is_shown_without_a_tokenizer():
    """Evaluating `trials` in a cell must not fetch a model."""
    grid = nonliteral(12, lengths=(64, 128), kinds=("onehop", "literal"))
    page = Page(grid._repr_html_())
    assert grid._tokenizer is None
    assert page.tags.count("tr") == 6
    assert "… and 7 more" in page.text
    assert "kind: 6 of literal, 6 of onehop · length: 6 of 64, 6 of 128" in page.text
    assert grid.recipes[0].question in page.text


@pytest.mark.parametrize("name", ["babi", "city_country", "arithmetic", "nonliteral"])
def test_every_bundled_set_can_be_shown(name):
    from locos_tl import load_trials

    page = Page(load_trials(name, n=7)._repr_html_())
    assert page.tags.count("tr") == 6


def test_an_empty_grid():
    assert "TrialGrid(0 trials" in Page(nonliteral(3)[:0]._repr_html_()).text
