"""Layer distribution: the scores of all heads, layer by layer, as violins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..results.head_scores import HeadScores
from ..text import number
from . import theme
from .profile import choose
from .stretch import Stretch

_ROW, _SPACE = 190, 44
_MARGIN = {"l": 84, "r": 24, "t": 84, "b": 52}
_VIOLIN_FROM = 4
"""Heads a layer from which the shape of their distribution is worth drawing."""


def layer_distribution(
    scores: HeadScores | Mapping[str, HeadScores], *, detectors: Sequence[str] | None = None
) -> go.Figure:
    """Scores of all heads by layer: a violin a layer and a point a head, one row a detector.

    Each row has its own axis, linear near 0 and logarithmic beyond, so that the few large heads do not hide the many
    small ones. Clicks carry the head in ``customdata``.

    Args:
        scores: one detector's scores, or several by name.
        detectors: which ones, in this order; default: all.

    Raises:
        ValueError: for an unknown detector, none at all, or models of different depth.
    """
    chosen = choose(scores, detectors)
    n_layers = next(iter(chosen.values())).n_layers
    height = _ROW * len(chosen) + _MARGIN["t"] + _MARGIN["b"]
    figure = make_subplots(
        rows=len(chosen),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=_SPACE / (height - 136) if len(chosen) > 1 else 0,
        subplot_titles=[f"<b>{theme.method_label(name)}</b>, {theme.counted_label(h)}" for name, h in chosen.items()],
    )
    figure.update_layout(
        template=theme.TEMPLATE,
        title={
            "text": "Head scores by layer",
            "subtitle": {"text": "one point a head; linear near 0, then logarithmic"},
        },
        width=920,
        height=height,
        margin=_MARGIN,
        showlegend=False,
        hovermode="closest",
        violingap=0.05,
    )
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    for row, (name, held) in enumerate(chosen.items(), 1):
        _draw(figure, row, name, held)
    ticks = theme.thin_ticks(n_layers, 800 / n_layers, 24)
    figure.update_xaxes(range=[-0.7, n_layers - 0.3], tickvals=ticks, showgrid=False)
    figure.update_xaxes(title_text="layer", row=len(chosen))
    return figure


def _draw(figure: go.Figure, row: int, name: str, held: HeadScores) -> None:
    layers, heads = np.nonzero(np.isfinite(held.mean))
    values = held.mean[layers, heads].astype(float)
    up = Stretch(values)
    ranks = {head: rank for rank, head in enumerate(held.ranking(), 1)}
    cells = list(zip(layers.tolist(), heads.tolist(), strict=True))
    color = theme.detector_color(name)
    texts = [f"{number(value, 4)}, rank {ranks[cell]}" for cell, value in zip(cells, values, strict=True)]
    if held.n_heads >= _VIOLIN_FROM:
        figure.add_violin(
            x=layers.tolist(),
            y=up(values).astype(np.float32),
            points=False,
            spanmode="hard",
            bandwidth=0.05 * up.reach,  # the rule of thumb is led astray by the few heads far off
            scalemode="width",
            width=0.9,
            line={"width": 1, "color": theme.translucent(color, 0.7)},
            fillcolor=theme.translucent(color, 0.16),
            hoverinfo="skip",
            name=name,
            row=row,
            col=1,
        )
    # Heads of a layer stand side by side in their order, so that points do not cover each other.
    offsets = (heads - (held.n_heads - 1) / 2) / max(held.n_heads, 1) * 0.6
    figure.add_scatter(
        x=(layers + offsets).astype(np.float32),
        y=up(values).astype(np.float32),
        mode="markers",
        marker={"size": 5, "color": color, "opacity": 0.8},
        text=texts,
        hovertemplate="<b>%{customdata}</b><br>%{text}<extra></extra>",
        customdata=[f"L{layer}H{head}" for layer, head in cells],
        name=name,
        row=row,
        col=1,
    )
    figure.update_yaxes(up.axis("score"), row=row, col=1)
