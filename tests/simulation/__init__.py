"""Router processes, Redis and engines on one event loop with a virtual clock.

No other test imports this package. A seed decides every delay, interleaving and fault.
"""
