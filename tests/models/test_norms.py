"""Norms read from their behaviour: w, 1 + w, LayerNorm; and the refusal of anything else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from locos_tl.models.norms import LinearNorm


def _random(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return module


@pytest.mark.parametrize("d", [48, 47])
@pytest.mark.parametrize("make", [LlamaRMSNorm, Gemma3RMSNorm, nn.LayerNorm])
def test_same_as_the_module(make, d):
    module = _random(make(d))
    norm = LinearNorm.from_module(module, d)
    x = torch.randn(5, d, generator=torch.Generator().manual_seed(1)) * 3 + 1
    torch.testing.assert_close(norm(x), module(x), atol=1e-5, rtol=1e-4)
    assert norm.centred == (make is nn.LayerNorm)


def test_gain_is_exactly_w_or_one_plus_w():
    plain, gemma = _random(LlamaRMSNorm(16)), _random(Gemma3RMSNorm(16))
    assert torch.equal(LinearNorm.from_module(plain, 16).gain, plain.weight.data)
    assert torch.equal(LinearNorm.from_module(gemma, 16).gain, 1 + gemma.weight.data)


@pytest.mark.parametrize("make", [LlamaRMSNorm, nn.LayerNorm])
def test_pull_back_is_the_transpose(make):
    """u.frozen(x) = pull_back(u).x / scale, so parts of x can be attributed one by one."""
    norm = LinearNorm.from_module(_random(make(32)), 32)
    x, u = torch.randn(3, 32), torch.randn(32)
    scale = norm.scale(x)
    torch.testing.assert_close(norm.frozen(x, scale) @ u, x @ norm.pull_back(u[None])[0] / scale, atol=1e-4, rtol=1e-4)


def test_something_else_is_refused():
    class Squash(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    with pytest.raises(ValueError, match="variant='paper'"):
        LinearNorm.from_module(Squash(), 16)
