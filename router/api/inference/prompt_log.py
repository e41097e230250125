"""Prompts and answers in the log: those of a sample of the requests, cut, and only if the configuration asks for them.

Endpoints are wrapped only where prompts are logged, so this costs nothing otherwise. A sampled request passes through
objects that note its bytes; the texts are extracted after its response.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from router.api.access.auth import Authenticator
from router.core.cache.key import ContextMarkers
from router.core.cache.key_derivation import split_parts
from router.core.endpoints.endpoint import EncodedInput, Endpoint, InferenceRequest, ScoredInput, TokenizedInput
from router.core.endpoints.recording.answer_text import answer_text
from router.core.endpoints.recording.stream_text import stream_text
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.errors import ApiError
from router.net.server.client_connection import CLIENT_EXTENSION, AsgiReceive, ClientConnection
from router.settings import Settings
from router.telemetry.log_output import with_facts

PROMPT_LOGGER: Final = "roundhouse.prompts"

MAX_NOTED: Final = 1 << 20
"""Bytes of a request, and of a response, that are noted. The text of longer JSON is not logged."""

AsgiScope = Any
AsgiSend = Callable[[Any], Awaitable[None]]
AsgiEndpoint = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

log = logging.getLogger(PROMPT_LOGGER)


def with_prompt_log(
    settings: Settings,
    auth: Authenticator,
    endpoints: Mapping[str, AsgiEndpoint],
    random: Callable[[], float] = random.random,
) -> Mapping[str, AsgiEndpoint]:
    """The endpoints by path, which log prompts if the settings ask for it; else they are returned as they are.

    `random` returns numbers from 0 up to 1.
    """
    if not settings.router.log_prompts:
        return endpoints
    # An upload has no text to log.
    logging_endpoints = {
        path: _PromptLoggingEndpoint(ENDPOINT_BY_PATH[path], endpoint, auth, settings, random)
        for path, endpoint in endpoints.items()
        if path in ENDPOINT_BY_PATH
    }
    return {**endpoints, **logging_endpoints}


def prompt_log_warning(settings: Settings) -> str | None:
    """What operators and tenants have to know about the settings; None if no prompt is logged."""
    router = settings.router
    if not router.log_prompts:
        return None
    silent = [tenant.name for tenant in settings.tenant if not tenant.log_prompts]
    exception = f", but none of the tenants {', '.join(silent)}" if silent else ""
    return (
        f"PROMPTS AND ANSWERS ARE LOGGED as {PROMPT_LOGGER} (router.log_prompts): of {100 * router.log_prompts:g} % of "
        f"all requests, up to {router.log_prompt_chars} characters of each{exception}"
    )


class _PromptLoggingEndpoint:
    """An endpoint with one line for each sampled request.

    - Nothing is logged of a tenant that has opted out, nor of a request without a valid key.
    - A response is what it would be without this. What is noted of it is bounded.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        application: AsgiEndpoint,
        auth: Authenticator,
        settings: Settings,
        random: Callable[[], float],
    ) -> None:
        self._endpoint = endpoint
        self._application = application
        self._auth = auth
        self._share = settings.router.log_prompts
        self._max_chars = settings.router.log_prompt_chars
        self._silent_tenants = frozenset(tenant.name for tenant in settings.tenant if not tenant.log_prompts)
        self._markers = ContextMarkers(settings.cache.context_open, settings.cache.context_close)
        self._random = random

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        tenant = self._sampled_tenant(scope)
        if tenant is None:
            await self._application(scope, receive, send)
            return
        request, response = _NotedBytes(), _NotedBytes()
        client = _NotingClient(scope["extensions"][CLIENT_EXTENSION], response)

        async def receive_noted() -> Any:
            message = await receive()
            request.add(message.get("body", b""))
            return message

        async def send_noted(message: Any) -> None:
            response.add(message.get("body", b""))
            await send(message)

        extensions = {**scope["extensions"], CLIENT_EXTENSION: client}
        try:
            await self._application({**scope, "extensions": extensions}, receive_noted, send_noted)
        finally:
            self._write(tenant, client, request.data, response.data)

    def _sampled_tenant(self, scope: AsgiScope) -> str | None:
        if self._random() >= self._share:
            return None
        try:
            tenant = self._auth.authenticate(scope["headers"], allow_x_api_key=self._endpoint.accepts_x_api_key).tenant
        except ApiError:
            return None
        return None if tenant in self._silent_tenants else tenant

    def _write(self, tenant: str, client: "_NotingClient", request: bytes, response: bytes) -> None:
        answer = ""
        if client.status == 200:
            is_stream = client.header(b"content-type").startswith("text/event-stream")
            answer = stream_text(response, self._max_chars + 1) if is_stream else answer_text(response) or ""
        facts = {
            "request": client.header(b"x-request-id"),
            "tenant": tenant,
            "path": self._endpoint.path,
            "status": client.status,
            "cache": client.header(b"x-cache") or "NONE",
            "prompt": self._cut(self._prompt_text(request)),
            "answer": self._cut(answer),
        }
        log.info("", extra=with_facts(facts))

    def _prompt_text(self, body: bytes) -> str:
        try:
            request = parse_request(self._endpoint, body)
            return _encoded_input(request) or split_parts(request, self._markers).question
        except ApiError:
            return ""

    def _cut(self, text: str) -> str:
        return text if len(text) <= self._max_chars else text[: self._max_chars] + "…"


def _encoded_input(request: InferenceRequest) -> str:
    """What is encoded, tokenized or scored (the queries), as JSON; empty at other endpoints."""
    layout = request.endpoint.input
    names: tuple[str | None, ...] = ()
    if isinstance(layout, EncodedInput | TokenizedInput):
        names = layout.field, layout.messages_field
    elif isinstance(layout, ScoredInput):
        names = layout.query_fields
    name = next((name for name in names if name in request.fields), None)
    return msgspec.json.encode(request.fields[name]).decode() if name is not None else ""


class _NotedBytes:
    """The first MAX_NOTED bytes of a body."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._room = MAX_NOTED

    def add(self, data: bytes) -> None:
        if data and self._room:
            self._parts.append(data[: self._room])
            self._room -= len(self._parts[-1])

    @property
    def data(self) -> bytes:
        return b"".join(self._parts)


class _NotingClient:
    """A client's connection that notes what is sent to the client; see ClientConnection."""

    def __init__(self, client: ClientConnection, response: _NotedBytes) -> None:
        self._client = client
        self._response = response
        self._headers = b""
        self.status = 0
        self.cancel_on_disconnect = client.cancel_on_disconnect
        self.ignore_disconnect = client.ignore_disconnect
        self.can_break_off = client.can_break_off
        self.break_off = client.break_off

    @property
    def cancelled_by_disconnect(self) -> bool:
        return self._client.cancelled_by_disconnect

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        self.status, self._headers = status, header_bytes
        self._client.start_response(status, header_bytes, content_length)

    def try_send(self, data: bytes) -> bool:
        sent = self._client.try_send(data)
        if sent:  # else it is sent with `send`
            self._response.add(data)
        return sent

    def header(self, name: bytes) -> str:
        """A header's value; empty without it."""
        for line in self._headers.split(b"\r\n"):
            found, _, value = line.partition(b": ")
            if found.lower() == name:
                return value.decode("latin-1")
        return ""
