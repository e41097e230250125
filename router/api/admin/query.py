"""Parameters of a query string."""

from starlette.requests import Request

from router.errors import bad_request


def query_count(request: Request, name: str, *, default: int, largest: int) -> int:
    """A number from 1 to `largest`. Raises ApiError (400)."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= largest):
        raise bad_request(f"`{name}` must be an integer from 1 to {largest}.", param=name, code="invalid_query")
    return int(text)


def query_flag(request: Request, name: str, *, default: str = "0") -> bool:
    """Whether a parameter is 1. Raises ApiError (400)."""
    value = request.query_params.get(name, default)
    if value not in ("0", "1"):
        raise bad_request(f"`{name}` must be 0 or 1.", param=name, code="invalid_query")
    return value == "1"
