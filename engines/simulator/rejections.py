"""The bodies of vLLM's errors, word for word."""

from collections.abc import Mapping
from dataclasses import dataclass

_MAX_INPUT_LENGTH = 200  # characters of an invalid value that an error repeats

ERROR_SHAPES = ("vllm", "vllm-0.9", "detail", "details", "text", "html")
"""Error formats: this vLLM's, that of vLLM up to 0.9, FastAPI's (`detail` a text or a list), a proxy's (text, HTML)."""

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True, slots=True)
class Rejection(Exception):  # noqa: N818 - vLLM's response to a client, not a failure of the simulator
    """An error response; `status` is also the `code` in the body."""

    status: int
    message: str
    kind: str = "BadRequestError"
    param: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    shape: str = "vllm"

    @property
    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    @property
    def alternative_body(self) -> object:
        """The body in the format that `shape` names; None for the format of this vLLM."""
        match self.shape:
            case "vllm-0.9":
                return {
                    "object": "error", "message": self.message, "type": self.kind, "param": self.param,
                    "code": self.status,
                }  # fmt: skip
            case "detail":
                return {"detail": self.message}
            case "details":
                where = ["body", *(self.param or "messages").split(".")]
                return {"detail": [{"type": "value_error", "loc": where, "msg": self.message, "input": {}}]}
            case "text":
                return self.message.encode()
            case "html":
                return b"<html><body><h1>%b</h1></body></html>\n" % self.message.encode()
        return None


def bad_request(message: str, param: str | None = None, value: object = None) -> Rejection:
    """A value that fails vLLM's own checks; vLLM appends the parameter and the value to the message."""
    extras = ([f"parameter={param}"] if param is not None else []) + ([f"value={value}"] if value is not None else [])
    return Rejection(400, f"{message} ({', '.join(extras)})" if extras else message, param=param)


def validation_error(*problems: Mapping[str, object]) -> Rejection:
    """A body of the wrong shape; each problem has pydantic's `type`, `loc`, `msg` and `input`."""
    label = "error" if len(problems) == 1 else "errors"
    lines = "".join(f"\n  {_shorten_problem(problem)!r}" for problem in problems[:10])
    # vLLM lists ten problems at most.
    more = f"\n  ...and {len(problems) - 10} more {label}" if len(problems) > 10 else ""
    message = f"{len(problems)} validation {label}:{lines}{more}"
    return Rejection(400, message, kind="Bad Request", param=str(problems[0]["loc"]))


def unsupported_media_type() -> Rejection:
    """The content type is not `application/json`."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return Rejection(400, message, kind="Bad Request")


def unknown_model(model: str, names: tuple[str, ...]) -> Rejection:
    message = f"The model `{model}` does not exist. Valid aliases: {', '.join(names)}."
    return Rejection(404, message, kind="NotFoundError", param="model")


def prompt_too_long(context: int) -> Rejection:
    """A prompt longer than the context; vLLM stops counting one token after the limit."""
    counted = context + 1
    message = (
        f"This model's maximum context length is {context} tokens. However, your prompt contains at least {counted} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
        "input prompt."
    )
    return bad_request(message, "input_tokens", counted)


def engine_failed(message: str = ENGINE_DEAD, code: int = 500) -> Rejection:
    """The engine core died, or one generation failed inside it; 400: it refused a request that it had accepted."""
    return Rejection(code, message, kind="InternalServerError" if code >= 500 else "BadRequestError")


def _shorten_problem(problem: Mapping[str, object]) -> dict[str, object]:
    return {key: _shorten(value) if key == "input" else value for key, value in problem.items()}


def _shorten(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= _MAX_INPUT_LENGTH else value[:_MAX_INPUT_LENGTH] + "...[truncated]"
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)
