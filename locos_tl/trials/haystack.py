"""Haystacks: text as a sequence of sentences, from which a context of a given length is taken."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*(?=\s)|(?<=\n)(?=\S)")


@dataclass(frozen=True)
class Haystack:
    """Named text in sentences; every sentence but the first starts with its white space."""

    name: str
    sentences: tuple[str, ...]

    def __post_init__(self) -> None:
        if not any(sentence.strip() for sentence in self.sentences):
            raise ValueError(f"haystack {self.name!r} holds no text")

    def contains(self, text: str) -> bool:
        """True when ``text`` occurs as whole words, whatever its case."""
        return re.search(rf"(?<!\w){re.escape(text.lower())}(?!\w)", _lower(self)) is not None

    def shuffled(self, seed: int) -> Haystack:
        """The same sentences in another order."""
        order = [sentence.strip() for sentence in self.sentences]
        random.Random(seed).shuffle(order)
        return Haystack(f"{self.name}/shuffle-{seed}", (order[0], *(" " + s for s in order[1:])))

    def tokens(self, tokenizer: Any, n: int) -> tuple[list[list[int]], float]:
        """At least n tokens, a list per sentence, starting over when the text is used up.

        Returns:
            Token ids by sentence, and the share of the first n tokens that is not a repetition.
        """
        once = _tokenised(self, tokenizer)
        available = sum(len(ids) for ids in once)
        out, total = [], 0
        while total < n:
            for ids in once if not out else _again(self, tokenizer):
                out.append(ids)
                total += len(ids)
                if total >= n:
                    break
        return out, min(1.0, available / n) if n else 1.0


def split_sentences(text: str) -> tuple[str, ...]:
    """Cut text after each sentence; the pieces joined give the text back."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    pieces = [text[a:b] for a, b in zip(cuts, cuts[1:], strict=False) if b > a]
    return tuple(pieces)


@cache
def bundled_haystack() -> Haystack:
    """The library's own prose: plain English without personal names."""
    text = files("locos_tl").joinpath("data/nonliteral/haystack.txt").read_text(encoding="utf-8")
    sentences = [s for paragraph in text.split("\n\n") for s in split_sentences(" ".join(paragraph.split()))]
    stripped = [s.strip() for s in sentences if s.strip()]
    return Haystack("plain-prose", (stripped[0], *(" " + s for s in stripped[1:])))


def read_haystacks(paths: str | Path | Iterable[str | Path]) -> list[Haystack]:
    """Haystacks from text files (or every ``.txt`` file of a folder), one each.

    Raises:
        ValueError: for a file that is missing, empty or not UTF-8.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(p) for p in paths]
    found = [f for p in given for f in (sorted(p.glob("*.txt")) if p.is_dir() else [p])]
    if not found:
        raise ValueError(f"no .txt file in {', '.join(map(str, given))}")
    haystacks = []
    for path in found:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"haystack {path}: cannot be read as UTF-8 text ({error})") from error
        if not text.strip():
            raise ValueError(f"haystack {path}: the file is empty")
        haystacks.append(Haystack(path.stem, split_sentences(text)))
    return haystacks


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text alone, without special tokens."""
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


@cache
def _lower(haystack: Haystack) -> str:
    return "".join(haystack.sentences).lower()


_TOKENISED: dict[tuple[int, int], tuple[Haystack, Any, list[list[int]]]] = {}


def _tokenised(haystack: Haystack, tokenizer: Any) -> list[list[int]]:
    """Tokenise a haystack once per tokenizer object (the entry keeps both alive, so ids stay unique)."""
    key = (id(haystack), id(tokenizer))
    if key not in _TOKENISED:
        if len(_TOKENISED) > 64:
            _TOKENISED.clear()
        _TOKENISED[key] = (haystack, tokenizer, encode_all(tokenizer, haystack.sentences))
    return _TOKENISED[key][2]


def _again(haystack: Haystack, tokenizer: Any) -> list[list[int]]:
    """The sentences for a further round: the first one needs white space in front."""
    first = encode_all(tokenizer, [" " + haystack.sentences[0].lstrip()])
    return first + _tokenised(haystack, tokenizer)[1:]
