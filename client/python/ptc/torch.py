# SPDX-License-Identifier: Apache-2.0
"""PyTorch jobs whose parallelism changes while they run.

    for gen in ptc.torch.generations():
        with gen:
            train(gen)          # builds everything anew, from gen.tp, gen.pp, gen.dp, gen.rank, ...

and in train() (declare() before it, of a model on `meta`, is optional):

    gen.attach(model=model, optim=optim, sched=sched, data=sampler)     # binds, and restores what there is
    for step in range(gen.start_step, steps):
        if gen.boundary(step):
            return              # this generation has ended here
        ...
        optim.step()            # the first in-place change of state in a step; else call gen.update_begin() before it
    gen.finish(steps)

What each rank holds is taken from what PyTorch knows: DTensors say which box of which tensor (tensor parallelism, FSDP2,
HSDP), plain tensors are whole and replicated. Names are those of get_model_state_dict, and the same under every
configuration: a pipeline stage keeps the whole model's names.

Failures are ptc.Error naming the tensor or object: what cannot be carried is refused at attach, before anything is declared, and
never left out. What the snapshot has for another program (another dataset, other parameter groups, what a load_state_dict()
raises at) is refused there too: a resize or a run comes to nothing then, and the generation before goes on. What only shows later (a tensor that was put elsewhere, a buffer outside the state dict that has changed)
is refused at the stop: the switch comes to nothing and training goes on; at finish() it is raised. An exception that leaves
the with block ends the process, and with it the job, its traceback in the log. Needs PyTorch 2.7 or later.
"""
import contextlib
import functools
import gc
import hashlib
import json
import os
import socket
import sys
import time
import warnings
import zlib

import ptc

try:
    import torch
    import torch.distributed as dist
except ImportError as e:
    raise ImportError("ptc.torch needs PyTorch 2.7 or later") from e

from ptc import _held, _rng, _survive, _values
from ptc._attached import Attached
from ptc._held import refuse
from ptc._rng import AGREE, DIFFER

__all__ = ["generations", "state_pool", "Generation", "BatchSampler", "External", "sequence_part", "AGREE", "DIFFER"]

_STALE = -9
_CUTS = 256  # digests of 8 bytes in one value of a rendezvous


def generations():
    """Each generation this process is to run, until it is not needed any more. One connection to ptcd for all of them."""
    client = ptc.Client()
    while (info := client.next()) is not None:
        yield Generation(client, info)
        gc.collect()  # models hang in cycles, and process groups with them
        _free_devices()
    client.close()  # not after an exception: that the process fails is what ptcd is to see
    gc.freeze()  # the process has only to exit: to take all objects apart first keeps a processor busy for most of a second


def _forget_meshes():
    """DTensor caches what it worked out for a mesh, and takes a later mesh of the same ranks and names for the same one: the
    next generation would go on over groups that are gone, and keep their sockets and threads."""
    # type(), as isinstance() asks the user's objects for __class__: dead proxies raise then, and PyTorch's own warn
    for cache in [o for o in gc.get_objects() if type(o) is functools._lru_cache_wrapper]:
        if (getattr(cache, "__module__", None) or "").startswith("torch.distributed"):
            cache.cache_clear()
    if hasattr(torch._C, "_clear_DTensor_sharding_propagator_cache"):
        torch._C._clear_DTensor_sharding_propagator_cache()
    if "torch.distributed.tensor" not in sys.modules:
        return  # nobody has used it
    with contextlib.suppress(ImportError, AttributeError):  # not in older versions
        from torch.distributed.tensor import debug
        debug._clear_sharding_prop_cache()
    with contextlib.suppress(ImportError):
        from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
        clear_redistribute_planner_cache()


_allocators = {}  # of each device; as long as the process, for tensors of any generation may have their memory of it
_pools = {}       # of each device; as long as a generation


def _free_devices():
    """Gives back the device memory that PyTorch caches, before this process asks for its next generation: ranks of other processes
    may need it, and none allocates before all have asked. Memory that a variable of the program still uses stays."""
    _pools.clear()  # PyTorch frees a pool's cache with the pool, and only then
    torch.cuda.empty_cache()


@contextlib.contextmanager
def state_pool(device=None):
    """What is allocated inside lies in device memory that ptcd can hold and ptc-gpu can map by descriptor (ptc/gpu.h). So build the
    model inside, and make the optimizer's state there. Activations belong outside. device: as for torch.device. Without a CUDA
    device it does nothing."""
    if not torch.cuda.is_available():
        yield None
        return
    index = None if device is None else torch.device(device).index
    index = torch.cuda.current_device() if index is None else index
    if index not in _allocators:
        _allocators[index] = torch.cuda.memory.CUDAPluggableAllocator(ptc.library()._name, "ptc_pool_alloc", "ptc_pool_free")
    if index not in _pools:
        _pools[index] = torch.cuda.MemPool(_allocators[index].allocator())
    pool = _pools[index]
    with torch.cuda.use_mem_pool(pool, index):
        yield pool


def _communicators_abort():
    """Whether NCCL's communicators are aborted when a peer has gone. Their kernels then end as if they had data, and what is queued
    behind them, such as an optimizer's step, changes the state with garbage, under a mark that says it is whole. PyTorch's
    default (3) ends the process instead."""
    mode = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    waits = os.environ.get("TORCH_NCCL_BLOCKING_WAIT", os.environ.get("NCCL_BLOCKING_WAIT", "0"))
    if mode in ("0", "3") and waits == "0":
        return False
    warnings.warn(f"TORCH_NCCL_ASYNC_ERROR_HANDLING={mode}, TORCH_NCCL_BLOCKING_WAIT={waits}: communicators may be aborted before the "
                  f"state is taken, so the device writes no marks, and stops wait for all of its work (docs/gpu.md, Marks)", stacklevel=3)
    return True


class Generation:
    """What this process is now; a context manager that takes the process groups down at its end.

    Attributes: rank, world, local_rank, tp, pp, dp, cp (degrees), tp_rank, pp_rank, dp_rank, cp_rank, zero, start_step,
    generation, incarnation, job, config, ...: as struct ptc_generation in ptc/ptc.h.
    Inside, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ... are set, and torch.distributed.init_process_group() needs nothing
    more.
    """

    def __init__(self, client, info):
        self.__dict__.update(vars(info))
        self._client, self._info = client, info
        self._store, self._bound = None, None
        self._outside, self._data = {}, []
        self._ended = self._finishing = False
        self._told = []  # keys in the store of the last stop
        self._device, self._stream = None, None  # of the state's marks; the stream's number
        self._on_cuda = False
        self._before, self._names, self._hidden = {}, None, {}  # of declare(): parameters, what was declared, what is known later
        self._probe, self._promise = None, None
        if os.environ.get("PTC_PROBE"):
            from ptc import _probe  # which loads more of PyTorch than others need
            self._probe = _probe.Probe(self)

    # -- process groups

    def __enter__(self):
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        self._rendezvous()
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world), LOCAL_RANK=str(self.local_rank),
                          LOCAL_WORLD_SIZE=str(self.local_world), NODE_RANK=str(self.node_rank))
        if self._probe:
            self._probe.enter()
        return self

    def _address(self):
        """Where other ranks reach rank 0's store."""
        if os.environ.get("PTC_ADDRESS"):
            return os.environ["PTC_ADDRESS"]
        if self.nodes == 1:
            return "127.0.0.1"
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(socket.gethostname())
            if not address.startswith("127."):
                return address
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(("192.0.2.1", 9))  # sends nothing; asks which address leads out
            return s.getsockname()[0]
        return "127.0.0.1"

    def _rendezvous(self):
        """A store of this generation's own, at a port that is free: nobody of an earlier one can be met."""
        if self._probe:  # there is nobody
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
            self._store = self._probe.store()
            return
        if self.rank == 0:
            host = self._address()
            self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, use_libuv=True)
            port = self._store.port
            if self.world > 1:
                self._client.rendezvous_put("torch", f"{host} {port}".encode())
        else:
            host, port = self._client.rendezvous_get("torch").decode().split()
        # an agent's store: init_process_group() then does not make one of its own on rank 0
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")

    @property
    def store(self):
        """The generation's torch.distributed.TCPStore, for init_process_group(store=...)."""
        if self._store is None:
            self._store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                        use_libuv=True)
        return self._store

    def __exit__(self, kind, value, traceback):
        stale = isinstance(value, ptc.Error) and value.code == _STALE  # it came to nothing: there will be another
        if self._promise is not None:
            if kind is not None and not stale:
                self._promise.leave()  # the traceback still has what train() had
            self._promise.close()
            self._promise = None
        if kind is not None and not stale:
            return False
        if self._bound is not None:
            self._bound.close()
        self._bound, self._outside, self._data, self._before = None, {}, [], {}
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_meshes()
        if self._probe:
            self._probe.close()
        self._store = None
        if not stale and not self._ended:
            raise ptc.Error(-1, "the with block was left, but the generation has not ended: leave it when boundary() has "
                                "returned True, or after finish()")
        return True

    # -- state

    def warm(self, fn, model=None):
        """Calls fn(), which trains a step on data of its own making, so that the first real step finds groups connected, kernels
        chosen and compiled, and optimizer states made. Call it on every rank, right before attach(): in a job with `build: ahead` the
        other ranks still train. Where there is no snapshot to restore it does nothing, and returns False.

        What fn changes in parameters, optimizers and buffers of the state dict, attach() restores. This call restores random
        streams, and of model (a module, or a list or dict of modules) the other buffers, and gradients. Nothing restores what else
        fn changes: give it no loader and no log.
        """
        if self._bound is not None:
            raise ptc.Error(-1, "warm: attach() restores what a step changes, so call warm() before it")
        if not self.has_state:
            return False
        with _rng.kept(), _held.kept(model):
            fn()
        return True

    def recompute(self, kind=0):
        """"none", "selective" or "full": how layers of this kind (0: the model's first) are to be computed backward. A script that asks
        promises to do so; without it ptcd refuses a configuration with `recompute`. Ask before declare() and attach()."""
        return self._client.recompute(kind)

    def schedule(self):
        """(order, stages): the order in which micro-batches pass the pipeline, "1f1b", "gpipe" or "zb1p", or None if it is the script's
        own; and how many stages each rank has (vpp). A script that asks promises both; without it ptcd refuses a configuration with
        `schedule`. Ask before declare() and attach()."""
        return self._client.schedule()

    def __getattr__(self, name):
        if name in self.__dict__.get("_hidden", ()):
            raise ptc.Error(-1, f"{name}: it is known after attach(); what was declared is only being built")
        raise AttributeError(name)

    def declare(self, model=None, optim=None, zero1=None, tied=(), extra=None):
        """Says the names, shapes and parts of what attach() will carry, before there is memory for it: the model, and with it the
        optimizer, may be on `meta`. Optional; returns at once. In a job with `build: ahead` ptcd compares that with the state while
        the other ranks train and this one goes on, so that what does not fit ends the resize before memory is taken for it.

            with torch.device("meta"):
                model = Net()
            gen.declare(model=model, optim=AdamW(model.parameters()))
            model.to_empty(device="cuda")
            optim = AdamW(model.parameters())       # anew: to_empty() has put others in the place of plain parameters
            gen.attach(model=model, optim=optim)    # gives the memory, and waits until the generation is committed

        Give what attach() will be given. Between the two, start_step is not known, and raises."""
        if self._names is not None or self._bound is not None:
            raise ptc.Error(-1, "declare: call it once, before attach(); give everything in one call")
        optims = [o for them in _held.optimizers_of(optim).values() for o in them]
        with _held.without_memory(optims):
            bound = Attached(model, optim, None, zero1, tied, extra, None, ())
            declared = bound.collect()
        self._before, self._names = bound.parameters(), {(h.name, h.field) for h in declared}
        for h in declared:
            h.declare(self._client, memory=False)
        self._client.declared()
        self._hidden = {"start_step": self.__dict__.pop("start_step")}

    def _as_declared(self):
        """What is attached is what was declared. Shapes and parts libptc compares."""
        now = {(h.name, h.field): h for h in self._declared}
        for name, field in sorted(self._names - set(now), key=str):
            refuse(f"tensor {name}{f' ({field})' if field else ''}: it was declared, and is not attached; give attach() what "
                   f"declare() was given")
        for key in now:
            if key not in self._names:
                refuse(f"tensor {now[key]}: it is attached, and was not declared; give declare() what attach() is given")

    def attach(self, model=None, optim=None, sched=None, data=(), zero1=None, tied=(), extra=None, stateful=None, remade=(),
               rng=None, dropped=(), data_changed=()):
        """Declares what is to be carried, restores it where there is a snapshot, and returns True then.

        model: a module (of a pipeline stage, with the whole model's names), a list of a model's parts, or a dict of models by name.
        optim, sched: one, a list of those of a model's parts, which have the same options, or a dict of several by name. An optimizer
        of torch.optim; a scheduler is anything with state_dict() and load_state_dict().
        zero1: {name: (start, stop, piece)} where an optimizer works on `piece` instead, the elements start..stop of that flattened local
        parameter. A piece of another dtype, such as an fp32 master of a bf16 parameter, is carried as the parameter's field `master`.
        data: a BatchSampler, an External loader, or several; what else has
        state_dict() and load_state_dict() is taken as External(it). data_changed: names of samplers and loaders that are new here, or
        that the snapshot has and this program leaves, on purpose; others have to be those of the snapshot. tied: names that several
        pipeline stages hold on purpose. extra: {name: tensor} beyond the model's state dict. stateful: {name: object} whose
        state_dict() is the same on every rank, such as a GradScaler. remade: names of buffers outside the state dict which each
        generation makes with other values, on purpose. docs/training-state.md says of each kind of state what becomes of it.
        dropped: names of parameters, or what their names begin with ("d" of "d.0.weight"), whose gradients
        are never applied once a boundary has come, such as those that a GAN's generator leaves in the
        discriminator; a stop does not wait for these.
        rng: {name: generator} beyond the random streams that are carried anyhow (docs/job.md, Random streams), or (generator, rule);
        {name: rule} for one of those; {name: None} for one that is not carried. Rules: AGREE, within tensor-parallel groups; DIFFER,
        by rank. Generators: torch.Generator, random.Random, NumPy's, a tracker as Megatron's.
        """
        if self._bound is not None:
            raise ptc.Error(-1, "attach: this generation is attached already; give everything in one call")
        if self._probe:
            self._probe.built()
        self.__dict__.update(self._hidden)
        self._hidden = {}
        self._data = [External.of(d) for d in (data if isinstance(data, (list, tuple)) else () if data is None else (data,))]
        for name in {d.name for d in self._data}:
            if sum(d.name == name for d in self._data) > 1:
                refuse(f"dataset {name}: two samplers or loaders of that name; give them different ones in name=")
        bound = Attached(model, optim, sched, zero1, tied, extra, stateful, remade, dropped, self._before)
        self._bound = bound
        bound.data = {d.name: type(d).__name__ for d in self._data}
        self._data_changed = (data_changed,) if isinstance(data_changed, str) else tuple(data_changed)
        try:
            self._rng = _rng.Streams(self, rng)
            self._declared = bound.collect()
            if self._names is not None:
                self._as_declared()
            bound.check_dropped()
            self._check_blobs(bound.values(), bound.about(True, {}))  # what a stop would refuse
            found = False
            if not self._probe:  # there is neither another rank nor a snapshot
                self._same_groups()
                self._tell_parts()
                for sampler in self._data:
                    sampler._agree(self)
                found = self._load()
        except BaseException:
            self._bound = None  # nothing has been declared
            raise
        for h in self._declared:
            h.declare(self._client)
        restored = self._client.restore()
        if restored:
            bound.restored()
        if restored:
            self._start(found)
        self._outside = bound.buffers()
        devices = [h.local.device for h in self._declared if h.local.device.type == "cuda"]
        self._on_cuda = bool(devices)
        self._device = devices[0] if devices and not _communicators_abort() else None
        if self.world > 1:
            self.store  # connected now, not at the stop
        bound.watch()
        self._client.on_stop(self._at_stop)
        for o in [o for optims in bound.optimizers.values() for o in optims]:
            o.register_step_pre_hook(lambda *_: self._update_begins())
            waiting = [] if self._probe else _held.not_begun(o)
            if waiting:
                o.register_step_pre_hook(functools.partial(self._begin, waiting))
        return restored

    def _begin(self, waiting, optim, *_):
        if waiting and not (self._on_cuda and torch.cuda.is_current_stream_capturing()):  # a graph would do it at each launch
            _held.begin(optim, waiting)

    def _check_blobs(self, values, about):
        """Whether rank 0, which carries most, has names for all of it; states that grow may still take more at a stop."""
        has = {"optimizers, schedulers and objects": len(values), "the model's description": 1 + _parts_of(zlib.compress(about)),
               "loaders": 2 * sum(isinstance(d, External) for d in self._data), "random streams": self._rng.blobs()}
        if sum(has.values()) > ptc.BLOBS_MAX:
            listed = ", ".join(f"{n} of {what}" for what, n in has.items() if n)
            refuse(f"{sum(has.values())} blobs beside tensors, at most {ptc.BLOBS_MAX} can be carried ({listed}); attach fewer, or one object "
                   f"in stateful= whose state_dict() has those of several")

    def _same_groups(self):
        """Options of parameter groups are carried from rank 0, so every pipeline stage must have the same groups."""
        if self.pp == 1 or not self._bound.optimizers:
            return
        mine = hashlib.sha256(b"".join(data for name, data in sorted(self._bound.values().items())
                                       if name in self._bound.optimizers)).digest()
        if self.rank == 0:
            self._client.rendezvous_put("groups", mine)
        elif self._client.rendezvous_get("groups") != mine:
            refuse(f"optimizer: the parameter groups of pipeline stage {self.pp_rank} have other options than those of stage 0; "
                   f"give every stage the same groups in the same order, empty ones too")

    def _tell_parts(self):
        """What the first ranks of pipeline stages and tensor-parallel groups tell each other where a snapshot is loaded."""
        client, b = self._client, self._bound
        if not self.has_state or self.world == 1 or not self._leads():
            return
        if self.pp_rank and not self.tp_rank:
            client.rendezvous_put(f"data {self.pp_rank}", b"".join(map(_short, b.data)))
        cuts = sorted(b.cuts().items()) if self.tp > 1 else []
        for at in range(0, len(cuts), _CUTS):
            key, mine = f"cuts {self.pp_rank} {at}", b"".join(bytes.fromhex(cut) for _, cut in cuts[at:at + _CUTS])
            if not self.tp_rank:
                client.rendezvous_put(key, mine)
                continue
            theirs = client.rendezvous_get(key)
            b.cut |= {name for i, (name, cut) in enumerate(cuts[at:at + _CUTS]) if theirs[8 * i:8 * i + 8].hex() != cut}

    def _same_data(self):
        """A position that nobody takes would be lost, and its samples trained again under another name."""
        was = self._bound.data_was
        left = [] if self.rank or was is None else sorted(set(was) - set(self._bound.data) - set(self._data_changed))
        for stage in range(1, self.pp) if left else ():
            theirs = self._client.rendezvous_get(f"data {stage}")
            taken = {theirs[i:i + 8] for i in range(0, len(theirs), 8)}
            left = [name for name in left if _short(name) not in taken]
        for name in left:
            refuse(f"dataset {name}: the snapshot says where it was, and no sampler or loader here has this name, so that its samples would "
                   f"be trained again; give it the name that it had; if you removed it on purpose, name it in attach(data_changed=)")

    def _load(self):
        """What the snapshot has beside tensors, before anything is declared: what does not fit is refused while the generation
        before can still go on. Returns whether there was anything."""
        client, b = self._client, self._bound
        found = b.load(client.blob_get, self.start_step)
        about = _blobs_get(client, "model")
        if about is not None:
            found = True
            b.load_about(zlib.decompress(about), self)
            self._same_data()
        for sampler in self._data:
            there = sampler._start(self)
            if about is not None and not there and sampler.name not in self._data_changed:
                refuse(f"dataset {sampler.name}: the snapshot does not say where it was, so that it would begin at its start; give it the "
                       f"name that it had, or name it in attach(data_changed=) where it is new")
            found = there or found
        self._rng.load()  # last: what is loaded before may draw
        return found

    def _start(self, found):
        """After the restore. Blobs and cursors that came before it are those of an earlier snapshot where the ranks were built
        ahead, and of none at all from a ptcd that did not say them in advance."""
        step = self._client.start_step()
        if not found or step != self.start_step:
            self.start_step = step
            self._load()

    def _check_outside(self):
        now = self._bound.buffers()
        for name in {**self._outside, **now}:
            if now.get(name) != self._outside.get(name):
                refuse(f"buffer {name} is not persistent, and has changed since attach: it would be lost; register it as "
                       f"persistent, or pass it in extra=")

    def _check_places(self):
        now = {(h.name, h.field): h.place() for h in self._bound.collect()}
        for h in self._declared:
            if now.pop((h.name, h.field), None) != h.place():
                refuse(f"tensor {h}: it is not where it was at attach: something has put another tensor in its place, as "
                       f"p.data = ... does; change tensors in place, by copy_()")
        for name, field in now:
            advice = ("give the parameter to the optimizer before attach, frozen as long as it is not trained"
                      if field else "make it before attach")
            refuse(f"tensor {name}{f' ({field})' if field else ''}: it was not there at attach, and would be "
                   f"lost; {advice}")

    # -- at a stop, what ranks tell each other through the store

    def _stop_key(self, step, key):
        """A stop that was put off at the last step says nothing about the end there."""
        return f"ptc/{'finish' if self._finishing else 'stop'}/{step}/{key}"

    def _tell(self, step, key, value):
        self.store.set(self._stop_key(step, key), value)
        self._told.append(self._stop_key(step, key))

    def _hear(self, step, key, who, timeout_s=300):
        """What another rank tells at this stop. It may never come here, if it was past this step: then the stop has moved on."""
        key, nap, deadline = self._stop_key(step, key), 0.0005, time.monotonic() + timeout_s
        try:
            while not self.store.check([key]):
                if not self._client.stop_holds():
                    raise ptc.Later(f"{who} was past step {step}")
                if time.monotonic() > deadline and not self._finishing:
                    refuse(f"{who} has not come to step {step} within {timeout_s} s")
                time.sleep(nap)
                nap = min(2 * nap, 0.05)
            value = self.store.get(key)
        except ptc.Error:
            raise
        except RuntimeError as e:
            refuse(f"{who} cannot be reached: {str(e).splitlines()[0] if str(e) else type(e).__name__}")
        if value == b"-":
            raise ptc.Later(f"{who} says that its state cannot be taken at step {step}")
        return value

    def _leads(self):
        return self.dp_rank == self.cp_rank == 0

    def _tell_nothing(self, step):
        """Ranks that wait for this one's word are not to wait for nothing."""
        with contextlib.suppress(RuntimeError):  # of a store that is gone; what went wrong is known
            if self.world > 1 and self.rank == 0:
                self._tell(step, "values", b"-")
            if self.world > 1 and self._leads():
                self._tell(step, f"model/{self.pp_rank}/{self.tp_rank}", b"-")
            for d in self._data:
                d._stop_not(self, step)

    def _agree(self, step, values):
        """Blobs of the job are those of rank 0, so that other ranks must not have other ones."""
        mine = {name: hashlib.sha256(data).hexdigest() for name, data in values.items()}
        if self.rank == 0:
            self._tell(step, "values", json.dumps(mine).encode())
            return
        theirs = json.loads(self._hear(step, "values", "rank 0"))
        for name in sorted(set(mine) | set(theirs)):
            if mine.get(name) != theirs.get(name):
                refuse(f"{name}: its state on rank {self.rank} is not that on rank 0, which is the one that counts; make it the same "
                       f"on every rank")

    def _gather(self, step, about):
        """{(pp_rank, tp_rank): what the leader there says of its part of the model} on rank 0; others look whether it is what they say."""
        key = f"model/{self.pp_rank}/{self.tp_rank}"
        if self._leads():
            self._tell(step, key, zlib.compress(about))
        elif self._bound.states:
            theirs = json.loads(zlib.decompress(self._hear(step, key, "the rank that leads this one's replicas")))
            if dict(theirs["dict"])["extra"] != dict(json.loads(about)["dict"])["extra"]:
                refuse(f"extra state: rank {self.rank} has another one than its replica with dp_rank 0, which is the one that counts")
        if self.rank:
            return None
        return {(p, t): zlib.decompress(self._hear(step, f"model/{p}/{t}", f"the first rank of pp_rank {p}, tp_rank {t}"))
                for p in range(self.pp) for t in range(self.tp)}

    def _beside(self, step):
        """What is carried beside tensors, random states and datasets; ranks that are not alike refuse."""
        b = self._bound
        values = b.values()
        about = b.about(self.tp_rank == 0, self._outside) if self._leads() or b.states else None
        parts = {(0, 0): about}
        if self.world > 1:
            parts = self._gather(step, about)
            self._agree(step, values)
        for name, data in values.items():
            self._client.blob_set(name, data)
        if parts is not None:
            _blobs_set(self._client, "model", zlib.compress(b.merge(parts, self.tp)))

    def _at_stop(self, step):
        b = self._bound
        while self._told:  # at an earlier stop, which nobody is at any more
            self.store.delete_key(self._told.pop())
        try:
            if not self._finishing:
                b.check_gradients()
            for d in self._data:
                d._before_stop(self, step)
            b.check_given()
            self._check_outside()
            self._check_places()
            b.before_stop()
            self._beside(step)
        except BaseException:
            self._tell_nothing(step)
            raise
        for d in self._data:
            d._stop(self, step)
        self._rng.save()  # last: what has been saved before may have drawn

    # -- training

    def boundary(self, step):
        """State is whole after `step` steps. True: the generation has ended here; leave the with block."""
        if step == self.start_step + 1:  # after one step, rather than at a switch after a thousand
            self._check_outside()
            self._bound.check_given()
            self._bound.check_copies()
            self._bound.check_unattached()
        if self._bound is not None:
            self._bound.note_given()
            self._bound.gradients.boundary()
        if self._promise is not None:
            self._promise.boundary(step)
        if self._device is not None:
            self._name_stream()
        self._ended = self._client.boundary(step)
        return self._ended

    def survive(self, together=False):
        """A promise, after attach() on every rank: when a node is lost, the job goes on from the memory of the ranks that are left
        (docs/failures.md), with no step lost where they hold everything. All state is attached, no update begins without
        update_begin(), which an optimizer's step() calls, and each boundary is where the state is whole.

        From now on each boundary publishes what a stop would have set: options, schedulers, objects, random streams and positions.
        A loader with a state of its own, and modules with extra state, are refused. What a stop would refuse later ends the promise
        with a line on stderr. Where a backward pass or a wait for a collective raises because peers are gone, in os._exit and at the end
        of the with block, the process first waits until its memory has been taken.

        together: the first update_begin() of each step waits until every rank has come to its own; a gloo group of its own is made
        for that. So a node that is lost as gradients are summed leaves no ranks at different steps, and no step is lost. Each rank must
        then update in each step. On GPUs this has no effect."""
        if self._bound is None:
            raise ptc.Error(-1, "survive: attach() comes first")
        for d in self._data:
            if isinstance(d, External):
                refuse(f"dataset {d.name}: survive() publishes positions at each boundary, and only the loader knows its own; use "
                       f"gen.batch_sampler(), or leave survive() out: the job then goes on from snapshots")
        if self._probe or self._promise is not None:
            return
        self._promise = _survive.Promise(self, together)

    def _name_stream(self):
        """The device says itself when the state is whole, where the program's work goes: in PyTorch's current stream."""
        number = torch.cuda.current_stream(self._device).cuda_stream
        if number != self._stream:
            with torch.cuda.device(self._device):
                self._client.stream(number)
            self._stream = number

    def update_begin(self):
        """Before the first in-place change of what was attached in a step. The optimizer's step() does it by itself. Where no
        optimizer is attached, gradients that are there now count as applied."""
        if self._bound is not None and self._bound.gradients is not None and not self._bound.optimizers:
            self._bound.gradients.applied()
        self._update_begins()

    def _update_begins(self):
        """Of an update that goes into a CUDA graph, the graph itself says at each launch that it begins."""
        if self._on_cuda and torch.cuda.is_current_stream_capturing():
            self._client.update_captured(torch.cuda.current_stream().cuda_stream)
        else:
            if self._promise is not None:
                self._promise.update_begins()
            self._client.update_begin()

    def finish(self, step):
        """Training is over. True: the process is needed in another generation after all."""
        self._finishing = True  # gradients that are left over now are nobody's
        try:
            again = self._client.finish(step)
        finally:
            self._finishing = False
        self._ended = True
        return again

    def report(self, **values):
        """Numbers for `ptcctl status`, e.g. loss=2.1."""
        for name, value in values.items():
            self._client.report(name, float(value))

    def own_work(self):
        """Measures what is done inside as work of this rank alone, by which slow ranks are found (`on_straggler`): Client.own_work()."""
        return self._client.own_work()

    def add_own_work(self, seconds):
        """The same, of work that was measured elsewhere, for example by a device's events."""
        self._client.add_own_work(seconds)

    def batch_sampler(self, dataset, global_batch, micro_batch, seed=0, name="data", pad=None, lengths=None, cost=None, uneven=False):
        """Which samples of `dataset` this data-parallel rank computes: a BatchSampler. Pass it to attach(data=...).

        uneven: where the configuration has faster replicas compute more micro-batches of a step (`micro_steps`, docs/order.md),
        `micro_batches` is this rank's own number. Its ranks must then not wait for each other in each micro-batch, only at the end
        of a step. Without it all ranks go through as many, and the weights of what is another's are 0.

        lengths, of all samples and the same on every rank, has each step's samples assigned to ranks by what they cost, a * length +
        b * length^2, so that ranks take equally long. cost=(a, b): by default what the planner computes (Generation.length_cost), else
        (6 * h, 1) for a transformer of width h, (12 * h, 1) where its attention is causal. Which samples a step has is the same
        without."""
        if lengths is not None and cost is None:
            cost = self.length_cost()
            if cost is None:
                refuse(f"dataset {name}: lengths= needs cost=(a, b), a sample costs a * length + b * length^2: the job has no `model:` "
                       f"that would say it (docs/order.md)")
        if "micro_steps=" in self.config and (global_batch, micro_batch) != (self.global_batch, self.micro_batch):
            refuse(f"dataset {name}: the configuration {self.config} divides batches of {self.global_batch} in micro-batches of "
                   f"{self.micro_batch}, the program asks for {global_batch} and {micro_batch}: take gen.global_batch and "
                   f"gen.micro_batch")
        return BatchSampler(len(dataset), global_batch, micro_batch, self.dp_rank, self.dp, seed, name, pad, lengths, cost,
                            self.config, uneven)

    def length_cost(self):
        """(a, b), two whole numbers: what a sample of s tokens costs in this generation, a * s + b * s * s. The daemon that controls
        the job computes them from its `model:`, the cluster's profile and measured steps (docs/order.md). None: it has no model."""
        if os.environ.get("PTC_PROBE"):
            return 1, 1  # nothing is trained there
        try:
            text = self._client.rendezvous_get("ptc.length_cost", 60000).decode()
        except ptc.Error as e:
            raise ptc.Error(-1, f"ptcd does not say what a sample costs ({e}); is it older than this library? Give cost=(a, b)") from e
        return tuple(map(int, text.split())) or None

    def sequence_part(self, tensor, dim=1, zigzag=True, pad=None):
        """What this context-parallel rank has of sequences that lie along `dim`: see sequence_part()."""
        return sequence_part(tensor, self.cp, self.cp_rank, dim, zigzag, pad)


def _short(name):
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _parts_of(data):
    return -(-len(data) // ptc.BLOB_MAX)


def _blobs_set(client, name, data):
    """More than a blob holds, in several."""
    parts = [data[i:i + ptc.BLOB_MAX] for i in range(0, len(data), ptc.BLOB_MAX)]
    if len(parts) > External.PARTS_MAX:
        refuse(f"{name}: its description takes {len(data)} bytes, at most {External.PARTS_MAX * ptc.BLOB_MAX} can be carried")
    for i, part in enumerate(parts):
        client.blob_set(f"{name}/{i}", part)
    client.blob_set(name, str(len(parts)).encode())


def _blobs_get(client, name):
    n = client.blob_get(name)
    return None if n is None else b"".join(client.blob_get(f"{name}/{i}") for i in range(int(n)))


class BatchSampler:
    """Which samples this data-parallel rank computes: every sample of an epoch exactly once, in one global order that
    depends on seed and epoch only (docs/order.md), whatever the parallelism.

    A step takes `global_batch` samples, in `micro_batches` lists of `micro_batch` ids; where the ranks have more slots than
    there are samples, the surplus has weight 0 (and a sample's id all the same, so that loaders work; or `pad`, if given).
    Iterated, it gives lists of ids, as DataLoader(batch_sampler=) wants them, from the generation's first step on; what a
    loader has read ahead does not count as consumed.
    """

    def __init__(self, samples, global_batch, micro_batch, dp_rank, dp, seed, name="data", pad=None, lengths=None, cost=None,
                 config="", uneven=False):
        self.samples, self.global_batch, self.micro_batch = samples, global_batch, micro_batch
        self.dp_rank, self.dp, self.seed, self.name, self.pad = dp_rank, dp, seed, name, pad
        self._base = self._base_step = None  # position at a step; G samples a step from there
        self._sampling = ptc.Sampling(samples, seed, global_batch, micro_batch, dp, config=config)
        self.micro_batches = self._sampling.micro_steps_of(dp_rank) if uneven else self._sampling.micro_steps
        self._steps = ([k for k in config.split(",") if k.startswith("micro_steps=")] or [""])[0]
        if self._steps and lengths is not None:
            refuse(f"dataset {name}: lengths= gives all ranks equally many micro-batches, the configuration {config} does not")
        self._lengths, self._cost, self._balanced = lengths, cost, {}
        if (lengths is None) != (cost is None):
            refuse(f"dataset {name}: lengths= and cost= go together: cost=(a, b) says that a sample costs a * length + b * length^2")
        if cost is not None and [type(c) for c in cost] != [int, int]:
            refuse(f"dataset {name}: cost={cost!r} is not (a, b), two whole numbers: a sample costs a * length + b * length^2")
        if lengths is not None and len(lengths) != samples:
            refuse(f"dataset {name}: {len(lengths)} lengths for {samples} samples")

    def tag(self):
        """What has to be the same for a position to mean the same."""
        return f"n={self.samples},seed={self.seed}"

    def _told(self):
        """The tag, and how samples are divided: for `ptcctl dataset proof`. What follows the ';' may be another later."""
        by_length = ",by_length=1" if self._lengths is not None else ""
        steps = f",{self._steps}" if self._steps else ""
        return f"{self.tag()};batch={self.global_batch},micro={self.micro_batch}{by_length}{steps}"

    def _agree(self, gen):
        """Ranks with other lengths would compute some samples twice and others never: looked at in up to 65536 places."""
        if self._lengths is None or gen.world == 1:
            return
        at = range(0, self.samples, -(-self.samples >> 16))
        mine = hashlib.sha256(repr((self._cost, [int(self._lengths[i]) for i in at])).encode()).digest()
        if gen.rank == 0:
            gen._client.rendezvous_put(f"lengths {self.name}", mine)
        elif gen._client.rendezvous_get(f"lengths {self.name}") != mine:
            refuse(f"dataset {self.name}: rank {gen.rank} has other lengths or another cost than rank 0; give all ranks the same")

    def _before_stop(self, gen, step):
        pass

    def _stop_not(self, gen, step):
        pass

    def _stop(self, gen, step):
        gen._client.cursor_set(self.name, self.position(step), self._told())

    def _start(self, gen):
        found = gen._client.cursor_get(self.name) if gen.has_state else None
        was = found[1].partition(";")[0] if found else None
        if found and was != self.tag():
            refuse(f"dataset {self.name}: the snapshot's position is for {was}, this is {self.tag()}")
        self._base, self._base_step = found[0] if found else 0, gen.start_step
        return found is not None

    def position(self, step):
        """Samples consumed before `step`, since the job's start."""
        if self._base is None:
            raise ptc.Error(-1, f"dataset {self.name}: where it goes on is not known before gen.attach(data=...); make a "
                                f"loader's iterator after that")
        return self._base + (step - self._base_step) * self.global_batch

    def micro_batch_of(self, step, m):
        """(ids, weights) of micro-batch m of a step, on this rank: lists of micro_batch."""
        if self._lengths is None:
            ids, weights = self._sampling.micro_batch_of(self.position(step), m, self.dp_rank)
        else:
            ids, weights = map(list, self._balance(step)[0][m])
        if self.pad is not None:
            ids = [i if w else self.pad for i, w in zip(ids, weights)]
        return ids, weights

    def _balance(self, step):
        if step not in self._balanced:
            parts = self._sampling.balanced(self.position(step), lambda ids: [self._lengths[i] for i in ids], self._cost, self.dp_rank)
            while len(self._balanced) >= 64:  # as far as a loader may reasonably be ahead
                del self._balanced[next(iter(self._balanced))]
            self._balanced[step] = parts
        return self._balanced[step]

    def balance(self, step):
        """What a step costs the rank that has most to do, and ranks on average; and what it would, assigned by count. A dict of
        numbers in units of `cost`, for Generation.report(); padding slots count."""
        if self._lengths is None:
            refuse(f"dataset {self.name}: what samples cost is not known without lengths= and cost=")
        b = self._balance(step)[1]
        return {"cost_max": b.max, "cost_mean": b.total / self.dp, "count_cost_max": b.count_max,
                "count_cost_mean": b.count_total / self.dp}

    def weights(self, step):
        """A list of micro_batch weights for each micro-batch of a step: 1, or 0 where a slot is surplus."""
        return [self.micro_batch_of(step, m)[1] for m in range(self.micro_batches)]

    def __iter__(self):
        self.position(0)
        step = self._base_step
        while True:
            for m in range(self.micro_batches):
                yield self.micro_batch_of(step, m)[0]
            step += 1


class External:
    """A loader that keeps its own state, such as torchdata's StatefulDataLoader: anything with state_dict() and load_state_dict().
    Pass it to attach(data=...), before its iterator is made.

    scope "rank": each data-parallel rank's loader has a state of its own (that of tensor-, pipeline- and context-parallel rank 0
    counts); "job": the state is the same on all ranks, and rank 0's counts. The state is what state_dict() gives when the job
    stops, as values, bytes, tensors and arrays, and stays with its data-parallel rank whatever else changes.

    What becomes of it when dp changes only the loader knows, so that is refused, unless transform(states, old_dp, dp, dp_rank) is
    given: from the states of all old_dp ranks (scope "job": the one state) it makes that of rank dp_rank of dp. Which samples are
    consumed is the loader's: no cursor is set, and `ptcctl dataset proof` knows nothing of it.
    """

    TIMEOUT_S = 300  # for the states of all data-parallel ranks; they stop at the same step
    PARTS_MAX = 16   # blobs that all states together may take

    def __init__(self, loader, name="loader", scope="rank", transform=None):
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(loader, method, None)):
                refuse(f"dataset {name}: a {type(loader).__name__} has no {method}(), so that it cannot go on where it was; "
                       f"StatefulDataLoader has, or use gen.batch_sampler()")
        if scope not in ("rank", "job"):
            refuse(f"dataset {name}: scope is \"rank\" or \"job\", not {scope!r}")
        self.loader, self.name, self.scope, self.transform = loader, name, scope, transform
        self._mine, self._bad = None, False

    @staticmethod
    def of(data):
        return data if isinstance(data, (BatchSampler, External)) else External(data)

    def _agree(self, gen):
        pass

    def _gathers(self, gen):
        return self.scope == "rank" and gen.dp > 1

    def _leads(self, gen):
        """Whether this rank's loader counts."""
        return gen.rank == 0 or (self._gathers(gen) and gen.tp_rank == gen.pp_rank == gen.cp_rank == 0)

    def _key(self, dp_rank):
        return f"loader/{self.name}/{dp_rank}"

    def _start(self, gen):
        head = gen._client.blob_get(f"loader/{self.name}") if gen.has_state else None
        if head is None:
            return False
        head = _values.loads(head)
        if head["scope"] != self.scope:
            refuse(f"dataset {self.name}: the snapshot's state is of a loader with scope={head['scope']!r}, this one has "
                   f"{self.scope!r}")
        if head["dp"] != gen.dp and self.transform is None:
            refuse(f"dataset {self.name}: the snapshot has the state of a {head['loader']} under dp={head['dp']}, this is dp={gen.dp}, and "
                   f"only the loader can convert it: keep dp={head['dp']}, give External(transform=), or use "
                   f"gen.batch_sampler()")
        parts = [gen._client.blob_get(f"loader/{self.name}/{i}") for i in range(head["parts"])]
        states = _values.loads(b"".join(parts))
        if head["dp"] != gen.dp:
            state = self.transform(states, head["dp"], gen.dp, gen.dp_rank)
        else:
            state = states[gen.dp_rank if self.scope == "rank" else 0]
        self.loader.load_state_dict(state)
        return True

    def _before_stop(self, gen, step):
        """Each rank's state is on its way to rank 0 before anything can be refused, which would leave that waiting."""
        if not self._leads(gen):
            return
        self._bad = False
        try:
            self._mine = _values.dumps(f"dataset {self.name}", self.loader.state_dict(), True)
        except BaseException:
            self._bad = True
            if gen.rank:
                gen._tell(step, self._key(gen.dp_rank), b"!")
            raise
        if gen.rank:
            gen._tell(step, self._key(gen.dp_rank), self._mine)

    def _stop_not(self, gen, step):
        """This rank's state is not taken at this step."""
        if self._gathers(gen) and self._leads(gen) and gen.rank and not self._bad:
            gen._tell(step, self._key(gen.dp_rank), b"-")

    def _states(self, gen, step):
        states = [self._mine]
        for d in range(1, gen.dp) if self._gathers(gen) else ():
            states.append(gen._hear(step, self._key(d), f"dataset {self.name}: the loader of data-parallel rank {d}", self.TIMEOUT_S))
            if states[-1] == b"!":
                refuse(f"dataset {self.name}: the loader of data-parallel rank {d} has no state that can be carried")
        return states

    def _stop(self, gen, step):
        if gen.rank:
            return
        data = b'{"list": [' + b", ".join(self._states(gen, step)) + b"]}"
        parts = [data[i:i + ptc.BLOB_MAX] for i in range(0, len(data), ptc.BLOB_MAX)]
        if len(parts) > self.PARTS_MAX:
            refuse(f"dataset {self.name}: the loaders' states take {len(data)} bytes, at most {self.PARTS_MAX * ptc.BLOB_MAX} can "
                   f"be carried")
        for i, part in enumerate(parts):
            gen._client.blob_set(f"loader/{self.name}/{i}", part)
        gen._client.blob_set(f"loader/{self.name}", _values.dumps("loader", {
            "dp": gen.dp, "scope": self.scope, "parts": len(parts), "loader": type(self.loader).__name__}))


def sequence_part(tensor, cp, cp_rank, dim=1, zigzag=True, pad=None):
    """What context-parallel rank cp_rank of cp has of sequences that lie along `dim` of a tensor (docs/order.md).

    zigzag: chunks cp_rank and 2 * cp - 1 - cp_rank of 2 * cp, for causal attention; else chunk cp_rank of cp. Lengths that chunks do
    not divide are refused, or padded at the end with the value `pad`. Cut tokens, labels and positions alike.
    """
    n, chunks = tensor.shape[dim], 2 * cp if zigzag else cp
    if n % chunks and pad is None:
        refuse(f"sequence of {n} tokens: {chunks} chunks of the same length need a multiple of {chunks}; make it one, or give "
               f"pad=, the value that is put after its end")
    parts = []
    for first, length, real in ptc.sequence_slices(n, cp, cp_rank, zigzag):
        parts.append(tensor.narrow(dim, min(first, n), real))
        if real < length:
            shape = list(tensor.shape)
            shape[dim] = length - real
            parts.append(tensor.new_full(shape, pad))
    return torch.cat(parts, dim)
