"""Router processes, Redis and engines on one event loop with a virtual clock.

Nothing here is imported by the other tests. A seed decides every delay, interleaving and fault.
"""
