"""The report: one HTML file that shows a scoring run and opens without a network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..results.effects import Effects
from ..results.files import to_json, write_atomic
from ..results.head_scores import HeadScores
from ..results.late_layers import LateLayers
from ..results.scores import Scores
from ..results.sweep import Sweep
from ..text import TIMES, clean, html_text, percent, script_text
from . import tables
from .agreement import agreement
from .distribution import layer_distribution
from .explorer.explorer import asset, effects_by_name
from .explorer.payload import payload
from .plotly_js import CONFIG, plotly_js
from .profile import layer_profile
from .sections import ablation_section, by_name, late_section, plot, untitled

SPREAD = ("locos", "attention_spatial", "dla", "wu")
"""Detectors whose heads are shown layer by layer; of a model with many heads the first two."""
MANY_HEADS = 2000

_MEANINGS = {
    "locos": "How far what a head reads from the needle pushes towards the answer's tokens, minus what it reads "
    "from the rest of the prompt (scaled to the needle's length).",
    "attention_spatial": "The same contrast of needle against the rest on attention weights alone.",
    "dla": "The head's whole direct push towards the answer's tokens, wherever in the prompt it comes from.",
    "wu": "How often the head's strongest attention lies on the very needle token that is being written.",
    "contrastive": "Attention to the needle while the answer is written, beyond that at the other steps.",
    "headkv": "Attention to the needle from the last tokens of the prompt; needs no answer, so every trial counts.",
    "cri": "How much of the answer comes back when the head alone is restored in a run without the needle.",
    "random": "Random scores, one row a seed: what any finding has to beat.",
}
_DATES = ("date", "finished", "created", "started")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def write_report(
    scores: Scores,
    path: str | Path,
    *,
    sweeps: Sweep | Mapping[str, Sweep] | None = None,
    late: LateLayers | None = None,
    effects: Effects | Mapping[str, Effects] | None = None,
) -> Path:
    """Write the run as one self-contained HTML page: no network, plotly.js embedded once.

    Args:
        scores: a scoring run.
        path: the file to write; for an existing folder, ``report.html`` in it.
        sweeps: ablations to add as "What happens without these heads": one, or several by name.
        late: late-layer result to add as "Are they late because of how they are scored?".
        effects: patching effects that the explorer can show beside the scores: one, or several by name.

    Returns:
        The file written (whole or not at all).

    Raises:
        ValueError: when a part is of a model of another size.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "report.html"
    write_atomic(path, render(scores, sweeps=sweeps, late=late, effects=effects).encode())
    return path


def render(
    scores: Scores,
    *,
    sweeps: Sweep | Mapping[str, Sweep] | None = None,
    late: LateLayers | None = None,
    effects: Effects | Mapping[str, Effects] | None = None,
) -> str:
    """The page of `write_report` as text."""
    model = _mapping(scores.provenance.get("model"))
    figures: dict[str, go.Figure] = {}
    parts = {
        "model": html_text(model.get("name") or "unnamed model"),
        "facts": _facts(scores, model),
        "verdict": _verdict(scores),
        "best_heads": _best_heads(scores),
        "comparison": _comparison(scores, figures),
        "ablation": ablation_section(sweeps, figures),
        "explorer": script_text(_explorer(scores, by_name(sweeps), late, effects_by_name(effects))),
        "late": late_section(late, figures),
        "pass_rates": tables.pass_rates(scores.outcomes),
        "filters": _filters(scores),
        "answers": tables.answers(scores.outcomes),
        "provenance": html_text(to_json(scores.provenance, indent=2)),
        "style": _read("report.css") + asset("explorer.css"),
        "script": asset("explorer.js") + _read("report.js"),
        "plotly": plotly_js(),
        "config": script_text(to_json(CONFIG)),
    }
    parts["figures"] = "\n".join(
        f'<script type="application/json" id="figure-{name}">{script_text(figure.to_json(validate=False))}</script>'
        for name, figure in figures.items()
    )
    # One pass, so that nothing inside a part is taken for a placeholder.
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _read("report.html"))


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _facts(scores: Scores, model: Mapping[str, Any]) -> str:
    """Revision, date and sizes, one short list."""
    held = next(iter(scores.values()), None)
    date = next((scores.provenance[key] for key in _DATES if scores.provenance.get(key)), None)
    facts = [
        ("Revision", model.get("revision") or "not recorded"),
        ("Scored", date) if date else ("Page written", datetime.now(UTC).date()),
        ("Precision", model.get("dtype")),
        ("Heads", f"{held.n_layers} layers {TIMES} {held.n_heads} heads" if held else None),
        ("Key-value heads", held.n_key_value_heads if held else None),
    ]
    return "".join(f"<div><dt>{k}</dt><dd>{html_text(v, 80)}</dd></div>" for k, v in facts if v is not None)


def _verdict(scores: Scores) -> str:
    if not scores.total:
        return "<strong>No trial was run.</strong>"
    plain = f"<strong>{scores.passed} of {scores.total} trials passed</strong> ({percent(scores.pass_rate)})."
    if not scores.passed:
        return f"{plain} Detectors that need a right answer have nothing to go by."
    if scores.passed < 20:
        return f"{plain} Head scores rest on few trials: mind the intervals."
    return plain


def _best_heads(scores: Scores) -> str:
    """What each detector measures, and its best heads: what the explorer shows, as text."""
    parts = [
        f"<section><h3>{html_text(name, 60)}</h3><p>{_MEANINGS.get(held.detector, '')} {_counted(held)}</p>"
        f"{tables.top_heads(held)}</section>"
        for name, held in scores.items()
    ]
    return "".join(parts) or '<p class="note">This run holds no head scores.</p>'


def _explorer(
    scores: Scores, sweeps: Mapping[str, Sweep], late: LateLayers | None, effects: Mapping[str, Effects]
) -> str:
    """The data of the explorer; null for a run without head scores."""
    return to_json(payload(scores, sweeps=sweeps, late=late, effects=effects) if scores else None)


def _counted(held: HeadScores) -> str:
    if held.detector == "random":
        return f"{held.n_trials} seeds."
    units = _mapping(held.provenance.get("detector")).get("units")
    return f"Counted: {held.n_trials} of {held.n_total} trials." + (
        f" Scale: {html_text(units, 120)}." if units else ""
    )


def _comparison(scores: Scores, figures: dict[str, go.Figure]) -> str:
    """Layer profiles, and from two detectors on their agreement."""
    if not scores:
        return ""
    figures["profile"] = untitled(layer_profile(scores))
    profile = plot("profile", _profile_summary(scores))
    spread = [name for name in SPREAD if name in scores] or list(scores)[:1]
    if next(iter(scores.values())).mean.size > MANY_HEADS:
        spread = spread[:2]
    figures["distribution"] = untitled(layer_distribution(scores, detectors=spread))
    distribution = plot("distribution", f"Scores of all heads by layer, as violins: {', '.join(spread)}.")
    sections = [
        '<section id="layers"><h2>Where in the model</h2><p>Share of the positive score mass that each layer holds. '
        "The band is the 95&nbsp;% bootstrap over trials (for random: over seeds), the diamond the centre of mass "
        f"from 0 (first layer) to 1 (last).</p><figure>{profile}</figure>"
        f"<h3>Head by head</h3><figure>{distribution}<figcaption>A click on a point shows the head in the explorer."
        "</figcaption></figure></section>"
    ]
    if len(scores) > 1:
        figures["agreement"] = untitled(agreement(scores))
        summary = f"Agreement of {len(scores)} detectors: Spearman correlation and overlap of the top 10, as a matrix."
        sections.append(
            '<section id="agreement"><h2>Do the detectors agree?</h2><p>Below the diagonal: Spearman rank correlation '
            "over all heads. Above: share of the top 10 heads that two detectors have in common.</p>"
            f"<figure>{plot('agreement', summary)}</figure></section>"
        )
    return "".join(sections)


def _profile_summary(scores: Scores) -> str:
    peaks = []
    for name, held in scores.items():
        positive = np.where(np.isfinite(held.mean), held.mean, 0).clip(min=0).sum(-1)
        peak = f"peaks in layer {int(positive.argmax())}" if positive.any() else "has none"
        peaks.append(f"{clean(name, 40)} {peak}")
    return f"Layer profiles of positive score mass: {'; '.join(peaks)}."


def _filters(scores: Scores) -> str:
    counts = (("all", scores.total), ("passed", scores.passed), ("failed", scores.total - scores.passed))
    return "".join(
        f'<label><input type="radio" name="state" autocomplete="off" value="{state}"'
        f"{' checked' if state == 'all' else ''}><span>{state} ({count})</span></label>"
        for state, count in counts
    )
