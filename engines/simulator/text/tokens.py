"""Text as tokens: pieces like a tokenizer's, which always join to the original text."""

import re

from xxhash import xxh32_intdigest

EOS = 2
"""Id of the end-of-sequence token, the only special token."""
_FIRST_ID = 3
VOCABULARY_SIZE = 32_000

# A word includes its leading space, indentation stays together, and long words are cut. A combining mark or a part of
# an emoji sequence is a token of its own, since code that joins deltas tends to break there.
_PIECE = re.compile(r" ?[^\W\d_]{1,7}| ?\d{1,3}| ?[^\w\s]|\r\n|\n+|\t+| +(?= )|.", re.DOTALL)


def split_tokens(text: str) -> list[str]:
    """Cuts `text` into token texts; joined they are `text` again, whatever it contains."""
    return _PIECE.findall(text)


def token_id(piece: str) -> int:
    """The id of a token text: the same in every process, never a special token's."""
    return _FIRST_ID + xxh32_intdigest(piece.encode("utf-8", "surrogatepass")) % (VOCABULARY_SIZE - _FIRST_ID)


def encode_text(text: str) -> list[int]:
    pieces = split_tokens(text)
    ids = {piece: token_id(piece) for piece in set(pieces)}
    return [ids[piece] for piece in pieces]
