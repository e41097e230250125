"""Colours of Grafana's palette that can be told apart on a dark background and on a light one."""

from typing import Final

GOOD: Final = "green"
BAD: Final = "red"
WARNING: Final = "orange"
NEUTRAL: Final = "blue"

BY_CACHE_RESULT: Final = {
    "(?i)^hit": "green",
    "(?i)^coalesced": "light-blue",
    "(?i)^stale": "yellow",
    "(?i)^miss": "orange",
    "(?i)^bypass": "purple",
    "(?i)^none": "semi-dark-red",
}
"""By regular expression of a legend that starts with the cache result."""

SPENT_AND_SAVED: Final = {"^(saved|Saved)": "green", "^(spent|Spent|Generated)": "orange"}

UP_OR_DOWN: Final = {0: ("down", BAD), 1: ("up", GOOD)}
BREAKER_STATES: Final = {0: ("closed", GOOD), 1: ("half-open", WARNING), 2: ("open", BAD)}
