"""The name of a launcher."""

from pathlib import Path

from engines.launcher_id import FILE_NAME, launcher_id


def test_launchers_with_the_same_folder_have_the_same_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert launcher_id(tmp_path) == launcher_id(tmp_path) != launcher_id(other)


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"a name with spaces\xff")
    assert " " not in launcher_id(tmp_path)
    assert launcher_id(tmp_path) == launcher_id(tmp_path)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    assert launcher_id(tmp_path / "missing") != launcher_id(tmp_path / "missing")
