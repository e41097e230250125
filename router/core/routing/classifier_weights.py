"""The weights of the classifier, and its result; see router.core.routing.classify."""

from typing import NamedTuple

import msgspec

from router.core.types import Task


class Classification(msgspec.Struct, frozen=True):
    """`score`: the estimated probability, from 0 to 1, that the prompt asks for code."""

    task: Task
    score: float


class Weight(NamedTuple):
    """For short prompts, where a word says much, and for long ones, where it may occur by chance.

    In hundredths of log-odds: above 0 for code, below 0 for chat. They are integers, because a sum of floats depends on
    the order, and that of a set of str differs between processes.
    """

    short: int
    long: int


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was trained, as `classify_weights.json` has it; features are named as by `name_of`."""

    bias: Weight
    features: dict[str, Weight]
