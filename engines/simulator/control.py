"""The endpoints for tests: set faults, clear them, see what happened, wait for it."""

import asyncio
from dataclasses import asdict, fields

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.simulator.faults import FaultBook
from engines.simulator.request_log import Counts, Ledger

_LONGEST_WAIT = 10.0
_COUNTS = {field.name for field in fields(Counts)}


def control_routes(book: FaultBook, ledger: Ledger) -> list[Route]:
    """`/_sim/faults` and `/_sim/stats`."""

    async def add(request: Request) -> Response:
        try:
            wishes = await request.json()
            for wish in wishes if isinstance(wishes, list) else [wishes]:
                book.add(dict(wish))
        except (TypeError, ValueError) as error:
            return JSONResponse({"detail": str(error)}, status_code=400)
        return JSONResponse(book.listing())

    async def clear(_: Request) -> Response:
        book.clear()
        return Response(status_code=204)

    async def listing(_: Request) -> Response:
        return JSONResponse(book.listing())

    async def stats(request: Request) -> Response:
        """The counts and the last requests; a query such as `?aborted=1` first waits until it holds."""
        try:
            goals = {name: int(value) for name, value in request.query_params.items()}
        except ValueError:
            return JSONResponse({"detail": "a goal is a whole number"}, status_code=400)
        if unknown := goals.keys() - _COUNTS:
            return JSONResponse({"detail": f"no such count: {', '.join(sorted(unknown))}"}, status_code=400)
        try:
            await asyncio.wait_for(ledger.reach(goals), _LONGEST_WAIT)
        except TimeoutError:
            return JSONResponse({"detail": "not reached", **asdict(ledger.counts)}, status_code=504)
        return JSONResponse({**asdict(ledger.counts), "requests": list(ledger.requests)})

    return [
        Route("/_sim/faults", add, methods=["POST"]),
        Route("/_sim/faults", clear, methods=["DELETE"]),
        Route("/_sim/faults", listing, methods=["GET"]),
        Route("/_sim/stats", stats, methods=["GET"]),
    ]
