"""Names a user may choose from, and what to say to one that is not among them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, name: object, known: Iterable[object]) -> str:
    """The sentence that refuses a name: what it is, the nearest that exists, and all that exist.

    >>> unknown("detector", "loco", ["locos", "wu"])
    "unknown detector 'loco' (did you mean 'locos'?); choose from locos, wu"
    """
    names = [str(one) for one in known]
    return f"unknown {what} {str(name)!r}{did_you_mean(name, names)}; choose from {', '.join(names)}"


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The nearest name, for the middle of a message; nothing where none is near.

    >>> did_you_mean("Attention-Spatial", ["locos", "attention_spatial"])
    " (did you mean 'attention_spatial'?)"
    >>> did_you_mean("x", ["locos"])
    ''
    """
    by_form = {_form(str(one)): str(one) for one in known}
    near = difflib.get_close_matches(_form(str(name)), by_form, n=1, cutoff=0.6)
    return f" (did you mean {by_form[near[0]]!r}?)" if near else ""


def _form(name: str) -> str:
    """A name without what people mistype most: case, and the kind of dash."""
    return name.lower().replace("-", "_").replace(" ", "_")
