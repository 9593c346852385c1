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


def pytest_collection_modifyitems(items):
    """Notebooks go first: they are long, and at the end one process would wait for the other."""
    items.sort(key=lambda item: item.path.name != "test_notebooks.py")
