"""From text to a prompt whose needle span is known because it was built, never searched for.

Every piece (chat prefix, instruction, context before, needle, context after, question, chat suffix) is
tokenised once and the ids are joined. The span is then checked: it must decode to the needle, hold no
special token, and the needle must occur once.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any
from weakref import WeakValueDictionary

from .haystack import Haystack, encode_all, encode_start
from .trial import Trial

_MARK = "\u2402context\u2403"  # stands for the context while the chat template is rendered
_OPEN_THINKING = re.compile(r"(<think>)\s*$")
_CLOSED = "\n\n</think>\n\n"
UNIQUE_ENOUGH = 0.95
"""Contexts with a smaller share of unique text are warned about (prose repeats a short sentence now and then)."""


@dataclass(frozen=True)
class PromptTemplate:
    """The words around a context.

    Attributes:
        before: instruction in front of the context.
        after: text behind it, holding ``{question}``.
        system: system message; None leaves the chat template's default.
        cue: what invites a model without a chat template to answer (it would otherwise end the line).
    """

    before: str
    after: str
    system: str | None = None
    cue: str = ""

    def __post_init__(self) -> None:
        if "{question}" not in self.after:
            raise ValueError("the text after the context must hold {question}")


DEFAULT_TEMPLATE = PromptTemplate(
    before="Read the text and answer the question with the name of the character only.\n\n",
    after="\n\nQuestion: {question}",
    cue="\nAnswer:",
)


@dataclass(frozen=True)
class Recipe:
    """A trial in words, before a tokenizer is chosen.

    ``lead`` and ``trail`` are the words of the inserted sentence in front of and behind the needle, when
    only a part of that sentence counts as the needle.
    """

    needle: str
    question: str
    answer: str
    haystack: Haystack
    length: int
    depth: float
    template: PromptTemplate = DEFAULT_TEMPLATE
    trial_id: str = ""
    needle_id: str = ""
    relation: str = ""
    kind: str = ""
    literal: bool | None = None
    lead: str = ""
    trail: str = ""


def build(recipe: Recipe, tokenizer: Any) -> Trial:
    """Put the needle into ``length`` tokens of text at the sentence boundary nearest below its depth.

    The context (haystack and needle) has exactly ``length`` tokens. Depth counts in haystack tokens:
    0 opens the text, 1 is the last boundary. The needle takes the white space of the sentence it displaces.

    Raises:
        ValueError: when the needle does not fit, or the haystack already holds the needle or the answer.
    """
    sentence = recipe.lead + recipe.needle + recipe.trail
    for what, text in (("needle", sentence), ("needle", recipe.needle), ("answer", recipe.answer)):
        if recipe.haystack.contains(text):
            raise ValueError(
                f"{recipe.trial_id}: the haystack {recipe.haystack.name!r} already holds the {what} {text[:60]!r}"
            )
    inserted = {space: _pieces(recipe, tokenizer, space) for space in (" ", "")}
    n_inserted = max(sum(map(len, pieces)) for pieces in inserted.values())
    n_hay = recipe.length - n_inserted
    if n_hay < 8:
        raise ValueError(
            f"{recipe.trial_id}: a context of {recipe.length} tokens has no room for a needle of {n_inserted}"
        )
    sentences = recipe.haystack.tokens(tokenizer, recipe.length + 16)  # the displaced one may shrink a little below
    starts = list(accumulate(map(len, sentences), initial=0))
    place = bisect_right(starts, recipe.depth * n_hay) - 1
    at = starts[place]
    texts = recipe.haystack.sentences
    displaced = texts[place % len(texts)]
    space = " " if at and (displaced[:1].isspace() or place % len(texts) == 0) else ""
    lead, needle, trail = inserted[space]
    if not space:  # at the start of the text or of a line: the space goes behind the needle instead
        sentences[place] = encode_all(tokenizer, [" " + displaced.lstrip()])[0]
    before = [token for ids in sentences[:place] for token in ids]
    room = recipe.length - at - len(lead) - len(needle) - len(trail)
    after = [token for ids in sentences[place:] for token in ids][:room]
    if len(after) != room:
        raise RuntimeError(f"{recipe.trial_id}: the context came out {room - len(after)} tokens short")
    return assemble(
        tokenizer,
        recipe.template,
        [[*before, *lead], needle, [*trail, *after]],
        {1: recipe.needle},
        question=recipe.question,
        answer=recipe.answer,
        trial_id=recipe.trial_id,
        needle_id=recipe.needle_id,
        relation=recipe.relation,
        kind=recipe.kind,
        literal=recipe.literal,
        length=recipe.length,
        depth=recipe.depth,
        depth_actual=round(at / (at + room), 4),
        haystack=recipe.haystack.name,
        unique_share=round(recipe.haystack.unique_share(tokenizer, at + room), 4),
    )


def _pieces(recipe: Recipe, tokenizer: Any, space: str) -> list[list[int]]:
    """Token ids of lead, needle and trail; ``space`` stands in front of the first of them."""
    lead = recipe.lead.rstrip()
    gap = recipe.lead[len(lead) :] if lead else space
    texts = (space + lead if lead else "", gap + recipe.needle, recipe.trail)
    return [encode_all(tokenizer, [text])[0] if text else [] for text in texts]


def compose(
    tokenizer: Any,
    template: PromptTemplate,
    *,
    before: str,
    needle: str,
    after: str,
    question: str,
    answer: str,
    **about: Any,
) -> Trial:
    """A trial from a context already cut in three.

    Raises:
        ValueError: for an empty needle, one that occurs a second time, or one the tokenizer cannot hold.
    """
    if not needle.strip():
        raise ValueError("the needle is empty")
    for text in (before, after):
        if text.strip() and Haystack("context", (text,)).contains(needle):
            raise ValueError(f"the needle {needle.strip()[:60]!r} occurs a second time in the context")
    first, middle, last = (encode_all(tokenizer, [text])[0] if text else [] for text in (before, needle, after))
    about.setdefault("length", len(first) + len(middle) + len(last))
    return assemble(tokenizer, template, [first, middle, last], {1: needle}, question=question, answer=answer, **about)


def assemble(
    tokenizer: Any,
    template: PromptTemplate,
    pieces: Sequence[list[int]],
    facts: Mapping[int, str],
    needle: int | None = None,
    *,
    question: str,
    **about: Any,
) -> Trial:
    """Join the token ids of a context's pieces, and of the words around it, into a trial.

    Args:
        tokenizer: made the ids.
        template: the words around the context.
        pieces: the context in order; none for a closed-book question.
        facts: text of the pieces whose spans are tracked, by their place among the pieces.
        needle: which of the facts holds the answer; default: the only one.
        question: asked after the context.
        about: further fields of `Trial`, ``answer`` among them.

    Raises:
        ValueError: when context or question hold a special token, or a fact does not read back from its ids.
    """
    head, tail = frame(tokenizer, template, question)
    where = f"{about['trial_id']}: " if about.get("trial_id") else ""
    ids = [*head, *chain.from_iterable(pieces), *tail]
    _require_plain(tokenizer, ids[len(head) : len(ids) - len(tail)], f"{where}the context or needle")
    _require_plain(tokenizer, encode_all(tokenizer, [question])[0] if question else [], f"{where}the question")
    starts = list(accumulate(map(len, pieces), initial=len(head)))
    spans = {place: (starts[place], starts[place + 1]) for place in sorted(facts)}
    for place, (start, end) in spans.items():
        decoded = tokenizer.decode(ids[start:end], clean_up_tokenization_spaces=False)
        if _squeeze(decoded) != _squeeze(facts[place]):
            raise ValueError(
                f"{where}this tokenizer cannot hold the needle: it reads back as {decoded!r}, not {facts[place]!r}"
            )
    if needle is None and len(facts) == 1:
        needle = next(iter(facts))
    return Trial(
        prompt_ids=tuple(ids),
        needle_span=None if needle is None else spans[needle],
        needle="" if needle is None else facts[needle],
        supports=tuple(spans.values()) if len(spans) > 1 else (),
        question=question,
        tokenizer=fingerprint(tokenizer),
        template=template_hash(tokenizer, template),
        **about,
    )


def frame(tokenizer: Any, template: PromptTemplate, question: str) -> tuple[list[int], list[int]]:
    """Token ids in front of and behind the context: BOS, chat markup, instruction, question.

    BOS stands exactly once where the tokenizer uses one: a chat template that writes it itself gets no
    second one. Thinking is switched off in templates that have the switch, and a block that a template opens
    for the model is closed at once. Where a chat template knows no system message, the text opens the user's message.

    Raises:
        ValueError: when the chat template drops the user's message or writes BOS twice.
    """
    user = template.before + _MARK + template.after.replace("{question}", question)
    if not getattr(tokenizer, "chat_template", None):
        user += template.cue
    text = _render(tokenizer, template.system, user)
    if text.count(_MARK) != 1:
        raise ValueError("the chat template drops or repeats the user message")
    head_text, tail_text = text.split(_MARK)
    if opened := _OPEN_THINKING.search(tail_text):
        tail_text = tail_text[: opened.end(1)] + _CLOSED
    head, tail = encode_start(tokenizer, [head_text])[0], encode_all(tokenizer, [tail_text])[0]
    bos = tokenizer.bos_token_id
    if bos is not None and _adds_bos(tokenizer) and head[:1] != [bos]:
        head = [bos, *head]
    if bos is not None and head[:2] == [bos, bos]:
        raise ValueError("the prompt would start with two BOS tokens: fix the chat template")
    return head, tail


def _render(tokenizer: Any, system: str | None, user: str) -> str:
    """The prompt's text with the chat template's markup, if there is one."""
    together = f"{system}\n\n{user}" if system else user
    if not getattr(tokenizer, "chat_template", None):
        return together

    def chat(*messages: tuple[str, str]) -> str:
        return tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # Qwen3, SmolLM3
            thinking=False,  # Granite, DeepSeek
        )

    if not system:
        return chat(("user", user))
    from jinja2 import TemplateError

    try:
        text = chat(("system", system), ("user", user))
    except TemplateError:  # templates without a system role raise
        return chat(("user", together))
    return text if system.strip() in text else chat(("user", together))


def _adds_bos(tokenizer: Any) -> bool:
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id


def _require_plain(tokenizer: Any, ids: list[int], where: str) -> None:
    if control := _control_ids(tokenizer) & set(ids):
        token = tokenizer.convert_ids_to_tokens(min(control))
        raise ValueError(f"{where} holds the special token {token!r}")


def _control_ids(tokenizer: Any) -> set[int]:
    """Ids that no ordinary text may hold; the unknown token is ordinary only where unknown characters make it."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    control = set(tokenizer.all_special_ids) | {i for i, token in added.items() if getattr(token, "special", True)}
    unknown = tokenizer.unk_token_id
    return control - {unknown} if unknown in encode_all(tokenizer, ["\ue000"])[0] else control


def _squeeze(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())  # some tokenizers compose accents


def fingerprint(tokenizer: Any) -> str:
    """Short hash of a tokenizer's vocabulary and behaviour, kept on the tokenizer once computed."""
    size, known = getattr(tokenizer, "_locos_tl_fingerprint", (None, ""))
    if size != len(tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
        text = text[max(0, text.find('"added_tokens"')) :]  # what stands before is the padding of the last call
        known = hashlib.sha256(text.encode()).hexdigest()[:16]
        tokenizer._locos_tl_fingerprint = (len(tokenizer), known)
    _seen[known] = tokenizer
    return known


_seen: WeakValueDictionary[str, Any] = WeakValueDictionary()


def known_tokenizer(fingerprint: str) -> Any:
    """The tokenizer of a fingerprint, where this process has seen it and still holds it; only for showing text."""
    return _seen.get(fingerprint)


def template_hash(tokenizer: Any, template: PromptTemplate) -> str:
    """Short hash of everything that words the prompt."""
    chat = getattr(tokenizer, "chat_template", None) or ""
    parts = (template.before, template.after, template.system or "", template.cue, str(chat))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def warn_if_repeating(trials: list[Trial]) -> None:
    """Say so when haystacks repeat themselves: then the needle stands out by being new."""
    repeats = [trial for trial in trials if trial.unique_share is not None and trial.unique_share < UNIQUE_ENOUGH]
    if repeats:
        least = min(repeats, key=lambda trial: trial.unique_share or 0.0)
        warnings.warn(
            f"{len(repeats)} of {len(trials)} contexts repeat their haystack (at {least.length} tokens only "
            f"{least.unique_share:.1%} is unique text): the needle then stands out by novelty. "
            "Give a longer haystack.",
            stacklevel=3,
        )
