"""How long a client may take to send and to receive."""

import msgspec


class ClientTimeouts(msgspec.Struct, frozen=True):
    """Seconds for a request to arrive completely, and for a client to read a response; see settings.RouterSettings."""

    receive: float = 30.0
    send: float = 60.0
