"""What the figures over k share: a line with its band, and an axis of the numbers of ablated heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from ..text import label_text, number
from . import theme

Array = np.ndarray

HEIGHT, WIDTH = 420, 820
MARGIN = {"l": 68, "r": 24, "t": 76, "b": 52}


def add_curve(
    figure: go.Figure,
    name: str,
    x: Sequence[theme.Number],
    y: Float[Array, " point"],
    low: Float[Array, " point"],
    high: Float[Array, " point"],
    *,
    color: str,
    dash: str = "solid",
    hover: Sequence[str] | None = None,
    markers: bool = True,
    width: theme.Number = 2,
    rank: int = 1000,
) -> None:
    """A line, the band of its interval under it, and one legend entry for both.

    Args:
        figure: where to draw.
        name: label of the line.
        x: positions.
        y: values.
        low: lower ends of the intervals; a band is drawn where both ends are known.
        high: upper ends.
        color: of line and band.
        dash: of the line.
        hover: text of each point; default: value and interval.
        markers: mark the points.
        width: of the line.
        rank: place in the legend.
    """
    known = np.isfinite(low) & np.isfinite(high)
    place = np.asarray(x, float)
    if known.any():
        figure.add_scatter(
            x=np.concatenate([place[known], place[known][::-1]]),
            y=np.concatenate([high[known], low[known][::-1]]).astype(np.float32),
            fill="toself",
            fillcolor=theme.translucent(color, 0.13),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=name,
            name=f"{name}: band",
        )
    texts = hover or [interval_text(*point) for point in zip(y, low, high, strict=True)]
    figure.add_scatter(
        x=place,
        y=y.astype(np.float32),
        mode="lines+markers" if markers else "lines",
        line={"color": color, "width": width, "dash": dash},
        marker={"size": 7},
        customdata=list(texts),
        hovertemplate="%{customdata}",
        legendgroup=name,
        legendrank=rank,
        name=name,
    )


def interval_text(value: float, low: float, high: float, *, unit: str = "") -> str:
    """A value with its interval: "0.31 (0.25 to 0.38)"."""
    if not np.isfinite(value):
        return "no value"
    interval = f" ({number(low)} to {number(high)}{unit})" if np.isfinite([low, high]).all() else ""
    return f"{number(value)}{unit}{interval}"


def k_positions(ks: Sequence[int]) -> dict[int, int]:
    """Numbers of ablated heads at even distances: 1, 5, 10, 20, 50, 100 would crowd on a linear axis."""
    return {k: place for place, k in enumerate(sorted(set(ks)))}


def k_axis(places: dict[int, int]) -> dict[str, object]:
    """The axis of `k_positions`."""
    return {
        "title": {"text": "ablated heads"},
        "tickvals": list(places.values()),
        "ticktext": ["none" if k == 0 else str(k) for k in places],
        "range": [-0.15, len(places) - 0.85],
        "showgrid": False,
    }


def layout(title: str, subtitle: str, xaxis: dict[str, object], yaxis: dict[str, object]) -> go.Layout:
    """A figure of lines with a legend at its right and one hover for all lines."""
    return go.Layout(
        template=theme.TEMPLATE,
        title={"text": label_text(title, 120), "subtitle": {"text": subtitle}},
        width=WIDTH,
        height=HEIGHT,
        margin=MARGIN,
        hovermode="x unified",
        legend={"yanchor": "top", "y": 1, "x": 1.02, "bgcolor": "rgba(0,0,0,0)"},
        xaxis=xaxis,
        yaxis={"zeroline": False} | yaxis,
    )
