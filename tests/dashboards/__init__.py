"""Dashboards, recording rules and alerts against a real Prometheus that scrapes a real router under load.

`python -m tests.dashboards` prints what each panel's queries return.
"""
