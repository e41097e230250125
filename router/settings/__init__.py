"""The configuration: one TOML file, read once, with every mistake told by its place.

`tables` has what can be set, `file` reads it.
"""

from router.settings.tables import (
    DEFAULT_PATH,
    EMBEDDED,
    Cache,
    ConfigurationError,
    Engine,
    Settings,
    Strict,
    Tenant,
    groups,
    load,
    parse,
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
