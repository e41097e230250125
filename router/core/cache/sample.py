"""Which of the kept answers to a request is meant, where several are kept (`cache.samples`).

Theory. Each sample has a key of its own: number 0 has that of the request, the others have it with their number behind.
So entries, requests in flight and purges know nothing of samples, and nothing changes where one answer is kept. A seed
or temperature 0 fixes the answer: such a request has one sample whatever the configuration says.
"""

from typing import Final

import msgspec

MAX_SAMPLES: Final = 16


class Sample(msgspec.Struct, frozen=True):
    """`number` of `count` samples. `is_first`: as far as is known, no sample of the request was asked for before."""

    number: int = 0
    count: int = 1
    is_first: bool = True

    def in_order(self) -> "list[Sample]":
        """All samples of the request, this one first."""
        numbers = [(self.number + step) % self.count for step in range(self.count)]
        return [Sample(number, self.count, self.is_first) for number in numbers]


ONLY_SAMPLE: Final = Sample()
