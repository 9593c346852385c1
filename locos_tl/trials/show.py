"""What a notebook shows of trials: the prompt around its needle, and the first few of a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .. import html
from .needle import known_tokenizer

if TYPE_CHECKING:
    from .trial import Trial, TrialGrid

AROUND, HEAD, TAIL = 60, 12, 80
"""Tokens shown around each marked span, at the start and at the end of a prompt; what lies between is folded."""
WORTH_FOLDING = 20
"""Fewest tokens to fold."""
FIRST = 5
"""Trials of a grid that are shown."""
_PROSE = "white-space:pre-wrap;margin:0.4em 0;max-width:80ch"
_FOLD = "opacity:0.6"


def trial_card(trial: Trial) -> str:
    """A trial: what it is about, and its prompt with the needle marked."""
    tokenizer = known_tokenizer(trial.tokenizer)
    depth = None if trial.depth is None else f"depth {trial.depth:.2g}"
    about = html.line(f"{trial.n_tokens} tokens", trial.kind, depth, trial.relation)
    answers = " / ".join(trial.answers)
    facts = html.pairs({"question": trial.question, "answer": answers, "needle": trial.needle})
    if tokenizer is not None:
        prompt = f"<div style='{_PROSE}'>{prompt_html(trial, tokenizer)}</div>"
    else:
        prompt = html.text(f"prompt of {trial.n_tokens} token ids; needle at {trial.needle_span or 'no place'}")
    return html.card(f"Trial {trial.trial_id}".rstrip(), about, facts, prompt)


def prompt_html(trial: Trial, tokenizer: Any) -> str:
    """The prompt as text: needle and supporting facts marked, long stretches between folded."""
    spans = sorted({*trial.supports, *([trial.needle_span] if trial.needle_span else [])})
    n = trial.n_tokens
    parts = []
    last = 0
    for start, end in _shown(n, spans):
        if start > last:
            parts.append(f"<span style='{_FOLD}'> […{start - last} tokens…] </span>")
        for first, stop, marked in _cut(start, end, spans):
            piece = tokenizer.decode(list(trial.prompt_ids[first:stop]))
            parts.append(html.mark(piece) if marked else html.text(piece))
        last = end
    return "".join(parts)


def _shown(n: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches of n tokens to show: both ends, and some tokens around each span; joined where few lie between."""
    wanted = [(0, HEAD), (n - TAIL, n), *((start - AROUND, end + AROUND) for start, end in spans)]
    found: list[tuple[int, int]] = []
    for start, end in sorted((max(0, a), min(n, b)) for a, b in wanted):
        if found and start - found[-1][1] < WORTH_FOLDING:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _cut(start: int, end: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """A stretch in pieces that lie wholly inside a span or outside of all."""
    spans = list(spans)
    edges = sorted({start, end, *(edge for span in spans for edge in span if start < edge < end)})
    return [(a, b, any(s <= a and b <= e for s, e in spans)) for a, b in pairwise(edges)]


def grid_card(grid: TrialGrid) -> str:
    """A grid: how many trials of which kind and length, and the first few. Builds no trial, fetches no tokenizer."""
    recipes = grid.recipes
    rows = [
        {name: _of(recipe, name) for name in ("trial_id", "kind", "length", "depth", "needle", "question", "answer")}
        for recipe in recipes[:FIRST]
    ]
    kept = [name for name in (rows[0] if rows else {}) if any(row[name] is not None for row in rows)]
    more = f"… and {len(recipes) - FIRST} more" if len(recipes) > FIRST else ""
    about = html.line(*(_counts(recipes, name) for name in ("kind", "length", "depth")))
    table = html.table([{name: row[name] for name in kept} for row in rows], limit=90)
    return html.card(repr(grid), about, table, html.text(more))


def _of(recipe: Any, name: str) -> Any:
    """A field of a recipe, which each set words in its own way."""
    for part in (recipe, getattr(recipe, "story", None)):
        value = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
        if isinstance(value, str | int | float):
            return value
    return None


def _counts(recipes: Iterable[Any], name: str) -> str:
    """How many recipes have which value: "kind: 24 onehop, 24 twohop"."""
    found = Counter(value for recipe in recipes if (value := _of(recipe, name)) not in (None, ""))
    if not found:
        return ""
    told = ", ".join(
        f"{count} of {value}" for value, count in sorted(found.items(), key=lambda item: (str(type(item[0])), item[0]))
    )
    return f"{name}: {told}" if len(found) <= 8 else f"{name}: {len(found)} values"
