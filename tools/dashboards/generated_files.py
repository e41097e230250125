"""All generated files, by their path in the repository."""

from pathlib import Path
from typing import Final

from tools.dashboards import prometheus_files, provisioning
from tools.dashboards.cache import CACHE
from tools.dashboards.description import Dashboard
from tools.dashboards.engines import ENGINES
from tools.dashboards.grafana_json import dashboard_json
from tools.dashboards.overview import OVERVIEW
from tools.dashboards.prometheus_files import as_yaml
from tools.dashboards.tenants import TENANTS

ROOT: Final = Path(__file__).resolve().parents[2]

DASHBOARDS: Final[dict[str, Dashboard]] = {
    "overview": OVERVIEW,
    "cache": CACHE,
    "engines": ENGINES,
    "tenants": TENANTS,
}


def generated_files() -> dict[str, str]:
    files = {
        f"deploy/grafana/dashboards/{name}.json": dashboard_json(dashboard) for name, dashboard in DASHBOARDS.items()
    }
    yaml_files = {
        "grafana/provisioning/dashboards/roundhouse.yml": (
            "Grafana loads all dashboards of this folder.", provisioning.dashboard_providers(),
        ),
        "grafana/provisioning/datasources/prometheus.yml": (
            "The address comes from the environment variable PROMETHEUS_URL.", provisioning.datasources(),
        ),
        "prometheus/prometheus.yml": ("Prometheus scrapes the routers.", prometheus_files.prometheus_config()),
        "prometheus/recording.rules.yml": ("What dashboards and alerts compute.", prometheus_files.recording_rules()),
        "prometheus/alerts.rules.yml": (
            "docs/runbooks.md says what to do about each alert.", prometheus_files.alert_rules(),
        ),
        "kubernetes/components/monitoring/prometheus-rule.yaml": (
            "The rules of deploy/prometheus for the Prometheus operator.", prometheus_files.prometheus_rule(),
        ),
        **{
            f"prometheus/tests/{name}.test.yml": (
                f"promtool test rules deploy/prometheus/tests/{name}.test.yml", prometheus_files.rule_tests(interval)
            ) for name, interval in prometheus_files.EVALUATION_INTERVALS.items()
        },
    }  # fmt: skip
    return files | {f"deploy/{path}": as_yaml(*content) for path, content in yaml_files.items()}


def write(root: Path = ROOT) -> list[str]:
    """Writes the files that differ; returns their paths."""
    changed = []
    for path, text in generated_files().items():
        file = root / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
