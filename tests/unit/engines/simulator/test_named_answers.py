"""An answer with the name of its generation goes on at another engine."""

import itertools
import json
from contextlib import closing
from pathlib import Path

import pytest

from engines.simulator.control.faults import FaultPlan
from engines.simulator.control.generation_log import GenerationLog
from engines.simulator.text.prompts import Prompt, chat_prompt, completion_prompts
from engines.simulator.text.tokens import encode_text

CHAT = [{"role": "user", "content": "Say it."}]
PLAN = FaultPlan(exact="{generation} is said, {generation}")


def open_log(path: Path) -> closing[GenerationLog]:
    clock = itertools.count(1)
    return closing(GenerationLog(path, lambda: next(clock)))


def continued(way: str, said: str) -> tuple[Prompt, Prompt]:
    """A prompt, and the one with which another engine goes on."""
    prompt = chat_prompt(CHAT, None, None) if way != "text" else completion_prompts("Say it: ")[0]
    match way:
        case "message":
            messages = [*CHAT, {"role": "assistant", "content": said}]
            return prompt, chat_prompt(messages, None, None, generation_prompt=False, continue_final=True)
        case "ids":
            return prompt, completion_prompts([*prompt.tokens, *encode_text(said)])[0]
    return prompt, completion_prompts(prompt.text + said)[0]


@pytest.mark.parametrize("way", ["ids", "message", "text"])
def test_an_engine_goes_on_with_the_named_answer_of_another_engine_for_the_same_user(tmp_path: Path, way: str) -> None:
    begun, after = tmp_path / "a.generations", tmp_path / "b.generations"
    with open_log(begun) as first, open_log(after) as second:
        for number in (1, 2, 3):
            first.start_generation({"user": f"u{number}"}, PLAN, continued(way, "")[0])
        (_, name, _) = (json.loads(line)["generation"] for line in begun.read_text().splitlines())
        prompt = continued(way, f"{name} is")[1]
        plan = second.start_generation({"user": "u2"}, FaultPlan(), prompt)
        assert (plan.generation, plan.exact) == (name, f"{name} is said, {name}")
        (line,) = map(json.loads, after.read_text().splitlines())
        assert (line["generation"], line["continued"]) == (name, True)
        # Not for another user, nor for another beginning; the prompt alone begins a new answer.
        for other, user in ((prompt, "u1"), (continued(way, "It is")[1], "u2"), (continued(way, "")[0], "u2")):
            assert second.start_generation({"user": user}, FaultPlan(), other).generation not in (None, name)
