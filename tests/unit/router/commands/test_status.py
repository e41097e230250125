"""What `roundhouse status` says of a router's health."""

from router.commands.status import EngineHealth, Health, find_problems


def test_problems_come_with_the_worst_first() -> None:
    engines = {
        "a": EngineHealth("m", "any", "down"),
        "b": EngineHealth("m", "any", "up", breaker="open"),
        "c": EngineHealth("m", "any", "refused"),
        "d": EngineHealth("m", "any", "down", asleep=True),
    }
    assert list(find_problems(Health("degraded", "full", engines, "all engines are drained"))) == [
        "all engines are drained",
        "1 engine is down: a",
        "1 engine is refusing the router's key: c",
        "Redis takes no writes (full): nothing is stored",
        "the breaker of b is open",
    ]
    assert list(find_problems(Health("healthy", "up", {}))) == []
