"""Results that save themselves, load themselves and turn into data frames; statistics over them."""

from . import statistics

__all__ = ["statistics"]
