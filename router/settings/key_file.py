"""The admin key of `auth.admin_key_file`: a file with the key itself, whose hash then counts as one of `admin_keys`."""

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from router.core.api_keys import hash_key
from router.settings.mistakes import Mistake, Place
from router.settings.tables import Settings

MAX_KEY_BYTES: Final = 4096
"""Bytes; a longer key would risk the limits on request headers."""

_PLACE: Final[Place] = ("auth", "admin_key_file")


def with_admin_key(settings: Settings) -> tuple[Settings, list[Mistake]]:
    """The settings with the hash of the file's key among `auth.admin_keys`, and why the file cannot be used."""
    auth = settings.auth
    if not auth.admin_key_file:
        return settings, []
    try:
        with Path(auth.admin_key_file).open("rb") as file:
            key = file.read(MAX_KEY_BYTES + 1).strip()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = error.strerror if isinstance(error, OSError) else "this is no name of a file"
        return settings, [Mistake(_PLACE, f"cannot be read: {reason}")]
    if not is_key(key):
        return settings, [Mistake(_PLACE, f"is not a file with one key of at most {MAX_KEY_BYTES} ASCII characters")]
    # A set would change the order, which lists of keys show.
    keys = list(dict.fromkeys([*auth.admin_keys, hash_key(key)]))
    return replace(settings, auth=replace(auth, admin_keys=keys)), []


def is_key(text: bytes) -> bool:
    """Whether a key can stand in a header."""
    return 0 < len(text) <= MAX_KEY_BYTES and all(0x21 <= byte <= 0x7E for byte in text)
