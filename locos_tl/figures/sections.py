"""The report's sections on causal evidence: what ablation does, and whether late layers are an artefact."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import plotly.graph_objects as go

from ..results.late_layers import Interval, LateLayers
from ..results.sweep import Sweep
from ..text import DASH, html_text, label_text, number, percent
from .late_layers import late_layers, locos_against_total
from .sweep import default_metric, sweep
from .tables import table
from .theme import method_label, metric_label

Figures = dict[str, go.Figure]

_HEADLINES = {
    "holds": "No: the {causal} is as late.",
    "does not hold": "At least in part: the {causal} is not as late.",
    "undecided": "Undecided.",
}
_MEASURED = {
    "total": ", measured by putting a head's clean activation back into a run without the needle,",
    "attribution": ", a gradient estimate of what putting a head's clean activation back into a run without the needle "
    "would bring (nothing was patched),",
}
"""How the causal map came about; of others we cannot tell."""


def plot(name: str, summary: str) -> str:
    """The place of a figure on the page; ``summary`` is what a screen reader reads out."""
    return f'<div class="plot" role="img" data-figure="{name}" aria-label="{html_text(summary)}"></div>'


def untitled(figure: go.Figure) -> go.Figure:
    """The figure for a page whose heading says what its title would say."""
    spare = figure.layout.margin.t - 34
    return figure.update_layout(title=None, margin_t=34, height=figure.layout.height - spare)


# --- ablation -------------------------------------------------------------------------------------


def by_name(sweeps: Sweep | Mapping[str, Sweep] | None) -> dict[str, Sweep]:
    """Sweeps by name; one alone has the name "".

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(sweeps, Sweep | Mapping | None):
        raise ValueError(f"sweeps must be one Sweep, or several by name {{name: sweep}}, got {type(sweeps).__name__}")
    return {"": sweeps} if isinstance(sweeps, Sweep) else dict(sweeps or {})


def ablation_section(sweeps: Sweep | Mapping[str, Sweep] | None, figures: Figures) -> str:
    """Figure and table of each sweep; nothing without one."""
    held = by_name(sweeps)
    if not held:
        return ""
    parts = [_one_sweep(index, name, one, figures) for index, (name, one) in enumerate(held.items())]
    return (
        '<section id="ablation"><h2>What happens without these heads</h2><p>The same questions, answered with all '
        "heads at work and with the first heads of each list put out of action. If a detector finds the heads that "
        "carry the answers, its line falls, while that of random heads stays at the baseline.</p>"
        f"{''.join(parts)}</section>"
    )


def _one_sweep(index: int, name: str, held: Sweep, figures: Figures) -> str:
    heading = f"<h3>{html_text(name, 80)}</h3>" if name else ""
    if not held.methods:
        return f'{heading}<p class="note">This sweep holds no answers with ablated heads.</p>'
    metric = default_metric(held, None)
    figures[f"sweep-{index}"] = untitled(sweep(held, metric=metric))
    summary = f"{metric_label(metric)} against the number of ablated heads for {len(held.methods)} methods, as lines."
    return (
        f'{heading}<p class="note">{_setting(held)}</p><figure>{plot(f"sweep-{index}", summary)}</figure>'
        f'<div class="wide">{_sweep_table(held, metric)}</div>'
    )


def _setting(held: Sweep) -> str:
    at, mode = (html_text(held.ablation.get(key), 40) for key in ("at", "mode"))
    how = f"Of an ablated head, {at} is replaced by its {mode}. " if mode == "mean" else f"Ablation: {at}, {mode}. "
    control = (
        f" Random heads: mean of {len(held.seeds)} seed{'s' if len(held.seeds) > 1 else ''}."
        if "random" in held.methods
        else ""
    )
    return (
        f"{how if held.ablation else ''}{len(held.trial_ids)} trials.{control} Bands: 95&nbsp;% bootstrap over trials."
    )


def _sweep_table(held: Sweep, metric: str) -> str:
    """Methods by k: mean and interval, and the number of trials where it is not all of them."""
    curves = {m: {int(row["k"]): row for row in held.curve(m, metric).to_dict("records")} for m in held.methods}
    ks = sorted({k for curve in curves.values() for k in curve if k})

    def cell(method: str, k: int) -> str:
        row = curves[method].get(k)
        if row is None:
            return DASH
        text = _interval(Interval(row["mean"], row["ci_low"], row["ci_high"]), "{:.2f}".format)
        return text if row["n_trials"] == len(held.trial_ids) else f"{text}<br><small>{row['n_trials']} trials</small>"

    rows = [(method_label(method), cell(method, 0), *(cell(method, k) for k in ks)) for method in held.methods]
    header = ("Ablated heads", "none", *(str(k) for k in ks))
    caption = f"{metric_label(metric)} by number of ablated heads, with 95 % intervals"
    return table(header, rows, caption=caption, numeric=range(1, len(header)))


def _two_digits(value: float) -> str:
    return number(value, 2, aligned=True)


def _interval(found: Interval, write: Callable[[float], str] = _two_digits) -> str:
    if not np.isfinite(found.value):
        return DASH
    known = np.isfinite([found.low, found.high]).all()
    interval = f"<br><small>{write(found.low)} to {write(found.high)}</small>" if known else ""
    return f"{write(found.value)}{interval}"


# --- late layers ----------------------------------------------------------------------------------


def late_section(late: LateLayers | None, figures: Figures) -> str:
    """Verdict, layer profiles, statistics, and the reference against the causal map; nothing without a result."""
    if late is None:
        return ""
    reference, causal = method_label(late.reference), label_text(late.causal_name)
    figures["late"], figures["against"] = untitled(late_layers(late)), untitled(locos_against_total(late))
    summary = f"Layer profiles of {', '.join(method_label(name) for name in late.maps)}, as lines over the layers."
    against = f"Scatter of {reference} against {causal}, one point a head."
    return (
        '<section id="late"><h2>Are they late because of how they are scored?</h2>'
        f"<p>{reference} measures only what a head writes straight to the output, which could favour late layers by "
        f"itself; the {causal}{_MEASURED.get(late.causal, '')} has no such preference. If both lie equally late, "
        "the late layers are no product of the score.</p>"
        f'<p class="verdict"><strong>{_headline(late)}</strong> {html_text(late.reason)}</p>'
        f"<figure>{plot('late', summary)}<figcaption>Share of the positive mass that each layer holds, freed from what "
        "noise adds to it (a layer may lie below 0, "
        "and a share above 100&nbsp;%). Bands: 95&nbsp;% bootstrap over trials.</figcaption></figure>"
        f'<div class="wide">{_late_table(late)}</div>'
        f"<figure>{plot('against', against)}<figcaption>One point a head, axes linear near 0 and logarithmic "
        f"beyond. Ringed: heads of high {causal} that {reference} misses.</figcaption></figure>"
        f"{_missed(late)}</section>"
    )


def _headline(late: LateLayers) -> str:
    if late.verdict == "does not hold" and late.p_values[late.reference] >= 0.05:
        return f"The question does not arise: {method_label(late.reference)} is not late here."
    return _HEADLINES[late.verdict].format(causal=label_text(late.causal_name))


def _late_table(late: LateLayers) -> str:
    rows = []
    for name in late.maps:
        agreement = {} if name == late.causal else late.agreement(name)
        spearman = Interval(*(agreement.get(key, np.nan) for key in ("spearman", "spearman_low", "spearman_high")))
        overlap = agreement.get("overlap@10", np.nan)
        rows.append(
            (
                method_label(name),
                _interval(late.depth(name), percent),
                _interval(late.depth(name, "centre_of_mass")),
                number(late.p_values[name], 2),
                _interval(late.concentration(name, "gini")),
                _interval(spearman),
                percent(overlap) if np.isfinite(overlap) else DASH,
            )
        )
    causal = label_text(late.causal_name)
    header = (
        "Map",
        "In last third",
        "Centre of mass",
        "Permutation p",
        "Gini",
        f"Spearman with {method_label(late.causal)}",
        "Top 10 shared",
    )
    caption = f"How late, how concentrated, and how like the {causal}; chance in the last third: {percent(late.chance)}"
    return table(header, rows, caption=caption, numeric=range(1, len(header)))


def _missed(late: LateLayers) -> str:
    missed = late.missed()
    reference, causal = method_label(late.reference), label_text(late.causal_name)
    if missed.empty:
        return f'<p class="note">No head among the 20 of highest {causal} is outside the first 20 of {reference}.</p>'
    rows = [
        (
            row[0],
            number(row[1]),
            str(row[3]),
            number(row[2]) if np.isfinite(row[2]) else DASH,
            str(row[4]).replace("<NA>", DASH),
        )
        for row in missed.itertuples(index=False)
    ]
    header = ("Head", method_label(late.causal).capitalize(), "Rank", reference, "Rank")
    caption = f"Heads of high {causal} that {reference} misses"
    return f'<div class="wide">{table(header, rows, caption=caption, numeric=range(1, 5))}</div>'
