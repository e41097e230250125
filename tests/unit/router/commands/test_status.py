"""What `roundhouse status` says of a router's health."""

from router.commands.status import Health, problem_words
from router.shared.status.status_documents import Problem


def test_the_problems_are_those_that_the_router_names() -> None:
    problem = Problem(severity="critical", kind="redis", words="Redis is full: nothing is stored")
    assert problem_words(Health("degraded", "full", {}, "all engines are drained", [problem])) == [problem.words]
    assert problem_words(Health("healthy", "up", {}, None, [])) == []


def test_a_former_version_names_only_the_reason() -> None:
    assert problem_words(Health("degraded", "up", {}, "all engines are drained")) == ["all engines are drained"]
    assert problem_words(Health("healthy", "up", {})) == []
