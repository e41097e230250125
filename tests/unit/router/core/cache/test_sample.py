"""The keys of the samples of one request."""

import pytest

from router.core.cache.key_parts import KeyParts
from router.core.cache.miss_reason import SeenKeys, fingerprint_request, hash_parts
from router.core.cache.redis_keys import first_sample_key, sample_key, samples_key
from router.core.cache.sample import MAX_SAMPLES, ONLY_SAMPLE, Sample
from router.core.endpoints.endpoint import InferenceRequest
from tests.support.factories import conversation, derive_key, request_parts

REQUEST = conversation(("user", "Why?"))


def sample_hashes(number: int, request: InferenceRequest = REQUEST) -> tuple[int, ...]:
    return hash_parts(fingerprint_request(derive_key(request).sample(number), request_parts(request)))


def test_the_first_sample_has_the_key_of_the_request() -> None:
    key = derive_key(REQUEST)
    assert (key.sample(0).text, key.sample(0).digest) == (key.text, key.digest)


def test_each_sample_has_a_key_and_a_digest_of_its_own() -> None:
    samples = [derive_key(REQUEST).sample(number) for number in range(MAX_SAMPLES)]
    assert len({sample.text for sample in samples}) == len({sample.digest for sample in samples}) == MAX_SAMPLES


def test_the_samples_of_a_sample_are_those_of_the_request() -> None:
    key = derive_key(REQUEST)
    again = key.sample(3).sample(12).sample(5)
    assert (again.text, again.digest) == (key.sample(5).text, key.sample(5).digest)
    assert again.sample(0).digest == key.digest


def test_a_key_names_its_sample_behind_the_query_part() -> None:
    key = derive_key(REQUEST, tenant="a.1", model="llama-3.2")
    assert sample_key(key.text, 2) == key.text + ".2"
    assert sample_key(key.text + ".2", 0) == first_sample_key(key.text + ".15") == key.text
    assert samples_key(key.text + ".2") == samples_key(key.text) == "rh:1:session:samples:" + key.text[5:]
    assert KeyParts.parse(key.text + ".2").text == key.text + ".2"


def test_the_own_sample_is_the_first_in_order() -> None:
    assert [each.number for each in Sample(2, 4).in_order()] == [2, 3, 0, 1]
    assert ONLY_SAMPLE.in_order() == [ONLY_SAMPLE]


def test_samples_of_one_request_do_not_differ() -> None:
    parts = request_parts(REQUEST)
    one, other = (fingerprint_request(derive_key(REQUEST).sample(number), parts) for number in (0, 7))
    assert one.differing_parts(other) == other.differing_parts(one) == []


@pytest.mark.parametrize(("stored", "asked"), [(1, 0), (0, 1), (1, 2)])
def test_a_sample_that_is_missing_is_no_other_revision_of_the_model(stored: int, asked: int) -> None:
    seen = SeenKeys()
    seen.add(sample_hashes(stored))
    assert seen.miss_reason(sample_hashes(stored)) == "expired"
    assert seen.miss_reason(sample_hashes(asked)) == "query"


def test_a_further_sample_does_not_hide_what_differs_from_the_first() -> None:
    seen = SeenKeys()
    seen.add(sample_hashes(0))
    seen.add(sample_hashes(1))
    assert seen.miss_reason(sample_hashes(0, conversation(("user", "Why?"), temperature=0.5))) == "params"
