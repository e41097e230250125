"""Replaces engines that `roundhouse up` runs by ones with another model, without a failed request.

A new engine starts beside the old one on a port of its own, is checked and warmed up, and takes over at all routers in
one step; the old one is stopped when it is idle. `switcher` has the steps in their order; `plan` and `room` decide.
"""
