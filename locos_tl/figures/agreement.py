"""Agreement between detectors: rank correlation and shared top heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import SupportsFloat

import numpy as np
import plotly.graph_objects as go

from ..results.head_scores import HeadScores
from ..results.statistics import rank_agreement
from ..text import DASH, MINUS, label_text, number, percent
from . import theme

_CELL_WIDTH, _CELL_HEIGHT = 84, 44


def agreement(scores: Mapping[str, HeadScores], *, k: int = 10) -> go.Figure:
    """Detectors by detectors: Spearman correlation below the diagonal, overlap of the top k above it.

    Both are over the heads that carry both scores. A cell that has no value shows a dash; hovering tells
    why, and what overlap two unrelated rankings would have.

    Args:
        scores: head scores by detector, of one model.
        k: length of the lists whose overlap is shown.

    Raises:
        ValueError: for no detector, ``k`` below 1, or scores of different models.
    """
    if not scores:
        raise ValueError("no detector to compare")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    sizes = {(held.n_layers, held.n_heads) for held in scores.values()}
    if len(sizes) > 1:
        raise ValueError(f"scores of different models: {sorted(sizes)} (layers, heads)")
    names = list(scores)
    size = len(names)
    value = np.full((size, size), np.nan, np.float32)
    text = np.full((size, size), "", dtype=object)
    hover = np.full((size, size), "", dtype=object)
    for row, one in enumerate(names):
        for column in range(row):
            other = names[column]
            pair = f"<b>{label_text(one)}</b> and <b>{label_text(other)}</b>"
            found = rank_agreement(scores[one].mean, scores[other].mean, ks=(k,))
            both = int((np.isfinite(scores[one].mean) & np.isfinite(scores[other].mean)).sum())
            value[row, column], hover[row, column] = _spearman(found, pair, both)
            value[column, row], hover[column, row] = _overlap(found, pair, both, k)
            text[row, column] = _shown(value[row, column], lambda rho: f"{rho:z.2f}".replace("-", MINUS))
            text[column, row] = _shown(value[column, row], percent)
    return go.Figure(_cells(value, text, hover), _layout([label_text(name) for name in names], k))


def _shown(value: SupportsFloat, write: Callable[[float], str]) -> str:
    return write(float(value)) if np.isfinite(float(value)) else DASH


def _spearman(found: Mapping[str, float], pair: str, both: int) -> tuple[float, str]:
    rho = found["spearman"]
    if not np.isfinite(rho):
        return rho, f"{pair}<br>no rank correlation: one of them gives all heads the same score"
    return rho, f"{pair}<br>Spearman {number(rho)} over {both} heads<br>Kendall {number(found['kendall'])}"


def _overlap(found: Mapping[str, float], pair: str, both: int, k: int) -> tuple[float, str]:
    share = found.get(f"overlap@{k}", np.nan)
    if not np.isfinite(share):
        return np.nan, f"{pair}<br>no overlap@{k}: only {both} heads carry both scores"
    chance = f"unrelated rankings: {percent(k / both)}"
    return share, f"{pair}<br>{round(share * k)} of the top {k} heads in common<br>{chance}"


def _cells(value: np.ndarray, text: np.ndarray, hover: np.ndarray) -> list[go.Heatmap]:
    positions = list(range(len(value)))
    common = {
        "x": positions,
        "y": positions,
        "text": text.tolist(),
        "texttemplate": "%{text}",
        "customdata": hover.tolist(),
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
    }
    measured = go.Heatmap(
        z=value,
        zmin=-1,
        zmax=1,
        colorscale=theme.zero_centred_scale(-1, 1),
        colorbar=theme.color_bar([-1, -0.5, 0, 0.5, 1], [number(tick) for tick in (-1, -0.5, 0, 0.5, 1)]),
        name="agreement",
        **common,
    )
    missing = ~np.isfinite(value) & ~np.eye(len(value), dtype=bool)
    if not missing.any():
        return [measured]
    dashes = go.Heatmap(
        z=np.where(missing, 1.0, np.nan).astype(np.float32),
        zmin=0,
        zmax=1,
        colorscale=[(0, theme.SHADE), (1, theme.SHADE)],
        showscale=False,
        textfont={"color": "#808080"},
        name="no value",
        **common,
    )
    return [measured, dashes]


def _layout(labels: list[str], k: int) -> go.Layout:
    n = len(labels)
    margin = {"l": 140, "r": 100, "t": 76, "b": 96 if n > 2 else 44}
    axis = {"tickvals": list(range(n)), "ticktext": labels, "showgrid": False, "ticks": "", "automargin": True}
    return go.Layout(
        template=theme.TEMPLATE,
        title={
            "text": "Agreement between detectors",
            "subtitle": {"text": f"below the diagonal: Spearman · above: overlap of the top {k}"},
        },
        width=max(n * _CELL_WIDTH, 280) + margin["l"] + margin["r"],
        height=max(n * _CELL_HEIGHT, 120) + margin["t"] + margin["b"],
        margin=margin,
        dragmode="zoom",
        xaxis=axis | {"range": [-0.5, n - 0.5], "tickangle": -35 if n > 2 else 0},
        yaxis=axis | {"range": [n - 0.5, -0.5]},
        meta={"dark_colorscale": theme.zero_centred_scale(-1, 1, dark=True)},
    )
