"""The explorer as a Jupyter widget."""

from __future__ import annotations

import anywidget
import traitlets

from ..plotly_js import plotly_js
from .explorer import asset

_MODULE = """
%(plotly)s
%(explorer)s
export default {
  render({model, el}) {
    const root = document.createElement("div");
    el.append(root);
    const chosen = model.get("selected");
    const view = globalThis.locosExplorer.mount(root, JSON.parse(model.get("data")), {
      Plotly: globalThis.Plotly,
      selected: chosen.length ? chosen : null,
      onSelect(head) { model.set("selected", head); model.save_changes(); },
    });
    const follow = () => view.choose(model.get("selected"));
    model.on("change:selected", follow);
    return () => { model.off("change:selected", follow); view.destroy(); };
  },
};
"""


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer's front end; ``selected`` is the chosen head as [layer, head]."""

    _esm = _MODULE % {"plotly": plotly_js(), "explorer": asset("explorer.js")}
    _css = asset("explorer.css")
    data = traitlets.Unicode("{}").tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
