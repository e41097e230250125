"""The configuration: one TOML file, whose mistakes are all reported, each with its place.

`tables` defines the settings. `file` reads them: `overrides` are those of the environment and of a command's options,
`walk` converts TOML's values to structs, `wording` explains a value of the wrong type, `rules` checks settings against
each other, and `mistakes` formats what is wrong.
"""

from router.settings.file import load, load_access, parse
from router.settings.mistakes import ConfigurationError
from router.settings.overrides import Override
from router.settings.tables import (
    DEFAULT_PATH,
    EMBEDDED,
    CacheSettings,
    EngineSettings,
    ServerSettings,
    Settings,
    Strict,
    TenantSettings,
    TracingSettings,
    groups,
    is_url,
    missing_extra,
    tenants,
)

__all__ = [
    "DEFAULT_PATH",
    "EMBEDDED",
    "CacheSettings",
    "ConfigurationError",
    "EngineSettings",
    "Override",
    "ServerSettings",
    "Settings",
    "Strict",
    "TenantSettings",
    "TracingSettings",
    "groups",
    "is_url",
    "load",
    "load_access",
    "missing_extra",
    "parse",
    "tenants",
]
