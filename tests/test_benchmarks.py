"""The benchmarks run at a toy size, and what they time is what they say."""

from __future__ import annotations

import pytest

from benchmarks import naive, one_pass, prefixes, sweep
from benchmarks.common import table, trial_of


@pytest.mark.bundled
def test_one_pass_is_measured_side_by_side():
    (row,) = one_pass.run((110,), repeats=1)
    assert row["prompt tokens"] == pytest.approx(110, abs=2)
    assert row["ratio of medians"] > 0.5
    assert table([row]).count("\n") == 2


@pytest.mark.bundled
def test_the_naive_way_computes_the_same_scores(bundled):
    """The benchmark's reference is a real rival: at the last step it gives the same contributions."""
    import torch

    from locos_tl import phi

    trial, n_new = trial_of(bundled, 110)
    assert n_new > 1
    said = naive.naive(bundled, trial, 2)
    assert said.shape == (bundled.n_layers, bundled.n_heads)
    ids = [*trial.prompt_ids, 500, 600]
    ours = phi(bundled, trial.with_generation([500, 600]), steps=[1]).sum(-1)[..., 0]
    torch.testing.assert_close(naive.cached_scores(bundled, ids), ours, atol=1e-2, rtol=1e-3)


@pytest.mark.bundled
def test_a_sweep_is_measured_beside_plain_generation():
    anywhere, late = sweep.run(n_trials=1, n_tokens=110, ks=(1, 3), repeats=1)
    assert anywhere["prompt tokens"] == pytest.approx(110, abs=12)
    assert anywhere["answers a trial"] == 3
    assert late["ratio of medians"] > 0.5
    assert table([anywhere, late]).count("\n") == 3


@pytest.mark.bundled
def test_prefixes_are_measured_on_and_off():
    (row,) = prefixes.run((64,), n_trials=3, repeats=1)
    assert 0 < row["prompt tokens not computed again"] < 1
    assert row["ratio of medians"] > 0.5
