"""The configuration: one TOML file, read once, with every mistake told by its place.

`tables` has what can be set. `file` reads it: `walk` makes tables of what stands there, `wording` says what a value is
none of, `rules` holds the tables against one another, and a mistake is told as `mistakes` has it.
"""

from router.settings.file import load, parse
from router.settings.mistakes import ConfigurationError
from router.settings.tables import (
    DEFAULT_PATH,
    EMBEDDED,
    Cache,
    Engine,
    Settings,
    Strict,
    Tenant,
    groups,
    tenants,
)

__all__ = [
    "DEFAULT_PATH",
    "EMBEDDED",
    "Cache",
    "ConfigurationError",
    "Engine",
    "Settings",
    "Strict",
    "Tenant",
    "groups",
    "load",
    "parse",
    "tenants",
]
