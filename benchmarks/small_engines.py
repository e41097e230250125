"""`roundhouse up` with the two small llama engines of engines/tiny, on free ports, for benchmarks of real vLLM."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

MODEL, SERVED = "llama", "meta-llama/Llama-3.1-8B-Instruct"
_START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 60.0


def llama_configuration(text: str, router_port: int, state: str, ports: dict[str, int]) -> str:
    """The configuration of the small models, without mistral and with other ports."""
    head, *engines = text.split("[[engine]]")
    llama = [engine for engine in engines if re.search(r'^model = "llama"$', engine, re.MULTILINE)]
    names = [name for engine in llama for name in re.findall(r'^name = "(.+)"$', engine, re.MULTILINE)]
    models = head.partition('[[model]]\nname = "mistral"')[0]
    placed = []
    for name, engine in zip(names, llama, strict=True):
        ports[name] = free_port()
        placed.append(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{ports[name]}", engine))
    return "[[engine]]".join([f'[router]\nport = {router_port}\nstate = "{state}"\n\n{models}', *placed])


@contextmanager
def running_engines(vllm_python: str, configuration: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the address of the router, and those of the engines by name; logs are printed if they do not start."""
    port, ports = free_port(), dict[str, int]()
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder, "roundhouse.toml"), Path(folder, "up.log")
        config.write_text(llama_configuration(configuration.read_text(), port, f"{folder}/state", ports))
        command = [sys.executable, "-m", "router", "up", "--config", str(config), "--engines", "vllm"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--vllm-python", vllm_python], stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                env=os.environ,
            )  # fmt: skip
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}", {name: f"http://127.0.0.1:{at}" for name, at in ports.items()}
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_STOP_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", router: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{router}/readyz", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"{router} did not become ready:\n{log.read_text()[-3000:]}")
