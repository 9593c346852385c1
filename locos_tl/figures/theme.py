"""What all figures share: the template, one colour a detector, and scales whose zero is neutral."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from ..text import clean, label_text

if TYPE_CHECKING:
    from ..results.head_scores import HeadScores

Number = int | float  # said in full, since a checker at run time takes no int for a float
Scale = list[tuple[float, str]]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK = "#1f2328"
FAINT = "rgba(128, 128, 128, 0.28)"
SHADE = "rgba(128, 128, 128, 0.13)"
OUTLINE = "#e8590c"
"""Outline of the top heads: stands out from every blue of the scale, on paper and on a dark page."""

# Okabe and Ito's palette, which readers with any common colour blindness can tell apart.
DETECTOR_COLORS = {
    "locos": "#0072b2",
    "attention_spatial": "#e69f00",
    "dla": "#009e73",
    "wu": "#d55e00",
    "contrastive": "#cc79a7",
    "headkv": "#56b4e9",
    "cri": "#9a6fd0",
    "random": "#8a8f98",
    "total": "#a6761d",
    "direct": "#c8609a",
    "indirect": "#7a4ea3",
    "attribution": "#d4a72c",
    "baseline": "#59636e",
}
VARIANT_DASHES = {"paper": "longdash", "folded": "dash", "exact": "dashdot"}
_OTHER_COLORS = ("#b8860b", "#4b8b3b", "#a0522d", "#5f6caf", "#2f8f9d", "#b5527a")

# From zero outwards. Blue is positive and red negative, as in TransformerLens; ColorBrewer's RdBu is
# colour-blind safe. On a dark page the neutral end is dark, so that heads without effect stay quiet.
NEUTRAL, DARK_NEUTRAL = "#f4f4f4", "#2c313a"
_LIGHT = {
    "positive": (NEUTRAL, "#d1e5f0", "#92c5de", "#4393c3", "#2166ac", "#053061"),
    "negative": (NEUTRAL, "#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"),
}
_DARK = {
    "positive": (DARK_NEUTRAL, "#274866", "#2b6a9f", "#3787c8", "#4ea3e8", "#74bfff"),
    "negative": (DARK_NEUTRAL, "#5e332e", "#8f4238", "#bb5546", "#de6b56", "#ff8468"),
}

TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "font": {"size": 16}, "pad": {"b": 8}},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": list(DETECTOR_COLORS.values()),
        "dragmode": "zoom",
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 13}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "remove": ["select", "lasso"]},
        "margin": {"l": 64, "r": 24, "t": 72, "b": 52},
        **{
            axis: {
                "gridcolor": FAINT,
                "zeroline": False,
                "linecolor": FAINT,
                "tickcolor": FAINT,
                "ticklen": 4,
                "title": {"standoff": 10},
            }
            for axis in ("xaxis", "yaxis")
        },
    }
)


def detector_color(name: str) -> str:
    """The detector's colour in every figure; a detector of your own gets one by its name.

    The worst heads of a detector ("bottom-locos") and its other variants ("locos_exact") have its colour too:
    `line_dash` tells them apart.
    """
    name = _plain(name.removeprefix("bottom-"))
    return DETECTOR_COLORS.get(name) or _OTHER_COLORS[zlib.crc32(name.encode("utf-8", "replace")) % len(_OTHER_COLORS)]


def _plain(name: str) -> str:
    """The detector of a variant."""
    base, _, variant = name.rpartition("_")
    return base if variant in VARIANT_DASHES and base else name


def line_dash(name: str) -> str:
    """How a method's line is drawn, so that colour is never the only difference between two."""
    if name.startswith("bottom-"):
        return "dot"
    if _plain(name) != name:
        return VARIANT_DASHES[name.rpartition("_")[2]]
    return {"random": "dash", "baseline": "dash", "attribution": "dash", "direct": "dashdot", "indirect": "dot"}.get(
        name, "solid"
    )


EFFECTS = ("total", "direct", "indirect", "attribution")
"""Names of the maps that patching makes."""


def method_name(name: str, limit: int | None = 30) -> str:
    """A method's name for a reader: effects are called effects, and the worst heads of a detector so."""
    if name in ("total", "direct", "indirect"):
        return f"{name} effect"
    if name.startswith("bottom-"):
        return f"{clean(name.removeprefix('bottom-'), limit)}, worst heads"
    return {"attribution": "attribution estimate", "random": "random heads"}.get(name) or clean(name, limit)


def method_label(name: str, limit: int | None = 30) -> str:
    """`method_name` for plotly."""
    return label_text(method_name(name, limit), None)


METRIC_LABELS = {
    "rouge_l": "ROUGE-L",
    "contains": "answer in the text",
    "f1": "F1",
    "em": "exact match",
    "exact_match": "exact match",
    "logit_diff": "logit difference",
    "answer_logprob": "log-probability of the answer",
}


def metric_name(name: str) -> str:
    """A metric's name for a reader."""
    return METRIC_LABELS.get(name) or clean(name, 40)


def metric_label(name: str) -> str:
    """`metric_name` for plotly."""
    return label_text(metric_name(name), None)


def palette() -> dict[str, dict[str, object]]:
    """Colours of a light and a dark page for the explorer, which draws its own scales."""
    return {
        "light": {**_LIGHT, "outline": OUTLINE, "ink": INK, "card": "#ffffff", "line": "#d8dee4"},
        "dark": {**_DARK, "outline": OUTLINE, "ink": "#e6e9ee", "card": "#1d2127", "line": "#343b45"},
    }


def translucent(color: str, alpha: float) -> str:
    """``#rrggbb`` with an opacity."""
    red, green, blue = _rgb(color)
    return f"rgba({red}, {green}, {blue}, {alpha})"


def zero_centred_scale(low: Number, high: Number, *, dark: bool = False) -> Scale:
    """Colours for the values low..high in which 0 is neutral and equal sizes are equally strong.

    The scale is cut, not stretched: for -1..5 the negative side ends at a pale red, since -1 is a fifth
    of the largest size. Without any size at all (0..0) everything is neutral.

    Args:
        low: lower end of the colour bar, 0 or less.
        high: upper end, 0 or more.
        dark: for a dark page.
    """
    sides = _DARK if dark else _LIGHT
    reach = max(-low, high)
    if reach == 0:
        neutral = sides["positive"][0]
        return [(0.0, neutral), (1.0, neutral)]
    stops: Scale = []
    for side, end in (("negative", -low), ("positive", high)):
        sign = -1 if side == "negative" else 1
        knots = sides[side]
        sizes = [i / (len(knots) - 1) * reach for i in range(len(knots))]
        inside = [size for size in sizes if size < end] + [end] if end > 0 else []
        stops += [((sign * size - low) / (high - low), _blend(knots, size / reach)) for size in inside if size > 0]
    stops.append((-low / (high - low), sides["positive"][0]))
    return sorted(stops)


def bar_ticks(low: Number, high: Number, pixels: Number, spacing: Number = 18) -> list[Number]:
    """Ticks of a colour bar: its real ends, and round values between that do not crowd them."""
    if low == high:
        return [low]
    span = high - low
    rough = span / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in (1, 2, 2.5, 5, 10) if s * unit >= rough * 0.999)
    near = spacing / pixels * span
    multiples = (k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1))
    return [low, *(v for v in multiples if v - low > near and high - v > near), high]


def color_bar(ticks: list[Number], labels: list[str]) -> dict[str, object]:
    """A slim colour bar, as tall as the plot."""
    return {
        "thickness": 12,
        "len": 1,
        "ypad": 0,
        "outlinewidth": 0,
        "ticks": "outside",
        "tickcolor": FAINT,
        "tickvals": ticks,
        "ticktext": labels,
        "tickfont": {"size": 12},
    }


def thin_ticks(n: int, pixels: Number, spacing: Number) -> list[int]:
    """Indices to label on an axis of n rows or columns, ``spacing`` pixels apart or more."""
    step = next(s for s in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, n) if s * pixels >= spacing or s >= n)
    return list(range(0, n, step))


def counted_label(scores: HeadScores) -> str:
    """How much evidence the scores rest on; the rows of the random detector are seeds, not trials."""
    if scores.detector == "random":
        return _plural(scores.n_trials, "seed")
    return f"{scores.n_trials} of {_plural(scores.n_total, 'trial')}"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _blend(knots: Sequence[str], at: float) -> str:
    """The colour at 0..1 along evenly spaced knots."""
    where = at * (len(knots) - 1)
    first = min(int(where), len(knots) - 2)
    share = where - first
    pairs = zip(_rgb(knots[first]), _rgb(knots[first + 1]), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)
