"""Ablation on a HookedTransformer (transformer-lens 3.9) is that of a TransformerBridge; `make legacy` runs this."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

import pytest
import torch

from locos_tl import load_model
from locos_tl.causal.ablation import MODES, ablation
from locos_tl.causal.means import ABLATED, HeadMeans, calibrate_means
from locos_tl.causal.sweep import ablate_sweep
from tests import legacy, tiny

pytestmark = pytest.mark.legacy

if tuple(map(int, version("transformer-lens").split(".")[:1])) >= (4,):
    pytest.skip("transformer-lens 4 has no HookedTransformer; run `make legacy`", allow_module_level=True)

IDS = tiny.words(26)
HEADS = [(1, 2), (0, 1)]
CALIBRATION = [tiny.trial(n) for n in (33, 20, 26)]


@pytest.fixture(scope="module", params=("llama", "llama-6-heads", "qwen3", "gpt2"))
def pair(request):
    hf = tiny.hf_model(request.param)
    twin = legacy.hooked_transformer(hf, request.param)
    return load_model(twin, tokenizer=tiny.tokenizer()), load_model(hf, tokenizer=tiny.tokenizer())


def _for(model, means: HeadMeans) -> HeadMeans:
    return replace(means, weights=model.weights_fingerprint())


@pytest.mark.parametrize("batch_size", [1, 3])
def test_means_agree(pair, batch_size):
    old, new = (calibrate_means(model, CALIBRATION, batch_size=batch_size) for model in pair)
    assert (old.n_tokens, old.prompts) == (new.n_tokens, new.prompts)
    for at in ABLATED:
        torch.testing.assert_close(old.mean[at], new.mean[at], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(old.sample[at], new.sample[at], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", ABLATED)
def test_ablated_logits_and_answers_agree(pair, at, mode):
    means = calibrate_means(pair[1], CALIBRATION)
    found = []
    for model in pair:
        before = model.forward(IDS)
        with ablation(model, HEADS, at=at, mode=mode, means=_for(model, means)) as state:
            logits = model.forward(IDS)
            cache = model.new_cache()
            last = model.extend(cache, IDS[:9])
            last = model.extend(cache, IDS[9:])
            decoding = model.decode(cache, last, 6)
        assert torch.equal(model.forward(IDS), before)
        steps = len(decoding.margins) - 1  # the first token needs none
        assert state.firings == {0: 3 + steps, 1: 3 + steps}
        assert (last - logits[-1]).abs().max() <= 1e-4 * logits.abs().max()
        assert (logits - before).abs().max() > 1e-3
        found.append((logits, decoding.ids))
    (a, ids), (b, wanted) = found
    assert (a - b).abs().max() <= 1e-4 * b.abs().max()
    assert ids == wanted


def test_sweeps_agree(pair):
    trials = [replace(tiny.trial(n), generated_ids=None) for n in (40, 44)]
    heads = {"mine": [(1, 2), (0, 1), (1, 0)]}
    options = {"ks": (1, 3), "controls": ("random",), "mode": "zero", "max_new_tokens": 6}
    old, new = (ablate_sweep(model, trials, heads, **options) for model in pair)
    assert [row.generated_ids for row in old.rows] == [row.generated_ids for row in new.rows]
    assert old.provenance["model"]["backend"] == "HookedTransformer"


def test_hooks_of_the_caller_survive(pair):
    """A20, with a permanent TransformerLens hook as well."""
    model, calls = pair[0], []
    model.hooked.hook_dict["blocks.0.attn.hook_z"].add_hook(lambda value, hook: calls.append(1), is_permanent=True)
    before = model.forward(IDS)
    with ablation(model, HEADS, at="z", mode="zero"):
        model.forward(IDS)
    assert torch.equal(model.forward(IDS), before)
    assert len(calls) == 3
    model.hooked.reset_hooks(including_permanent=True)
