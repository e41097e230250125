"""A profile by the parts of a request: the samples of py-spy, summed by part.

    py-spy record --pid PID --rate 500 --duration 8 --format raw --output hit.raw
    .venv/bin/python -m benchmarks.parts hit.raw [--cpu-ms 0.034]

The time of a library counts for the part of the router that called it. Samples without any part belong to the event
loop: waiting, reading from sockets, and its own work. `--cpu-ms` is the cost of a request, to print the parts in
microseconds as well.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Final

PARTS: Final = {
    "router/api/inference/endpoint": "endpoint: headers in and out",
    "router/api/access/auth": "endpoint: headers in and out",
    "router/api/inference/response_headers": "endpoint: headers in and out",
    "router/api/": "server: HTTP, and writes to the client",
    "router/process/application": "server: HTTP, and writes to the client",
    "router/net/server/": "server: HTTP, and writes to the client",
    "uvicorn/protocols/": "server: HTTP, and writes to the client",
    "router/flow/request_resolver": "parsing the request, and its key",
    "router/core/endpoints/requests/": "parsing the request, and its key",
    "router/core/cache/cache_key": "parsing the request, and its key",
    "router/core/cache/key": "parsing the request, and its key",
    "router/core/cache/cache_control": "parsing the request, and its key",
    "router/core/cache/policy": "parsing the request, and its key",
    "router/core/cache/": "lookup and flights",
    "router/core/routing/classify": "classification",
    "router/core/endpoints/": "recording and replay",
    "router/upstream/": "engine: request and response",
    "router/net/client/": "engine: request and response",
    "router/flow/attempts/engine_request": "engine: request and response",
    "router/flow/attempts/": "engine: selection and admission",
    "router/core/routing/": "engine: selection and admission",
    "router/core/resilience/": "engine: selection and admission",
    "router/core/quota/": "engine: selection and admission",
    "router/shared/engines/breakers": "engine: selection and admission",
    "router/shared/": "Redis",
    "router/store/": "Redis",
    "router/net/redis/": "Redis",
    "router/net/pending_replies": "Redis",
    "router/flow/": "lookup and flights",
    "router/telemetry": "metrics and the log line",
}
"""The part of each module, by the prefix of its path; the first match counts."""

LOOP: Final = "event loop: waiting, reading from sockets"


def part_of(stack: str) -> str:
    """The part of the innermost frame that belongs to one."""
    for frame in reversed(stack.split(";")):
        file = frame.partition("(")[2]
        for prefix, part in PARTS.items():
            if prefix in file and "server.py" not in file:
                return part
    return LOOP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--cpu-ms", type=float, help="the cost of a request, in milliseconds of CPU time")
    arguments = parser.parse_args()
    samples: Counter[str] = Counter()
    for line in arguments.profile.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        samples[part_of(stack)] += int(count)
    for part, count in samples.most_common():
        share = count / samples.total()
        cost = f"{arguments.cpu_ms * share * 1000:8.1f} us" if arguments.cpu_ms else ""
        print(f"{share:6.1%}{cost}  {part}")


main()
