import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, steps = os.environ["URL"], []
kind = {"responses": OpenAIResponsesModel, "chat": OpenAIChatModel}[sys.argv[1]]
model = kind("llama", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
agent = Agent(model, instructions="Use the tool.")


@agent.tool_plain
def add_step(number: str) -> str:
    """Adds a step."""
    steps.append(number)
    return f"step {number} added"


async def main() -> None:
    async with agent.iter("Count the steps.") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
    assert run.result.output
    print("step", len(steps))


asyncio.run(main())
