"""Text for a terminal: what people wrote stays as it is, what a terminal or a reader would be misled by is escaped."""

from typing import Final

_JOINERS: Final = "\u200c\u200d"
"""They join and separate letters and emoji; Python counts them as not printable. Variation selectors are printable."""

_SPACES: Final = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""Of typography: 10\u202fkm."""

_SHOWN: Final = frozenset(_JOINERS + _SPACES)


def escape_unprintable(text: str, keep: str = "") -> str:
    """Escapes control characters, those that change the direction of text, and what has no form at all.

    `keep`: further characters that stay, such as the end of a line.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in _SHOWN or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
