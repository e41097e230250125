import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
steps = []


@function_tool
def add_step(number: str) -> str:
    """Adds a step."""
    steps.append(number)
    return f"step {number} added"


async def main() -> None:
    client = AsyncOpenAI(base_url=os.environ["URL"] + "/v1", api_key="none")
    model = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}[sys.argv[1]]("llama", client)
    agent = Agent(name="counter", model=model, tools=[add_step], instructions="Use the tool.")
    result = Runner.run_streamed(agent, "Count the steps.", max_turns=40)
    async for _ in result.stream_events():
        pass
    assert result.final_output
    print("step", len(steps))


asyncio.run(main())
