"""`python -m engines preflight`: observes, checks and reports. `roundhouse engines preflight` executes it."""

import os
import sys
from pathlib import Path

from engines.plan import UpPlan
from engines.preflight.checks import check_all
from engines.preflight.finding import has_errors, report_json, report_lines
from engines.preflight.gather.engines import read_engine
from engines.preflight.gather.gpus import read_gpus
from engines.preflight.gather.machine import read_machine
from engines.preflight.gather.model_folder import hub_cache
from engines.preflight.gather.ports import read_port
from engines.preflight.observations import Observations


def main(plan: UpPlan, *, as_json: bool) -> int:
    """Prints the report. Returns the exit code: 1 if there is an error."""
    observed = observe(plan)
    findings = check_all(observed)
    if as_json:
        sys.stdout.buffer.write(report_json(findings) + b"\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in report_lines(findings, len(observed.engines)))
    sys.stdout.flush()
    return 1 if has_errors(findings) else 0


def observe(plan: UpPlan) -> Observations:
    python = plan.vllm_python or sys.executable
    launched = [spec for spec in plan.engines if spec.listens_here]
    router_port = [read_port(None, plan.router.host, plan.router.port)] if plan.router is not None else []
    return Observations(
        ports=(
            *router_port,
            *(read_port(spec.name, spec.host, spec.port) for spec in launched),
        ),
        engines=tuple(read_engine(spec, plan, os.environ) for spec in launched),
        elsewhere=tuple(spec.model for spec in plan.engines if not spec.listens_here),
        driver=read_gpus(),
        machine=read_machine(python, {"models": hub_cache(os.environ), "logs": Path(plan.state)}),
    )
