"""Serves one request with the router that is installed beside this Python; needs nothing but the standard library.

`python smoke_test.py [--compiled]` exits with 1 and a reason if `roundhouse --version` does not say `(compiled)` where
it should, or if the request does not get the engine's answer. There is no Redis: requests bypass the cache.
"""

import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

ANSWER: Final = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "It works."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
}  # fmt: skip
CONFIG: Final = """
[router]
port = {port}
[cache]
url = "redis://127.0.0.1:{closed}"
[[model]]
name = "m"
[[engine]]
name = "e"
model = "m"
task = "any"
url = "http://127.0.0.1:{engine}"
served_model = "m"
"""
LIMIT: Final = 30.0  # seconds until it serves


class Engine(http.server.BaseHTTPRequestHandler):
    """vLLM, as far as one request needs it."""

    def do_GET(self) -> None:
        self._reply({"object": "list", "data": [{"id": "m", "object": "model"}], "version": "0.32.0"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._reply(ANSWER)

    def _reply(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Nothing: what matters is what the router says."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def ask(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Does it work?"}]})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.read()


def serve_one_request(roundhouse: Path, folder: Path) -> None:
    """Raises SystemExit with a reason."""
    engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    port = free_port()
    config = folder / "roundhouse.toml"
    config.write_text(CONFIG.format(port=port, closed=free_port(), engine=engine.server_address[1]), encoding="utf-8")
    process = subprocess.Popen(
        [roundhouse, "serve", "--no-drain", "--config", config], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    try:
        status, body = ask_until(port, process, time.monotonic() + LIMIT)
    finally:
        process.terminate()
        output = process.communicate(timeout=60)[0].decode()
        engine.shutdown()
    if status != 200 or json.loads(body)["choices"][0]["message"]["content"] != "It works.":
        raise SystemExit(f"{output}\nthe router replied {status} {body.decode()}")
    if process.returncode != 0:
        raise SystemExit(f"{output}\nthe router exited with {process.returncode}")


def ask_until(port: int, process: subprocess.Popen[bytes], deadline: float) -> tuple[int, bytes]:
    """The first reply that is not a 503: until its engine has been probed, a router has none."""
    while True:
        try:
            reply = ask(port)
        except OSError:
            reply = 0, b"nothing: it does not listen"
        if reply[0] not in (0, 503) or time.monotonic() > deadline or process.poll() is not None:
            return reply
        time.sleep(0.1)


def main() -> None:
    roundhouse = Path(sys.executable).with_name("roundhouse")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([roundhouse, "--version"], cwd=folder, capture_output=True, text=True, check=True)
        if ("(compiled)" in done.stdout) is not ("--compiled" in sys.argv):
            raise SystemExit(f"{done.stdout}this is not the build that was expected")
        serve_one_request(roundhouse, Path(folder))
        print(f"{done.stdout.strip()} has served a request")


if __name__ == "__main__":
    main()
