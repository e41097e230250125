"""What is known of a file of a tenant, and what can be wrong with a file."""

import re
from typing import Final

import msgspec

_ID: Final = re.compile(r"file-[0-9a-f]{32}")


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The file object of OpenAI's API, and what is on disk of it. Times are in seconds since the epoch.

    `expires_at`: None if the file is kept until it is deleted. `purpose`: `batch`, or `batch_output` of a result.
    """

    id: str
    object: str = "file"
    size: int = msgspec.field(name="bytes")
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def is_file_id(text: str) -> bool:
    """Whether it has the form of an id: an id that a client sends becomes a part of a path."""
    return _ID.fullmatch(text) is not None


class UnknownFileError(Exception):
    """The tenant has no such file."""


class TooManyFilesError(Exception):
    """`limit`: how many files a tenant may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the tenant has {limit} files")
        self.limit = limit


class FolderUnusableError(Exception):
    """The folder of the files cannot be read or written. The message is the system's, without a path."""
