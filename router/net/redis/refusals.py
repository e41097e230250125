"""Why Redis takes no writes from anybody, though it can be read."""

from collections.abc import Mapping
from typing import Final, Literal

WriteRefusal = Literal["full", "cannot-save", "too-few-replicas"]

REFUSALS_IN_WORDS: Final[Mapping[WriteRefusal, str]] = {
    "full": "Redis is full",
    "cannot-save": "Redis cannot save its data",
    "too-few-replicas": "Redis has too few replicas",
}
