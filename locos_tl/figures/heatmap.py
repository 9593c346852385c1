"""Heatmap of head scores: layer by head, zero neutral, gaps where there is no score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool, Float

from ..results.effects import Effects
from ..results.head_scores import HeadScores
from ..text import TIMES, label_text, number
from . import theme
from .theme import Number, metric_label

Array = np.ndarray

_MARGIN = {"l": 58, "r": 96, "b": 50}


def heatmap(
    scores: HeadScores | Effects,
    *,
    top_k: int = 10,
    limit: Number | tuple[Number, Number] | None = None,
    title: str | None = None,
) -> go.Figure:
    """Score of every head, layer (y, layer 0 at the bottom) by head (x).

    Zero always has the neutral colour, blue is positive, red negative, and the colour bar ends at the
    smallest and largest score (or 0). A head without a score is a gap marked with a cross; hovering tells
    why. The top-k heads are outlined, save those that score exactly 0: among ties at 0 there is no order.
    Clicks carry the head as (y, x).

    Args:
        scores: one detector's scores, or effects. Effects of keys and values are those of KV heads.
        top_k: heads to outline; 0 for none.
        limit: range of the colours, so that heatmaps side by side share it: a number L for -L..L, or
            (low, high) around 0. Scores beyond it get the end colours, and the bar says so.
        title: default: the detector and the trials behind the scores. "" for none.

    Raises:
        ValueError: for a negative ``top_k`` or a ``limit`` that does not enclose 0.
    """
    if isinstance(scores, Effects):
        scores = scores.to_head_scores()
    if not isinstance(scores, HeadScores):
        raise ValueError(f"heatmap draws one detector's HeadScores, got {type(scores).__name__}: scores['locos']")
    if top_k < 0:
        raise ValueError(f"top_k must be 0 or more, got {top_k}")
    score = np.where(np.isfinite(scores.mean), scores.mean, np.nan).astype(np.float32)
    scored = np.isfinite(score)
    low, high = _limits(score, limit)
    outlined = [cell for cell in scores.ranking()[:top_k] if score[cell] != 0]
    plot, words = _Plot(scores.n_layers, scores.n_heads), _Words(scores)
    figure = go.Figure(layout=_layout(scores, plot, words, len(outlined), title))
    # The same colours for a dark page; the report's script puts them in.
    figure.layout.meta = {"dark_colorscale": theme.zero_centred_scale(low, high, dark=True)}
    figure.add_trace(
        go.Heatmap(
            z=score,
            zmin=low if low < high else -1.0,
            zmax=high if low < high else 1.0,
            colorscale=theme.zero_centred_scale(low, high),
            colorbar=_color_bar(score, low, high, plot.height),
            showscale=bool(scored.any()),
            customdata=_hover_fields(scores),
            hovertemplate=words.hover,
            hoverongaps=False,
            xgap=plot.gap,
            ygap=plot.gap,
            name=words.value,
        )
    )
    if scored.any():  # the bar's name stands below it, where it meets no tick label
        where = {"xref": "paper", "yref": "paper", "x": 1, "y": 0, "xanchor": "left", "yanchor": "top"}
        figure.add_annotation(text=words.value, xshift=10, yshift=-12, showarrow=False, **where)
    if not scored.all():
        figure.add_trace(_gaps(scores, ~scored, plot, words))
    for layer, head in outlined:
        figure.add_shape(
            type="rect",
            x0=head - 0.5,
            x1=head + 0.5,
            y0=layer - 0.5,
            y1=layer + 0.5,
            line={"color": theme.OUTLINE, "width": 2},
            name=f"L{layer}H{head}",
        )
    return figure


class _Plot:
    """Pixel sizes that suit 2 x 4 as well as 64 x 64 heads."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.cell_width = float(np.clip(560 / n_heads, 11, 44))
        self.cell_height = float(np.clip(560 / n_layers, 11, 44))
        self.width = max(self.cell_width * n_heads, 240.0)
        self.height = max(self.cell_height * n_layers, 150.0)
        self.cell_width, self.cell_height = self.width / n_heads, self.height / n_layers
        self.gap = 1 if min(self.cell_width, self.cell_height) >= 8 else 0
        self.xticks = theme.thin_ticks(n_heads, self.cell_width, 26)
        self.yticks = theme.thin_ticks(n_layers, self.cell_height, 17)


class _Words:
    """What scores, effects, heads and KV heads are called; effects say what they are in their provenance."""

    def __init__(self, scores: HeadScores) -> None:
        told = scores.provenance.get("effects")
        self.value, self.axis, self.head = "score", "head", "<b>L%{y}H%{x}</b>"
        self.title, self.note = f"Head scores: {label_text(scores.detector)}", ""
        group = "<br>KV group %{customdata[2]}"
        if isinstance(told, Mapping):
            kind, at, metric, positions = (str(told.get(k, "?")) for k in ("kind", "at", "metric", "positions"))
            kind = {"attribution": "estimated total", "path": "path"}.get(kind, kind)
            self.value, self.title = "effect", f"{label_text(kind).capitalize()} effect of {label_text(at)}"
            self.note = metric_label(metric) + ("" if positions == "all" else f" ({label_text(positions)} positions)")
            if told.get("head_axis") == "KV head":
                self.axis, self.head, group = "KV head", "<b>layer %{y}, KV head %{x}</b>", ""
        self.hover = (
            f"{self.head}<br>{self.value} %{{z:.4g}}<br>95 % interval %{{customdata[0]}}<br>rank %{{customdata[1]}}"
            f"{group}<br>%{{customdata[3]}}<extra></extra>"
        )


def _limits(score: Float[Array, "layer head"], limit: Number | tuple[Number, Number] | None) -> tuple[float, float]:
    """Ends of the colour bar, around 0."""
    if limit is None:
        finite = score[np.isfinite(score)]
        return float(min(finite.min(initial=0.0), 0.0)), float(max(finite.max(initial=0.0), 0.0))
    low, high = limit if isinstance(limit, tuple) else (-limit, limit)
    if not (np.isfinite([low, high]).all() and low <= 0 <= high and low < high):
        raise ValueError(f"limit must be a positive number or (low, high) around 0, got {limit!r}")
    return float(low), float(high)


def _layout(scores: HeadScores, plot: _Plot, words: _Words, n_outlined: int, title: str | None) -> go.Layout:
    top = 30 if title == "" else 76
    heading = words.title if title is None else label_text(title, 120)
    notes = [words.note, theme.counted_label(scores), f"outlined: top {n_outlined}" if n_outlined else ""]
    return go.Layout(
        template=theme.TEMPLATE,
        title={"text": heading, "subtitle": {"text": " · ".join(filter(None, notes))}} if title != "" else None,
        width=round(plot.width) + _MARGIN["l"] + _MARGIN["r"],
        height=round(plot.height) + top + _MARGIN["b"],
        margin=_MARGIN | {"t": top},
        dragmode="zoom",
        xaxis=_axis(words.axis, plot.xticks, scores.n_heads),
        yaxis=_axis("layer", plot.yticks, scores.n_layers),
    )


def _axis(name: str, ticks: list[int], n: int) -> dict[str, object]:
    return {
        "title": {"text": name},
        "tickvals": ticks,
        "range": [-0.5, n - 0.5],
        "showgrid": False,
        "constrain": "domain",
    }


def _color_bar(score: Float[Array, "layer head"], low: float, high: float, pixels: float) -> dict[str, object]:
    """A bar that ends at the real limits; ends that scores go beyond say so."""
    ticks = theme.bar_ticks(low, high, pixels)
    labels = [number(tick) for tick in ticks]
    if low < high and np.nanmin(score, initial=0.0) < low:
        labels[0] = f"≤ {labels[0]}"
    if low < high and np.nanmax(score, initial=0.0) > high:
        labels[-1] = f"≥ {labels[-1]}"
    return theme.color_bar(ticks, labels)


def _hover_fields(scores: HeadScores) -> list[list[list[object]]]:
    """Interval, rank, KV group and counted trials of every head, as texts."""
    frame = scores.to_frame()
    unit = "seed" if scores.detector == "random" else "trial"
    finite = np.isfinite(scores.counted).sum(0).reshape(-1)
    n_ranked = int(frame["rank"].notna().sum())
    rows: list[list[object]] = []
    for row, n in zip(frame.to_dict("records"), finite, strict=True):
        if n == 0:
            rows.append(["", "", row["kv_group"], ""])
            continue
        interval = f"{number(row['ci_low'])} to {number(row['ci_high'])}" if n > 1 else f"needs more than 1 {unit}"
        counted = f"{n} {unit}{'s' if n > 1 else ''} counted"
        if n < row["n_trials"]:
            counted += f", {row['n_trials'] - n} left out: not finite"
        rows.append([interval, f"{row['rank']} of {n_ranked}", row["kv_group"], counted])
    return [rows[start : start + scores.n_heads] for start in range(0, len(rows), scores.n_heads)]


def _gaps(scores: HeadScores, missing: Bool[Array, "layer head"], plot: _Plot, words: _Words) -> go.Heatmap:
    """The heads without a score: a cross instead of a colour, and the reason on hover."""
    unseen = ~np.asarray(scores.seen).any(0)
    reasons = np.where(
        unseen,
        "cannot see the needle: sliding-window layer",
        f"no {words.value}: not a finite number in any counted trial",
    )
    return go.Heatmap(
        z=np.where(missing, 1.0, np.nan).astype(np.float32),
        zmin=0,
        zmax=1,
        colorscale=[(0, theme.SHADE), (1, theme.SHADE)],
        showscale=False,
        text=np.where(missing, TIMES, "").tolist(),
        customdata=np.where(missing, reasons, "").tolist(),
        hovertemplate=f"{words.head}<br>%{{customdata}}<extra></extra>",
        hoverongaps=False,
        texttemplate="%{text}",
        textfont={"size": int(min(plot.cell_width, plot.cell_height, 20) * 0.7), "color": "#808080"},
        xgap=plot.gap,
        ygap=plot.gap,
        name="no score",
    )
