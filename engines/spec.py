"""One engine of the configuration and how to start it, which the router's command line passes in JSON."""

from urllib.parse import urlsplit

import msgspec


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an engine: `[engine.launch]` of the configuration.

    `target` and `draft` are folders or names on the Hugging Face hub; without a draft there is no speculative decoding.
    `num_speculative_tokens` is the number of draft tokens per step. `heterogeneous_vocab` states whether the two have
    different vocabularies; None leaves that to `engines.vllm_command.vocabularies_differ`. `gpus` are indices as in
    CUDA_VISIBLE_DEVICES; the engine uses all of them. `args` are further options of vLLM's server and override those of
    `engines.vllm_command`; `env` overrides its environment.
    """

    target: str
    draft: str | None = None
    num_speculative_tokens: int = 4
    heterogeneous_vocab: bool | None = None
    gpus: list[int] = []
    args: list[str] = []
    env: dict[str, str] = {}


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of the configuration; unknown fields are ignored, so that the router may send more than is needed.

    `model` is the public name, `served_model` the name that the engine itself uses, `task` is chat, code or any,
    `max_model_len` the context in tokens (None: the model's own). Without `launch` the engine is started elsewhere.
    """

    name: str
    model: str
    task: str
    url: str
    served_model: str
    max_model_len: int | None = None
    launch: LaunchSpec | None = None

    @property
    def host(self) -> str:
        """Where the engine listens; loopback if the URL names no host."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """The port of the URL, or the default of its scheme; raises ValueError if the port is invalid."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)
