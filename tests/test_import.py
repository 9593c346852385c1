"""`import locos_tl` costs nothing, and every public name is where it says."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import locos_tl

HEAVY = ("torch", "transformers", "transformer_lens", "pandas", "plotly", "scipy", "numpy")


def loaded_after(code: str) -> set[str]:
    """The heavy libraries that a fresh Python holds after running some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_no_heavy_library():
    assert loaded_after("import locos_tl; dir(locos_tl); locos_tl.__version__") == set()


def test_a_saved_result_is_read_without_a_model_library():
    """Results go to people without torch; reading one must not load it."""
    found = loaded_after("from locos_tl import HeadScores, Scores, ResultFileError, TrialOutcome")
    assert found == {"numpy"}


def test_every_public_name_resolves():
    assert len(set(locos_tl.__all__)) == len(locos_tl.__all__)
    for name in locos_tl.__all__:
        value = getattr(locos_tl, name)
        assert value is not None
        if name in locos_tl._ROOMS:
            assert isinstance(value, ModuleType)
        elif name in locos_tl._HOME:
            assert value.__name__ == name
            assert value.__module__ == f"locos_tl.{locos_tl._HOME[name]}"
            assert value.__doc__, f"{name} has no docstring"


def test_dir_lists_the_public_names():
    """What tab completion shows."""
    assert set(dir(locos_tl)) == set(locos_tl.__all__)


def test_star_import_brings_the_public_names():
    namespace: dict[str, object] = {}
    exec("from locos_tl import *", namespace)
    assert set(locos_tl.__all__) <= set(namespace)


def test_names_for_type_checkers_are_the_lazy_ones():
    """The TYPE_CHECKING block and the lazy table are two lists of one thing."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(locos_tl.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: (node.module or "")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == locos_tl._HOME | dict.fromkeys(locos_tl._ROOMS, "")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'locos_tl' has no attribute 'score_head'"):
        locos_tl.score_head  # noqa: B018
    assert not hasattr(locos_tl, "__path_of_nothing__")
    with pytest.raises(ImportError, match="cannot import name 'score_head'"):
        exec("from locos_tl import score_head")


def test_package_and_project_have_one_version():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] == locos_tl.__version__
