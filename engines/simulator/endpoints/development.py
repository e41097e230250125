"""The endpoints that vLLM has with VLLM_SERVER_DEV_MODE=1: the prefix cache, and sleep."""

from collections.abc import Awaitable, Callable
from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.simulator.engine.ranks import Ranks
from engines.simulator.engine.sleep_mode import PauseMode, SleepMode
from engines.simulator.rejections import Rejection

_VARY = {"Vary": "Origin"}
_MAX_LEVEL = 2
_MODES = ", ".join(f"'{mode}'" for mode in get_args(PauseMode)[:-1]) + f" or '{get_args(PauseMode)[-1]}'"


def development_routes(ranks: Ranks, sleep_mode: SleepMode) -> list[Route]:
    async def reset_prefix_cache(_: Request) -> object:
        results = [core.reset_prefix_cache() for core in ranks.cores]  # each of them, whatever the first says
        return {"success": all(results)}

    async def sleep(request: Request) -> object:
        level, mode = _level(request), _mode(request)
        await sleep_mode.sleep(level, mode)
        return {"status": "sleeping", "level": level}

    async def wake_up(request: Request) -> object:
        tags = request.query_params.getlist("tags") or None
        return {"status": "awake" if await sleep_mode.wake_up(tags) else "sleeping", "tags": tags}

    async def is_sleeping(_: Request) -> object:
        return {"is_sleeping": sleep_mode.is_sleeping}

    async def collective_rpc(request: Request) -> object:
        """Without a result for any method; a router calls `reload_weights` after level 2."""
        await request.body()
        return {"results": [None]}

    return [
        _route("/reset_prefix_cache", reset_prefix_cache),
        _route("/sleep", sleep),
        _route("/wake_up", wake_up),
        _route("/is_sleeping", is_sleeping, "GET"),
        _route("/collective_rpc", collective_rpc),
    ]


def _route(path: str, answer: Callable[[Request], Awaitable[object]], method: str = "POST") -> Route:
    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await answer(request), headers=_VARY)
        except Rejection as rejection:
            return JSONResponse(rejection.body, rejection.status, headers=_VARY)

    # Starlette adds HEAD to GET, FastAPI does not.
    route = Route(path, handle, methods=[method])
    route.methods = {method}
    return route


def _level(request: Request) -> int:
    text = request.query_params.get("level", "1")
    try:
        level = int(text)
    except ValueError:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise _invalid("level", "int_parsing", message, text) from None
    if level > _MAX_LEVEL:
        message = f"Input should be less than or equal to {_MAX_LEVEL}"
        raise _invalid("level", "less_than_equal", message, text, le=_MAX_LEVEL)
    if level < 0:
        raise _invalid("level", "greater_than_equal", "Input should be greater than or equal to 0", text, ge=0)
    return level


def _mode(request: Request) -> PauseMode:
    text = request.query_params.get("mode", "abort")
    if text in get_args(PauseMode):
        return cast("PauseMode", text)
    raise _invalid("mode", "literal_error", f"Input should be {_MODES}", text, expected=_MODES)


def _invalid(name: str, kind: str, message: str, given: str, **context: object) -> Rejection:
    problem: dict[str, object] = {"type": kind, "loc": f"query.{name}", "msg": message, "input": given}
    if context:
        problem["ctx"] = context
    return Rejection(400, f"1 validation error:\n  {problem}", "Bad Request", f"query.{name}")
