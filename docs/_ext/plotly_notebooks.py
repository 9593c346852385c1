"""Bring the notebooks into the site, with plotly figures that draw without a network.

Executed notebooks are taken from ``build/notebooks`` (the tests leave them there); without one, the percent script is
shown as it is. MyST-NB cannot show plotly's own output type, so each figure becomes a piece of HTML, and one copy of
plotly.js lies in ``_static``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURE = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
SCRIPT = "plotly.min.js"


def prepare(app: Any, config: Any) -> None:
    """Write ``docs/notebooks/*.ipynb`` and the script that their figures need."""
    import nbformat

    from locos_tl.figures.plotly_js import plotly_js

    source = Path(app.srcdir)
    target = source / "notebooks"
    target.mkdir(exist_ok=True)
    scripts = sorted((ROOT / "notebooks").glob("*.py"))
    for stale in {path.stem for path in target.glob("*.ipynb")} - {script.stem for script in scripts}:
        (target / f"{stale}.ipynb").unlink(missing_ok=True)
    for script in scripts:
        notebook = _read(script)
        show_figures(notebook)
        notebook.metadata.setdefault("language_info", {"name": "python"})
        (target / f"{script.stem}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
    (source / "_static" / SCRIPT).write_text(plotly_js(), encoding="utf-8")


def _read(script: Path) -> Any:
    import jupytext
    import nbformat

    executed = ROOT / "build" / "notebooks" / f"{script.stem}.ipynb"
    if executed.is_file():
        return nbformat.read(executed, as_version=4)
    return jupytext.read(script)


def show_figures(notebook: Any) -> None:
    """Turn plotly outputs into HTML; the first of them loads plotly.js."""
    import plotly.io

    from locos_tl.figures.plotly_js import CONFIG

    notebook.metadata.pop("widgets", None)  # their JavaScript would come from a CDN
    load = f'<script src="../_static/{SCRIPT}"></script>'
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.pop(WIDGET, None)
            figure = data.pop(FIGURE, None)
            if figure is None:
                continue
            html = plotly.io.to_html(
                plotly.io.from_json(plotly.io.json.to_json_plotly(figure), skip_invalid=True),
                config=CONFIG,
                include_plotlyjs=False,
                full_html=False,
            )
            output["data"] = {"text/html": load + html}
            load = ""


def setup(app: Any) -> dict[str, Any]:
    """Prepare before any page is read."""
    app.connect("config-inited", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
