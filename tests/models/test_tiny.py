"""`check --tiny`: every family, no download."""

from __future__ import annotations

import pytest

from locos_tl.models import tiny


def test_families_are_checked_by_name():
    found = tiny.check_families(("llama", "gemma3"), progress=False)
    assert list(found) == ["llama", "gemma3"]
    assert all(found.values())
    assert all(len(report.rows) == 8 for report in found.values())


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match=r"unknown family 'lama' \(did you mean 'llama'\?\); choose from llama"):
        tiny.load("lama")


def test_tiny_models_are_the_same_every_time():
    a, b = tiny.load("qwen3"), tiny.load("qwen3")
    assert a.weights_fingerprint() == b.weights_fingerprint()
