# SPDX-License-Identifier: Apache-2.0
"""Generation.survive(): the job goes on from this rank's memory when a node is lost (docs/failures.md).

Happy path: Promise(gen) after attach(); boundary() before each boundary of the client publishes what a stop would have set; leave()
where the program gives up; close(). Failure: ptc.Error that names what cannot be published at each boundary. What only shows later
(a tensor that was put elsewhere) ends the promise with a line on stderr; snapshots remain.

Between a boundary and update_begin() ptcd takes what is in memory for the boundary's state. So the promise is made once an update has
been seen before which no buffer was changed, by its bytes; a buffer whose version grows in that time later ends it. Of all that is
declared, libptc compares pieces (ptc_survive): what it finds is told at the next boundary.

A peer that dies makes gloo or NCCL raise in this rank, and the program's own handlers may change or free what is to be taken. So the
calls in which that is seen hold the process first: backward passes, waits for collectives, os._exit, and the end of the with block.
"""
import contextlib
import datetime
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
from ptc._attached import _digest
from ptc._gradients import _nonzero
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


def _version(t):
    """Grows with each change in place; tensors of inference mode have none."""
    return 0 if t.is_inference() else t._version


class _Buffers:
    """What is declared beside parameters and the state of optimizers: is it changed between a boundary and the update?"""

    def __init__(self, gen):
        parameters = set(gen._bound.parameters().values())
        self._held = [h for h in gen._declared if h.field is None and h.name not in parameters and h.local.numel()]
        self._versions = self._digests = None  # at the last boundary; None once an update has begun
        self.proven = False                    # by bytes, in a whole update

    def boundary(self):
        self._versions = [_version(h.local) for h in self._held]
        self._digests = None if self.proven else [_digest(h.local) for h in self._held]

    def update_begins(self):
        """The first one after a boundary; the others may be those of other optimizers, or come after the program's own call."""
        if self._versions is not None:
            self.check()
            self.proven, self._versions = True, None

    def check(self):
        if self._versions is None:
            return
        for i, h in enumerate(self._held):
            if _version(h.local) != self._versions[i] or (self._digests is not None and _digest(h.local) != self._digests[i]):
                refuse(f"buffer {h} is changed before the optimizer's step, so that memory is not the boundary's state any more; call "
                       f"update_begin() before what changes it")


class _AddedUp:
    """Where one optimizer has stepped, another one may have gradients that are still adding up. With a single one a boundary with such
    gradients is none after an update. Reads only gradients that are there, and are not those that a step has applied."""

    def __init__(self, bound):
        watched, optims = bound.gradients, [o for them in bound.optimizers.values() for o in them]
        self._slots, self._hidden, self._hooks, self._waits = [], None, [], set()
        if len(optims) < 2:
            return
        of = {id(s): s for o in optims for group in o.param_groups for p in group["params"] for s in watched._of.get(id(p), ())}
        self._slots = [s for s in (*of.values(), *watched._main) if not watched._is_dropped(s.name)]
        if any(hasattr(m, "_get_fsdp_state") for _, module in bound.modules for m in module.modules()):
            self._hidden = watched._hidden
        if watched._main:  # nobody knows which optimizer applies which main_grad: all have to step
            self._all = {id(o) for o in optims}
            self._waits = set(self._all)
            self._hooks = [o.register_step_post_hook(lambda o, *_: self._waits.discard(id(o))) for o in optims]

    def check(self):
        waits = self._waits
        if self._hooks:
            self._waits = set(self._all)
        if waits:
            raise ptc.Later("an optimizer has not stepped since the last boundary")
        for slot in self._slots:
            g = slot.gradient()
            if not (g is None or slot.unchanged(g) or slot.spent(g)) and _nonzero(g):
                raise ptc.Later(f"gradients of {slot.name} add up")
        if self._hidden is not None and self._hidden():
            raise ptc.Later("gradients that FSDP has not reduced add up")

    def close(self):
        for hook in self._hooks:
            hook.remove()


class _Structure:
    """What the program changes by itself, rather than by training: which parameters, buffers and modules there are, groups of optimizers,
    `requires_grad`, optimizers that are not attached. Looked at in each step, so only as far as that is cheap: of `requires_grad`, _LOOKS
    parameters of optimizers in one step and the next ones in the next. Keeps no reference to a parameter, which check_given() would count."""

    _LOOKS = 64

    def __init__(self, bound):
        from torch.nn.modules import module as hooks
        self._optims, self._gradients = [o for them in bound.optimizers.values() for o in them], bound.gradients
        self._modules = {id(m) for _, module in bound.modules for m in module.modules()}
        self._handles = [getattr(hooks, f"register_module_{kind}_registration_hook")(self._registers)
                         for kind in ("parameter", "buffer", "module")]
        self.passed()

    def _registers(self, module, name, thing):
        if id(module) in self._modules and not any(d.get(name) is thing for d in (module._parameters, module._buffers, module._modules)):
            self._changed = True  # else it is assigned to itself, as in `self.count += 1`

    def _groups(self):
        return [len(group["params"]) for o in self._optims for group in o.param_groups], self._gradients.others_seen()

    def _lists(self):
        return [group["params"] for o in self._optims for group in o.param_groups]

    def passed(self):
        """A check of all that is there now has passed."""
        self._changed, self._seen, self._at = False, self._groups(), (0, 0)
        self._trained = [[p.requires_grad for p in params] for params in self._lists()]

    def changed(self):
        """Since a check has passed."""
        if not self._changed:
            self._changed = self._groups() != self._seen or self._is_trained_otherwise()
        return self._changed

    def _is_trained_otherwise(self):
        (i, first), left, lists = self._at, self._LOOKS, self._lists()
        for _ in range(len(lists) + 1):
            if not lists or left <= 0:
                break
            now = [p.requires_grad for p in lists[i][first:first + left]]
            if now != self._trained[i][first:first + left]:
                return True
            first, left = first + left, left - len(now)
            if first >= len(lists[i]):
                i, first = (i + 1) % len(lists), 0
        self._at = i, first
        return False

    def close(self):
        for handle in self._handles:
            handle.remove()


_SPINS = 200  # looks without a pause, while the others are expected any moment
_PAUSE_S = 0.0002


class _Together:
    """Each update begins on every rank or on none: it waits until all ranks have their gradients (Promise.update_begins)."""

    def __init__(self, gen):
        self._client = gen._client
        self._group = None
        if gen.world > 1 and dist.is_initialized():  # a rank may be late by any time; ranks that hang are found otherwise (`on_hang`)
            self._group = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=30))
        self._ready = torch.zeros(1, dtype=torch.int32)

    def wait(self):
        """Returns when all are ready, or when this rank has to end the update without those that are gone."""
        if self._group is None:
            return
        try:
            work, looks = dist.all_reduce(self._ready, group=self._group, async_op=True), 0
            while not work.is_completed():
                if self._client.update_alone():
                    return
                looks += 1
                if looks > _SPINS:
                    time.sleep(_PAUSE_S)
            _wait(work)
        except Exception as e:
            if is_of_peers(e) and self._client.update_alone(gone=True):
                return
            raise


def _wait(work):
    """Without the guard: the caller knows what is lost when it raises."""
    getattr(dist.Work.wait, "__wrapped__", dist.Work.wait)(work)


class Promise:
    def __init__(self, gen, together=False):
        self._gen, self._client, self._bound = gen, gen._client, gen._bound
        if self._bound.states:
            refuse(f"survive: extra state of {next(iter(self._bound.states))} is gathered from all ranks at a stop, and cannot be at each "
                   f"boundary; the job goes on from snapshots")
        self._last = {}  # {(blob, scope): bytes}
        self._lock = threading.RLock()  # a handler of signals may end the process while leave() waits
        self._made, self._broken, self._proven, self._next_check = False, False, False, 0.0
        self._buffers, self._added, self._structure = _Buffers(gen), _AddedUp(self._bound), _Structure(self._bound)
        self._about = self._about_now()
        self._client_sets("model", zlib.compress(self._bound.merge(self._gather(), gen.tp)))
        self._together = _Together(gen) if together and not gen._on_cuda else None
        self._begun = False  # the step's update
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
        self._begun = False
        if self._broken:
            return
        try:
            why = self._client.survive_broken()
            if why is not None:
                refuse(why)
            self._keep(step)
        except ptc.Error as e:
            self._break(e)

    def update_begins(self):
        """Before the client is told. All ranks wait for each other also after one's promise is broken: the others still count on it."""
        if self._together and not self._begun:
            self._together.wait()
        self._begun = True
        if self._broken:
            return
        try:
            self._buffers.update_begins()
        except ptc.Error as e:
            self._break(e)

    def _keep(self, step):
        self._buffers.check()  # no update has begun
        if self._buffers.proven and not self._proven:
            self._proven, self._next_check = True, 0.0  # the first promise is one that a stop would keep
        self._buffers.boundary()
        try:
            self._added.check()
            if time.monotonic() >= self._next_check:
                self._check()
            if not self._proven:
                return
            if self._structure.changed():  # the promise rests until the next check has passed
                self._say(False)
                return
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
        self._bound.check_given()
        self._bound.check_copies()
        self._streams = gen._rng.watched()
        if self._about_now() != self._about:
            refuse("model: parameters, their groups or buffers are no longer what they were when survive() was called; call it again")
        self._structure.passed()
        self._client.survive_checked()
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
        if e.code != _STALE:  # nobody takes anything of a generation that has ended
            self._client.survive_broken(str(e))
            with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may be closed, or None
                sys.stderr.write(f"ptc: rank {self._gen.rank}: after the loss of a node the job goes on from snapshots, not from this "
                                 f"rank's memory: {e}\n")

    # -- the end

    def leave(self):
        """Waits until nobody wants this rank's memory. Another thread that gives up waits as well."""
        with self._lock:
            self._client.leave()

    def close(self):
        self._added.close()
        self._structure.close()
        self._guard.end()
