"""What is asked of a whole JSON value, however large it is: how deep it is, and its numbers in one spelling.

No function here recurses: the depth of a request is the client's to choose. Values are `Any`, since nothing has been
proved of them.
"""

from typing import Any, Final

_MAX_EXACT_INTEGER: Final = 2.0**53  # beyond it, a float no longer tells which integer it is


def is_deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects are nested more than `limit` deep in a list or object, which itself counts as 1.

    It looks at all values of one depth, then at those of the next, so that a value of few containers costs little.
    """
    level: list[Any] = [value]
    for _ in range(limit):
        below: list[Any] = []
        for container in level:
            for item in container.values() if type(container) is dict else container:
                if type(item) is dict or type(item) is list:
                    below.append(item)  # noqa: PERF401 - a comprehension is slower once this is compiled
        if not below:
            return False
        level = below
    return True


def is_integer(number: float) -> bool:
    """Whether a float surely stands for an integer: 1, 1.0 and 1e0 are one number."""
    return -_MAX_EXACT_INTEGER < number < _MAX_EXACT_INTEGER and float(int(number)) == number


def normalize_numbers(value: Any, limit: int) -> bool:
    """Replaces the floats in a list or object that stand for integers, as `is_integer` has it.

    False where there are more than `limit` floats; then some have not been replaced.
    """
    count = 0
    waiting: list[Any] = [value]
    while waiting:
        container = waiting.pop()
        if type(container) is dict:
            for name, item in container.items():
                if type(item) is float:
                    count += 1
                    if count > limit:
                        return False
                    if is_integer(item):
                        container[name] = int(item)
                elif type(item) is dict or type(item) is list:
                    waiting.append(item)
        else:
            at = 0
            for item in container:
                if type(item) is float:
                    count += 1
                    if count > limit:
                        return False
                    if is_integer(item):
                        container[at] = int(item)
                elif type(item) is dict or type(item) is list:
                    waiting.append(item)
                at += 1  # noqa: SIM113 - a counter costs less than enumerate once this is compiled
    return True
