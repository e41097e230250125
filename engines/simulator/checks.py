"""What vLLM refuses of a request, in its words: before types are looked at, and after."""

from engines.simulator.fields import Body
from engines.simulator.rejections import refused, unknown_model
from engines.simulator.settings import Settings

_MOST_LOGPROBS = 20
_MOST_CHOICES = 16_384
_NOTHING = 1e-5
_LONGEST_SALT = 128


def check_before_types(body: Body, *, chat: bool) -> None:
    """What vLLM's validators look at first; raises Rejection."""
    check_cache_salt(body.get("cache_salt"))
    if body.get("stream_options") and not body.get("stream"):
        raise refused("Stream options can only be defined when `stream=True`.", "stream_options")
    top = body.get("top_logprobs") if chat else body.get("logprobs")
    name = "top_logprobs" if chat else "logprobs"
    if top is not None:
        if not isinstance(top, int | float):
            raise refused(f"`{name}` must be an integer.", name, top)
        if top < 0 and top != -1:
            raise refused(f"`{name}` must be a positive value or -1.", name, top)
        if chat and (top == -1 or top > 0) and not body.get("logprobs"):
            raise refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if not chat and body.get("prompt") in (None, ""):
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if chat and body.get("tools") == []:
        raise refused(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )


def check_cache_salt(salt: object) -> None:
    """The salt of the prefix cache; raises Rejection."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise refused("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > _LONGEST_SALT or any(character in salt for character in "@/\\\0"):
        raise refused(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
            "cache_salt",
        )


def check_model(body: Body, settings: Settings) -> None:
    """The model and the number of answers; raises Rejection."""
    model = body.get("model")
    if model and model not in settings.names:
        raise unknown_model(model, settings.names)
    n = 1 if body.get("n") is None else body["n"]
    if n < 1:
        raise refused(f"n must be at least 1, got {n}.")
    if n > _MOST_CHOICES:
        raise refused(
            f"n must be at most {_MOST_CHOICES}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable."
        )


def check_values(
    body: Body, settings: Settings, limit_name: str, limit: int | None, logprobs: int | None, *, echo_only: bool
) -> None:
    """The values of sampling parameters; raises Rejection."""
    if limit is not None and limit > settings.context:
        raise refused(
            f"{limit_name}={limit} cannot be greater than max_model_len={settings.context}. "
            "Please request fewer output tokens.",
            limit_name,
            limit,
        )
    temperature, top_p = body.get("temperature"), body.get("top_p")
    for name in ("presence_penalty", "frequency_penalty"):
        if (value := body.get(name)) is not None and not -2 <= value <= 2:
            raise refused(f"{name} must be in [-2, 2], got {value}.")
    if temperature is not None and temperature < 0:
        raise refused(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature is not None and temperature > 2:
        raise refused(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if top_p is not None and not 0 < top_p <= 1:
        raise refused(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if limit is not None and limit < 1 and not echo_only:
        raise refused(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    least = body.get("min_tokens") or 0
    if limit is not None and least > limit:
        raise refused(f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.")
    if settings.draft:
        # vLLM sets min_p to 0 for greedy sampling, before it looks.
        greedy = temperature is not None and temperature < _NOTHING
        if ((body.get("min_p") or 0) > _NOTHING and not greedy) or body.get("logit_bias"):
            raise refused(
                "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
            )
    if any(not text for text in body.get("stop") or ()):
        raise refused("stop cannot contain an empty string.")
    if logprobs is not None and logprobs > _MOST_LOGPROBS:
        message = f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {_MOST_LOGPROBS}"
        raise refused(message, "logprobs", logprobs)
