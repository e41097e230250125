"""The metrics that dashboards and alerts use, with their labels; a test compares them with what the router exports."""

from collections.abc import Mapping
from typing import Final

LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "llm_cache_entries_damaged_total": (),
    "llm_cache_requests_total": ("tenant", "model", "result"),
    "llm_cache_writes_total": ("result",),
    "llm_continuation_tokens_total": ("model",),
    "llm_continuations_total": ("model", "reason", "result"),
    "llm_energy_joules_total": ("tenant", "model", "kind"),
    "llm_engine_wakes_total": ("model", "result"),
    "llm_fallbacks_total": ("model", "fallback"),
    "llm_gpu_seconds_total": ("tenant", "model", "kind"),
    "llm_inter_token_latency_seconds_bucket": ("model", "le"),
    "llm_request_duration_seconds_bucket": ("model", "cache", "le"),
    "llm_requests_in_flight": ("engine",),
    "llm_requests_queued": ("model",),
    "llm_requests_rejected_total": ("reason",),
    "llm_requests_total": ("tenant", "model", "engine", "task", "status"),
    "llm_retries_total": ("engine", "reason"),
    "llm_router_overhead_seconds_bucket": ("cache", "le"),
    "llm_time_to_first_token_seconds_bucket": ("model", "cache", "le"),
    "llm_tokens_per_second_bucket": ("model", "le"),
    "llm_tokens_total": ("tenant", "model", "kind"),
    "roundhouse_breaker_state": ("engine",),
    "roundhouse_draft_pays": ("engine", "task"),
    "roundhouse_draft_tokens_per_step": ("engine", "bin"),
    "roundhouse_engine_asleep": ("engine",),
    "roundhouse_engine_capacity": ("engine",),
    "roundhouse_engine_info": ("engine", "model", "task", "draft"),
    "roundhouse_engine_power_watts": ("engine",),
    "roundhouse_engine_temperature_celsius": ("engine",),
    "roundhouse_engine_tokens_per_second": ("engine", "task"),
    "roundhouse_engine_up": ("engine",),
    "roundhouse_redis_up": (),
    "roundhouse_watchdog_restarts_total": ("engine", "reason"),
    "vllm_kv_cache_usage": ("engine",),
    "vllm_prefix_cache_hit_rate": ("engine",),
    "vllm_spec_acceptance_rate": ("engine",),
    "vllm_spec_tokens_per_step": ("engine",),
}
"""Without `job` and `instance`, which Prometheus adds."""
