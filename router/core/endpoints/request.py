"""From the bytes of a request to what the router decides on, and back to the bytes that an engine gets.

A request is decoded twice, both times by msgspec: into plain values, from which the key is made, and (only on its way
to an engine) into its top-level fields, which are passed on byte for byte but for the two that the router sets.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from router.core.endpoints.cache_salt import combine_salts
from router.core.json_values import is_deeper, is_integer, normalize_numbers
from router.core.types import Endpoint
from router.errors import ApiError, bad_request

MAX_MODEL_NAME: Final = 256
"""Characters; a longer name cannot be one of the configuration's and is not looked at."""


MAX_CONTAINERS: Final = 250_000
"""Objects and lists of a body, braces and brackets within texts among them, since those are counted without reading it.

Each costs far more time to read than a byte of text does, and an event loop has one thread.
"""

MAX_DEPTH: Final = 100
"""Objects and lists within one another, the body itself included.

A JSON schema takes 2 of them for each of its own levels, and no API here has a use for more than some dozen. Whatever
recurses over a request needs two or three calls for each level, so that the bound is far below what Python allows.
"""

MAX_FLOATS: Final = 250_000
"""Numbers with a fraction or an exponent in a body over _LARGE; each is read, and written twice for the key."""

MAX_FIELDS: Final = 1000
"""Top-level fields of a body; OpenAI's and vLLM's together are about a hundred."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


EngineId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}\Z")]
"""An id that a client may give to an engine: no address, which some connectors of vLLM read out of such ids."""


class _CommonFields(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    request_id: EngineId | None = None

    def validate(self) -> ApiError | None:
        """What is missing, or cannot be had, that types do not show."""
        return None

    def max_answer_tokens(self) -> int | None:
        """The most tokens of the answer."""
        return self.max_tokens


class _InputMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Chat(_CommonFields):
    messages: list[_InputMessage] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return None if self.messages else _no_messages_error()

    def max_answer_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class _Completions(_CommonFields):
    prompt: str | list[Any] | None = None

    def validate(self) -> ApiError | None:
        return None if self.prompt else bad_request("`prompt` must be given.", param="prompt")


class _Embeddings(_CommonFields):
    input: str | list[Any] | None = None
    messages: list[Any] | None = None  # vLLM's, in place of `input`
    dimensions: int | None = None
    encoding_format: str | None = None

    def validate(self) -> ApiError | None:
        if self.input in (None, []) and not self.messages:
            return bad_request("`input` must be given.", param="input")
        if self.encoding_format not in (None, "float", "base64"):
            # vLLM's `bytes` and `bytes_only` are answered with a body that is no JSON.
            return bad_request("`encoding_format` must be `float` or `base64`.", param="encoding_format")
        return None


class _InputItem(msgspec.Struct):
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None


class _Responses(_CommonFields):
    input: str | list[_InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return bad_request("`input` must be given.", param="input") if self.input in (None, []) else None

    def max_answer_tokens(self) -> int | None:
        return self.max_output_tokens


class _Messages(_CommonFields, kw_only=True):
    max_tokens: int
    messages: list[_InputMessage] = msgspec.field(default_factory=list)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return None if self.messages else _no_messages_error()


def _no_messages_error() -> ApiError:
    return bad_request("`messages` must hold at least one message.", param="messages")


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request whose known fields have the right types.

    - `fields`: the whole body as plain values; equal JSON gives equal fields, however its numbers were spelt.
    - `model`: what the client asked for: a public name, an alias or `auto`.
    - `stream`: whether the answer is to come as events; embeddings never do: vLLM passes over the field there.
    - `include_usage`: whether the client wants the usage event at the end of its stream.
    - `max_tokens`: how many tokens the answer may have, where the client said so, whatever the endpoint calls it.
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
        return self.temperature == 0 or self.seed is not None or self.endpoint is Endpoint.EMBEDDINGS


_LARGE_BODY: Final = 64 * 1024
"""Bytes of a body beyond which its floats are read without a call of Python for each of them."""


def _number(text: str) -> int | float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is out of range")
    return int(value) if is_integer(value) else value


_decode = msgspec.json.Decoder(float_hook=_number).decode
_decode_large = msgspec.json.Decoder().decode
_split_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_FIELDS_BY_ENDPOINT: Final[dict[Endpoint, type[_CommonFields]]] = {
    Endpoint.CHAT: _Chat,
    Endpoint.COMPLETIONS: _Completions,
    Endpoint.EMBEDDINGS: _Embeddings,
    Endpoint.RESPONSES: _Responses,
    Endpoint.MESSAGES: _Messages,
}
_ABSENT: Final = object()
_USAGE_OPTION: Final = b',"stream_options":{"include_usage":true}}'
_USAGE_OPTION_ENDPOINTS: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)  # the other streams tell it unasked


def parse_request(endpoint: Endpoint, body: bytes) -> InferenceRequest:
    """Reads a request's body.

    Raises ApiError with status 400 for what is not a JSON object, for a known field of a wrong type and for a missing
    one; `param` names the field as OpenAI does (`messages[0].role`). Fields that nobody here knows are let through.
    """
    if len(body) > MAX_CONTAINERS and body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        raise bad_request(f"The body has more than {MAX_CONTAINERS} objects and lists.", code="too_many_parts")
    is_large = len(body) > _LARGE_BODY
    try:
        fields = _decode_large(body) if is_large else _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep_error() from None
    if not isinstance(fields, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    # To look at all containers costs less than to count braces and brackets: most of a body is text.
    if is_deeper(fields, MAX_DEPTH):
        raise _too_deep_error()
    if is_large and not normalize_numbers(fields, MAX_FLOATS):
        raise bad_request(f"The body has more than {MAX_FLOATS} fractional numbers.", code="too_many_parts")
    if len(fields) > MAX_FIELDS:
        raise bad_request(f"The body has more than {MAX_FIELDS} fields.", code="too_many_parts")
    try:
        known = msgspec.convert(fields, _FIELDS_BY_ENDPOINT[endpoint])
    except msgspec.ValidationError as error:
        raise _wrong_type_error(error) from None
    if (lacking := known.validate()) is not None:
        raise lacking
    if not 0 < len(known.model) <= MAX_MODEL_NAME:
        raise bad_request(f"`model` must have 1 to {MAX_MODEL_NAME} characters.", param="model")
    return InferenceRequest(
        endpoint=endpoint,
        fields=fields,
        model=known.model,
        stream=bool(known.stream) and endpoint is not Endpoint.EMBEDDINGS,
        include_usage=bool(known.stream and known.stream_options and known.stream_options.include_usage),
        temperature=known.temperature,
        seed=known.seed,
        max_tokens=known.max_answer_tokens(),
        body=body,
    )


def _too_deep_error() -> ApiError:
    return bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")


def without_fields(request: InferenceRequest, names: Iterable[str]) -> InferenceRequest:
    """The same request without some of its top-level fields that `Request` has no attribute for."""
    left_out = set(names)
    rest = {name: value for name, value in _split_fields(request.body).items() if name not in left_out}
    fields = {name: value for name, value in request.fields.items() if name not in left_out}
    return msgspec.structs.replace(request, fields=fields, body=_encode(rest))


def _wrong_type_error(error: msgspec.ValidationError) -> ApiError:
    """`Expected `bool`, got `str` - at `$.stream``, or `... missing required field `model``, as the client knows it."""
    text = str(error)
    what, _, place = text.partition(" - at `")
    path = place.removesuffix("`").removeprefix("$").removeprefix(".")
    if "missing required field" in what:
        field = what.rpartition("field ")[2].strip("`")
        path = f"{path}.{field}" if path else field
        return bad_request(f"`{path}` is missing.", param=path)
    return bad_request(f"`{path}`: {what[0].lower()}{what[1:]}.", param=path or None)


def engine_body(request: InferenceRequest, served_model: str, salt: str | None = None) -> bytes:
    """The body that goes to an engine: the client's fields as they stand, with the model as the engine calls it.

    A stream of OpenAI's older endpoints always asks for the usage event, which is how tokens are counted; whoever did
    not ask for it never sees it. The events of /v1/responses and /v1/messages tell the usage in any case.

    `salt`: the `cache_salt` of the tenant, where tenants are kept apart; see router.core.endpoints.cache_salt. Raises
    ApiError for a `cache_salt` of the client's that cannot be one.
    """
    ask = request.stream and request.endpoint in _USAGE_OPTION_ENDPOINTS
    own = request.fields.get("cache_salt", _ABSENT) if salt is not None else _ABSENT
    if salt is not None and own is not _ABSENT:
        salt = combine_salts(salt, own)
    if request.model == served_model and own is _ABSENT:
        asks = ask and not request.include_usage
        if not asks and salt is None:
            return request.body
        if not asks or "stream_options" not in request.fields:
            # Added behind the last field, which costs far less than to take the body apart.
            more = b',"cache_salt":"%b"' % salt.encode() if salt is not None else b""
            return request.body.rstrip()[:-1] + more + (_USAGE_OPTION if asks else b"}")
    fields = _split_fields(request.body)
    fields["model"] = msgspec.Raw(_encode(served_model))
    if ask:
        options = request.fields.get("stream_options") or {}
        fields["stream_options"] = msgspec.Raw(_encode({**options, "include_usage": True}))
    if salt is not None:
        fields["cache_salt"] = msgspec.Raw(_encode(salt))
    return _encode(fields)
