"""How long a client may take."""

import msgspec


class ClientTimeouts(msgspec.Struct, frozen=True):
    """In seconds: for a request to arrive whole, and for a client to take what was sent to it; see settings.Router."""

    receive: float = 30.0
    send: float = 60.0
