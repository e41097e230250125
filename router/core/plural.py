"""A number and its noun, in messages for people."""


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """`1 engine`, `2 engines`, `1,000 engines`. `plural` is for nouns that need more than an "s"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"
