"""Figures: a result goes in, a plotly figure comes out. Nothing here shows, saves or runs a model."""

from .agreement import agreement
from .dissociation import dissociation
from .distribution import layer_distribution
from .explorer import explore
from .heatmap import heatmap
from .late_layers import late_layers, locos_against_total
from .profile import layer_profile
from .report import write_report
from .sweep import ablation_bars, compare_sweeps, sweep

__all__ = [
    "ablation_bars",
    "agreement",
    "compare_sweeps",
    "dissociation",
    "explore",
    "heatmap",
    "late_layers",
    "layer_distribution",
    "layer_profile",
    "locos_against_total",
    "sweep",
    "write_report",
]
