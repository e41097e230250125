"""When a reload needs another connection to Redis."""

from pathlib import Path

from router.process.wiring.redis_link import redis_identity
from router.settings import Settings, parse
from tests.support.router_server import router_config


def settings(url: str, cache: str = "") -> Settings:
    return parse(router_config(url, {"a": ("llama", "chat", "http://127.0.0.1:1")}, cache=cache), {})


def test_only_another_address_needs_one() -> None:
    before = redis_identity(settings("redis://one:6379"))
    assert redis_identity(settings("redis://one:6379", 'ttl = "1h"')) == before
    assert redis_identity(settings("redis://other:6379")) != before
    assert redis_identity(settings("redis://one:6379/1")) != before


def test_certificates_that_were_replaced_need_one(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    configured = settings(f"rediss://one:6379?ssl_ca_certs={certificate}")
    missing = redis_identity(configured)
    certificate.write_text("one", encoding="ascii")
    first = redis_identity(configured)
    assert first != missing
    assert redis_identity(configured) == first
    certificate.write_text("another", encoding="ascii")
    assert redis_identity(configured) != first
