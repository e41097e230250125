"""What a simulated engine is asked for, and its answers in the format of vLLM: chats, and completions of token ids.

Each answer has the number of the generation that began it, which is in every token: `g17.0 g17.1 `. Another engine goes
on with the same answer, by the text of a last message to be continued, or by the ids of its tokens. A model may reason
before it: `t17.0 t17.1 `.
"""

import json
import re
from typing import Any, Final

import msgspec

_QUESTION: Final = re.compile(r"question (\d+)")
_SAID: Final = re.compile(r"(?:g\d+\.\d+ )*")
_TOKEN: Final = re.compile(r"g(\d+)\.(\d+) ")
_FIRST_ID: Final = 100
_IDS_PER_ANSWER: Final = 16
_THOUGHT_ID: Final = 99


class AnswerStart(msgspec.Struct, frozen=True):
    """What a request says of an answer that another engine began: its number, and the tokens that it has already."""

    answer: int
    tokens: int


class EngineRequest(msgspec.Struct, frozen=True):
    """One request that an engine gets. `question` is 0 if it is told only by an answer that is to be continued.

    `defect`: what is wrong with it. `tenant`: of the client; a continuation by ids does not name it.
    """

    question: int
    is_chat: bool
    streams: bool
    asks_ids: bool
    max_tokens: int | None
    start: AnswerStart | None = None
    defect: str = ""
    tenant: str = ""


def token(answer: int, at: int) -> str:
    return f"g{answer}.{at} "


def token_id(answer: int, at: int) -> int:
    return _FIRST_ID + answer * _IDS_PER_ANSWER + at


def prompt_ids(question: int) -> list[int]:
    return [question, 1]


def read_request(body: dict[str, Any]) -> EngineRequest:
    fields: dict[str, Any] = {
        "streams": bool(body.get("stream")), "asks_ids": bool(body.get("return_token_ids")),
        "max_tokens": body.get("max_tokens"), "tenant": body.get("safety_identifier", ""),
    }  # fmt: skip
    if "prompt" in body and isinstance(body["prompt"][0], str):
        return EngineRequest(0, False, **fields)
    if "prompt" in body:
        question, mark, *ids = body["prompt"]
        assert mark == 1
        said = [divmod(number - _FIRST_ID, _IDS_PER_ANSWER) for number in ids if number != _THOUGHT_ID]
        return _with_said(EngineRequest(question, False, **fields), said, body["prompt"])
    messages = body["messages"]
    found = _QUESTION.search(messages[0]["content"])
    assert found is not None
    request = EngineRequest(int(found[1]), True, **fields)
    if not body.get("continue_final_message"):
        return request
    text = messages[-1]["content"]
    said = [(int(answer), int(at)) for answer, at in _TOKEN.findall(text)] if _SAID.fullmatch(text) else []
    if messages[-1]["role"] != "assistant" or body.get("add_generation_prompt") is not False:
        return msgspec.structs.replace(request, defect=f"an engine refuses to continue {messages[-1]}")
    return _with_said(request, said, text)


def _with_said(request: EngineRequest, said: list[tuple[int, int]], given: object) -> EngineRequest:
    if not said or said != [(said[0][0], at) for at in range(len(said))]:
        return msgspec.structs.replace(request, defect=f"{given!r} is not the beginning of one answer")
    return msgspec.structs.replace(request, start=AnswerStart(said[0][0], len(said)))


class AnswerFormat:
    """The events and the body of one response. `number`: of the generation, for its id."""

    def __init__(self, request: EngineRequest, number: int, prompt_tokens: int) -> None:
        self._request = request
        self._number = number
        self._prompt_tokens = prompt_tokens
        self._with_ids = request.asks_ids
        kind = "chat.completion" if request.is_chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if request.is_chat else 'cmpl'}-{number}",
            "object": f"{kind}.chunk" if request.is_chat and request.streams else kind,
            "created": number,
            "model": "llama",
        }
        self._first = True

    def opening(self) -> bytes:
        if not self._request.is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        event = self._head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
        return _frame(event | {"prompt_token_ids": self._prompt_ids(), "prompt_text": None})

    def thought(self, at: int) -> bytes:
        delta = {"reasoning": f"t{self._number}.{at} "}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return _frame(self._head | {"choices": [choice | {"token_ids": [_THOUGHT_ID] if self._with_ids else None}]})

    def event(self, tokens: list[tuple[int, int]], reason: str | None = None) -> bytes:
        """An event with these tokens, `(answer, position)`; with a reason, the last one of the choice."""
        text = "".join(token(*each) for each in tokens)
        ids = [token_id(*each) for each in tokens] if self._with_ids else None
        end = {} if reason is None else {"stop_reason": None}
        choice: dict[str, Any]
        if self._request.is_chat:
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
            choice |= {**end, "token_ids": ids}
        else:
            first, self._first = self._first, False
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            choice |= {"prompt_token_ids": self._prompt_ids() if first else None, "token_ids": ids}
        return _frame(self._head | {"choices": [choice]})

    def usage_event(self, completion: int) -> bytes:
        return _frame(self._head | {"choices": [], "usage": self._usage(completion)})

    def body(self, text: str, reason: str, completion: int) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return json.dumps(self._head | {"choices": [choice], "usage": self._usage(completion)}).encode()

    def _usage(self, completion: int) -> dict[str, int]:
        prompt = self._prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _prompt_ids(self) -> list[int] | None:
        return prompt_ids(self._request.question) if self._with_ids else None


def _frame(event: dict[str, Any]) -> bytes:
    # As vLLM: without spaces.
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
