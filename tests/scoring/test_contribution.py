"""The kernels: hand-computed values and invariants."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locos_tl.scoring.contrast import contrast, off_rescaled
from locos_tl.scoring.contribution import contributions, ov_directions


def test_by_hand():
    """One head, d_head 2, d_model 3, two keys: alpha (0.25, 0.75), W_O u = (2, 1), v (1, 0) and (1, 4)."""
    W_O = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    u = torch.tensor([[2.0, 0.0, 1.0]])
    Wu = ov_directions(W_O, u)
    assert Wu.tolist() == [[[2.0, 1.0]]]
    pattern = torch.tensor([[[0.25, 0.75]]])
    values = torch.tensor([[[1.0, 0.0]], [[1.0, 4.0]]])
    assert contributions(pattern, values, Wu).tolist() == [[[0.5, 4.5]]]


def test_contrast_by_hand():
    """Needle sum 3 over 2 keys, rest 8 over 8 keys: 3 - 2/8 * 8 = 1."""
    got = contrast(torch.tensor([3.0]), torch.tensor([8.0]), 2, torch.tensor([10.0]))
    assert got.tolist() == [1.0]
    assert off_rescaled(torch.tensor([8.0]), 2, torch.tensor([10.0])).tolist() == [2.0]


@settings(max_examples=30, deadline=None)
@given(
    kv=st.integers(1, 3),
    group=st.integers(1, 3),
    steps=st.integers(1, 3),
    keys=st.integers(2, 9),
    seed=st.integers(0, 99),
)
def test_grouped_equals_expanded(kv, group, steps, keys, seed):
    """Repeating each KV head for its group of query heads changes nothing."""
    g = torch.Generator().manual_seed(seed)
    pattern = torch.rand(kv * group, steps, keys, generator=g)
    values = torch.randn(keys, kv, 4, generator=g)
    directions = torch.randn(steps, kv * group, 4, generator=g)
    grouped = contributions(pattern, values, directions)
    expanded = contributions(pattern, values.repeat_interleave(group, dim=1), directions)
    torch.testing.assert_close(grouped, expanded)


@settings(max_examples=30, deadline=None)
@given(n_needle=st.integers(1, 6), n_rest=st.integers(1, 30), value=st.floats(-5, 5))
def test_uniform_contribution_has_no_contrast(n_needle, n_rest, value):
    """A head that writes the same from every key scores 0, whatever the lengths."""
    needle, rest = torch.tensor([value * n_needle]), torch.tensor([value * n_rest])
    got = contrast(needle, rest, n_needle, torch.tensor([float(n_needle + n_rest)]))
    assert abs(float(got)) < 1e-3


def test_long_sums_do_not_stall():
    """A25: 30,000 equal bf16 contributions add up in float32."""
    keys = 30_000
    pattern = torch.full((1, 1, keys), 1.0 / 1024, dtype=torch.bfloat16)
    values = torch.ones(keys, 1, 1, dtype=torch.bfloat16)
    total = contributions(pattern, values, torch.ones(1, 1, 1)).sum()
    assert abs(float(total) - keys / 1024) < 1e-2
