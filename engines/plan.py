"""What `roundhouse up` is to run, as the router's command line hands it over in JSON."""

from typing import Literal

import msgspec

from engines.spec import EngineSpec

EngineKind = Literal["auto", "vllm", "simulator"]


class RouterSpec(msgspec.Struct, frozen=True):
    """Where the router will listen, and the command that starts it."""

    host: str
    port: int
    argv: list[str]

    @property
    def url(self) -> str:
        """Its address for somebody on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"


class UpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A process tree.

    - `state`: the folder for sockets, logs and Redis' data.
    - `redis_socket`: where the private Redis is to listen; None where Redis runs elsewhere, at `redis_url`.
    - `vllm_python`: the interpreter that vLLM is installed in; None: this one.
    - `example_model`: what the banner's example asks for.
    """

    state: str
    redis_socket: str | None
    redis_url: str | None
    router: RouterSpec
    kind: EngineKind
    vllm_python: str | None
    engines: list[EngineSpec]
    example_model: str
