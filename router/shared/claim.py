"""A process' word that it generates an entry, as it stands in Redis beside the entry."""

from typing import Final

import msgspec

from router.shared.purges import BEGINNING, Mark

LEASE: Final = 2.0
"""Seconds for which a claim stands without being renewed, and for which a leader that gives no sign is waited for."""


class Claim(msgspec.Struct, frozen=True):
    """A process' word that it generates an entry.

    `flight` is the generation's id, `digest` the request's; `since` is how far the purges were known when it began.
    """

    process: str
    flight: str
    digest: str
    since: Mark = BEGINNING

    def text(self) -> str:
        return claim_text(self.process, self.flight, self.digest, self.since)

    @classmethod
    def read(cls, text: object) -> "Claim | None":
        """None for what is no claim, or one of another version."""
        words = text.decode("ascii", "replace").split(":") if isinstance(text, bytes) else []
        if len(words) != 4:
            return None
        milliseconds, _, number = words[3].partition("-")
        if not (milliseconds.isdecimal() and number.isdecimal()):
            return None
        return cls(words[0], words[1], words[2], (int(milliseconds), int(number)))


def claim_text(process: str, flight: str, digest: str, since: Mark) -> str:
    """A claim as it stands in Redis."""
    return f"{process}:{flight}:{digest}:{since[0]}-{since[1]}"


def channel_of(process: str) -> str:
    """On which channel a process is told that one of its flights is wanted."""
    return f"rh:1:process:{process}"
