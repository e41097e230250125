"""Reads the facts that the checks are about. Reads are bounded; what cannot be read is reported, never guessed."""
