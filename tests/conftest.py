from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))


@pytest.fixture(scope="session")
def bundled():
    """The bundled model, loaded once."""
    from locos_tl import load_model

    return load_model("smollm2-135m")


@pytest.fixture(scope="session")
def tiny_model():
    """Loads a tiny model of a family, once per family."""
    from functools import cache

    from locos_tl.models import tiny

    return cache(tiny.load)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own hook
def pytest_collection_modifyitems(items):
    """In several processes, a file's tests stay together (they share fixtures); each notebook is on its own.

    Notebooks go first: they are long, and at the end one process would wait for the other.
    """
    notebooks = [item for item in items if item.path.name == "test_notebooks.py"]
    others = [item for item in items if item.path.name != "test_notebooks.py"]
    for item in others:
        item.add_marker(pytest.mark.xdist_group(str(item.path)))
    for item in notebooks:
        item.add_marker(pytest.mark.xdist_group(item.nodeid))
    items[:] = notebooks + others
