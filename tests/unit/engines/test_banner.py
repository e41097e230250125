"""What `roundhouse up` prints when everything is ready."""

from typing import Any

import pytest

from engines.banner import banner
from engines.launcher import engine_command
from engines.plan import RouterSpec, UpPlan
from engines.spec import EngineSpec, LaunchSpec
from router.core.types import EngineTask


def plan(*tasks: EngineTask) -> UpPlan:
    launch = LaunchSpec(target="target", draft="draft")
    engines = [
        EngineSpec(name=task, model="m", task=task, url=f"http://127.0.0.1:{port}", served_model="m", launch=launch)
        for port, task in enumerate(tasks, 8001)
    ]
    values: dict[str, Any] = {"state": "/state", "control_socket": "/s", "redis_socket": None, "redis_url": "redis://h"}
    router = RouterSpec(host="127.0.0.1", port=8080, argv=[])
    return UpPlan(**values, router=router, kind="auto", vllm_python=None, engines=engines, example_model="m")


def test_a_code_and_a_chat_request_are_printed_to_compare_drafts() -> None:
    text = banner(plan("chat", "code"), {})
    assert "Tell me about the sea." in text
    assert "Write a Python function" in text
    assert "Write a Python function" not in banner(plan("any"), {})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::1", "http://[::1]:8080"),
        ("::", "http://[::1]:8080"),
    ],
)
def test_the_routers_url_is_one_that_a_client_of_this_machine_can_use(host: str, url: str) -> None:
    assert RouterSpec(host=host, port=8080, argv=[]).url == url


@pytest.mark.parametrize(("task", "better"), [("chat", "--acceptance"), ("code", "--code-acceptance")])
def test_a_simulated_draft_is_good_at_the_prompts_of_its_task(task: EngineTask, better: str) -> None:
    made = plan(task)
    argv = engine_command(made.engines[0], "simulator", made).argv
    acceptance = {name: float(argv[argv.index(name) + 1]) for name in ("--acceptance", "--code-acceptance")}
    assert max(acceptance, key=acceptance.__getitem__) == better
    assert max(acceptance.values()) > 1.5 * min(acceptance.values())
