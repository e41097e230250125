"""/classify and /pooling of a pooling engine; what an input gets is a function of the model and the input."""

import base64
import math
import struct
from random import Random
from typing import Any

from xxhash import xxh3_64_intdigest

from engines.simulator.endpoints.apis import response_id
from engines.simulator.endpoints.json_endpoint import Headers, JsonApi, JsonRequest
from engines.simulator.formats.frames import usage_object
from engines.simulator.rejections import Rejection, bad_request, prompt_too_long
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.prompts import Prompt, chat_prompt, completion_prompts
from engines.simulator.validation import fields
from engines.simulator.validation.checks import check_cache_salt

VECTOR_SIZE = 64
"""Numbers in a vector of an engine for embeddings."""

_FIELDS = {
    "model": "text", "input": "prompt", "messages": "messages", "user": "text", "use_activation": "boolean",
    "truncate_prompt_tokens": "integer", "add_special_tokens": "boolean", "cache_salt": "text", "task": "text",
    "encoding_format": "text", "dimensions": "integer",
}  # fmt: skip
_REMOVED_TASKS = {
    "score": "`score` task was removed; use `classify` instead.",
    "encode": "`encode` task was removed; use `token_embed` or `token_classify` instead.",
}


def classify_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    body, prompts, sequences = _parse(body, settings, ("input", "messages"))

    def make_body(headers: Headers, now: float) -> dict[str, Any]:
        data = []
        for index, prompt in enumerate(prompts):
            probabilities = _classes(prompt, settings)
            label = f"LABEL_{max(range(len(probabilities)), key=probabilities.__getitem__)}"
            data.append({"index": index, "label": label, "probs": probabilities, "num_classes": len(probabilities)})
        return pooled_envelope("classify", data, sequences, settings, headers, now)

    return JsonRequest(_text(prompts), sequences, make_body)


def pooling_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    if (message := _REMOVED_TASKS.get(str(body.get("task")))) is not None:
        raise bad_request(message, "task")
    body, prompts, sequences = _parse(body, settings, ("input", "messages", "data"))
    if body.get("dimensions") is not None:
        raise bad_request("dimensions is currently not supported", "dimensions")
    _check_task(body.get("task"), settings)
    as_base64 = body.get("encoding_format") == "base64"

    def make_body(headers: Headers, now: float) -> dict[str, Any]:
        data = [
            {"index": index, "object": "pooling", "data": _packed(numbers) if as_base64 else numbers}
            for index, numbers in enumerate(_vector(prompt, settings) for prompt in prompts)
        ]
        return pooled_envelope("pooling", data, sequences, settings, headers, now)

    return JsonRequest(_text(prompts), sequences, make_body)


def pooled_envelope(
    kind: str, data: list[dict[str, Any]], sequences: tuple[int, ...], settings: SimulatorSettings, headers: Headers,
    now: float,
) -> dict[str, Any]:  # fmt: skip
    return {
        "id": response_id(kind, headers),
        "object": "list",
        "created": int(now),
        "model": settings.model_names[0],
        "data": data,
        "usage": usage_object(sum(sequences), 0, prompt_tokens_details=None, completion_tokens_details=None),
    }


def check_pooled_model(body: fields.Body, settings: SimulatorSettings) -> None:
    """Raises Rejection."""
    check_cache_salt(body.get("cache_salt"))
    if body.get("model") and body["model"] not in settings.model_names:
        raise Rejection(404, f"The model `{body['model']}` does not exist.", kind="NotFoundError")


def hashed_number(settings: SimulatorSettings, text: str, low: float = 0.0) -> float:
    """A number from `low` to 1, the same in every process, rounded to 32 bits as an engine's."""
    return _rounded([_random(settings, text).uniform(low, 1.0)])[0]


def _parse(
    body: fields.Body, settings: SimulatorSettings, names: tuple[str, ...]
) -> tuple[fields.Body, tuple[Prompt, ...], tuple[int, ...]]:
    if not any(name in body for name in names):
        raise fields.missing_fields(body, *names)
    body = fields.coerce(body, _FIELDS)
    check_pooled_model(body, settings)
    chat = "messages" in body and "input" not in body
    prompts = (chat_prompt(body["messages"], None, None),) if chat else completion_prompts(body["input"])
    if not prompts or (body.get("input") == []):
        raise bad_request("You must pass at least one prompt")
    limit = body.get("truncate_prompt_tokens")
    counts = [len(prompt.tokens) for prompt in prompts]
    if limit is None and max(counts) > settings.context_length:
        raise prompt_too_long(settings.context_length)
    return body, prompts, tuple(counts if limit is None or limit < 0 else [min(count, limit) for count in counts])


def _check_task(task: str | None, settings: SimulatorSettings) -> None:
    own = settings.pooling_task
    if task in (None, own):
        return
    supported = [own, f"token_{own}"]
    if task in supported:
        raise bad_request(f"Try switching the model's pooling_task via --pooler-config.task {task}.", "task")
    raise bad_request(f"Unsupported task: {task!r} Supported tasks: {supported}", "task")


def _classes(prompt: Prompt, settings: SimulatorSettings) -> list[float]:
    if settings.num_labels == 1:
        return [hashed_number(settings, prompt.text)]
    numbers = _random(settings, prompt.text)
    weights = [math.exp(numbers.gauss()) for _ in range(settings.num_labels)]
    return _rounded([weight / sum(weights) for weight in weights])


def _vector(prompt: Prompt, settings: SimulatorSettings) -> list[float]:
    if settings.pooling_task == "classify":
        return _classes(prompt, settings)
    numbers = _random(settings, prompt.text)
    vector = [numbers.gauss() for _ in range(VECTOR_SIZE)]
    return _rounded([number / math.hypot(*vector) for number in vector])


def _random(settings: SimulatorSettings, text: str) -> Random:
    seed_text = f"{settings.model}:{settings.seed}:{text}"
    return Random(xxh3_64_intdigest(seed_text.encode("utf-8", "surrogatepass")))  # noqa: S311 - must be reproducible


def _packed(numbers: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def _rounded(numbers: list[float]) -> list[float]:
    return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers)))


def _text(prompts: tuple[Prompt, ...]) -> str:
    return "\n".join(prompt.text for prompt in prompts)


POOLING_API = JsonApi("/pooling", pooling_request)
CLASSIFY_API = JsonApi("/classify", classify_request)
