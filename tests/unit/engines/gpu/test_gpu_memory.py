"""Starts that fail for want of GPU memory. The log lines are those of vLLM 0.32 and PyTorch; no GPU is used here."""

import pytest

from engines.gpu.gpu_memory import is_out_of_memory, with_less_memory

OUT_OF_MEMORY = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB",
    "ValueError: Free memory on device cuda:0 (3.2/23.68 GiB) on startup is less than desired GPU memory utilization",
]
OTHER_FAILURES = [
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "OSError: [Errno 98] Address already in use",
    "",
]


@pytest.mark.parametrize("line", OUT_OF_MEMORY)
def test_a_log_that_says_so_is_out_of_memory(line: str) -> None:
    assert is_out_of_memory(f"INFO starting\n{line}\nTraceback\n")


@pytest.mark.parametrize("line", OTHER_FAILURES)
def test_a_failure_that_less_memory_does_not_mend_is_not_out_of_memory(line: str) -> None:
    assert not is_out_of_memory(line)


@pytest.mark.parametrize(
    ("argv", "less"),
    [
        (["vllm"], "0.82"),
        (["vllm", "--gpu-memory-utilization", "0.9"], "0.8"),
        (["vllm", "--gpu-memory-utilization=0.5"], "0.4"),
        (["vllm", "--gpu_memory_utilization", "0.9"], "0.8"),
        (["vllm", "--gpu-memory-utilization", "0.9", "--gpu-memory-utilization", "0.6"], "0.5"),
    ],
)
def test_the_second_try_uses_a_tenth_less(argv: list[str], less: str) -> None:
    assert with_less_memory(argv) == [*argv, "--gpu-memory-utilization", less]


@pytest.mark.parametrize("value", ["0.35", "much", ""])
def test_there_is_no_second_try_with_too_little_memory_or_an_unknown_amount(value: str) -> None:
    assert with_less_memory(["vllm", f"--gpu-memory-utilization={value}"]) is None
