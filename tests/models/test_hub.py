"""The Hub is probed quickly, and never when told to stay offline."""

from __future__ import annotations

import socket
import time

import pytest

from locos_tl.models import hub


def test_offline_switch_wins(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: pytest.fail("asked the network"))
    assert not hub.hub_reachable()


def test_refused_connection_is_quick(monkeypatch):
    import huggingface_hub.constants as constants

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    started = time.monotonic()
    assert not hub.hub_reachable()
    with pytest.raises(FileNotFoundError, match="cannot be reached"):
        hub.checkpoint_for("someone/a-model")
    assert time.monotonic() - started < 5


def test_listening_host_is_reachable(monkeypatch):
    import huggingface_hub.constants as constants

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        assert hub.hub_reachable()
