"""Requests to one engine: is it the right one, does it answer, is it idle, and what does it answer to a prompt?"""

import time
from typing import Final

import httpx
import msgspec

from engines.switch.request import SwitchFailedError
from engines.switch.shadow_report import Answer
from router.core.endpoints.recording.answer_text import answer_text

_CHECK_TIMEOUT: Final = 60.0  # seconds; the first completion of an engine may compile kernels
_PROBE_TIMEOUT: Final = 5.0
_RUNNING_METRICS: Final = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


class EngineHttp:
    """The engine at `url`; `served_model` is the engine's name of the model."""

    def __init__(self, client: httpx.AsyncClient, url: str, served_model: str) -> None:
        self._client = client
        self._url = url
        self.served_model = served_model

    async def check(self) -> None:
        """Raises SwitchFailedError if it does not serve the model, or cannot answer a request."""
        names = await self._served_models()
        if self.served_model not in names:
            raise SwitchFailedError(f"{self._url} serves {', '.join(names) or 'no model'}, not {self.served_model}")
        path, body = "/v1/completions", {"model": self.served_model, "prompt": "Hello", "max_tokens": 1}
        status, content = await self._post(path, msgspec.json.encode(body))
        if status == httpx.codes.NOT_FOUND:  # a model for embeddings generates no text
            path, body = "/v1/embeddings", {"model": self.served_model, "input": "Hello"}
            status, content = await self._post(path, msgspec.json.encode(body))
        if status != httpx.codes.OK:
            raise SwitchFailedError(f"{self._url}{path} replies {status}: {content[:200].decode('utf-8', 'replace')}")

    async def is_healthy(self) -> bool:
        try:
            return (await self._client.get(f"{self._url}/health", timeout=_PROBE_TIMEOUT)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def running_requests(self) -> float | None:
        """Running and waiting requests; None if it does not answer or does not report them."""
        try:
            page = (await self._client.get(f"{self._url}/metrics", timeout=_PROBE_TIMEOUT)).text
        except httpx.HTTPError:
            return None
        return parse_running_requests(page)

    async def accepts(self, path: str, body: bytes, timeout: float) -> bool:
        """Whether it answers a request with 200."""
        try:
            return (await self._post(path, body, timeout))[0] == httpx.codes.OK
        except SwitchFailedError:
            return False

    async def answer(self, path: str, body: bytes, timeout: float) -> Answer:
        """Never raises for what the engine does."""
        started = time.monotonic()
        try:
            status, content = await self._post(path, body, timeout)
        except SwitchFailedError as error:
            return Answer(error=str(error), seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        if status != httpx.codes.OK:
            return Answer(error=f"status {status}", seconds=seconds)
        return Answer(text=answer_text(content) or "", tokens=_completion_tokens(content), seconds=seconds)

    async def _served_models(self) -> list[str]:
        url = f"{self._url}/v1/models"
        try:
            page = (await self._client.get(url, timeout=_PROBE_TIMEOUT)).content
            return [model.id for model in msgspec.json.decode(page, type=_ModelList).data]
        except (httpx.HTTPError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SwitchFailedError(f"{url}: {error!r}") from None

    async def _post(self, path: str, body: bytes, timeout: float = _CHECK_TIMEOUT) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        try:
            response = await self._client.post(f"{self._url}{path}", content=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise SwitchFailedError(f"{self._url}{path}: {type(error).__name__}") from None
        return response.status_code, response.content


def parse_running_requests(page: str) -> float | None:
    """Running and waiting requests on a page of vLLM's metrics, over all engine cores; None if it has none."""
    values = []
    for line in page.splitlines():
        if line.startswith(_RUNNING_METRICS):
            try:
                values.append(float(line.rpartition(" ")[2]))
            except ValueError:
                return None
    return sum(values) if values else None


def _completion_tokens(content: bytes) -> int | None:
    try:
        answer = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    match answer:
        case {"usage": {"completion_tokens": int(tokens)}} | {"usage": {"output_tokens": int(tokens)}}:
            return tokens
    return None
