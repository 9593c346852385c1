"""HookedTransformer (transformer-lens 3.9) and TransformerBridge give the same scores; `make legacy` runs this."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest

from locos_tl import load_model, score_heads
from tests import legacy, tiny

pytestmark = pytest.mark.legacy

if tuple(map(int, version("transformer-lens").split(".")[:1])) >= (4,):
    pytest.skip("transformer-lens 4 has no HookedTransformer; run `make legacy`", allow_module_level=True)

FAMILIES = ("llama", "llama-6-heads", "qwen3", "gpt2")


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    hf = tiny.hf_model(request.param)
    twin = legacy.hooked_transformer(hf, request.param)
    return load_model(twin, tokenizer=tiny.tokenizer()), load_model(hf, tokenizer=tiny.tokenizer())


def test_kinds_and_checks(pair):
    old, new = pair
    assert old.info.backend == "HookedTransformer"
    assert old.info.prefill == "hooked, in chunks"
    assert new.info.backend == "TransformerBridge"
    report = old.check()
    assert report, report.rows
    assert new.check(), new.check().rows


@pytest.mark.parametrize("variant", ["paper", "folded", "exact"])
def test_scores_agree(pair, variant):
    old, new = pair
    trials = [tiny.trial(30), tiny.trial(60, needle=(20, 27))]
    a, b = score_heads(old, trials, variant=variant), score_heads(new, trials, variant=variant)
    for name in a:
        scale = np.abs(b[name].per_trial).max() or 1.0
        assert np.abs(a[name].per_trial - b[name].per_trial).max() <= 1e-4 * scale, name


def test_decoding_agrees(pair):
    from dataclasses import replace

    from locos_tl import generate

    old, new = pair
    trial = replace(tiny.trial(40), generated_ids=None)
    assert generate(old, trial, 12).generated_ids == generate(new, trial, 12).generated_ids


def test_phi_agrees(pair):
    from locos_tl import phi

    old, new = pair
    trial = tiny.trial(30)
    a, b = phi(old, trial, steps=[0, 3]), phi(new, trial, steps=[0, 3])
    assert a.shape == b.shape == (old.n_layers, old.n_heads, 2, 33)
    assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def test_folded_weights_refuse_the_paper_variant():
    """A07: folding the final norm into W_U changes u, so the numbers would silently differ."""
    twin = legacy.hooked_transformer(tiny.hf_model("llama"), "llama")
    plain = load_model(twin, tokenizer=tiny.tokenizer())
    trial = tiny.trial()
    wanted = score_heads(plain, trial, ["locos"], variant="folded")["locos"].per_trial
    twin = legacy.hooked_transformer(tiny.hf_model("llama"), "llama", fold_ln=True)
    folded = load_model(twin, tokenizer=tiny.tokenizer())
    assert folded.info.processing["fold_ln"]
    with pytest.raises(ValueError, match="from_pretrained_no_processing"):
        score_heads(folded, trial, ["locos"])
    got = score_heads(folded, trial, ["locos"], variant="folded")["locos"]
    np.testing.assert_allclose(got.per_trial, wanted, atol=1e-4 * np.abs(wanted).max())
    assert got.provenance["model"]["processing"]["fold_ln"]


@pytest.mark.bundled
def test_golden_scores_with_a_hooked_transformer():
    """The bundled model as a HookedTransformer gives the released code's scores, decoding included."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from locos_tl.models.bundled import ensure
    from tests.scoring import test_golden as golden

    folder = str(ensure("smollm2-135m"))
    hf = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    model = load_model(
        legacy.hooked_transformer(hf, "llama", n_ctx=1024), tokenizer=AutoTokenizer.from_pretrained(folder)
    )
    rows, trials, arrays = golden.read("smollm2_135m_instruct")
    keep = [1, 6]
    scores = score_heads(model, [trials[i] for i in keep])
    for i, outcome in zip(keep, scores.outcomes, strict=True):
        assert list(outcome.generated_ids) == rows[i]["generated_ids"]
    places = [list(arrays["passing_trial_index"]).index(i) for i in keep]
    for ours in ("locos", "attention_spatial", "dla", "wu"):
        wanted = arrays[golden.MATRICES[ours]]
        assert np.abs(scores[ours].per_trial - wanted[places]).max() <= 1e-4 * np.abs(wanted).max(), ours


def test_the_hook_table_is_true_of_a_hooked_transformer(pair):
    from locos_tl.models.hook_table import PROBE, hook_table

    old, _ = pair
    g = old.geometry
    sizes = {"batch": 1, "pos": PROBE, "query": PROBE, "key": PROBE, "head": g.n_heads, "kv_head": g.n_key_value_heads}
    sizes |= {"d_head": g.d_head, "d_model": g.d_model}
    for row in hook_table(old):
        assert row.shape == " x ".join(str(sizes[axis]) for axis in row.axes.split()), row
