"""Workers hear each other without Redis."""

from collections.abc import Callable
from pathlib import Path

import pytest

from router.shared.prompts.sibling_link import FirstUpLink, SiblingLink
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def started(directory: Path, count: int) -> list[tuple[SiblingLink, list[bytes]]]:
    workers: list[tuple[SiblingLink, list[bytes]]] = []
    for number in range(count):
        got: list[bytes] = []
        link = SiblingLink(directory, number, count)
        link.start(got.append)
        workers.append((link, got))
    return workers


def stop(workers: list[tuple[SiblingLink, list[bytes]]]) -> None:
    for link, _ in workers:
        link.stop()


async def test_each_of_the_others_gets_a_message(tmp_path: Path) -> None:
    workers = await started(tmp_path, 3)
    workers[1][0].publish(b"one")
    await eventually(lambda: [got for _, got in workers] == [[b"one"], [], [b"one"]])
    stop(workers)
    assert list(tmp_path.iterdir()) == []


async def test_a_worker_that_starts_again_is_heard_and_hears(tmp_path: Path) -> None:
    workers = await started(tmp_path, 2)
    (tmp_path / "prompts-1").rename(tmp_path / "gone")  # as after a death: the path leads to nobody
    workers[0][0].publish(b"lost")
    got: list[bytes] = []
    again = SiblingLink(tmp_path, 1, 2)
    again.start(got.append)
    workers[0][0].publish(b"one")
    again.publish(b"two")
    await eventually(lambda: (got, workers[0][1]) == ([b"one"], [b"two"]))
    stop([*workers, (again, got)])


async def test_what_does_not_fit_is_lost_and_raises_nothing(tmp_path: Path) -> None:
    workers = await started(tmp_path, 2)
    sender, receiver = workers[0][0], workers[1][1]
    sender.publish(b"x" * (1 << 22))
    for number in range(5000):
        sender.publish(b"%d" % number)
    await eventually(lambda: receiver)
    assert receiver[0] == b"0"
    stop(workers)


async def test_one_worker_has_nobody_to_tell(tmp_path: Path) -> None:
    (alone,) = await started(tmp_path, 1)
    assert not alone[0].up
    alone[0].publish(b"x")
    stop([alone])


async def test_a_directory_that_no_socket_can_have_leaves_it_down(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 200)
    directory.mkdir()
    link = SiblingLink(directory, 0, 2)
    link.start(lambda _: None)
    assert not link.up
    link.publish(b"x")
    link.stop()


class Recorded:
    def __init__(self, up: bool, publish: Callable[[bytes], None]) -> None:
        self.up = up
        self.publish = publish


@pytest.mark.parametrize(("up", "by"), [((True, True), "a"), ((False, True), "b"), ((False, False), "")])
async def test_a_message_goes_over_the_first_link_that_is_up(up: tuple[bool, bool], by: str) -> None:
    used: list[str] = []
    first, second = up
    link = FirstUpLink(Recorded(first, lambda _: used.append("a")), Recorded(second, lambda _: used.append("b")))
    link.publish(b"x")
    assert "".join(used) == by
    assert link.up is any(up)
