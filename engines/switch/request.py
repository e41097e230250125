"""What `roundhouse engines switch` and `rollback` ask for, and what they get: see engines.control."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engines.switch.shadow_report import ShadowReport

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Revision = Annotated[str, Meta(min_length=1, max_length=256)]

DRAIN_TIMEOUT = 600.0
"""Seconds after which an old engine is stopped although requests are still running there."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a switch is done, whatever it changes.

    - `after`: the old engines are stopped before the new ones start.
    - `drain_timeout`: seconds that the old engines get to end their requests.
    """

    after: bool = False
    drain_timeout: Annotated[float, Meta(ge=0, le=86400)] = DRAIN_TIMEOUT


class SwitchRequest(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new version of `engine`. None, or `no_draft` = false: as it is.

    `shadow`: recent requests that are replayed at the old and the new engine first.
    """

    engine: Name
    target: Name | None = None
    draft: Name | None = None
    no_draft: bool = False
    revision: Revision | None = None
    shadow: Annotated[int, Meta(ge=0, le=1000)] = 0


class RollbackRequest(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine` gets its previous version back."""

    engine: Name


Step = Literal["shadow", "drain", "start", "check", "warm-up", "take-over", "stop"]


class Progress(msgspec.Struct, frozen=True):
    """A step that has begun or ended; `message` is for a person."""

    step: Step
    message: str


class SwitchedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped_busy`: the old engine was stopped although requests were still running there."""

    name: str
    url: str
    target: str
    draft: str | None
    stopped_busy: bool = False


class SwitchResult(msgspec.Struct, frozen=True, kw_only=True):
    """`revision`: of the model, from now on. `after`: whether the old engines were stopped first."""

    model: str
    revision: str
    after: bool
    engines: list[SwitchedEngine]
    shadow: ShadowReport | None = None


class SwitchRefusedError(Exception):
    """Nothing was begun; the message is one line with the reason."""


class SwitchFailedError(Exception):
    """The old engines are kept; the message is one line with the reason."""
