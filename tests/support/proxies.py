"""Real proxies with the configurations of docs/behind-a-proxy.md."""

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import httpx

from tests.support.certificate import certificate
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import TEST_TIMEOUT, eventually

PAGE: Final = ROOT / "docs" / "behind-a-proxy.md"


def documented(language: str) -> str:
    """The configuration on the page in this language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert isinstance(block, str)
    return block


def replaced(text: str, **replacements: str) -> str:
    """The text with each name replaced, all of which must be in it."""
    for pattern, value in replacements.items():
        assert pattern in text, f"{pattern} is not on the page"
        text = text.replace(pattern, value)
    return text


class Proxy:
    """One proxy in front of two routers. Only addresses, ports and file names differ from the page."""

    def __init__(self, name: str, folder: Path, routers: tuple[int, int], *, trusted: str = "127.0.0.0/8") -> None:
        """`trusted`: the network that may use the private paths."""
        self.name = name
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self._argv = _ARGV[name](_common(documented(_LANGUAGES[name]), routers, trusted), folder, self.port)
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        folder = self.log.parent
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        with self.log.open("wb") as log:
            # Not asyncio's: its process belongs to one event loop.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                self._argv, stdout=log, stderr=log, env=environment, cwd=folder
            )
        async with self.client() as http:

            async def answers() -> bool:
                assert self._process is not None
                assert self._process.poll() is None, self.log.read_text()
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(answers)

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        # verify=False: the certificate is made for the test.
        return httpx.AsyncClient(
            base_url=self.url, verify=False, trust_env=False, timeout=2 * TEST_TIMEOUT, limits=limits
        )

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, TEST_TIMEOUT)


def _common(text: str, routers: tuple[int, int], trusted: str) -> str:
    first, second = routers
    return replaced(
        text, **{"10.0.0.11:8080": f"127.0.0.1:{first}", "10.0.0.12:8080": f"127.0.0.1:{second}"},
        **{"10.0.0.0/8": trusted},
    )  # fmt: skip


def _nginx(page: str, folder: Path, port: int) -> list[str]:
    certificate(folder)
    text = replaced(
        page,
        **{"listen 443 ssl": f"listen 127.0.0.1:{port} ssl", "/etc/nginx/llm.pem": f"{folder}/server.pem"},
    )
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # One process that runs as the user of the tests.
    main = f"daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nevents {{}}\n"
    config = folder / "nginx.conf"
    config.write_text(f"{main}http {{\naccess_log off;\n{paths}{text}}}\n")
    return [_binary("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(config)]


def _haproxy(page: str, folder: Path, port: int) -> list[str]:
    certificate(folder)
    text = replaced(
        page,
        **{"bind :443": f"bind 127.0.0.1:{port}", "/etc/haproxy/llm.pem": f"{folder}/server.pem"},
    )
    config = folder / "haproxy.cfg"
    config.write_text(text)
    return [_binary("haproxy"), "-db", "-f", str(config)]


def _caddy(page: str, folder: Path, port: int) -> list[str]:
    certificate(folder)
    text = replaced(
        page,
        **{"llm.example {": f"https://127.0.0.1:{port} {{\n    tls {folder}/server.pem {folder}/server.pem"},
    )
    config = folder / "Caddyfile"
    # Without its admin API and the ports of HTTP, which only one process can have.
    config.write_text(f"{{\n    admin off\n    auto_https off\n}}\n{text}")
    return [_binary("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)]


_LANGUAGES: Final = {"nginx": "nginx", "haproxy": "haproxy", "caddy": "caddyfile"}
_ARGV: Final = {"nginx": _nginx, "haproxy": _haproxy, "caddy": _caddy}


def find_binary(name: str) -> str | None:
    # Debian has nginx and haproxy in a folder that only root searches.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _binary(name: str) -> str:
    path = find_binary(name)
    assert path is not None, f"{name} is not installed"
    return path
