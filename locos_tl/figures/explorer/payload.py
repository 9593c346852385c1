"""What the explorer draws, as one JSON value: score maps, single trials, readings and effects.

Numbers travel as base64 of little-endian arrays (float32, or int16 with a scale for each head), which keeps a report
of a few million of them small. Every text has gone through `text.clean`; the page sets it as text, never as HTML.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from ...results.effects import Effects
from ...results.head_scores import HeadScores
from ...results.late_layers import LateLayers
from ...results.prompts import other_prompts
from ...results.reading import HeadReading
from ...results.scores import Scores, TrialOutcome
from ...results.sweep import Sweep
from ...text import clean
from .. import theme
from ..sweep import default_metric

Array = np.ndarray
MAX_TRIALS = 24
"""Trials whose own maps can be looked at, those with a reading first."""
BUDGET = 3_800_000
"""Bytes for readings and for the maps of single trials, before base64: with plotly.js a page stays below 8 MB."""
NONE = 0xFFFF
_INT16 = 32767


def payload(
    scores: Scores,
    *,
    sweeps: Mapping[str, Sweep] | None = None,
    late: LateLayers | None = None,
    effects: Mapping[str, Effects] | None = None,
) -> dict[str, Any]:
    """The JSON value that ``explorer.js`` draws.

    Args:
        scores: a scoring run.
        sweeps: ablations by name, for "ablated with the first k".
        late: late-layer result; its causal maps join the maps.
        effects: effects by name; they join the maps too.

    Raises:
        ValueError: when there is nothing to draw, or a part is of a model of another size.
    """
    if not scores:
        raise ValueError("this run holds no head scores, so there is nothing to explore")
    shape = next(iter(scores.values()))
    maps = _maps(scores, late, effects or {})
    for name, held in maps.items():
        if held.n_layers != shape.n_layers or held.n_heads not in (shape.n_heads, shape.n_key_value_heads):
            raise ValueError(
                f"{name!r} is of {held.n_layers} layers x {held.n_heads} heads, the scores of "
                f"{shape.n_layers} x {shape.n_heads}: another model"
            )
    readings = _within(scores.readings, BUDGET * 3 // 4)
    left = BUDGET - sum(map(_bytes, readings))
    trials = _trials(maps, scores.outcomes, [reading.trial_id for reading in readings], left)
    ids = [trial["id"] for trial in trials]

    def shown(held: HeadScores) -> list[str]:
        """The trials whose own values may stand beside those of the run: not those of other prompts."""
        changed = other_prompts(scores.provenance, held.provenance, ids)
        return [i for i in ids if i not in changed]

    model = scores.provenance.get("model")
    return {
        "model": clean(model.get("name") if isinstance(model, Mapping) else None, 120),
        "layers": shape.n_layers,
        "heads": shape.n_heads,
        "kv": shape.n_key_value_heads,
        "maps": [_map(name, held, shown(held)) for name, held in _by_detector(maps)],
        "trials": trials,
        "readings": [_reading(reading) for reading in readings],
        "sweeps": [_sweep(name, sweep) for name, sweep in (sweeps or {}).items() if sweep.methods],
        "palette": theme.palette(),
    }


# --- maps -----------------------------------------------------------------------------------------


def _maps(scores: Scores, late: LateLayers | None, effects: Mapping[str, Effects]) -> dict[str, HeadScores]:
    maps = dict(scores)
    for name, held in (late.maps if late is not None else {}).items():
        if "effects" in held.provenance or name in theme.EFFECTS:
            maps[_free(theme.method_name(name), maps)] = held
    for name, found in effects.items():
        maps[_free(theme.method_name(name), maps)] = found.to_head_scores()
    return maps


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number where there is one of it already."""
    return next(n for i in count(1) if (n := name if i == 1 else f"{name} ({i})") not in taken)


def _by_detector(maps: Mapping[str, HeadScores]) -> list[tuple[str, HeadScores]]:
    """The variants of a detector side by side."""
    order = list(dict.fromkeys(held.detector for held in maps.values()))
    return sorted(maps.items(), key=lambda item: order.index(item[1].detector))


def _map(name: str, held: HeadScores, trials: Sequence[str]) -> dict[str, Any]:
    detector = held.provenance.get("detector")
    told = detector if isinstance(detector, Mapping) else {}
    effect = held.provenance.get("effects")
    is_effect = isinstance(effect, Mapping) or held.detector in theme.EFFECTS
    low, high = held.ci() if held.n_trials > 1 else (np.full_like(held.mean, np.nan),) * 2
    variant = told.get("variant")
    own = {held.trial_ids[row]: row for row in range(held.n_trials)}
    return {
        "name": clean(name, 60),
        "detector": clean(name if is_effect else held.detector, 60),
        "variant": clean(variant, 20) if variant else None,
        "effect": is_effect,
        "units": clean(_units(told, effect), 160),
        "heads": held.n_heads,
        "counted": theme.counted_label(held),
        "color": theme.detector_color(held.detector),
        "mean": _floats(held.mean),
        "low": _floats(low),
        "high": _floats(high),
        "unseen": [int(i) for i in np.flatnonzero(~np.asarray(held.seen).any(0))],
        "trials": {t: _floats(held.counted[own[t]]) for t in trials if t in own},
    }


def _units(detector: Mapping[str, Any], effect: Any) -> str:
    if isinstance(effect, Mapping):
        return f"change of the {theme.metric_name(str(effect.get('metric', 'metric')))}"
    return str(detector.get("units", ""))


def _trials(
    maps: Mapping[str, HeadScores], outcomes: Sequence[TrialOutcome], first: Sequence[str], budget: int
) -> list[dict[str, Any]]:
    """The trials on offer: those with a reading, then others that count, as many as the page can hold."""
    size = sum(4 * held.mean.size for held in maps.values())
    counted = {i for held in maps.values() if held.detector != "random" for i in held.trial_ids}
    known = {outcome.trial_id: outcome for outcome in outcomes if outcome.passed and outcome.trial_id in counted}
    order = list(dict.fromkeys([*(i for i in first if i in known), *known]))
    n = max(len(first), min(MAX_TRIALS, budget // max(size, 1)))
    return [_trial(known[i]) for i in order[:n]]


def _trial(outcome: TrialOutcome) -> dict[str, Any]:
    told = outcome.trial
    return {
        "id": outcome.trial_id,
        "label": clean(outcome.trial_id, 60),
        "question": clean(told.get("question") or "", 300),
        "answer": clean(outcome.answer, 100),
    }


# --- readings -------------------------------------------------------------------------------------


def _reading(reading: HeadReading) -> dict[str, Any]:
    shown = np.unique(np.concatenate([reading.shared, reading.own[reading.own >= 0].reshape(-1)]))
    words = {int(i): n for n, i in enumerate(sorted(reading.vocabulary))}
    look_up = np.vectorize(words.__getitem__, otypes=[np.int32])
    return {
        "trial": reading.trial_id,
        "question": clean(reading.about.get("question") or "", 300),
        "answer": clean(reading.about.get("answer") or "", 100),
        "positions": [int(i) for i in shown],
        "tokens": [clean(reading.tokens[i], 60) for i in shown],
        "generated": [clean(t, 60) for t in reading.tokens[reading.n_prompt :]],
        "n_keys": reading.n_keys,
        "n_prompt": reading.n_prompt,
        "needle": list(reading.needle_span),
        "steps": list(reading.answer_steps),
        "variants": list(reading.variants),
        "shared": [int(i) for i in reading.shared],
        "attention": _quantised(reading.attention),
        "phi": [_quantised(values) for values in reading.phi],
        "own": _indices(np.where(reading.own < 0, NONE, np.searchsorted(shown, reading.own))),
        "n_own": reading.own.shape[-1],
        "own_attention": _quantised(reading.own_attention),
        "own_phi": [_quantised(values) for values in reading.own_phi],
        "total": [_floats(values) for values in reading.phi_total],
        "words": [clean(reading.vocabulary[i], 60) for i in sorted(reading.vocabulary)],
        "n_words": reading.promoted.shape[-1],
        "promoted": _indices(look_up(reading.promoted)) if reading.promoted.size else "",
        "promoted_logits": _quantised(reading.promoted_logits),
        "suppressed": _indices(look_up(reading.suppressed)) if reading.suppressed.size else "",
        "suppressed_logits": _quantised(reading.suppressed_logits),
    }


def _bytes(reading: HeadReading) -> int:
    """Size of a reading on the page, before base64."""
    n_shared, n_own, n_words = reading.attention.shape[-1], reading.own.shape[-1], reading.promoted.shape[-1]
    per_head = (n_shared + n_own) * (1 + len(reading.variants)) + n_own + 4 * n_words
    return 2 * reading.n_layers * reading.n_heads * per_head


def _within(readings: Sequence[HeadReading], budget: int) -> list[HeadReading]:
    """As many as the page can hold, but at least one; of one that alone is too much, the first variant."""
    held: list[HeadReading] = []
    for reading in readings:
        if not held and _bytes(reading) > budget:
            reading = replace(
                reading,
                variants=reading.variants[:1],
                phi=reading.phi[:1],
                own_phi=reading.own_phi[:1],
                phi_total=reading.phi_total[:1],
            )
        elif sum(map(_bytes, held)) + _bytes(reading) > budget:
            break
        held.append(reading)
    return held


# --- sweeps ---------------------------------------------------------------------------------------


def _sweep(name: str, held: Sweep) -> dict[str, Any]:
    # For a reader of one line, whether the right name occurs is plainer than the share of words.
    metric = "contains" if "contains" in held.metrics else default_metric(held, None)
    methods = []
    for method in held.methods:
        ranking = held.rankings.get(method)
        if ranking is None:
            continue
        curve = held.curve(method, metric)
        methods.append(
            {
                "name": clean(theme.method_name(method), 60),
                "ks": [int(k) for k in curve["k"]],
                "means": [round(float(v), 4) for v in curve["mean"]],
                "ranking": [[int(layer), int(head)] for layer, head in ranking],
            }
        )
    return {"name": clean(name, 80), "metric": theme.metric_name(metric), "methods": methods}


# --- arrays ---------------------------------------------------------------------------------------


def _floats(values: Array) -> str:
    return _base64(np.where(np.isfinite(values), values, np.nan).astype("<f4"))


def _indices(values: Array) -> str:
    """Places in a list of the page, which holds fewer than `NONE`."""
    return _base64(values.astype("<u2"))


def _quantised(values: Array) -> dict[str, str]:
    """int16 with one scale per head: four digits of the head's largest value, in half the bytes."""
    if not values.size:
        return {"scale": "", "values": ""}
    scale = np.abs(values).max(-1) / _INT16
    steps = np.divide(values, scale[..., None], out=np.zeros_like(values, float), where=scale[..., None] > 0)
    return {"scale": _floats(scale), "values": _base64(np.rint(steps).astype("<i2"))}


def _base64(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
