"""Decides which engines a switch replaces, and by what.

All answers of a model come from one target. So a new target replaces all engines of the model together, each with its
own draft; a new draft alone replaces one engine and leaves the revision as it is, because it changes no answer.
"""

from collections.abc import Mapping

import msgspec

from engines.switch.request import SwitchRefusedError, SwitchRequest
from engines.switch.version import Version
from router.shared.engines.announcements import ModelRevision


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """An engine. `version`: None if this `roundhouse up` does not run it. `previous`: what a rollback restores.

    `configured_revision`: that of the model in the configuration.
    """

    name: str
    model: str
    address: str
    version: Version | None
    previous: Version | None = None
    configured_revision: str = ""


class SwitchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The new versions, by engine. `revision`: that of `model` afterwards; `configured_revision`: in the configuration.

    `engine` is the one that was asked for.
    """

    engine: str
    model: str
    revision: str
    configured_revision: str
    versions: dict[str, Version]

    def model_revision(self) -> ModelRevision:
        return ModelRevision(revision=self.revision, configured=self.configured_revision)


def plan_switch(request: SwitchRequest, engines: Mapping[str, EngineState]) -> SwitchPlan:
    """Raises SwitchRefusedError."""
    engine, current = _running(request.engine, engines)
    wanted = _wanted_version(request, current)
    if wanted == current:
        raise SwitchRefusedError("nothing to change; give --revision if the weights behind it changed")
    if wanted.target != current.target and wanted.revision == current.revision:
        raise SwitchRefusedError(
            f"revision {wanted.revision!r} is in effect: old answers would be served; give another"
        )
    return _plan(engine, wanted, engines)


def plan_rollback(name: str, engines: Mapping[str, EngineState]) -> SwitchPlan:
    """Raises SwitchRefusedError."""
    engine, _ = _running(name, engines)
    if engine.previous is None:
        raise SwitchRefusedError(f"{name} has no previous version; it was not switched")
    return _plan(engine, engine.previous, engines)


def _running(name: str, engines: Mapping[str, EngineState]) -> tuple[EngineState, Version]:
    engine = engines.get(name)
    if engine is None or engine.version is None:
        running = [state.name for state in engines.values() if state.version is not None]
        raise SwitchRefusedError(f"no engine {name[:64]!r} runs here; there is {', '.join(running) or 'none'}")
    return engine, engine.version


def _wanted_version(request: SwitchRequest, current: Version) -> Version:
    if request.draft is not None and request.no_draft:
        raise SwitchRefusedError("a draft and no draft: give only one of them")
    wanted = current
    if request.target is not None and request.target != current.target:
        wanted = msgspec.structs.replace(wanted, target=request.target, revision=request.target)
    if request.revision is not None:
        wanted = msgspec.structs.replace(wanted, revision=request.revision)
    if request.no_draft and current.draft is not None:
        return msgspec.structs.replace(wanted, draft=None, speculation="none", heterogeneous_vocab=None)
    if request.draft is not None and request.draft != current.draft:
        method = current.speculation if current.speculation in ("draft_model", "eagle", "eagle3") else None
        # The setting was about the old draft.
        return msgspec.structs.replace(wanted, draft=request.draft, speculation=method, heterogeneous_vocab=None)
    return wanted


def _plan(engine: EngineState, wanted: Version, engines: Mapping[str, EngineState]) -> SwitchPlan:
    versions = {engine.name: wanted}
    assert engine.version is not None
    if (wanted.target, wanted.revision) != (engine.version.target, engine.version.revision):
        others = [state for state in engines.values() if state.model == engine.model and state.name != engine.name]
        versions |= {other.name: _with_target(other, wanted) for other in others}
    _check_placement(versions, engines)
    _check_shared_addresses(versions, engines)
    return SwitchPlan(
        engine=engine.name, model=engine.model, revision=wanted.revision,
        configured_revision=engine.configured_revision, versions=versions,
    )  # fmt: skip


def _with_target(other: EngineState, wanted: Version) -> Version:
    """The version of another engine of the model: its own previous one if it had this target, else as it is."""
    if other.version is None:
        raise SwitchRefusedError(
            f"engine {other.name} of model {other.model} was not started by this `roundhouse up`; "
            "all answers of a model must come from one target"
        )
    previous = other.previous
    if previous is not None and (previous.target, previous.revision) == (wanted.target, wanted.revision):
        return previous
    return msgspec.structs.replace(other.version, target=wanted.target, revision=wanted.revision)


def _check_placement(versions: Mapping[str, Version], engines: Mapping[str, EngineState]) -> None:
    placed = [name for name in versions if not engines[name].address]
    if placed:
        raise SwitchRefusedError(
            f"{', '.join(placed)}: engines that Ray places cannot be switched; change the configuration and restart"
        )


def _check_shared_addresses(versions: Mapping[str, Version], engines: Mapping[str, EngineState]) -> None:
    addresses = {engines[name].address: name for name in versions}
    for state in engines.values():
        if state.name not in versions and state.address in addresses:
            raise SwitchRefusedError(
                f"engine {state.name} uses the address of {addresses[state.address]}, which gets another one; "
                "change the configuration and restart instead"
            )
