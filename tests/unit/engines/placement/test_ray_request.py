"""What an engine asks of a Ray cluster, and where it fits."""

import pytest

from engines.placement.ray_request import (
    RAY_EXECUTOR,
    Placement,
    RayNode,
    RayRequest,
    decide_placement,
    describe_resources,
    describe_shortage,
)


def node(name: str, gpus: float, cpus: float = 8.0) -> RayNode:
    return RayNode(name, f"10.0.0.{name}", {"CPU": cpus, "GPU": gpus, "memory": 1e10})


def test_an_engine_asks_for_its_gpus_on_one_node() -> None:
    placement = decide_placement(RayRequest(2), [node("1", 0), node("2", 4)])
    assert placement == Placement({"CPU": 1.0, "GPU": 2.0})


def test_resources_of_the_configuration_replace_the_computed_ones() -> None:
    placement = decide_placement(RayRequest(0, {"CPU": 4, "big_disk": 1}), [node("1", 0)])
    assert placement == Placement({"CPU": 4, "GPU": 0.0, "big_disk": 1})


def test_a_model_larger_than_every_node_is_spread_by_vllms_ray_executor() -> None:
    placement = decide_placement(RayRequest(8), [node("1", 2), node("2", 4), node("3", 4)])
    assert placement == Placement({"CPU": 1.0, "GPU": 0.0}, RAY_EXECUTOR, "2")


@pytest.mark.parametrize("nodes", [[], [node("1", 0)], [node("1", 2), node("2", 1)]])
def test_a_model_larger_than_the_cluster_waits_for_one_node_that_has_the_gpus(nodes: list[RayNode]) -> None:
    assert decide_placement(RayRequest(4), nodes) == Placement({"CPU": 1.0, "GPU": 4.0})


def test_a_shortage_names_what_is_asked_for_and_what_there_is() -> None:
    asked = {"CPU": 1.0, "GPU": 2.0, "tpu": 0.0}
    assert describe_shortage(asked, [node("1", 1), node("2", 0, cpus=4)], {"CPU": 12.0}) == (
        "no Ray node has 1 CPU, 2 GPU free: 10.0.0.1 has 8 CPU, 1 GPU, 10.0.0.2 has 4 CPU, 0 GPU; "
        "free in all: 12 CPU, 0 GPU"
    )


def test_a_shortage_lists_a_bounded_number_of_nodes() -> None:
    text = describe_shortage({"GPU": 1.0}, [node(str(n), 0) for n in range(20)], {})
    assert text.count(" has 0 GPU") == 8
    assert "12 more" in text
    assert "there is no node" in describe_shortage({"GPU": 1.0}, [], {})


def test_resources_in_words() -> None:
    assert describe_resources({"CPU": 0.5, "GPU": 0.0, "disk": 2.0}) == "0.5 CPU, 2 disk"
    assert describe_resources({}) == "nothing"
