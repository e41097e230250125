"""Which methods a path has: the `Allow` of responses with 405, and of those to OPTIONS (RFC 9110, 9.3.7 and 10.2.1)."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope


class FallbackRoute(Route):
    """A route for all methods of the paths that no other route has. It says nothing about the methods of a path."""


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """The methods of the request's path, OPTIONS included; empty if there is no such path."""
    methods: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and not isinstance(route, FallbackRoute):
            match, _ = route.matches(scope)
            if match is not Match.NONE:
                methods |= route.methods or set()
    return sorted(methods | {"OPTIONS"}) if methods else []
