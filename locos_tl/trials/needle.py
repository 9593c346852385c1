"""From text to a prompt whose needle span is known because it was built, never searched for.

Every piece (chat prefix, instruction, context before, needle, context after, question, chat suffix) is
tokenised once and the ids are joined. The span is then checked: it must decode to the needle, hold no
special token, and the needle must occur once.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .haystack import Haystack, encode_all
from .trial import Trial

_MARK = "\u2402context\u2403"  # stands for the context while the chat template is rendered


@dataclass(frozen=True)
class PromptTemplate:
    """The words around a context.

    Attributes:
        before: instruction in front of the context.
        after: text behind it, holding ``{question}``.
        system: system message; None leaves the chat template's default.
    """

    before: str
    after: str
    system: str | None = None

    def __post_init__(self) -> None:
        if "{question}" not in self.after:
            raise ValueError("the text after the context must hold {question}")


DEFAULT_TEMPLATE = PromptTemplate(
    before="Read the text and answer the question with the name of the character only.\n\n",
    after="\n\nQuestion: {question}",
)


@dataclass(frozen=True)
class Recipe:
    """A trial in words, before a tokenizer is chosen."""

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


def build(recipe: Recipe, tokenizer: Any) -> Trial:
    """Put the needle into ``length`` tokens of haystack at the sentence boundary nearest below depth x length.

    Raises:
        ValueError: when the needle does not fit, or the haystack already holds the needle or the answer.
    """
    for what, text in (("needle", recipe.needle), ("answer", recipe.answer)):
        if recipe.haystack.contains(text.strip()):
            raise ValueError(
                f"{recipe.trial_id}: the haystack {recipe.haystack.name!r} already holds the {what} {text[:60]!r}"
            )
    needle_ids = encode_all(tokenizer, [" " + recipe.needle])[0]
    n_hay = recipe.length - len(needle_ids)
    if n_hay < 8:
        raise ValueError(
            f"{recipe.trial_id}: a context of {recipe.length} tokens has no room for a needle of {len(needle_ids)}"
        )
    sentences, unique = recipe.haystack.tokens(tokenizer, n_hay)
    ends = list(accumulate(map(len, sentences)))
    at = max((end for end in [0, *ends[:-1]] if end <= recipe.depth * n_hay), default=0)
    flat = [token for ids in sentences for token in ids][:n_hay]
    before, after = flat[:at], flat[at:]
    if at == 0:  # the needle opens the text: no space in front of it, one in front of what follows
        needle_ids = encode_all(tokenizer, [recipe.needle])[0]
        first = encode_all(tokenizer, [" " + recipe.haystack.sentences[0].lstrip()])[0]
        after = (first + flat[len(sentences[0]) :])[: recipe.length - len(needle_ids)]
    return _assemble(
        tokenizer,
        recipe.template,
        before,
        needle_ids,
        after,
        needle=recipe.needle,
        question=recipe.question,
        answer=recipe.answer,
        trial_id=recipe.trial_id,
        needle_id=recipe.needle_id,
        relation=recipe.relation,
        kind=recipe.kind,
        literal=recipe.literal,
        length=recipe.length,
        depth=recipe.depth,
        depth_actual=round(at / n_hay, 4),
        haystack=recipe.haystack.name,
        unique_share=round(unique, 4),
    )


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
    """A trial from a context already cut in three."""
    if not needle.strip():
        raise ValueError("the needle is empty")
    first, middle, last = (encode_all(tokenizer, [text])[0] if text else [] for text in (before, needle, after))
    about.setdefault("length", len(first) + len(middle) + len(last))
    return _assemble(
        tokenizer, template, first, middle, last, needle=needle, question=question, answer=answer, **about
    )


def _assemble(
    tokenizer: Any,
    template: PromptTemplate,
    before: list[int],
    needle_ids: list[int],
    after: list[int],
    *,
    needle: str,
    question: str,
    **about: Any,
) -> Trial:
    head, tail = frame(tokenizer, template, question)
    _require_plain(tokenizer, [*before, *needle_ids, *after], about.get("trial_id", ""))
    start = len(head) + len(before)
    ids = [*head, *before, *needle_ids, *after, *tail]
    span = (start, start + len(needle_ids))
    decoded = tokenizer.decode(ids[span[0] : span[1]])
    if _squeeze(decoded) != _squeeze(needle):
        raise ValueError(
            f"{about.get('trial_id', '')}: this tokenizer cannot hold the needle: it reads back as {decoded!r}, "
            f"not {needle!r}"
        )
    return Trial(
        prompt_ids=tuple(ids),
        needle_span=span,
        needle=needle,
        question=question,
        tokenizer=fingerprint(tokenizer),
        template=template_hash(tokenizer, template),
        **about,
    )


def frame(tokenizer: Any, template: PromptTemplate, question: str) -> tuple[list[int], list[int]]:
    """Token ids in front of and behind the context: BOS, chat markup, instruction, question.

    BOS stands exactly once where the tokenizer uses one: a chat template that writes it itself gets no
    second one. Thinking is switched off in templates that have the switch.
    """
    user = template.before + _MARK + template.after.replace("{question}", question)
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": user}]
        if template.system:
            messages.insert(0, {"role": "system", "content": template.system})
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    else:
        text = (template.system + "\n\n" if template.system else "") + user
    if text.count(_MARK) != 1:
        raise ValueError("the chat template drops or repeats the user message")
    head_text, tail_text = text.split(_MARK)
    head, tail = encode_all(tokenizer, [head_text, tail_text])
    bos = tokenizer.bos_token_id
    if bos is not None and _adds_bos(tokenizer) and head[:1] != [bos]:
        head = [bos, *head]
    if bos is not None and head[:2] == [bos, bos]:
        raise ValueError("the prompt would start with two BOS tokens: fix the chat template")
    return head, tail


def _adds_bos(tokenizer: Any) -> bool:
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id


def _require_plain(tokenizer: Any, ids: list[int], trial_id: str) -> None:
    special = set(tokenizer.all_special_ids) & set(ids)
    unk = tokenizer.unk_token_id
    if special - {unk}:
        token = tokenizer.convert_ids_to_tokens(min(special - {unk}))
        raise ValueError(f"{trial_id}: the special token {token!r} stands inside the context or needle")


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def fingerprint(tokenizer: Any) -> str:
    """Short hash of a tokenizer's vocabulary and behaviour, kept on the tokenizer once computed."""
    known = getattr(tokenizer, "_locos_tl_fingerprint", None)
    if known is None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
        known = hashlib.sha256(text.encode()).hexdigest()[:16]
        tokenizer._locos_tl_fingerprint = known
    return known


def template_hash(tokenizer: Any, template: PromptTemplate) -> str:
    """Short hash of everything that words the prompt."""
    chat = getattr(tokenizer, "chat_template", None) or ""
    parts = (template.before, template.after, template.system or "", str(chat))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def warn_if_repeating(trials: list[Trial]) -> None:
    """Say so when haystacks repeat themselves: then the needle stands out by being new."""
    repeats = [trial for trial in trials if trial.unique_share is not None and trial.unique_share < 1.0]
    if repeats:
        least = min(repeats, key=lambda trial: trial.unique_share or 0.0)
        warnings.warn(
            f"{len(repeats)} of {len(trials)} contexts repeat their haystack (at {least.length} tokens only "
            f"{least.unique_share:.0%} is unique text): the needle then stands out by novelty. "
            "Give a longer haystack.",
            stacklevel=3,
        )
