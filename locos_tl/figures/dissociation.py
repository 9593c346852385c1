"""Dissociation against the number of ablated heads: retrieval lost beyond what else was lost."""

from __future__ import annotations

import plotly.graph_objects as go

from ..results.dissociation import Dissociation, DissociationRow
from ..text import number
from . import theme
from .curves import add_curve, interval_text, k_axis, k_positions, layout
from .theme import method_label, metric_label


def dissociation(result: Dissociation) -> go.Figure:
    """Dissociation score of every method against k, with its band; a diamond marks k*, the largest.

    At 0 both abilities suffer alike; at 1 all retrieval is gone and nothing else. Hovering shows both drops.

    Raises:
        ValueError: for a result without rows.
    """
    if not result.rows:
        raise ValueError("no dissociation to draw")
    places = k_positions([row.k for row in result.rows])
    figure = go.Figure(
        layout=layout(
            "Retrieval lost beyond what else is lost",
            f"relative drop of {metric_label(result.metric)} minus that of the control "
            f"({metric_label(result.control_metric)}) · bands: 95 % bootstrap · ◆ k*",
            k_axis(places),
            {"title": {"text": "dissociation score"}},
        )
    )
    figure.add_hline(y=0, line={"color": theme.FAINT, "width": 1.5}, layer="below")
    for rank, method in enumerate(result.methods):
        rows = result.to_frame().query("method == @method")
        color = theme.detector_color(method)
        add_curve(
            figure,
            method_label(method),
            [places[k] for k in rows["k"]],
            *(rows[column].to_numpy() for column in ("score", "score_low", "score_high")),
            color=color,
            dash=theme.line_dash(method),
            hover=[_point(row) for row in result.rows if row.method == method],
            rank=rank,
        )
        best = result.best(method)
        figure.add_scatter(
            x=[places[best.k]],
            y=[best.score],
            mode="markers",
            marker={"symbol": "diamond", "size": 13, "color": color, "line": {"color": "#ffffff", "width": 1}},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=method_label(method),
            name=f"{method_label(method)}: k*",
        )
    return figure


def _point(row: DissociationRow) -> str:
    score = interval_text(row.score, row.score_low, row.score_high)
    return f"{score}: retrieval {number(-row.retrieval_drop)}, control {number(-row.control_drop)}"
