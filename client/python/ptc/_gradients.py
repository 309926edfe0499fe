# SPDX-License-Identifier: Apache-2.0
"""Gradients that are live: computed, and neither applied by an optimizer nor zeroed since. Snapshots
have no gradients, so a stop that finds live ones moves on to a later boundary.

Happy path: each step of an optimizer notes which tensors it has applied, without reading them;
boundary() counts; at a stop live() names the parameters whose gradients would be lost. Failure
modes: none; a gradient counts as live until it is shown to be dead.

Gradients may be there at a boundary and be dead: a program that zeroes at the start of a step still
has those that were applied, and the loss of a GAN's generator leaves some in the discriminator. Two
things show that:
- Steps. A tensor that an optimizer has applied before a boundary is never applied after it, if each
  step so far had other tensors than the one before: what was set to None is made anew. Whatever is
  added to such a tensor is lost by the program itself.
- A stop that moves on watches what becomes of gradients (_Watch), for programs that zero in place,
  or leave gradients after zeroing. What was seen is forgotten with the stop: the program may do
  something else by the next one.

A step says something of a gradient only if its optimizer applies it. Of a main_grad that may be
unknown: an optimizer works on masters, and the program copies the gradient into one. Then each
optimizer that works on tensors that are not known here counts as one that may or may not apply it.
"""
import collections
import sys
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ptc._held import fsdp_groups, is_dtensor
from ptc._unattached import options_of

# How often something has to be seen. Once may be chance: DDP makes its buckets, and gradients in them,
# anew after its first step.
_SHOWN = 2
# Boundaries with steps before them after which a parameter that no optimizer has is refused.
_ALONE = 16


def _nonzero(g):
    local = g.to_local() if is_dtensor(g) else g
    if local.layout == torch.sparse_coo:
        local = local.coalesce().values()
    if not local.numel():
        return False
    try:
        return bool(local.any())
    except RuntimeError:  # of a dtype that has no such operation, such as float8
        return bool(local.to(torch.float32).any())


def _version(g):
    """Grows with each change in place; tensors of inference mode have none."""
    return 0 if g.is_inference() else g._version


def _made_anew(g):
    """Whether it is another tensor than before because that one was set to None: with create_graph=True,
    and of sparse ones, sums are other tensors too."""
    return not g.requires_grad and g.layout == torch.strided


class _Slot:
    """Where gradients of a parameter add up, and what steps have shown of them."""

    def __init__(self, name, tensor, attribute):
        self.name, self.tensor, self.attribute = name, tensor, attribute
        self.applied = self.version = None  # of the gradient at the last step; a weak reference
        self.at = 0          # boundaries before that step
        self.anew = 0        # steps that had another tensor than the one before the last boundary
        self.again = False   # a step had the same
        self.watch = None
        self.piece = False   # of zero1=: its gradient is made from the parameter's
        self.owned = False   # an optimizer is known to apply it
        self.could = ()      # else, and if several may: these
        self.seen = {}       # what each of them saw last: {optimizer: (weak reference, version)}

    def gradient(self):
        return getattr(self.tensor, self.attribute, None)

    def stepped(self, at, optim):
        """A step of an optimizer has just applied what there is, or may have (`could`). at: boundaries so
        far; optim: its id."""
        g = self.gradient()
        if self.watch is not None:
            self.watch.stepped(g, optim)
        if g is None:
            return
        ref = weakref.ref(g)  # while a reference is kept, this is the same one for the same tensor
        if self.could:
            self.seen[optim] = ref, _version(g)
            return
        if self.applied is not None and self.at != at:
            if ref is self.applied or not _made_anew(g):
                self.again = True
            else:
                self.anew += 1
        self.applied, self.version, self.at = ref, _version(g), at

    def spent(self, g):
        """No later step applies this tensor, or what is in it."""
        if self.piece and self.unchanged(g):
            return True
        if self.could:
            return False
        return self.anew >= _SHOWN and not self.again and weakref.ref(g) is self.applied

    def unchanged(self, g):
        """Since it was applied, whoever did that."""
        ref, version = weakref.ref(g), _version(g)
        marks = [self.seen.get(o, (None, None)) for o in self.could] or [(self.applied, self.version)]
        return all(ref is seen and version == then for seen, then in marks)


class _Watch:
    """What becomes of a slot's gradient, as seen before each backward that adds to it, while a stop
    moves on."""

    def __init__(self, slot, begun):
        self.slot, self.begun, self.zeroings = slot, begun, 0
        self._seen = self._hook = None

    def _listen(self):
        t = self.slot.tensor
        if self._hook is not None or not t.requires_grad or not t.is_leaf:
            return
        if not is_dtensor(self.slot.gradient()):  # backward adds to others than FSDP2's
            self._hook = t.register_hook(self._before_more)

    def _before_more(self, _):
        self._look(self.slot.gradient())
        self._more()

    def _another(self, g):
        """Without a hook: has it been set to None since it was looked at?"""
        if self._hook is not None or self._seen is None:
            return False
        return weakref.ref(g) is not self._seen and _made_anew(g)

    def _look(self, g):
        """Whether there is any."""
        there = g is not None and _nonzero(g)
        if not there or self._another(g):
            self.zeroings += 1
            self._zeroed()
        self._seen = None if g is None else weakref.ref(g)
        return there

    def dead(self, g):
        """At a boundary."""
        self._listen()
        return not self._look(g) or self._is_dead(g)

    def close(self):
        if self._hook is not None:
            self._hook.remove()


class _OfOptimizer(_Watch):
    """Are the gradients that are there at boundaries zeroed before the next step, or applied by it?
    Boundaries are of one kind if the same optimizers, or none, have stepped since the last zeroing."""

    def __init__(self, slot, begun):
        super().__init__(slot, begun)
        self._kind = None  # a set of optimizers; not known yet
        self._waiting, self._dropping, self._applied = set(), set(), set()
        self._drops = collections.Counter()
        self._steps = self._backwards = self._written = 0

    def _more(self):
        self._backwards += 1

    def _zeroed(self):
        self._dropping |= self._waiting
        self._waiting = set()
        self._kind = frozenset()

    def stepped(self, g, optim):
        self._look(g)
        whole = self._hook is not None and self._steps > 0  # since the step before
        added = self._backwards > 0 or g is None or self.slot.unchanged(g)
        overwritten = whole and not added and not self.slot.could
        self._written = self._written + 1 if overwritten else 0
        self._applied |= self._waiting
        self._drops.update(self._dropping)
        self._waiting, self._dropping = set(), set()
        self._backwards, self._steps = 0, self._steps + 1
        if self._kind is not None or not self.slot.could:  # else others may have stepped before it was watched
            self._kind = (self._kind or frozenset()) | {optim}

    def _is_dead(self, g):
        kind = self._kind
        self._waiting.add(kind)
        if kind is not None and self._drops[kind] >= _SHOWN and kind not in self._applied:
            return True
        # a master's: no backward reaches it, and the program overwrites it
        return self._written >= _SHOWN and not self.slot.could and self.slot.unchanged(g)


class _OfNone(_Watch):
    """No optimizer has the parameter, but the program may copy its gradient into a master's. Is a gradient
    that was there when optimizers stepped zeroed before anything is added to it, and before optimizers
    step that have not stepped since the last zeroing?"""

    def __init__(self, slot, begun):
        super().__init__(slot, begun)
        self._since = set()   # optimizers that have stepped since the last zeroing
        self._after = False   # one since the last backward
        self._waiting = None  # those of _since, at a boundary after one
        self._drops = 0

    def _more(self):
        self._drops = self._drops if self._waiting is None else 0
        self._after, self._waiting = False, None

    def _zeroed(self):
        self._drops += self._waiting is not None
        self._since, self._waiting = set(), None

    def stepped(self, *_):
        pass

    def other(self, optim):
        if self._waiting is not None and optim not in self._waiting:
            self._drops, self._waiting = 0, None
        self._since.add(optim)
        self._after = True

    def _is_dead(self, _):
        self._waiting = set(self._since) if self._after else None
        return self._after and self._drops >= _SHOWN


class Gradients:
    """modules: [(what names begin with, module)]; named: [(name, parameter)]; applies: {id of a tensor
    that an optimizer works on: the parameters whose gradients it has}, where these are others; optims:
    those that are attached; dropped: names, or what they begin with, of parameters whose gradients are
    nobody's at a boundary. Watches until close()."""

    def __init__(self, modules, named, applies, optims=(), dropped=()):
        self._modules, self._optims, self._applies = modules, optims, applies
        self._dropped = tuple(dropped)
        slots = {}
        for name, p in named:
            for attribute in ("grad", "main_grad"):  # Megatron adds up in the second
                if attribute == "grad" or hasattr(p, attribute):
                    slots.setdefault((id(p), attribute), _Slot(name, p, attribute))
        self._slots = list(slots.values())
        self._main = [s for s in self._slots if s.attribute == "main_grad"]
        own = {id(s.tensor): s for s in self._slots if s.attribute == "grad"}
        main = {id(s.tensor): s for s in self._main}
        self._of = {i: [of[id(q)] for q in self._targets(s.tensor) for of in (own, main) if id(q) in of]
                    for i, s in own.items()}
        # of a master, where the parameter says which one it has, as Megatron's do
        self._masters = {id(s.tensor.main_param): s for s in self._main
                         if isinstance(getattr(s.tensor, "main_param", None), torch.Tensor)}
        for slot in self._slots:
            slot.piece = id(slot.tensor) in applies
        self._at = self._busy = 0  # boundaries; how many had a step after the one before
        self._stepped_at = -1      # the last boundary with a step after it
        self._asked, self._alone, self._watched = False, [], False
        self._mine = {id(o) for o in optims}
        self._parameters = {id(p) for _, module in modules for p in module.parameters()}
        self._may = {}    # {id: (weak reference, whether it works on others than these)} of optimizers
        self._could = ()  # those that may apply what nobody is known to apply
        for o in optims:
            self._slots_of(o)
        self._others, self.first = {}, {}  # {id: weak reference} of optimizers that are not attached; options they first had
        hook = self._stepped
        if "torch._dynamo" in sys.modules:  # a compiled step would trace it, for nothing
            hook = torch.compiler.disable(hook)
        self._handle = register_optimizer_step_post_hook(hook)

    def _targets(self, p):
        """Whose gradients an optimizer applies that works on p."""
        return self._applies.get(id(p), (p,))

    def close(self):
        self._handle.remove()
        self._forget()

    def _forget(self):
        if not self._watched:  # at most boundaries: not to look at each slot
            return
        self._watched = False
        for slot in self._slots:
            if slot.watch is not None:
                slot.watch.close()
                slot.watch = None
        self._alone = []

    def tensors(self):
        """One for each reference that is kept here."""
        return [s.tensor for s in self._slots]

    # -- what has been applied

    def boundary(self):
        """At each boundary, before a stop there."""
        if not self._asked:
            self._forget()
        self._asked = False
        self._at += 1

    def _stepped(self, optim, *_):
        """After each step of any optimizer in this process, so it does no more than it must."""
        slots = self._slots_of(optim)
        if id(optim) in self._could:
            slots += [s for s in self._main if not s.owned]
        self._step_noted(slots, id(optim))
        if id(optim) not in self._mine:
            self._note_other(optim)

    def _slots_of(self, optim):
        """What this optimizer is known to apply; main_grads that nobody is known to apply may be its, too."""
        found, other = {}, False
        for group in optim.param_groups:
            for p in group["params"]:
                slots = self._of.get(id(p), ())
                for slot in slots:
                    found[id(slot)] = slot
                if self._main and not any(s.attribute == "main_grad" or id(s.tensor) in self._parameters for s in slots):
                    master = self._masters.get(id(p))
                    if master is None:
                        other = True
                    else:
                        found[id(master)] = master
        if self._main:
            self._note_main(optim, other, found.values())
        return list(found.values())

    def _note_main(self, optim, other, slots):
        may = {i: at for i, at in self._may.items() if at[0]() is not None}
        may[id(optim)] = weakref.ref(optim), other
        could = tuple(i for i, (_, more) in may.items() if more) or tuple(may)
        fresh = [s for s in slots if not s.owned]
        for slot in fresh:
            slot.owned = True
        if could != self._could or fresh:
            for slot in self._main:
                slot.could = could if len(could) > 1 and not slot.owned else ()
        self._may, self._could = may, could

    def _note_other(self, optim):
        for group in optim.param_groups:
            p = next((p for p in group["params"] if id(p) in self._of), None)
            if p is not None:
                self._others[id(optim)] = weakref.ref(optim)
                if id(p) not in self.first:
                    self.first[id(p)] = options_of(group)

    def others(self):
        """Optimizers that are there, have stepped what is watched here, and are not attached."""
        return [o for ref in self._others.values() if (o := ref()) is not None]

    def others_seen(self):
        """How many of these there were, also of those that are gone."""
        return len(self._others)

    def _step_noted(self, slots, optim):
        for slot in slots:
            slot.stepped(self._at, optim)
        for watch in self._alone:
            watch.other(optim)
        if self._stepped_at != self._at:
            self._stepped_at, self._busy = self._at, self._busy + 1

    def applied(self):
        """The program says that it applies what there is, by itself."""
        self._step_noted(self._slots, None)

    # -- what is live

    def live(self):
        """(names of the parameters whose gradients a stop would lose; those of them that no optimizer has;
        those of these that nothing zeroes)"""
        self._asked = True
        groups = [group for o in self._optims for group in o.param_groups]
        have = {id(q) for group in groups for p in group["params"] for q in self._targets(p)}
        live, alone, never = [], [], []
        for slot in self._slots:
            g = slot.gradient()
            if slot.watch is None and not self._is_there(slot, g):
                continue
            mine = self._is_alone(slot, have)
            watch = self._watch(slot, _OfNone if mine else _OfOptimizer)
            if watch.dead(g) or slot.spent(g):
                continue
            live.append(slot.name)
            if mine:
                alone.append(slot.name)
            if mine and not watch.zeroings and self._busy - watch.begun >= _ALONE:
                never.append(slot.name)
        return live + [name for name in self._hidden() if name not in live], alone, never

    def _is_there(self, slot, g):
        """Whether there is something to be watched."""
        return not (g is None or slot.spent(g) or self._is_dropped(slot.name)) and _nonzero(g)

    @staticmethod
    def _is_alone(slot, have):
        """Whether there are optimizers, none of which has it, and none of others has applied it."""
        if not have or slot.attribute != "grad":
            return False
        return id(slot.tensor) not in have and slot.applied is None

    def _watch(self, slot, kind):
        if not isinstance(slot.watch, kind):
            if slot.watch is not None:  # an optimizer has it now
                slot.watch.close()
                self._alone = [w for w in self._alone if w is not slot.watch]
            slot.watch, self._watched = kind(slot, self._busy), True
            if kind is _OfNone:
                self._alone.append(slot.watch)
        return slot.watch

    def _is_dropped(self, name):
        return any(name == d or name.startswith(f"{d}.") for d in self._dropped)

    def _hidden(self):
        """FSDP2 keeps to itself what it has not reduced yet (set_requires_gradient_sync, set_requires_all_reduce)."""
        found = []
        for prefix, module in self._modules:
            for group in fsdp_groups(module):
                found += [prefix + name for name in _of_fsdp(group)]
        return [name for name in found if not self._is_dropped(name)]


def _of_fsdp(group):
    """Names of parameters in an FSDP2 group whose gradients are not in the sharded parameters yet."""
    if getattr(group, "_partial_reduce_output", None) is not None:
        return [p._param_fqn or "a parameter under FSDP" for p in group.fsdp_params]
    return [p._param_fqn or "a parameter under FSDP" for p in group.fsdp_params
            if p.unsharded_accumulated_grad is not None or getattr(getattr(p, "_unsharded_param", None), "grad", None) is not None]
