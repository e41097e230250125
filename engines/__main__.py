"""`python -m engines up --plan-fd N`: `roundhouse up` executes this and passes the plan as JSON on that descriptor."""

import argparse
import os
import sys

import msgspec

from engines.plan import UpPlan
from engines.up import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m engines")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up").add_argument("--plan-fd", type=int, required=True)
    options = parser.parse_args()
    with os.fdopen(options.plan_fd, "rb") as file:
        plan = msgspec.json.decode(file.read(), type=UpPlan)
    sys.exit(main(plan))
