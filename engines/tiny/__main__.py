"""`python -m engines.tiny make`: the command line; run it with the Python that vLLM is installed in."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.tiny.folder import ForeignFolderError, atomic_replace, build_lock, is_complete
from engines.tiny.libraries import MissingLibraryError, load_libraries
from engines.tiny.pipeline import make_models
from engines.tiny.plan import VERSION
from engines.tiny.progress import progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 success, 1 failure (argparse exits with 2 on wrong usage)."""
    options = _parser().parse_args(arguments)
    try:
        summary = make(options.out, options.force, options.part, options.seconds, options.threads)
    except (MissingLibraryError, ForeignFolderError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; no files were written\n")
        return 1
    if options.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    elif summary["made"]:
        sys.stdout.write(f"{options.out}: {len(summary['models'])} models in {summary['seconds']:.0f} s\n")
    else:
        sys.stdout.write(f"{options.out}: already made\n")
    return 0


def make(out: Path, force: bool, part: float, limit_s: float | None, threads: int | None) -> dict[str, Any]:
    """Makes the models in `out` unless this version of them exists; returns the output of --json.

    With a `part` of the training, models that were trained completely will do, but not the other way round.
    """
    started = time.monotonic()
    models: list[dict[str, Any]] = []
    version = VERSION if part == 1 else f"{VERSION}, {part:g} of the training"
    with build_lock(out):
        must_build = force or not (is_complete(out, VERSION) or is_complete(out, version))
        if must_build:
            with progress(sys.stderr) as stage, atomic_replace(out, version) as folder:
                libraries = load_libraries(threads)
                models = [asdict(model) for model in make_models(libraries, folder, stage, part, limit_s)]
    seconds = round(time.monotonic() - started, 1)
    return {"out": str(out), "version": version, "made": must_build, "seconds": seconds, "models": models}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engines.tiny", description="Small models for real vLLM engines.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("make", help="train the five models on local text")
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="output folder, one subfolder per model"
    )
    command.add_argument(
        "--part",
        type=_part,
        default=1.0,
        metavar="SHARE",
        help="part of the training, more than 0 and at most 1 (default: 1); models of a part only do for tests",
    )
    command.add_argument(
        "--seconds", type=_positive, metavar="N", help="total training time of about N seconds at most"
    )
    command.add_argument("--threads", type=int, metavar="N", help="number of threads (default: torch's choice)")
    command.add_argument("--force", action="store_true", help="train again even if the models exist")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _part(text: str) -> float:
    part = float(text)
    if not 0 < part <= 1:
        raise argparse.ArgumentTypeError("must be more than 0 and at most 1")
    return part


def _positive(text: str) -> float:
    seconds = float(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
