"""Text as tokens: pieces that look like a tokenizer's and always join to the text they came from."""

import re

from xxhash import xxh32_intdigest

EOS = 2
"""Id of the end-of-sequence token, the only special one."""
_FIRST_ID = 3
_VOCABULARY_SIZE = 32_000

# A word takes its leading space along, indentation keeps together, long words are cut, and a combining mark or a part
# of an emoji sequence stands alone, since that is where code that joins deltas goes wrong.
_PIECE = re.compile(r" ?[^\W\d_]{1,7}| ?\d{1,3}| ?[^\w\s]|\r\n|\n+|\t+| +(?= )|.", re.DOTALL)


def split_tokens(text: str) -> list[str]:
    """Cut `text` into token texts; joined they are `text` again, whatever it holds."""
    return _PIECE.findall(text)


def token_id(piece: str) -> int:
    """The id of a token text: the same in every process, never a special token's."""
    return _FIRST_ID + xxh32_intdigest(piece.encode("utf-8", "surrogatepass")) % (_VOCABULARY_SIZE - _FIRST_ID)


def encode_text(text: str) -> list[int]:
    """Token ids of a text."""
    found = split_tokens(text)
    ids = {piece: token_id(piece) for piece in set(found)}
    return [ids[piece] for piece in found]
