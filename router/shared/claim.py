"""A process' word that it generates an entry, as it stands in Redis beside the entry."""

from typing import Final

import msgspec

from router.shared.purges import BEGINNING, PurgePosition

LEASE_DURATION: Final = 2.0
"""Seconds for which a claim stands without being renewed, and for which a leader that gives no sign is waited for."""


class Claim(msgspec.Struct, frozen=True):
    """A process' word that it generates an entry.

    `flight` is the generation's id, `digest` the request's; `since` is how far the purges were known when it began.
    """

    process_id: str
    flight_id: str
    digest: str
    purge_position: PurgePosition = BEGINNING

    def encode(self) -> str:
        return encode_claim(self.process_id, self.flight_id, self.digest, self.purge_position)

    @classmethod
    def decode(cls, value: object) -> "Claim | None":
        """None for what is no claim, or one of another version."""
        words = value.decode("ascii", "replace").split(":") if isinstance(value, bytes) else []
        if len(words) != 4:
            return None
        milliseconds, _, number = words[3].partition("-")
        if not (milliseconds.isdecimal() and number.isdecimal()):
            return None
        return cls(words[0], words[1], words[2], (int(milliseconds), int(number)))


def encode_claim(process_id: str, flight_id: str, digest: str, purge_position: PurgePosition) -> str:
    """A claim as it stands in Redis."""
    return f"{process_id}:{flight_id}:{digest}:{purge_position[0]}-{purge_position[1]}"


def process_channel(process_id: str) -> str:
    """On which channel a process is told that one of its flights is wanted."""
    return f"rh:1:process:{process_id}"
