"""Can every engine, and the router, listen where it is configured to?"""

from collections.abc import Iterator

from engines.preflight.finding import Finding, error
from engines.preflight.observations import Observations, Port
from engines.preflight.wording import listed, process_name


def check_ports(observed: Observations) -> Iterator[Finding]:
    first: dict[tuple[str, int], str] = {}
    for port in observed.ports:
        setting = _setting(port)
        address = (port.host, port.port)
        if address in first:
            problem = f"port {port.port} is also the port of {first[address]}"
            yield error(port.engine, setting, problem, "Give each its own port.")
        first.setdefault(address, "the router" if port.engine is None else port.engine)
        yield from _check_port(port, setting)


def _setting(port: Port) -> str:
    return "router.port" if port.engine is None else "url"


def _check_port(port: Port, setting: str) -> Iterator[Finding]:
    if port.failure == "in use":
        yield error(port.engine, setting, f"port {port.port} is in use by {_owners(port)}", _mend_use(port))
    elif port.failure == "no such address":
        problem = f"{port.host} is not an address of this machine"
        remedy = "Remove [engine.launch] if the engine runs elsewhere." if port.engine else "Set router.host to one."
        yield error(port.engine, setting, problem, remedy)
    elif port.failure == "unknown host":
        remedy = "Use the IP address, or add the name to DNS or /etc/hosts."
        yield error(port.engine, setting, f"{port.host} is not the name of a host", remedy)
    elif port.failure == "not permitted":
        problem = f"this user may not listen on port {port.port}"
        yield error(port.engine, setting, problem, "Use a port of 1024 or above.")


def _owners(port: Port) -> str:
    if not port.owners:
        return "a process that this user may not see"
    owners = listed(process_name(owner) for owner in port.owners)
    if port.is_healthy:
        return f"{owners}, which answers /health"
    return f"{owners}, which does not answer /health"


def _mend_use(port: Port) -> str:
    if not port.owners:
        return f"Run `sudo ss -ltnp 'sport = :{port.port}'` to see it, and stop it; or use another port."
    pids = " ".join(str(owner.pid) for owner in port.owners)
    if port.is_healthy:
        return f"Stop it (`kill {pids}`) if it is of an earlier run, or use another port."
    if any(owner.is_vllm for owner in port.owners):
        # vLLM listens before it loads its model, so this may also be an engine that starts.
        return f"Unless it is just starting, it is dead and may hold a GPU's memory: `kill -9 {pids}`."
    return f"Stop it (`kill {pids}`), or use another port."
