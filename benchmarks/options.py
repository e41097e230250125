"""Types of command-line options: argparse rejects a wrong value, with exit code 2, before anything is started."""

import math
import os
from argparse import ArgumentTypeError
from pathlib import Path


def positive(text: str) -> float:
    """A number above 0, such as seconds or a rate."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def at_least_zero(text: str) -> float:
    """A number that may be 0."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def share(text: str) -> float:
    """A number from 0 to 1."""
    number = _number(text)
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Several of them, such as 1,2,4."""
    return [count(part) for part in text.split(",")]


def output_file(text: str) -> Path:
    """A file that can be written. It is checked now, since the figures are written after minutes."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text!r} cannot be written")
    return path


def input_file(text: str) -> Path:
    """A file that can be read."""
    path = Path(text)
    if path.is_dir() or not os.access(path, os.R_OK):
        raise ArgumentTypeError(f"{text!r} cannot be read")
    return path


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
