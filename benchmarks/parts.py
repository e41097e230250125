"""A profile by the parts of a request: what py-spy recorded, summed by who works.

    py-spy record --pid PID --rate 500 --duration 8 --format raw --output hit.raw
    python benchmarks/parts.py hit.raw [--cpu-ms 0.034]

What a library does counts for the part of the router that called it. What stands under no part is the event loop's:
waiting, reading from sockets, and what it does of its own. `--cpu-ms` is what a request costs, to tell the parts in
microseconds as well.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Final

PARTS: Final = {
    "router/api/openai": "endpoint: headers in and out",
    "router/api/auth": "endpoint: headers in and out",
    "router/api/heading": "endpoint: headers in and out",
    "router/api/": "server: HTTP, and writes to the client",
    "router/application": "server: HTTP, and writes to the client",
    "uvicorn/protocols/": "server: HTTP, and writes to the client",
    "router/flow/reading": "reading the request, and its key",
    "router/core/request": "reading the request, and its key",
    "router/core/key": "reading the request, and its key",
    "router/core/derive": "reading the request, and its key",
    "router/core/control": "reading the request, and its key",
    "router/core/policy": "reading the request, and its key",
    "router/core/classify": "classification",
    "router/core/recording": "recording and replay",
    "router/core/delta_template": "recording and replay",
    "router/core/stream_encoding": "recording and replay",
    "router/core/frames": "recording and replay",
    "router/core/chat_body": "recording and replay",
    "router/core/answers": "recording and replay",
    "router/core/recorders": "recording and replay",
    "router/core/choices": "recording and replay",
    "router/core/compaction": "recording and replay",
    "router/core/sse": "recording and replay",
    "router/core/replay": "recording and replay",
    "router/upstream/": "engine: request and answer",
    "router/flow/dispatch": "engine: whose turn it is",
    "router/flow/standing": "engine: whose turn it is",
    "router/flow/admission": "engine: whose turn it is",
    "router/flow/choosing": "engine: whose turn it is",
    "router/core/routing": "engine: whose turn it is",
    "router/core/retry": "engine: whose turn it is",
    "router/core/lengths": "engine: whose turn it is",
    "router/core/speculation": "engine: whose turn it is",
    "router/shared/breakers": "engine: whose turn it is",
    "router/shared/": "Redis",
    "router/store/": "Redis",
    "router/flow/": "the request's story, and flights",
    "router/core/reason": "the request's story, and flights",
    "router/core/fingerprint": "the request's story, and flights",
    "router/telemetry": "metrics and the log line",
    "router/tallies": "metrics and the log line",
    "router/access_log": "metrics and the log line",
}
LOOP: Final = "event loop: waiting, reading from sockets"


def part_of(stack: str) -> str:
    """The part that the innermost frame belongs to which belongs to any."""
    for frame in reversed(stack.split(";")):
        file = frame.partition("(")[2]
        for prefix, part in PARTS.items():
            if prefix in file and "server.py" not in file:
                return part
    return LOOP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--cpu-ms", type=float, help="what a request costs, in milliseconds of CPU time")
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
