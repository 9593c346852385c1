"""Heads as users write them: (layer, head) pairs, names like "L23H1", or a table of `HeadScores.top`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Integral
from typing import Any

Head = tuple[int, int]
_NAME = re.compile(r"L(\d{1,6})H(\d{1,6})")


def head_name(head: Head) -> str:
    """ "L23H1" for (23, 1)."""
    return f"L{head[0]}H{head[1]}"


def as_heads(heads: Any, n_layers: int, n_heads: int, what: str = "heads", kv: bool = False) -> tuple[Head, ...]:
    """Checked heads, in the order given.

    Args:
        heads: pairs, names, or a data frame with the columns layer and head.
        n_layers, n_heads: sizes of the model (n_heads: of the axis the heads are on).
        what: the argument's name, for errors.
        kv: key-value heads are wanted; a table has them in the column "kv_head".

    Raises:
        ValueError: for none at all, one that is no head, outside the model, or named twice.
    """
    if hasattr(heads, "ranking"):
        raise ValueError(f"{what}: give heads, not all scores: scores.top(10) or scores.ranking()[:10]")
    if hasattr(heads, "columns"):
        wanted, other = ("kv_head", "head") if kv else ("head", "kv_head")
        if not {"layer", wanted} <= set(heads.columns):
            lacks = f"holds {other}s, and {wanted}s are needed" if other in heads.columns else f"has no {wanted!r}"
            raise ValueError(f"{what}: the table {lacks}")
        heads = heads[["layer", wanted]].itertuples(index=False)
    if not isinstance(heads, Iterable):
        raise ValueError(f"{what}: give heads as (layer, head) or names like 'L5H3', got {str(heads)[:40]!r}")
    given = [heads] if isinstance(heads, str) or _is_pair(heads) else list(heads)
    if not given:
        raise ValueError(f"{what}: no head given")
    found: dict[Head, None] = {}
    for one in given:
        head = _parse(one, what)
        if not (0 <= head[0] < n_layers and 0 <= head[1] < n_heads):
            raise ValueError(f"{what}: {head_name(head)} is outside a model of {n_layers} layers x {n_heads} heads")
        if head in found:
            raise ValueError(f"{what}: {head_name(head)} is named twice")
        found[head] = None
    return tuple(found)


def by_layer(heads: Iterable[Head]) -> dict[int, list[int]]:
    """Head indices per layer, layers in ascending order."""
    layers: dict[int, list[int]] = {}
    for layer, head in sorted(heads):
        layers.setdefault(layer, []).append(head)
    return layers


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, Integral) for part in value)


def _parse(one: Any, what: str) -> Head:
    if isinstance(one, str) and (match := _NAME.fullmatch(one)):
        return int(match[1]), int(match[2])
    try:
        layer, head = (part.item() if hasattr(part, "item") else part for part in one)
    except (TypeError, ValueError):
        layer = head = None
    if type(layer) is not int or type(head) is not int:
        raise ValueError(f"{what}: {str(one)[:40]!r} is no head; give (layer, head) or a name like 'L5H3'")
    return layer, head
