"""Redis URLs are parsed as redis-py does, and errors do not repeat an invalid URL."""

import pytest

from router.net.redis.url import RedisUrl, RedisUrlError, find_url_problems, parse_redis_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", RedisUrl(kind="server", hosts=(("h", 6379),))),
        ("redis://h:1/2", RedisUrl(kind="server", hosts=(("h", 1),), db=2)),
        ("redis://h/?db=2", RedisUrl(kind="server", hosts=(("h", 6379),), db=2)),
        ("redis://:p%40%2F@h", RedisUrl(kind="server", hosts=(("h", 6379),), password="p@/")),
        ("redis://u:p@[::1]:7", RedisUrl(kind="server", hosts=(("::1", 7),), username="u", password="p")),
        ("redis://[::1]", RedisUrl(kind="server", hosts=(("::1", 6379),))),
        ("unix:///run/a%20b.sock?db=3", RedisUrl(kind="socket", path="/run/a b.sock", db=3)),
        ("unix://u:p@/run/r.sock", RedisUrl(kind="socket", path="/run/r.sock", username="u", password="p")),
        (
            "rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=no",
            RedisUrl(
                kind="server",
                hosts=(("h", 6379),),
                tls=True,
                tls_options={"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False},
            ),
        ),
        (
            "redis+sentinel://u:p@a,b:2/main?db=1&sentinel_username=s&sentinel_password=t",
            RedisUrl(
                kind="sentinel",
                hosts=(("a", 26379), ("b", 2)),
                service="main",
                db=1,
                username="u",
                password="p",
                sentinel_username="s",
                sentinel_password="t",
            ),
        ),
        ("redis+cluster://a,b:2/0", RedisUrl(kind="cluster", hosts=(("a", 6379), ("b", 2)))),
        ("rediss+cluster://a", RedisUrl(kind="cluster", hosts=(("a", 6379),), tls=True)),
    ],
)
def test_an_address_is_parsed(url: str, address: RedisUrl) -> None:
    assert parse_redis_url(url) == address
    assert find_url_problems(url) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://secret@h", "expected embedded, redis://"),
        ("secret", "expected embedded, redis://"),
        ("memory://", "memory:// is not supported"),
        ("redis://", "the host is missing"),
        ("redis://:1", "the host is missing"),
        ("redis://h:0", "a port must be from 1 to 65535"),
        ("redis://h:70000", "a port must be from 1 to 65535"),
        ("redis://h:secret/0", "a port must be from 1 to 65535"),
        ("redis://h/secret", "the database must be a number"),
        ("redis://h/-1", "the database must be a number"),
        ("redis://secret@h", "a user needs a password"),
        ("redis://u:sec#ret@h", "white space and #"),
        ("redis://u:sec ret@h", "white space and #"),
        ("redis://u:sec/ret@h", "must be written as %2F"),
        ("redis://u:sec?ret@h", "must be written as %2F"),
        ("redis://[::1/0", "write an IPv6 address in brackets"),
        ("redis://a,b", "accept several hosts"),
        ("redis://h?secret=1", "the known options are db, each once"),
        ("redis://h?db=1&db=2", "the known options are db, each once"),
        ("redis://h?db=", "the known options are db, each once"),
        ("redis://h?ssl_ca_certs=/ca.pem", "TLS options need a rediss scheme"),
        ("rediss://h?ssl_cert_reqs=secret", "ssl_cert_reqs must be none, optional or required"),
        ("rediss://h?ssl_check_hostname=secret", "ssl_check_hostname must be true or false"),
        ("unix://", "the absolute path of a socket"),
        ("unix://secret/redis.sock", "the absolute path of a socket"),
        ("redis+sentinel://a", "the name of the Sentinel master"),
        ("redis+sentinel://a/main/secret", "the name of the Sentinel master"),
        ("redis+sentinel://a,,b/main", "the host is missing"),
        ("redis+cluster://a/1", "a cluster has only database 0"),
        ("redis+cluster://a?sentinel_password=secret", "the known options are db, each once"),
    ],
)
def test_an_invalid_address_is_reported_in_one_line_that_does_not_contain_it(url: str, message: str) -> None:
    (problem,) = find_url_problems(url)
    assert message in problem
    assert "\n" not in problem
    assert "secret" not in problem
    if not url.startswith("memory"):
        with pytest.raises(RedisUrlError):
            parse_redis_url(url)


def test_an_address_shows_no_password_in_a_traceback() -> None:
    assert "secret" not in repr(parse_redis_url("redis://u:secret@h"))
