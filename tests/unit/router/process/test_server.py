"""What the server is given of the settings."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from router.net.server.connection import BoundedHttpProtocol
from router.process.server import make_server
from router.settings import parse


@pytest.mark.parametrize(("setting", "seconds"), [("", 75.0), ('keep_alive = "620s"', 620.0)])
async def test_an_idle_connection_of_a_client_stays_open_for_router_keep_alive(
    setting: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.process.server.limit_integer_digits", lambda: None)
    text = (
        f'[router]\n{setting}\n[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://127.0.0.1:1"\n'
    )
    server = make_server(parse(text, {}), MagicMock(), None, lambda _: None)
    server.config.load()
    protocol: Any = server.config.http_protocol_class
    connection = protocol(config=server.config, server_state=MagicMock(), app_state={})
    assert isinstance(connection, BoundedHttpProtocol)
    assert connection._timeouts.keep_alive == seconds
