"""Sphinx settings. Build with `python -m sphinx -W -b html docs build/docs`; nothing is fetched."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import locos_tl  # noqa: E402

project = "locos_tl"
author = "the locos_tl authors"
version = release = locos_tl.__version__
copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "cli_reference",
    "plotly_notebooks",
]
exclude_patterns = ["_build", "_ext", "_static", "**.ipynb_checkpoints"]

# --- pages: Markdown that GitHub shows as well ---------------------------------------------------
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# --- notebooks: already executed, never run here -------------------------------------------------
nb_execution_mode = "off"
nb_output_stderr = "remove"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # would come from a CDN
smartquotes = False

# --- the API from docstrings ---------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# `name` in a docstring links to that name where the site has it, and is code elsewhere.
default_role = "py:obj"
suppress_warnings = ["mystnb.unknown_mime_type", "ref.python"]  # several attributes may share a name

html_theme = "furo"
html_title = "locos_tl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def _readable(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: Any) -> Any:
    """Signatures of dataclasses with a default factory: Sphinx cannot parse them and shows its own marks."""
    if signature is None or "<factory>" not in signature:
        return None
    return re.sub(r"~(?:\w+\.)+", "", signature.replace("<factory>", "...")), returns


def setup(app: Any) -> None:
    """Hook into autodoc."""
    app.connect("autodoc-process-signature", _readable)
