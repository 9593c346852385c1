"""What is left of a model's answers when its heads are ablated: curves over k, and bars at one k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..results.sweep import BASELINE, Sweep
from ..text import label_text, percent
from . import theme
from .curves import HEIGHT, MARGIN, add_curve, interval_text, k_axis, k_positions, layout
from .theme import method_label, metric_label

_PAIR_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7a4ea3")
_PAIR_DASHES = ("solid", "dash", "dot", "dashdot")


def sweep(sweep: Sweep, *, metric: str | None = None, methods: Sequence[str] | None = None) -> go.Figure:
    """A metric against the number of ablated heads, one line a method, beside the whole model's level.

    Bands are 95 % bootstraps over trials. The random control counts once a trial, with the mean over its
    seeds. Every line starts at the baseline (no heads ablated).

    Args:
        sweep: the answers.
        metric: default: "rouge_l" where there is one, else the first.
        methods: which ones, in this order; default: all.

    Raises:
        ValueError: for an unknown metric or method, or an empty sweep.
    """
    metric = default_metric(sweep, metric)
    names = list(dict.fromkeys(sweep.methods if methods is None else methods))
    if not names:
        raise ValueError(f"no method to draw; there are: {', '.join(sweep.methods) or 'none'}")
    curves = {name: sweep.curve(name, metric) for name in names}
    places = k_positions([k for curve in curves.values() for k in curve["k"]])
    top = max(float(np.nanmax(curve[["mean", "ci_high"]].to_numpy())) for curve in curves.values())
    figure = go.Figure(
        layout=layout(
            f"{metric_label(metric)} when heads are ablated",
            _evidence(sweep),
            k_axis(places),
            {"title": {"text": metric_label(metric)}, "range": [-0.02 * (top or 1), 1.06 * (top or 1)]},
        )
    )
    _add_baseline(figure, curves[names[0]], len(places))
    for rank, (name, curve) in enumerate(curves.items(), 1):
        drawn = curve[np.isfinite(curve["mean"])]
        add_curve(
            figure,
            method_label(name),
            [places[k] for k in drawn["k"]],
            *(drawn[column].to_numpy() for column in ("mean", "ci_low", "ci_high")),
            color=theme.detector_color(name),
            dash=theme.line_dash(name),
            hover=[_point(row) for row in drawn.to_dict("records")],
            rank=rank,
        )
    return figure


def default_metric(sweep: Sweep, metric: str | None) -> str:
    """The metric asked for, else "rouge_l" where there is one, else the first.

    Raises:
        ValueError: for one that the sweep does not have, or a sweep without any.
    """
    if metric is None and sweep.metrics:
        return "rouge_l" if "rouge_l" in sweep.metrics else sweep.metrics[0]
    if metric not in sweep.metrics:
        raise ValueError(f"no metric {metric!r} in this sweep; there are: {', '.join(sweep.metrics) or 'none'}")
    return str(metric)


def _evidence(sweep: Sweep) -> str:
    """How heads were ablated, on how many trials."""
    at, mode = (label_text(sweep.ablation.get(key)) for key in ("at", "mode"))
    how = f"{at} replaced by its {mode} · " if mode == "mean" else f"{at}: {mode} · "
    return f"{how if sweep.ablation else ''}{len(sweep.trial_ids)} trials · bands: 95 % bootstrap over trials"


def _add_baseline(figure: go.Figure, curve: pd.DataFrame, n_places: int) -> None:
    """The whole model's level across the figure: dashed, in the band of its interval."""
    base = curve[curve["k"] == 0].iloc[0]
    if not np.isfinite(base["mean"]):
        return
    ends = [-0.15, n_places - 0.85]
    add_curve(
        figure,
        "baseline",
        ends,
        *(np.full(2, base[column]) for column in ("mean", "ci_low", "ci_high")),
        color=theme.detector_color(BASELINE),
        dash="dash",
        markers=False,
        rank=0,
    )
    figure.data[-1].update(hoverinfo="skip", hovertemplate=None, line={"width": 1.5})


def _point(row: Mapping[str, Any]) -> str:
    text = f"{interval_text(row['mean'], row['ci_low'], row['ci_high'])}, {int(row['n_trials'])} trials"
    if row["k"] and np.isfinite(row["drop"]):
        text += f"; drop {interval_text(row['drop'], row['drop_low'], row['drop_high'])}"
    return text


def compare_sweeps(
    sweeps: Mapping[str, Sweep], *, metric: str | Mapping[str, str] | None = None, method: str = "locos"
) -> go.Figure:
    """The same heads ablated under several kinds of questions: what is left, relative to each baseline.

    Args:
        sweeps: by the name to show ("non-literal", "literal").
        metric: of all, or one a sweep by its name; default: as in `sweep`.
        method: what chose the heads.

    Raises:
        ValueError: for no sweep, an unknown metric or method, or a baseline of 0.
    """
    if not sweeps:
        raise ValueError("no sweep to compare")
    metrics = {name: default_metric(held, _of(metric, name)) for name, held in sweeps.items()}
    kept = {name: held.relative(method, metrics[name]) for name, held in sweeps.items()}
    places = k_positions([k for table in kept.values() for k in table["k"]])
    top = max(1.0, *(float(np.nanmax(table[["kept", "kept_high"]].to_numpy())) for table in kept.values()))
    figure = go.Figure(
        layout=layout(
            f"What is left without the heads of {method_label(method)}",
            f"relative to each baseline · bands: 95 % bootstrap over trials · {_shared_metric(metrics)}",
            k_axis(places),
            {"title": {"text": "share of the baseline"}, "tickformat": ".0%", "range": [-0.02 * top, 1.06 * top]},
        )
    )
    for index, (name, table) in enumerate(kept.items()):
        means = sweeps[name].curve(method, metrics[name]).set_index("k")["mean"]
        hover = [
            f"{percent(row['kept'])} ({percent(row['kept_low'])} to {percent(row['kept_high'])}) of the baseline; "
            f"{metric_label(metrics[name])} {interval_text(means[row['k']], np.nan, np.nan)}, {row['n_trials']} trials"
            for row in table.to_dict("records")
        ]
        add_curve(
            figure,
            label_text(name, 30),
            [places[k] for k in table["k"]],
            *(table[column].to_numpy() for column in ("kept", "kept_low", "kept_high")),
            color=_PAIR_COLORS[index % len(_PAIR_COLORS)],
            dash=_PAIR_DASHES[index % len(_PAIR_DASHES)],
            hover=hover,
        )
    return figure


def _of(metric: str | Mapping[str, str] | None, name: str) -> str | None:
    return metric.get(name) if isinstance(metric, Mapping) else metric


def _shared_metric(metrics: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(metric_label(metric) for metric in metrics.values()))


def ablation_bars(
    sweeps: Sweep | Mapping[str, Sweep],
    *,
    k: int = 50,
    metric: str | Mapping[str, str] | None = None,
    methods: Sequence[str] | None = None,
) -> go.Figure:
    """Bars at one k: the whole model, without the heads of each method, and without random ones.

    Args:
        sweeps: one, or several by the name to show, each a group of bars.
        k: number of ablated heads; every method drawn was run with it.
        metric: of all, or one a sweep by its name; default: as in `sweep`.
        methods: which ones, in this order; default: all that were run with this k in any sweep.

    Raises:
        ValueError: for no sweep, an unknown metric, or no method with this k.
    """
    held = {"": sweeps} if isinstance(sweeps, Sweep) else dict(sweeps)
    if not held:
        raise ValueError("no sweep to draw")
    metrics = {name: default_metric(one, _of(metric, name)) for name, one in held.items()}
    found = [m for one in held.values() for m in one.methods if k in one.ks(m)]
    names = list(dict.fromkeys(found if methods is None else methods))
    if missing := [name for name in names if name not in found] or ([] if names else ["any method"]):
        known = sorted({str(n) for one in held.values() for m in one.methods for n in one.ks(m)}, key=int)
        raise ValueError(f"no sweep ablated {k} heads of {missing[0]!r}; there are k = {', '.join(known) or 'none'}")
    labels = [label_text(name, 30) or metric_label(metrics[name]) for name in held]
    figure = go.Figure(layout=_bar_layout(labels, len(names) + 1, k, metrics))
    for name in (BASELINE, *names):
        points = [_bar(one, name, k, metrics[sweep_name]) for sweep_name, one in held.items()]
        means, lows, highs, counts = (np.array(column, float) for column in zip(*points, strict=True))
        figure.add_bar(
            x=labels,
            y=means.astype(np.float32),
            error_y={
                "type": "data",
                "array": np.nan_to_num(highs - means).clip(min=0),
                "arrayminus": np.nan_to_num(means - lows).clip(min=0),
                "thickness": 1.5,
                "width": 4,
                "color": "#808080",
            },
            marker={
                "color": theme.detector_color(name),
                # Grey beside grey, so the control is hatched.
                "pattern": {"shape": "/" if name == "random" or name.startswith("bottom-") else ""},
            },
            offsetgroup=name,
            legendgroup=name,
            customdata=[
                f"{interval_text(*point[:3])}, {int(point[3])} trials"
                for point in zip(means, lows, highs, counts, strict=True)
            ],
            hovertemplate="%{customdata}",
            name="baseline" if name == BASELINE else method_label(name),
        )
        figure.add_scatter(  # the numbers, above the ends of the intervals
            x=labels,
            y=np.fmax(highs, means).astype(np.float32),
            mode="text",
            text=["" if np.isnan(mean) else f"{mean:.2f}" for mean in means],
            textposition="top center",
            textfont={"size": 12},
            cliponaxis=False,
            offsetgroup=name,
            legendgroup=name,
            showlegend=False,
            hoverinfo="skip",
            name=f"{name}: number",
        )
    return figure


def _bar(sweep: Sweep, method: str, k: int, metric: str) -> tuple[float, float, float, int]:
    """Mean, interval and trials; NaN for a method that this sweep was not run with."""
    if method != BASELINE and method not in sweep.methods:
        return np.nan, np.nan, np.nan, 0
    curve = sweep.curve(sweep.methods[0] if method == BASELINE else method, metric)
    row = curve[curve["k"] == (0 if method == BASELINE else k)]
    if row.empty:
        return np.nan, np.nan, np.nan, 0
    first = row.iloc[0]
    return float(first["mean"]), float(first["ci_low"]), float(first["ci_high"]), int(first["n_trials"])


def _bar_layout(labels: list[str], n_bars: int, k: int, metrics: Mapping[str, str]) -> go.Layout:
    return go.Layout(
        template=theme.TEMPLATE,
        title={
            "text": f"Answers without {k} heads",
            "subtitle": {"text": f"{_shared_metric(metrics)} · lines: 95 % bootstrap over trials"},
        },
        barmode="group",
        bargap=0.28,
        scattermode="group",
        scattergap=0.28,
        width=int(np.clip(len(labels) * n_bars * 56 + 300, 480, 1060)),
        height=HEIGHT,
        margin=MARGIN,
        hovermode="closest",
        legend={"yanchor": "top", "y": 1, "x": 1.02, "bgcolor": "rgba(0,0,0,0)"},
        xaxis={"showgrid": False, "type": "category"},
        yaxis={"rangemode": "tozero", "title": {"text": _shared_metric(metrics)}},
    )
