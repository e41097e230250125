"""What reading a response of an engine raises if the response is not of the form of its endpoint.

Readers check the form where it matters to them: with the types of msgspec's decoders, or explicitly. So an error of any
other type is a mistake in the reader, not in the response.
"""

from typing import Final

import msgspec


class MalformedResponseError(Exception):
    """The response is JSON, but not of the form of its endpoint."""


MALFORMED_RESPONSE_ERRORS: Final = (
    MalformedResponseError,
    msgspec.DecodeError,  # not JSON; its subclass ValidationError: JSON of another form
    UnicodeDecodeError,
    RecursionError,  # nested too deeply
)
