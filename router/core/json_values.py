"""Functions over a complete JSON value, however large: its depth, and the normalization of its numbers.

None of them recurses, since clients choose the depth of a request, and compiled calls do not count towards Python's
recursion limit. Values are `Any`, since nothing has checked their types.
"""

from typing import Any, Final

_MAX_EXACT_INTEGER: Final = 2.0**53  # beyond it, a float stands for several integers


def is_deeper(value: Any, limit: int) -> bool:
    """Whether a list or object has more than `limit` levels of lists and objects; the value itself is the first."""
    # Breadth first: a value with few containers costs little, whatever else is in it.
    level: list[Any] = [value]
    for _ in range(limit):
        next_level: list[Any] = []
        for container in level:
            for item in container.values() if type(container) is dict else container:
                if type(item) is dict or type(item) is list:
                    next_level.append(item)  # noqa: PERF401 - a comprehension is slower once this is compiled
        if not next_level:
            return False
        level = next_level
    return True


def is_integer(number: float) -> bool:
    """Whether a float stands for exactly one integer, as 1.0 and 1e0 do."""
    return -_MAX_EXACT_INTEGER < number < _MAX_EXACT_INTEGER and float(int(number)) == number


def normalize_numbers(value: Any, limit: int) -> bool:
    """Replaces, in place, each float in a list or object for which `is_integer` is true by the integer.

    Returns False if there are more than `limit` floats; some are not replaced then.
    """
    count = 0
    pending: list[Any] = [value]
    while pending:
        container = pending.pop()
        if type(container) is dict:
            for name, item in container.items():
                if type(item) is float:
                    count += 1
                    if count > limit:
                        return False
                    if is_integer(item):
                        container[name] = int(item)  # allowed while iterating, since no key is new
                elif type(item) is dict or type(item) is list:
                    pending.append(item)
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
                    pending.append(item)
                at += 1  # noqa: SIM113 - a counter costs less than enumerate once this is compiled
    return True
