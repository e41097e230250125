"""With real vLLM: a tenant gets no prefix cache hits from another tenant's prompts, except within a group."""

import asyncio
import tomllib
from collections.abc import Iterator

import httpx
import pytest

from router.api.access.auth import hash_key
from router.core.endpoints.requests.cache_salt import derive_salts
from tests.e2e.vllm_process_tree import VllmProcessTree
from tests.support.router_process import RouterProcess

pytestmark = [pytest.mark.vllm, pytest.mark.real]

GROUPS = {"acme": None, "beta": None, "gamma": "family", "delta": "family"}
SECRET = "The merger is to be announced on the third of March at noon, at nine dollars a share. " * 6
ENGINE = "llama-chat"
HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def tenants_url(tree: VllmProcessTree, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second router in front of one of the engines, with four tenants, of which two share a group."""
    tenants = "".join(
        f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(name.encode())}"]\n'
        + (f'group = "{group}"\n' if group is not None else "")
        for name, group in GROUPS.items()
    )
    (engine,) = [one for one in tomllib.loads(tree.config.read_text())["engine"] if one["name"] == ENGINE]
    text = f"""
[router]

[cache]
url = "unix://{tree.redis_socket}"

[auth]
mode = "keys"

{tenants}
[[model]]
name = "llama"

[[engine]]
name = "{ENGINE}"
model = "llama"
url = "{engine["url"]}"
served_model = "{engine["served_model"]}"
"""
    router = RouterProcess(tmp_path_factory.mktemp("tenants"), text)
    router.start()
    try:
        asyncio.run(router.wait_until_ready())
        yield router.url
    finally:
        router.kill()


def found(tree: VllmProcessTree, url: str, path: str, tenant: str, prompt: str = SECRET, **fields: object) -> float:
    """How many tokens of the tenant's prompt the engine finds in its prefix cache."""
    before = tree.metric(ENGINE, HITS)
    bodies = {"/v1/completions": {"prompt": prompt}, "/v1/responses": {"input": prompt}}
    body = {"model": "llama", **bodies.get(path, {"messages": [{"role": "user", "content": prompt}]}), **fields}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 4
    headers = {"authorization": f"Bearer {tenant}", "cache-control": "no-store"}
    answer = httpx.post(f"{url}{path}", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return tree.metric(ENGINE, HITS) - before


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_the_guess_of_another_tenant_finds_no_cached_token(tree: VllmProcessTree, tenants_url: str, path: str) -> None:
    prompt = f"{path}: {SECRET}"
    assert found(tree, tenants_url, path, "acme", prompt) <= 16, "only the common start of all prompts"
    own = found(tree, tenants_url, path, "acme", prompt)
    assert own >= 48, "a tenant hits its own prefixes"
    assert found(tree, tenants_url, path, "beta", prompt) <= 16
    salt = derive_salts(GROUPS)["acme"]
    assert found(tree, tenants_url, path, "beta", prompt, cache_salt=salt) == 0, "nor with a forged salt of that tenant"
    assert found(tree, tenants_url, path, "gamma", prompt) <= 16
    assert found(tree, tenants_url, path, "delta", prompt) == own, "tenants of a group share"
