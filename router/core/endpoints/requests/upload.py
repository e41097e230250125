"""Requests with a file: parsed from a form, and made into the form that an engine gets."""

import re
from typing import Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, FileUpload, InferenceRequest
from router.core.endpoints.requests.form_data import FormData, parse_form
from router.core.endpoints.requests.request import MAX_MODEL_NAME, too_long_model_error, wrong_type_error
from router.core.endpoints.requests.request_fields import missing_field_error
from router.core.resilience.timeouts import DEFAULT_ANSWER_TOKENS
from router.errors import bad_request

# Speech takes at least 2 KB a second, compressed at 16 kbit/s, and has at most 4 tokens a second.
_BYTES_PER_SPOKEN_TOKEN: Final = 500

_MEDIA_TYPE: Final = re.compile(
    rb"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}(; ?[a-z-]{1,32}=[a-z0-9-]{1,32})?", re.IGNORECASE
)


def parse_upload(endpoint: Endpoint, body: bytes, content_type: bytes) -> InferenceRequest:
    """Parses a form. Unknown fields are accepted. Raises ApiError (400, 415)."""
    form = parse_form(body, content_type)
    texts = form.texts()
    try:
        # FastAPI, and so vLLM, takes an empty field for one that is missing.
        known = msgspec.convert({n: text for n, text in texts.items() if text}, endpoint.fields_type, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_type_error(error) from None
    model = known.model or ""
    if len(model) > MAX_MODEL_NAME:
        raise too_long_model_error()
    assert isinstance(endpoint.input, FileUpload)
    file = form.find(endpoint.input.field)
    if file is None:
        raise missing_field_error(endpoint.input.field)
    if file.filename is None:
        raise bad_request(f"`{file.name}` must be a file, with a filename.", param=file.name)
    return InferenceRequest(
        endpoint=endpoint,
        fields=dict(texts),
        model=model,
        stream=bool(known.stream) and endpoint.streaming is not None,
        include_usage=False,  # the client asks the engine for it, in a field of its own
        temperature=known.temperature,
        seed=known.seed,
        max_tokens=None,
        body=body,
        form=form,
    )


def engine_form(form: FormData, served_model: str) -> bytes:
    """The form that an engine gets: the client's, with the engine's name of the model."""
    return form.encode({"model": served_model.encode()})


def longest_answer(form: FormData) -> int:
    """Tokens that the transcript of a file may have; a generous estimate, for a timeout."""
    return max(DEFAULT_ANSWER_TOKENS, len(form.body) // _BYTES_PER_SPOKEN_TOKEN)


def media_type(header: bytes | None) -> str | None:
    """An engine's Content-Type as the client gets it; None for JSON, and for one that is missing or unusual."""
    if header is None or _MEDIA_TYPE.fullmatch(header) is None or header.lower().startswith(b"application/json"):
        return None
    return header.decode("ascii")
