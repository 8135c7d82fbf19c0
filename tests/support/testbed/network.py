"""The network of a bed with real nodes: one namespace with a bridge for the control plane, one namespace per node.

    machine  10.N.0.254 ── veth ──┐
    control plane, DNS 10.N.0.1 ──┤ br0 of namespace stokerN
    node i  10.N.0.(10+i) ────────┘   its pods 10.N.(128+i).0/24

N is the first free one from 250 on, or `$STOKER_TESTBED_NET`; beds run side by side. Adds one link and the routes to
these addresses to the machine and changes nothing else of it. Root. Called by `nodes` and `teardown`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.testbed.errors import BedError
from tests.support.testbed.shell import run

_NUMBERS = range(250, 255)


@dataclass(frozen=True)
class Network:
    """Names and addresses, all made from one number."""

    number: int

    @classmethod
    def claim(cls) -> Network:
        """The first network that no one uses, with its namespace made: it is the caller's until `down`.

        Raises: BedError where none is left, or the one that the environment names is taken.
        """
        named = os.environ.get("STOKER_TESTBED_NET")
        for number in [int(named)] if named else _NUMBERS:
            network = cls(number)
            routes = run("ip", "route", "show", "root", f"10.{number}.0.0/16")
            if network.namespace not in namespaces() and not routes:
                with contextlib.suppress(BedError):  # someone else came between
                    run("ip", "netns", "add", network.namespace)
                    return network
        taken = named or f"{_NUMBERS[0]} to {_NUMBERS[-1]}"
        raise BedError(
            f"the networks 10.N.0.0/16, N = {taken}, are in use on this machine (`ip netns; ip route`): take a bed "
            "down (`make cluster-down`), or set STOKER_TESTBED_NET to a free N between 1 and 254"
        )

    @property
    def namespace(self) -> str:
        return f"stoker{self.number}"

    @property
    def plane_address(self) -> str:
        return f"10.{self.number}.0.1"

    @property
    def machine_address(self) -> str:
        """The machine's own address, for processes on it that pods talk to."""
        return f"10.{self.number}.0.254"

    @property
    def pod_range(self) -> str:
        return f"10.{self.number}.128.0/17"

    def node_namespace(self, index: int) -> str:
        return f"{self.namespace}-n{index}"

    def node_address(self, index: int) -> str:
        return f"10.{self.number}.0.{10 + index}"

    def node_pods(self, index: int) -> str:
        return f"10.{self.number}.{128 + index}.0/24"

    def up(self) -> None:
        """Puts the bridge into the control plane's namespace and links the machine to it."""
        run("sh", "-c", "modprobe br_netfilter || true")  # may be built in, without a modprobe
        space = self.namespace
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", space, "addr", "add", f"{self.plane_address}/24", "dev", "br0")
        run("ip", "-n", space, "link", "set", "br0", "up")
        forward(space)
        run("ip", "link", "add", space, "type", "veth", "peer", "name", "machine", "netns", space)
        run("ip", "-n", space, "link", "set", "machine", "master", "br0", "up")
        run("ip", "addr", "add", f"{self.machine_address}/24", "dev", space)
        run("ip", "link", "set", space, "up")

    def add_node(self, index: int, others: list[int]) -> None:
        """Makes the node's namespace, plugs it into the bridge and shows everyone the way to its pods."""
        space, plane, address, pods = (
            self.node_namespace(index),
            self.namespace,
            self.node_address(index),
            self.node_pods(index),
        )
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", plane, "link", "add", f"node{index}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", plane, "link", "set", f"node{index}", "master", "br0", "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", space, "route", "add", "default", "via", self.plane_address)
        forward(space)
        run("ip", "-n", plane, "route", "replace", pods, "via", address)
        run("ip", "route", "replace", pods, "via", address, "dev", self.namespace)
        for other in others:
            run("ip", "-n", space, "route", "replace", self.node_pods(other), "via", self.node_address(other))
            run("ip", "-n", self.node_namespace(other), "route", "replace", pods, "via", address)

    def plug(self, index: int, *, connected: bool) -> None:
        """Connects the node's cable or pulls it."""
        run("ip", "-n", self.namespace, "link", "set", f"node{index}", "up" if connected else "down")

    def down(self) -> None:
        """Removes every namespace of this network and the machine's link. Nothing happens where there is none."""
        with contextlib.suppress(BedError):
            run("ip", "link", "del", self.namespace)
        for name in namespaces():
            if name == self.namespace or name.startswith(f"{self.namespace}-n"):
                run("ip", "netns", "del", name)


def namespaces() -> list[str]:
    """The names of the machine's network namespaces."""
    folder = Path("/run/netns")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def forward(namespace: str) -> None:
    """Lets the namespace route, and kube-proxy's rules see what crosses a bridge in it."""
    settings = ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"]
    script = "; ".join(f"echo 1 > /proc/sys/{setting}" for setting in settings)
    run("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", script)
