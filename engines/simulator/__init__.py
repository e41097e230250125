"""An engine simulator: an HTTP server that speaks what vLLM 0.32 speaks, fast, and with faults on demand.

It is for tests, for benchmarks of the router and for `make run` on machines without vLLM. The shapes it puts on the
wire (keys, their order, nulls, framing, errors, metrics) were taken from captures of a real vLLM server; a test
compares them. `docs/simulator.md` describes the options, the faults and the control endpoints.
"""
