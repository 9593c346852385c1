"""Every notebook runs from top to bottom on the bundled model, and so do the solutions of its exercises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# The environment of transformer-lens 3.9 has none of these; the one that `make unit` makes has.
jupytext = pytest.importorskip("jupytext")
nbformat = pytest.importorskip("nbformat")
NotebookClient = pytest.importorskip("nbclient").NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
EXECUTED = ROOT / "build" / "notebooks"
TIMEOUT = 180
"""Seconds that one cell may take."""
MAX_BYTES = 1_000_000
QUIET = {
    "PLOTLY_RENDERER": "plotly_mimetype",  # figures as JSON, without a copy of plotly in every cell
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a remark of the kernel's debugger on stderr
}


def solutions(notebook) -> list[str]:
    """The python blocks inside <details> of every markdown cell, in order."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    hidden = re.findall(r"<details>.*?</details>", text, re.DOTALL)
    return [block for part in hidden for block in re.findall(r"```python\n(.*?)```", part, re.DOTALL)]


@pytest.mark.bundled
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    notebook = jupytext.read(path)
    n_cells = len(notebook.cells)
    # The solutions see what the notebook leaves behind; they are run, and not part of what is shown.
    answers = [nbformat.v4.new_code_cell(source) for source in solutions(notebook)]
    notebook.cells += answers
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
        store_widget_state=False,  # it holds the widget's JavaScript
    )
    client.execute()
    del notebook.cells[n_cells:]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day, which make every build differ
    EXECUTED.mkdir(parents=True, exist_ok=True)
    written = EXECUTED / f"{path.stem}.ipynb"
    nbformat.write(notebook, written)
    outputs = [output for cell in [*notebook.cells, *answers] for output in cell.get("outputs", ())]
    complaints = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    assert not complaints
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert not any("<script" in page for page in pages), "a figure brought its own copy of plotly"
    assert written.stat().st_size < MAX_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_solutions_are_found(path):
    """Every exercise has a hidden solution that `test_runs` will run."""
    notebook = jupytext.read(path)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    asked = re.findall(r"^\*\*Exercise \d+\.\*\*", text, re.MULTILINE)
    assert asked
    assert len(asked) == len(solutions(notebook)) == text.count("<summary>Solution</summary>")
    for source in solutions(notebook):
        compile(source, path.name, "exec")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_says_how_to_open(path):
    """The first cell is a title and a line on how to open and run the file."""
    first = jupytext.read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "Open and run:" in first.source
    assert f"notebooks/{path.name}" in first.source
