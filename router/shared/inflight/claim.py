"""The claim: the string in Redis that says which process generates an entry."""

from typing import Final

import msgspec

from router.shared.cache.purges import BEGINNING, PurgePosition

LEASE_DURATION: Final = 2.0
"""Seconds after which a claim expires unless it is renewed, and after which a silent leader counts as lost."""


_MAX_POSITION: Final = 41  # characters: two numbers of 64 bits


class Claim(msgspec.Struct, frozen=True):
    """A claim's value.

    `flight_id` names the in-flight request, `digest` is that of the request; `purge_position` is the last record of the
    purge log that the process knew when the generation began.
    """

    process_id: str
    flight_id: str
    digest: str
    purge_position: PurgePosition = BEGINNING

    def encode(self) -> str:
        return encode_claim(self.process_id, self.flight_id, self.digest, self.purge_position)

    @classmethod
    def decode(cls, value: object) -> "Claim | None":
        """None for a value that is not a claim, or a claim of another version."""
        parts = value.decode("ascii", "replace").split(":") if isinstance(value, bytes) else []
        if len(parts) != 4:
            return None
        milliseconds, _, number = parts[3].partition("-")
        if not (milliseconds.isdecimal() and number.isdecimal() and len(parts[3]) <= _MAX_POSITION):
            return None
        return cls(parts[0], parts[1], parts[2], (int(milliseconds), int(number)))


def encode_claim(process_id: str, flight_id: str, digest: str, purge_position: PurgePosition) -> str:
    return f"{process_id}:{flight_id}:{digest}:{purge_position[0]}-{purge_position[1]}"


def process_channel(process_id: str) -> str:
    """The channel on which a process receives the ids of its in-flight requests that other processes follow."""
    return f"rh:1:process:{process_id}"
