"""Fixtures and helpers that several tests use."""
