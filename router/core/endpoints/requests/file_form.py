"""A form (multipart/form-data, RFC 7578) with one large file, read while it arrives: the file is not held."""

import logging
from typing import Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError

from router.core.endpoints.requests.form_data import (
    MAX_PART_HEAD,
    malformed_form,
    parse_boundary,
    parse_disposition,
)
from router.errors import bad_request

MAX_PARTS: Final = 16
"""Parts of such a form."""

MAX_FIELD: Final = 1024
"""Bytes of a part that is no file."""

MAX_OVERHEAD: Final = MAX_PARTS * (2 * MAX_PART_HEAD + MAX_FIELD)
"""Bytes that a form may have beside its file."""


class FileForm:
    """A form, fed in pieces of any size.

    - `feed` returns those bytes of the file that are among the next ones of the form.
    - `fields`: the values of the other parts that have ended; those with an unknown name, too.
    - `filename`: of the file; None before its part has begun.
    - `feed` and `end` raise ApiError (400) for a form that is malformed, over a limit, has a field twice, a file with
      another name than `file_field`, or none.
    """

    def __init__(self, content_type: bytes, file_field: str) -> None:
        """Raises ApiError (415) if `content_type` is not that of a form."""
        self.fields: dict[str, str] = {}
        self.filename: bytes | None = None
        self._file_field = file_field
        self._parts = 0
        self._has_ended = False
        self._head_size = 0  # of the part, without colons and ends of lines
        self._header = b""
        self._value = b""
        self._disposition: bytes | None = None
        self._name = ""
        self._in_file = False
        self._text = b""
        self._file_pieces: list[bytes] = []
        boundary = parse_boundary(content_type)
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_header_name,
                "on_header_value": self._add_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end_form,
            },
        )
        # It logs a line for each malformed form of a client: here, to nobody.
        self._parser.logger = logging.Logger("forms", logging.CRITICAL)  # noqa: LOG001 - one that no handler has

    def feed(self, data: bytes) -> bytes:
        try:
            self._parser.write(data)
        except FormParserError:
            raise malformed_form("its boundaries or the headers of its parts are not as RFC 7578 has them") from None
        pieces, self._file_pieces = self._file_pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self) -> None:
        """To be called at the end of the body."""
        if not self._has_ended:
            raise malformed_form("it is incomplete")
        if self.filename is None:
            raise bad_request(f"`{self._file_field}` is missing: the file.", param=self._file_field)

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise bad_request(f"The form has more than {MAX_PARTS} parts.", code="too_many_parts")
        self._header = self._value = self._text = b""
        self._disposition = None
        self._head_size = 0

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_head(end - start)
        self._header += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_head(end - start)
        self._value += data[start:end]

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_PART_HEAD:
            raise malformed_form("the headers of a part are too long")

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            if self._disposition is not None:
                raise malformed_form("a part has a header twice")
            self._disposition = self._value.strip(b" \t")
        self._header = self._value = b""

    def _end_headers(self) -> None:
        self._name, filename = parse_disposition(self._disposition or b"")
        self._in_file = self._name == self._file_field
        if self._name in self.fields or (self._in_file and self.filename is not None):
            raise bad_request(f"`{self._name}` is in the form twice.", param=self._name, code="invalid_form")
        if self._in_file and filename is None:
            raise bad_request(f"`{self._name}` must be a file, with a filename.", param=self._name)
        if not self._in_file and filename is not None:
            raise bad_request(
                f"`{self._name}` is a file; the only file is `{self._file_field}`.",
                param=self._name,
                code="invalid_form",
            )
        if self._in_file:
            self.filename = filename

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._file_pieces.append(data[start:end])
            return
        if len(self._text) + end - start > MAX_FIELD:
            raise bad_request(f"`{self._name}` has more than {MAX_FIELD} bytes.", param=self._name)
        self._text += data[start:end]

    def _end_part(self) -> None:
        if self._in_file:
            return
        try:
            self.fields[self._name] = self._text.decode()
        except UnicodeDecodeError:
            raise bad_request(f"`{self._name}` is not UTF-8.", param=self._name) from None

    def _end_form(self) -> None:
        self._has_ended = True
