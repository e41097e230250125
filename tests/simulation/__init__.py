"""Router processes, Redis and engines on one event loop with a virtual clock.

tests/world has scenarios for tests on the same loop, network and Redis. Here, a seed decides every delay, interleaving
and fault.
"""
