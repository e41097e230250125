"""The weights of the classifier, and its result; see router.core.routing.classify."""

import msgspec

from router.core.types import Task


class Classification(msgspec.Struct, frozen=True):
    """`score`: the estimated probability, from 0 to 1, that the prompt asks for code."""

    task: Task
    score: float


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights in hundredths of log-odds: above 0 for code, below 0 for chat.

    They are integers, because a sum of floats depends on the order, and that of a set of str differs between processes.
    """

    bias: int
    features: dict[str, int]


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trained weights: for short prompts, where a word says much, and for long ones, where it may occur by chance."""

    short: Table
    long: Table
