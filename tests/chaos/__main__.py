"""The command line: `python -m tests.chaos --seconds 60 --seed 1`, from the project's folder."""

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path
from random import SystemRandom


async def _run(seconds: float, seed: int, folder: Path, redis: str, *, as_json: bool) -> int:
    import msgspec

    from tests.chaos.run import run_chaos

    task = asyncio.current_task()
    assert task is not None
    # Cancellation ends the testbed's processes; the default action of SIGTERM would leave them running.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    report = await run_chaos(seconds, seed, folder, redis)
    sys.stdout.write(msgspec.json.encode(report).decode() if as_json else "\n".join(report.lines()))
    sys.stdout.write("\n")
    return 1 if report.defects else 0


def main() -> int:
    """Exit code 0 if there are no defects, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill and freeze, and look what breaks.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="the same seed, the same faults and much the same requests")
    parser.add_argument("--redis", choices=("server", "sentinel", "cluster"), default="server")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--logs", type=Path, help="an existing folder that keeps the routers' logs")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    sys.stderr.write(f"chaos for {options.seconds:g} s over {options.redis}, seed {seed} …\n")
    with tempfile.TemporaryDirectory(prefix="roundhouse-chaos-") as scratch:
        try:
            return asyncio.run(
                _run(options.seconds, seed, options.logs or Path(scratch), options.redis, as_json=options.json)
            )
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.stderr.write("stopped before its end\n")
            return 1


if __name__ == "__main__":
    sys.exit(main())
