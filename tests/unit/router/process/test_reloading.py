"""What a reload reads again, and what it says about it."""

from pathlib import Path

import pytest

from router.process.reloading import Reloader
from router.settings import load
from tests.support.configurations import MINIMAL


def test_logging_of_prompts_is_announced_at_a_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(MINIMAL)
    before = load(path)
    path.write_text(f"[router]\nlog_prompts = 0.25\n{MINIMAL}")
    after = Reloader(path).read(before)
    assert after is not None
    assert after.router.log_prompts == 0.25
    assert "PROMPTS AND ANSWERS ARE LOGGED as roundhouse.prompts" in caplog.text
    assert "a change needs a restart" not in caplog.text
