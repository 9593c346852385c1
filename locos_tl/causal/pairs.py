"""`PromptPair`: two prompts of equal length, and the answer that only one of them supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..models.hooked import HookedModel
from ..runs import bound_trials
from ..scoring.answers import answer_steps, answer_token_ids
from ..scoring.explore import generate
from ..trials.trial import Trial, TrialGrid


@dataclass(frozen=True)
class PromptPair:
    """A clean and a corrupt prompt, both followed by the clean answer (teacher forcing).

    Attributes:
        clean_ids, corrupt_ids: prompt, what is said before the answer, and the answer.
        answer_span: [start, end) of the answer; it ends the ids, and is the same in both.
        needle_span: [start, end) of what "needle" positions mean: a trial's needle, else all that differs.
        counterfactual: token whose logit the answer's is compared with; None: the corrupt run's best token
            other than the answer.
        pair_id: name for results.
        prompt: digest of the clean trial's prompt, by which later steps keep other trials apart; "" for no trial.
    """

    clean_ids: tuple[int, ...]
    corrupt_ids: tuple[int, ...]
    answer_span: tuple[int, int]
    needle_span: tuple[int, int] | None = None
    counterfactual: int | None = None
    pair_id: str = "pair"
    prompt: str = ""

    def __post_init__(self) -> None:
        clean, corrupted = tuple(self.clean_ids), tuple(self.corrupt_ids)
        object.__setattr__(self, "clean_ids", clean)
        object.__setattr__(self, "corrupt_ids", corrupted)
        if len(clean) != len(corrupted):
            raise ValueError(
                f"{self.pair_id}: the clean prompt has {len(clean)} tokens, the corrupt one {len(corrupted)}; patching "
                "needs equal lengths, position for position"
            )
        start, end = self.answer_span
        if not 0 < start < end == len(clean):
            raise ValueError(f"{self.pair_id}: answer_span [{start}, {end}) must end the {len(clean)} tokens")
        if clean[start:end] != corrupted[start:end]:
            raise ValueError(f"{self.pair_id}: both prompts must be followed by the same answer tokens")
        if self.needle_span is None and self.differing:
            object.__setattr__(self, "needle_span", (self.differing[0], self.differing[-1] + 1))
        elif self.needle_span is not None:
            first, last = self.needle_span
            if not 0 <= first < last <= start:
                raise ValueError(f"{self.pair_id}: needle_span [{first}, {last}) is empty or reaches into the answer")
            if self.differing and last <= self.differing[0]:
                raise ValueError(
                    f"{self.pair_id}: needle_span [{first}, {last}) ends before the prompts differ "
                    f"(at {self.differing[0]}), so patching it could change nothing"
                )

    def __repr__(self) -> str:
        return (
            f"PromptPair({self.pair_id!r}, {len(self.clean_ids)} tokens, {len(self.differing)} of them differ, "
            f"answer at {self.answer_span[0]}:{self.answer_span[1]})"
        )

    def _repr_html_(self) -> str:
        from .. import html

        def span(edges: tuple[int, int] | None) -> str:
            return "" if edges is None else f"{edges[0]} to {edges[1] - 1}"

        about = {
            "tokens": len(self.clean_ids),
            "that differ": f"{len(self.differing)}, first at {self.first_difference}" if self.differing else "none",
            "needle positions": span(self.needle_span),
            "answer positions": span(self.answer_span),
            "counterfactual": "the corrupt run's best other token"
            if self.counterfactual is None
            else f"token {self.counterfactual}",
        }
        return html.card(f"PromptPair {self.pair_id}", html.pairs(about))

    @property
    def differing(self) -> tuple[int, ...]:
        """Positions at which the prompts differ."""
        pairs = zip(self.clean_ids, self.corrupt_ids, strict=True)
        return tuple(i for i, (a, b) in enumerate(pairs) if a != b)

    @property
    def first_difference(self) -> int:
        """Number of leading positions that both prompts share, at most up to the answer's query."""
        last = self.answer_span[0] - 1
        return min(self.differing[0], last) if self.differing else last

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The answer's tokens."""
        return self.clean_ids[slice(*self.answer_span)]

    @classmethod
    def from_trials(cls, model: HookedModel, clean: Trial, corrupted: Trial, max_new_tokens: int = 50) -> PromptPair:
        """A needle trial and its `corrupt` twin.

        The model answers the clean prompt (or has, in ``generated_ids``) and both prompts are continued with what
        it said up to the end of the gold answer (or of the first alias that it gave). Where it gave none, the gold
        answer follows the prompt.

        Raises:
            ValueError: for prompts of unequal length.
        """
        if len(clean.prompt_ids) != len(corrupted.prompt_ids):
            raise ValueError(
                f"trial {clean.trial_id!r}: the clean prompt has {clean.n_tokens} tokens, the corrupt one "
                f"{corrupted.n_tokens}; patching needs equal lengths, position for position"
            )
        bound_trials(model, [clean, corrupted])
        if clean.generated_ids is None:
            clean = generate(model, clean, max_new_tokens)
        said = clean.generated_ids or ()
        steps = next(filter(None, (answer_steps(model.tokenizer, said, answer) for answer in clean.answers)), ())
        if steps:
            said, start = said[: steps[-1] + 1], clean.n_tokens + steps[0]
        else:
            spaced, bare = answer_token_ids(model.tokenizer, clean.answer)
            ends = model.tokenizer.decode(list(clean.prompt_ids[-1:]))[-1:]
            said, start = tuple(bare if not ends or ends.isspace() else spaced), clean.n_tokens
        return cls(
            (*clean.prompt_ids, *said),
            (*corrupted.prompt_ids, *said),
            (start, clean.n_tokens + len(said)),
            needle_span=clean.needle_span,
            pair_id=clean.trial_id or "pair",
            prompt=clean.prompt_digest(),
        )

    @classmethod
    def from_text(
        cls,
        model: HookedModel,
        clean: str,
        corrupted: str,
        answer: str,
        counterfactual: str | None = None,
        pair_id: str = "pair",
    ) -> PromptPair:
        """Any two texts of equal length in tokens, such as the two of an indirect-object sentence.

        Args:
            model: its tokenizer cuts the texts, with its usual start token.
            clean: text after which the model should say ``answer``.
            corrupted: text after which it should not.
            answer: the continuation, space included (" Mary").
            counterfactual: what the corrupt text calls for instead (" John"): its first token is compared with the
                answer's; default: the corrupt run's best token other than the answer.
            pair_id: name for results.

        Raises:
            ValueError: for texts of unequal length, both lengths named.
        """
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise ValueError(f"{model.info.name} has no tokenizer: build a PromptPair from token ids")
        one, other = (tuple(tokenizer(text)["input_ids"]) for text in (clean, corrupted))
        wanted, instead = (
            tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()
            for text in (answer, counterfactual)
        )
        if not wanted:
            raise ValueError(f"the answer {answer!r} has no tokens")
        if instead and instead[0] == wanted[0]:
            raise ValueError(f"answer {answer!r} and counterfactual {counterfactual!r} begin with the same token")
        return cls(
            (*one, *wanted),
            (*other, *wanted),
            (len(one), len(one) + len(wanted)),
            counterfactual=instead[0] if instead else None,
            pair_id=pair_id,
        )


def as_pairs(model: HookedModel, clean: Any, corrupted: Any) -> list[PromptPair]:
    """The pairs that a patching function was given.

    Args:
        model: makes pairs of trials.
        clean: a `PromptPair` or a `Trial`, or a sequence of either.
        corrupted: a trial for each clean trial; None for pairs.

    Raises:
        ValueError: for another kind of argument, none at all, or numbers that differ.
    """
    ones = _listed(clean.bind(model) if isinstance(clean, TrialGrid) else clean)
    if ones and all(isinstance(one, PromptPair) for one in ones):
        if corrupted is not None:
            raise ValueError("a PromptPair holds its corrupt prompt; leave corrupt out")
        pairs = ones
    else:
        others = _listed(corrupted.bind(model) if isinstance(corrupted, TrialGrid) else corrupted)
        if not ones or not all(isinstance(one, Trial) for one in [*ones, *others]):
            raise ValueError(
                "give a clean Trial and its corrupt twin (see `corrupt`), or a PromptPair, or lists of them"
            )
        if len(ones) != len(others):
            raise ValueError(f"{len(ones)} clean trials for {len(others)} corrupt ones")
        pairs = [PromptPair.from_trials(model, one, other) for one, other in zip(ones, others, strict=True)]
    for pair in pairs:
        model.tokens(pair.clean_ids)  # refuses what does not fit
    return pairs


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, PromptPair | Trial) else list(value) if isinstance(value, Sequence) else [value]
