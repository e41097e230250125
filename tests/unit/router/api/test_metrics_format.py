"""The format of /metrics is what the scraper asks for."""

import pytest

from router.api.ops.metrics_format import prefers_openmetrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "accept",
    [
        PROMETHEUS_2, PROMETHEUS_3, "application/openmetrics-text", "Application/OpenMetrics-Text; Version=1.0.0",
        "text/plain, application/openmetrics-text", 'application/openmetrics-text;version="1.0.0"',
    ],
)  # fmt: skip
def test_a_scraper_that_prefers_openmetrics_gets_it(accept: str) -> None:
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "", "*/*", "text/plain", "text/html,application/xhtml+xml,*/*;q=0.8", "application/*",
        "application/openmetrics-text;version=2.0.0", "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;q=0", "application/openmetrics-text;q=0.4,text/plain;q=0.5",
        "application/openmetrics-text;q=nan", "application/openmetrics-text;q=much", ";;;,,,;q=", "," * 5000,
        " " * 5000 + "application/openmetrics-text",
    ],
)  # fmt: skip
def test_everyone_else_gets_the_text_format(accept: str) -> None:
    assert not prefers_openmetrics(accept)
