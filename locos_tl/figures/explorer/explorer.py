"""`explore`: the map of heads, the panel of a head and two maps against each other, linked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...results.effects import Effects
from ...results.files import to_json, write_atomic
from ...results.head_scores import HeadScores
from ...results.late_layers import LateLayers
from ...results.scores import Scores
from ...results.sweep import Sweep
from ...text import html_text, script_text
from ..heatmap import heatmap
from ..plotly_js import plotly_js
from ..sections import by_name
from .payload import payload

HINT = "This is a still picture; for the linked explorer: pip install anywidget, and restart the kernel."
Head = tuple[int, int]


def explore(
    scores: Scores | HeadScores,
    *,
    sweeps: Sweep | Mapping[str, Sweep] | None = None,
    late: LateLayers | None = None,
    effects: Effects | Mapping[str, Effects] | None = None,
) -> Explorer:
    """Look at a scoring run: a map of all heads, and for each head what it reads, writes and promotes.

    In Jupyter the result shows itself as a widget (JupyterLab, Notebook 7, VS Code; needs anywidget), else as a still
    heatmap; `Explorer.save` writes a page for any browser.

    Args:
        scores: from `score_heads`, or one detector of it. Single heads can be looked at in the trials of its
            ``readings``.
        sweeps: ablations, one or several by name: shows in which sets a head was ablated, and what that did.
        late: late-layer result; its causal maps can be chosen beside the detectors.
        effects: patching effects, one or several by name, likewise.

    Raises:
        ValueError: for a run without head scores, or parts of models of different sizes.
    """
    if isinstance(scores, HeadScores):
        scores = Scores({scores.detector: scores}, (), scores.provenance)
    return Explorer(scores, by_name(sweeps), late, effects_by_name(effects))


def effects_by_name(effects: Effects | Mapping[str, Effects] | None) -> dict[str, Effects]:
    """Effects by name; one alone has the name of its kind."""
    return {effects.kind: effects} if isinstance(effects, Effects) else dict(effects or {})


class Explorer:
    """A linked view of one run; made by `explore`."""

    def __init__(
        self,
        scores: Scores,
        sweeps: Mapping[str, Sweep] | None = None,
        late: LateLayers | None = None,
        effects: Mapping[str, Effects] | None = None,
    ) -> None:
        self.scores = scores
        self.data = payload(scores, sweeps=sweeps, late=late, effects=effects)

    @cached_property
    def widget(self) -> Any:
        """The Jupyter widget (an ``anywidget.AnyWidget``), with the chosen head in ``widget.selected``.

        Raises:
            ImportError: without anywidget.
        """
        if find_spec("anywidget") is None:
            raise ImportError("the explorer's widget needs anywidget: pip install anywidget")
        from .widget import ExplorerWidget

        return ExplorerWidget(data=to_json(self.data))

    @property
    def selected(self) -> Head | None:
        """The head chosen in the widget as (layer, head); None before the first choice."""
        chosen = self.widget.selected
        return (int(chosen[0]), int(chosen[1])) if chosen else None

    @selected.setter
    def selected(self, head: Head) -> None:
        layer, index = head
        if not (0 <= layer < self.data["layers"] and 0 <= index < self.data["heads"]):
            raise ValueError(
                f"no head {head!r} in a model of {self.data['layers']} layers x {self.data['heads']} heads"
            )
        self.widget.selected = [int(layer), int(index)]

    def save(self, path: str | Path) -> Path:
        """Write the explorer as one HTML page that opens without a network; returns its path."""
        path = Path(path)
        write_atomic(path, page(self.data).encode())
        return path

    def __repr__(self) -> str:
        return f"Explorer({self.scores!r}, {len(self.data['readings'])} trials token by token)"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """The widget where there is one, and a still heatmap for everything that cannot show it."""
        still = heatmap(next(iter(self.scores.values())))
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        if find_spec("anywidget") is not None:
            shown = self.widget._repr_mimebundle_()
            bundle |= shown[0] if isinstance(shown, tuple) else shown or {}
            bundle["text/plain"] = repr(self)
        else:
            still.add_annotation(
                text=HINT, xref="paper", yref="paper", x=0, y=0, yshift=-58, xanchor="left", showarrow=False
            )
            still.update_layout(margin_b=90, height=still.layout.height + 40)
        return bundle | {"application/vnd.plotly.v1+json": still.to_plotly_json() | {"config": {}}}


def asset(name: str) -> str:
    """A file beside this module: ``explorer.js`` or ``explorer.css``."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def page(data: Mapping[str, Any]) -> str:
    """The explorer alone on a page."""
    title = f"{data['model']}: heads"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{html_text(title)}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; padding: 28px; max-width: 1240px; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14171c; color: #e6e9ee; }} }}
{asset("explorer.css")}
</style>
</head>
<body>
<div id="explorer"></div>
<script type="application/json" id="explorer-data">{script_text(to_json(data))}</script>
<script>{plotly_js()}</script>
<script>{asset("explorer.js")}</script>
<script>locosExplorer.mount(document.getElementById("explorer"),
  JSON.parse(document.getElementById("explorer-data").textContent), {{Plotly}});</script>
</body>
</html>
"""
