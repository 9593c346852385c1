"""Needle against the rest, made comparable by length (arXiv 2607.01002, section 2).

S = sum_needle - n_needle / (n_keys - n_needle) * sum_off
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def off_rescaled(
    off: Float[Tensor, "*heads step"], n_needle: int, n_keys: Float[Tensor, "step"]
) -> Float[Tensor, "*heads step"]:
    """The off-needle sum, rescaled to as many keys as the needle has."""
    return off * (n_needle / (n_keys - n_needle))


def contrast(
    needle: Float[Tensor, "*heads step"],
    off: Float[Tensor, "*heads step"],
    n_needle: int,
    n_keys: Float[Tensor, "step"],
) -> Float[Tensor, "*heads step"]:
    """Needle sum minus rescaled off-needle sum, per step.

    Args:
        needle, off: raw sums over the needle's keys and over all other keys.
        n_needle: tokens in the needle.
        n_keys: keys at each step: every position up to and including the query.
    """
    return needle - off_rescaled(off, n_needle, n_keys)
