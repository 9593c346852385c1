"""What a notebook shows of every public object: one line of text, and compact HTML that no foreign text can break."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from locos_tl import html
from locos_tl.causal.means import calibrate_means
from locos_tl.causal.pairs import PromptPair
from locos_tl.models.check import CheckReport, CheckRow
from locos_tl.models.hooked import HookedModel
from locos_tl.results.dissociation import dissociation
from locos_tl.results.late_layers import late_layers
from locos_tl.trials.trial import Trial, TrialGrid
from tests import tiny
from tests.page import Page
from tests.results import conftest as results

HOSTILE = "<img src=x onerror='alert(1)'> & \x1b[31m \u202e </td></table><script>"


def named(model: HookedModel, name: str) -> HookedModel:
    return HookedModel(model.backend, model.fused, model.tokenizer, replace(model.info, name=name, revision=name))


def objects(model: HookedModel, foreign: str) -> dict[str, Any]:
    """One of everything, with foreign text wherever text comes from outside."""
    scored = results.random_scores(12, detector=foreign, trial_ids=tuple(f"{foreign}{i}" for i in range(12)))
    about = {"model": {"name": foreign}}
    about_text = {"question": foreign, "needle": foreign, "kind": foreign, "relation": foreign, "trial_id": foreign}
    trial = replace(tiny.trial(60), answer=foreign, aliases=(foreign,), **about_text)
    twin = Trial.from_ids([5, *trial.prompt_ids[1:]], needle=(5, 11), answer="Yuki")
    pair = PromptPair((*trial.prompt_ids, 3), (*twin.prompt_ids, 3), (60, 61), pair_id=foreign)
    return {
        "model": named(model, foreign),
        "trial": trial,
        "grid": TrialGrid([trial] * 7, lambda recipe, tokenizer: recipe),
        "scores": results.run(("locos", "wu"), **about),
        "head scores": scored,
        "sweep": results.sweep(provenance=about | {"ablation": {"at": foreign, "mode": foreign}}),
        "effects": results.effects(),
        "late layers": late_layers({foreign: scored, "total": scored}, reference=foreign, n_resamples=20),
        "dissociation": dissociation(results.sweep(), results.sweep(), control_metric="rouge_l"),
        "check": CheckReport(foreign, (CheckRow(foreign, False, float("nan"), 1e-4, foreign),)),
        "pair": pair,
        "means": replace(calibrate_means(model, tiny.trial(20)), weights=foreign, interventions=(foreign,)),
    }


KINDS = (
    *("model", "trial", "grid", "scores", "head scores", "sweep", "effects", "late layers", "dissociation", "check"),
    *("pair", "means"),
)


@pytest.fixture(scope="module")
def shown(tiny_model):
    model = tiny_model("gemma3")
    return {foreign: objects(model, foreign) for foreign in ("harmless", HOSTILE)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_shown_and_foreign_text_stays_text(shown, kind):
    assert set(shown[HOSTILE]) == set(KINDS)
    harmless, hostile = (Page(shown[foreign][kind]._repr_html_()) for foreign in ("harmless", HOSTILE))
    assert hostile.tags == harmless.tags
    assert "\x1b" not in hostile.text
    assert "\u202e" not in hostile.text
    assert len(harmless.text) < 4000


@pytest.mark.parametrize("kind", KINDS)
def test_no_colour_but_the_pages_own(shown, kind):
    """Dark themes: text and ground are the theme's; a mark shows both through."""
    for style in Page(shown["harmless"][kind]._repr_html_()).styles:
        colours = re.findall(r"(?:color|background):([^;]*)", style)
        assert all(colour == "inherit" or colour.startswith("rgba(") for colour in colours), style


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_form_is_one_line(shown, kind):
    text = repr(shown["harmless"][kind])
    assert "\n" not in text
    assert len(text) < 450
    assert text.startswith(type(shown["harmless"][kind]).__name__)


# --- what they say ----------------------------------------------------------------------------------------


def test_a_model_tells_its_sizes_and_windows(shown):
    told = Page(shown["harmless"]["model"]._repr_html_()).text
    assert "6 x 4 (1 KV heads, 4 query heads on each)" in told
    assert "8 tokens in 5 of 6 layers" in told
    assert "float32 on cpu" in told
    assert "TransformerBridge, fused prefill" in told


def test_a_model_without_windows_says_nothing_of_them(tiny_model):
    assert "windows" not in Page(tiny_model("llama")._repr_html_()).text


def test_a_tables_cells():
    rows = [
        {"n": 3, "x": 0.123456, "missing": float("nan"), "ok": True, "text": "a" * 90, "none": None},
        {"n": 12, "x": 2.0, "missing": 1.0, "ok": False, "text": "b", "none": None},
    ]
    page = Page(html.table(rows))
    first = ["3", "0.1235", "–", "yes", "a" * 60 + " …", "–"]
    assert page.words == [*rows[0], *first, "12", "2", "1", "no", "b", "–"]
    assert html.table([]) == ""
    assert Page(html.table([{"a": np.float32(0.5), "b": np.int64(3)}])).words == ["a", "b", "0.5", "3"]
