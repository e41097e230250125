"""Where engines run: on this machine, or on the nodes of a Ray cluster.

`ray_process` runs in `roundhouse up`. It starts `ray_driver`, a process for each engine, which places a
`node_process` on a node with enough GPUs. Only `ray_driver` imports Ray: a Ray client ends its whole process when it
loses the cluster's head node, and `up` must survive that.
"""
