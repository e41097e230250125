"""The length of a model's queues, over the configurations that are in use."""

from router.flow.replicas.queue_lengths import QueueLengths


def test_a_new_configuration_does_not_hide_the_requests_that_wait_in_an_earlier_one() -> None:
    shown: dict[str, int] = {}
    lengths = QueueLengths(shown.__setitem__)
    earlier = lengths.reporter()
    earlier("llama", 0)
    earlier("llama", 3)
    later = lengths.reporter()
    later("llama", 0)
    later("mistral", 1)
    assert shown == {"llama": 3, "mistral": 1}
    assert lengths.total == 4
    later("llama", 2)
    earlier("llama", 1)
    assert shown["llama"] == 3
    earlier("llama", 0)
    assert shown["llama"] == 2
