"""deploy/kubernetes: who can reach what."""

import json

from tests.support.kubernetes_manifests import ENGINES, allowed, labels_of_pods, named, of_kind, selected
from tests.support.kustomization import Manifest, containers


def test_nothing_is_allowed_by_default(manifests: list[Manifest]) -> None:
    policy = named(manifests, "NetworkPolicy", "default-deny")["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for each in of_kind(manifests, "NetworkPolicy"):
        assert selected(each["spec"]["podSelector"], manifests)
        for direction in ("ingress", "egress"):
            assert direction not in each["spec"] or direction.title() in each["spec"]["policyTypes"]


def test_only_routers_reach_engines(manifests: list[Manifest]) -> None:
    reached_by = {
        peer for direction, pods, peer, _ in allowed(manifests) if direction == "ingress" and pods & {*ENGINES}
    }
    assert reached_by == {"router"}


def test_only_routers_reach_redis_unless_engines_announce_themselves(overlay: str, manifests: list[Manifest]) -> None:
    reached_by = {peer for direction, pods, peer, _ in allowed(manifests) if direction == "ingress" and "redis" in pods}
    expected = {"single-redis": {"router"}, "autoscaled": {"router", *ENGINES}}
    assert reached_by == expected.get(overlay, set())


def test_what_may_be_sent_may_be_received_at_the_same_port(manifests: list[Manifest]) -> None:
    ports = {
        (name, port["name"]): port["containerPort"]
        for name, _, each in containers(manifests)
        for port in each.get("ports", [])
    }
    workloads = labels_of_pods(manifests)
    sent = {
        (source, peer, port)
        for direction, pods, peer, port in allowed(manifests)
        for source in pods
        if direction == "egress" and peer in workloads
    }
    received = {
        (peer, target, ports[target, port])
        for direction, pods, peer, port in allowed(manifests)
        for target in pods
        if direction == "ingress" and peer in workloads
    }
    assert sent == received


def test_engines_reach_names_and_public_addresses_besides(manifests: list[Manifest]) -> None:
    workloads = labels_of_pods(manifests)
    outside = {
        (json.loads(peer).get("ipBlock", {}).get("cidr", "dns"), port)
        for direction, pods, peer, port in allowed(manifests)
        if direction == "egress" and pods & {*ENGINES} and peer not in workloads
    }
    assert outside == {("dns", 53), ("0.0.0.0/0", 443), ("::/0", 443)}
