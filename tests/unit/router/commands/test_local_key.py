"""The admin key that `roundhouse up` makes."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer

from router.commands.engines.engine_plan import build_plan
from router.commands.local_key import make_local_key, uses_local_key
from router.core.api_keys import hash_key
from router.process.pid_file import PidFile, pid_file_path
from router.settings import ConfigurationError, Settings, parse

MODEL = '[[model]]\nname = "llama"\n[[engine]]\nname = "e"\nmodel = "llama"\nurl = "http://127.0.0.1:8001"\n'


def settings(folder: Path, router: str = "", auth: str = "") -> Settings:
    return parse(f'[router]\nstate = "{folder}/state"\n{router}\n[auth]\n{auth}\n{MODEL}', {})


def test_a_key_is_made_that_only_its_user_can_read_and_then_stays(tmp_path: Path) -> None:
    make_local_key(settings(tmp_path))
    file = tmp_path / "state" / "admin-key"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    key = file.read_text()
    assert key.startswith("rh-")
    make_local_key(settings(tmp_path))
    assert file.read_text() == key
    assert [path.name for path in file.parent.iterdir()] == ["admin-key"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int, capsys: pytest.CaptureFixture[str]) -> None:
    make_local_key(settings(tmp_path))
    (tmp_path / "state" / "admin-key").chmod(mode)
    with pytest.raises(typer.Exit):
        make_local_key(settings(tmp_path))
    assert "other users" in capsys.readouterr().err


def test_a_file_that_has_no_key_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state" / "admin-key"
    file.parent.mkdir()

    def refusal() -> str:
        with pytest.raises(typer.Exit):
            make_local_key(settings(tmp_path))
        return capsys.readouterr().err

    file.touch(0o600)
    assert "there is no key in it; remove the file" in refusal()
    file.unlink()
    file.symlink_to(file)
    assert "a symbolic link is no admin key" in refusal()
    file.unlink()
    os.mkfifo(file, 0o600)
    assert "this is no regular file" in refusal()


def test_a_router_that_runs_keeps_the_key_that_it_has_read(tmp_path: Path) -> None:
    found = settings(tmp_path)
    running = PidFile(pid_file_path(found))
    make_local_key(found)
    assert not found.admin_key_file.exists()
    running.close()
    make_local_key(found)
    assert found.admin_key_file.exists()


def test_of_two_first_starts_the_key_of_one_counts_for_both(tmp_path: Path) -> None:
    found = settings(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make_local_key, [found] * 8))
    first = found.admin_key_file.read_text()
    make_local_key(found)
    assert found.admin_key_file.read_text() == first
    assert [path.name for path in found.admin_key_file.parent.iterdir()] == ["admin-key"]


@pytest.mark.parametrize(
    ("router", "auth", "uses"),
    [
        ("", "", True),
        ('host = "::1"', "", True),
        ('host = "localhost"', "", True),
        ('host = "0.0.0.0"', "", False),
        ('host = "router.internal"', "", False),
        ("", f'admin_keys = ["{hash_key(b"key")}"]', False),
    ],
)
def test_only_a_router_of_this_machine_without_admin_keys_gets_one(
    tmp_path: Path, router: str, auth: str, uses: bool
) -> None:
    found = settings(tmp_path, router, auth)
    assert uses_local_key(found) is uses
    make_local_key(found)
    assert (tmp_path / "state").exists() is uses
    file = build_plan(found, tmp_path / "c.toml", "auto", None)["router"]["admin_key_file"]
    assert file == (str(tmp_path / "state" / "admin-key") if uses else None)


def test_the_key_of_a_file_counts_as_one_of_the_admin_keys(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-a-file\n")
    found = settings(tmp_path, auth=f'admin_keys = ["{hash_key(b"other")}"]\nadmin_key_file = "{file}"')
    assert found.auth.admin_keys == [hash_key(b"other"), hash_key(b"from-a-file")]
    assert not uses_local_key(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "one key"),
        (b"two keys", "one key"),
        (b"k\xc3\xa9y", "one key"),
        (b"k" * 5000, "one key"),
    ],
)
def test_a_file_without_one_key_is_a_mistake_that_does_not_show_it(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        settings(tmp_path, auth=f'admin_key_file = "{file}"')
    (line,) = caught.value.mistakes
    assert line.startswith("auth.admin_key_file")
    assert message in line
    assert not content or content.decode() not in line
