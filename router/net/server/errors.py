"""Errors that the HTTP server reports by itself, without its application."""

from collections.abc import Callable


class ProtocolError(Exception):
    """A request or connection that the server refuses, or an application that failed to respond.

    - `status`: the HTTP status of the response.
    - `code`: the cause, from which the body is rendered: `invalid_http` (400), `request_timeout` (408),
      `too_many_requests` (429), `headers_too_large` (431), `internal_error` (500), `too_many_connections` (503).
    - `retry_after`: seconds for `Retry-After`, if the client may try again.
    """

    def __init__(self, status: int, code: str, *, retry_after: int | None = None) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.retry_after = retry_after


RenderError = Callable[[ProtocolError], bytes]
"""Renders the JSON body of the response to an error."""

ErrorHeaders = Callable[[list[tuple[bytes, bytes]]], bytes]
"""Gives further header lines for the response to an error, by the request's headers as far as they have arrived."""
