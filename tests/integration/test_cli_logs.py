"""`roundhouse engines logs`: the last lines of a process' log, and new ones over restarts."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from engines.logs import rotate
from tests.support.cli_helpers import run_cli
from tests.support.waiting import TEST_TIMEOUT

CONFIG = """
[router]
state = "{state}"
[[model]]
name = "llama"
[[engine]]
name = "e0"
model = "llama"
url = "http://127.0.0.1:1"
[engine.launch]
target = "target"
[[engine]]
name = "elsewhere"
model = "llama"
url = "http://127.0.0.1:2"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "state" / "logs").mkdir(parents=True)
    path = tmp_path / "roundhouse.toml"
    path.write_text(CONFIG.format(state=tmp_path / "state"))
    return path


@pytest.fixture
def log(config: Path) -> Path:
    return config.parent / "state" / "logs" / "e0.log"


async def test_after_a_switch_the_log_that_was_written_last_is_shown(config: Path, log: Path) -> None:
    switched = log.with_name("e0@2.log")
    for newest, oldest in ((switched, log), (log, switched)):
        for age, path in enumerate((newest, oldest)):
            path.write_text(f"{path.name}\n")
            os.utime(path, (1000 - age, 1000 - age))
        result = await run_cli("engines", "logs", "e0", "--config", config)
        assert result.stdout == f"{newest.name}\n"


async def test_the_last_lines_are_shown(config: Path, log: Path) -> None:
    log.write_text("".join(f"line {number}\n" for number in range(200)))
    result = await run_cli("engines", "logs", "e0", "-n", "3", "--config", config)
    assert (result.code, result.stdout) == (0, "line 197\nline 198\nline 199\n")
    assert len((await run_cli("engines", "logs", "e0", "--config", config)).stdout.splitlines()) == 100


async def test_a_process_without_a_log_is_one_clear_line(config: Path) -> None:
    result = await run_cli("engines", "logs", "router", "--config", config)
    assert result.code == 1
    assert result.stderr.startswith("roundhouse: ")
    assert "router.log: no such file" in result.stderr


@pytest.mark.parametrize("name", ["elsewhere", "nobody", "../e0"])
async def test_a_process_that_up_does_not_start_is_refused_with_the_names_that_it_starts(
    config: Path, name: str
) -> None:
    result = await run_cli("engines", "logs", name, "--config", config)
    assert result.code == 2
    assert f"'{name}' is not started by `roundhouse up`; it starts e0, router, redis" in result.stderr


async def test_a_followed_log_shows_new_lines_also_after_a_restart_and_a_truncation(config: Path, log: Path) -> None:
    log.write_text("old\nfirst\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "engines", "logs", "e0", "-f", "-n", "1", "--config", str(config),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            assert await process.stdout.readline() == b"first\n"
            with log.open("a") as file:
                file.write("second\n")
            assert await process.stdout.readline() == b"second\n"
            rotate(log)
            log.write_text("of the next run\n")
            assert await process.stdout.readline() == b"of the next run\n"
            os.truncate(log, 0)
            with log.open("a") as file:
                file.write("cut\n")
            assert await process.stdout.readline() == b"cut\n"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
