"""The process of an engine, which serves at a URL."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engines.process import ManagedProcess


class EngineProcess(ManagedProcess):
    """An engine on this machine."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str], url: str) -> None:
        super().__init__(name, argv, log, env)
        self._url = url

    @property
    def url(self) -> str | None:
        """Where it serves; None while that is not known. Each start may give another one."""
        return self._url
