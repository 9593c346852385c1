"""The released code's scores on the bundled model, reproduced (largest error <= 1e-4 of the largest entry)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from locos_tl import Trial, load_model, score_heads

GOLDEN = Path(__file__).parent.parent / "golden"
MATRICES = {
    "locos": "logit_contrib_S",
    "attention_spatial": "attention_spatial_S",
    "dla": "dla_S",
    "wu": "behavioral_score",
    "headkv": "headkv_S_all_trials",
}


def read(name):
    rows = json.loads((GOLDEN / f"{name}.json").read_text())["trials"]
    trials = [
        Trial.from_ids(r["prompt_ids"], needle=tuple(r["needle_span"]), answer=r["answer_text"], trial_id=r["trial_id"])
        for r in rows
    ]
    return rows, trials, np.load(GOLDEN / f"{name}.npz")


def _agree(model, name):
    rows, trials, arrays = read(name)
    scores = score_heads(model, trials)
    for outcome, row in zip(scores.outcomes, rows, strict=True):
        assert list(outcome.generated_ids) == row["generated_ids"]
        assert outcome.generated_text == row["generated_text"].strip()
        assert list(outcome.answer_steps) == row["answer_steps"]
        assert outcome.passed == row["gate_pass"]
        assert outcome.gate_value == pytest.approx(row["rouge1_recall_percent"])
        assert outcome.stop_token_id == row["stop_token_id"]
        assert outcome.min_margin == pytest.approx(min(row["top1_margin_per_step"]), abs=2e-3)
    forced = [t.with_generation(r["contrastive_generated_ids"]) for t, r in zip(trials, rows, strict=True)]
    contrastive = score_heads(model, forced, ["contrastive"])
    pairs = [(scores[ours].per_trial, arrays[theirs]) for ours, theirs in MATRICES.items()]
    pairs.append((contrastive["contrastive"].per_trial, arrays["contrastive_R"]))
    for got, wanted in pairs:
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()
    return scores, arrays


@pytest.mark.bundled
def test_smollm2(bundled):
    scores, arrays = _agree(bundled, "smollm2_135m_instruct")
    np.testing.assert_allclose(
        scores["locos"].mean, arrays["mean_logit_contrib"], atol=1e-4 * np.abs(arrays["mean_logit_contrib"]).max()
    )
    assert scores["locos"].ranking()[:4] == [(23, 2), (23, 1), (23, 7), (23, 0)]


@pytest.mark.bundled
def test_early_stop_leaves_scores_and_gate_alone(bundled):
    """Decoding ends early for locos alone; scores, gate and answer steps are those of the full decode."""
    _, trials, _ = read("smollm2_135m_instruct")
    trials = trials[:3]
    early = score_heads(bundled, trials, ["locos"])
    full = score_heads(bundled, trials, ["locos", "wu"])
    assert any(o.stopped_early for o in early.outcomes)
    assert not any(o.stopped_early for o in full.outcomes)
    for a, b in zip(early.outcomes, full.outcomes, strict=True):
        assert (a.passed, a.gate_value, a.answer_steps) == (b.passed, b.gate_value, b.answer_steps)
        assert b.generated_ids[: len(a.generated_ids)] == a.generated_ids
    np.testing.assert_allclose(early["locos"].per_trial, full["locos"].per_trial, atol=1e-3)


@pytest.mark.skipif("LOCOS_TL_GEMMA3_270M" not in os.environ, reason="needs a folder with the Gemma-3-270M checkpoint")
def test_gemma3():
    _agree(load_model(os.environ["LOCOS_TL_GEMMA3_270M"]), "gemma3_270m")
