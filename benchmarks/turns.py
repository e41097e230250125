"""What a turn with `previous_response_id` sends, and its time to the first token, beside a chat that carries its
history.

    .venv/bin/python -m benchmarks.turns [--turns 50] [--conversations 10] [--question 300] [--answer 100] [--json FILE]

It starts a Redis, two routers and a simulated engine that computes without any delay, so that the time is that of the
request's way. Conversations run one after the other. Each is held twice, with the same questions: at
/v1/chat/completions with all messages in each request, and at /v1/responses with the new one and
`previous_response_id`. Turns that follow each other go to different routers.

- tokens sent: those of the request's body, by the simulator's tokenizer.
- first token: from the request, whose body is ready, to the first event with text, at the client. It runs in this
  process; the routers, Redis and the engine do not. The engine gets the whole conversation both ways.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from benchmarks.options import count, output_file
from engines.simulator.text.tokens import split_tokens
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.simulated_engine import SimulatedEngine

CONFIGURATION: Final = """
[router]
[cache]
url = "unix://{redis}"
[[model]]
name = "tiny"
[[engine]]
name = "tiny"
model = "tiny"
url = "{engine}"
"""
CONTEXT: Final = 200_000  # tokens
TIMEOUT: Final = 120.0
ROUTERS: Final = 2


class Turn(NamedTuple):
    """`seconds`: to the first token."""

    tokens: int
    seconds: float


class Chat:
    """A conversation whose client keeps it."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        self._messages: list[dict[str, str]] = []

    def fields(self, question: str) -> dict[str, Any]:
        self._messages.append({"role": "user", "content": question})
        return {"messages": self._messages}

    @staticmethod
    def text(event: dict[str, Any]) -> str:
        choices = event.get("choices") or [{"delta": {}}]
        return choices[0]["delta"].get("content") or ""

    def on_answer(self, text: str, _: dict[str, Any]) -> None:
        self._messages.append({"role": "assistant", "content": text})


class Responses:
    """A conversation that the router keeps."""

    path = "/v1/responses"

    def __init__(self) -> None:
        self._previous: str | None = None

    def fields(self, question: str) -> dict[str, Any]:
        return {"input": question, "previous_response_id": self._previous}

    @staticmethod
    def text(event: dict[str, Any]) -> str:
        return event["delta"] if event["type"] == "response.output_text.delta" else ""

    def on_answer(self, _: str, last: dict[str, Any]) -> None:
        self._previous = last["response"]["id"]


WAYS: Final[dict[str, type[Chat] | type[Responses]]] = {
    "chat with its history": Chat, "previous_response_id": Responses,
}  # fmt: skip


async def converse(
    clients: list[httpx.AsyncClient], conversation: Chat | Responses, number: int, options: argparse.Namespace
) -> list[Turn]:
    turns = []
    limit = "max_tokens" if isinstance(conversation, Chat) else "max_output_tokens"
    for turn in range(options.turns):
        question = f"Conversation {number}, turn {turn}:" + " sea" * options.question
        body = {"model": "tiny", "stream": True, limit: options.answer, **conversation.fields(question)}
        text = json.dumps(body)
        turns.append(await ask(clients[turn % len(clients)], conversation, text))
    return turns


async def ask(http: httpx.AsyncClient, conversation: Chat | Responses, body: str) -> Turn:
    headers = {"content-type": "application/json"}
    said, last, first = "", {}, None
    began = time.perf_counter()
    async with http.stream("POST", conversation.path, content=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                last = json.loads(line[6:])
                if part := conversation.text(last):
                    first = first or time.perf_counter()
                    said += part
    assert first is not None, "an answer without a text"
    conversation.on_answer(said, last)
    return Turn(len(split_tokens(body)), first - began)


async def benchmark(options: argparse.Namespace) -> dict[str, list[list[Turn]]]:
    """By way, the turns of each conversation."""
    turns: dict[str, list[list[Turn]]] = {way: [] for way in WAYS}
    async with AsyncExitStack() as stack:
        simulated = SimulatedEngine(model="tiny", max_model_len=CONTEXT, kv_blocks=100_000)
        engine = await stack.enter_async_context(simulated)
        redis = RedisServer()
        await redis.start()
        stack.callback(redis.remove)
        text = CONFIGURATION.format(redis=redis.socket, engine=engine.url)
        clients = []
        for number in range(ROUTERS):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            router = RouterProcess(folder, text, name=f"serve{number}")
            router.start()
            stack.callback(router.kill)
            await router.wait_until_ready()
            client = httpx.AsyncClient(base_url=router.url, trust_env=False, timeout=TIMEOUT)
            clients.append(await stack.enter_async_context(client))
        for number in range(options.conversations):
            for way, kind in WAYS.items():
                turns[way].append(await converse(clients, kind(), number, options))
    return turns


def summary(turns: list[Turn]) -> dict[str, float]:
    seconds = sorted(turn.seconds for turn in turns)
    return {
        "tokens": round(statistics.median(turn.tokens for turn in turns)),
        "first_token_p50_ms": round(statistics.median(seconds) * 1000, 1),
        "first_token_p95_ms": round(seconds[int(0.95 * len(seconds))] * 1000, 1),
    }


def results_of(conversations: list[list[Turn]], fifth: int) -> dict[str, Any]:
    """Of all turns, and of each `fifth` of them."""
    parts = {
        f"{begin + 1} to {begin + fifth}": [turn for turns in conversations for turn in turns[begin : begin + fifth]]
        for begin in range(0, len(conversations[0]), fifth)
    }
    every = [turn for turns in conversations for turn in turns]
    sent = round(sum(turn.tokens for turn in every) / len(conversations))
    return {"parts": {name: summary(turns) for name, turns in parts.items()}, "all": summary(every), "sent": sent}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What a turn of a conversation sends, and its time to the first token."
    )
    parser.add_argument("--turns", type=count, default=50, help="a multiple of 5")
    parser.add_argument("--conversations", type=count, default=10)
    parser.add_argument("--question", type=count, default=300, help="tokens of a question, nearly")
    parser.add_argument("--answer", type=count, default=100, help="tokens of an answer at most")
    parser.add_argument("--json", type=output_file, help="write the results to this file")
    options = parser.parse_args()
    if options.turns % 5:
        parser.error("--turns is no multiple of 5")
    turns = asyncio.run(benchmark(options))
    results = {way: results_of(conversations, options.turns // 5) for way, conversations in turns.items()}
    heads = [f"{figure}, {way}" for figure in ("tokens sent", "first token p50", "p95") for way in WAYS]
    lines = ["| turns | " + " | ".join(heads) + " |", "|" + " --- |" * (len(heads) + 1)]
    parts = results["previous_response_id"]["parts"]
    lines += [row(part, [one["parts"][part] for one in results.values()]) for part in parts]
    lines.append(row("all", [{**one["all"], "tokens": one["sent"]} for one in results.values()]))
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def row(name: str, figures: list[dict[str, float]]) -> str:
    cells = [f"{one['tokens']:,}" for one in figures]
    cells += [f"{one[key]} ms" for key in ("first_token_p50_ms", "first_token_p95_ms") for one in figures]
    return "| " + " | ".join([name, *cells]) + " |"


if __name__ == "__main__":
    main()
