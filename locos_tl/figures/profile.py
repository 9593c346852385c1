"""Layer profile: where in the model's depth each detector puts its positive scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from ..results import statistics
from ..results.head_scores import HeadScores
from ..text import label_text, percent
from . import theme

Array = np.ndarray

_ROW, _SINGLE, _SPACE = 74, 230, 20
_MARGIN = {"l": 186, "r": 128, "t": 76, "b": 52}


def layer_profile(
    scores: HeadScores | Mapping[str, HeadScores],
    *,
    detectors: Sequence[str] | None = None,
    n_resamples: int = 1000,
) -> go.Figure:
    """Share of the positive score mass that each layer holds, one row a detector, all on one scale.

    The band is the 95 % percentile bootstrap over trials (for "random": over seeds), the diamond the centre
    of mass with its interval, the shaded part the last third of the layers. At the right: the share that
    lies there and the centre of mass (0 is the first layer, 1 the last).

    Args:
        scores: one detector's scores, or several by name.
        detectors: which ones, in this order; default: all.
        n_resamples: bootstrap resamples.

    Raises:
        ValueError: for an unknown detector, none at all, or models of different depth.
    """
    chosen = choose(scores, detectors)
    profiles = {name: _Profile.of(held, n_resamples) for name, held in chosen.items()}
    n_layers = next(iter(chosen.values())).n_layers
    top = max(max(p.share.max(), p.high.max()) for p in profiles.values()) or 1.0
    figure = go.Figure(layout=_layout(len(profiles), n_layers, float(top)))
    for row, (name, profile) in enumerate(profiles.items()):
        _draw(figure, row, name, chosen[name], profile, float(top))
    if n_layers // 3:
        first = n_layers - n_layers // 3
        figure.add_shape(
            type="rect",
            x0=first - 0.5,
            x1=n_layers - 0.5,
            y0=0,
            y1=1,
            yref="paper",
            fillcolor=theme.SHADE,
            line={"width": 0},
            layer="below",
            name="last third",
        )
        figure.add_annotation(
            text="last third", x=first - 0.5, xanchor="left", y=1, yref="paper", yanchor="bottom", showarrow=False
        )
    return figure


@dataclass(frozen=True)
class _Profile:
    """A detector's layer shares with their bootstrap band, and the two numbers that sum them up."""

    share: Float[Array, "layer"]
    low: Float[Array, "layer"]
    high: Float[Array, "layer"]
    centre: float
    centre_interval: tuple[float, float]
    last_third: float

    @classmethod
    def of(cls, scores: HeadScores, n_resamples: int) -> _Profile:
        means = statistics.resampled_means(scores.counted, n_resamples)
        shares = np.stack([statistics.layer_mass(mean) for mean in means])
        low, high = np.quantile(shares, [0.025, 0.975], axis=0)
        centres = np.array([statistics.centre_of_mass(mean) for mean in means])
        known = centres[np.isfinite(centres)]
        interval = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
        return cls(
            share=statistics.layer_mass(scores.mean),
            low=low,
            high=high,
            centre=statistics.centre_of_mass(scores.mean),
            centre_interval=(float(interval[0]), float(interval[1])),
            last_third=statistics.last_third(scores.mean),
        )


def choose(scores: HeadScores | Mapping[str, HeadScores], detectors: Sequence[str] | None) -> dict[str, HeadScores]:
    """The detectors to draw, in order, all of one depth.

    Raises:
        ValueError: for an unknown detector, none at all, or models of different depth.
    """
    held = {scores.detector: scores} if isinstance(scores, HeadScores) else dict(scores.items())
    names = list(held) if detectors is None else list(dict.fromkeys(detectors))
    for name in names:
        if name not in held:
            raise ValueError(f"no detector {name!r}; there are: {', '.join(held)}")
    if not names:
        raise ValueError("no detector to draw")
    depths = {held[name].n_layers for name in names}
    if len(depths) > 1:
        raise ValueError(f"scores of models with {sorted(depths)} layers do not share an axis")
    return {name: held[name] for name in names}


def _axis_name(row: int) -> str:
    return "y" if row == 0 else f"y{row + 1}"


def _layout(n_rows: int, n_layers: int, top: float) -> go.Layout:
    """Rows below each other over one layer axis, so that one hover reads them all."""
    height = _SINGLE if n_rows == 1 else n_rows * _ROW + (n_rows - 1) * _SPACE
    axes = {}
    for row in range(n_rows):
        start = row * (_ROW + _SPACE) / height
        axes[f"yaxis{row + 1 if row else ''}"] = {
            "domain": [0.0, 1.0] if n_rows == 1 else [max(1 - start - _ROW / height, 0.0), 1 - start],
            "range": [-0.2 * top, top * 1.08],  # below zero: the centre of mass
            "tickformat": ".0%",
            "nticks": 6 if n_rows == 1 else 3,
            "tickfont": {"size": 11},
            "fixedrange": True,
            "showline": False,
        }
    return go.Layout(
        template=theme.TEMPLATE,
        title={
            "text": "Share of positive score mass by layer",
            "subtitle": {"text": "band: 95 % bootstrap over trials · ◆ centre of mass"},
        },
        height=height + _MARGIN["t"] + _MARGIN["b"],
        margin=_MARGIN,
        showlegend=False,
        dragmode="zoom",
        hovermode="x unified",
        hoversubplots="axis",
        xaxis={
            "title": {"text": "layer"},
            "range": [-0.5, n_layers - 0.5],
            "tickvals": theme.thin_ticks(n_layers, 600 / n_layers, 30),
            "anchor": _axis_name(n_rows - 1),
            "showgrid": False,
            "unifiedhovertitle": {"text": "layer %{x}"},
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": "rgba(128, 128, 128, 0.6)",
        },
        **axes,
    )


def _draw(figure: go.Figure, row: int, name: str, scores: HeadScores, profile: _Profile, top: float) -> None:
    axis, color = _axis_name(row), theme.detector_color(name)
    layers = np.arange(scores.n_layers)
    if scores.n_trials > 1:
        figure.add_scatter(
            x=np.concatenate([layers, layers[::-1]]),
            y=np.concatenate([profile.high, profile.low[::-1]]).astype(np.float32),
            yaxis=axis,
            fill="toself",
            fillcolor=theme.translucent(color, 0.28),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            name=f"{label_text(name)}: band",
        )
    figure.add_scatter(
        x=layers,
        y=profile.share.astype(np.float32),
        yaxis=axis,
        mode="lines",
        line={"color": color, "width": 2},
        customdata=np.stack([profile.low, profile.high], -1).astype(np.float32),
        hovertemplate="%{y:.1%} (%{customdata[0]:.1%} to %{customdata[1]:.1%})",
        name=label_text(name),
    )
    notes = []
    if scores.n_layers // 3:
        notes.append(f"{percent(profile.last_third)} in last third")
    if np.isfinite(profile.centre):
        notes.append(f"centre {profile.centre:.2f}")
        last = scores.n_layers - 1
        low, high = profile.centre_interval
        figure.add_scatter(
            x=[profile.centre * last],
            y=[-0.1 * top],
            yaxis=axis,
            mode="markers",
            marker={"symbol": "diamond", "size": 10, "color": color, "line": {"color": "#ffffff", "width": 1}},
            error_x={
                "type": "data",
                "array": [max(high - profile.centre, 0.0) * last],
                "arrayminus": [max(profile.centre - low, 0.0) * last],
                "color": color,
                "thickness": 2,
                "width": 0,
            },
            cliponaxis=False,
            hoverinfo="skip",
            name=f"{label_text(name)}: centre of mass",
        )
    side = {"xref": "paper", "yref": f"{axis} domain", "y": 0.5, "showarrow": False, "yanchor": "middle"}
    evidence = theme.counted_label(scores) + ("" if scores.n_trials > 1 else ", no band")
    figure.add_annotation(
        text=f"<b>{label_text(name, 18)}</b><br><span style='font-size:12px'>{evidence}</span>",
        x=0,
        xanchor="right",
        xshift=-50,
        align="right",
        **side,
    )
    figure.add_annotation(
        text="<br>".join(notes) or "no positive score",
        x=1,
        xanchor="left",
        xshift=10,
        align="left",
        font={"size": 12},
        **side,
    )
