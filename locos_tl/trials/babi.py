"""A small world in the manner of bAbI (Weston et al. 2015): people walk about and carry things; where is what?

Our own generator, words and places; no network. A story is a list of events, the question is about one thing,
and its answer needs two facts (someone took it, then walked) or three (took it, walked, walked on: where was it
before?). The story's sentences go in their order into prose, as in BABILong (Kuratov et al. 2024).

1. Draw events; `World` follows them and notes for every thing where it has been and which sentences say so.
2. Keep the first story in which a question of the wanted kind can be asked.
3. Rename its places so that every place is the answer equally often.
4. Spread the sentences over a context of the wanted length and track the spans of the supporting ones.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from .haystack import Haystack, bundled_haystack, encode_all, read_haystacks
from .needle import PromptTemplate, assemble
from .nonliteral import absent_names, balanced, balanced_pairs, bundled_names, five_orders
from .trial import Trial, TrialGrid

KINDS = ("two_facts", "three_facts")
PLACES = ("bakery", "castle", "chapel", "cinema", "hotel", "museum", "pantry", "theatre")
THINGS = ("camera", "coin", "guitar", "lemon", "melon", "puppet", "scarf", "teapot", "umbrella", "wallet")
PEOPLE_PER_STORY, PLACES_PER_STORY, THINGS_PER_STORY = 3, 5, 3
BABI_TEMPLATE = PromptTemplate(
    before="",
    after="\n\nAnswer with the name of the place only. {question}",
    cue="\nAnswer:",
)
_WORDS = {
    "go": ("{who} went to the {what}.", "{who} walked to the {what}.", "{who} moved to the {what}."),
    "take": ("{who} picked up the {what}.", "{who} took the {what}."),
    "drop": ("{who} put down the {what}.", "{who} left the {what} there."),
}


@dataclass(frozen=True)
class Event:
    """Someone goes to a place, takes a thing or drops it."""

    action: str
    who: str
    what: str


@dataclass
class World:
    """Where everyone and everything is, event by event.

    Attributes:
        place: where a person is, and which sentence says so.
        held: who carries a thing, and which sentence says so.
        been: where a thing has been since it was first taken, each with the sentences that tell.
    """

    place: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: dict[str, tuple[str, int]] = field(default_factory=dict)
    been: dict[str, list[tuple[str, frozenset[int]]]] = field(default_factory=dict)

    def possible(self, event: Event) -> bool:
        """Whether the event can happen: nobody goes where they are, takes from elsewhere or drops what they lack."""
        here = self.place.get(event.who, ("", -1))[0]
        if event.action == "go":
            return here != event.what
        if event.action == "drop":
            return self.held.get(event.what, ("", -1))[0] == event.who
        lies_here = event.what not in self.been or self.been[event.what][-1][0] == here
        return bool(here) and event.what not in self.held and lies_here

    def happen(self, event: Event, number: int) -> None:
        """Follow the event that sentence ``number`` tells."""
        if event.action == "go":
            self.place[event.who] = (event.what, number)
            for thing, (who, taken) in self.held.items():
                if who == event.who:
                    self.been[thing].append((event.what, frozenset({taken, number})))
        elif event.action == "take":
            place, arrived = self.place[event.who]
            self.held[event.what] = (event.who, number)
            self.been.setdefault(event.what, [(place, frozenset({arrived, number}))])
        else:
            del self.held[event.what]


@dataclass(frozen=True)
class Story:
    """Sentences, a question about them, its answer, the supporting sentences and the one that holds the answer."""

    sentences: tuple[str, ...]
    question: str
    answer: str
    supports: tuple[int, ...]
    decisive: int


@dataclass(frozen=True)
class StoryRecipe:
    """A story and how it is to be mixed into prose, before a tokenizer is chosen.

    ``places`` are the sentences' positions in the prose, 0 to 1, in order.
    """

    story: Story
    haystack: Haystack
    length: int
    places: tuple[float, ...]
    kind: str
    template: PromptTemplate
    trial_id: str


def babi(
    n: int = 60,
    *,
    kinds: Iterable[str] = KINDS,
    lengths: Iterable[int] | int = 0,
    facts: int = 6,
    seed: int = 42,
    haystack: str | Path | Iterable[str | Path] | None = None,
    template: PromptTemplate = BABI_TEMPLATE,
    tokenizer: Any = None,
) -> TrialGrid:
    """Bundled questions that need two or three facts, at any context length.

    Args:
        n: number of trials, balanced over kinds, lengths and answers.
        kinds: "two_facts" (where is the thing that someone carried off?), "three_facts" (where was it before?).
        lengths: context lengths in tokens; 0 is the story alone.
        facts: sentences in a story, supporting ones included; more of them distract more.
        seed: draws stories, words, places in the prose and the order of its sentences.
        haystack: text files of your own instead of the bundled prose.
        template: the words around the context.
        tokenizer: bind to this tokenizer (or `HookedModel`) now.

    Every supporting sentence is tracked in ``supports``; ``needle_span`` is the one that names the answer.
    People, places and things that occur in a haystack are not drawn.

    Raises:
        ValueError: for an unknown kind, a story too short for its question, an impossible length, or a haystack
            that holds too many of the words.
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    lengths = (lengths,) if isinstance(lengths, int) else tuple(lengths)
    if not kinds or (unknown := sorted(set(kinds) - set(KINDS))):
        raise ValueError(f"unknown kind {unknown[0]!r}" if kinds else f"give at least one kind of {', '.join(KINDS)}")
    if not lengths or any(int(length) != length or length < 0 for length in lengths):
        raise ValueError(f"lengths are whole numbers of tokens, or 0 for the story alone; got {lengths}")
    if not 5 <= facts <= 100:
        raise ValueError(f"a story has 5 to 100 sentences, got facts={facts}")
    rng = random.Random(seed)
    haystacks = read_haystacks(haystack) if haystack is not None else five_orders(bundled_haystack(), seed)
    words = Words(*(absent_names(words, haystacks) for words in (bundled_names(), PLACES, THINGS)))
    cells = balanced_pairs(kinds, lengths, n, rng)
    drawn = zip(cells, balanced(words.places, n, rng), balanced(haystacks, n, rng), strict=True)
    recipes = []
    for number, ((kind, length), answer, hay) in enumerate(drawn):
        story = tell(kind, answer, words, facts, rng)
        recipes.append(
            StoryRecipe(
                story=story,
                haystack=hay,
                length=length,
                places=tuple(sorted(rng.random() for _ in story.sentences)),
                kind=kind,
                template=template,
                trial_id=f"babi-{seed}-{number:04d}-{kind}",
            )
        )
    return TrialGrid(recipes, build_story, tokenizer)


@dataclass(frozen=True)
class Words:
    """The people, places and things that stories may be about."""

    people: Sequence[str]
    places: Sequence[str]
    things: Sequence[str]

    def __post_init__(self) -> None:
        needed = {"people": PEOPLE_PER_STORY, "places": PLACES_PER_STORY, "things": THINGS_PER_STORY}
        for name, least in needed.items():
            if len(getattr(self, name)) < least:
                raise ValueError(f"only {len(getattr(self, name))} {name} do not occur in the haystack; need {least}")


def tell(kind: str, answer: str, words: Words, facts: int, rng: random.Random) -> Story:
    """A random story with a question of this kind whose answer is the given place."""
    while True:
        events, world = draw_events(words, facts, rng)
        asked = ask_about(kind, world, rng)
        if asked is not None:
            break
    thing, place, after, supports = asked
    renamed = {place: answer, answer: place}
    events = [replace(event, what=renamed.get(event.what, event.what)) for event in events]
    before = f" before the {renamed.get(after, after)}" if after else ""
    question = f"Where {'was' if after else 'is'} the {thing}{before}?"
    decisive = max(i for i in supports if events[i].action == "go" and events[i].what == answer)
    sentences = tuple(rng.choice(_WORDS[e.action]).format(who=e.who, what=e.what) for e in events)
    return Story(sentences, question, answer, tuple(sorted(supports)), decisive)


def draw_events(words: Words, n: int, rng: random.Random) -> tuple[list[Event], World]:
    """n random events that can follow each other, and the world after them."""
    people = rng.sample(words.people, PEOPLE_PER_STORY)
    places = rng.sample(words.places, PLACES_PER_STORY)
    things = rng.sample(words.things, THINGS_PER_STORY)
    world, events = World(), list[Event]()
    while len(events) < n:
        action = rng.choice(("go", "go", "take", "drop"))
        event = Event(action, rng.choice(people), rng.choice(places if action == "go" else things))
        if world.possible(event):
            world.happen(event, len(events))
            events.append(event)
    return events, world


def ask_about(kind: str, world: World, rng: random.Random) -> tuple[str, str, str, frozenset[int]] | None:
    """(thing, answer, place it was in next or "", supporting sentences), or None where nothing can be asked."""
    found = []
    for thing, been in world.been.items():
        if kind == "two_facts" and len(been) > 1 and thing in world.held:
            place, supports = been[-1]
            found.append((thing, place, "", supports))
        if kind == "three_facts":
            stays = [place for place, _ in been]
            for (place, told), (after, told_after) in pairwise(been):
                if stays.count(after) == 1 and len(told | told_after) == 3:
                    found.append((thing, place, after, told | told_after))
    return rng.choice(found) if found else None


def build_story(recipe: StoryRecipe, tokenizer: Any) -> Trial:
    """Spread a story over prose so that the context has exactly ``length`` tokens (0: the story alone).

    The prose opens the context; each sentence of the story goes to the sentence boundary nearest below its place.

    Raises:
        ValueError: when the story does not fit.
    """
    story = recipe.story
    told = encode_all(tokenizer, [" " + sentence for sentence in story.sentences])
    if recipe.length:
        prose, at = _prose(recipe, tokenizer, sum(map(len, told)))
    else:
        told[0] = encode_all(tokenizer, [story.sentences[0]])[0]
        prose, at = [], [0] * len(told)
    pieces: list[list[int]] = []
    where: list[int] = []
    for i in range(len(prose) + 1):
        for number, place in enumerate(at):
            if place == i:
                where.append(len(pieces))
                pieces.append(told[number])
        pieces += prose[i : i + 1]
    before = sum(map(len, pieces[: where[story.decisive]]))
    return assemble(
        tokenizer,
        recipe.template,
        pieces,
        {where[i]: story.sentences[i] for i in story.supports},
        where[story.decisive],
        question=story.question,
        answer=story.answer,
        trial_id=recipe.trial_id,
        kind=recipe.kind,
        relation="place of a thing",
        length=recipe.length or sum(map(len, pieces)),
        depth_actual=round(before / sum(map(len, pieces)), 4),
        haystack=recipe.haystack.name if recipe.length else "",
        unique_share=round(recipe.haystack.unique_share(tokenizer, sum(map(len, prose))), 4) if recipe.length else None,
    )


def _prose(recipe: StoryRecipe, tokenizer: Any, n_story: int) -> tuple[list[list[int]], list[int]]:
    """Token ids of the prose, sentence by sentence, and the sentence each of the story's stands in front of."""
    room = recipe.length - n_story
    texts = recipe.haystack.sentences
    n_sentences = len(recipe.haystack.tokens(tokenizer, max(room, 1))) + 2
    spaced = [" " + texts[i % len(texts)].strip() for i in range(n_sentences)]
    prose = [ids for ids in (encode_all(tokenizer, [spaced[0].lstrip()])[0], *encode_all(tokenizer, spaced[1:])) if ids]
    starts = list(accumulate(map(len, prose), initial=0))
    if room < starts[1]:
        raise ValueError(
            f"{recipe.trial_id}: a context of {recipe.length} tokens has no room for a story of {n_story} and a "
            "sentence of prose; ask for fewer facts, a longer context, or length 0 (the story alone)"
        )
    at = [max(1, bisect_right(starts, place * room) - 1) for place in recipe.places]
    return [ids[: room - start] for ids, start in zip(prose, starts, strict=False) if start < room], at
