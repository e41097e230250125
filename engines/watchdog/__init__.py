"""Watches engines that `roundhouse up` has started: whether each is as fast as it was, and how hot its GPUs are.

`scrape` reads an engine's metrics, `observation` compares two readings, `baseline` learns the engine's own throughput,
and `decision` decides: keep, drain, drain and restart, page. `heat` lowers the share of its in-flight limit that
routers may use. These are pure. `planned_restart`, `engine_watch` and `heat_watch` do the I/O, `record` writes to Redis
what was seen and why something was done, and `watchdog` wires all of it.
"""
