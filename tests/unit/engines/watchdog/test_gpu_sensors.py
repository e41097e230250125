"""Temperature and power through NVML: the device is a fake with nvidia-ml-py's functions; no test needs a GPU."""

from typing import Any

import pytest

from engines.spec import LaunchSpec
from engines.watchdog.gpu_sensors import GpuReading, gpu_indices, read_gpus


class NVMLError(Exception):
    """As in pynvml."""


class FakeNvml:
    """Cards with temperatures in degrees and power in milliwatts; None: the card has no such sensor."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *cards: tuple[int | None, int | None], has_driver: bool = True) -> None:
        self._cards = cards
        self._has_driver = has_driver
        self.sessions = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, as below
        if not self._has_driver:
            raise NVMLError("Driver Not Loaded")
        self.sessions += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.sessions -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        if index >= len(self._cards):
            raise NVMLError("Invalid Argument")
        return self._cards[index]

    def nvmlDeviceGetTemperature(self, card: Any, sensor: int) -> int:  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._value(card[0])

    def nvmlDeviceGetPowerUsage(self, card: Any) -> int:  # noqa: N802
        return self._value(card[1])

    def _value(self, value: int | None) -> int:
        assert self.sessions == 1
        if value is None:
            raise NVMLError("Not Supported")
        return value


@pytest.mark.parametrize(
    ("cards", "indices", "expected"),
    [
        ([(61, 250_000), (87, 300_500)], (0, 1), GpuReading(87, 550.5)),
        ([(61, 250_000), (87, 300_500)], (0,), GpuReading(61, 250)),
        ([(61, 250_000), (None, None)], (0, 1), GpuReading(61, None)),
        ([(None, 70_000)], (0,), GpuReading(None, 70)),
        ([(61, 250_000)], (3,), GpuReading()),
    ],
    ids=["the hottest counts", "only its own cards", "a card without sensors", "no temperature", "no such card"],
)
def test_the_highest_temperature_and_the_sum_of_the_power_are_read(
    cards: list[tuple[int | None, int | None]], indices: tuple[int, ...], expected: GpuReading
) -> None:
    nvml = FakeNvml(*cards)
    assert read_gpus(nvml, indices) == expected
    assert nvml.sessions == 0


def test_without_a_driver_the_reading_is_unknown() -> None:
    assert read_gpus(FakeNvml(has_driver=False), (0,)) == GpuReading()


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (LaunchSpec(target="t"), (0,)),
        (LaunchSpec(target="t", gpus=[2, 3]), (2, 3)),
        (LaunchSpec(target="t", tensor_parallel_size=2, pipeline_parallel_size=2), (0, 1, 2, 3)),
        (LaunchSpec(target="t", device="cpu"), ()),
    ],
)
def test_the_cards_of_an_engine_are_those_that_vllm_uses(launch: LaunchSpec, expected: tuple[int, ...]) -> None:
    assert gpu_indices(launch) == expected
