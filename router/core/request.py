"""From the bytes of a request to what the router decides on, and back to the bytes that an engine gets.

A request is decoded twice, both times by msgspec: into plain values, from which the key is made, and (only on its way
to an engine) into its top-level fields, which are passed on byte for byte but for the two that the router sets.
"""

from typing import Any, Final

import msgspec

from router.core.types import Endpoint
from router.errors import ApiError, bad_request

MAX_MODEL_NAME: Final = 256
"""Characters; a longer name cannot be one of the configuration's and is not looked at."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Common(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Chat(_Common):
    messages: list[_Message] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None
    documents: list[dict[str, Any]] | None = None


class _Completions(_Common):
    prompt: str | list[Any] | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose known fields have the right types.

    - `fields`: the whole body as plain values; equal JSON gives equal fields, however its numbers were spelt.
    - `model`: what the client asked for: a public name, an alias or `auto`.
    - `include_usage`: whether the client wants the usage event at the end of its stream.
    - `max_tokens`: how many tokens the answer may have, where the client said so.
    - `body`: the bytes as they came.
    """

    endpoint: Endpoint
    fields: dict[str, Any]
    model: str
    stream: bool
    include_usage: bool
    temperature: float | None
    seed: int | None
    max_tokens: int | None
    body: bytes

    @property
    def deterministic(self) -> bool:
        """Whether the same request must give the same answer. An omitted temperature is 1, not 0."""
        return self.temperature == 0 or self.seed is not None


def _number(text: str) -> int | float:
    # 1, 1.0 and 1e0 are one number, so they must become one value. Beyond 2^53 a float no longer tells which integer.
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is out of range")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_decode = msgspec.json.Decoder(float_hook=_number).decode
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_TYPES: Final[dict[Endpoint, type[_Common]]] = {Endpoint.CHAT: _Chat, Endpoint.COMPLETIONS: _Completions}


def parse(endpoint: Endpoint, body: bytes) -> Request:
    """Reads a request's body.

    Raises ApiError with status 400 for what is not a JSON object, for a known field of a wrong type and for a missing
    one; `param` names the field as OpenAI does (`messages[0].role`). Fields that nobody here knows are let through.
    """
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    try:
        known = msgspec.convert(fields, _TYPES[endpoint])
    except msgspec.ValidationError as error:
        raise _wrong(error) from None
    max_tokens = known.max_tokens
    if isinstance(known, _Chat):
        if not known.messages:
            raise bad_request("`messages` must hold at least one message.", param="messages")
        max_tokens = known.max_completion_tokens or max_tokens
    elif isinstance(known, _Completions) and not known.prompt:
        raise bad_request("`prompt` must be given.", param="prompt")
    if not 0 < len(known.model) <= MAX_MODEL_NAME:
        raise bad_request(f"`model` must have 1 to {MAX_MODEL_NAME} characters.", param="model")
    return Request(
        endpoint=endpoint,
        fields=fields,
        model=known.model,
        stream=bool(known.stream),
        include_usage=bool(known.stream and known.stream_options and known.stream_options.include_usage),
        temperature=known.temperature,
        seed=known.seed,
        max_tokens=max_tokens,
        body=body,
    )


def _wrong(error: msgspec.ValidationError) -> ApiError:
    """`Expected `bool`, got `str` - at `$.stream``, or `... missing required field `model``, as the client knows it."""
    text = str(error)
    what, _, place = text.partition(" - at `")
    path = place.removesuffix("`").removeprefix("$").removeprefix(".")
    if "missing required field" in what:
        field = what.rpartition("field ")[2].strip("`")
        path = f"{path}.{field}" if path else field
        return bad_request(f"`{path}` is missing.", param=path)
    return bad_request(f"`{path}`: {what[0].lower()}{what[1:]}.", param=path or None)


def for_engine(request: Request, served_model: str) -> bytes:
    """The body that goes to an engine: the client's fields as they stand, with the model as the engine calls it.

    A stream always asks for the usage event, which is how tokens are counted; whoever did not ask for it never sees it.
    """
    if request.model == served_model and (not request.stream or request.include_usage):
        return request.body
    fields = _split(request.body)
    fields["model"] = msgspec.Raw(_encode(served_model))
    if request.stream:
        options = request.fields.get("stream_options") or {}
        fields["stream_options"] = msgspec.Raw(_encode({**options, "include_usage": True}))
    return _encode(fields)
