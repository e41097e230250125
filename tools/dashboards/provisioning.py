"""What Grafana reads at its start: its data source, and where the dashboards lie."""

from typing import Any, Final

from tools.dashboards.prometheus_files import SCRAPE_INTERVAL

DASHBOARD_FOLDER: Final = "/etc/grafana/dashboards"
"""Where docker-compose.yml mounts deploy/grafana/dashboards."""


def datasources() -> dict[str, Any]:
    prometheus = {
        "name": "Prometheus",
        "uid": "prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": "$PROMETHEUS_URL",
        "isDefault": True,
        "editable": False,
        # The least step of a query; $__rate_interval is at least four times as long.
        "jsonData": {"timeInterval": SCRAPE_INTERVAL, "httpMethod": "POST"},
    }
    return {"apiVersion": 1, "datasources": [prometheus]}


def dashboard_providers() -> dict[str, Any]:
    provider = {
        "name": "roundhouse",
        "folder": "Roundhouse",
        "type": "file",
        "disableDeletion": True,
        "allowUiUpdates": False,
        "options": {"path": DASHBOARD_FOLDER},
    }
    return {"apiVersion": 1, "providers": [provider]}
