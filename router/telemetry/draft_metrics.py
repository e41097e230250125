"""The metrics of the draft models: which engine has which, and what each yields by the classifier's score."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from router.telemetry.metric_objects import gauge_family, info_family
from router.upstream.engine import Engine


def draft_families(engines: Iterable[Engine]) -> list[Metric]:
    """Each worker measures for itself, so the measurements are those of the worker that responds."""
    tokens_per_step = gauge_family("roundhouse_draft_tokens_per_step")
    info = info_family("roundhouse_engine_info")
    for engine in engines:
        info.add_metric([engine.name, engine.model, engine.task, engine.draft or ""], {})
        for bin_, tokens in engine.tokens_per_step_by_bin.items():
            tokens_per_step.add_metric([engine.name, str(bin_)], tokens)
    return [info, tokens_per_step]
