"""Normalisation layers as frozen linear maps.

Direct attribution through a norm treats its scale as a constant of the run:

    norm(x) = gain * (x - centre(x)) / scale(x) + bias

where ``centre`` is the mean over d_model for LayerNorm and 0 for RMSNorm. `LinearNorm` reads gain,
bias and the centring *from the module's behaviour* on three known inputs, so that it is right for
``w``, ``1 + w`` (Gemma) and LayerNorm without a list of architectures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")


@dataclass(frozen=True)
class LinearNorm:
    """A norm with its scale left open, so that callers may freeze it per position.

    Attributes:
        gain: effective elementwise gain, float32, shape [d_model] (``1 + w`` where the model adds 1).
        bias: elementwise bias, float32, shape [d_model]; zeros for RMSNorm.
        centred: True when the norm subtracts the mean (LayerNorm).
        eps: the constant under the square root.
    """

    gain: Float[Tensor, "d_model"] = field(repr=False)
    bias: Float[Tensor, "d_model"] = field(repr=False)
    centred: bool
    eps: float

    @classmethod
    def from_module(cls, module: nn.Module, d_model: int) -> LinearNorm:
        """Read a norm module by probing it.

        Args:
            module: RMSNorm- or LayerNorm-like module on vectors of size ``d_model``.
            d_model: width of the residual stream.

        Raises:
            ValueError: when the module does not act like an affine norm, so that an exact
                decomposition through it would be wrong.
        """
        eps = _find_eps(module)
        weight = _find_weight(module)
        device = weight.device if weight is not None else torch.device("cpu")
        dtype = weight.dtype if weight is not None else torch.float32
        # +1/-1 in turn has mean square 1, and mean 0 up to one element when d_model is odd.
        signs = torch.ones(d_model, device=device)
        signs[1::2] = -1.0
        with torch.no_grad():
            at_zero = module(torch.zeros(1, 1, d_model, device=device, dtype=dtype)).flatten().float()
            at_ones = module(torch.ones(1, 1, d_model, device=device, dtype=dtype)).flatten().float()
            at_signs = module(signs.to(dtype).view(1, 1, -1)).flatten().float()
        bias = at_zero
        centred = bool((at_ones - bias).abs().max() < 1e-3 * (at_signs - bias).abs().max())
        probe = signs - signs.mean() if centred else signs
        probe = probe / (probe.square().mean() + eps).sqrt()
        gain = (at_signs - bias) / probe
        if weight is not None:
            gain = _snap_to_weight(gain, weight.detach().float())
        norm = cls(gain, bias, centred, eps)
        ramp = torch.linspace(-1.5, 2.5, d_model, device=device)
        with torch.no_grad():
            expected = module(ramp.to(dtype).view(1, 1, -1)).flatten().float()
        tolerance = 1e-4 if dtype == torch.float32 else 3e-2
        if not torch.allclose(norm(ramp), expected, rtol=tolerance, atol=tolerance):
            raise ValueError(
                f"{type(module).__name__} does not act like RMSNorm or LayerNorm with a gain and a bias: "
                "the 'folded' and 'exact' variants would be wrong for this model; use variant='paper'."
            )
        return norm

    def scale(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows"]:
        """The divisor this norm uses at each row of ``x`` (float32)."""
        x = x.float()
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        return (x.square().mean(-1) + self.eps).sqrt()

    def __call__(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """The full norm, recomputed in float32."""
        return self.frozen(x, self.scale(x)) + self.bias

    def frozen(
        self, x: Float[Tensor, "*rows d_model"], scale: Float[Tensor, "*rows"]
    ) -> Float[Tensor, "*rows d_model"]:
        """The linear part with a given scale; sums over parts of x add up (the bias is left out)."""
        x = x.float()
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        return self.gain * x / scale.unsqueeze(-1)

    def pull_back(self, u: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """Directions u' with u'.x = u.(gain * centre(x)): the norm's transpose without its scale."""
        u = u.float() * self.gain
        return u - u.mean(-1, keepdim=True) if self.centred else u


def _find_eps(module: nn.Module) -> float:
    for part in module.modules():
        for name in _EPS_NAMES:
            value = getattr(part, name, None)
            if isinstance(value, int | float):
                return float(value)
    return 1e-6


def _find_weight(module: nn.Module) -> Tensor | None:
    sized = [p for p in module.parameters() if p.dim() == 1]
    named = dict(module.named_parameters())
    for name, parameter in named.items():
        if name.split(".")[-1] in ("weight", "w"):
            return parameter
    return sized[0] if sized else None


def _snap_to_weight(gain: Tensor, weight: Tensor) -> Tensor:
    """Use w or 1 + w themselves where they explain the probe, free of the probe's rounding."""
    for candidate in (weight, weight + 1.0):
        if candidate.shape == gain.shape and torch.allclose(candidate, gain, rtol=2e-2, atol=2e-2):
            return candidate
    return gain
