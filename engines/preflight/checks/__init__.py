"""The checks: plain functions over frozen observations."""

from collections.abc import Callable, Iterator
from typing import Final

from engines.preflight.checks.api_key import check_api_keys
from engines.preflight.checks.cpu_memory import check_cpu_memory
from engines.preflight.checks.disk import check_disk
from engines.preflight.checks.drafts import check_drafts
from engines.preflight.checks.gpus import check_gpus
from engines.preflight.checks.memory import check_memory
from engines.preflight.checks.models import check_models
from engines.preflight.checks.ports import check_ports
from engines.preflight.checks.sampling import check_sampling
from engines.preflight.checks.vllm import check_vllm
from engines.preflight.finding import Finding
from engines.preflight.observations import Observations

_CHECKS: Final[tuple[Callable[[Observations], Iterator[Finding]], ...]] = (
    check_vllm,
    check_ports,
    check_models,
    check_drafts,
    check_gpus,
    check_memory,
    check_cpu_memory,
    check_disk,
    check_sampling,
    check_api_keys,
)
_SEVERITIES: Final = ("error", "warning", "note")


def check_all(observed: Observations) -> list[Finding]:
    """All findings: errors first, then warnings, then notes; of each, in the order of the checks."""
    findings = [finding for check in _CHECKS for finding in check(observed)]
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))
