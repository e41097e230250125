"""One connection that sends recorded batches as fast as Redis replies; `saturation.py` starts several of them.

    python -m lab.redis_limits.replay_client PORT RECORDING --batch 16 --seconds 5

RECORDING is a file with JSON: `phases` (a list of texts in Latin-1), `digest`, `listener`, `renamed`. As a router does,
it sends the first phase of `--batch` requests together, then the second phase of all of them, and so on. If `renamed`
is true, each request gets a key of its own. Prints the number of requests and of replies, the seconds, and `sent`: the
requests with those of the first round, which is not timed.
"""

import argparse
import json
import os
import socket
import threading
import time
from pathlib import Path

import hiredis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--batch", type=int, default=16, help="requests whose commands are sent together")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--listen", action="store_true", help="ask for notifications on a second connection")
    options = parser.parse_args()
    recording = json.loads(options.recording.read_text())
    digest = recording["digest"].encode()
    if options.listen:
        listen(options.port, recording["listener"].encode("latin-1"))
    phases = [phase.encode("latin-1") for phase in recording["phases"]]
    batches = [templates(phase, digest, options.batch, renamed=recording["renamed"]) for phase in phases]
    commands = [count_commands(batch) for batch in batches]
    connection = socket.create_connection(("127.0.0.1", options.port))
    connection.settimeout(30.0)
    rounds = 0

    def send(batch: bytes) -> None:
        own = b"%04x%08x" % (os.getpid() & 0xFFFF, rounds)
        connection.sendall(batch.replace(PLACEHOLDER, own) if recording["renamed"] else batch)

    # All replies to a phase have one length, so only those of the first round are parsed: parsing costs a client more
    # than executing costs Redis.
    lengths = []
    for batch, count in zip(batches, commands, strict=True):
        send(batch)
        lengths.append(read_replies(connection, count))
    buffer = bytearray(max(lengths))
    started = now = time.monotonic()
    while now - started < options.seconds:
        rounds += 1
        for batch, length in zip(batches, lengths, strict=True):
            send(batch)
            received = 0
            while received < length:
                count = connection.recv_into(buffer, length - received)
                if not count:
                    raise RuntimeError("Redis has closed the connection")
                received += count
        now = time.monotonic()
    print(json.dumps({
        "requests": rounds * options.batch, "replies": rounds * sum(commands), "seconds": now - started,
        "sent": (rounds + 1) * options.batch,
    }))  # fmt: skip


PLACEHOLDER = b"~roundhouse~"
"""12 bytes that stand for the process and the round in a key; the number in the batch follows them."""


def templates(phase: bytes, digest: bytes, count: int, *, renamed: bool) -> bytes:
    """The phase of `count` requests. The digests keep their length, so that the commands stay valid."""
    if not renamed:
        return phase * count
    rest = digest[len(PLACEHOLDER) + 4 :]
    return b"".join(phase.replace(digest, b"%b%04x%b" % (PLACEHOLDER, number, rest)) for number in range(count))


def count_commands(batch: bytes) -> int:
    reader = hiredis.Reader()
    reader.feed(batch)
    count = 0
    while reader.gets() is not False:
        count += 1
    return count


def read_replies(connection: socket.socket, count: int) -> int:
    """Returns their length. Raises RuntimeError for an error reply, or if Redis closes the connection."""
    reader, length = hiredis.Reader(), 0
    while count:
        data = connection.recv(1 << 18)
        if not data:
            raise RuntimeError("Redis has closed the connection")
        length += len(data)
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            if isinstance(reply, Exception):
                raise RuntimeError(str(reply))  # noqa: TRY004 - Redis has refused a command
            count -= 1
    return length


def listen(port: int, handshake: bytes) -> None:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(handshake)

    def discard() -> None:
        while connection.recv(1 << 18):
            pass

    threading.Thread(target=discard, daemon=True).start()


if __name__ == "__main__":
    main()
