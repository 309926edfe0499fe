# SPDX-License-Identifier: Apache-2.0
"""A probe (`ptcctl probe`): the program builds one rank's part of its model and declares it, without other ranks, without a
device, and without memory for parameters.

What the program sees meanwhile: process groups of the size that it asks for, whose other members do not exist (PyTorch's
`fake` backend); as many CUDA devices as its node has ranks; tensors on PyTorch's device `meta`, which have a shape, a dtype
and strides and no bytes, wherever the program wants them to be. What programs read while they build is real: small tensors of
whole numbers, sequences such as linspace(), and what is made of values of Python or NumPy.

Failure: a program that needs a value of a tensor that has none, or what another rank says, gets an exception.
"""
import contextlib
import sys

import torch
from torch._C._distributed_c10d import FakeWork, Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ptc import _held

REAL_BYTES = 1 << 20  # a tensor of whole numbers up to this size has values

_META = torch.device("meta")
# Operators that make values which programs read while they build, such as a rate for each layer.
_SEQUENCES = {"arange", "linspace", "logspace", "scalar_tensor", "eye", "tril_indices", "triu_indices", "randperm"}


def _without_memory(thing):
    """The same arguments, all of them on meta."""
    thing = tree_map_only(torch.Tensor, lambda t: t if t.is_meta else torch.empty_like(t, device=_META), thing)
    thing = tree_map_only(torch.device, lambda _: _META, thing)
    return tree_map_only(torch.Generator, lambda _: None, thing)  # a generator is of a device that has values


class _Shapes(TorchDispatchMode):
    """Every operator gives tensors without memory, but for those that have to have values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(issubclass(t, FakeTensor) for t in types):
            return func(*args, **kwargs)  # PyTorch works out shapes by itself
        if any(t not in (torch.Tensor, torch.nn.Parameter) for t in types):
            return NotImplemented  # a DTensor: it calls again with its local tensors
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if any(t.is_meta for t in tensors):
            if func.namespace == "c10d":
                return self._communicated(func, args)
            return self._on_meta(func, args, kwargs)
        if any(isinstance(x, torch.device) and x.type != "cpu" for x in leaves):
            return self._made(func, args, kwargs)
        name = func._schema.name.split("::")[-1]
        if tensors and not name.startswith("new_") and not name.endswith("_like"):
            return func(*args, **kwargs)  # of values
        out = self._made(func, args, kwargs)
        return func(*args, **kwargs) if self._small(name, out) else out

    @staticmethod
    def _small(name, out):
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if sum(t.numel() * t.element_size() for t in made) > REAL_BYTES:
            return False
        return all(name in _SEQUENCES or t.dim() == 0 or not (t.is_floating_point() or t.is_complex()) for t in made)

    @staticmethod
    def _made(func, args, kwargs):
        """What an operator makes of sizes, or of a tensor that it brings to a device."""
        args, kwargs = _without_memory((args, dict(kwargs)))
        known = {a.name for a in func._schema.arguments}
        kwargs.update({k: v for k, v in (("device", _META), ("pin_memory", False)) if k in known})
        return func(*args, **kwargs)

    @staticmethod
    def _communicated(func, args):
        """What ranks send each other: nothing comes."""
        works = [Work.boxed(FakeWork()) if "Work" in str(r.type) else args[0] for r in func._schema.returns]
        return works[0] if len(works) == 1 else tuple(works)

    @staticmethod
    def _on_meta(func, args, kwargs):
        for argument, value in zip(func._schema.arguments, args):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and not value.is_meta:
                return value  # it would get values that nobody has
        args, kwargs = _without_memory((args, dict(kwargs)))
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


class _Values(TorchFunctionMode):
    """What is made of values of Python on a device, which these calls look at before any operator."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in (torch.tensor, torch.as_tensor, torch.asarray) or kwargs.get("device") is None:
            return func(*args, **kwargs)
        out = func(*args, **{**kwargs, "device": "cpu"})
        return out if torch.device(kwargs["device"]).type == "cpu" else out.to(_META)


class Probe:
    """For one generation of a probe; enter() and close() once each. In one thread."""

    def __init__(self, gen):
        self._gen, self._undo, self._shapes = gen, contextlib.ExitStack(), contextlib.ExitStack()

    def enter(self):
        from torch.testing._internal.distributed import fake_pg
        self._alone(fake_pg.FakeStore)
        self._with_devices()
        self._put(_held, "probing", True)
        self._shapes.enter_context(_Shapes())
        self._shapes.enter_context(_Values())

    def store(self):
        from torch.testing._internal.distributed import fake_pg
        return fake_pg.FakeStore()

    def built(self):
        """What ptc makes of the model from here on has values."""
        self._shapes.close()

    def close(self):
        self._shapes.close()
        self._undo.close()

    def _put(self, module, name, value):
        if hasattr(module, name):
            self._undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)

    def _alone(self, store):
        """Process groups of one process. A program may have imported init_process_group() by name, so what that calls is
        changed."""
        from torch.distributed import distributed_c10d as c10d
        make = c10d._new_process_group_helper

        def helper(size, rank, ranks, backend, _, *args, **kwargs):
            for name in ("backend_options", "pg_options", "device_id"):  # of the backend that is not used
                kwargs.pop(name, None)
            return make(size, rank, ranks, "fake", store(), *args, **kwargs)

        def rendezvous(url, rank=-1, world_size=-1, **_):
            gen = self._gen
            yield store(), gen.rank if rank < 0 else rank, gen.world if world_size < 0 else world_size
        self._put(c10d, "_new_process_group_helper", helper)
        self._put(c10d, "rendezvous", rendezvous)
        for name in ("_verify_params_across_processes", "_broadcast_coalesced"):  # of DDP, which reads what comes
            self._put(torch.distributed, name, lambda *_: None)

    def _with_devices(self):
        """The node's devices are not needed. Optimizers look whether parameters are on a device that they have kernels for."""
        gen, cuda = self._gen, torch.cuda
        self._put(cuda, "_lazy_init", lambda: None)  # which .to("cuda") begins with
        self._put(cuda, "set_device", lambda device: None)
        self._put(cuda, "current_device", lambda: gen.local_rank)
        self._put(cuda, "device_count", lambda: gen.local_world)
        self._put(cuda, "synchronize", lambda device=None: None)
        for module in [m for name, m in sys.modules.items() if name.startswith("torch.optim.")]:
            if hasattr(module, "_get_fused_kernels_supported_devices"):
                known = module._get_fused_kernels_supported_devices()
                self._put(module, "_get_fused_kernels_supported_devices", lambda known=known: [*known, "meta"])
