"""Haystacks: text as a sequence of sentences, from which a context of a given length is taken."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

_SENTENCE_END = re.compile(
    r"(?P<mark>[.!?\u2026]+)[\"'\u201d\u2019\u00bb)\]]*(?:\s*\n|(?=\s))"  # line breaks stay with the sentence they end
    r"|[\u3002\uff01\uff1f\u0964]+[\"'\u201d\u2019\u300d\u300f\uff09)]*(?:\s*\n)?"  # scripts with their own full stop
)
_NEXT_WORD = re.compile(r"[\s\"'\u201c\u2018\u00ab(\[]*(\S)")
_LAST_WORD = re.compile(r"[^\s\"'\u201c\u2018(\[]+\Z")
_ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|st|mt|jr|sr|rev|hon|capt|col|gen|lt|sgt|vs|etc|cf|no|vol|fig|e\.g|i\.e", re.IGNORECASE
)
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Characters of scripts without spaces between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese), for a [...]."""
_UNSPACED = re.compile(f"[{UNSPACED}]")
_LONGEST_SENTENCE = 2000  # characters; longer pieces (verse, lists, code) are cut at their line breaks


@dataclass(frozen=True)
class Haystack:
    """Named text in sentences; the sentences joined are the text."""

    name: str
    sentences: tuple[str, ...]

    def __post_init__(self) -> None:
        if not any(sentence.strip() for sentence in self.sentences):
            raise ValueError(f"haystack {self.name!r} holds no text")

    def contains(self, text: str) -> bool:
        """True when ``text`` occurs, whatever its case and line breaks; as whole words where words are spaced."""
        wanted, whole = _plain(text), _plain_text(self)
        if wanted not in whole or _UNSPACED.search(text):
            return wanted in whole
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", whole) is not None

    def shuffled(self, seed: int) -> Haystack:
        """The same sentences in another order."""
        order = [sentence.strip() for sentence in self.sentences if sentence.strip()]
        random.Random(seed).shuffle(order)
        return Haystack(f"{self.name}/shuffle-{seed}", (order[0], *(" " + s for s in order[1:])))

    def tokens(self, tokenizer: Any, n: int) -> list[list[int]]:
        """Token ids by sentence, at least n in all, starting over when the text is used up."""
        out: list[list[int]] = []
        total = 0
        for ids, _ in _endless(self, tokenizer):
            if total >= n:
                break
            out.append(ids)
            total += len(ids)
        return out

    def unique_share(self, tokenizer: Any, n: int) -> float:
        """Share of the first n tokens in sentences that are not there a second time."""
        total = unique = 0
        for ids, fresh in _endless(self, tokenizer):
            if total >= n:
                break
            unique += min(len(ids), n - total) if fresh else 0
            total += len(ids)
        return unique / n if n > 0 else 1.0


def split_sentences(text: str) -> tuple[str, ...]:
    """Cut text after each sentence; the pieces joined give the text back.

    A sentence ends at . ! ? (or the full stop of its script) with closing quotes. Titles, initials
    ("Dr. J. Low") and marks before a lower-case word ("'What?' he said") end none.
    """
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text) if _ends_sentence(text, match)), len(text)]
    pieces: list[str] = []
    for start, end in pairwise(cuts):
        piece = text[start:end]
        pieces += re.findall(r"[^\n]*\n+|[^\n]+", piece) if len(piece) > _LONGEST_SENTENCE else [piece]
    return tuple(piece for piece in pieces if piece)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    following = _NEXT_WORD.match(text, match.end())
    if following is None or following[1].islower():
        return False
    if match["mark"] != ".":
        return True
    word = _LAST_WORD.search(text[max(0, match.start() - 20) : match.start()])
    initial = word is not None and len(word[0]) == 1 and word[0].isupper() and word[0] != "I"
    return not initial and (word is None or _ABBREVIATION.fullmatch(word[0]) is None)


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
        ValueError: for a file that is missing, empty, not UTF-8, or one single long sentence.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(p) for p in paths]
    found = [f for p in given for f in (sorted(p.glob("*.txt")) if p.is_dir() else [p])]
    if not found:
        raise ValueError(f"no .txt file in {', '.join(map(str, given))}")
    haystacks = []
    for path in found:
        try:
            text = path.read_text(encoding="utf-8-sig").strip()
        except FileNotFoundError:
            raise ValueError(f"haystack {path}: no such file or folder") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"haystack {path}: cannot be read as UTF-8 text ({error})") from error
        if not text:
            raise ValueError(f"haystack {path}: the file is empty")
        sentences = split_sentences(text)
        if len(sentences) == 1 and len(text) > _LONGEST_SENTENCE:
            raise ValueError(f"haystack {path}: no sentence and no line ends in it, so a needle has no place to go")
        haystacks.append(Haystack(path.stem, sentences))
    return haystacks


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text as the continuation of another, without special tokens.

    SentencePiece-like tokenizers put a space in front of whatever they are given; here they get a line break
    to put it in front of, which is taken off again.
    """
    alone = encode_start(tokenizer, texts)
    lead = _lead(tokenizer)
    if not lead:
        return alone
    led = encode_start(tokenizer, ["\n" + text for text in texts])
    return [ids[len(lead) :] if ids[: len(lead)] == lead else start for ids, start in zip(led, alone, strict=True)]


def encode_start(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text as the start of a prompt, without special tokens."""
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def _lead(tokenizer: Any) -> list[int]:
    """The ids of a line break where the tokenizer puts a space in front of it, else nothing."""
    known = getattr(tokenizer, "_locos_tl_lead", None)
    if known is None:
        word, spaced, line = encode_start(tokenizer, ["a", " a", "\n"])
        puts_space = tokenizer.convert_ids_to_tokens(word)[:1] != ["a"] and spaced != word
        known = tokenizer._locos_tl_lead = line if puts_space else []
    return known


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


@lru_cache(maxsize=64)
def _plain_text(haystack: Haystack) -> str:
    return _plain("".join(haystack.sentences))


_TOKENISED: dict[tuple[int, int], tuple[Haystack, Any, list[list[int]]]] = {}


def tokenised(haystack: Haystack, tokenizer: Any) -> list[list[int]]:
    """Tokenise a haystack once per tokenizer object (the entry keeps both alive, so ids stay unique)."""
    key = (id(haystack), id(tokenizer))
    if key not in _TOKENISED:
        if len(_TOKENISED) > 64:
            _TOKENISED.clear()
        _TOKENISED[key] = (haystack, tokenizer, encode_all(tokenizer, haystack.sentences))
    return _TOKENISED[key][2]


def _endless(haystack: Haystack, tokenizer: Any) -> Iterator[tuple[list[int], bool]]:
    """The sentences' token ids, round after round, each with whether its text is there for the first time."""
    once = tokenised(haystack, tokenizer)
    if not any(once):
        raise ValueError(f"haystack {haystack.name!r}: this tokenizer makes no tokens of it")
    seen: set[str] = set()
    for sentence, ids in zip(haystack.sentences, once, strict=True):
        text = _plain(sentence)
        yield ids, text not in seen
        seen.add(text)
    again = [*encode_all(tokenizer, [" " + haystack.sentences[0].lstrip()]), *once[1:]]
    while True:
        for ids in again:
            yield ids, False
