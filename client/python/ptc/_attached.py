# SPDX-License-Identifier: Apache-2.0
"""What a program has given to Generation.attach(): modules, optimizers, schedulers and other objects, and what a snapshot has of them
beside tensors.

Happy path: Attached(...) -> collect() -> load() before anything is declared -> declare -> restored(); at each stop before_stop(),
values() and about(). Failure: ptc.Error that names what cannot be carried, or what the snapshot has otherwise.

A snapshot has one blob for each optimizer's options, scheduler and object, those of rank 0; and `model`, what a leader of each pipeline
stage and tensor-parallel rank (the one with dp_rank and cp_rank 0) knows: which parameters are trained and in which group of which
optimizer, digests of the buffers that no state dict has, and extra states.
"""
import bisect
import collections
import gc
import hashlib
import json
import marshal
import sys

import torch
import torch.optim.swa_utils

import ptc
from ptc import _held, _unattached, _values
from ptc._gradients import Gradients
from ptc._held import refuse

_RESERVED = ("optimizer", "scheduler", "model", "rng", "loader", "ptc")


def _references(box):
    """To what is in the list; also those of who asks, of which there are always as many."""
    thing = box[0]
    return sys.getrefcount(thing)


def _several(things):
    return list(things) if isinstance(things, (list, tuple)) else [things]


def _objects(sched, stateful):
    """{blob: [object]}; those of one list have the same state, as the schedulers of one model's parts."""
    found = {}
    if isinstance(sched, dict):
        found.update({f"scheduler/{name}": _several(s) for name, s in sched.items()})
    elif sched is not None:
        found["scheduler"] = _several(sched)
    for name, thing in (stateful or {}).items():
        if name.split("/")[0] in _RESERVED or name.startswith("rng"):
            refuse(f"stateful {name}: that name is taken for what ptc carries itself; give it another one")
        found[name] = [thing]
    for name, them in found.items():
        for thing in them:
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(thing, method, None)):
                    refuse(f"{name}: a {type(thing).__name__} has no {method}(), so that it cannot be carried")
    return found


def _state_of(thing):
    state = thing.state_dict()
    if isinstance(thing, torch.optim.swa_utils.SWALR):  # PyTorch 2.7 has a function in it
        state = {k: v for k, v in state.items() if k != "anneal_func"}
    return state


def _digest(t):
    return hashlib.blake2b(memoryview(t.cpu().contiguous().flatten().view(torch.uint8).numpy()), digest_size=16).hexdigest()


class Attached:
    def __init__(self, model, optim, sched, zero1, tied, extra, stateful, remade, dropped=(), before=()):
        self.modules, self.optimizers = _held.modules_of(model), _held.optimizers_of(optim)
        self.objects = _objects(sched, stateful)
        self.zero1, self.tied, self.extra, self.remade = zero1 or {}, tuple(tied), extra or {}, tuple(remade)
        self._model, self._numbers, self._fields, self._copies = model, {}, {}, []
        self._encoded = {}  # {(blob, number in the list): (how marshal writes it, how a snapshot has it)}
        self._began = {name: p.requires_grad for name, p in self._with_gradients()}
        self.states = _held.extra_states(self.modules)
        self.data, self.data_was = {}, None  # {name: class} of samplers and loaders, here and in the snapshot
        self.cut, self._whole, self._absent = set(), {}, set()  # extra states of modules that tp cuts; optimizers the snapshot has not
        for optims in self.optimizers.values():
            for o in optims:
                _held.start_optimizer(o)
        _no_comm_state(self.modules)
        self._used = None  # ids of what was given that the program never had itself
        self._dropped = (dropped,) if isinstance(dropped, str) else tuple(dropped)
        self.gradients = None
        self._before = before

    # -- tensors

    def collect(self):
        """[Held] of everything that is declared."""
        whole = _held.of_model(self._model, self.tied, self.extra)
        self.names, self._whole = _held.parameter_names(self.modules, self.zero1, self.extra), whole
        self.check_unattached()
        masters, self._copies = _held.of_pieces(whole, self.names, self.zero1)
        fields = {(name, "master"): (h, None, None) for name, h in masters.items()}
        for name, optims in self.optimizers.items():
            for o in optims:
                for key, value in _held.of_optimizer(o, self.names, whole, self.zero1, self._numbers, self._before).items():
                    if key in fields:
                        refuse(f"{key[0]}: two optimizers, or one and zero1=, have a state {key[1]!r} of it")
                    fields[key] = value
        self._fields = fields
        return [*whole.values(), *(h for h, _, _ in fields.values())]

    def parameters(self):
        """{id: name}. Not the parameters: to_empty() swaps DTensors that nobody else refers to, weakly or not."""
        return {id(p): name for name, p in self._parameters_of()}

    def _with_gradients(self):
        """[(name, parameter)]"""
        extra = [(name, t) for name, t in self.extra.items() if isinstance(t, torch.Tensor)]
        return self._parameters_of() + [(n, t) for n, t in extra if t.is_leaf and t.is_floating_point()]

    def check_dropped(self):
        names = [name for name, _ in self._with_gradients()]
        for d in self._dropped:
            if not any(name == d or name.startswith(f"{d}.") for name in names):
                refuse(f"dropped {d}: no parameter has this name, or one that begins with {d}.")

    def check_unattached(self):
        """Refuses if an optimizer has state that nothing attached has."""
        if self._lost() is not None:
            gc.collect()  # an optimizer that nobody uses any more loses nothing, and may hang in a cycle
            text = self._lost()
            if text is not None:
                refuse(text)

    def _lost(self):
        stepped, first = ([], {}) if self.gradients is None else (self.gradients.others(), self.gradients.first)
        return _unattached.lost([o for them in self.optimizers.values() for o in them], self.names, stepped, first)

    def watch(self):
        """Gradients, from now on."""
        named, applies = self._with_gradients(), {}
        by_name = dict(named)
        for name, (_, _, piece) in self.zero1.items():
            applies[id(piece)] = [piece, *([by_name[name]] if name in by_name else [])]
            named.append((name, piece))
        optims = [o for them in self.optimizers.values() for o in them]
        self.gradients = Gradients(self.modules, named, applies, optims, self._dropped)

    def check_gradients(self):
        """At a stop: raises Later where it would lose some."""
        live, alone, never = self.gradients.live()
        of = lambda names: names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        if alone and (never or len(alone) == len(live)):
            text = (f"parameter {of(never or alone)} is in no optimizer, and has a gradient that nothing "
                    f"applies and that would be lost: freeze it (requires_grad_(False)), give it to an "
                    f"optimizer, zero its gradient before boundary(), or name it in attach(dropped=) where it "
                    f"is nobody's")
            raise ptc.Error(-2, text) if never else ptc.Later(text)
        if live:
            raise ptc.Later(f"gradients of {of(live)} have been computed and not been applied, and would be "
                            f"lost; call boundary() where an optimizer has stepped, or name them in "
                            f"attach(dropped=) where they are never applied")

    def close(self):
        if self.gradients is not None:
            self.gradients.close()

    def restored(self):
        """The declared memory has the snapshot's bytes."""
        with torch.no_grad():
            for whole, where, piece in self._copies:
                piece.copy_(whole.local.flatten()[where].view_as(piece))
        for (h, state, key) in self._fields.values():
            number = self._numbers.get((h.name, h.field))
            if number is not None:
                state[key] = type(state[key])(number.item())

    def before_stop(self):
        self.set_numbers()
        self.check_copies()

    def set_numbers(self):
        """What optimizers keep as numbers is declared as tensors."""
        for (h, state, key) in self._fields.values() if self._numbers else ():
            number = self._numbers.get((h.name, h.field))
            if number is not None:
                _held.set_number(h, number, state[key])

    # -- what the program no longer has

    def _given(self):
        """[(what it is called, [it], how many references to it are of this object)] of what has a state that a program may put into
        another object: `shadow = 0.9 * shadow + ...`, `target = copy.deepcopy(net)`."""
        found, slots = [], collections.Counter(map(id, self.gradients.tensors()))
        several = list(self._model.values()) if isinstance(self._model, dict) else _several(self._model)
        for prefix, m in self.modules:
            ours = 1 + sum(x is m for x in several) + sum(x is m for x in self.states.values())
            found.append((f"model {prefix[:-1]}".strip(), [m], ours))
        found += [(name, [thing], 1) for name, them in self.objects.items() for thing in them]
        found += [(f"tensor {name}", [t], 1 + slots[id(t)]) for name, t in self.extra.items()]
        return found

    def _alone(self):
        """{id: what it is called} of those that nobody but this object has. Of a module nobody has a part either: a container that is made
        for attach() is nobody's from the start."""
        beside = _references([object()])
        alone = [(what, box) for what, box, ours in self._given() if _references(box) - beside == ours]
        return {id(box[0]): what for what, box in alone if not (isinstance(box[0], torch.nn.Module) and self._has_part(box[0], beside))}

    def _has_part(self, root, beside):
        """Whether there is a reference to a part of it that is not another part's."""
        things = [(list(m._modules.values()), list(m._parameters.values()), list(m._buffers.values())) for m in root.modules()]
        known = collections.Counter(id(x) for kinds in things for them in kinds for x in them)
        known.update(map(id, self.gradients.tensors()))
        parts = {id(x): [x] for kinds in things for them in kinds for x in them if x is not None}
        things = None
        return any(_references(box) - beside != known[i] for i, box in parts.items())

    def note_given(self):
        """At the first boundary, before anything is trained: what the program does not have even here, it has under another name, such
        as a view of it."""
        if self._used is None:
            self._used = set(self._alone())

    def check_given(self):
        self.note_given()
        for i, what in self._alone().items():
            if i not in self._used:
                refuse(f"{what}: nobody refers any more to what was given to attach(), so that the program has put something else in its "
                       f"place, whose state would be lost; change it in place, by copy_() or load_state_dict()")

    def check_copies(self):
        for whole, where, piece in self._copies:
            mine = whole.local.flatten()[where].contiguous().view(torch.uint8)
            if not torch.equal(mine, piece.flatten().view(torch.uint8)):
                refuse(f"zero1 {whole.name}: the piece differs from the parameter, whose copy it is, so that one of the two would be "
                       f"lost; gather parameters before boundary(), or make pieces of a wider dtype")

    # -- what is the same on every rank

    def options(self, name):
        first, *others = [[{k: v for k, v in g.items() if k not in ("params", "param_names")} for g in o.param_groups]
                          for o in self.optimizers[name]]
        data = _values.dumps(name, first) if others else None
        for i, options in enumerate(others):
            if _values.dumps(name, options) != data:
                refuse(f"{name}: number {i + 1} of the list has other parameter groups or options than number 0; optimizers that "
                       f"differ go into a dict, each by a name of its own")
        return first

    def _encode(self, name, i, value):
        """Encoding takes ten times as long as a look whether anything has changed. What marshal cannot write, a tensor for example, is
        encoded each time."""
        try:
            raw = marshal.dumps(value, 2)  # later versions say the same in several ways
        except ValueError:
            return _values.dumps(name, value)
        was = self._encoded.get((name, i))
        if was is None or was[0] != raw:
            was = self._encoded[name, i] = raw, _values.dumps(name, value)
        return was[1]

    def values(self):
        """{blob: bytes}."""
        out = {}
        for name, optims in self.optimizers.items():
            if optims:
                kind = type(optims[0]).__name__
                out[name] = self._encode(name, 0, {"class": kind, "groups": self.options(name)})
        for name, them in self.objects.items():
            states = [self._encode(name, i, _state_of(thing)) for i, thing in enumerate(them)]
            if any(s != states[0] for s in states):
                refuse(f"{name}: objects of the list have different states; those that differ go into a dict, each by a name of "
                       f"its own")
            out.update({name: s for s in states[:1]})
        for name, data in out.items():
            if len(data) > ptc.BLOB_MAX:
                refuse(f"{name}: its state takes {len(data)} bytes, at most {ptc.BLOB_MAX} can be carried")
        return out

    def load(self, get, step):
        """get(blob) -> bytes or None, of the snapshot after `step` steps. Whether there was any."""
        found, self._absent = False, set()
        for name, optims in self.optimizers.items():
            saved = get(name)
            if saved is None:
                self._absent.add(name)
            else:
                found = True
                for o in optims:
                    _load_options(name, o, _values.loads(saved), step)
        for name, them in self.objects.items():
            saved = get(name)
            if saved is not None:
                found = True
                for thing in them:
                    thing.load_state_dict(_values.loads(saved))
        return found

    # -- what belongs to parts of the model

    def buffers(self):
        """{name: [dtype, shape, digest]} of buffers that no state dict has: fine as long as nobody changes them."""
        return {name: [str(b.dtype), list(b.shape), _digest(b)] for name, b in _held.not_persistent(self.modules).items()
                if not b.is_meta and b.numel()}

    def _parameters_of(self):
        return [(prefix + _held.clean_name(model, name), p) for prefix, model in self.modules
                for name, p in model.named_parameters(remove_duplicate=False)]

    def _parameters(self):
        """{name: [trained, {optimizer: group}]}"""
        found = {name: [p.requires_grad, {}] for name, p in self._parameters_of()}
        for kind, optims in self.optimizers.items():
            for o in optims:
                for i, group in enumerate(o.param_groups):
                    for p in group["params"]:
                        for name in self.names.get(id(p), ()):
                            found.setdefault(name, [p.requires_grad, {}])[1][kind] = i
        return found

    def about(self, leads, buffers):
        """What this rank knows of its part of the model, as bytes. leads: it is tensor-parallel rank 0, whose word on parameters counts."""
        out = {"extra": {name: module.get_extra_state() for name, module in self.states.items()}}
        if leads:
            out.update(parameters=self._parameters(), buffers=buffers, began=self._began)
            out["pieces"] = {"zero1": bool(self.zero1)}  # of which no rank has all
            out["objects"] = {name: True for name in self.objects}
            out["optimizers"] = {name: type(them[0]).__name__ for name, them in self.optimizers.items() if them}
            out["data"] = dict(self.data)
        if self.states:
            out["cuts"] = self.cuts()
        return _values.dumps("model", out, True)

    def cuts(self):
        """{extra state: which parts of its module's tensors, those of modules in it too, this rank has, as a digest}"""
        names, out = sorted(self._whole), {}
        for state in self.states:
            prefix = state[:-len("_extra_state")]
            at = bisect.bisect_left(names, prefix)
            end = bisect.bisect_right(names, prefix + chr(0x10ffff))
            mine = [(n, self._whole[n].shape, [cut[:2] for cut in self._whole[n].cuts]) for n in names[at:end]]
            out[state] = hashlib.blake2b(repr(mine).encode(), digest_size=8).hexdigest()
        return out

    @staticmethod
    def merge(parts, tp):
        """What a snapshot has, of {(pp_rank, tp_rank): about()}."""
        kinds = ("parameters", "began", "buffers", "pieces", "extra", "objects", "optimizers", "data")
        whole, cuts = {"version": 1, "tp": tp, **{kind: {} for kind in kinds}}, {}
        for (_, tp_rank), data in sorted(parts.items()):
            for kind, them in json.loads(data)["dict"]:
                for name, value in them["dict"]:
                    if kind == "extra":
                        whole[kind].setdefault(name, {})[str(tp_rank)] = value
                    elif kind == "cuts":
                        cuts.setdefault(name, set()).add(value)
                    else:
                        whole[kind].setdefault(name, value)
        whole["cut"] = {name: len(values) > 1 for name, values in cuts.items()}
        for states in whole["extra"].values():
            if len(states) == tp and all(s == states["0"] for s in states.values()):
                for t in range(1, tp):
                    del states[str(t)]
        return json.dumps(whole).encode()

    def load_about(self, data, gen):
        """What the snapshot has for another model, or has to be loaded into this one."""
        whole = json.loads(data)
        if whole["version"] != 1:
            refuse(f"model: the snapshot's description of it is of version {whole['version']}, this is version 1 of ptc.torch")
        for name in sorted(set(whole["objects"]) ^ set(self.objects)):
            refuse(f"{name}: {'the snapshot has its state, this program attaches no such object' if name in whole['objects'] else 'this program attaches it, the snapshot has no state of it'}; "
                   f"give the same objects by the same names as before")
        self.data_was = whole.get("data")  # the version before says neither this nor optimizers
        mine = {name for name, them in self.optimizers.items() if them}
        had = set(whole.get("optimizers", mine - self._absent))
        for name in sorted(had ^ mine):
            refuse(f"{name}: {'the snapshot has its options, this program attaches no such optimizer' if name in had else 'this program attaches it, the snapshot has no options of it'}; "
                   f"give the same optimizers by the same names as before")
        was = {name: _values._decode(value) for name, value in whole["parameters"].items()}
        for name, (trained, groups) in self._parameters().items():
            old_trained, old_groups = was.get(name, (trained, groups))
            toggled = self._began.get(name) == whole.get("began", {}).get(name, "")  # in training
            if trained != old_trained and not toggled:
                refuse(f"parameter {name}: {'frozen' if trained else 'trained'} in the snapshot, {'trained' if trained else 'frozen'} "
                       f"here; set its requires_grad before attach as it was after step {gen.start_step}")
            pieces = self.zero1 or whole["pieces"].get("zero1")
            for kind in () if pieces and not (groups and old_groups) else sorted(set(groups) | set(old_groups)):
                if groups.get(kind) != old_groups.get(kind):
                    refuse(f"{kind}: parameter {name} was in {_group(old_groups, kind)} in the snapshot, and is in {_group(groups, kind)} "
                           f"here; build the groups as they were after step {gen.start_step}")
        if gen.tp_rank == gen.cp_rank == gen.dp_rank == 0:
            self._same_buffers({name: _values._decode(value) for name, value in whole["buffers"].items()})
        self._load_extra(whole, gen)
        for name, p in self._with_gradients():
            p.requires_grad_(was.get(name, (p.requires_grad, {}))[0])

    def _same_buffers(self, was):
        for name, (dtype, shape, digest) in self.buffers().items():
            old = was.get(name)
            if old and name not in self.remade and old[:2] == [dtype, shape] and old[2] != digest:
                refuse(f"buffer {name} is not persistent, and is made with other values than in the generation of the snapshot; register "
                       f"it as persistent, pass it in extra=, or name it in remade= where that is meant")

    def _load_extra(self, whole, gen):
        for name in sorted(set(whole["extra"]) ^ set(self.states)) if gen.pp == 1 else sorted(set(self.states) - set(whole["extra"])):
            refuse(f"{name}: {'the snapshot has it, this model has not' if name in whole['extra'] else 'the snapshot has none'}")
        for name, module in self.states.items():
            states = whole["extra"][name]
            if whole["tp"] == gen.tp:
                pass
            elif name in self.cut or whole.get("cut", {}).get(name, whole["tp"] > 1):
                refuse(f"{name}: the extra state is of a module whose parameters tensor parallelism cuts; the snapshot's is of "
                       f"tp={whole['tp']}, this is tp={gen.tp}, and only the module knows how to divide it: keep tp={whole['tp']}, or "
                       f"carry what does not depend on the parts as a buffer or in stateful=")
            elif len(states) > 1:
                refuse(f"{name}: the extra state differs between the snapshot's {whole['tp']} tensor-parallel ranks, this is "
                       f"tp={gen.tp}, and only the module knows how to divide it: keep tp={whole['tp']}")
            rank = str(gen.tp_rank) if str(gen.tp_rank) in states else "0"
            if rank not in states:
                refuse(f"{name}: the snapshot has no extra state of tensor-parallel rank {gen.tp_rank}")
            module.set_extra_state(_values._decode(states[rank]))


def _group(groups, kind):
    return f"group {groups[kind]}" if kind in groups else "no group"


def _load_options(name, optim, saved, step):
    if isinstance(saved, dict):
        if saved["class"] != type(optim).__name__:
            refuse(f"{name}: the snapshot is of a {saved['class']}, this is a {type(optim).__name__}")
        saved = saved["groups"]
    groups = optim.param_groups
    if len(saved) != len(groups):
        refuse(f"{name}: the snapshot has {len(saved)} parameter groups, this one {len(groups)}; "
               f"build the groups as they were after step {step}, also those that were added in training")
    for group, values in zip(groups, saved):
        group.update(values)


def _no_comm_state(modules):
    """PowerSGD keeps what it has not sent yet, as others do that compress gradients."""
    for prefix, model in modules:
        for path, module in model.named_modules():
            hooks = getattr(module, "_comm_hooks", ()) if isinstance(module, _held.DistributedDataParallel) else ()
            for hook, state in hooks:
                if state is not None and not isinstance(state, torch.distributed.ProcessGroup):
                    what = f"DDP's communication hook {getattr(hook, '__name__', hook)}"
                    refuse(f"module {prefix}{path or type(model).__name__}: {what} has a {type(state).__name__}, which cannot be "
                           f"carried; use one without a state")
