"""/v1/embeddings of a vLLM pooling engine; a vector is a function of the model and the text."""

import asyncio
import base64
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from engines.simulator.control.faults import FaultPlan, FaultRegistry
from engines.simulator.control.generation_log import GenerationLog, name_to_floats
from engines.simulator.control.request_log import RequestLog
from engines.simulator.endpoints.apis import response_id
from engines.simulator.endpoints.endpoint import SimulatorEndpoint, apply_fault, drop_before_headers
from engines.simulator.engine.core import EngineFailedError
from engines.simulator.formats.frames import usage_object
from engines.simulator.rejections import Rejection, bad_request, engine_failed, prompt_too_long
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.prompts import Prompt, chat_prompt, completion_prompts
from engines.simulator.validation import fields
from engines.simulator.wire import ConnectionDroppedError, ResponseWriter

MAX_DIMENSIONS = 64
"""Numbers in a vector; `dimensions` reduces them, as for a Matryoshka model."""

# For a body with neither field, vLLM reports one missing field for each variant of the request that it tries.
_MISSING_FIELDS = ("input", "messages", "messages", "messages", "input", "messages", "input")
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
    as_base64: bool
    """Return vectors as the base64 of little-endian 32-bit floats."""

    @property
    def text(self) -> str:
        """Everything the client wrote, in which markers are searched."""
        return "\n".join(prompt.text for prompt in self.prompts)


class EmbeddingEndpoint(SimulatorEndpoint[EmbeddingRequest]):
    """An ASGI app for /v1/embeddings. `now` gives Unix seconds."""

    def __init__(
        self,
        settings: SimulatorSettings,
        fault_registry: FaultRegistry,
        request_log: RequestLog,
        generation_log: GenerationLog | None,
        now: Callable[[], float],
    ) -> None:
        super().__init__(fault_registry, request_log, generation_log)
        self._settings = settings
        self._now = now

    def _parse_request(self, body: fields.Body) -> EmbeddingRequest:
        settings = self._settings
        chat = "messages" in body and "input" not in body
        if not chat and "input" not in body:
            raise fields.missing_fields(body, *_MISSING_FIELDS)
        body = fields.coerce(body, _FIELDS)
        if body.get("model") and body["model"] not in settings.model_names:
            raise Rejection(404, f"The model `{body['model']}` does not exist.", kind="NotFoundError")
        prompts = (chat_prompt(body["messages"], None, None),) if chat else completion_prompts(body["input"])
        if not prompts:
            raise bad_request("You must pass at least one prompt")
        if any(len(prompt.tokens) > settings.context_length for prompt in prompts):
            raise prompt_too_long(settings.context_length)
        dimensions = MAX_DIMENSIONS if body.get("dimensions") is None else body["dimensions"]
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            name = settings.model_names[0]
            raise bad_request(
                f"Model {name!r} only supports dimensions in range [1, {MAX_DIMENSIONS}], got {dimensions}."
            )
        return EmbeddingRequest(prompts, dimensions, body.get("encoding_format") == "base64")

    async def _answer(
        self, request: EmbeddingRequest, plan: FaultPlan, writer: ResponseWriter, headers: dict[str, str]
    ) -> None:
        try:
            with self._request_log.track_generation():
                drop_before_headers(plan)
                await asyncio.sleep(plan.ttft or 0)
                await apply_fault(plan, 0, writer)
                await writer.send_json(200, b'{"data":[{' if plan.malformed else self._body(request, plan, headers))
        except ConnectionDroppedError:
            await writer.drop(reset=plan.drop_reset)
        except EngineFailedError as failure:
            await writer.send_error(engine_failed(str(failure), failure.code))

    def _body(self, request: EmbeddingRequest, plan: FaultPlan, headers: dict[str, str]) -> object:
        count = sum(len(prompt.tokens) for prompt in request.prompts)
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        return {
            "id": response_id("embd", headers),
            "object": "list",
            "created": int(self._now()),
            "model": self._settings.model_names[0],
            "data": [
                {"index": index, "object": "embedding", "embedding": self._vector(prompt, request, plan.generation)}
                for index, prompt in enumerate(request.prompts)
            ],
            "usage": usage_object(count, 0, **details),
        }

    def _vector(self, prompt: Prompt, request: EmbeddingRequest, generation: str | None) -> list[float] | str:
        seed_text = f"{self._settings.model}:{self._settings.seed}:{prompt.text}"
        numbers = Random(xxh3_64_intdigest(seed_text.encode("utf-8", "surrogatepass")))  # noqa: S311 - must be reproducible
        vector = [numbers.gauss() for _ in range(MAX_DIMENSIONS)][: request.dimensions]
        length = math.hypot(*vector)
        vector = [number / length for number in vector]
        if generation is not None:
            vector = [*name_to_floats(generation), *vector][: request.dimensions]
        # Both encodings round to 32-bit floats, as an engine does.
        packed = struct.pack(f"<{request.dimensions}f", *vector)
        if request.as_base64:
            return base64.b64encode(packed).decode()
        return list(struct.unpack(f"<{request.dimensions}f", packed))
