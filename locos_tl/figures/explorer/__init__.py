"""The explorer: a linked view of a run, as a Jupyter widget, in the report, or as a page of its own."""

from .explorer import Explorer, explore

__all__ = ["Explorer", "explore"]
