"""Scenarios: routers, engines, Redis and their clients in one event loop with a virtual clock.

scenario.py has what a test sees. Engines are those of engines/simulator; the loop, the network and Redis are those of
tests/simulation. launcher.py is `roundhouse up`: the fleet and the switches of engines.
"""
