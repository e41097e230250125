"""/v1/embeddings as a pooling engine of vLLM's answers it; a vector is a function of the model and the text."""

import asyncio
import base64
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from engines.simulator import fields
from engines.simulator.apis import named
from engines.simulator.endpoint import Endpoint, before_headers, strike
from engines.simulator.engine import EngineFailedError
from engines.simulator.faults import FaultBook, Script
from engines.simulator.frames import usage
from engines.simulator.generation_log import GenerationLog, as_numbers
from engines.simulator.prompts import Prompt, chat_prompt, completion_prompts
from engines.simulator.rejections import Rejection, engine_failed, prompt_too_long, refused
from engines.simulator.request_log import Ledger
from engines.simulator.settings import Settings
from engines.simulator.wire import DroppedError, Wire

SIZE = 64
"""Numbers in a vector; fewer where `dimensions` says so, as of a model trained for that."""

# The fields that are missing from each of the forms which vLLM tries for a request that has neither.
_ASKED_FOR = ("input", "messages", "messages", "messages", "input", "messages", "input")
_FIELDS = {
    "model": "text",
    "input": "prompt",
    "messages": "messages",
    "dimensions": "integer",
    "encoding_format": "text",
    "user": "text",
}


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One accepted request."""

    prompts: tuple[Prompt, ...]
    dimensions: int
    encoded: bool
    """Whether vectors are wanted as the base64 of little-endian 32-bit floats."""

    @property
    def text(self) -> str:
        """All that the client wrote, for markers."""
        return "\n".join(prompt.text for prompt in self.prompts)


class EmbeddingEndpoint(Endpoint[EmbeddingRequest]):
    """An ASGI app for /v1/embeddings. `now` gives Unix seconds."""

    def __init__(
        self, settings: Settings, book: FaultBook, ledger: Ledger, log: GenerationLog | None, now: Callable[[], float]
    ) -> None:
        super().__init__(book, ledger, log)
        self._settings = settings
        self._now = now

    def _read(self, body: fields.Body) -> EmbeddingRequest:
        settings = self._settings
        chat = "messages" in body and "input" not in body
        if not chat and "input" not in body:
            raise fields.missing(body, *_ASKED_FOR)
        body = fields.coerce(body, _FIELDS)
        if body.get("model") and body["model"] not in settings.names:
            raise Rejection(404, f"The model `{body['model']}` does not exist.", kind="NotFoundError")
        prompts = (chat_prompt(body["messages"], None, None),) if chat else completion_prompts(body["input"])
        if not prompts:
            raise refused("You must pass at least one prompt")
        if any(len(prompt.tokens) > settings.context for prompt in prompts):
            raise prompt_too_long(settings.context)
        dimensions = SIZE if body.get("dimensions") is None else body["dimensions"]
        if not 1 <= dimensions <= SIZE:
            name = settings.names[0]
            raise refused(f"Model {name!r} only supports dimensions in range [1, {SIZE}], got {dimensions}.")
        return EmbeddingRequest(prompts, dimensions, body.get("encoding_format") == "base64")

    async def _answer(self, asked: EmbeddingRequest, plan: Script, wire: Wire, headers: dict[str, str]) -> None:
        try:
            with self._ledger.generation():
                before_headers(plan)
                await asyncio.sleep(plan.ttft or 0)
                await strike(plan, 0, wire)
                await wire.json(200, b'{"data":[{' if plan.malformed else self._body(asked, plan, headers))
        except DroppedError:
            await wire.drop(reset=plan.drop_reset)
        except EngineFailedError as failure:
            await wire.reject(engine_failed(str(failure), failure.code))

    def _body(self, asked: EmbeddingRequest, plan: Script, headers: dict[str, str]) -> object:
        count = sum(len(prompt.tokens) for prompt in asked.prompts)
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        return {
            "id": named("embd", headers),
            "object": "list",
            "created": int(self._now()),
            "model": self._settings.names[0],
            "data": [
                {"index": index, "object": "embedding", "embedding": self._vector(prompt, asked, plan.generation)}
                for index, prompt in enumerate(asked.prompts)
            ],
            "usage": usage(count, 0, **details),
        }

    def _vector(self, prompt: Prompt, asked: EmbeddingRequest, generation: str | None) -> list[float] | str:
        said = f"{self._settings.model}:{self._settings.seed}:{prompt.text}"
        numbers = Random(xxh3_64_intdigest(said.encode("utf-8", "surrogatepass")))  # noqa: S311 - the same every time
        vector = [numbers.gauss() for _ in range(SIZE)][: asked.dimensions]
        length = math.hypot(*vector)
        vector = [number / length for number in vector]
        if generation is not None:
            vector = [*as_numbers(generation), *vector][: asked.dimensions]
        packed = struct.pack(f"<{asked.dimensions}f", *vector)
        if asked.encoded:
            return base64.b64encode(packed).decode()
        return list(struct.unpack(f"<{asked.dimensions}f", packed))
