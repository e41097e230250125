"""multipart/form-data (RFC 7578), read with limits and written anew.

Theory. Two parsers can read one form differently: the router could see one `model`, and the engine another. So only a
narrow grammar is accepted, every part is written anew with the fewest headers, and no field may come twice unless its
name ends in `[]`. What is between two boundaries is never changed, and no accepted part contains the boundary.

The body is complete and bounded when it is parsed. Each search starts where the last one ended, so the time is linear.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from router.errors import ApiError, bad_request

MAX_PARTS: Final = 100
"""Parts of a form. vLLM's have some thirty fields."""

MAX_PART_HEAD: Final = 4096
"""Bytes of the headers of a part."""

MAX_TEXT: Final = 64 * 1024
"""Bytes of a part that is no file."""

_CHARSET: Final = rb"charset=\"?[a-z0-9-]+\"?[ \t]*"  # Java's clients send one, some before and some after the boundary
# RFC 2046, section 5.1.1, without the space, which no client uses.
_BOUNDARY: Final = re.compile(
    rb"multipart/form-data[ \t]*;[ \t]*(?:%(charset)b;[ \t]*)?"
    rb"boundary=(?:\"([0-9a-z'()+_,./:=?-]{1,70})\"|([0-9a-z'+_.-]{1,70}))[ \t]*(?:;[ \t]*(?:%(charset)b)?)?"
    % {b"charset": _CHARSET},
    re.IGNORECASE,
)
_NAME: Final = rb"[A-Za-z0-9_.\[\]-]{1,64}"
_DISPOSITION: Final = re.compile(
    rb"form-data[ \t]*;[ \t]*name=(?:\"(?P<quoted>%(name)b)\"|(?P<name>%(name)b))"
    rb"(?:[ \t]*;[ \t]*filename=(?:\"(?P<file>(?:[^\"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*)\""
    rb"|(?P<token>[^\x00-\x20\x7f\"\\;=]+)))?"
    rb"(?:[ \t]*;[ \t]*filename\*=utf-8'[a-z0-9-]*'(?P<encoded>[0-9a-z%%!#$&+.^_`|~-]+))?" % {b"name": _NAME},
    re.IGNORECASE,
)
_MEDIA_TYPE: Final = re.compile(rb"[!-~][ -~]{0,254}")
_TRANSPARENT_ENCODINGS: Final = (b"binary", b"8bit", b"7bit")


class FormPart(NamedTuple):
    """One part: the value is the body from `start` to `end`. `filename`: None if it is no file."""

    name: str
    filename: bytes | None
    content_type: bytes | None
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class FormData(NamedTuple):
    """A parsed form. `content_type`: for a body that `encode` returns."""

    body: bytes
    boundary: bytes
    parts: tuple[FormPart, ...]

    @property
    def content_type(self) -> bytes:
        is_token = re.fullmatch(rb"[0-9A-Za-z'+_.-]+", self.boundary) is not None
        return b"multipart/form-data; boundary=" + (self.boundary if is_token else b'"%b"' % self.boundary)

    def find(self, name: str) -> FormPart | None:
        return next((part for part in self.parts if part.name == name), None)

    def texts(self) -> dict[str, str | list[str]]:
        """The parts that are no files; a list for each name that ends in `[]`. Raises ApiError (400)."""
        texts: dict[str, str | list[str]] = {}
        for part in self.parts:
            if part.filename is not None:
                continue
            if part.size > MAX_TEXT:
                raise bad_request(f"`{part.name}` has more than {MAX_TEXT >> 10} KiB.", param=part.name)
            try:
                text = self.body[part.start : part.end].decode()
            except UnicodeDecodeError:
                raise bad_request(f"`{part.name}` is not UTF-8.", param=part.name) from None
            if part.name.endswith("[]"):
                earlier = texts.setdefault(part.name, [])
                assert isinstance(earlier, list)
                earlier.append(text)
            else:
                texts[part.name] = text
        return texts

    def encode(self, replaced: Mapping[str, bytes]) -> bytes:
        """The form with these values, in place of those with the same names. They must not contain the boundary."""
        pieces: list[bytes | memoryview] = []
        view = memoryview(self.body)  # a file is copied once, into the result
        for part in self.parts:
            pieces.append(b"--%b\r\n%b\r\n" % (self.boundary, _head(part)))
            pieces.append(replaced[part.name] if part.name in replaced else view[part.start : part.end])
            pieces.append(b"\r\n")
        for name in replaced.keys() - {part.name for part in self.parts}:
            added = FormPart(name, None, None, 0, 0)
            pieces += (b"--%b\r\n%b\r\n" % (self.boundary, _head(added)), replaced[name], b"\r\n")
        pieces.append(b"--%b--\r\n" % self.boundary)
        return b"".join(pieces)


def parse_form(body: bytes, content_type: bytes) -> FormData:
    """Raises ApiError: 415 for another content type, 400 for a form that is malformed or over a limit."""
    boundary = parse_boundary(content_type)
    return FormData(body, boundary, tuple(_parse_parts(body, boundary)))


def parse_boundary(content_type: bytes) -> bytes:
    """Raises ApiError (415)."""
    match = _BOUNDARY.fullmatch(content_type.strip())
    if match is None:
        message = "The body must be multipart/form-data, with a boundary in the header Content-Type."
        raise ApiError(415, message, code="unsupported_media_type")
    boundary: bytes = match[1] or match[2]
    return boundary


def parse_disposition(value: bytes) -> tuple[str, bytes | None]:
    """The name and the filename in a Content-Disposition; a part without a filename is no file. Raises ApiError."""
    match = _DISPOSITION.fullmatch(value)
    if match is None:
        raise malformed_form('a part has no Content-Disposition of the form `form-data; name="…"`')
    filename: bytes | None = next((found for group in ("file", "token", "encoded") if (found := match[group])), None)
    if filename is None and match["file"] is not None:
        filename = b""
    name: bytes = match["quoted"] or match["name"]
    return name.decode("ascii"), filename


def _parse_parts(body: bytes, boundary: bytes) -> list[FormPart]:
    delimiter = b"\r\n--" + boundary
    if not body.startswith(delimiter[2:]):
        raise malformed_form("it does not begin with its boundary")
    parts: list[FormPart] = []
    names: set[str] = set()
    at = len(delimiter) - 2
    while not body.startswith(b"--", at):
        if not body.startswith(b"\r\n", at):
            raise malformed_form("a boundary is not at the end of its line")
        if len(parts) == MAX_PARTS:
            raise bad_request(f"The form has more than {MAX_PARTS} parts.", code="too_many_parts")
        head_end = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD)
        if head_end < 0:
            raise malformed_form("the headers of a part are incomplete or too long")
        start = head_end + 4
        # From `at`, not from `start`: the end of the headers is also the beginning of a delimiter (RFC 2046, section
        # 5.1.1), so to one parser the part is empty, and to another one it begins with the boundary.
        end = body.find(delimiter, at)
        if end < 0:
            raise malformed_form("it is incomplete")
        if end < start:
            raise malformed_form("a part begins with its boundary, or has it in its headers")
        part = _parse_part(body[at + 2 : head_end], start, end)
        if part.name in names and not part.name.endswith("[]"):
            raise bad_request(f"`{part.name}` is in the form twice.", param=part.name, code="invalid_form")
        names.add(part.name)
        parts.append(part)
        at = end + len(delimiter)
    return parts


def _parse_part(head: bytes, start: int, end: int) -> FormPart:
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name in headers:
            raise malformed_form("a part has a header twice, or one without a colon")
        headers[name] = value.strip(b" \t")
    name_of_part, filename = parse_disposition(headers.get(b"content-disposition", b""))
    if headers.get(b"content-transfer-encoding", b"binary").lower() not in _TRANSPARENT_ENCODINGS:
        raise malformed_form("a part has a Content-Transfer-Encoding")
    media_type = headers.get(b"content-type")
    if media_type is not None and _MEDIA_TYPE.fullmatch(media_type) is None:
        media_type = None
    return FormPart(name_of_part, filename, media_type, start, end)


def _head(part: FormPart) -> bytes:
    """The headers of a part, as every parser reads them alike (RFC 7578, section 4.2: `%22` for a quotation mark)."""
    if part.filename is None:
        return b'Content-Disposition: form-data; name="%b"\r\n' % part.name.encode()
    filename = part.filename.replace(b'\\"', b"%22").replace(b"\\", b"%5C").replace(b'"', b"%22")
    head = b'Content-Disposition: form-data; name="%b"; filename="%b"\r\n' % (part.name.encode(), filename)
    return head + b"Content-Type: %b\r\n" % (part.content_type or b"application/octet-stream")


def malformed_form(what: str) -> ApiError:
    return bad_request(f"The body is not a valid multipart form: {what}.", code="invalid_form")
