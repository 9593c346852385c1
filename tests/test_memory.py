"""The memory estimate: parts that add up, sizes that are right, and a refusal before the run."""

from __future__ import annotations

import json

import pytest
import torch

from locos_tl import ablate_sweep, memory, patch_trials, score_heads
from locos_tl.memory import NotEnoughMemory, Sizes, available, cache_bytes, estimate, require_memory
from locos_tl.trials.trial import save_trials
from tests import tiny

TRIAL = tiny.trial(40)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_config_tells_what_the_loaded_model_tells(tiny_model, family):
    model, told = Sizes.of(tiny_model(family)), Sizes.of(tiny.CONFIGS[family](), dtype="float32")
    assert told == Sizes(**vars(model) | {"name": told.name})
    plain = sum(p.nbytes for p in tiny_model(family).fused.model.parameters()) if model.fused else 0
    assert model.weights >= plain
    assert model.weights == plain or not model.fused or family == "gpt-neox"


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-neox", "phi3"])
@pytest.mark.parametrize("n", [6, 40, 200])
def test_the_cache_is_as_large_as_told(tiny_model, family, n):
    model = tiny_model(family)
    cache = model.fill(tiny.words(n))
    told = cache_bytes(Sizes.of(model), n)
    assert cache.nbytes <= told <= 2 * cache.nbytes + 16 * 1024


def test_half_precision_halves_the_weights(tmp_path):
    config = tiny.CONFIGS["qwen3"]()
    assert Sizes.of(config, torch.bfloat16).weights * 2 == Sizes.of(config, "float32").weights
    config.dtype = "float16"
    assert Sizes.of(config).width == 2
    config.save_pretrained(tmp_path)
    assert Sizes.of(tmp_path).weights == Sizes.of(config).weights


def test_no_weights_are_made_of_a_large_config():
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960,
        tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    found = estimate(config, 32_000, max_new_tokens=50)
    assert found.parts["weights"] == pytest.approx(8.19e9 * 2, rel=0.01)  # the 8.2 billion of Qwen3-8B
    assert found.parts["keys and values"] == 2 * 36 * 32_050 * 8 * 128 * 2
    assert found.limit == 40960
    assert found.total < 32 * 2**30


@pytest.mark.parametrize("purpose", memory.PURPOSES)
@pytest.mark.parametrize("family", ["llama", "phi"])
def test_memory_is_linear_in_the_context(family, purpose):
    sizes = Sizes.of(tiny.CONFIGS[family]())
    a, b, c = (estimate(sizes, n, purpose=purpose).total for n in (20_000, 40_000, 60_000))
    assert c - b == pytest.approx(b - a, rel=0.01)


def test_parts_add_up_and_are_shown(tiny_model):
    found = estimate(tiny_model("gemma3"), 100)
    assert found.total == sum(found.parts.values())
    assert found.beyond_weights == found.total - found.parts["weights"]
    assert found.to_frame()["bytes"].sum() == found.total
    assert found.table()[-1]["part"] == "total"
    assert found.to_dict()["total_bytes"] == found.total
    assert "keys and values" in found._repr_html_()
    assert "100 tokens" in repr(found)


def test_without_fused_attention_a_chunk_of_scores_is_counted(tiny_model):
    sizes = Sizes.of(tiny_model("gemma2"))
    assert not sizes.fused
    scores = 512 * 4 * 12 * 10_000  # chunk, heads, bytes a score, keys
    assert estimate(sizes, 20_000).total - estimate(sizes, 10_000).total > scores


def test_what_patching_and_ablation_keep_is_counted(tiny_model):
    model = tiny_model("llama")
    plain, attribution = (
        estimate(model, 20_000, purpose="patch", kinds=kinds) for kinds in (("total",), ("attribution",))
    )
    assert plain.parts["activations of both runs"] == 20_000 * (2 * 2 * 4 * 16 + 3 * 48) * 4
    assert attribution.total != plain.total
    one, eight = (estimate(model, 200, purpose="ablate", batch_size=rows).total for rows in (1, 8))
    assert eight > one


def test_bad_questions():
    config = tiny.CONFIGS["llama"]()
    with pytest.raises(ValueError, match=r"unknown purpose 'scoring'.*score, patch, ablate"):
        estimate(config, 10, purpose="scoring")
    with pytest.raises(ValueError, match="at least 1"):
        estimate(config, 0)
    with pytest.raises(ValueError, match="int8"):
        estimate(config, 10, dtype=torch.int8)
    with pytest.raises(ValueError, match="not of a dict"):
        estimate({}, 10)


def test_there_is_memory_here():
    assert 2**20 < available("cpu") < 2**50


@pytest.mark.parametrize("run", ["score", "patch", "ablate"])
def test_a_run_that_does_not_fit_is_refused_before_it_starts(tiny_model, monkeypatch, run):
    model = tiny_model("llama")
    runs = {
        "score": lambda: score_heads(model, [TRIAL, tiny.trial(90)]),
        "patch": lambda: patch_trials(model, [TRIAL, tiny.trial(90)]),
        "ablate": lambda: ablate_sweep(
            model, [TRIAL, tiny.trial(90)], {"mine": [(0, 0)]}, (1,), mode="zero", controls=()
        ),
    }
    monkeypatch.setattr(memory, "available", lambda device: 50_000)
    monkeypatch.setattr(type(model.backend), "run", lambda *a, **k: pytest.fail("ran"))
    with pytest.raises(NotEnoughMemory, match=r"longest trial \(90 tokens\).*0 MiB are free.*shorter contexts"):
        runs[run]()


def test_the_check_can_be_switched_off(tiny_model, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 0)
    monkeypatch.setenv("LOCOS_TL_MEMORY_CHECK", "off")
    require_memory(tiny_model("llama"), 10**6, "score")
    monkeypatch.setenv("LOCOS_TL_MEMORY_CHECK", "")
    with pytest.raises(NotEnoughMemory, match="LOCOS_TL_MEMORY_CHECK=off"):
        require_memory(tiny_model("llama"), 10**6, "score")


@pytest.mark.parametrize("run", ["score", "patch", "ablate"])
def test_too_long_for_the_model_is_refused_before_any_trial_runs(tiny_model, monkeypatch, run):
    """All trials are looked at first, and the first that is too long is named, with both numbers."""
    model = tiny_model("llama")
    trials = [TRIAL, tiny.trial(254, generated=None), tiny.trial(255, generated=None)]
    monkeypatch.setattr(type(model.backend), "run", lambda *a, **k: pytest.fail("ran"))
    monkeypatch.setattr(type(model.fused), "run", lambda *a, **k: pytest.fail("ran"))
    runs = {
        "score": lambda: score_heads(model, trials),
        "patch": lambda: patch_trials(model, trials),
        "ablate": lambda: ablate_sweep(model, trials, {"mine": [(0, 0)]}, (1,), mode="zero", controls=()),
    }
    with pytest.raises(ValueError, match=r"'tiny-254-5' needs 304 tokens \(prompt 254\), the context limit .* is 256"):
        runs[run]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint's config and tokenizer, without weights."""
    path = tmp_path_factory.mktemp("checkpoint")
    tiny.CONFIGS["llama"]().save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


def _run(*args):
    from typer.testing import CliRunner

    from locos_tl import cli

    return CliRunner().invoke(cli.app, list(map(str, args)))


def test_the_command_line_tells_from_a_config_alone(folder):
    done = _run("estimate", folder, "--length", 200, "--json")
    assert done.exit_code == 0, done
    told = json.loads(done.stdout)
    assert told["total_bytes"] == estimate(folder, 200).total
    assert "keys and values" in _run("estimate", folder, "--length", 200).stdout
    assert "it would be refused" in _run("estimate", folder, "--length", 300).stdout


def test_a_dry_run_loads_no_weights_and_writes_nothing(folder, tmp_path):
    trials, out = tmp_path / "trials.jsonl", tmp_path / "run"
    save_trials(trials, [TRIAL, tiny.trial(90)])
    done = _run("score", folder, "--trials", trials, "--out", out, "--dry-run")
    assert done.exit_code == 0, done
    assert "2 trials of 40 to 90 prompt tokens, 130 in all" in done.stdout
    assert "it fits. Nothing was run or written." in done.stdout
    told = json.loads(_run("score", folder, "--trials", trials, "--out", out, "--dry-run", "--json").stdout)
    assert (told["trials"], told["longest"], told["memory"]["n_tokens"]) == (2, 90, 90)
    assert not out.exists()


def test_a_dry_run_refuses_what_is_too_long(folder, tmp_path):
    save_trials(tmp_path / "trials.jsonl", [tiny.trial(254, generated=None)])
    done = _run("score", folder, "--trials", tmp_path / "trials.jsonl", "--out", tmp_path / "run", "--dry-run")
    assert "needs 304 tokens" in str(done.exception)
