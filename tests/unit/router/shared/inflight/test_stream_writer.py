"""What a leader writes of its response to Redis."""

from typing import Any

from router.shared.inflight.stream_writer import Producer, RedisStreamWriter


class SizeRecordingPipeline:
    """A pipeline that records the sizes that it is given, and never answers."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def send(self, *commands: Any, size: int = 0, on_reply: Any = None) -> None:
        self.sizes.append(size)


async def test_the_timeout_of_an_end_record_grows_with_its_size() -> None:
    line = SizeRecordingPipeline()
    writer = RedisStreamWriter(line, "rh:1:flight:default:llama:0:0:0:1", lambda _: None)  # type: ignore[arg-type]
    writer.publish(Producer(), b"", b"x" * 100_000)
    assert line.sizes == [100_000]
