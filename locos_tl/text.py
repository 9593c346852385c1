"""Foreign text made safe to show: model names, needles and answers come from anywhere."""

from __future__ import annotations

import html
import re
from typing import Any, SupportsFloat

MINUS, DASH, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"

_BREAKS = "\n\t"
# C0 and C1 controls, lone surrogates, and the marks that reverse the direction of the text around them.
_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")

# Halves of characters that do not stand for a byte.
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def _visible(match: re.Match[str]) -> str:
    char = match[0]
    if char in _BREAKS:
        return char
    return chr(0x2400 + ord(char)) if ord(char) < 0x20 else f"[U+{ord(char):04X}]"


def readable(text: str) -> str:
    """Text that can be written: under an ASCII locale Python keeps other bytes of a path as halves of characters."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        as_bytes = text.encode("utf-8", "surrogatepass" if _NO_BYTE.search(text) else "surrogateescape")
        return as_bytes.decode("utf-8", "replace")


def clean(value: Any, limit: int | None = None) -> str:
    r"""Text in which control characters are seen, not obeyed, cut after ``limit`` characters.

    >>> clean("a\x00b")
    'a␀b'
    """
    text = DASH if value is None else str(value)
    if limit is not None and len(text) > limit:
        text = text[:limit].rstrip() + " …"
    return _UNSHOWABLE.sub(_visible, text)


def html_text(value: Any, limit: int | None = None) -> str:
    """Text for an HTML page, also inside a quoted attribute."""
    return html.escape(clean(value, limit))


def label_text(value: Any, limit: int | None = 40) -> str:
    """Text for a plotly label or hover, which reads a few HTML tags and ``%{...}`` fields.

    Plotly knows only some entities (no ``&quot;``), so quotes stay as they are.
    """
    return html.escape(clean(value, limit), quote=False).replace("%{", "% {").replace("\n", " ")


def script_text(text: str) -> str:
    """JSON for a script element: nothing in it can end the element or open a comment."""
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def number(value: SupportsFloat, digits: int = 3, *, aligned: bool = False) -> str:
    """A number as a reader writes it: a few significant digits and a true minus sign.

    >>> number(0.04567), number(0.34, 4, aligned=True)
    ('0.0457', '0.3400')
    """
    text = f"{float(value):#.{digits}g}".rstrip(".") if aligned else f"{float(value):.{digits}g}"
    return text.replace("-", MINUS)


def percent(share: SupportsFloat) -> str:
    """A share of 1 as whole percent, the sign set apart.

    >>> percent(0.4)
    '40\u00a0%'
    """
    return f"{float(share) * 100:.0f}\u00a0%"
