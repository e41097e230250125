import os

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

steps = []


def add_step(number: str) -> str:
    """Adds a step."""
    steps.append(number)
    return f"step {number} added"


model = ChatOpenAI(model="llama", base_url=os.environ["URL"] + "/v1", api_key="none", streaming=True)
agent = create_react_agent(model, [add_step])
question = {"messages": [("user", "Count the steps.")]}
*_, last = agent.stream(question, {"recursion_limit": 100}, stream_mode="values")
assert last["messages"][-1].content
print("step", len(steps))
