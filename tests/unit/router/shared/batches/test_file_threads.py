"""The threads of files: what they return, and the end of the process."""

import gc
import subprocess
import sys
import threading

import pytest

from router.shared.batches.file_threads import FileThreads
from tests.support.waiting import TEST_TIMEOUT

_HANGS = """
import threading
from router.shared.batches.file_threads import FileThreads
threads, begun = FileThreads(2), threading.Event()
threads.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
{last}
"""


def test_results_and_errors_are_the_callers() -> None:
    threads = FileThreads(2)
    assert threads.submit(divmod, 7, 2).result(TEST_TIMEOUT) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(TEST_TIMEOUT)


def test_a_call_that_was_cancelled_before_it_began_does_not_run() -> None:
    threads, may_end = FileThreads(1), threading.Event()
    ran: list[int] = []
    first = threads.submit(may_end.wait)
    second = threads.submit(ran.append, 2)
    third = threads.submit(ran.append, 3)
    assert second.cancel()
    may_end.set()
    first.result(TEST_TIMEOUT)
    third.result(TEST_TIMEOUT)
    assert ran == [3]


def test_threads_end_with_their_owner() -> None:
    threads = FileThreads(3)
    assert sorted(threads.submit(abs, number).result(TEST_TIMEOUT) for number in range(5)) == [0, 1, 2, 3, 4]
    workers = list(threads._threads)
    assert len(workers) == 3
    del threads
    gc.collect()
    for worker in workers:
        worker.join(TEST_TIMEOUT)
        assert not worker.is_alive()


@pytest.mark.parametrize("last", ["", "raise SystemExit"])
def test_a_call_that_hangs_does_not_keep_the_process_from_ending(last: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _HANGS.format(last=last)], timeout=TEST_TIMEOUT, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_end_of_the_process_waits_for_a_call_that_ends_soon() -> None:
    program = """
from router.shared.batches.file_threads import FileThreads
import threading
threads, begun = FileThreads(2), threading.Event()
threads.submit(lambda: (begun.set(), threading.main_thread().join(), print("done", flush=True)))
begun.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=TEST_TIMEOUT, capture_output=True)
    assert (ended.stdout, ended.stderr) == (b"done\n", b"")
