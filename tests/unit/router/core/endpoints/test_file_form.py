"""A form with one large file, read while it arrives."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.requests.file_form import MAX_FIELD, MAX_PARTS, FileForm
from router.errors import ApiError

CONTENT = b'{"a": 1}\r\n--x\r\n{"b": 2}\r\n'
TYPE = b"multipart/form-data; boundary=x-1"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = f'; filename="{filename}"' if filename is not None else ""
    return f'--x-1\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"


FILE = part("file", CONTENT, "a.jsonl")
END = b"--x-1--\r\n"


def read(body: bytes, cuts: list[int] | None = None, content_type: bytes = TYPE) -> tuple[FileForm, bytes]:
    form = FileForm(content_type, "file")
    ends = sorted({cut % (len(body) + 1) for cut in cuts or []})
    pieces = [form.feed(body[start:end]) for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]
    form.end()
    return form, b"".join(pieces)


def test_a_form_of_httpx_is_read() -> None:
    data = {"purpose": "batch", "expires_after[anchor]": "created_at"}
    request = httpx.Request("POST", "http://x", data=data, files={"file": ("ä.jsonl", CONTENT)})
    form, content = read(request.read(), content_type=request.headers["content-type"].encode())
    assert content == CONTENT
    assert form.fields == data
    assert form.filename is not None
    assert form.filename.decode() == "ä.jsonl"


@given(st.lists(st.integers(0, 400), max_size=8))
def test_it_does_not_matter_how_the_form_is_cut(cuts: list[int]) -> None:
    form, content = read(part("purpose", b"batch") + FILE + part("other", b"1") + END, cuts)
    assert (content, form.fields, form.filename) == (CONTENT, {"purpose": "batch", "other": "1"}, b"a.jsonl")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (END, "`file` is missing: the file."),
        (part("purpose", b"batch") + END, "`file` is missing: the file."),
        (FILE, "The body is not a valid multipart form: it is incomplete."),
        (FILE[:-20], "it is incomplete"),
        (b"nothing", "its boundaries or the headers of its parts are not as RFC 7578 has them"),
        (FILE + FILE + END, "`file` is in the form twice."),
        (part("purpose", b"a") + part("purpose", b"b") + FILE + END, "`purpose` is in the form twice."),
        (part("file", CONTENT) + END, "`file` must be a file, with a filename."),
        (FILE + part("other", b"x", "b") + END, "`other` is a file; the only file is `file`."),
        (part("purpose", b"x" * (MAX_FIELD + 1)) + FILE + END, f"`purpose` has more than {MAX_FIELD} bytes."),
        (part("purpose", b"\xff") + FILE + END, "`purpose` is not UTF-8."),
        (b"".join(part(f"p{n}", b"") for n in range(MAX_PARTS)) + FILE + END, f"more than {MAX_PARTS} parts"),
        (b"--x-1\r\nX-Other: 1\r\n\r\n\r\n" + END, "a part has no Content-Disposition"),
        (b"--x-1\r\nX-Other: " + b"x" * 10_000 + b"\r\n\r\n\r\n" + END, "The body is not a valid multipart form"),
        (part("a/b", b"x") + END, "a part has no Content-Disposition"),
    ],
)
def test_another_form_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(body)
    assert refused.value.status == 400
    assert message in refused.value.message


def test_another_content_type_is_refused() -> None:
    for content_type in (b"", b"application/json", b"multipart/form-data"):
        with pytest.raises(ApiError) as refused:
            FileForm(content_type, "file")
        assert refused.value.status == 415


def test_a_malformed_form_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApiError):
        read(b"nothing")
    assert caplog.records == []
