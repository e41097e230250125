"""Values of an entry's fields as people read them, also those of other versions."""

import base64


def parse_number(value: bytes | None) -> float | None:
    """The number in a field; None if it is not one, negative, or out of range."""
    try:
        amount = float(value or b"")
    except ValueError:
        return None
    return amount if 0 <= amount < 1e12 else None  # excludes nan too


def parse_int(value: bytes | None) -> int | None:
    amount = parse_number(value)
    return None if amount is None else int(amount)


def decode_text(value: bytes | None) -> str | None:
    """Bytes as text: UTF-8, else `base64:` and their encoding."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
