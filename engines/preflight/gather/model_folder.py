"""Finds the files of a model: a folder, or a snapshot in the cache of the Hugging Face hub.

The cache has a folder for each model, `models--ORG--NAME`. There, `refs/REVISION` has the commit that a branch or tag
is at, and `snapshots/COMMIT` has its files. Source: huggingface_hub's guide "Understand caching".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DEFAULT_REVISION: Final = "main"
_MAX_REF: Final = 200  # bytes; a commit has 40


def hub_cache(env: Mapping[str, str]) -> Path:
    """The folder of the hub's cache: HF_HUB_CACHE, or `hub` in HF_HOME, or in the user's cache folder."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "huggingface" / "hub"


def find_model_folder(name: str, *, is_local: bool, revision: str | None, cache: Path) -> Path | None:
    """The folder with a model's files, or None if it is not on this machine."""
    if is_local:
        return Path(name) if Path(name).is_dir() else None
    folder = cache / f"models--{name.replace('/', '--')}"
    revision = revision or _DEFAULT_REVISION
    for commit in (_read_ref(folder / "refs" / revision), revision):
        if commit and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    return None


def _read_ref(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_REF).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
