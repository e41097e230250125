"""Is a prompt "code" or "chat"? A linear model over the words and symbols of a bounded window.

How it works, in the order in which it happens:

1. The window. Instructions stand at the beginning or at the end of a prompt, so only `HEAD` characters from the front
   and `TAIL` from the back are looked at. What a prompt costs is therefore bounded, however long it is.
2. The features. Lower-cased words (`pandas`, `c++`), runs of symbols (`();`, `=>`), a few marks of layout such as an
   indented line, and pairs of characters where a script has no spaces. `bytes.translate` and `str.split` find the
   words without a step of Python for each character. A pair is read as one number out of the text's UTF-16, since
   cutting a string at every character costs ten times as much.
3. The score. The weights of the known features are summed, divided by the square root of their number, so that a
   long prompt is not surer for being long, and passed through the logistic function.

The weights come from `tools/train_classifier.py`; docs/classifier.md says how good they are.
"""

import math
import re
import sys
from collections.abc import Mapping
from importlib import resources
from typing import Final, Self

import msgspec

from router.core.types import Task

HEAD_LENGTH: Final = 400
TAIL_LENGTH: Final = 200
# The characters of a prompt that is judged as a short one.
MAX_SHORT_PROMPT: Final = 200
# Other scripts cost more and say more in a character, those that are read in pairs most of all.
WIDE_HEAD_LENGTH: Final = 240
WIDE_TAIL_LENGTH: Final = 160
PAIRS_HEAD_LENGTH: Final = 140
PAIRS_TAIL_LENGTH: Final = 100

# Tables for `bytes.translate` over UTF-8. Words: what is no character of a word becomes a space; bytes of other scripts
# stay, or go in the second table. Symbols: the reverse. The end of a line belongs to the symbols (`;⏎`), and so must
# outlive `split`.
_ASCII_WORD_TABLE: Final = bytes(b if (b < 128 and chr(b).isalnum()) or b in b"_+#\\" else 32 for b in range(256))
_WORD_TABLE: Final = _ASCII_WORD_TABLE[:128] + bytes(range(128, 256))
_SYMBOL_TABLE: Final = bytes(1 if b == 10 else 32 if b < 32 or b > 127 or chr(b).isalnum() else b for b in range(256))

# Scripts without spaces between words, or with endings that matter more than the spaces: Thai, Lao, Kana, ideographs,
# Hangul.
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")

# What word processors and telephones put between words.
_TYPOGRAPHIC_CHARACTERS: Final = "\u2019\u2018\u201c\u201d\u201e\u2013\u2014\u2026\u00ab\u00bb\u00bf\u00a1\ufeff"

# What may stand anywhere, within a word or across several, and its feature. Each is a search of the window: a few are
# affordable. Where a mark has a rare character, that is looked for first: it is missed in a tenth of the time.
_LAYOUT_FEATURES: Final = [(mark, "~" + mark) for mark in ("\n    ", "\n\t", "\n\n", ";\n")]
_SUBSTRING_FEATURES: Final = [
    (rare, mark, "~" + mark)
    for rare, mark in (("_", "_"), ("(", "()"), ("=", " = "), ("`", "```"), ("error", "error"), ("\\", "\\d"))
]

# A word, a run of symbols or a mark as itself; a pair of characters as its two units of UTF-16 in one number.
Feature = str | int


class Classification(msgspec.Struct, frozen=True):
    """What a prompt asks for. `score` is the estimated probability, from 0 to 1, that it asks for code."""

    task: Task
    score: float


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights in hundredths of log-odds: above 0 speaks for code, below 0 for chat.

    Whole numbers, since their sum does not depend on the order, which for sets of text changes from process to process.
    """

    bias: int
    features: dict[str, int]


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What training found: for short prompts, where a word says much, and for long ones, where it may just occur."""

    short: Table
    long: Table


def is_short(text: str) -> bool:
    """Which of the two tables judges a prompt."""
    return len(text) <= MAX_SHORT_PROMPT


def features(text: str) -> list[Feature]:
    """The features of a prompt, repeats and all, in no order that matters. Those of layout begin with `~`."""
    lowered = _window(text, HEAD_LENGTH, TAIL_LENGTH).lower()
    if not lowered.isascii():
        lowered = _window(lowered, WIDE_HEAD_LENGTH, WIDE_TAIL_LENGTH)
        for typographic in _TYPOGRAPHIC_CHARACTERS:
            lowered = lowered.replace(typographic, " ")
    if lowered.isspace():  # which has a layout, but says nothing
        return []
    packed = lowered.encode("utf-8", "replace")
    found: list[Feature] = []
    if lowered.isascii():
        found += packed.translate(_WORD_TABLE).decode("ascii").split()
    elif _UNSPACED.search(lowered):
        found += packed.translate(_ASCII_WORD_TABLE).decode("ascii").split()
        found += _character_pairs(_window(lowered, PAIRS_HEAD_LENGTH, PAIRS_TAIL_LENGTH))
    else:
        # From Greek on, words are cut short, so that inflected ones repeat themselves.
        words = packed.translate(_WORD_TABLE).decode("utf-8").split()
        found += [word if word < "\u0370" else word[:5] for word in words]
    found += packed.translate(_SYMBOL_TABLE).decode("ascii").split()
    found += [name for rare, mark, name in _SUBSTRING_FEATURES if rare in lowered and mark in lowered]
    if "\n" in lowered:
        found += [name for mark, name in _LAYOUT_FEATURES if mark in lowered]
    return found


def _window(text: str, head: int, tail: int) -> str:
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def _character_pairs(text: str) -> list[int]:
    """Each two units of UTF-16 that stand side by side, as one number: first the even places, then the odd ones."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass"))
    even, odd = len(units) // 4 * 4, (len(units) - 2) // 4 * 4
    return units[:even].cast("I").tolist() + units[2 : 2 + odd].cast("I").tolist()


def feature(name: str) -> Feature:
    """The feature that `name_of` calls so."""
    return _character_pairs(name)[0] if len(name) == 2 and _UNSPACED.match(name) and _UNSPACED.match(name, 1) else name


def name_of(feature: Feature) -> str:
    """A feature as people read it, and as the file of weights spells it."""
    return feature if isinstance(feature, str) else feature.to_bytes(4, sys.byteorder).decode("utf-16-le", "replace")


def _printable_name(name: str) -> str:
    """A name that can be printed: the end of a line and the tab as their signs."""
    return name.replace("\x01", "⏎").replace("\n", "⏎").replace("\t", "⇥")


class Classifier:
    """Tells code from chat by weights that do not change; safe to share between threads.

    - The same text has the same verdict, in every process.
    - A text without a known feature, the empty one included, is judged by the bias alone, which is chat.
    - Any `str` is classified, lone surrogates and control characters included; nothing is raised.
    """

    __slots__ = ("_long_model", "_short_model")

    def __init__(self, weights: Weights) -> None:
        self._short_model = _LinearModel(weights.short)
        self._long_model = _LinearModel(weights.long)

    @classmethod
    def load(cls) -> Self:
        """The classifier with the weights that come with this package.

        Raises OSError or msgspec.DecodeError where they are missing or damaged.
        """
        packed = resources.files(__package__ or "router.core").joinpath("classify_weights.json").read_bytes()
        return cls(msgspec.json.decode(packed, type=Weights))

    def classify(self, text: str) -> Classification:
        """What the query asks for; the caller leaves system prompt and retrieved context out of `text`."""
        log_odds = self._model_for(text).log_odds(features(text))
        return Classification(_task_for(log_odds), 1 / (1 + math.exp(-log_odds)))

    def task(self, text: str) -> Task:
        """The task of the verdict, for those who need no more of it."""
        return _task_for(self._model_for(text).log_odds(features(text)))

    def explain(self, text: str) -> list[tuple[str, float]]:
        """What each known feature adds to the log-odds, the bias as `(bias)` among them; the weightiest first."""
        return self._model_for(text).contributions(features(text))

    def _model_for(self, text: str) -> "_LinearModel":
        return self._short_model if is_short(text) else self._long_model


def _task_for(log_odds: float) -> Task:
    return "code" if log_odds > 0 else "chat"


class _LinearModel:
    """One table, laid out for a quick sum.

    It is large, and cold by the time that the next prompt comes: so each feature is looked up once, and equal weights
    are one object. They are held as what they are above the least of them, from 1 on, so that whatever is found counts
    as true, as an unknown feature's None does not.
    """

    __slots__ = ("_bias", "_offset", "_shifted_weights")

    def __init__(self, table: Table) -> None:
        self._bias = table.bias
        self._offset = min(table.features.values(), default=0) - 1
        heights = {value: value - self._offset for value in table.features.values()}
        self._shifted_weights: Mapping[Feature, int] = {
            feature(name): heights[value] for name, value in table.features.items()
        }

    def log_odds(self, found: list[Feature]) -> float:
        heights = list(filter(None, map(self._shifted_weights.get, set(found))))
        known = len(heights)
        if not known:
            return self._bias / 100
        return (self._bias + (sum(heights) + known * self._offset) / math.sqrt(known)) / 100

    def contributions(self, found: list[Feature]) -> list[tuple[str, float]]:
        known = self._shifted_weights.keys() & found
        scale = 100 * math.sqrt(len(known))
        weights = {one: self._shifted_weights[one] + self._offset for one in known}
        parts = [
            ("(bias)", self._bias / 100),
            *((_printable_name(name_of(one)), weights[one] / scale) for one in known),
        ]
        return sorted(parts, key=lambda part: (-abs(part[1]), part[0]))
