# SPDX-License-Identifier: Apache-2.0
"""Nodes of a cluster on machines of their own, as far as the network goes: each in a network namespace with one link to a
bridge, whose rate a test sets (tbf), or which it cuts. All that a node's daemon and ranks say to another node goes over that link.

    with Machines(["n0", "n1"]) as m, self.cluster(nodes=2, transport="tls", hosts=m.hosts, up=False) as c:
        m.settle(c)
        c.up()
        m.throttle("n1", 20)

Nothing of this is seen outside, nor outlives the process: a namespace goes with the last process in it, and those that hold
them read from a pipe of ours.
"""
import os
import subprocess
import unittest

import harness
from harness import wait_for

LINK = "eth0"  # in every machine: what gloo is told to use


class Machines:
    def __init__(self, names):
        self.hosts = {name: f"10.77.0.{i}" for i, name in enumerate(names, 1)}
        self.holders = []

    def __enter__(self):
        try:
            self.bridge = self.namespace()
            self.inside(self.bridge, "ip link add bridge type bridge && ip link set bridge up")
            self.machine = {name: self.namespace() for name in self.hosts}
            for name, holder in self.machine.items():
                self.inside(self.bridge, f"ip link add {name} type veth peer name {LINK} netns {holder.pid}"
                                         f" && ip link set {name} master bridge up")
                self.inside(holder, f"ip link set lo up && ip addr add {self.hosts[name]}/24 dev {LINK} && ip link set {LINK} up"
                                    f" && ip route add default dev {LINK}")  # by which programs find their own address
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()
        self.holders = []

    def namespace(self):
        """A process in a network namespace of its own, until our end of its input closes."""
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.holders.append(holder)
        ours = os.readlink("/proc/self/ns/net")
        wait_for(lambda: holder.poll() is not None or os.readlink(f"/proc/{holder.pid}/ns/net") != ours, 20 * harness.PATIENCE,
                 "a network namespace", 0.01)
        if holder.poll() is not None:
            raise unittest.SkipTest("this kernel gives no network namespaces")
        return holder

    @staticmethod
    def inside(holder, script):
        r = subprocess.run(["nsenter", "--net", "-t", str(holder.pid), "sh", "-c", script], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
        if r.returncode:
            raise harness.ClusterError(f"{script}: {r.stdout.strip()}")

    def settle(self, c):
        """The cluster's daemons run in their machines from here on, and so do their ranks."""
        for name, node in c.nodes.items():
            node.run_in = ("nsenter", "--net", "-t", str(self.machine[name].pid))

    def cut(self, name):
        """Pulls the machine's cable out of the bridge. Nobody is told: its own link stays up, and what is sent gets lost."""
        self.inside(self.bridge, f"ip link set {name} nomaster")

    def mend(self, name):
        self.inside(self.bridge, f"ip link set {name} master bridge")

    def keep_only(self, name, port):
        """What the machine sends to the others gets lost, but for what that port of it sends."""
        self.inside(self.machine[name], f"ip route add blackhole default table 77 && ip rule add pref 100 ipproto tcp sport {port} lookup main"
                                        " && ip rule add pref 101 to 10.77.0.0/24 lookup 77")

    def keep_all(self, name):
        self.inside(self.machine[name], "ip rule del pref 101 && ip rule del pref 100 && ip route del blackhole default table 77")

    def throttle(self, name, mbit=None):
        """What goes to the machine, and what comes from it, in 1e6 bits a second each; None: as fast as it can."""
        for holder, link in ((self.bridge, name), (self.machine[name], LINK)):
            self.inside(holder, f"tc qdisc replace dev {link} root tbf rate {mbit}mbit burst 64kb latency 100ms" if mbit else
                        f"tc qdisc del dev {link} root")
