# SPDX-License-Identifier: Apache-2.0
"""Generation.survive(): the job goes on from this rank's memory when a node is lost (docs/failures.md).

Happy path: Promise(gen) after attach(); boundary() before each boundary of the client publishes what a stop would have set; leave()
where the program gives up; close(). Failure: ptc.Error that names what cannot be published at each boundary. What only shows later
(a tensor that was put elsewhere) ends the promise with a line on stderr; snapshots remain.

A peer that dies makes gloo or NCCL raise in this rank, and the program's own handlers may change or free what is to be taken. So the
calls in which that is seen hold the process first: backward passes, waits for collectives, os._exit, and the end of the with block.
"""
import contextlib
import functools
import os
import re
import sys
import threading
import time
import zlib

import torch
import torch.distributed as dist

import ptc
from ptc._held import refuse

_STALE = -9
_SHARE = 1000  # checks of what a stop would refuse take at most this part of the time
_LOST = re.compile("gloo|nccl|process ?group|connection (closed|reset)", re.IGNORECASE)
_LATE = "Timed out waiting"  # gloo's; the peer may be slow


def is_of_peers(e):
    """Whether the error says that other ranks cannot be reached, rather than that this program is wrong."""
    if _LATE in str(e):
        return False
    return isinstance(e, getattr(dist, "DistError", ())) or (isinstance(e, RuntimeError) and bool(_LOST.search(str(e))))


def _is_timed(args, kw):
    """Whether the program gave Work.wait() a timeout, so that it expects the wait to fail. PyTorch's 0 is none."""
    return bool(kw.get("timeout", args[1] if len(args) > 1 else None))


class Guard:
    """Calls `leave` before the program can handle the loss of a peer, from begin() to end()."""

    def __init__(self, leave):
        self._leave, self._was = leave, []

    def begin(self):
        for name in ("backward", "grad"):
            self._put(torch.autograd, name, self._leaves_if_raised)
        if hasattr(dist, "Work"):
            self._put(dist.Work, "wait", functools.partial(self._leaves_if_raised, handled=_is_timed))
        self._put(os, "_exit", self._leaves)

    def _put(self, owner, name, make):
        was = getattr(owner, name)
        self._was.append((owner, name, was))
        setattr(owner, name, make(was))

    def _leaves_if_raised(self, fn, handled=lambda args, kw: False):
        @functools.wraps(fn)
        def call(*args, **kw):
            try:
                return fn(*args, **kw)
            except Exception as e:
                if is_of_peers(e) and not handled(args, kw):
                    self._leave()
                raise
        return call

    def _leaves(self, fn):
        @functools.wraps(fn)
        def call(*args, **kw):
            self._leave()
            return fn(*args, **kw)
        return call

    def end(self):
        while self._was:
            setattr(*self._was.pop())


class Promise:
    def __init__(self, gen):
        self._gen, self._client, self._bound = gen, gen._client, gen._bound
        if self._bound.states:
            refuse(f"survive: extra state of {next(iter(self._bound.states))} is gathered from all ranks at a stop, and cannot be at each "
                   f"boundary; the job goes on from snapshots")
        self._last = {}  # {(blob, scope): bytes}
        self._lock = threading.RLock()  # a handler of signals may end the process while leave() waits
        self._made, self._broken, self._next_check = False, False, 0.0
        self._about = self._about_now()
        self._client_sets("model", zlib.compress(self._bound.merge(self._gather(), gen.tp)))
        self._guard = Guard(self.leave)
        self._guard.begin()

    def _about_now(self):
        return self._bound.about(self._gen.tp_rank == 0, self._gen._outside)

    def _client_sets(self, name, data):
        from ptc import torch as package  # which imports this module
        package._blobs_set(self._client, name, data)

    def _gather(self):
        """What a snapshot has of the model's parts is the same at each step, and every rank may be the one that is left to say it."""
        gen = self._gen
        if gen.world == 1:
            return {(0, 0): self._about}
        if gen._leads():
            gen.store.set(f"ptc/survive/{gen.pp_rank}/{gen.tp_rank}", zlib.compress(self._about))
        return {(p, t): zlib.decompress(gen.store.get(f"ptc/survive/{p}/{t}")) for p in range(gen.pp) for t in range(gen.tp)}

    # -- at a boundary

    def boundary(self, step):
        if self._broken:
            return
        try:
            self._keep(step)
        except ptc.Error as e:
            self._break(e)

    def _keep(self, step):
        try:
            if time.monotonic() >= self._next_check:
                self._check()
            self._publish(step)
        except ptc.Later:  # gradients that add up over several boundaries: it is looked again at the next one
            self._say(False)
            return
        self._say(True)

    def _say(self, yes):
        if yes != self._made:
            self._client.survive(yes)
        self._made = yes

    def _check(self):
        """What a stop would refuse. A step without an update, such as one that only adds to gradients, ptcd does not take anyhow."""
        began, gen = time.monotonic(), self._gen
        self._next_check = 0.0
        self._bound.check_gradients()
        gen._check_outside()
        gen._check_places()
        self._bound.check_copies()
        self._streams = gen._rng.watched()
        if self._about_now() != self._about:
            refuse("model: parameters, their groups or buffers are no longer what they were when survive() was called; call it again")
        ended = time.monotonic()
        self._next_check = ended + _SHARE * (ended - began)

    def _publish(self, step):
        self._bound.set_numbers()
        for name, data in self._bound.values().items():
            self._put(name, data)
        for d in self._gen._data:
            d._stop(self._gen, step)
        for s in self._streams:
            self._put(s.blob, s.get(), s.scope)

    def _put(self, name, data, scope=ptc.JOB):
        if self._last.get((name, scope)) != data:
            self._client.blob_set(name, data, scope)
            self._last[name, scope] = data

    def _break(self, e):
        """Not a warning: that would be an error of the program where warnings are errors."""
        self._broken = True
        try:
            if e.code != _STALE:
                self._say(False)
        except ptc.Error as again:
            e = again
            if e.code != _STALE:
                raise
        if e.code != _STALE:  # nobody takes anything of a generation that has ended
            with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may be closed, or None
                sys.stderr.write(f"ptc: rank {self._gen.rank}: after the loss of a node the job goes on from snapshots, not from this "
                                 f"rank's memory: {e}\n")

    # -- the end

    def leave(self):
        """Waits until nobody wants this rank's memory. Another thread that gives up waits as well."""
        with self._lock:
            self._client.leave()

    def close(self):
        self._guard.end()
