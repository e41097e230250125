"""What the servers behind the engines' URLs say of themselves."""

import asyncio
import re
from typing import Final, NamedTuple

import msgspec

from router.checks.finding import Problem
from router.checks.pages import engine_target, explain_failure, get_models, get_page, model_names
from router.checks.words import Fixes
from router.net.client.errors import EngineError
from router.net.client.transport import HTTPTransport
from router.settings import EngineSettings, Settings
from router.settings.mistakes import written
from router.settings.tables import EngineKind
from router.upstream.engine_kinds import parse_model_list

CHAT_PATH: Final = "/v1/chat/completions"
EMBEDDINGS_PATH: Final = "/v1/embeddings"

_OK: Final = 200
_WRONG_METHOD: Final = 405
_NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)
_DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
_GENERATED: Final = "vllm:generation_tokens_total"
_RANK: Final = re.compile(r'^vllm:num_requests_running\{[^}]*\bengine="(\d+)"', re.MULTILINE)


class Counters(NamedTuple):
    """Of an engine's metrics: drafts and generated tokens since it started; None for a counter that it lacks."""

    drafts: float | None
    generated: float | None


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One URL of an engine.

    - `setting`: the URL's place in the file; `table`: that of its engine.
    - `problem`: why it cannot be used; then the rest is unknown.
    - `names`: the models that it lists. `root`: what vLLM loaded for the served model.
    - `generates`, `embeds`: whether it has the endpoints for that.
    - `ranks`: how many data-parallel ranks its metrics name.
    """

    engine: EngineSettings
    url: str
    setting: str
    table: str
    problem: Problem | None = None
    names: tuple[str, ...] | None = None
    kind: EngineKind | None = None
    max_model_len: int | None = None
    root: str | None = None
    generates: bool | None = None
    embeds: bool | None = None
    counters: Counters | None = None
    ranks: int | None = None

    @property
    def served(self) -> str:
        return self.engine.served_model or self.engine.model


async def ask_engines(transport: HTTPTransport, settings: Settings, *, timeout: float) -> list[EngineFacts]:
    """`timeout` in seconds, for each response. Sends GET requests only, so nothing is generated."""
    queries = []
    for index, engine in enumerate(settings.engine):
        for number, url in enumerate(engine.addresses):
            place = ("url",) if engine.url is not None else ("urls", number)
            facts = EngineFacts(
                engine=engine, url=url, setting=written(("engine", index, *place)), table=written(("engine", index))
            )
            queries.append(_ask(transport, facts, timeout))
    return list(await asyncio.gather(*queries))


async def _ask(transport: HTTPTransport, facts: EngineFacts, timeout: float) -> EngineFacts:
    try:
        status, page = await get_models(transport, facts.engine, facts.url, timeout=timeout)
        names = model_names(page) if status == _OK else None
        if names is None:
            return msgspec.structs.replace(facts, problem=_no_list(facts, status))
        listed = parse_model_list(page, facts.served)
        facts = msgspec.structs.replace(
            facts,
            names=tuple(names),
            kind=facts.engine.kind or listed.kind,
            max_model_len=listed.max_model_len,
            root=_root(page, facts.served),
        )
        return await _ask_vllm(transport, facts, timeout) if facts.kind == "vllm" else facts
    except EngineError as error:
        return msgspec.structs.replace(facts, problem=explain_failure(error, _fixes(facts), timeout=timeout))


async def _ask_vllm(transport: HTTPTransport, facts: EngineFacts, timeout: float) -> EngineFacts:
    """vLLM has only the endpoints of what its model can do, and counters of speculation only with speculation.

    Other servers have a path for what a model cannot do, too.
    """

    async def get(path: str) -> tuple[int, bytes]:
        return await get_page(transport, engine_target(facts.engine, facts.url, path), timeout=timeout)

    (chat, _), (embeddings, _), (status, metrics) = await asyncio.gather(
        get(CHAT_PATH), get(EMBEDDINGS_PATH), get("/metrics")
    )
    page = metrics.decode("utf-8", "replace") if status == _OK else None
    return msgspec.structs.replace(
        facts,
        generates=_exists(chat),
        embeds=_exists(embeddings),
        counters=_read_counters(page) if page is not None else None,
        ranks=len(set(_RANK.findall(page))) or None if page is not None else None,
    )


def _exists(status: int) -> bool | None:
    """Whether a path for POST exists, by the status that a GET gets."""
    return {_WRONG_METHOD: True, _NOT_FOUND: False}.get(status)


def _read_counters(page: str) -> Counters:
    def total(name: str) -> float | None:
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})? (\d[\d.e+]*)$", page, re.MULTILINE)
        return sum(map(float, values)) if values else None

    return Counters(total(_DRAFTS), total(_GENERATED))


def _root(page: bytes, served: str) -> str | None:
    """The page is a list of models; `root` is vLLM's."""
    models = msgspec.json.decode(page)["data"]
    root = next((model.get("root") for model in models if model["id"] == served), None)
    return root if isinstance(root, str) else None


def _no_list(facts: EngineFacts, status: int) -> Problem:
    if status in _REFUSED:
        key = "set api_key" if not facts.engine.request_headers else "correct api_key"
        return Problem(f"refuses the router with status {status}", f"{key} to a key that it accepts")
    if status == _NOT_FOUND:
        return Problem("has no /v1/models (status 404)", "correct the path of the URL")
    return Problem(f"status {status} without a list of models", "point the URL at a server with OpenAI's API")


def _fixes(facts: EngineFacts) -> Fixes:
    launched = facts.engine.launch is not None
    authority = "set ca_file to its authority's certificate"
    if facts.engine.ca_file is not None:
        authority = "ca_file holds another authority; set it to the one that signed this certificate"
    return Fixes(
        start="start it (`roundhouse up` does)" if launched else "start it, or correct the URL",
        correct_host="correct the host of the URL",
        without_tls="write http:// in place of https://",
        trust=authority,
        client_certificate="put it behind a proxy that has one; the router sends no certificate of its own",
    )
