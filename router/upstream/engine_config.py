"""What the configuration says of an engine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from router.core.types import EngineTask
from router.settings.tables import EngineKind

_NONE_STATED: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True, eq=False):
    """What the configuration says of an engine.

    - `max_in_flight`: maximum number of concurrent requests; None is no limit.
    - `has_draft`: whether it gives the engine a draft; unknown for an engine that roundhouse did not start.
    - `headers`: what every request to it carries. `ca_file`: see create_tls_context.
    - `kind`: None if it is not configured. `stated_traits`: see engine_kinds.
    - The others: see Engine. `baseline` and `revision` depend on other engines, and may change.
    """

    name: str
    model: str
    task: EngineTask
    url: str
    served_model: str
    rank: int | None = None
    max_model_len: int | None = None
    max_in_flight: int | None = None
    family: str | None = None
    has_draft: bool = False
    draft: str | None = None
    baseline: str | None = None
    headers: Mapping[str, str] = _NO_HEADERS
    ca_file: str = ""
    kind: EngineKind | None = None
    stated_traits: Mapping[str, Any] = _NONE_STATED
    share: int | None = None
    revision: str | None = None
