"""The control endpoints for tests: set and clear faults, read the counts, wait for counts."""

import asyncio
from dataclasses import asdict, fields

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.simulator.control.faults import FaultRegistry
from engines.simulator.control.request_log import RequestCounts, RequestLog

_MAX_WAIT = 10.0  # seconds that /_sim/stats waits for its goals
_COUNTS = {field.name for field in fields(RequestCounts)}


def control_routes(fault_registry: FaultRegistry, request_log: RequestLog) -> list[Route]:
    async def add(request: Request) -> Response:
        try:
            specs = await request.json()
            for spec in specs if isinstance(specs, list) else [specs]:
                fault_registry.add(dict(spec))
        except (TypeError, ValueError) as error:
            return JSONResponse({"detail": str(error)}, status_code=400)
        return JSONResponse(fault_registry.list_faults())

    async def clear(_: Request) -> Response:
        fault_registry.clear()
        return Response(status_code=204)

    async def listing(_: Request) -> Response:
        return JSONResponse(fault_registry.list_faults())

    async def stats(request: Request) -> Response:
        """The counts and the last requests. A query such as `?aborted=1` waits until the count is reached."""
        try:
            goals = {name: int(value) for name, value in request.query_params.items()}
        except ValueError:
            return JSONResponse({"detail": "a goal is a whole number"}, status_code=400)
        if unknown := goals.keys() - _COUNTS:
            return JSONResponse({"detail": f"no such count: {', '.join(sorted(unknown))}"}, status_code=400)
        try:
            await asyncio.wait_for(request_log.wait_for(goals), _MAX_WAIT)
        except TimeoutError:
            return JSONResponse({"detail": "not reached", **asdict(request_log.counts)}, status_code=504)
        return JSONResponse({**asdict(request_log.counts), "requests": list(request_log.requests)})

    return [
        Route("/_sim/faults", add, methods=["POST"]),
        Route("/_sim/faults", clear, methods=["DELETE"]),
        Route("/_sim/faults", listing, methods=["GET"]),
        Route("/_sim/stats", stats, methods=["GET"]),
    ]
