"""The one description of dashboards, recording rules and alerts, from which the files under deploy/ are generated.

`python -m tools.dashboards` writes them.
"""
