"""`python -m engines COMMAND --plan-fd N`: `roundhouse` executes it, with the plan as JSON on that descriptor."""

import argparse
import os
import signal
import sys

import msgspec

from engines import announce, dry_run, up
from engines.plan import UpPlan
from engines.preflight import command as preflight

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m engines")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "announce", "dry-run", "preflight"):
        command = commands.add_parser(name)
        command.add_argument("--plan-fd", type=int, required=True)
        if name in ("dry-run", "preflight"):
            command.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with os.fdopen(options.plan_fd, "rb") as file:
        plan = msgspec.json.decode(file.read(), type=UpPlan)
    if options.command == "up":
        sys.exit(up.main(plan))
    if options.command == "announce":
        sys.exit(announce.main(plan))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may stop early
    report = dry_run if options.command == "dry-run" else preflight
    sys.exit(report.main(plan, as_json=options.json))
