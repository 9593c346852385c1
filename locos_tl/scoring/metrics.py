"""How right is an answer? Text metrics from 0 to 1, each the best over all gold answers.

- ``rouge_l`` (all of the generated text): ROUGE-L F-measure with stemming, the longest common subsequence of words
- ``contains`` (all of it): 1 if a gold answer occurs in it as whole words and numbers
- ``exact`` (the extracted answer): 1 if it is a gold answer, apart from case, spaces and outer punctuation
- ``em`` (the extracted answer): exact match as in SQuAD and MuSiQue, also without articles and punctuation
- ``f1`` (the extracted answer): F1 of the words they share, normalised like ``em``
- ``subspan`` (all of it): 1 if a gold answer is a run of words in it, both normalised like ``em``

They err differently. ``rouge_l`` punishes wordy right answers and rewards the question's words in wrong ones;
``contains`` and ``subspan`` accept the answer inside a denial. ``em``, ``f1`` and ``subspan`` follow the published
normalisation, which drops the punctuation inside numbers too: "3.5" equals "35", and "-7" equals "7". Where numbers are
asked for, take ``contains`` or ``exact``. An empty text and an empty gold answer score 0 everywhere.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import wraps

from ..trials.haystack import UNSPACED
from .answers import rouge

Metric = Callable[[str, Sequence[str]], float]
METRICS: dict[str, Metric] = {}
"""Metrics by name: ``METRICS[name](text, answers)``, from 0 to 1."""

_LEAD_IN = re.compile(
    r"(?:(?:so|therefore|thus|hence),?\s+)?(?:the\s+|my\s+)?(?:final\s+|correct\s+|short\s+)?answer(?:\s+is\s*:?|\s*:)\s*"
    r"|a:\s+",
    re.IGNORECASE,
)
_WRAPPING = " \t\"'`*_\u201c\u201d\u2018\u2019\u00ab\u00bb"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_OUTER = re.escape(string.punctuation + _WRAPPING)
_EDGES = re.compile(rf"^(?:(?!-?(?<!\.)\.?\d)[{_OUTER}])+|[{_OUTER}]+$")
"""Punctuation around an answer; the sign or point that opens a number belongs to it."""
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = rf"[^\W{UNSPACED}]"
_NUMBER_BEFORE = rf"(?<!\d[.,/])(?<!(?<!{_WORD})(?<!\.)\.)(?<!(?<!{_WORD})(?<!\))[-\u2013])"
_NUMBER_AFTER = r"(?![.,/]\d)"
"""What makes digits part of another number: decimals, thousands, fractions; a minus that is no hyphen or difference."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def metric(one: Callable[[str, str], float]) -> Metric:
    """Register a metric of text and one gold answer under its name; the registered one takes several answers."""

    @wraps(one)
    def best(text: str, answers: Sequence[str]) -> float:
        if isinstance(answers, str) or not answers:
            raise ValueError(f"{one.__name__}: give a list of at least one gold answer")
        return max(one(text, gold) if gold.strip() else 0.0 for gold in answers) if text.strip() else 0.0

    METRICS[one.__name__] = best
    return best


@metric
def rouge_l(text: str, gold: str) -> float:
    """ROUGE-L F-measure with stemming of the whole text: 2 LCS / (words of text + words of gold).

    A right answer in many words loses; a wrong one that repeats the gold's common words gains. Letters outside
    a to z separate words and are dropped, so answers in other scripts score 0.
    """
    return float(rouge("rougeL")(gold, text).fmeasure)


@metric
def contains(text: str, gold: str) -> float:
    """1 if the gold answer occurs in the text as whole words, whatever its case and line breaks.

    Numbers are whole too: "-7", "12.7", "7,000" and "7/2" do not contain "7". In scripts without spaces between words
    (Chinese, Japanese, Thai) any run of characters counts. Says nothing about what else the text claims.
    """
    wanted = _plain(gold)
    before = "" if _UNSPACED.match(wanted[0]) else rf"(?<!{_WORD})"
    after = "" if _UNSPACED.match(wanted[-1]) else rf"(?!{_WORD})"
    if wanted[0].isdecimal():
        before += _NUMBER_BEFORE
    if wanted[-1].isdecimal():
        after += _NUMBER_AFTER
    return float(re.search(before + re.escape(wanted) + after, _plain(text)) is not None)


@metric
def exact(text: str, gold: str) -> float:
    """1 if the extracted answer is the gold answer, apart from case, spaces and outer punctuation.

    The sign and the point that open a number are no outer punctuation: "-7" and ".7" are not "7".
    """
    answer = _bare(extract_answer(text))
    return float(answer != "" and answer == _bare(gold))


@metric
def em(text: str, gold: str) -> float:
    """Exact match of SQuAD (Rajpurkar et al. 2016) and MuSiQue: extracted answer and gold are equal when normalised.

    As published, numbers lose their punctuation too: "3.5" equals "35", "-7" equals "7".
    """
    answer = extract_answer(text)
    return float(answer != "" and normalise(answer) == normalise(gold))


@metric
def f1(text: str, gold: str) -> float:
    """F1 of SQuAD and MuSiQue: harmonic mean of precision and recall of the normalised words, counted with repeats.

    Where normalisation leaves nothing of one of the two, they must be equal. Numbers as in `em`.
    """
    answer = extract_answer(text)
    given, wanted = normalise(answer).split(), normalise(gold).split()
    if not given or not wanted:
        return float(answer != "" and given == wanted)
    shared = (Counter(given) & Counter(wanted)).total()
    return 2.0 * shared / (len(given) + len(wanted))


@metric
def subspan(text: str, gold: str) -> float:
    """1 if the normalised gold answer is a run of whole words in the normalised text (NoLiMa, BABILong).

    "Not the bathroom, the kitchen" counts as a hit for "bathroom": where all possible answers are known, use
    `sole_label`. Numbers as in `em`.
    """
    wanted = normalise(gold)
    return float(wanted != "" and f" {wanted} " in f" {normalise(text)} ")


def sole_label(text: str, answers: Sequence[str], labels: Collection[str], question: str = "") -> float:
    """1 if a gold answer is the only label that the text's first sentence names: BABILong's own rule.

    Labels are all possible answers of the task; those that stand in the question do not count, for they are never
    the answer. So "not the bathroom, the kitchen" is no hit for "bathroom", nor is a list of every place.
    """
    sentence = normalise(text.strip().partition(".")[0])
    asked = normalise(question)
    named = {label for label in map(normalise, labels) if f" {label} " in f" {sentence} "}
    named = {label for label in named if f" {label} " not in f" {asked} "}
    return float(len(named) == 1 and named <= set(map(normalise, answers)))


def extract_answer(text: str) -> str:
    """The answer without its wrapping: the first line with more than a lead-in, without lead-in, quotes and final stop.

    >>> extract_answer('Answer: The answer is "Mount Fuji".')
    'Mount Fuji'
    """
    for line in text.splitlines():
        answer = line.strip(_WRAPPING)
        while found := _LEAD_IN.match(answer):
            answer = answer[found.end() :].strip(_WRAPPING)
        if answer := answer.rstrip(".").strip(_WRAPPING):
            return answer
    return ""


def normalise(text: str) -> str:
    """The text as SQuAD's evaluation compares it: lower case, no punctuation, no articles, single spaces.

    >>> normalise("The answer: -3.5")
    'answer 35'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _plain(text: str) -> str:
    """Lower case, single spaces, one sort of minus."""
    return " ".join(text.casefold().replace("\N{MINUS SIGN}", "-").split())


def _bare(text: str) -> str:
    return _EDGES.sub("", _plain(text))
