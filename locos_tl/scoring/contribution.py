"""The contribution of one attended position to one token's logit (LOCOS, arXiv 2607.01002, section 2).

    phi[l,h,t,j] = alpha[l,h,t,j] * u[y_t]^T W_O[l,h] v[l,h,j]

alpha is `hook_pattern`, v is `hook_v`, u[y] is a row of the unembedding and W_O[l,h] the head's slice of
the output projection. With grouped-query attention, query head h reads key-value head h // group.
"""

from __future__ import annotations

from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor


def ov_directions(
    W_O: Float[Tensor, "head d_head d_model"], u: Float[Tensor, "step d_model"]
) -> Float[Tensor, "step head d_head"]:
    """W_O u: the direction in each head's value space that raises the logit of each step's token."""
    return einsum(W_O.float(), u.float(), "head d_head d_model, step d_model -> step head d_head")


def contributions(
    pattern: Float[Tensor, "head step key"],
    values: Float[Tensor, "key kv_head d_head"],
    directions: Float[Tensor, "step head d_head"],
) -> Float[Tensor, "head step key"]:
    """phi = alpha * (u^T W_O v) for one layer, in float32.

    Args:
        pattern: attention probabilities of the query of each step.
        values: value vectors, one per key-value head.
        directions: `ov_directions` of the step's target token.

    Returns:
        phi for every query head, step and key; its sum over keys is u.(z W_O).
    """
    alpha = rearrange(pattern, "(kv_head group) step key -> kv_head group step key", kv_head=values.shape[1])
    Wu = rearrange(directions, "step (kv_head group) d_head -> step kv_head group d_head", kv_head=values.shape[1])
    written = einsum(Wu, values.float(), "step kv_head group d_head, key kv_head d_head -> kv_head group step key")
    return rearrange(alpha.float() * written, "kv_head group step key -> (kv_head group) step key")
