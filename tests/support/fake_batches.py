"""A server with a router's files and batches, whose batch goes through the states of a test."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response

BATCH_ID: Final = "batch_1"
_FILE_FORM: Final = re.compile(rb'name="purpose"\r\n\r\nbatch\r\n.*filename="([^"]*)".*?\r\n\r\n(.*)\r\n--', re.DOTALL)


def batch_state(status: str, total: int = 0, completed: int = 0, failed: int = 0, **fields: Any) -> dict[str, Any]:
    counts = {"total": total, "completed": completed, "failed": failed}
    return {
        "id": BATCH_ID, "object": "batch", "status": status, "endpoint": "/v1/chat/completions", "created_at": 1,
        "input_file_id": "file-in", "completion_window": "24h", "request_counts": counts, **fields,
    }  # fmt: skip


def refusal(status: int, code: str | None, message: str) -> Response:
    return json_response({"error": {"message": message, "code": code}}, status)


class FakeBatches:
    """- Each look at the batch takes one of `states`; the last one stays. A Response among them is sent as it is.
    - `files`: by id, what is fetched. A list has one answer for each try.
    - `asked`: `METHOD /path` of each request; `created`: the bodies of new batches; `uploads`: names and contents.
    """

    def __init__(self, *states: dict[str, Any] | Response, files: Mapping[str, Any] | None = None) -> None:
        self.states = list(states)
        self.files = dict(files or {})
        self.asked: list[str] = []
        self.created: list[Any] = []
        self.uploads: list[tuple[str, bytes]] = []
        self.keys: set[str | None] = set()
        self.answers: dict[str, Response] = {}
        self.pages: Sequence[list[dict[str, Any]]] = []
        self.was_looked_at = asyncio.Event()
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeBatches"]:
        server = ScriptedEngine(script=self._answer)
        await server.start()
        self.url = server.url
        try:
            yield self
        finally:
            await server.die()

    async def _answer(self, request: Request) -> Response:
        asked = f"{request.method} {request.path}"
        self.asked.append(asked)
        self.keys.add(request.headers.get("authorization"))
        if (answer := self.answers.get(asked)) is not None:
            return answer
        match request.method, request.path.split("/")[2:]:
            case "POST", ["files"]:
                form = _FILE_FORM.search(request.body)
                assert form is not None
                self.uploads.append((form[1].decode(), form[2]))
                return json_response({"id": "file-in", "object": "file"})
            case "DELETE", ["files", id_]:
                return json_response({"id": id_, "object": "file", "deleted": True})
            case "GET", ["files", id_, "content"]:
                content = self.files[id_]
                found = content.pop(0) if isinstance(content, list) else content
                return found if isinstance(found, Response) else Response(found)
            case "POST", ["batches"]:
                self.created.append(msgspec.json.decode(request.body))
                return json_response(batch_state("validating"))
            case "GET", ["batches"]:
                return self._page(request)
            case "GET", ["batches", _]:
                self.was_looked_at.set()
                state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
                return state if isinstance(state, Response) else json_response(state)
            case "POST", ["batches", _, action]:
                status = {"cancel": "cancelling"}.get(action, "in_progress")
                return json_response(batch_state(status, 10, paused=action == "pause"))
        return refusal(404, "not_found", "There is no such page.")

    def _page(self, request: Request) -> Response:
        query = request.head.split(b" ")[1].decode()
        after = re.search(r"after=([^&]*)", query)
        number = 0 if after is None else int(after[1].removeprefix("page_")) + 1
        return json_response({"object": "list", "data": self.pages[number], "has_more": number + 1 < len(self.pages)})
