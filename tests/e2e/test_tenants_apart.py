"""With real vLLM: a tenant gets no prefix cache hits from another tenant's prompts, except within a group."""

from collections.abc import Iterator

import httpx
import pytest

from router.api.auth import hash_key
from router.core.endpoints.cache_salt import derive_salts
from tests.e2e.vllm_process_tree import CONFIGURATION, VllmProcessTree, running_tree
from tests.support.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.real]

GROUPS = {"acme": None, "beta": None, "gamma": "family", "delta": "family"}
SECRET = "The merger is to be announced on the third of March at noon, at nine dollars a share. " * 6
HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def tenants_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    """One engine, and four tenants, two of whom share."""
    port = free_port()
    text = CONFIGURATION.read_text().replace(":8001", f":{port}")
    *head, llama, _, _ = text.split("[[engine]]")
    before_mistral = "[[engine]]".join(head).partition('[[model]]\nname = "mistral"')[0]
    tenants = "".join(
        f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(name.encode())}"]\n'
        + (f'group = "{group}"\n' if group is not None else "")
        for name, group in GROUPS.items()
    )
    settings = f'{before_mistral}\n[auth]\nmode = "keys"\n\n{tenants}\n[[engine]]{llama}'
    with running_tree(tmp_path_factory.mktemp("tenants"), settings, {"llama-chat": port}) as tree:
        yield tree


def found(tree: VllmProcessTree, path: str, tenant: str, prompt: str = SECRET, **fields: object) -> float:
    """How many tokens of the tenant's prompt the engine finds in its prefix cache."""
    before = tree.metric("llama-chat", HITS)
    bodies = {"/v1/completions": {"prompt": prompt}, "/v1/responses": {"input": prompt}}
    body = {"model": "llama", **bodies.get(path, {"messages": [{"role": "user", "content": prompt}]}), **fields}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 4
    headers = {"authorization": f"Bearer {tenant}", "cache-control": "no-store"}
    answer = httpx.post(f"{tree.url}{path}", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return tree.metric("llama-chat", HITS) - before


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_the_guess_of_another_tenant_finds_no_cached_token(tenants_tree: VllmProcessTree, path: str) -> None:
    prompt = f"{path}: {SECRET}"
    assert found(tenants_tree, path, "acme", prompt) <= 16, "only the common start of all prompts"
    own = found(tenants_tree, path, "acme", prompt)
    assert own >= 48, "a tenant hits its own prefixes"
    assert found(tenants_tree, path, "beta", prompt) <= 16
    salt = derive_salts(GROUPS)["acme"]
    assert found(tenants_tree, path, "beta", prompt, cache_salt=salt) == 0, "nor with a forged salt of that tenant"
    assert found(tenants_tree, path, "gamma", prompt) <= 16
    assert found(tenants_tree, path, "delta", prompt) == own, "tenants of a group share"
