"""Every notebook runs from top to bottom on the bundled model."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.py"))


@pytest.mark.bundled
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert "trials passed" in capsys.readouterr().out
