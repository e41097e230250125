"""An engine simulator: a fast HTTP server with the API of vLLM 0.32, and with faults on demand.

Tests, the router's benchmarks and `make run` on machines without vLLM use it. The shapes on the wire (keys, their
order, nulls, framing, errors, metrics) come from captures of a real vLLM server, and a test compares them with the
captures. `docs/simulator.md` describes the options, the faults and the control endpoints.
"""
