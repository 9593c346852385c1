"""Our bAbI: answers checked by a simulation of their own, facts tracked, draws balanced, at any length."""

import re
from collections import Counter

import pytest

from locos_tl.trials.babi import KINDS, PLACES, THINGS, babi
from locos_tl.trials.haystack import bundled_haystack
from locos_tl.trials.nonliteral import bundled_names

GO = re.compile(r"(\w+) (?:went|walked|moved) to the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:picked up|took) the (\w+)\.")
DROP = re.compile(r"(\w+) (?:put down|left) the (\w+)(?: there)?\.")


def read(sentences):
    """Follow a story from its words alone: where each thing has been, and what is being carried."""
    at, carrier, stays = {}, {}, {}
    for sentence in sentences:
        if found := GO.fullmatch(sentence):
            who, place = found.groups()
            assert at.get(who) != place, "walks to where they are"
            at[who] = place
            for thing, by in carrier.items():
                if by == who:
                    stays[thing].append(place)
        elif found := TAKE.fullmatch(sentence):
            who, thing = found.groups()
            assert thing not in carrier, "is carried already"
            assert thing not in stays or stays[thing][-1] == at[who], "lies elsewhere"
            carrier[thing] = who
            stays.setdefault(thing, [at[who]])
        else:
            who, thing = DROP.fullmatch(sentence).groups()
            assert carrier.pop(thing) == who
    return stays, carrier


def answer(question, sentences):
    """The answer from the words of question and story."""
    stays, _ = read(sentences)
    if found := re.fullmatch(r"Where is the (\w+)\?", question):
        return stays[found[1]][-1]
    thing, after = re.fullmatch(r"Where was the (\w+) before the (\w+)\?", question).groups()
    assert stays[thing].count(after) == 1
    return stays[thing][stays[thing].index(after) - 1]


LENGTHS = (0, 128, 256, 512)
RECIPES = babi(120, facts=8, seed=3).recipes


def test_the_words_do_not_occur_in_the_prose():
    assert not [word for word in (*PLACES, *THINGS, *bundled_names()) if bundled_haystack().contains(word)]


@pytest.mark.parametrize("facts", [5, 8, 20])
def test_every_answer_is_right(facts):
    for recipe in babi(60, facts=facts, seed=facts).recipes:
        assert len(recipe.story.sentences) == facts
        assert recipe.story.answer == answer(recipe.story.question, recipe.story.sentences)


@pytest.mark.parametrize("kind", KINDS)
def test_the_supporting_sentences_alone_give_the_answer(kind):
    for recipe in RECIPES:
        if recipe.kind != kind:
            continue
        story = recipe.story
        assert len(story.supports) == {"two_facts": 2, "three_facts": 3}[kind]
        facts = [story.sentences[i] for i in story.supports]
        decisive = story.sentences[story.decisive]
        assert story.decisive in story.supports
        assert GO.fullmatch(decisive)[2] == story.answer
        if kind == "two_facts":
            (taker, thing), (walker, place) = TAKE.fullmatch(facts[0]).groups(), GO.fullmatch(facts[1]).groups()
            assert (taker, place) == (walker, story.answer)
            assert thing in story.question
            assert thing in read(story.sentences)[1], "still carried"
        elif TAKE.fullmatch(facts[0]):  # two walks with the thing in hand; before the first it was not known where
            assert [GO.fullmatch(f)[2] for f in facts[1:]] == [story.answer, story.question.split()[-1].rstrip("?")]
        else:
            assert answer(story.question, facts) == story.answer


def test_no_shortcut_gives_the_answer():
    """Neither the last place that is named nor the commonest decides."""
    last = common = 0
    for recipe in RECIPES:
        named = [found[2] for s in recipe.story.sentences if (found := GO.fullmatch(s))]
        last += named[-1] == recipe.story.answer
        common += Counter(named).most_common(1)[0][0] == recipe.story.answer
    assert max(last, common) < 0.6 * len(RECIPES)


def test_draws_are_balanced_and_the_seed_decides():
    recipes = babi(160, lengths=LENGTHS).recipes
    assert set(Counter(r.kind for r in recipes).values()) == {80}
    assert set(Counter(r.length for r in recipes).values()) == {40}
    assert set(Counter(r.story.answer for r in recipes).values()) == {20}
    assert babi(20).recipes == babi(20).recipes
    assert babi(20, seed=1).recipes != babi(20, seed=2).recipes
    assert len({r.story for r in recipes}) == 160


@pytest.mark.parametrize("habits", [("writes BOS", {}), (None, {"bos": False}), (None, {"kind": "prefixed"})])
@pytest.mark.parametrize("length", [0, 300, 700])
def test_facts_are_tracked_in_their_order(make_tokenizer, habits, length):
    tokenizer = make_tokenizer(habits[0], **habits[1])
    grid = babi(12, lengths=length, tokenizer=tokenizer)
    for recipe, trial in zip(grid.recipes, grid, strict=True):
        told = [tokenizer.decode(trial.prompt_ids[a:b]).strip() for a, b in trial.supports]
        assert told == [recipe.story.sentences[i] for i in recipe.story.supports]
        assert trial.needle_span in trial.supports
        start, end = trial.needle_span
        assert tokenizer.decode(trial.prompt_ids[start:end]).strip() == trial.needle
        assert trial.answer in trial.needle
        text = " ".join(tokenizer.decode(trial.prompt_ids, skip_special_tokens=True).split())
        places = [text.index(sentence) for sentence in dict.fromkeys(recipe.story.sentences)]
        assert places == sorted(places)
        assert text.count(trial.question) == 1
        assert 0.0 <= trial.depth_actual < 1.0


def test_the_context_has_exactly_the_length_asked_for(plain_tokenizer):
    for trial in babi(20, lengths=(300, 450), tokenizer=plain_tokenizer):
        after = plain_tokenizer("\n\nAnswer with the name of the place only. " + trial.question + "\nAnswer:")[
            "input_ids"
        ]
        assert trial.n_tokens - len(after) == trial.length in (300, 450)
        assert trial.unique_share == 1.0


def test_the_story_alone_is_its_sentences(plain_tokenizer):
    grid = babi(4, lengths=0, tokenizer=plain_tokenizer)
    for recipe, trial in zip(grid.recipes, grid, strict=True):
        text = plain_tokenizer.decode(trial.prompt_ids)
        assert text.startswith(" ".join(recipe.story.sentences) + "\n\n")
        assert (trial.haystack, trial.unique_share) == ("", None)


@pytest.mark.bundled
def test_with_the_bundled_models_tokenizer():
    trials = list(babi(8, lengths=LENGTHS))
    assert {t.length for t in trials} > {128, 256, 512}
    for trial in trials:
        assert trial.needle_span in trial.supports


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": "four_facts"}, "unknown kind 'four_facts'"),
        ({"kinds": ()}, "at least one kind"),
        ({"lengths": -1}, "whole numbers of tokens"),
        ({"lengths": ()}, "whole numbers of tokens"),
        ({"facts": 3}, "5 to 100 sentences"),
        ({"n": 0}, "n must be at least 1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        babi(**{"n": 4, **options})


def test_a_context_without_room_says_so(plain_tokenizer):
    with pytest.raises(ValueError, match=r"babi-42-0000-.* no room for a story of"):
        babi(2, lengths=40, tokenizer=plain_tokenizer)[0]


def test_a_haystack_that_holds_the_words_is_refused(tmp_path):
    text = "There was a " + " and a ".join(PLACES[:5]) + ". It rained. The wind blew."
    (tmp_path / "h.txt").write_text(text)
    with pytest.raises(ValueError, match="only 3 places do not occur in the haystack; need 5"):
        babi(2, haystack=tmp_path / "h.txt")
