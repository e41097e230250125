"""The checks of vLLM's request validation, with its messages: before types are converted, and after."""

from engines.simulator.rejections import bad_request, unknown_model
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.fields import Body

# vLLM's limits.
_MAX_LOGPROBS = 20
_MAX_CHOICES = 16_384
_EPSILON = 1e-5
_MAX_SALT_LENGTH = 128


def check_before_types(body: Body, *, chat: bool) -> None:
    """The checks that vLLM makes before it converts types; raises Rejection."""
    check_cache_salt(body.get("cache_salt"))
    if body.get("stream_options") and not body.get("stream"):
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    top = body.get("top_logprobs") if chat else body.get("logprobs")
    name = "top_logprobs" if chat else "logprobs"
    if top is not None:
        if not isinstance(top, int | float):
            raise bad_request(f"`{name}` must be an integer.", name, top)
        if top < 0 and top != -1:
            raise bad_request(f"`{name}` must be a positive value or -1.", name, top)
        if chat and (top == -1 or top > 0) and not body.get("logprobs"):
            raise bad_request("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if not chat and body.get("prompt") in (None, ""):
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if chat and body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    if chat and body.get("tools") == []:
        raise bad_request(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )


def check_cache_salt(salt: object) -> None:
    """Raises Rejection."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > _MAX_SALT_LENGTH or any(character in salt for character in "@/\\\0"):
        raise bad_request(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
            "cache_salt",
        )


def check_model(body: Body, settings: SimulatorSettings) -> None:
    """Checks the model and the number of choices; raises Rejection."""
    model = body.get("model")
    if model and model not in settings.model_names:
        raise unknown_model(model, settings.model_names)
    n = 1 if body.get("n") is None else body["n"]
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    if n > _MAX_CHOICES:
        raise bad_request(
            f"n must be at most {_MAX_CHOICES}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable."
        )


def check_values(
    body: Body,
    settings: SimulatorSettings,
    limit_name: str,
    limit: int | None,
    logprobs: int | None,
    *,
    echo_only: bool,
) -> None:
    """Checks the values of sampling parameters, in vLLM's order; raises Rejection."""
    if limit is not None and limit > settings.context_length:
        raise bad_request(
            f"{limit_name}={limit} cannot be greater than max_model_len={settings.context_length}. "
            "Please request fewer output tokens.",
            limit_name,
            limit,
        )
    _check_ranges(body)
    if limit is not None and limit < 1 and not echo_only:
        raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    min_tokens = body.get("min_tokens") or 0
    if limit is not None and min_tokens > limit:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={limit}, got {min_tokens}.")
    if settings.draft and _is_unsupported_with_draft(body):
        raise bad_request(
            "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
        )
    if any(not text for text in body.get("stop") or ()):
        raise bad_request("stop cannot contain an empty string.")
    if logprobs is not None and logprobs > _MAX_LOGPROBS:
        message = f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {_MAX_LOGPROBS}"
        raise bad_request(message, "logprobs", logprobs)


def _check_ranges(body: Body) -> None:
    temperature, top_p = body.get("temperature"), body.get("top_p")
    for name in ("presence_penalty", "frequency_penalty"):
        if (value := body.get(name)) is not None and not -2 <= value <= 2:
            raise bad_request(f"{name} must be in [-2, 2], got {value}.")
    if temperature is not None and temperature < 0:
        raise bad_request(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature is not None and temperature > 2:
        raise bad_request(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if top_p is not None and not 0 < top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)


def _is_unsupported_with_draft(body: Body) -> bool:
    temperature = body.get("temperature")
    # vLLM sets min_p to 0 for greedy sampling before this check.
    greedy = temperature is not None and temperature < _EPSILON
    return bool(((body.get("min_p") or 0) > _EPSILON and not greedy) or body.get("logit_bias"))
