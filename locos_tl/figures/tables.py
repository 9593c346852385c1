"""The report's tables as HTML: top heads, pass rates, answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np

from ..results.head_scores import HeadScores
from ..results.scores import TrialOutcome
from ..text import DASH, clean, html_text, number, percent

MAX_ANSWERS = 400
"""Answers on one page; of a longer run, as many spread evenly over it."""
MAX_TEXT = 500
_KINDS = ("literal", "onehop", "twohop")
_MANY_VALUES = 16


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, numeric: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; the columns in ``numeric`` are set right."""

    def cells(row: Sequence[str], tag: str) -> str:
        marks = (' class="number"' if column in numeric else "" for column in range(len(row)))
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(f"<{tag}{scope}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, row, strict=True))

    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f"<table><caption>{html_text(caption)}</caption>"
        f"<thead><tr>{cells(header, 'th')}</tr></thead>\n<tbody>{body}</tbody></table>"
    )


def top_heads(scores: HeadScores, k: int = 10) -> str:
    """The k best heads with their intervals; ties at 0, which have no order, are left out and counted."""
    unit = "seeds" if scores.detector == "random" else "trials"
    best = scores.top(k)
    shown = best[best["score"] != 0]
    rows = [
        (
            str(row["rank"]),
            f"L{row['layer']}H{row['head']}",
            number(row["score"], 4, aligned=True),
            f"{number(row['ci_low'], aligned=True)} to {number(row['ci_high'], aligned=True)}"
            if row["n_trials"] > 1
            else DASH,
            str(row["kv_group"]),
            str(row["n_trials"]),
        )
        for row in shown.to_dict("records")
    ]
    header = ("Rank", "Head", "Score", "95 % interval", "KV group", unit.capitalize())
    note = ""
    if len(shown) < len(best):
        note = '<p class="note">All further heads score 0 or less, so the list ends here.</p>'
    if not rows:
        return '<p class="note">No head has a score above or below 0.</p>'
    return table(header, rows, caption=f"Top {len(rows)} heads", numeric=(0, 2, 3, 4, 5)) + note


def pass_rates(outcomes: Sequence[TrialOutcome]) -> str:
    """Passed and total by length, depth and kind of question, for those the trials tell of."""
    tables = [
        _rates("Length", outcomes, "length", _plain_number),
        _rates("Depth", outcomes, "depth", _depth_label(outcomes)),
        _rates("Kind", outcomes, "kind", html_text),
    ]
    note = ""
    unique = [float(v) for o in outcomes if _is_number(v := _told(o, "unique_share"))]
    if unique:
        low, middle = (percent(value) for value in (min(unique), float(np.median(unique))))
        note = f'<p class="note">Unique haystack text: median {middle}, lowest {low} of the context.</p>'
    found = [t for t in tables if t]
    if not found:
        return '<p class="note">These trials name neither length nor depth nor kind.</p>'
    return f'<div class="row">{"".join(found)}</div>{note}'


def _rates(title: str, outcomes: Sequence[TrialOutcome], key: str, label: Callable[[Any], str]) -> str:
    values = [_told(o, key) for o in outcomes]
    groups: dict[Any, list[bool]] = {}
    for value, outcome in zip(_binned(values, label), outcomes, strict=True):
        if value is not None:
            groups.setdefault(value, []).append(outcome.passed)
    rows = []
    for (_, name), passed in sorted(groups.items(), key=lambda item: item[0]):
        share = sum(passed) / len(passed)
        bar = f'<span class="bar" aria-hidden="true"><span style="width:{share:.0%}"></span></span>'
        rows.append((name, f"{sum(passed)} / {len(passed)}", f'{bar}<span class="percent">{percent(share)}</span>'))
    if not rows:
        return ""
    numeric = (1, 2) if key == "kind" else (0, 1, 2)
    return table((title, "Passed", "Rate"), rows, caption=f"By {title.lower()}", numeric=numeric)


def _binned(values: Sequence[Any], label: Callable[[Any], str]) -> list[tuple[Any, str] | None]:
    """(sort key, label) of each value; numbers that take very many values fall into eight ranges."""
    numbers = sorted({float(v) for v in values if _is_number(v)})
    edges = np.linspace(numbers[0], numbers[-1], 9) if len(numbers) > _MANY_VALUES else None
    found: list[tuple[Any, str] | None] = []
    for value in values:
        if value is None:
            found.append(None)
        elif edges is not None and _is_number(value):
            place = int(np.clip(np.searchsorted(edges, float(value), side="right") - 1, 0, 7))
            found.append(((0, place, ""), f"{label(edges[place])} to {label(edges[place + 1])}"))
        elif _is_number(value):
            found.append(((0, float(value), ""), label(value)))
        else:
            text = clean(value, 60)
            known = _KINDS.index(text) if text in _KINDS else len(_KINDS)
            found.append(((1, known, text), html_text(text)))
    return found


def _told(outcome: TrialOutcome, key: str) -> Any:
    """What the trial tells under a key; None for nothing or an empty text."""
    value = outcome.trial.get("depth_asked") if key == "depth" else None
    value = outcome.trial.get(key) if value is None else value
    return None if value == "" else value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _plain_number(value: Any) -> str:
    return f"{round(float(value)):,}"


def _depth_label(outcomes: Sequence[TrialOutcome]) -> Callable[[Any], str]:
    """Depths are shares of the context, or percent when one of them is above 1."""
    depths = [float(v) for o in outcomes if _is_number(v := _told(o, "depth"))]
    factor = 0.01 if any(depth > 1 for depth in depths) else 1.0
    return lambda value: percent(float(value) * factor)


def verdict(outcome: TrialOutcome) -> str:
    """Why a trial counts or not, in a few words."""
    gate = number(outcome.gate_value)
    if outcome.passed:
        return f"gate {gate} > 50"
    if outcome.gate_value <= 50:
        return f"gate {gate} ≤ 50"
    if not outcome.answer_steps:
        return f"gate {gate} > 50, but the answer was not found in the text"
    return f"gate {gate} > 50, not counted"


def _remarks(outcome: TrialOutcome) -> list[str]:
    remarks = []
    if outcome.teacher_forced:
        remarks.append("text given to the model, not generated")
    if outcome.stop_token_id is None and not outcome.stopped_early and not outcome.teacher_forced:
        remarks.append("stopped at the step limit")
    if outcome.min_margin is not None and outcome.min_margin < 0.01:
        remarks.append(f"close call: smallest logit margin {number(outcome.min_margin, 2)}")
    return remarks


def answers(outcomes: Sequence[TrialOutcome]) -> str:
    """Question, needle, gold answer, generated text and verdict of every trial (of a long run, a sample)."""
    shown = list(outcomes)
    note = ""
    if len(shown) > MAX_ANSWERS:
        places = np.linspace(0, len(outcomes) - 1, MAX_ANSWERS).round().astype(int)
        shown = [outcomes[int(i)] for i in places]
        note = (
            f'<p class="note">{len(shown):,} of {len(outcomes):,} trials, spread evenly over the run; '
            "outcomes.jsonl holds all.</p>"
        )
    depth = _depth_label(outcomes)
    rows = "\n".join(_answer_row(outcome, depth) for outcome in shown)
    header = ("Verdict", "Question and needle", "Gold answer", "Generated text", "Length", "Depth")
    heads = "".join(f'<th scope="col"{" class=number" if i > 3 else ""}>{name}</th>' for i, name in enumerate(header))
    return (
        f'{note}<div class="scroll" tabindex="0" role="region" aria-label="Answers">'
        f'<table class="answers"><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
    )


def _answer_row(outcome: TrialOutcome, depth: Callable[[Any], str]) -> str:
    state = "passed" if outcome.passed else "failed"
    tags = " · ".join(html_text(told, 60) for key in ("kind", "relation") if (told := _told(outcome, key)) is not None)
    why = "".join(f"<small>{html_text(text)}</small>" for text in [verdict(outcome), *_remarks(outcome)])
    length, asked = _told(outcome, "length"), _told(outcome, "depth")
    cells = (
        f'<td><span class="badge {state}">{state}</span>{why}</td>',
        f'<td dir="auto">{html_text(_told(outcome, "question"), MAX_TEXT)}'
        f'<small class="needle">{html_text(_told(outcome, "needle"), MAX_TEXT)}</small>'
        f'<small class="tags">{tags or html_text(outcome.trial_id, 80)}</small></td>',
        f'<td dir="auto">{html_text(outcome.answer, MAX_TEXT)}</td>',
        f'<td dir="auto">{_marked(outcome.generated_text, outcome.answer)}</td>',
        f'<td class="number">{_plain_number(length) if _is_number(length) else html_text(length, 20)}</td>',
        f'<td class="number">{depth(asked) if _is_number(asked) else html_text(asked, 20)}</td>',
    )
    return f'<tr data-state="{state}">{"".join(cells)}</tr>'


def _marked(text: str, answer: str) -> str:
    """The generated text with the first occurrence of the answer marked."""
    shown = clean(text, MAX_TEXT)
    if not shown.strip():
        return '<span class="muted">(nothing)</span>'
    found = shown.lower().find(clean(answer).strip().lower()) if answer.strip() else -1
    end = found + len(clean(answer).strip())
    # Lower-casing may change lengths (as of a dotted capital I); then nothing is marked.
    if found < 0 or len(shown.lower()) != len(shown):
        return html_text(shown)
    return f"{html_text(shown[:found])}<mark>{html_text(shown[found:end])}</mark>{html_text(shown[end:])}"
