"""plotly.js for pages and widgets: the bundle with the cartesian traces, a third of the whole.

``vendor/plotly-cartesian.min.js`` is the npm package plotly.js-cartesian-dist-min, unchanged, of the version that the
plotly package draws with (MIT licence, notice at its top).
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
"""plotly.js settings: nothing is ever sent anywhere."""


@cache
def plotly_js() -> str:
    """The bundle's source, ready for a script element: it sets ``window.Plotly``."""
    source = resources.files(__package__).joinpath("vendor/plotly-cartesian.min.js").read_text(encoding="utf-8")
    return source.replace("</script", r"<\/script")


def plotly_js_version() -> str:
    """Version of the bundle, as its first lines tell."""
    found = re.search(r"plotly\.js \(cartesian - minified\) v([\d.]+)", plotly_js()[:400])
    assert found is not None
    return found[1]
