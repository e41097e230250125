"""Commands of the configuration that put engines to sleep and wake them up."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.upstream.sleep.engine_sleep import SleepError
from router.upstream.sleep.sleep_calls import SleepByCalls

ENGINE: Any = None
CLIENT: Any = None


def run(command: str) -> None:
    asyncio.run(SleepByCalls(CLIENT, sleep=command, wake="true").sleep(ENGINE, lambda: None))


def test_a_command_of_the_shell_is_run_with_its_quotes(tmp_path: Path) -> None:
    run(f"printf '%s' \"a b\" > '{tmp_path}/out file'")
    assert (tmp_path / "out file").read_text() == "a b"


def test_a_server_that_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    run(f"(sleep 60; echo late) & echo $! > {tmp_path}/pid")
    assert Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    run(f"kill $(cat {tmp_path}/pid)")


def test_the_last_line_of_a_command_that_fails_is_in_the_error() -> None:
    with pytest.raises(SleepError, match=r"^`sleep`: the command has ended with status 3: no\\x1b such container$"):
        run("seq 100000 >&2; printf 'first\\nno\\033 such container\\n\\n' >&2; exit 3")


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(SleepError, match="cannot be started"):
        run("true \0")
