"""The first commands on a new connection to Redis: authentication, protocol and database."""

import ssl
from typing import Final

import msgspec

from router.net.redis.commands import Command

CLIENT_NAME: Final = "roundhouse"


class Handshake(msgspec.Struct, frozen=True):
    """What a connection needs to log in to a server."""

    username: str | None
    password: str | None
    db: int
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return "<Handshake>"  # a traceback must show no password

    def commands(self) -> list[Command]:
        auth = ("AUTH", self.username or "default", self.password or "") if self.username or self.password else ()
        # HELLO 3 switches to RESP3, in which pushes come over the same connection as replies.
        hello: Command = ("HELLO", 3, *auth, "SETNAME", CLIENT_NAME)
        return [hello, ("SELECT", self.db)] if self.db else [hello]
