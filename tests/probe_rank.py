#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs for test_probe.py: a rank that declares with libptc alone, and ranks that cannot be probed.

  probe_rank.py KIND
"""
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time

import ptc

DATA = ctypes.create_string_buffer(64)  # nobody reads it in a probe


def cut(n, parts, i):
    """(offset, extent) of part i, as torch.chunk cuts."""
    each = -(-n // parts)
    return min(i * each, n), max(0, min(each, n - i * each))


def declare_ridge(client, g):
    """The tensors of examples/c-trainer, cut the other way round."""
    features = 37
    each, more = divmod(features, g.tp)
    r = g.tp - 1 - g.tp_rank
    box = ([r * each + min(r, more)], [each + (r < more)], 0, None)
    for field in (None, "exp_avg", "exp_avg_sq"):
        client.declare("w", "F64", [features], [box], ctypes.addressof(DATA), field)
        client.declare("b", "F64", [], [([], [], 0, None)], ctypes.addressof(DATA), field)


def declare(client, g, kind):
    if kind == "ridge":
        return declare_ridge(client, g)
    rows = 48
    offset, extent = cut(rows, g.tp, g.tp_rank)
    if kind == "hole" and g.tp_rank == 1:
        extent -= 1
    client.declare("w", "F64" if kind == "dtype" and g.rank == 1 else "F32", [rows, 5], [([offset, 0], [extent, 5], 0, None)],
                   ctypes.addressof(DATA))
    if kind == "zero":  # each rank along dp has a part of its own
        mine, n = cut(extent, g.dp, g.dp_rank)
        client.declare("w", "F32", [rows, 5], [([offset + mine, 0], [n, 5], 0, None)] if n else [], ctypes.addressof(DATA), "m")
    client.declare("step", "I64", [], [([], [], 0, None)], ctypes.addressof(DATA))


def junk():
    """On the connection of a client that has said who it is: nothing that could be read."""
    client = ptc.Client()
    for fd in range(3, 64):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as s:
            if (s.family, s.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                s.send(b"no message at all")
    time.sleep(600)
    client.close()


def main():
    kind = sys.argv[1]
    if kind == "exits":
        print("there is no corpus here", file=sys.stderr)
        sys.exit(3)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGTERM)
    if kind == "hangs":
        print("waiting for the corpus", flush=True)
        time.sleep(600)
    if kind == "floods":
        while True:
            print("corpus " * 100)
    if kind == "memory":
        bytearray(1 << 30)
    if kind == "junk":
        junk()
    client = ptc.Client()
    while (g := client.next()) is not None:
        if kind == "asks":
            client.rendezvous_put("mine", b"1")
            client.rendezvous_get("mine")
            client.rendezvous_get("theirs")
        declare(client, g, kind)
        if kind == "twice":
            declare(client, g, kind)
        try:
            client.restore()
        except ptc.Error as e:
            if e.code != -9:
                raise
        if kind == "once":
            return


if __name__ == "__main__":
    main()
