"""Requests of tenants that no engine has to do with, with the limits, the log and the memory of those that generate."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from router.api.access.auth import Authenticator
from router.api.inference.endpoint import ClientDisconnectedError, choose_request_id, error_headers
from router.api.inference.streamed_body import StreamedBody, StreamedBodyResponse
from router.core.endpoints.endpoint import Endpoint
from router.core.quota.rate_limit import rate_limit_headers
from router.errors import ApiError, internal_error
from router.flow.body_budget import BodyAllocation
from router.flow.exchange import Exchange
from router.shared.quota.rate_limits import RequestLimits, Reservation
from router.telemetry.telemetry import Telemetry


class TenantRequest(NamedTuple):
    """`memory`: for what is read to answer it."""

    http: Request
    tenant: str
    memory: BodyAllocation


Answer = Callable[[TenantRequest], Awaitable[bytes | StreamedBody]]
"""The body of the response: JSON, or one with headers of its own. Raises ApiError and ClientDisconnectedError."""


class TenantRequests:
    """- Each request counts for the limits of its tenant, and is counted and logged, also one that is refused.
    - Every response has `x-request-id`.
    - Its memory is released when it ends, however it ends. One with a StreamedBody ends with its last piece.
    """

    def __init__(
        self, auth: Authenticator, limits: RequestLimits, telemetry: Telemetry,
        new_allocation: Callable[[], BodyAllocation],
    ) -> None:  # fmt: skip
        """For the arguments see InferenceEndpoint."""
        self._auth = auth
        self._limits = limits
        self._telemetry = telemetry
        self._new_allocation = new_allocation

    def handler(self, endpoint: Endpoint, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """`endpoint`: what the log calls it, and the form of its errors."""

        async def handle(request: Request) -> Response:
            exchange = Exchange(
                endpoint=endpoint,
                request_id=choose_request_id(request.scope["headers"]),
                started_at=time.perf_counter(),
            )
            memory = self._new_allocation()
            headers = [(b"x-request-id", exchange.request_id.encode("ascii"))]
            reservation: Reservation | None = None
            is_streamed = False

            def end() -> None:
                memory.release()
                if reservation is not None:
                    reservation.release()
                self._telemetry.record(exchange, time.perf_counter())

            try:
                exchange.tenant, exchange.key_id = self._auth.authenticate(request.scope["headers"])
                if self._limits.has_limits(exchange.tenant):
                    reservation = await self._limits.reserve(exchange.tenant)
                    headers += rate_limit_headers(reservation.quota, reservation.status)
                    reservation.raise_if_exceeded()
                body = await answer(TenantRequest(request, exchange.tenant, memory))
                exchange.status = 200
                is_streamed = not isinstance(body, bytes)
            except ApiError as error:
                _note(exchange, error)
                headers += error_headers(error)
                body = endpoint.errors.body(error, exchange.request_id)
            except ClientDisconnectedError:
                exchange.outcome, body = "left", b""
            except asyncio.CancelledError:
                exchange.outcome = "left"
                raise
            except Exception:
                _note(exchange, internal_error())
                raise  # the server logs it, and answers
            finally:
                if not is_streamed:
                    end()
            response = (
                Response(body, exchange.status, {"cache-control": "no-store"}, media_type="application/json")
                if isinstance(body, bytes)
                else StreamedBodyResponse(body, exchange, end)
            )
            response.raw_headers += headers
            return response

        return handle


def _note(exchange: Exchange, error: ApiError) -> None:
    exchange.status, exchange.outcome, exchange.error_reason = error.status, "refused", error.reason
