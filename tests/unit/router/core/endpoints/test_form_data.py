"""Forms: what is accepted, what is refused, and what an engine gets."""

import email.policy
import time
from email.parser import BytesParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.requests.form_data import MAX_PART_HEAD, MAX_PARTS, MAX_TEXT, FormData, parse_form
from router.errors import ApiError

BOUNDARY = b"boundary"
TYPE = b"multipart/form-data; boundary=boundary"
DISPOSITION = b"Content-Disposition: form-data; "


def part(disposition: bytes, value: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in (DISPOSITION + disposition, *headers))
    return b"--boundary\r\n%b\r\n%b\r\n" % (lines, value)


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--boundary--\r\n"


MODEL = part(b'name="model"', b"whisper")
FILE = part(b'name="file"; filename="a.wav"', b"\x00\r\n--bound\r\n", b"Content-Type: audio/wav")


def read_independently(form: bytes, content_type: bytes) -> dict[str, tuple[str | None, bytes]]:
    """By Python's parser for mail: filename and value by name."""
    message = BytesParser(policy=email.policy.HTTP).parsebytes(b"Content-Type: " + content_type + b"\r\n\r\n" + form)
    read: dict[str, tuple[str | None, bytes]] = {}
    for one in message.iter_parts():
        value = one.get_payload(decode=True)
        assert isinstance(value, bytes)
        read[str(one.get_param("name", header="content-disposition"))] = (one.get_filename(), value)
    return read


def refusal(form: bytes, content_type: bytes = TYPE) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_form(form, content_type).texts()
    return caught.value


def parsed_or_refused(form: bytes) -> FormData | None:
    try:
        parsed = parse_form(form, TYPE)
        parsed.texts()
    except ApiError:
        return None
    return parsed


def test_texts_and_files_are_told_apart() -> None:
    form = parse_form(body(MODEL, FILE), TYPE)
    assert form.texts() == {"model": "whisper"}
    file = form.find("file")
    assert file is not None
    assert (file.filename, form.body[file.start : file.end]) == (b"a.wav", b"\x00\r\n--bound\r\n")


def test_a_name_that_ends_in_brackets_may_come_several_times() -> None:
    name = b'name="timestamp_granularities[]"'
    form = parse_form(body(MODEL, part(name, b"word"), part(name, b"segment")), TYPE)
    assert form.texts()["timestamp_granularities[]"] == ["word", "segment"]
    encoded = parse_form(form.encode({}), form.content_type)
    assert encoded.texts() == form.texts()


def test_an_engine_gets_other_values_and_the_same_file() -> None:
    form = parse_form(body(MODEL, FILE), TYPE)
    sent = form.encode({"model": b"openai/whisper"})
    assert read_independently(sent, form.content_type) == {
        "model": (None, b"openai/whisper"),
        "file": ("a.wav", b"\x00\r\n--bound\r\n"),
    }


@pytest.mark.parametrize(
    "form",
    [
        body(MODEL, part(b'name="a"', b"--boundary\r\n" + DISPOSITION + b'name="b"\r\n\r\nx')),
        body(MODEL, part(b'name="a"', b"--boundary--")),
        body(part(b'name="a"', b"--boundaryless"), MODEL),
        body(MODEL, part(b'name="a"', b"x", b"--boundary: y")),
        body(MODEL, b"--boundary\r\n" + part(b'name="a"', b"x")),
    ],
)
def test_a_part_that_begins_with_its_boundary_is_refused_as_parsers_read_it_differently(form: bytes) -> None:
    error = refusal(form)
    assert (error.status, error.code) == (400, "invalid_form")
    assert "a part begins with its boundary" in error.body().decode()


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=boundary", b"boundary"),
        (b'Multipart/Form-Data;boundary="boundary"', b"boundary"),
        (b"multipart/form-data; charset=utf-8; boundary=boundary", b"boundary"),
        (b"multipart/form-data; boundary=boundary; charset=UTF-8", b"boundary"),
        (b"multipart/form-data; boundary=----WebKitFormBoundaryAbC0", b"----WebKitFormBoundaryAbC0"),
        (b'multipart/form-data; boundary="a:b/c"', b"a:b/c"),
    ],
)
def test_the_boundary_is_read_from_the_header(content_type: bytes, boundary: bytes) -> None:
    form = parse_form(body(MODEL).replace(BOUNDARY, boundary), content_type)
    assert (form.boundary, form.texts()) == (boundary, {"model": "whisper"})
    assert parse_form(form.encode({}), form.content_type).texts() == form.texts()


@pytest.mark.parametrize(
    "content_type",
    [
        b"",
        b"application/json",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=" + b"x" * 71,
        b"multipart/form-data; boundary=a b",
        b"multipart/form-data; boundary=a,multipart/form-data; boundary=b",
        b"multipart/form-data; boundary=a; boundary=b",
        b"multipart/form-data; boundary=a charset=utf-8",
        b"multipart/form-data; boundary=a; charset=utf-8; boundary=b",
        b"multipart/mixed; boundary=a",
    ],
)
def test_another_content_type_is_415(content_type: bytes) -> None:
    error = refusal(body(MODEL), content_type)
    assert (error.status, error.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "disposition",
    [
        b'name="file"; filename="a.wav"',
        b"name=file; filename=a.wav",
        b"name=file; filename=a.wav; filename*=utf-8''a.wav",
        b'name="file"; filename="\xc3\xbc \\" ; name=model.wav"',
        b"name=\"file\"; filename*=UTF-8''%C3%BC.wav",
        b'name="file"; filename=""',
        b'name="file" ;filename="C:\\\\a.wav"',
    ],
)
def test_the_ways_in_which_clients_name_a_file_are_understood(disposition: bytes) -> None:
    form = parse_form(body(MODEL, part(disposition, b"RIFF")), TYPE)
    file = form.find("file")
    assert file is not None
    assert file.filename is not None
    read = read_independently(form.encode({}), form.content_type)
    assert set(read) == {"model", "file"}
    assert read["file"][1] == b"RIFF"


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"--boundary",
        b"--boundary--",
        b"preamble\r\n" + body(MODEL),
        body(MODEL).replace(b"\r\n", b"\n"),
        body(MODEL, MODEL),
        body(part(b'name="model"; name="file"', b"x")),
        body(part(b"name*=utf-8''model", b"x")),
        body(part(b'filename="a"; name="model"', b"x")),
        body(part(b'name="model"; filename="a"; filename="b"', b"x")),
        body(part(b'name="mo\\"del"', b"x")),
        body(part(b'name=""', b"x")),
        body(part(b'name="%b"' % (b"x" * 65), b"x")),
        body(part(b'name="model"', b"x", b"Content-Transfer-Encoding: base64")),
        body(part(b'name="model"', b"x", b"Content-Disposition: form-data; name=file")),
        body(part(b'name="model"', b"x", b" folded: y")).replace(b" folded:", b" folded"),
        body(b"--boundary\r\n\r\nx\r\n"),
        body(b"--boundary\r\nContent-Disposition: attachment; name=model\r\n\r\nx\r\n"),
        body(MODEL, b"--boundaryX\r\n" + MODEL),
        MODEL + b"--boundary\r\n",
        body(part(b'name="model"', b"\xff\xfe")),
        body(part(b'name="model"', b"x" * (MAX_TEXT + 1))),
        body(part(b'name="model"', b"x", b"x-long: " + b"y" * MAX_PART_HEAD)),
        body(*(part(b'name="f%d"' % number, b"x") for number in range(MAX_PARTS + 1))),
    ],
)
def test_anything_that_two_parsers_could_read_differently_is_400(form: bytes) -> None:
    if form == b"--boundary--":  # an empty form is a form; what it lacks is said later
        assert parse_form(form, TYPE).parts == ()
    else:
        assert refusal(form).status == 400


VALUES = st.binary(max_size=40) | st.lists(st.sampled_from([b"\r\n", b"--", b"bound", b"\r", b"-"])).map(b"".join)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), VALUES, max_size=5))
def test_every_value_is_kept_byte_for_byte(values: dict[str, bytes]) -> None:
    files = [part(b'name="%b"; filename="x"' % name.encode(), value) for name, value in values.items()]
    form = parse_form(body(*files), TYPE)
    encoded = form.encode({})
    again = parse_form(encoded, form.content_type)
    for read in (form, again):
        assert {one.name: read.body[one.start : one.end] for one in read.parts} == values


@given(st.integers(0, len(body(MODEL, FILE)) - 1))
def test_a_form_that_is_cut_anywhere_is_refused(length: int) -> None:
    cut = body(MODEL, FILE)[:length]
    if cut.removesuffix(b"\r").endswith(b"--boundary--"):
        assert len(parse_form(cut, TYPE).parts) == 2
    else:
        assert refusal(cut).status == 400


@given(st.data())
def test_a_damaged_form_is_refused_or_read_as_an_engine_reads_it(data: st.DataObject) -> None:
    damaged = bytearray(body(MODEL, FILE))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from(b'\r\n"\\;=: -ab\x00\xff'))
    form = parsed_or_refused(bytes(damaged))
    if form is None:
        return
    read = read_independently(form.encode({}), form.content_type)
    assert {name: value for name, (_, value) in read.items()} == {
        one.name: form.body[one.start : one.end] for one in form.parts
    }


def test_the_time_grows_with_the_size_alone() -> None:
    hostile = [b"\r\n--boundar" * 200_000, b"\r\n\r\n" * 500_000, b"-" * 2_000_000, b"\r" * 2_000_000]
    started_at = time.process_time()
    for value in hostile:
        parse_form(body(MODEL, part(b'name="file"; filename="x"', value)), TYPE)
    with pytest.raises(ApiError):
        parse_form(b"--boundary\r\n" * 200_000, TYPE)
    assert time.process_time() - started_at < 2  # milliseconds, where a quadratic search takes hours
