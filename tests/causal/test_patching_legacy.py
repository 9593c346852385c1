"""Patching on a HookedTransformer (transformer-lens 3.9) gives what it gives on the bridge; `make legacy` runs this."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest

from locos_tl import load_model
from locos_tl.causal.attribution import attribution_patching
from locos_tl.causal.patching import patch_heads, patch_together
from locos_tl.causal.paths import direct_effects, path_patching
from tests import legacy, tiny

pytestmark = pytest.mark.legacy

if version("transformer-lens").startswith("4"):
    pytest.skip("transformer-lens 4 has no HookedTransformer; run `make legacy`", allow_module_level=True)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gpt2"])
def models(request):
    hf = tiny.hf_model(request.param)
    twin = legacy.hooked_transformer(hf, request.param)
    return load_model(twin, tokenizer=tiny.tokenizer()), load_model(hf, tokenizer=tiny.tokenizer())


def _same(one, other):
    np.testing.assert_allclose(one.per_trial, other.per_trial, atol=2e-3)
    assert one.provenance["patching"] == other.provenance["patching"]


@pytest.mark.parametrize("at", ["z", "q", "k", "v", "pattern"])
def test_exact_and_attribution_patching(models, tiny_pair, at):
    old, new = models
    pair = tiny_pair()
    _same(*[patch_heads(model, pair, at=at) for model in models])
    _same(*[attribution_patching(model, pair, at=at) for model in models])
    assert old.info.backend == "HookedTransformer"
    assert new.info.backend == "TransformerBridge"


def test_paths_and_sets(models, tiny_pair):
    pair = tiny_pair()
    _same(*[direct_effects(model, pair, metric="answer_logprob") for model in models])
    _same(*[path_patching(model, pair, receivers=[(1, 0), (1, 1)], through="v") for model in models])
    together = [patch_together(model, pair, heads=[(0, 1), (1, 3)]) for model in models]
    np.testing.assert_allclose(*together, atol=1e-3)
