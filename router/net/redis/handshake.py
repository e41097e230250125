"""What a Redis server wants of those who connect."""

import ssl
from typing import Final

import msgspec

from router.net.redis.commands import Command

CLIENT_NAME: Final = "roundhouse"


class Handshake(msgspec.Struct, frozen=True):
    """What a server wants of those who connect."""

    username: str | None
    password: str | None
    db: int
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return "<Login>"  # a traceback must show no password

    def commands(self) -> list[Command]:
        """What is said first on a new connection."""
        known = ("AUTH", self.username or "default", self.password or "") if self.username or self.password else ()
        hello: Command = ("HELLO", 3, *known, "SETNAME", CLIENT_NAME)
        return [hello, ("SELECT", self.db)] if self.db else [hello]
