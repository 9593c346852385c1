"""An axis on which one very large head does not press all others into a line."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from ..text import number
from . import theme

Array = np.ndarray


class Stretch:
    """An axis that is linear up to a hundredth of the largest value and logarithmic beyond (asinh)."""

    def __init__(self, values: Float[Array, " head"]) -> None:
        self.largest = float(np.abs(values).max(initial=0.0)) or 1.0
        self.unit = self.largest / 100
        ends = self(np.array([values.min(initial=0.0), values.max(initial=0.0)]))
        self.low, self.high = float(ends[0]), float(ends[1])
        self.reach = (self.high - self.low) or 1.0

    def __call__(self, values: Float[Array, " head"]) -> Float[Array, " head"]:
        return np.arcsinh(values / self.unit)

    def axis(self, title: str) -> dict[str, object]:
        """Range and ticks: 0 and the powers of ten on both sides, and three times them."""
        top = math.floor(math.log10(self.largest))
        sizes = [factor * 10.0**power for power in (top - 1, top) for factor in (1, 3)]
        ticks = np.array([-size for size in reversed(sizes)] + [0.0] + sizes)
        places = self(ticks)
        shown = (places >= self.low - 0.05) & (places <= self.high + 0.05)
        margin = 0.06 * self.reach
        return {
            "title": {"text": title},
            "range": [self.low - margin, self.high + margin],
            "tickvals": places[shown].tolist(),
            "ticktext": [number(tick) for tick in ticks[shown]],
            "zeroline": True,
            "zerolinecolor": theme.FAINT,
            "zerolinewidth": 2,
        }
