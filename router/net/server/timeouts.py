"""How long a client may take to send and to receive, and how long its connection may be idle."""

import msgspec


class ClientTimeouts(msgspec.Struct, frozen=True):
    """Seconds for a request to arrive completely, for a client to read a response, and between two requests.

    See settings.RouterSettings.
    """

    receive: float = 30.0
    send: float = 60.0
    keep_alive: float = 75.0
