"""The metrics of the draft models: which engine has which, and what each yields by the classifier's score."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from router.upstream.engine import Engine


def draft_families(engines: Iterable[Engine]) -> list[Metric]:
    """Each worker measures for itself, so the measurements are those of the worker that responds."""
    tokens_per_step = GaugeMetricFamily(
        "roundhouse_draft_tokens_per_step",
        "Tokens per decoding step with the draft model, by bin of the classifier's score: 0 certainly chat, 7 code",
        labels=["engine", "bin"],
    )
    info = InfoMetricFamily(
        "roundhouse_engine", "1; the engine's model, task, and the draft that the configuration names",
        labels=["engine", "model", "task"],
    )  # fmt: skip
    for engine in engines:
        info.add_metric([engine.name, engine.model, engine.task], {"draft": engine.draft or ""})
        for bin_, tokens in engine.tokens_per_step_by_bin.items():
            tokens_per_step.add_metric([engine.name, str(bin_)], tokens)
    return [info, tokens_per_step]
