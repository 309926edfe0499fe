# SPDX-License-Identifier: Apache-2.0
"""What a rank holds of a model and its optimizer, as boxes of named tensors, worked out before anything is declared.

Happy path: collect() gives a list of Held, one per (name, field). Failure: ptc.Error that names what cannot be carried, and
why; nothing has been declared then.
"""
import contextlib
import copy
import functools
import gc
import importlib.util
import inspect
import itertools
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import ptc

# DTensor and torch.distributed.checkpoint take about a second of CPU to import (SymPy and all of DTensor's operations), so
# they are loaded when a model is attached, or by the program that uses them, and not by `import ptc.torch`.
if importlib.util.find_spec("torch.distributed.tensor") is None:
    raise ImportError("ptc.torch needs PyTorch 2.7 or later")

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


probing = False  # tensors on meta are fine (_probe.py)


def refuse(what):
    raise ptc.Error(-2, what)


def is_dtensor(thing):
    """Without loading DTensor: while nobody has, there is none."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(thing, kind)


def storage_of(t):
    """A number that tensors over the same memory share."""
    storage = t.untyped_storage()
    return storage._cdata if t.is_meta else storage.data_ptr()


def address_of(t):
    """Where its first element is. Of a tensor without memory (a probe): a number that is never 0, and another for another place."""
    return storage_of(t) + t.storage_offset() * t.element_size() if t.is_meta else t.data_ptr()


@contextlib.contextmanager
def without_memory(optimizers):
    """Tensors may be on meta. What optimizers make of them meanwhile is gone afterwards: it would be no state of theirs."""
    global probing
    before, states = probing, [(o, set(map(id, o.state))) for o in optimizers if isinstance(o, torch.optim.Optimizer)]
    probing = True
    try:
        yield
    finally:
        probing = before
        for o, had in states:
            for p in [p for p in o.state if id(p) not in had]:
                del o.state[p]


@contextlib.contextmanager
def kept(modules):
    """Buffers that no state dict has, and gradients, are afterwards what they were before. modules: None, one, a list or a dict."""
    them = list(modules.values()) if isinstance(modules, dict) else modules if isinstance(modules, (list, tuple)) else [modules]
    them = [m for m in them if m is not None]
    buffers = [(b, b.clone()) for b in not_persistent([(f"{i}.", m) for i, m in enumerate(them)]).values() if not b.is_meta]
    parameters = list({id(p): p for m in them for p in m.parameters()}.values())
    grads = [None if p.grad is None else p.grad.clone() for p in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for b, was in buffers:
                b.copy_(was)
        for p, was in zip(parameters, grads):
            p.grad = was


# ---- boxes ------------------------------------------------------------------------------------------------------------


def _pick(pieces, i, like):
    return pieces[i] if i < len(pieces) else like[:0]  # the last ranks may have nothing


def _indices(name, t):
    """Of each dimension of a DTensor: the global indices this rank has, in the order it has them; None where all. [] when it is
    not in the tensor's mesh. Placements are applied from the first mesh dimension to the last; a strided one (FSDP over
    tensor parallelism) cuts each of `split_factor` pieces by itself."""
    from torch.distributed.tensor import Replicate, Shard
    mesh, found = t.device_mesh, [None] * t.dim()
    where = mesh.get_coordinate()
    if where is None:
        return []
    for p, ranks, rank in zip(t.placements, mesh.shape, where):
        if isinstance(p, Replicate):
            continue
        strided = hasattr(p, "split_factor")
        if not strided and not isinstance(p, Shard):
            refuse(f"tensor {name}: placement {p!r} cannot be carried: only Shard and Replicate say who holds which elements")
        have = torch.arange(t.shape[p.dim]) if found[p.dim] is None else found[p.dim]
        if strided:
            found[p.dim] = torch.cat([_pick(piece.chunk(ranks), rank, piece) for piece in have.chunk(p.split_factor)])
        else:
            found[p.dim] = _pick(have.chunk(ranks), rank, have)
    return found


def _runs(indices):
    """[(first index, how many)] of what lies side by side."""
    if not len(indices):
        return []
    cuts = (torch.nonzero(indices[1:] != indices[:-1] + 1).flatten() + 1).tolist()
    return [(int(indices[a]), b - a) for a, b in zip([0, *cuts], [*cuts, len(indices)])]


def boxes_of_range(shape, start, stop):
    """Elements [start, stop) of a row-major tensor as (offset, extent) boxes, in order: whole rows in one, what is left of
    the first and the last row cut in the same way."""
    if start >= stop:
        return []
    if not shape:
        return [([], [])]
    inner = 1
    for n in shape[1:]:
        inner *= n
    boxes, row = [], start // inner
    if start % inner:
        end = min(stop - row * inner, inner)
        boxes += [([row] + o, [1] + e) for o, e in boxes_of_range(shape[1:], start % inner, end)]
        row += 1
    last = stop // inner
    if row < last:
        boxes.append(([row] + [0] * len(shape[1:]), [last - row] + list(shape[1:])))
    if last >= row and stop % inner:
        boxes += [([last] + o, [1] + e) for o, e in boxes_of_range(shape[1:], 0, stop % inner)]
    return boxes


class Held:
    """A tensor of this rank, the whole or a part of a named one: its global shape, its boxes, its memory."""

    def __init__(self, name, field, tensor, tied=False):
        self.name, self.field, self.tied = name, field, tied
        self.shape, dims = list(tensor.shape), [None] * tensor.dim()
        local = tensor
        if is_dtensor(tensor):
            dims, local = _indices(str(self), tensor), tensor.to_local()
        self._take(local)
        if dims == [] and tensor.dim():
            self.cuts = []
            return
        runs = [[(0, n)] if d is None else _runs(d) for n, d in zip(self.shape, dims)]
        extent = [sum(n for _, n in r) for r in runs]
        if extent != list(self.local.shape) and (self.local.numel() or 0 not in extent):
            refuse(f"tensor {self}: by its placements {tensor.placements} this rank has {extent} of it, but it has "
                   f"{list(self.local.shape)}")
        self.cuts = self._cut(runs) if self.local.numel() else []

    def __str__(self):
        return f"{self.name} ({self.field})" if self.field else self.name

    def _take(self, local):
        if type(local) not in (torch.Tensor, torch.nn.Parameter):
            refuse(f"tensor {self}: a {type(local).__name__} cannot be carried, only plain tensors and DTensors of these")
        if local.layout != torch.strided:
            refuse(f"tensor {self}: layout {local.layout} cannot be carried")
        if local.device.type not in ("cpu", "cuda") and not (probing and local.is_meta):
            refuse(f"tensor {self}: it is on {local.device}; only memory of the host and of CUDA devices is carried")
        if local.dtype not in DTYPES:
            refuse(f"tensor {self}: dtype {local.dtype} cannot be carried")
        self.local, self.dtype = local.detach(), DTYPES[local.dtype]

    @staticmethod
    def _cut(runs):
        """[(offset, extent, where its first element is in the local tensor)], one for each box."""
        cuts = []
        for r in runs:
            at = itertools.accumulate((n for _, n in r), initial=0)
            cuts.append([(offset, n, here) for here, (offset, n) in zip(at, r)])
        return [tuple(map(list, zip(*c))) if c else ([], [], []) for c in itertools.product(*cuts)]

    def boxes(self):
        item = self.local.element_size()
        strides = [s * item for s in self.local.stride()]
        return [(offset, extent, sum(h * s for h, s in zip(here, strides)), strides) for offset, extent, here in self.cuts]

    def _another(self, field, tensor):
        h = copy.copy(self)
        h.field = field
        h._take(tensor)
        return h

    def like(self, field, tensor):
        """Optimizer state of the same local shape, kept beside a DTensor as a plain tensor: it lies as this one does."""
        return self._another(field, tensor)

    def range(self, field, piece, start, stop):
        """One-dimensional `piece`: elements [start, stop) of the flattened local part of this tensor (ZeRO-1)."""
        h = self._another(field, piece)
        if piece.numel() != stop - start or not piece.is_contiguous() or not 0 <= start <= stop <= self.local.numel():
            refuse(f"tensor {h}: a piece of {piece.numel()} elements for the range {start}..{stop} of {self.local.numel()}")
        if len(self.cuts) > 1:
            refuse(f"tensor {h}: a range of a parameter that is cut into {len(self.cuts)} boxes cannot be carried")
        offset, extent = self.cuts[0][:2] if self.cuts else ([], [0])
        boxes, at = [], 0
        for o, e in boxes_of_range(extent, start, stop):
            boxes.append(([a + b for a, b in zip(offset, o)], e, at, None))
            n = piece.element_size()
            for x in e:
                n *= x
            at += n
        h.boxes = lambda: boxes
        return h

    def place(self):
        """Where the memory is: the same as long as nobody has put another tensor in its place."""
        return address_of(self.local), list(self.local.shape), list(self.local.stride())

    def declare(self, client, memory=True):
        client.declare(self.name, self.dtype, self.shape, self.boxes(), address_of(self.local) if memory else None, self.field,
                       self.tied, memory and self.local.device.type == "cuda")


# ---- models ------------------------------------------------------------------------------------------------------------


def _local(t):
    return t.to_local() if is_dtensor(t) else t


def clean_name(model, name):
    """A parameter's name without what wrappers (DDP, torch.compile, activation checkpointing) put in."""
    at, out = model, []
    for part in name.split("."):
        if not (part in _WRAPPERS or (part == "module" and isinstance(at, DistributedDataParallel))):
            out.append(part)
        at = getattr(at, part)
    return ".".join(out)


def modules_of(model):
    """[(what its names begin with, module)] of attach(model=): one, parts of one model, or models by name."""
    if isinstance(model, dict):
        found = [(f"{name}.", m) for name, m in model.items()]
    else:
        found = [("", m) for m in (model if isinstance(model, (list, tuple)) else () if model is None else (model,))]
    for prefix, m in found:
        if not isinstance(m, torch.nn.Module):
            refuse(f"model {prefix[:-1]}: a {type(m).__name__} is no torch.nn.Module".replace(" :", ":"))
    return found


def has_extra_state(module):
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def extra_states(modules):
    """{name in the state dict: module} of those that have a state in a form of their own."""
    found = {}
    for prefix, model in modules:
        for path, module in model.named_modules():
            if has_extra_state(module):
                clean = clean_name(model, path) if path else ""
                found[f"{prefix}{clean}{'.' if clean else ''}_extra_state"] = module
    return found


@functools.cache
def _leaves_meta_out():
    """PyTorch up to 2.7 takes what is on meta out of the state dicts that get_model_state_dict makes, and refuses an empty one."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    try:
        return not get_model_state_dict(torch.nn.Linear(1, 1, device="meta"))
    except RuntimeError:
        return True


def _state_of(model):
    """What get_model_state_dict gives of a model, or would give if nothing were on meta. What it leaves behind refers to modules: its
    cache, in PyTorch 2.7, and cycles, which are kept young so that they can be collected at once (Attached.check_given)."""
    from torch.distributed.checkpoint import state_dict
    plain = model.state_dict()
    if plain and any(isinstance(v, torch.Tensor) and v.is_meta for v in plain.values()) and _leaves_meta_out():
        return {clean_name(model, key): value for key, value in plain.items()}
    if not plain:
        return {}
    enabled = gc.isenabled()
    gc.disable()
    try:
        return dict(state_dict.get_model_state_dict(model))
    finally:
        if enabled:
            gc.enable()
        with contextlib.suppress(AttributeError):
            state_dict._get_fqns.cache_clear()
        gc.collect(0)


def fsdp_groups(model):
    """FSDP2's groups of parameters."""
    for m in model.modules():
        with contextlib.suppress(AttributeError):
            state = m._get_fsdp_state()
            yield from filter(None, getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group])


def _settle(model):
    """At its first forward pass FSDP2 may put other, padded memory in the place of a parameter: that of PyTorch 2.7 wherever ranks have
    uneven parts, later ones where the program has made the parameter anew. It does so once, so let it do it before that is bound."""
    for group in fsdp_groups(model):
        group.lazy_init()


def of_module(model, prefix, tied, extra_states=(), given=()):
    """{name: Held} of what its state dict has."""
    for name, t in itertools.chain(model.named_parameters(), model.named_buffers()):
        if torch.nn.parameter.is_lazy(t):
            refuse(f"{prefix}{name}: it is not initialized; call the module once before attach")
        if t.is_meta and not probing:
            refuse(f"tensor {prefix}{name}: it is on meta; only memory of the host and of CUDA devices is carried")
    if not probing:
        _settle(model)
    state, held = _state_of(model), {}
    tensors = [_local(t) for t in itertools.chain(model.parameters(), model.buffers())]
    live = {storage_of(t) for t in tensors if t.layout == torch.strided}
    for key, value in state.items():
        name = prefix + key
        if name in extra_states:
            continue
        if not isinstance(value, torch.Tensor):
            refuse(f"{name}: the model's state dict has a {type(value).__name__} there, which cannot be carried")
        held[name] = Held(name, None, value, name in tied)
        if held[name].local.numel() and storage_of(held[name].local) not in live:
            refuse(f"{name}: the model's state dict has a copy there, not a parameter or buffer (a hook makes it?), so that "
                   f"nothing could be restored into it")
    _all_there(model, prefix, held, given)
    return held


def _all_there(model, prefix, held, given):
    """A hook may leave something out of the state dict. given: what is carried all the same."""
    there = {storage_of(t) for t in itertools.chain((h.local for h in held.values()), map(_local, given))}
    outside = {id(m._buffers[key]) for m in model.modules() for key in m._non_persistent_buffers_set}
    for name, t in itertools.chain(model.named_parameters(), model.named_buffers()):
        if id(t) not in outside and _local(t).numel() and storage_of(_local(t)) not in there:
            refuse(f"{prefix}{clean_name(model, name)}: the model's state dict leaves it out (a hook?), so that it would be lost; "
                   f"pass it in extra=, by a name of its own")


def of_model(model, tied, extra):
    """{name: Held} of what the modules' state dicts have, and of `extra`. model: as for attach()."""
    modules, held = modules_of(model), {}
    states, given = extra_states(modules), [t for t in extra.values() if isinstance(t, torch.Tensor)]
    for prefix, module in modules:
        for name, h in of_module(module, prefix, tied, states, given).items():
            if name in held and held[name].place() != h.place():
                refuse(f"{name}: two modules have a tensor of that name; parts of one model have different names, and models go "
                       f"into a dict, each by a name of its own")
            held[name] = h
    for name, value in extra.items():
        if name in held:
            refuse(f"extra {name}: the model's state dict has that name already")
        if not isinstance(value, torch.Tensor):
            refuse(f"extra {name}: a {type(value).__name__} cannot be carried, only tensors; see stateful=")
        held[name] = Held(name, None, value, name in tied)
    return held


def not_persistent(modules):
    """{name: buffer} of what no state dict has."""
    found = {}
    for i, (prefix, model) in enumerate(modules):
        for path, module in model.named_modules():
            for key in module._non_persistent_buffers_set:
                b = module._buffers.get(key)
                if b is not None:
                    name = prefix + clean_name(model, f"{path}.{key}" if path else key)
                    found[f"{name} (of part {i})" if name in found else name] = _local(b.detach())
    return found


# ---- optimizers ----------------------------------------------------------------------------------------------------------


def _start_sgd(optim, group, p):
    if group["momentum"]:  # of a zero buffer the first step makes the gradient, unless it is damped
        if group["dampening"]:
            refuse("optimizer SGD with dampening makes its first momentum in its first step; take one step before attach")
        optim.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)


def _start_torch(optim, group, p):
    """PyTorch's own optimizers make a parameter's state when they first see its gradient; nothing is stepped."""
    lists = [[] for _ in list(inspect.signature(type(optim)._init_group).parameters)[2:]]
    was, p.grad = p.grad, torch.zeros_like(p, memory_format=torch.preserve_format)
    try:
        optim._init_group({**group, "params": [p]}, *lists)
    finally:
        p.grad = was


# What these begin with depends on the learning rate at a parameter's first step, which may come long after attach.
_OF_FIRST_STEP = (torch.optim.ASGD, torch.optim.Rprop)


def not_begun(optim):
    """Ids of the parameters that have not been stepped, of an optimizer whose state is not known before they are."""
    if type(optim) not in _OF_FIRST_STEP:
        return set()
    return {id(p) for group in optim.param_groups for p in group["params"] if float(optim.state[p]["step"]) == 0.0}


def begin(optim, waiting):
    """Just before a step: what it steps for the first time begins with today's options. Takes it out of `waiting`."""
    for group in optim.param_groups:
        for p in group["params"]:
            if id(p) not in waiting or p.grad is None:
                continue
            waiting.discard(id(p))
            was = optim.state.pop(p)
            with torch.no_grad():
                _start_torch(optim, group, p)
                for key, value in optim.state[p].items():
                    was[key].copy_(value)
            optim.state[p] = was


# State that an optimizer makes at its first step has to be there when the snapshot is restored into it.
def _start_of(optim):
    kind = type(optim)
    if kind is torch.optim.SGD:
        return _start_sgd
    known = kind.__module__.startswith("torch.optim") and hasattr(kind, "_init_group")
    return _start_torch if known and kind is not torch.optim.SparseAdam else None


def optimizers_of(optim):
    """{blob: [optimizer]} of attach(optim=): one, those of parts of one model, or several by name."""
    if isinstance(optim, dict):
        return {f"optimizer/{name}": list(o) if isinstance(o, (list, tuple)) else [o] for name, o in optim.items()}
    return {"optimizer": list(optim) if isinstance(optim, (list, tuple)) else [optim]} if optim is not None else {}


def _plain_state(optim):
    """A wrapper around an optimizer may have more than what optimizers have."""
    try:
        more = sorted(map(str, set(optim.state_dict()) - {"state", "param_groups"}))
    except Exception as e:
        refuse(f"optimizer {type(optim).__name__}: its state_dict() cannot be had ({str(e).splitlines()[0]}); attach an optimizer that "
               f"keeps its state in `state`, with zero1= where each rank works on a part")
    if more:
        refuse(f"optimizer {type(optim).__name__}: its state dict has {', '.join(more)} beside state and param_groups, which cannot "
               f"be carried; attach the optimizer in it, and give the rest in stateful=")


def start_optimizer(optim):
    if not isinstance(optim, torch.optim.Optimizer):
        refuse(f"optim: a {type(optim).__name__} is no torch.optim.Optimizer")
    if type(optim).state_dict is not torch.optim.Optimizer.state_dict:
        _plain_state(optim)
    if isinstance(optim, torch.optim.LBFGS):
        refuse("optimizer LBFGS: its state is lists of tensors, which cannot be carried")
    start = _start_of(optim)
    for group in optim.param_groups:
        for p in group["params"]:
            if optim.state.get(p):
                continue
            if start is None:
                refuse(f"optimizer {type(optim).__name__} has no state yet, and what it makes at its first step is not "
                       f"known; take one step before attach (SparseAdam and optimizers from outside PyTorch need this)")
            with torch.no_grad():
                start(optim, group, p)


def parameter_names(modules, zero1, extra):
    """{id: names} of what optimizers work on; tied parameters have several."""
    names = {}
    for prefix, model in modules:
        for name, p in model.named_parameters(remove_duplicate=False):
            clean = prefix + clean_name(model, name)
            if clean not in names.setdefault(id(p), []):
                names[id(p)].append(clean)
    for name, t in extra.items():
        names.setdefault(id(t), []).append(name)
    same = {name: them for them in names.values() for name in them}
    for name, (_, _, piece) in zero1.items():
        names[id(piece)] = same.get(name, [name])
    return names


def of_pieces(held, names, zero1):
    """(masters, copies) of zero1=. A piece of another dtype than its parameter has more in it, and is state of its own: a field
    `master`. One of the same dtype is the parameter's range once more: either that memory itself, or a copy, [(Held of the
    parameter, range, piece)], which is neither declared nor needed."""
    masters, copies = {}, []
    for name, (start, stop, piece) in zero1.items():
        whole = held.get(name)
        if whole is None:
            refuse(f"zero1 {name}: the model has no parameter of that name")
        own = whole.range("master", piece, start, stop)
        if own.dtype != whole.dtype:
            masters.update({n: held[n].range("master", piece, start, stop) for n in names[id(piece)] if n in held})
        elif not (whole.local.is_contiguous() and
                  address_of(own.local) == address_of(whole.local) + start * whole.local.element_size()) and stop > start:
            copies.append((whole, slice(start, stop), own.local))
    return masters, copies


def _number(numbers, whole, field, value):
    """A Python number as a scalar tensor, which is told at each stop."""
    numbers.setdefault((whole.name, field), torch.tensor(value, dtype={bool: torch.bool, int: torch.int64}.get(type(value), torch.float64)))
    h = Held(whole.name, field, numbers[whole.name, field], whole.tied)
    return h


def set_number(h, number, value):
    """Tells a stop what an optimizer's number is now. A tensor keeps the kind of number that it was declared with."""
    kind = {bool: torch.bool, int: torch.int64}.get(type(value), torch.float64)
    fits = number.dtype == kind or (number.dtype, kind) == (torch.float64, torch.int64)
    if not fits or type(value) not in (bool, int, float) or (kind == torch.int64 and not -2**63 <= value < 2**63):
        refuse(f"{h}: it was declared as a number of type {str(number.dtype)[6:]} and is {value!r} now, which would not be carried whole; "
               f"begin it as a number of the kind that it becomes, such as 0.0")
    number.fill_(value)


def _of_field(whole, piece_range, field, value, numbers):
    if type(value) in (bool, int, float):
        return _number(numbers, whole, field, value)
    if not isinstance(value, torch.Tensor):
        refuse(f"{whole.name}: optimizer state {field!r} is a {type(value).__name__}, which cannot be carried")
    if value.dim() == 0:
        return Held(whole.name, field, value, whole.tied)
    if piece_range:
        return whole.range(field, value, piece_range[0], piece_range[1])
    if not is_dtensor(value) and list(value.shape) == list(whole.local.shape):
        return whole.like(field, value)
    h = Held(whole.name, field, value, whole.tied)
    if h.shape != whole.shape and whole.shape != list(whole.local.shape) and not is_dtensor(value):
        refuse(f"{whole.name}: optimizer state {field!r} has shape {h.shape}, this rank's part of the parameter "
               f"{list(whole.local.shape)}: which part of a whole that is cannot be told")
    return h


def _replaced(optim, p, names, held, before):
    """The name of a parameter that the model had before to_empty() or to() put another in its place, as far as that can be told: by what
    was declared, by the optimizer's own names, or by its place among as many parameters as the model has."""
    if id(p) in before:
        return before[id(p)]
    mine = [(q, group.get("param_names", ())[i:i + 1]) for group in optim.param_groups for i, q in enumerate(group["params"])]
    at = next(i for i, (q, _) in enumerate(mine) if q is p)
    if mine[at][1]:
        return mine[at][1][0]
    if p.is_meta and len(mine) == len(names):
        name = list(names.values())[at][0]
        return name if name in held and held[name].shape == list(p.shape) else None
    return None


def of_optimizer(optim, names, held, zero1, numbers, before=()):
    """{(name, field): (Held, state, key)} of the optimizer's state, under the names of the parameters it belongs to. before: {id: name}
    of the parameters that were declared, which others may have replaced since."""
    found, known, ranges = {}, set(), {id(piece): (start, stop) for start, stop, piece in zero1.values()}
    for group in optim.param_groups:
        for p in group["params"]:
            mine = [n for n in names.get(id(p), ()) if n in held]
            replaced = None if mine else _replaced(optim, p, names, held, before)
            if replaced:
                refuse(f"optimizer {type(optim).__name__}: it works on {replaced} as that was before to_empty() or to() put another tensor "
                       f"in its place, so that nothing would be trained; make the optimizer after that")
            if not mine:
                refuse(f"optimizer {type(optim).__name__}: a parameter of shape {tuple(p.shape)} is none of the "
                       f"model's; give it by name in zero1= or extra=, or leave it out")
            known.add(id(p))
            for name in mine:
                for field, value in optim.state.get(p, {}).items():
                    if value is not None:
                        if (name, str(field)) in found:
                            refuse(f"{name}: the optimizer's state has two keys {str(field)!r} that differ in type only")
                        found[name, str(field)] = (_of_field(held[name], ranges.get(id(p)), str(field), value, numbers),
                                                   optim.state[p], field)
    for key, state in optim.state.items():
        if id(key) not in known and state:
            what = f"a {type(key).__name__}" if isinstance(key, torch.Tensor) else repr(key)
            refuse(f"optimizer {type(optim).__name__}: it has state for {what}, which is none of its parameters, and would be lost")
    return found
