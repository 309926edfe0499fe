# SPDX-License-Identifier: Apache-2.0
"""Gradients that are live: computed, and neither applied by an optimizer nor zeroed since. Snapshots have no gradients, so a stop
that finds live ones moves on to a later boundary.

Happy path: after each step of an optimizer Gradients notes which gradients it has applied, without reading them; at a stop live()
names the parameters whose gradients are others now, and not zero. Failure modes: none; what cannot be told counts as live.

Gradients that were applied are dead, although a program that zeroes at the start of a step still has them. Gradients that a program
drops unapplied are dead too: the loss of a GAN's generator makes some for the discriminator. A stop that meets such gradients
watches what becomes of them, and takes them for dead when they were zeroed unapplied after two boundaries in a row. Micro-steps
cannot look like that: of two in a row, the second adds to the first.
"""
import contextlib
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

try:
    from torch.distributed.tensor import DTensor
except ImportError as e:
    raise ImportError("ptc.torch needs PyTorch 2.7 or later") from e

_DROPPED = 2


def _nonzero(g):
    local = g.to_local() if isinstance(g, DTensor) else g
    if local.layout == torch.sparse_coo:
        local = local.coalesce().values()
    if not local.numel():
        return False
    try:
        return bool(local.any())
    except RuntimeError:  # of a dtype that has no such operation, such as float8
        return bool(local.to(torch.float32).any())


def _version(g):
    """Grows with each change in place; tensors of inference mode have none, and are told apart by identity alone."""
    return 0 if g.is_inference() else g._version


def _is(mark, g):
    """mark: (weak reference, version). While a reference is kept, weakref.ref() gives the same one for the same tensor."""
    return mark[0] is weakref.ref(g) and mark[1] == _version(g)


class _Slot:
    """Where gradients of a parameter add up, and what the program was seen to do with them."""

    def __init__(self, name, tensor, attribute):
        self.name, self.tensor, self.attribute = name, tensor, attribute
        self.kept = False  # applied gradients were not zeroed before more was added
        self.dropped = 0   # boundaries in a row after which unapplied ones were zeroed
        self._once = self._hook = self._seen = self._steps = None

    def gradient(self):
        return getattr(self.tensor, self.attribute, None)

    def before_more(self, fn):
        """fn() runs once, before the next backward adds to the gradient."""
        if self.attribute != "grad" or not self.tensor.requires_grad or not self.tensor.is_leaf:
            return None

        def call(_):
            hook.remove()
            fn()
        hook = self.tensor.register_hook(call)
        return hook

    def watch_applied(self, mark):
        """Is what was applied zeroed before more is added?"""
        def look():
            g = self.gradient()
            self.kept = g is not None and _is(mark, g) and _nonzero(g)
        self._once = self.before_more(look)

    def watch(self, steps):
        """What becomes of the gradient that is there? steps(): another object after each step of an optimizer that applies it."""
        self._seen, self._steps = weakref.ref(self.gradient()), (steps, steps())
        self._hook = self.before_more(lambda: self._told(self.gradient() is not None and _nonzero(self.gradient())))

    def settle(self):
        """No backward has come since, or none that hooks see (FSDP's): where there is another gradient, that one was zeroed."""
        if self._seen is not None:
            if self._hook is not None:
                self._hook.remove()
            g = self.gradient()
            self._told(g is not None and weakref.ref(g) is self._seen)

    def _told(self, more):
        steps, was = self._steps
        self.dropped = 0 if more or steps() != was else self.dropped + 1
        self._hook = self._seen = self._steps = None

    def close(self):
        for hook in filter(None, (self._once, self._hook)):
            hook.remove()


class Gradients:
    """named: [(name, parameter)]; applies: {id of a tensor that an optimizer works on: the parameters whose gradients it has}, where
    these are others. Watches until close()."""

    def __init__(self, modules, named, applies):
        self._modules, self._applies = modules, applies
        self._slots = {}
        for name, p in named:
            for attribute in ("grad", "main_grad"):  # Megatron adds up in the second
                if attribute == "grad" or hasattr(p, attribute):
                    self._slots.setdefault((id(p), attribute), _Slot(name, p, attribute))
        self._main = [s.tensor for s in self._slots.values() if s.attribute == "main_grad"]
        # optimizer: (how many steps, gradients at the last one: [(parameter, weak reference, version)], main_grads likewise)
        self._applied = weakref.WeakKeyDictionary()
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def close(self):
        self._handle.remove()
        for slot in self._slots.values():
            slot.close()

    # -- what has been applied

    def _stepped(self, optim, *_):
        """After each step of any optimizer in this process, so it does no more than it must."""
        params = [p for group in optim.param_groups for p in group["params"]]
        if self._applies:
            params = [q for p in params for q in self._applies.get(id(p), (p,))]
        marks = [(p, weakref.ref(g), _version(g)) for p in params if (g := p.grad) is not None]
        self._note(optim, marks)

    def _note(self, optim, marks):
        steps, _, main = self._applied.get(optim, (0, (), ()))
        if self._main:
            main = [(p, weakref.ref(p.main_grad), _version(p.main_grad)) for p in self._main if p.main_grad is not None]
        self._applied[optim] = (steps + 1, marks, main)
        if steps:
            return
        for key, mark in self._marks(optim):  # the first: does the program zero what was applied at all?
            if key in self._slots:
                self._slots[key].watch_applied(mark)

    def _marks(self, optim):
        _, marks, main = self._applied[optim]
        for attribute, them in (("grad", marks), ("main_grad", main)):
            for p, gradient, version in them:
                yield (id(p), attribute), (gradient, version)

    def applied(self):
        """The program says that it applies what there is, by itself."""
        params = {id(s.tensor): s.tensor for s in self._slots.values()}.values()
        self._note(self, [(p, weakref.ref(p.grad), _version(p.grad)) for p in params if p.grad is not None])

    # -- what is live

    def live(self):
        """Names of the parameters whose gradients a stop would lose."""
        marks, owners, found = {}, {}, []
        for optim in list(self._applied):
            for key, mark in self._marks(optim):
                marks.setdefault(key, []).append(mark)
                owners.setdefault(key, []).append(weakref.ref(optim))
        for key, slot in self._slots.items():
            slot.settle()
            g = slot.gradient()
            if g is None:
                continue
            applied = any(_is(m, g) for m in marks.get(key, ()))
            if (applied and not slot.kept) or not _nonzero(g):
                slot.dropped = 0 if applied else slot.dropped
                continue
            if slot.dropped < _DROPPED or applied:
                found.append(slot.name)
            if not applied:
                slot.watch(lambda optims=owners.get(key, ()): [self._applied.get(o(), (0,))[0] for o in optims])
        return found + self._hidden()

    def _hidden(self):
        """FSDP2 keeps to itself what it has not reduced yet (set_requires_gradient_sync, set_requires_all_reduce)."""
        found = []
        for module in self._modules:
            for m in module.modules():
                with contextlib.suppress(AttributeError):
                    state = m._get_fsdp_state()
                    for group in filter(None, getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]):
                        found += _of_fsdp(group)
        return found


def _of_fsdp(group):
    """Names of parameters in an FSDP2 group whose gradients are not in the sharded parameters yet."""
    if getattr(group, "_partial_reduce_output", None) is not None:
        return [p._param_fqn or "a parameter under FSDP" for p in group.fsdp_params]
    return [p._param_fqn or "a parameter under FSDP" for p in group.fsdp_params
            if p.unsharded_accumulated_grad is not None or getattr(getattr(p, "_unsharded_param", None), "grad", None) is not None]
