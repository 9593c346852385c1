"""Sliding windows: phi is 0 outside, and heads that cannot see the needle are marked, not ranked (A15)."""

from __future__ import annotations

import numpy as np
import pytest

from locos_tl import phi, score_heads
from tests import tiny

FAR, NEAR = tiny.trial(40, needle=(4, 8)), tiny.trial(30, needle=(19, 22))


@pytest.mark.parametrize("family", ["gemma3", "gemma2", "olmo3"])
def test_a_needle_out_of_reach(tiny_model, family):
    model = tiny_model(family)
    local = list(model.geometry.sliding_layers)
    far = phi(model, FAR)
    assert (far[local][..., 4:8] == 0).all()
    assert (far[[i for i in range(model.n_layers) if i not in local]][..., 4:8] != 0).all()
    scores = score_heads(model, FAR)["locos"]
    assert not scores.seen[:, local].any()
    assert np.isnan(scores.mean[local]).all()
    assert all(layer not in local for layer, _ in scores.ranking())
    frame = scores.to_frame()
    assert not frame[frame.layer.isin(local)].sees_needle.any()
    assert frame[~frame.layer.isin(local)].sees_needle.all()


def test_a_needle_within_reach_is_scored_in_every_layer(tiny_model):
    """The released code reads such rows with absolute positions and misses the needle."""
    model = tiny_model("gemma3")
    trial = tiny.trial(30, needle=(26, 29), generated=(3, 7))
    full = phi(model, trial)
    assert (full[..., 26:29] != 0).all()
    scores = score_heads(model, trial, ["locos", "attention_spatial", "dla", "wu", "contrastive"])
    assert scores["locos"].seen.all()


def test_visibility_is_counted_per_trial(tiny_model):
    model = tiny_model("gemma3")
    trials = [FAR, tiny.trial(30, needle=(26, 29), generated=(3, 7))]
    scores = score_heads(model, trials, ["locos"])["locos"]
    assert scores.to_frame().n_trials.tolist() == [1] * 20 + [2] * 4
    np.testing.assert_allclose(scores.mean[0], scores.per_trial[1, 0], rtol=1e-6)


def test_headkv_looks_from_its_own_window(tiny_model):
    model = tiny_model("gemma3")
    seen = score_heads(model, NEAR, ["headkv"])["headkv"].seen
    assert seen.all()  # 8 tokens before the end still reach the needle
    assert not score_heads(model, FAR, ["headkv"])["headkv"].seen[:, :5].any()
