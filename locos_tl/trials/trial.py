"""`Trial`: one question about one needle in one context, as token ids; `TrialGrid`: many, built on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..results.files import ResultFileError, read_jsonl, write_jsonl

_JSON_TYPES: dict[str, Any] = {
    "str": str,
    "bool | None": bool | None,
    "int | None": int | None,
    "float | None": float | int | None,
}


@dataclass(frozen=True)
class Trial:
    """A prompt as token ids with its needle's span tracked, and where it came from.

    Attributes:
        prompt_ids: the whole prompt, chat template and BOS included.
        needle_span: [start, end) of the needle in ``prompt_ids``: the span that holds the answer. None where there is
            none to look at (closed book): such a trial can be answered and ablated, not scored.
        answer: the gold answer (the name in the needle).
        aliases: other answers that are as good.
        supports: [start, end) of every fact that the answer needs, in the order of the text, where there are several.
        kind: "onehop", "twohop" or "literal"; free text for your own.
        literal: True when the question repeats the needle's words.
        length: asked context length in tokens (haystack and needle, without question and chat markup).
        depth: asked relative position of the needle in the context, 0 to 1.
        depth_actual: where it really went (the sentence boundary below), 0 to 1.
        unique_share: share of the haystack's tokens that are not a repetition.
        tokenizer: fingerprint of the tokenizer that made the ids; "" when unknown.
        template: hash of prompt template and chat template.
        generated_ids: score these generated tokens (teacher forcing) instead of decoding.
    """

    prompt_ids: tuple[int, ...]
    needle_span: tuple[int, int] | None
    answer: str
    trial_id: str = ""
    question: str = ""
    needle: str = ""
    needle_id: str = ""
    relation: str = ""
    kind: str = ""
    literal: bool | None = None
    length: int | None = None
    depth: float | None = None
    depth_actual: float | None = None
    haystack: str = ""
    unique_share: float | None = None
    tokenizer: str = ""
    template: str = ""
    generated_ids: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()
    supports: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        ids = _ids(self.prompt_ids, "prompt_ids")
        object.__setattr__(self, "prompt_ids", ids)
        if self.generated_ids is not None:
            object.__setattr__(self, "generated_ids", _ids(self.generated_ids, "generated_ids"))
        if self.needle_span is not None:
            object.__setattr__(self, "needle_span", _span(self.needle_span, "needle_span"))
        object.__setattr__(self, "supports", _spans(self.supports, "supports"))
        tracked = [("needle_span", self.needle_span)] if self.needle_span else []
        for name, (start, end) in (*tracked, *(("supports", span) for span in self.supports)):
            if not 0 <= start < end <= len(ids):
                raise ValueError(f"{name} [{start}, {end}) is empty or outside the prompt of {len(ids)} tokens")
        if self.needle_span == (0, len(ids)):
            raise ValueError("the needle span is the whole prompt: there is nothing to contrast it with")
        if not isinstance(self.answer, str) or not self.answer.strip():
            raise ValueError(f"the gold answer is empty or not text: {self.answer!r}")
        object.__setattr__(self, "aliases", _texts(self.aliases, "aliases"))

    @classmethod
    def from_ids(cls, ids: Iterable[Any], needle: tuple[int, int], answer: str, **about: Any) -> Trial:
        """A trial from ready token ids.

        Args:
            ids: the whole prompt: integers, or a tensor or array of one dimension.
            needle: [start, end) of the needle.
            answer: gold answer.
            about: any further field of `Trial` (``trial_id``, ``question``, ``generated_ids``, ...).

        Raises:
            ValueError: for ids that are none, a span that is empty, outside or the whole prompt, or no answer.
        """
        return cls(prompt_ids=_ids(ids, "prompt_ids"), needle_span=needle, answer=answer, **about)

    @classmethod
    def from_text(
        cls, tokenizer: Any, *, before: str, needle: str, after: str, question: str, answer: str, **about: Any
    ) -> Trial:
        """A trial from pieces of text, each tokenised once and joined as ids.

        Args:
            tokenizer: a transformers tokenizer, or a `HookedModel`.
            before, needle, after: the context, in order; spaces between the pieces are yours.
            question: asked after the context.
            answer: gold answer.
            about: any further field of `Trial` (``trial_id``, ``kind``, ``depth``, ...).

        Raises:
            ValueError: when the needle is empty, occurs twice, or cannot be held by this tokenizer, or when
                context or question hold a special token.
        """
        from .needle import DEFAULT_TEMPLATE, compose

        return compose(
            getattr(tokenizer, "tokenizer", None) or tokenizer,
            DEFAULT_TEMPLATE,
            before=before,
            needle=needle,
            after=after,
            question=question,
            answer=answer,
            **about,
        )

    def __repr__(self) -> str:
        about = ", ".join(part for part in (self.kind, repr(self.question) if self.question else "") if part)
        needle = "no needle" if self.needle_span is None else f"needle at {self.needle_span[0]}:{self.needle_span[1]}"
        told = f"{self.n_tokens} tokens, {needle}, answer {self.answer!r}"
        return f"Trial({self.trial_id!r}, {told}{', ' if about else ''}{about})"

    def _repr_html_(self) -> str:
        from .show import trial_card

        return trial_card(self)

    @property
    def n_tokens(self) -> int:
        """Length of the whole prompt."""
        return len(self.prompt_ids)

    @property
    def answers(self) -> tuple[str, ...]:
        """The gold answer and its aliases."""
        return (self.answer, *self.aliases)

    def require_needle(self) -> tuple[int, int]:
        """The needle's span.

        Raises:
            ValueError: when the trial has none.
        """
        if self.needle_span is None:
            raise ValueError(f"trial {self.trial_id!r} has no needle (closed book): it can be ablated, not scored")
        return self.needle_span

    def prompt_digest(self) -> str:
        """Identity of the prompt, whatever the trial is called and asks for."""
        return hashlib.sha256(repr(self.prompt_ids).encode()).hexdigest()[:24]

    def with_generation(self, ids: Iterable[Any]) -> Trial:
        """The same trial with generated tokens to be scored by teacher forcing."""
        return replace(self, generated_ids=_ids(ids, "generated_ids"))

    def about(self) -> dict[str, Any]:
        """Everything but the token ids, for results and reports."""
        row = asdict(self)
        for name in ("prompt_ids", "generated_ids", "answer", "trial_id"):
            row.pop(name)
        return row | {"n_tokens": self.n_tokens}

    def to_dict(self) -> dict[str, Any]:
        """A row of a trials file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Trial:
        """Read a row of a trials file.

        Raises:
            ValueError: for an unknown or missing field, or impossible values.
        """
        unknown = set(row) - {f.name for f in fields(cls)}
        missing = {"prompt_ids", "needle_span", "answer"} - set(row)
        if unknown or missing:
            raise ValueError(
                f"unknown field {sorted(unknown)[0][:40]!r}" if unknown else f"no field {sorted(missing)[0]!r}"
            )
        values = dict(row)
        for field in fields(cls):
            if field.name not in values:
                continue
            value, kind = values[field.name], str(field.type)
            if kind in _JSON_TYPES:
                if not isinstance(value, _JSON_TYPES[kind]) or (isinstance(value, bool) and "bool" not in kind):
                    raise ValueError(f"the field {field.name!r} must be {kind}, got {str(value)[:40]!r}")
                if "float" in kind and value is not None:
                    values[field.name] = float(value)
            elif isinstance(value, list | tuple):
                values[field.name] = _LIST_TYPES[field.name](value, field.name)
            elif value is not None or "None" not in kind:
                raise ValueError(f"{field.name} must be a list, got {str(value)[:40]!r}")
        return cls(**values)


def save_trials(path: str | Path, trials: Iterable[Trial]) -> Path:
    """Write trials as JSON lines."""
    path = Path(path)
    write_jsonl(path, (trial.to_dict() for trial in trials))
    return path


def read_trials(path: str | Path) -> list[Trial]:
    """Read trials written by `save_trials`.

    Raises:
        ResultFileError: naming the line, or the trial, that is wrong.
    """
    trials = []
    for number, row in enumerate(read_jsonl(Path(path)), 1):
        try:
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
            trials.append(Trial.from_dict(row))
        except (TypeError, ValueError, OverflowError) as error:
            raise ResultFileError(f"{path}, trial {number}: {error}") from error
    return trials


if TYPE_CHECKING:
    _Trials = Sequence[Trial]
else:
    _Trials = Sequence  # a run-time type checker that samples items would build trials


class TrialGrid(_Trials):
    """Trials described in text, turned into token ids for a tokenizer when they are first needed.

    `score_heads` binds a grid to its model. Looked at without a model, a grid uses the tokenizer of the
    bundled model; trials carry a fingerprint of their tokenizer, so they cannot be scored by another.
    """

    def __init__(self, recipes: Sequence[Any], build: Callable[[Any, Any], Trial], tokenizer: Any = None) -> None:
        self.recipes = tuple(recipes)
        self._build = build
        self._tokenizer = getattr(tokenizer, "tokenizer", None) or tokenizer
        self._built: dict[int, Trial] = {}

    def bind(self, model_or_tokenizer: Any) -> TrialGrid:
        """The same trials for another tokenizer (or that of a `HookedModel`)."""
        tokenizer = getattr(model_or_tokenizer, "tokenizer", None) or model_or_tokenizer
        return self if tokenizer is self._tokenizer else TrialGrid(self.recipes, self._build, tokenizer)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the trials; without one bound, the bundled model's."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            from ..models.bundled import ensure

            self._tokenizer = AutoTokenizer.from_pretrained(str(ensure("smollm2-135m")), local_files_only=True)
        return self._tokenizer

    def __len__(self) -> int:
        return len(self.recipes)

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> TrialGrid: ...
    def __getitem__(self, index: int | slice) -> Trial | TrialGrid:
        if isinstance(index, slice):
            return TrialGrid(self.recipes[index], self._build, self._tokenizer)
        index = range(len(self))[index]
        if index not in self._built:
            self._built[index] = self._build(self.recipes[index], self.tokenizer)
        return self._built[index]

    def __iter__(self) -> Iterator[Trial]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        bound = "not yet bound to a model" if self._tokenizer is None else f"{type(self._tokenizer).__name__}"
        return f"TrialGrid({len(self)} trials, {bound})"

    def _repr_html_(self) -> str:
        from .show import grid_card

        return grid_card(self)


def _span(values: Any, name: str) -> tuple[int, int]:
    edges = [edge.item() if hasattr(edge, "item") else edge for edge in values] if isinstance(values, Iterable) else []
    if len(edges) != 2 or not all(isinstance(edge, int) and not isinstance(edge, bool) for edge in edges):
        raise ValueError(f"{name}: a span is [start, end) in tokens, got {str(values)[:40]!r}")
    return edges[0], edges[1]


def _spans(values: Iterable[Any], name: str) -> tuple[tuple[int, int], ...]:
    return tuple(_span(value, name) for value in values)


def _texts(values: Iterable[Any], name: str) -> tuple[str, ...]:
    texts = tuple(values) if not isinstance(values, str) else (None,)
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"{name} must be a list of texts, got {str(values)[:40]!r}")
    return texts


def _ids(values: Iterable[Any], name: str) -> tuple[int, ...]:
    out = []
    for value in values:
        if getattr(value, "ndim", 0):
            raise ValueError(f"{name} must be one flat sequence of token ids, got rows of them")
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
            raise ValueError(f"{name} must hold token ids, got {str(value)[:40]!r}")
        out.append(number)
    return tuple(out)


_LIST_TYPES: dict[str, Callable[[Iterable[Any], str], Any]] = {
    "prompt_ids": _ids,
    "generated_ids": _ids,
    "needle_span": _span,
    "supports": _spans,
    "aliases": _texts,
}
