"""Events that differ in nothing but a piece of text become one, before anything is decoded.

Theory. Most of a stream is the same event again and again with another piece of text in it. What stands before and
after the text is equal to the byte, so the JSON answer takes it once in any case, and takes the pieces joined. To join
the pieces as they are written is to do the same in one step for a run of events instead of for each.

That holds only where the text is all that would be joined: its place is `choices[0].delta.content`, `choices[0].text`,
or `delta.text` of a message, with no other object open around it, and nothing else in the event is a piece of
something. Where an event looks any other way, it is left as it is.
"""

import re
from collections.abc import Iterable
from typing import Final

from router.core.choices import JOINED, REPEATED
from router.core.types import Endpoint

# As vLLM and the APIs' owners write it; the only braces before the text are those of the event, the choice and the
# delta.
_PLACE: Final = {
    Endpoint.CHAT: re.compile(rb'\{[^{}]*"choices":\[\{"index":\d+,"delta":\{"content":'),
    Endpoint.COMPLETIONS: re.compile(rb'\{[^{}]*"choices":\[\{"index":\d+,"text":'),
    Endpoint.MESSAGES: re.compile(rb'\{[^{}]*"delta":\{"type":"text_delta","text":'),
}
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# What follows the text opens no object and no list, and has no other text in the delta and the choice.
_FIELD: Final = rb',(?:"[^"\\]*":(?:null|true|false|[-+.0-9eE]+)|"(?:%b)":"[^"\\]*")' % (
    b"|".join(name.encode() for name in REPEATED)
)
_REST: Final = {
    Endpoint.CHAT: re.compile(rb"(?:%b)*\}(?:%b)*\}\][^{\[]*" % (_FIELD, _FIELD)),
    Endpoint.COMPLETIONS: re.compile(rb"(?:%b)*\}\][^{\[]*" % _FIELD),
    Endpoint.MESSAGES: re.compile(rb"[^{\[]*"),
}
_OTHER_PIECES: Final = re.compile(rb'"(?:%b)":(?!null)' % b"|".join(name.encode() for name in JOINED))


def compacted(endpoint: Endpoint, payloads: Iterable[bytes]) -> list[bytes]:
    """The payloads of a stream's events, with each run of those that differ only in their text as one.

    Those of an endpoint whose streams nobody joins stay as they are.
    """
    place = _PLACE.get(endpoint)
    if place is None:
        return list(payloads)
    out: list[bytes] = []
    pieces: list[bytes] = []
    head = tail = b""

    def close_run() -> None:
        if pieces:
            out.append(b'%b"%b"%b' % (head, b"".join(pieces), tail))
            pieces.clear()

    for payload in payloads:
        if pieces and payload.startswith(head):
            text = _STRING.match(payload, len(head))
            if text is not None and payload[text.end() :] == tail:
                pieces.append(text[0][1:-1])
                continue
        close_run()
        before = place.match(payload)
        text = _STRING.match(payload, before.end()) if before is not None else None
        if before is None or text is None or not _joins_nothing_else(endpoint, before[0], payload[text.end() :]):
            out.append(payload)
        else:
            head, tail = before[0], payload[text.end() :]
            pieces.append(text[0][1:-1])
    close_run()
    return out


def _joins_nothing_else(endpoint: Endpoint, head: bytes, tail: bytes) -> bool:
    # The head ends with the name of the text itself, whose value is no longer part of it.
    own = head.rfind(b",") if head.endswith(b'"text":') else head.rfind(b"{")
    return (
        _REST[endpoint].fullmatch(tail) is not None
        and _OTHER_PIECES.search(head, 0, own) is None
        and _OTHER_PIECES.search(tail) is None
    )
