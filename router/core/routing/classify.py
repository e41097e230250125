"""Classifies a prompt as "code" or "chat": a linear model over the words and symbols of a bounded window.

The steps:

1. The window. Instructions are at the beginning or the end of a prompt, so only `HEAD_LENGTH` characters from the front
   and `TAIL_LENGTH` from the back are read. This bounds the cost of a prompt of any length.
   If that leaves out the middle, the end is also scored alone, as if it were a short prompt: a document can fill the
   rest of the window, and the request often follows the document.
2. The features. Lower-cased words (`pandas`, `c++`), runs of symbols (`();`, `=>`), a few layout features such as an
   indented line, and pairs of characters for scripts without spaces. `bytes.translate` and `str.split` find the words
   without a Python step per character. A pair is read as one number from the text's UTF-16, because slicing a string at
   every character costs ten times as much.
3. The score. The weights of the known features are summed, and divided by the square root of their number, so that
   length alone does not raise the certainty.
4. The amount of text. Few known features say little: they have to outweigh a prior for chat, which is what most prompts
   of one or two words are, and the certainty is bounded by their number. A word that occurs in most prompts about
   programs, such as "test", says nothing about a prompt that has no other. A prompt of one word is never code.
5. The logistic function makes it a probability.

The weights come from `tools/train_classifier.py`; docs/classifier.md has the accuracy.
"""

import math
import re
import sys
from collections.abc import Mapping
from importlib import resources
from typing import Final, Self

import msgspec

from router.core.routing.classifier_weights import Classification, Weights
from router.core.types import Task

HEAD_LENGTH: Final = 200
TAIL_LENGTH: Final = 200
# Prompts up to this length in characters use the table for short prompts.
MAX_SHORT_PROMPT: Final = 200
# Smaller windows for other scripts: a character costs more and says more, most of all in scripts read in pairs.
WIDE_HEAD_LENGTH: Final = 110
WIDE_TAIL_LENGTH: Final = 110
PAIRS_HEAD_LENGTH: Final = 64
PAIRS_TAIL_LENGTH: Final = 64
# The part of a long prompt that is also scored alone, and how much its score counts.
END_LENGTH: Final = 80
PAIRS_END_LENGTH: Final = 40
END_WEIGHT: Final = 0.7

# Tables for `bytes.translate` over UTF-8. The word tables replace what is not part of a word by a space; _WORD_TABLE
# keeps the bytes of other scripts, _ASCII_WORD_TABLE does not. The symbol table is the reverse. It maps a newline to 1,
# because a newline is part of a run of symbols (`;⏎`), and `split` would remove it.
_ASCII_WORD_TABLE: Final = bytes(b if (b < 128 and chr(b).isalnum()) or b in b"_+#\\" else 32 for b in range(256))
_WORD_TABLE: Final = _ASCII_WORD_TABLE[:128] + bytes(range(128, 256))
_SYMBOL_TABLE: Final = bytes(1 if b == 10 else 32 if b < 32 or b > 127 or chr(b).isalnum() else b for b in range(256))

# Scripts without spaces between words: Thai, Lao, Kana, ideographs; and Hangul, whose endings matter more than spaces.
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")

# Punctuation that word processors and phones insert; it is treated as a space.
_TYPOGRAPHIC_CHARACTERS: Final = "\u2019\u2018\u201c\u201d\u201e\u2013\u2014\u2026\u00ab\u00bb\u00bf\u00a1\ufeff"

# Substrings that count anywhere, within a word or across several, and their features. Each costs a search of the
# window, so there are only a few. The first item is a rare character of the substring: a search for it mostly fails,
# and takes a tenth of the time.
_LAYOUT_FEATURES: Final = [(mark, "~" + mark) for mark in ("\n    ", "\n\t", "\n\n", ";\n")]
_SUBSTRING_FEATURES: Final = [
    (rare, mark, "~" + mark)
    for rare, mark in (("_", "_"), ("(", "()"), ("=", " = "), ("`", "```"), ("error", "error"), ("\\", "\\d"))
]

# Subtracted from the log-odds of a prompt without known features; half of it with one, a third with two.
CHAT_PRIOR: Final = 2.0
# The log-odds of n known features are at most n + 1 times this: 0.68 is the largest probability of either task without
# known features, 0.82 with one, 0.90 with two.
LOG_ODDS_PER_FEATURE: Final = 0.75

# A word is one known feature, and a mark after it another.
_MAX_KNOWN_IN_WORD: Final = 2
_MARKS: Final = ".,!?\n"
_AROUND_WORD: Final = _MARKS + " \t\r"
# Above the error of a sum of floats, and below any difference of weights.
_ROUNDING: Final = 1e-9

# A character is part of one word or symbol, and of two pairs at most; some layout features come on top.
MAX_FEATURES: Final = 2 * (HEAD_LENGTH + TAIL_LENGTH) + 20
# By the number of known features: what the sum of their weights, which are in hundredths, is multiplied by.
_SCALES: Final = (0.0, *(0.01 / math.sqrt(known) for known in range(1, MAX_FEATURES + 1)))
_CHAT_PRIORS: Final = tuple(CHAT_PRIOR / (known + 1) for known in range(MAX_FEATURES + 1))

# Names in an explanation: the bias with the prior, and what a prompt of one word lacks to be code.
BIAS: Final = "(bias)"
ONE_WORD: Final = "(one word)"

# A word, a run of symbols or a layout feature is a str; a pair of characters is an int, its two units of UTF-16.
Feature = str | int


def is_short(text: str) -> bool:
    return len(text) <= MAX_SHORT_PROMPT


def separate_end(text: str) -> str | None:
    """The end of a prompt that is longer than its window, to be scored alone; None for other prompts."""
    end = text[-END_LENGTH:]
    if end.isascii():
        return end if len(text) > HEAD_LENGTH + TAIL_LENGTH else None
    if _UNSPACED.search(end):
        return end[-PAIRS_END_LENGTH:] if len(text) > PAIRS_HEAD_LENGTH + PAIRS_TAIL_LENGTH else None
    return end if len(text) > WIDE_HEAD_LENGTH + WIDE_TAIL_LENGTH else None


def features(text: str) -> list[Feature]:
    """The features of a prompt, with repeats, in no particular order. Layout features begin with `~`."""
    lowered = text.lower() if len(text) <= MAX_SHORT_PROMPT else _window(text, HEAD_LENGTH, TAIL_LENGTH).lower()
    if not lowered.isascii():
        lowered = _window(lowered, WIDE_HEAD_LENGTH, WIDE_TAIL_LENGTH)
        for typographic in _TYPOGRAPHIC_CHARACTERS:
            lowered = lowered.replace(typographic, " ")
    if lowered.isspace():  # it would have layout features, but they mean nothing
        return []
    packed = lowered.encode("utf-8", "replace")
    result: list[Feature] = []
    if lowered.isascii():
        result += packed.translate(_WORD_TABLE).decode("ascii").split()
    elif _UNSPACED.search(lowered):
        result += packed.translate(_ASCII_WORD_TABLE).decode("ascii").split()
        result += _character_pairs(_window(lowered, PAIRS_HEAD_LENGTH, PAIRS_TAIL_LENGTH))
    else:
        # From Greek (U+0370) on, only the first five characters count, so that inflected forms give the same feature.
        words = packed.translate(_WORD_TABLE).decode("utf-8").split()
        result += [word if word < "\u0370" else word[:5] for word in words]
    result += packed.translate(_SYMBOL_TABLE).decode("ascii").split()
    result += [name for rare, mark, name in _SUBSTRING_FEATURES if rare in lowered and mark in lowered]
    if "\n" in lowered:
        result += [name for mark, name in _LAYOUT_FEATURES if mark in lowered]
    return result


def _window(text: str, head: int, tail: int) -> str:
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def _character_pairs(text: str) -> list[int]:
    """Every two adjacent units of UTF-16 as one number: first those at even positions, then those at odd ones."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass"))
    even_bytes, odd_bytes = len(units) // 4 * 4, (len(units) - 2) // 4 * 4
    return units[:even_bytes].cast("I").tolist() + units[2 : 2 + odd_bytes].cast("I").tolist()


def feature(name: str) -> Feature:
    """The inverse of `name_of`."""
    return _character_pairs(name)[0] if len(name) == 2 and _UNSPACED.match(name) and _UNSPACED.match(name, 1) else name


def name_of(feature: Feature) -> str:
    """A feature as text, as the file of weights has it."""
    return feature if isinstance(feature, str) else feature.to_bytes(4, sys.byteorder).decode("utf-16-le", "replace")


def _printable_name(name: str) -> str:
    return name.replace("\x01", "⏎").replace("\n", "⏎").replace("\t", "⇥")


class Classifier:
    """Classifies prompts with constant weights; safe to share between threads.

    - The same text gets the same result in every process.
    - A text without known features, such as an empty one, and a text of one word are chat.
    - A text with n known features has a score of at most 1 / (1 + exp(-(n + 1) * LOG_ODDS_PER_FEATURE)), and at least
      1 minus this.
    - Any `str` is classified, including lone surrogates and control characters; nothing is raised.
    """

    __slots__ = ("_long_model", "_short_model")

    def __init__(self, weights: Weights) -> None:
        weight_of = {feature(name): weight for name, weight in weights.features.items()}
        self._short_model = _LinearModel(weights.bias.short, {one: weight.short for one, weight in weight_of.items()})
        self._long_model = _LinearModel(weights.bias.long, {one: weight.long for one, weight in weight_of.items()})

    @classmethod
    def load(cls) -> Self:
        """Loads the weights of this package. Raises OSError or msgspec.DecodeError if they are missing or invalid."""
        packed = resources.files(__package__ or "router.core").joinpath("classify_weights.json").read_bytes()
        return cls(msgspec.json.decode(packed, type=Weights))

    def classify(self, text: str) -> Classification:
        """`text`: the question, without system prompt and retrieved context."""
        log_odds = self.log_odds(text)
        return Classification(task_for(log_odds), probability_of_code(log_odds))

    def task(self, text: str) -> Task:
        return task_for(self.log_odds(text))

    def log_odds(self, text: str) -> float:
        """The score before the logistic function: above 0 for code."""
        short = len(text) <= MAX_SHORT_PROMPT
        model = self._short_model if short else self._long_model
        known, evidence = model.evidence(features(text))
        log_odds = model.bias - _CHAT_PRIORS[known] + evidence
        if not short:
            end = separate_end(text)
            if end is not None:
                # The features of the end are among those of the window, so they make no more certain.
                log_odds += END_WEIGHT * self._short_model.evidence(features(end))[1]
        if known <= _MAX_KNOWN_IN_WORD and log_odds > 0 and _is_one_word(text, known):
            return 0.0
        limit = LOG_ODDS_PER_FEATURE * (known + 1)
        return limit if log_odds > limit else -limit if log_odds < -limit else log_odds

    def explain(self, text: str) -> list[tuple[str, float]]:
        """What each known feature, and the bias as `(bias)`, adds to the log-odds; the largest contributions first."""
        if is_short(text):
            contributions = self._short_model.contributions(features(text))
        else:
            contributions = self._long_model.contributions(features(text))
            end = separate_end(text)
            if end is not None:
                for name, amount in self._short_model.contributions(features(end)).items():
                    if name != BIAS:
                        contributions[name] = contributions.get(name, 0.0) + END_WEIGHT * amount
        total = math.fsum(contributions.values())
        log_odds = self.log_odds(text)
        if log_odds == 0 and total > _ROUNDING:
            return _ranked({ONE_WORD: -total, **contributions})
        # Below 1 if the certainty is at its bound. No bound is lower than LOG_ODDS_PER_FEATURE.
        share = log_odds / total if abs(total) > LOG_ODDS_PER_FEATURE else 1.0
        return _ranked({name: share * amount for name, amount in contributions.items()})


def _is_one_word(text: str, known: int) -> bool:
    """Whether a text is a word that has no more than one known feature, with or without a mark after it.

    A word with two, such as `ValueError` (it contains "error"), says more; in scripts without spaces it is a phrase.
    """
    return text.strip(_AROUND_WORD).isalpha() and known <= 1 + (text[-1] in _MARKS)


def chat_prior(known: int) -> float:
    """What a prompt with so many known features has to outweigh to be code, in log-odds."""
    return _CHAT_PRIORS[known]


def _ranked(contributions: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(contributions.items(), key=lambda part: (-abs(part[1]), part[0]))


def probability_of_code(log_odds: float) -> float:
    """From 0 to 1: the logistic function."""
    return 0.5 * (1 + math.tanh(log_odds / 2))  # unlike 1 / (1 + exp(-log_odds)), it cannot overflow


def task_for(log_odds: float) -> Task:
    return "code" if log_odds > 0 else "chat"


class _LinearModel:
    """The weights for one length of prompts, laid out for a fast sum."""

    # The table is large and not in the CPU's caches when the next prompt comes. So each feature is looked up only once,
    # and equal weights share one object. Weights are stored as offsets from the lowest one, starting at 1: all are
    # truthy, so `filter(None, ...)` drops exactly the unknown features.

    __slots__ = ("_offset", "_shifted_weights", "bias")

    def __init__(self, bias: int, weights: Mapping[Feature, int]) -> None:
        self.bias = bias / 100
        self._offset = min(weights.values(), default=0) - 1
        offsets = {value: value - self._offset for value in weights.values()}
        self._shifted_weights: Mapping[Feature, int] = {one: offsets[value] for one, value in weights.items()}

    def evidence(self, prompt_features: list[Feature]) -> tuple[int, float]:
        """The number of known features, and what they add to the bias."""
        offsets = list(filter(None, map(self._shifted_weights.get, set(prompt_features))))
        known = len(offsets)
        return known, (sum(offsets) + known * self._offset) * _SCALES[known]

    def contributions(self, prompt_features: list[Feature]) -> dict[str, float]:
        """The parts of the evidence, and the bias with the prior, by name."""
        known = self._shifted_weights.keys() & prompt_features
        scale = _SCALES[len(known)]
        contributions = {
            _printable_name(name_of(feature)): (self._shifted_weights[feature] + self._offset) * scale
            for feature in known
        }
        return {BIAS: self.bias - chat_prior(len(known)), **contributions}
