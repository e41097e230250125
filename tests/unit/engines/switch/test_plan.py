"""Which engines a switch replaces, and by what."""

from typing import Any

import msgspec
import pytest

from engines.switch.plan import EngineState, SwitchPlan, plan_rollback, plan_switch
from engines.switch.request import SwitchRefusedError, SwitchRequest
from engines.switch.version import Version

CHAT = Version(target="llama-1", draft="chat-draft", revision="r1")
CODE = Version(target="llama-1", draft="code-draft", heterogeneous_vocab=True, revision="r1")


def engine(name: str, version: Version | None, *, port: int = 0, **fields: Any) -> EngineState:
    address = f"http://127.0.0.1:{port or 8000 + sum(map(ord, name))}"
    return EngineState(name=name, version=version, address=address, **{"model": "llama", **fields})


def states(*engines: EngineState) -> dict[str, EngineState]:
    return {one.name: one for one in engines}


BOTH = states(engine("chat", CHAT), engine("code", CODE))


def planned(**options: Any) -> SwitchPlan:
    return plan_switch(SwitchRequest(engine="chat", **options), BOTH)


def test_a_new_target_replaces_all_engines_of_the_model_and_each_keeps_its_draft() -> None:
    plan = planned(target="llama-2")
    assert (plan.engine, plan.model, plan.revision) == ("chat", "llama", "llama-2")
    assert {name: (version.target, version.draft) for name, version in plan.versions.items()} == {
        "chat": ("llama-2", "chat-draft"),
        "code": ("llama-2", "code-draft"),
    }
    assert plan.versions["code"].heterogeneous_vocab is True
    assert {version.revision for version in plan.versions.values()} == {"llama-2"}


def test_a_new_draft_replaces_one_engine_and_keeps_the_revision() -> None:
    plan = plan_switch(SwitchRequest(engine="code", draft="other"), BOTH)
    assert plan.versions == {"code": Version(target="llama-1", draft="other", revision="r1")}
    assert plan.revision == "r1"


def test_a_new_target_with_a_new_draft_gives_the_draft_to_one_engine() -> None:
    plan = planned(target="llama-2", draft="other", revision="r2")
    assert {name: version.draft for name, version in plan.versions.items()} == {"chat": "other", "code": "code-draft"}
    assert plan.revision == "r2"


def test_a_new_revision_alone_replaces_all_engines() -> None:
    plan = planned(revision="r2")
    assert set(plan.versions) == {"chat", "code"}
    assert plan.versions["chat"] == Version(target="llama-1", draft="chat-draft", revision="r2")


def test_without_a_draft_there_is_no_speculation() -> None:
    assert planned(no_draft=True).versions == {"chat": Version(target="llama-1", speculation="none", revision="r1")}


@pytest.mark.parametrize(("method", "kept"), [("eagle3", "eagle3"), ("ngram", None), ("none", None), (None, None)])
def test_a_method_without_a_draft_gives_way_to_a_draft(method: Any, kept: str | None) -> None:
    current = Version(target="llama-1", draft="head" if method == "eagle3" else None, speculation=method, revision="r1")
    plan = plan_switch(SwitchRequest(engine="chat", draft="other"), states(engine("chat", current)))
    assert plan.versions["chat"].speculation == kept


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "nothing to change"),
        ({"target": "llama-1", "draft": "chat-draft"}, "nothing to change"),
        ({"revision": "r1"}, "nothing to change"),
        ({"target": "llama-2", "revision": "r1"}, "revision 'r1' is in effect"),
        ({"draft": "a", "no_draft": True}, "only one of them"),
    ],
)
def test_what_changes_nothing_or_would_serve_old_answers_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SwitchRefusedError, match=reason):
        planned(**options)


@pytest.mark.parametrize("others", [[], [engine("code", CODE)]])
def test_an_engine_that_does_not_run_here_is_refused(others: list[EngineState]) -> None:
    with pytest.raises(SwitchRefusedError, match=r"no engine 'chat' runs here; there is (none|code)"):
        plan_switch(SwitchRequest(engine="chat", target="x"), states(engine("chat", None), *others))


def test_an_engine_of_the_model_elsewhere_prevents_a_new_target_but_no_new_draft() -> None:
    engines = states(engine("chat", CHAT), engine("remote", None))
    with pytest.raises(SwitchRefusedError, match="engine remote of model llama was not started by this"):
        plan_switch(SwitchRequest(engine="chat", target="llama-2"), engines)
    assert set(plan_switch(SwitchRequest(engine="chat", draft="other"), engines).versions) == {"chat"}


def test_an_engine_of_another_model_at_the_same_address_prevents_a_switch() -> None:
    engines = states(engine("chat", CHAT, port=1), engine("sql", None, port=1, model="llama-sql"))
    with pytest.raises(SwitchRefusedError, match="engine sql uses the address of chat"):
        plan_switch(SwitchRequest(engine="chat", draft="other"), engines)


def test_a_rollback_of_a_draft_concerns_one_engine() -> None:
    previous = Version(target="llama-1", draft="older", revision="r1")
    plan = plan_rollback("chat", states(engine("chat", CHAT, previous=previous), engine("code", CODE)))
    assert plan.versions == {"chat": previous}


def test_a_rollback_of_a_target_gives_each_engine_its_own_previous_version() -> None:
    old = {
        "chat": Version(target="llama-0", draft="a", revision="r0"),
        "code": Version(target="llama-0", revision="r0"),
    }
    engines = states(engine("chat", CHAT, previous=old["chat"]), engine("code", CODE, previous=old["code"]))
    plan = plan_rollback("code", engines)
    assert (plan.versions, plan.revision) == (old, "r0")


def test_a_rollback_of_a_target_keeps_a_draft_that_was_changed_since() -> None:
    old = Version(target="llama-0", draft="a", revision="r0")
    changed_since = engine("code", CODE, previous=Version(target="llama-1", draft="b", revision="r1"))
    plan = plan_rollback("chat", states(engine("chat", CHAT, previous=old), changed_since))
    assert (plan.versions["code"].target, plan.versions["code"].draft) == ("llama-0", "code-draft")
    assert plan.versions["code"].revision == "r0"


def test_an_engine_that_was_never_switched_cannot_be_rolled_back() -> None:
    with pytest.raises(SwitchRefusedError, match="chat has no previous version"):
        plan_rollback("chat", BOTH)


def test_an_engine_that_ray_places_is_not_switched() -> None:
    placed = msgspec.structs.replace(engine("code", CODE), address="")
    with pytest.raises(SwitchRefusedError, match=r"^code: engines that Ray places cannot be switched"):
        plan_switch(SwitchRequest(engine="chat", target="llama-2"), states(engine("chat", CHAT), placed))
