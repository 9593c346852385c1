"""Late layers: layer profiles over each other, and the reference against the causal map head by head."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from ..results.late_layers import LateLayers, Profile
from ..text import label_text, number, percent
from . import theme
from .curves import HEIGHT, WIDTH, add_curve, layout
from .stretch import Stretch
from .theme import method_label

Array = np.ndarray

# From the first layer to the last: told apart by every eye, and on a light and a dark page.
_DEPTH_SCALE = [[0.0, "#3b78c2"], [0.5, "#9a94a0"], [1.0, "#e08214"]]


def late_layers(result: LateLayers) -> go.Figure:
    """Layer profiles of all maps over each other, with bands; the last third of the layers is shaded.

    The legend tells how much of each profile lies there. Profiles are cross-fitted: noise does not raise
    them, so a layer without effect lies around 0, not above.
    """
    n_layers, first = result.n_layers, result.n_layers - result.n_layers // 3
    axis = {
        "title": {"text": "layer"},
        "range": [-0.5, n_layers - 0.5],
        "tickvals": theme.thin_ticks(n_layers, 560 / n_layers, 30),
        "showgrid": False,
        "unifiedhovertitle": {"text": "layer %{x}"},
    }
    figure = go.Figure(
        layout=layout(
            "Share of positive mass by layer",
            f"{result.n_trials} trials · bands: 95 % bootstrap over trials",
            axis,
            {"title": {"text": "share of the positive mass"}, "tickformat": ".0%"},
        )
    )
    figure.update_layout(width=WIDTH + 80)
    for rank, (name, profile) in enumerate(result.profiles.items()):
        label = method_label(name)
        add_curve(
            figure,
            f"{label}<br><span style='font-size:12px'>{_in_last_third(result, name)}</span>"
            if first < n_layers
            else label,
            list(range(n_layers)),
            *profile,
            color=theme.detector_color(name),
            dash=theme.line_dash(name),
            hover=[f"{label} {_share(profile, layer)}" for layer in range(n_layers)],
            markers=False,
            width=2.5 if name in (result.reference, result.causal) else 1.5,
            rank=rank,
        )
        figure.data[-1].hovertemplate = "%{customdata}<extra></extra>"
    if first < n_layers:
        shade = {"fillcolor": theme.SHADE, "line": {"width": 0}, "layer": "below", "name": "last third"}
        figure.add_shape(type="rect", x0=first - 0.5, x1=n_layers - 0.5, y0=0, y1=1, yref="paper", **shade)
        figure.add_annotation(
            text="last third", x=first - 0.5, xanchor="left", y=1, yref="paper", yanchor="bottom", showarrow=False
        )
    return figure


def _share(profile: Profile, layer: int) -> str:
    text = percent(profile.share[layer])
    known = np.isfinite([profile.low[layer], profile.high[layer]]).all()
    return f"{text} ({percent(profile.low[layer])} to {percent(profile.high[layer])})" if known else text


def _in_last_third(result: LateLayers, name: str) -> str:
    found = result.depth(name)
    if not np.isfinite(found.value):
        return "no positive mass beyond noise"
    interval = f" ({percent(found.low)} to {percent(found.high)})" if np.isfinite([found.low, found.high]).all() else ""
    return f"{percent(found.value)}{interval} in last third"


def locos_against_total(result: LateLayers, *, n_missed: int = 10) -> go.Figure:
    """Every head by its reference score (LOCOS, x) and its causal effect (y), coloured by layer.

    The causal effect is the total effect, or the attribution estimate of it, as the result says.

    Both axes are linear around 0 and logarithmic beyond, since a few heads tower above all others. Heads
    that the reference misses (`LateLayers.missed`) are ringed, and named where there is room. Heads without
    one of the two scores are not drawn.

    Args:
        result: what to draw.
        n_missed: missed heads to ring at most.
    """
    names = (result.reference, result.causal)
    x, y = (result.maps[name].mean.astype(np.float64) for name in names)
    layers, heads = np.nonzero(np.isfinite(x) & np.isfinite(y))
    labels = [method_label(result.reference), label_text(result.causal_name)]
    ranks = [{head: rank for rank, head in enumerate(result.maps[name].ranking(), 1)} for name in names]
    hover = [
        f"<b>L{layer}H{head}</b><br>{labels[0]} {number(x[layer, head])}, rank {ranks[0][layer, head]}"
        f"<br>{labels[1]} {number(y[layer, head])}, rank {ranks[1][layer, head]}"
        for layer, head in zip(layers.tolist(), heads.tolist(), strict=True)
    ]
    across, up = Stretch(x[layers, heads]), Stretch(y[layers, heads])
    figure = go.Figure(
        layout=go.Layout(
            template=theme.TEMPLATE,
            title={
                "text": f"{labels[0]} against {labels[1]}, head by head",
                "subtitle": {"text": _agreement_text(result, len(layers))},
            },
            width=WIDTH,
            height=HEIGHT + 40,
            margin={"l": 76, "r": 96, "t": 76, "b": 52},
            hovermode="closest",
            showlegend=False,
            xaxis=across.axis(labels[0]),
            yaxis=up.axis(labels[1]),
        )
    )
    ticks = theme.thin_ticks(result.n_layers, 300 / result.n_layers, 24)
    figure.add_scatter(
        x=across(x[layers, heads]),
        y=up(y[layers, heads]),
        mode="markers",
        marker={
            "size": 8,
            "color": layers.tolist(),
            "cmin": 0,
            "cmax": max(result.n_layers - 1, 1),
            "colorscale": _DEPTH_SCALE,
            "colorbar": theme.color_bar(list(ticks), [str(tick) for tick in ticks]) | {"title": {"text": "layer"}},
            "line": {"width": 0.5, "color": theme.FAINT},
        },
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
        name="heads",
    )
    missed = result.missed(n_missed).dropna()
    if len(missed):
        right, top = across(missed[result.reference].to_numpy()), up(missed[result.causal].to_numpy())
        places = _label_places(right / across.reach * (WIDTH - 172), top / up.reach * (HEIGHT - 88))
        figure.add_scatter(
            x=right,
            y=top,
            mode="markers+text",
            text=[head if place else "" for head, place in zip(missed["head"], places, strict=True)],
            textposition=[place or "middle right" for place in places],
            marker={"size": 13, "symbol": "circle-open", "color": theme.OUTLINE, "line": {"width": 2}},
            hoverinfo="skip",
            name="missed",
        )
    return figure


def _agreement_text(result: LateLayers, n_heads: int) -> str:
    found = result.agreement(result.reference)
    text = f"{n_heads} heads, {result.n_trials} trials"
    if np.isfinite(found["spearman"]):
        text += f" · Spearman {number(found['spearman'], 2)}"
        if np.isfinite([found["spearman_low"], found["spearman_high"]]).all():
            text += f" ({number(found['spearman_low'], 2)} to {number(found['spearman_high'], 2)})"
    return text + " · ringed: high effect, low score"


def _label_places(x: Float[Array, " label"], y: Float[Array, " label"]) -> list[str]:
    """Where each label stands beside its point, in pixels, so that none covers another or a point; "" for no room."""
    sides = {"middle right": (34, 0), "middle left": (-34, 0), "top center": (0, 16), "bottom center": (0, -16)}
    taken: list[tuple[float, float]] = []
    found = []
    for right, up in zip(x.tolist(), y.tolist(), strict=True):
        spots = {side: (right + dx, up + dy) for side, (dx, dy) in sides.items()}
        free = [
            side
            for side, (a, b) in spots.items()
            if all(abs(a - c) > 50 or abs(b - d) > 14 for c, d in taken)
            and all(abs(a - c) > 30 or abs(b - d) > 12 for c, d in zip(x, y, strict=True) if (c, d) != (right, up))
        ]
        found.append(free[0] if free else "")
        if free:
            taken.append(spots[free[0]])
    return found
