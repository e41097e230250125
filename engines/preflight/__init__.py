"""`roundhouse engines preflight`: finds what would keep engines from starting or serving, before they are started.

`gather` reads the facts: ports, processes, model files, GPUs, disks. `observations` are those facts, frozen. `checks`
are plain functions from observations to findings, so that each is tested without the machine that it is about.
`command` connects the three, and `report` prints the findings.
"""
