"""A line of a batch's output file, or of its error file.

Source: https://platform.openai.com/docs/api-reference/batch/request-output
"""

from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode

_ID_PREFIX: Final = "batch_req_"
_NUMBER_DIGITS: Final = 8
_RESPONSE: Final = b',"response":{"status_code":'
_UNICODE_BREAKS: Final = tuple((each.encode(), b"\\u%04x" % ord(each)) for each in "\x85\u2028\u2029")
_CACHED: Final = (b"HIT", b"STALE", b"COALESCED")


def line_id(batch_id: str, number: int) -> str:
    """The id of a result, which ends with the number of its line in the input file."""
    return f"{_ID_PREFIX}{batch_id.removeprefix('batch_')}{number:0{_NUMBER_DIGITS}x}"


def number_of(line: bytes) -> int | None:
    """The number of the input line that a result is of; None for what is no result."""
    start = line.find(b'"', len(b'{"id":"'))
    try:
        return int(line[start - _NUMBER_DIGITS : start], 16)
    except ValueError:
        return None


def response_line(id_: str, custom_id: str, status: int, request_id: str, cache: str, body: bytes) -> bytes:
    """`id_`: of the line. `cache`: X-Cache of the response. `body`: JSON, of the response or of an error."""
    # JSON has line breaks only between its tokens, so the value stays the same.
    body = body.replace(b"\r", b" ").replace(b"\n", b" ")
    return _one_line(b'{"id":%b,"custom_id":%b%b%d,"cache":%b,"request_id":%b,"body":%b},"error":null}\n' % (
        _encode(id_), _encode(custom_id), _RESPONSE, status, _encode(cache), _encode(request_id), body,
    ))  # fmt: skip


def is_cached(line: bytes) -> bool:
    """Whether the result came from the cache, or from the generation of another request."""
    # Its quotation marks would be escaped in a `custom_id`.
    _, _, rest = line.partition(_RESPONSE)
    return rest[:80].partition(b'"cache":"')[2].startswith(_CACHED)


def error_line(id_: str, custom_id: str | None, number: int, code: str, message: str) -> bytes:
    """A line without a response. `number`: of the line in the input file, from 1 on."""
    error: dict[str, Any] = {"code": code, "message": message, "line": number}
    return _one_line(_encode({"id": id_, "custom_id": custom_id, "response": None, "error": error}) + b"\n")


def _one_line(line: bytes) -> bytes:
    """Without U+0085, U+2028 and U+2029, where `str.splitlines` and `iter_lines` of OpenAI's client end a line."""
    if line.isascii():
        return line
    for character, escape in _UNICODE_BREAKS:
        line = line.replace(character, escape)
    return line
