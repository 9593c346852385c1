"""What a notebook shows of an object: a title, a line or two, a small table.

Colours are the page's own, so that dark themes stay readable; only marks have one, and it is translucent. All text is
escaped: names of models, needles and answers come from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

DASH = "\N{EN DASH}"
_CELL = "padding:0.15em 0.6em;text-align:{};white-space:{};vertical-align:top"
_MARK = "background:rgba(255,180,0,0.35);color:inherit;border-radius:0.2em"


def text(value: Any, limit: int | None = None) -> str:
    """Foreign text, escaped, control characters made visible, cut after ``limit`` characters."""
    from .text import html_text

    return html_text(value, limit)


def card(title: Any, *parts: str) -> str:
    """A block with a title in bold.

    Args:
        title: text.
        parts: ready HTML, one below the other; empty ones are left out.
    """
    body = "".join(f"<div>{part}</div>" for part in parts if part)
    return f"<div><p style='margin:0.3em 0'><b>{text(title)}</b></p>{body}</div>"


def line(*parts: Any) -> str:
    """Short texts beside each other, empty ones left out."""
    return " · ".join(text(part) for part in parts if part not in (None, ""))


def mark(value: Any) -> str:
    """Text set off from what is around it."""
    return f"<mark style='{_MARK}'>{text(value)}</mark>"


def table(rows: Iterable[Mapping[str, Any]], limit: int = 60) -> str:
    """Rows as a table; the keys of the first are the head.

    Args:
        rows: values by column: text, numbers, None for nothing.
        limit: longest text of a cell.
    """
    rows = list(rows)
    if not rows:
        return ""
    columns = list(rows[0])
    numeric = {c: all(_is_number(row[c]) or row[c] is None for row in rows) for c in columns}
    head = "".join(_cell("th", text(column), numeric[column]) for column in columns)
    body = "".join(
        "<tr>" + "".join(_cell("td", _told(row[c], limit), numeric[c]) for c in columns) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def frame(values: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """A data frame as `table`, without its index; missing values are dashes.

    Args:
        columns: those to show; default: all.
    """
    shown = values if columns is None else values[[c for c in columns if c in values]]
    return table({str(k): v for k, v in row.items()} for row in shown.to_dict("records"))


def pairs(values: Mapping[str, Any]) -> str:
    """Names and values, one pair a row; pairs without a value are left out."""
    kept = {name: value for name, value in values.items() if value not in (None, "")}
    rows = "".join(
        f"<tr>{_cell('th', text(name), False)}{_cell('td', _told(value, 200), False)}</tr>"
        for name, value in kept.items()
    )
    return f"<table><tbody>{rows}</tbody></table>" if rows else ""


def _cell(tag: str, inner: str, numeric: bool) -> str:
    style = _CELL.format("right" if numeric else "left", "nowrap" if numeric or tag == "th" else "normal")
    return f"<{tag} style='{style}'>{inner}</{tag}>"


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool | str) and hasattr(value, "__float__")


def _told(value: Any, limit: int) -> str:
    """A cell: four digits of a fraction, a dash for what is missing."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return DASH
    if _is_number(value) and not hasattr(value, "__index__"):
        return text(f"{float(value):.4g}") if math.isfinite(float(value)) else DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return text(value, limit)
