"""A chat completion server on loopback whose faults a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeChat(ThreadingHTTPServer):
    """Answers every user with its last message in capitals, after ``fault`` had its say.

    ``fault(number, body)`` returns None to answer, a status with a text and headers, or ``"cut"`` to break off.
    """

    daemon_threads = True

    def __init__(self, port: int = 0, fault: Callable[[int, dict[str, Any]], Any] = lambda number, body: None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.fault = fault
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.dead = False
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def kill(self) -> None:
        """Drop what is in flight and stop listening."""
        self.dead = True
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that gave up


class Handler(BaseHTTPRequestHandler):
    server: FakeChat

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        fault = self.server.fault(len(self.server.bodies), body)
        if self.server.dead or fault == "cut":
            self.connection.close()
            return
        if isinstance(fault, dict):
            self.send(200, json.dumps(fault))
        elif fault is not None:
            self.send(*fault)
        else:
            self.send(200, json.dumps(reply(body["messages"][-1]["content"].upper())))

    def send(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


def reply(text: str | None, reason: str = "stop", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text, **fields}, "finish_reason": reason}]}


@contextmanager
def serving(*args: Any, **options: Any):
    server = FakeChat(*args, **options)
    try:
        yield server
    finally:
        if not server.dead:
            server.kill()
