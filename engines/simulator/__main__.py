"""The command line: `python -m engines.simulator --model NAME`."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from engines.simulator.endpoints.adapters import parse_module
from engines.simulator.kv_cache.kv_events import KvEndpointError
from engines.simulator.kv_cache.kv_events_config import parse_kv_events_config
from engines.simulator.server import run
from engines.simulator.settings import PoolingTask, SimulatorSettings, SpecDecodeMetricsLevel
from engines.simulator.text.tool_script import ToolScript


class Arguments(NamedTuple):
    """What to serve, and where."""

    settings: SimulatorSettings
    host: str
    port: int
    log_level: str


def main() -> None:
    arguments = parse_arguments(sys.argv[1:])
    try:
        run(*arguments)
    except KvEndpointError as error:
        sys.exit(str(error))


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Exits with code 2 and a message for arguments that are wrong."""
    parser = argparse.ArgumentParser(prog="python -m engines.simulator", description="Serve as vLLM 0.32 would.")
    _add_model_options(parser)
    _add_speed_options(parser)
    _add_endpoint_options(parser)
    options = parser.parse_args(argv)
    try:
        settings = _settings(options)
    except ValueError as error:
        parser.error(str(error))
    if settings.kv_events.is_published and find_spec("zmq") is None:
        parser.error("--kv-events-config needs pyzmq: pip install 'roundhouse-simulator[kv-events]'")
    return Arguments(settings, options.host, options.port, options.log_level)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 chooses a free port and prints it on stdout")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--draft", help="name of a draft model; enables speculative decoding")
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument(
        "--acceptance", type=float, default=0.7, help="acceptance probability of each draft token, 0 to 1"
    )
    parser.add_argument("--code-acceptance", type=float, help="the same for prompts about code")
    parser.add_argument(
        "--per-request-spec-decode-metrics", default="none", choices=get_args(SpecDecodeMetricsLevel),
        help="what responses say of the accepted draft tokens of their own request",
    )  # fmt: skip


def _add_speed_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ttft-ms", type=_amount, default=0.0, help="milliseconds to the first token")
    parser.add_argument("--tokens-per-second", type=_amount, default=0.0, help="of each request; 0: any number")
    parser.add_argument(
        "--prefill-tokens-per-second", type=_amount, default=0.0,
        help="prompt tokens that the engine computes in a second, without those in its prefix cache; 0: any number",
    )  # fmt: skip
    parser.add_argument(
        "--decode-ms", type=_amount, default=0.0, help="milliseconds that each running sequence adds to a step"
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=int, help="tokens of a step, which limit the prompts that it computes"
    )
    parser.add_argument("--jitter", type=_amount, default=0.0, help="relative variation of each delay, 0 to 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-blocks", type=int, default=4096, help="KV blocks of 16 tokens")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument(
        "--data-parallel-size", type=int, default=1, help="ranks, each with a KV cache and a queue of its own"
    )


def _add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runner", default="generate", choices=["generate", "pooling"], help="pooling: no generation")
    parser.add_argument("--pooling-task", default="embed", choices=get_args(PoolingTask), help="of a pooling model")
    parser.add_argument("--num-labels", type=int, default=1, help="classes of a model for classification")
    parser.add_argument("--speech", action="store_true", help="a model for speech: the audio endpoints")
    parser.add_argument("--enable-auto-tool-choice", action="store_true")
    parser.add_argument(
        "--tool-script", type=_tool_script, help='a JSON file: what "auto" calls; see docs/simulator.md'
    )
    parser.add_argument("--generations", help="a log file, one line per generation; see docs/simulator.md")
    parser.add_argument(
        "--enable-prompt-tokens-details", action="store_true", help="usage says how many prompt tokens were cached"
    )
    parser.add_argument("--kv-events-config", help="JSON as for vLLM: events of KV blocks over ZMQ; needs pyzmq")
    parser.add_argument(
        "--server-dev-mode", action="store_true", default=_is_set("VLLM_SERVER_DEV_MODE"),
        help="serve /reset_prefix_cache, /sleep, /wake_up and /is_sleeping, as with VLLM_SERVER_DEV_MODE=1",
    )  # fmt: skip
    parser.add_argument("--sleep-ms", type=_amount, default=0.0, help="milliseconds to fall asleep")
    parser.add_argument("--wake-ms", type=_amount, default=0.0, help="milliseconds to wake up")
    parser.add_argument(
        "--enable-scale-out", action="store_true", help="serve /v1/chat/completions/derender, for a --tool-script"
    )
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--lora-modules", nargs="+", default=[], help="adapters: name=path, or JSON as for vLLM")
    parser.add_argument(
        "--allow-runtime-lora-updating", action="store_true",
        default=_is_set("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        help="serve /v1/load_lora_adapter and /v1/unload_lora_adapter, as with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
    )  # fmt: skip
    parser.add_argument("--log-level", default="warning", choices=["critical", "error", "warning", "info", "debug"])


def _settings(options: argparse.Namespace) -> SimulatorSettings:
    """Raises ValueError."""
    return SimulatorSettings(
        model=options.model,
        served_names=tuple(options.served_model_name),
        max_model_len=options.max_model_len,
        draft=options.draft,
        num_speculative_tokens=options.num_speculative_tokens,
        acceptance=options.acceptance,
        code_acceptance=options.code_acceptance,
        per_request_spec_decode_metrics=options.per_request_spec_decode_metrics,
        ttft=options.ttft_ms / 1000,
        tokens_per_second=options.tokens_per_second,
        prefill_tokens_per_second=options.prefill_tokens_per_second,
        decode=options.decode_ms / 1000,
        max_num_batched_tokens=options.max_num_batched_tokens,
        jitter=options.jitter,
        seed=options.seed,
        kv_blocks=options.kv_blocks,
        max_num_seqs=options.max_num_seqs,
        data_parallel_size=options.data_parallel_size,
        auto_tool_choice=options.enable_auto_tool_choice or options.tool_script is not None,
        tool_script=options.tool_script,
        pooling=options.runner == "pooling",
        pooling_task=options.pooling_task,
        num_labels=options.num_labels,
        speech=options.speech,
        generations=options.generations,
        enable_prompt_tokens_details=options.enable_prompt_tokens_details,
        kv_events=parse_kv_events_config(options.kv_events_config or "{}"),
        server_dev_mode=options.server_dev_mode,
        sleep_seconds=options.sleep_ms / 1000,
        wake_seconds=options.wake_ms / 1000,
        enable_scale_out=options.enable_scale_out,
        enable_lora=options.enable_lora,
        lora_modules=tuple(parse_module(text) for text in options.lora_modules),
        allow_runtime_lora_updating=options.allow_runtime_lora_updating,
    )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0").strip().lower() in ("1", "true")


def _amount(text: str) -> float:
    """A time or a speed. argparse adds the option's name to the error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0, got {text!r}")
    return value


def _tool_script(path: str) -> ToolScript:
    try:
        return ToolScript.parse(Path(path).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None


if __name__ == "__main__":
    main()
