"""Figures: a result goes in, a plotly figure comes out. Nothing here shows, saves or runs a model."""

from .agreement import agreement
from .heatmap import heatmap
from .profile import layer_profile
from .report import write_report

__all__ = ["agreement", "heatmap", "layer_profile", "write_report"]
