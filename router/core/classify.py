"""Is a prompt "code" or "chat"? A linear model over the words and symbols of a bounded window.

How it works, in the order in which it happens:

1. The window. Instructions stand at the beginning or at the end of a prompt, so only `HEAD` characters from the front
   and `TAIL` from the back are looked at. What a prompt costs is therefore bounded, however long it is.
2. The features. Lower-cased words (`pandas`, `c++`), runs of symbols (`();`, `=>`) and a few marks of layout such as an
   indented line. `str.translate` and `str.split` find them in ASCII without a step of Python for each; other
   scripts take a regular expression over a shorter window, and pairs of characters where a script has no spaces.
3. The score. The weights of the known features are summed, divided by the square root of their number, so that a
   long prompt is not surer for being long, and passed through the logistic function.

The weights come from `tools/train_classifier.py`; docs/classifier.md says how good they are.
"""

import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final, Self

import msgspec

from router.core.types import Task

HEAD: Final = 400
TAIL: Final = 200
# Other scripts take the slower path, and say more in a character.
WIDE_HEAD: Final = 180
WIDE_TAIL: Final = 100

# Everything but the characters of words becomes a space, and the reverse; a table that maps ASCII to ASCII keeps
# `str.translate` on its fast path. The end of a line belongs to the symbols (`;⏎`), and so must outlive `split`.
_ASCII: Final = tuple(map(chr, range(128)))
_WORDS: Final = "".join(c if c.isalnum() or c in "_+#\\" else " " for c in _ASCII)
_SYMBOLS: Final = "".join("\x01" if c == "\n" else " " if c.isalnum() or c < " " else c for c in _ASCII)

# Runs of one kind of letter: Latin with its accents, the alphabets from Greek to Thai, Hiragana, Katakana, ideographs,
# Hangul. `_wide_words` tells them apart by their first character.
_RUNS: Final = re.compile(
    r"[a-z0-9_+#\\\xdf-\u024f\u1e00-\u1eff]+|[\u0370-\u0e7f]+"
    r"|[\u3040-\u309f]+|[\u30a0-\u30ff]+|[\u3400-\u9fff]+|[\uac00-\ud7a3]+"
)

_PAIRS: Final = re.compile("..")

# What word processors and telephones put into English, which is no reason to leave the fast path.
_TYPOGRAPHIC: Final = "\u2019\u2018\u201c\u201d\u2013\u2014\u2026\u00a0\ufeff"

_MARKS: Final = ("\n    ", "\n\t", "_")


class Verdict(msgspec.Struct, frozen=True):
    """What a prompt asks for. `score` is the estimated probability, from 0 to 1, that it asks for code."""

    task: Task
    score: float


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What training found, in log-odds: above 0 speaks for code, below 0 for chat."""

    bias: float
    features: dict[str, float]


def features(text: str) -> list[str]:
    """The features of a prompt, repeats and all, in no order that matters. Those of layout begin with `~`."""
    window = _window(text, HEAD, TAIL)
    if not window.isascii():
        for typographic in _TYPOGRAPHIC:
            window = window.replace(typographic, " ")
    if window.isascii():
        plain = window.lower()
        found = plain.translate(_WORDS).split()
    else:
        lowered = _window(window, WIDE_HEAD, WIDE_TAIL).lower()
        found = _wide_words(lowered)
        # The tables below know only ASCII: other letters become a letter, by way of the question mark.
        plain = lowered.replace("?", " ").encode("ascii", "replace").decode("ascii").replace("?", "a")
    found += plain.translate(_SYMBOLS).split()
    found += ["~" + mark for mark in _MARKS if mark in plain]
    return found


def _window(text: str, head: int, tail: int) -> str:
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def _wide_words(lowered: str) -> list[str]:
    """The words of a text in any script, cut so that inflected words and scripts without spaces repeat themselves."""
    words: list[str] = []
    for run in _RUNS.findall(lowered):
        first = run[0]
        if first < "\u0370" or "\u1e00" <= first < "\u1f00" or "\u30a0" <= first < "\u3100":
            words.append(run)
        elif first < "\u0e80":
            words.append(run[:5])
        elif "\u3400" <= first < "\ua000":
            words += _PAIRS.findall(run)
            words += _PAIRS.findall(run, 1)
        elif first >= "\uac00":
            words.append(run[:2])
    return words


class Classifier:
    """Tells code from chat by weights that do not change; safe to share between threads.

    - The same text has the same verdict, in every process.
    - A text without a known feature, the empty one included, is judged by the bias alone, which is chat.
    - Any `str` is classified, lone surrogates and control characters included; nothing is raised.
    """

    __slots__ = ("_bias", "_known", "_weights")

    def __init__(self, weights: Weights) -> None:
        self._bias = weights.bias
        self._weights: Mapping[str, float] = weights.features
        self._known = frozenset(weights.features)

    @classmethod
    def load(cls) -> Self:
        """The classifier with the weights that come with this package.

        Raises OSError or msgspec.DecodeError where they are missing or damaged.
        """
        packed = resources.files(__package__ or "router.core").joinpath("classify_weights.json").read_bytes()
        return cls(msgspec.json.decode(packed, type=Weights))

    def classify(self, text: str) -> Verdict:
        """What the query asks for; the caller leaves system prompt and retrieved context out of `text`."""
        known = self._known.intersection(features(text))
        log_odds = self._bias
        if known:
            log_odds += sum(map(self._weights.__getitem__, known)) / math.sqrt(len(known))
        return Verdict("code" if log_odds > 0 else "chat", 1 / (1 + math.exp(-log_odds)))

    def explain(self, text: str) -> list[tuple[str, float]]:
        """What each known feature adds to the log-odds, the bias as `(bias)` among them; the weightiest first."""
        known = self._known.intersection(features(text))
        scale = math.sqrt(len(known)) or 1.0
        parts = [("(bias)", self._bias), *((name, self._weights[name] / scale) for name in known)]
        return sorted(parts, key=lambda part: (-abs(part[1]), part[0]))
