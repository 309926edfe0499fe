# SPDX-License-Identifier: Apache-2.0
"""Random streams of a rank (docs/job.md, "Random streams"): which there are, what a snapshot carries of them, and how a stream
begins on a rank that the snapshot has nothing for.

Each stream has a name and a rule. AGREE: ranks whose coordinates differ in tp only draw the same numbers (residual dropout of
replicated activations). DIFFER: every rank draws its own (dropout inside of a tensor-parallel region). A state is restored where its
coordinates exist; a new rank of a tensor-parallel group is given the group's state of a stream that agrees; any other state is derived
from the job's seed, the step and the coordinates, never from what the program has seeded.

Happy path: Streams() reads what attach() was given, load() restores or derives every stream, save() sets their states as blobs
when the job stops. Failure: ptc.Error naming the stream: an object that is no known generator, a state of another kind than the
program's generator, a stream of the snapshot that the program has not.
"""
import base64
import contextlib
import ctypes
import hashlib
import json
import os
import random
import struct
import sys

import torch

import ptc
from ptc import _values
from ptc._held import refuse

AGREE, DIFFER = "agree", "differ"
STREAMS_MAX = 32     # a rank carries ptc.BLOBS_MAX, and has others
NAME_MAX = 128       # bytes of a stream's name
_VERSION = 1         # of the list of streams, and of how states are derived and encoded
_HEAD = "rng/streams"  # {"version", "streams": {name: rule}} of rank 0, a blob of the job
_DEVICES = ("cuda", "xpu")
_SCOPES = {AGREE: ptc.TP, DIFFER: ptc.RANK}
_TWISTER = 2500  # bytes of NumPy's Mersenne twister: 624 words, and the place in them
_OLD = {"torch": "rng", "python": "rng-python", "numpy": "rng-numpy"}  # blobs of before streams had names


def _tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _seed_of(digest):
    return int.from_bytes(digest[:8], "little")


@contextlib.contextmanager
def kept():
    """Streams that a program has without naming them are afterwards where they were before."""
    numpy = sys.modules.get("numpy")
    state, python = torch.get_rng_state(), random.getstate()
    legacy = numpy.random.get_state() if numpy else None
    devices = {kind: getattr(torch, kind).get_rng_state_all() for kind in _DEVICES
               if getattr(getattr(torch, kind, None), "is_initialized", bool)()}
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(legacy)
        for kind, states in devices.items():
            getattr(torch, kind).set_rng_state_all(states)


# ---- kinds of generators: kind, get() -> bytes, set(bytes), derive(32 bytes) -------------------------------------------------


class _Torch:
    def __init__(self, generator):
        self.generator, self.kind = generator, f"torch {generator.device.type}"

    def get(self):
        return self.generator.get_state().numpy().tobytes()

    def set(self, data):
        self.generator.set_state(_tensor(data))

    def derive(self, digest):
        self.generator.manual_seed(_seed_of(digest))


class _Python:
    """random.Random, or the module `random`, whose functions are those of one."""

    kind = "python"

    def __init__(self, generator):
        self.generator, self._was = generator, (None, None)

    def get(self):
        version, numbers, gauss = self.generator.getstate()
        seen = version, numbers[-1], numbers[:8], gauss
        if self._was[0] != seen:  # each draw changes the place, the last number; and all others, when they have been used up
            self._was = seen, self._encoded(version, numbers, gauss)
        return self._was[1]

    @staticmethod
    def _encoded(version, numbers, gauss):
        return json.dumps([version, base64.b64encode(struct.pack("<625I", *numbers)).decode(), gauss]).encode()

    def set(self, data):
        version, numbers, gauss = json.loads(data)
        self.generator.setstate((version, struct.unpack("<625I", base64.b64decode(numbers)), gauss))

    def derive(self, digest):
        self.generator.seed(int.from_bytes(digest, "little"))


def _comparable(state):
    return {k: v.tobytes() if hasattr(v, "tobytes") else _comparable(v) if isinstance(v, dict) else v for k, v in state.items()}


class _Numpy:
    """numpy.random.Generator, a bit generator, or RandomState."""

    def __init__(self, name, generator):
        self.name, self.generator = name, generator
        self.legacy = hasattr(generator, "get_state") and not hasattr(generator, "bit_generator")
        self.bits = generator._bit_generator if self.legacy else getattr(generator, "bit_generator", generator)
        self.kind, self._was = f"numpy {type(self.bits).__name__}", (None, None)
        self._twister = self.bits.ctypes.state_address if self.kind == "numpy MT19937" else None
        self._memory = None  # of a Mersenne twister, where it says everything: no Gaussian number is left over beside it

    def _same(self):
        """NumPy takes 30 us to make a state of what it has in memory."""
        memory = ctypes.string_at(self._twister, _TWISTER)
        if memory == self._memory:
            return True
        self._memory = None
        return False

    def get(self):
        seeds = getattr(self.bits, "seed_seq", None)
        if getattr(seeds, "n_children_spawned", 0):
            refuse(f"rng {self.name}: generators have been spawned from it, and what it would spawn next cannot be carried; spawn them "
                   f"from a SeedSequence of your own before attach()")
        if self._twister is not None and self._same():
            return self._was[1]
        state = self.generator.get_state(legacy=False) if self.legacy else self.bits.state
        raw = _comparable(state)
        if self._was[0] != raw:
            self._was = raw, _values.dumps(f"rng {self.name}", state, True)
        if self._twister is not None and not state.get("has_gauss"):
            self._memory = ctypes.string_at(self._twister, _TWISTER)
        return self._was[1]

    def set(self, data):
        self._set(_values.loads(data))

    def _set(self, state):
        if self.legacy:
            self.generator.set_state(state)
        else:
            self.bits.state = state

    def derive(self, digest):
        state = type(self.bits)(int.from_bytes(digest, "little")).state
        self._set({**state, "has_gauss": 0, "gauss": 0.0} if self.legacy else state)


class _Tracked:
    """One state of a tracker such as Megatron's, which swaps states in and out of a device's generator."""

    PHILOX, TWISTER = 16, 5056  # bytes of a state: seed and offset of a GPU's generator; the CPU's

    def __init__(self, name, tracker, key):
        self.name, self.tracker, self.key = name, tracker, key
        self.kind = "tracked"

    def _state(self):
        return self.tracker.get_states()[self.key]

    def get(self):
        state = self._state()
        state = state.get_state() if isinstance(state, torch.Generator) else state
        return state.detach().cpu().numpy().tobytes()

    def set(self, data):
        state = self._state()
        if isinstance(state, torch.Generator):
            state.set_state(_tensor(data))
            return
        if len(data) != state.numel():
            raise ValueError(f"a state of {len(data)} bytes for one of {state.numel()}")
        self.tracker.set_states({**self.tracker.get_states(), self.key: _tensor(data).to(state.device)})

    def derive(self, digest):
        state = self._state()
        if isinstance(state, torch.Generator):
            state.manual_seed(_seed_of(digest))
        elif state.numel() == self.PHILOX:
            self.set(digest[:8] + bytes(8))
        elif state.numel() == self.TWISTER:
            self.set(torch.Generator().manual_seed(_seed_of(digest)).get_state().numpy().tobytes())
        else:
            refuse(f"rng {self.name}: a state of {state.numel()} bytes is of no known generator, so that none can be derived for new "
                   f"ranks")


class _Tags:
    """DTensor's tracker of before it went over to the device's own generator."""

    def __init__(self, tracker):
        self.tracker = tracker

    def get_states(self):
        return dict(self.tracker.rng_states)

    def set_states(self, states):
        self.tracker.rng_states.update(states)


class Stream:
    def __init__(self, name, rule, source):
        self.name, self.rule, self.source = name, rule, source
        self.blob, self.scope = f"rng/{name}", _SCOPES.get(rule)
        if len(name.encode()) > NAME_MAX:
            refuse(f"rng {name[:40]}...: the name of a stream has at most {NAME_MAX} bytes")

    def get(self):
        return f"{self.source.kind}\n".encode() + self.source.get()

    def set(self, data):
        kind, _, state = data.partition(b"\n")
        if kind.decode(errors="replace") != self.source.kind:
            refuse(f"rng {self.name}: the snapshot has the state of a generator of kind {kind.decode(errors='replace')!r}, this one is of "
                   f"kind {self.source.kind!r}; give it another name, and rng={{{self.name!r}: None}} to leave the snapshot's behind")
        self.set_state(state)

    def set_state(self, state):
        try:
            self.source.set(state)
        except (RuntimeError, ValueError, TypeError, KeyError, struct.error) as e:
            refuse(f"rng {self.name}: the snapshot's state cannot be restored into it: {e}")


# ---- which there are -----------------------------------------------------------------------------------------------------


def _is_numpy(thing):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(thing, (numpy.random.Generator, numpy.random.BitGenerator, numpy.random.RandomState))


def _is_tracker(thing):
    return callable(getattr(thing, "get_states", None)) and callable(getattr(thing, "set_states", None))


def _source(name, thing):
    if isinstance(thing, torch.Generator):
        return _Torch(thing)
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return _Python(thing)
    if _is_numpy(thing):
        return _Numpy(name, thing)
    return refuse(f"rng {name}: a {type(thing).__name__} is no generator that can be carried: torch.Generator, random.Random, NumPy's "
                  f"generators, and trackers with get_states() and set_states() can")


def _rule_of_key(key):
    """Of a tracker's states Megatron makes this one the same throughout a tensor-parallel group."""
    return AGREE if key == "data-parallel-rng" else DIFFER


def _rule_of_tag(tag):
    """DTensor keeps one state for all ranks, and makes each shard's draws differ by an offset of its own."""
    return DIFFER if tag == "tensor-parallel-rng" else AGREE


def _megatron():
    module = sys.modules.get("megatron.core.tensor_parallel.random")
    tracker = getattr(module, "_CUDA_RNG_STATE_TRACKER", None)
    return tracker if _is_tracker(tracker) else None


def _dtensor():
    tracker = getattr(sys.modules.get("torch.distributed.tensor._random"), "_rng_tracker", None)
    return _Tags(tracker) if isinstance(getattr(tracker, "rng_states", None), dict) else None


class Streams:
    def __init__(self, gen, given=None):
        """given: attach()'s rng."""
        self.gen, self._client = gen, gen._client
        self._named, self._rules, self._left = {}, {}, set()
        self._own, self._forget = {}, []
        if not isinstance(given or {}, dict):
            refuse(f"rng: a {type(given).__name__}, not a dict of names to generators, rules or None")
        for name, thing in (given or {}).items():
            self._take(name, thing)
        self._check_rules()

    def _take(self, name, thing):
        if not isinstance(name, str) or not name:
            refuse(f"rng: the name {name!r} of a stream is no text")
        if thing is None:
            self._left.add(name)
            return
        if isinstance(thing, tuple):
            if len(thing) != 2:
                refuse(f"rng {name}: a tuple of {len(thing)}, not (generator, rule)")
            thing, self._rules[name] = thing
        elif isinstance(thing, str):
            self._rules[name] = thing
            return
        if name in ("torch", "python", "numpy", "megatron", "dtensor", *_DEVICES):
            refuse(f"rng {name}: this name is that of a stream which is carried anyhow; give a rule for it, or your own another name")
        if not _is_tracker(thing):
            _source(name, thing)
        self._named[name] = thing

    def _check_rules(self):
        bases = {"torch", "python", "numpy", "megatron", "dtensor", *_DEVICES, *self._named}
        for name, rule in self._rules.items():
            if rule not in _SCOPES:
                refuse(f"rng {name}: the rule {rule!r} is neither \"{AGREE}\" nor \"{DIFFER}\"")
            if name not in bases and name.split("/")[0] not in bases:
                refuse(f"rng {name}: there is no stream of that name to give a rule; there are {', '.join(sorted(bases))}")

    def _stream(self, name, default, source):
        return Stream(name, self._rules.get(name, self._rules.get(name.split("/")[0], default)), source)

    def _tracked(self, name, tracker, rule_of):
        current = getattr(tracker, "_current_state_name", "default-rng")
        if current != "default-rng":
            refuse(f"rng {name}: its state {current} is in use; stop, and attach, outside of fork()")
        return [self._stream(f"{name}/{key}", rule_of(key), _Tracked(f"{name}/{key}", tracker, key))
                for key in sorted(tracker.get_states())]

    def _device(self, kind):
        """The generator of this rank's own device, once that is in use."""
        module = getattr(torch, kind, None)
        if module is None or not module.is_initialized():
            return []
        own = self._own.setdefault(kind, module.current_device())
        return [self._stream(kind, AGREE, _Torch(module.default_generators[own]))]

    def all(self):
        """Every stream that there is now, but for those that are left out."""
        out = [self._stream("torch", AGREE, _Torch(torch.default_generator)),
               self._stream("python", AGREE, _Python(random))]
        if "numpy" in sys.modules:
            out.append(self._stream("numpy", AGREE, _Numpy("numpy", sys.modules["numpy"].random.get_state.__self__)))
        for kind in _DEVICES:
            out += self._device(kind)
        for name, tracker, rule_of in (("megatron", _megatron(), _rule_of_key), ("dtensor", _dtensor(), _rule_of_tag)):
            if tracker is not None:
                out += self._tracked(name, tracker, rule_of)
        for name, thing in self._named.items():
            if _is_tracker(thing):
                out += self._tracked(name, thing, _rule_of_key)
            else:
                out.append(self._stream(name, AGREE, _source(name, thing)))
        out = [s for s in out if s.name not in self._left and s.name.split("/")[0] not in self._left]
        if len(out) > STREAMS_MAX:
            refuse(f"rng: {len(out)} streams, at most {STREAMS_MAX} are carried")
        return out

    def blobs(self):
        """How many a stop sets, if no stream comes: those of the streams, and their list."""
        return len(self.all()) + 1

    # ---- what a snapshot has of them

    def load(self):
        """Of the snapshot, before anything is declared."""
        gen, client = self.gen, self._client
        if "PTC_SEED" not in os.environ:
            refuse("rng: the ptcd of this node has told the job's processes no seed (PTC_SEED), so it is older than this package and cannot "
                   "carry what a tensor-parallel group has in common; upgrade ptcd first, and start the processes anew")
        head = client.blob_get(_HEAD) if gen.has_state else None
        if head is not None:
            was = self._head(head)
            self._start_devices(was)
            streams = self.all()
            self._check_missing(was, {s.name for s in streams})
            for s in streams:
                self._begin(s, self._found(s, was))
        elif not gen.has_state or gen.start_step == 0:
            self._agree_at_start()  # what the program has seeded is where the job begins, also from imported tensors
        else:
            for s in self.all():
                self._begin_old(s)

    @staticmethod
    def _head(head):
        head = json.loads(head)
        if head.get("version") != _VERSION:
            refuse(f"rng: the snapshot's random states are of version {head.get('version')}; this ptc reads version {_VERSION}")
        return head["streams"]

    def _start_devices(self, was):
        """A device that is first used after attach() would begin with what the program has seeded."""
        for kind in _DEVICES:
            module = getattr(torch, kind, None)
            if kind in was and kind not in self._left and module is not None and module.is_available():
                module.init()

    def _check_missing(self, was, names):
        for name in sorted(set(was) - names):
            found = [scope for scope in _SCOPES.values() if self._client.blob_get(f"rng/{name}", scope)]
            if name in self._left or name.split("/")[0] in self._left:
                self._forget += [(f"rng/{name}", scope) for scope in found]
            elif found or name.split("/")[0] in ("megatron", "dtensor"):
                refuse(f"rng {name}: the snapshot has this random stream, and the program has not; make it before attach(), give it in "
                       f"rng=, or leave it behind with rng={{{name!r}: None}}")

    def _found(self, s, was):
        """The state for this rank; None: there is none."""
        data = self._client.blob_get(s.blob, _SCOPES[s.rule])
        then = was.get(s.name, s.rule)
        if data or then == s.rule:
            return data or None
        if self.gen.tp > 1:
            refuse(f"rng {s.name}: ranks of a tensor-parallel group {then} in the snapshot, and are to {s.rule} now; run it with tp=1 "
                   f"once, or give the stream another name")
        data = self._client.blob_get(s.blob, _SCOPES[then])
        if data:
            self._forget.append((s.blob, _SCOPES[then]))
        return data or None

    def _begin(self, s, data):
        if data is None:
            s.source.derive(self.derived(s))
        else:
            s.set(data)

    def _begin_old(self, s):
        """Of a snapshot whose streams have no names: none at all, or those that each rank had for itself."""
        old = self._client.blob_get(_OLD[s.name], ptc.RANK) if s.name in _OLD else None
        if old is None:
            s.source.derive(self.derived(s))
            return
        if self.gen.tp > 1:
            refuse(f"rng {s.name}: the snapshot was made by an older ptc, which does not say what tensor-parallel ranks have in common; "
                   f"run it with tp=1 once")
        if s.name == "python":
            version, numbers, gauss = _values.loads(old)
            old = json.dumps([version, base64.b64encode(struct.pack("<625I", *numbers)).decode(), gauss]).encode()
        elif s.name == "numpy":
            key, pos, has_gauss, gauss = json.loads(old)
            s.source.generator.set_state(("MT19937", struct.unpack("<624I", base64.b64decode(key)), pos, has_gauss, gauss))
            return
        s.set_state(old)

    def derived(self, s):
        """32 bytes from which a stream begins on a rank that the snapshot has no state for."""
        gen = self.gen
        text = f"ptc rng {_VERSION} seed={os.environ['PTC_SEED']} stream={s.name} step={gen.start_step} pp={gen.pp_rank} dp={gen.dp_rank} cp={gen.cp_rank}"
        if s.rule == DIFFER:
            text += f" tp={gen.tp_rank}"
        return hashlib.sha256(text.encode()).digest()

    def _agree_at_start(self):
        """Where the job begins, a tensor-parallel group begins with what its rank with tp coordinate 0 has seeded: PyTorch's generator on
        the CPU and Python's begin with other states in each process of a program that does not seed them."""
        gen = self.gen
        streams = [s for s in self.all() if s.rule == AGREE] if gen.tp > 1 else []
        key = f"ptc/rng/{gen.pp_rank}/{gen.dp_rank}/{gen.cp_rank}"
        if streams and gen.tp_rank == 0:
            gen.store.set(key, json.dumps({s.name: base64.b64encode(s.get()).decode() for s in streams}))
        elif streams:
            group = json.loads(gen.store.get(key))
            for s in streams:
                if s.name in group:
                    s.set(base64.b64decode(group[s.name]))

    # ---- the stop

    def save(self):
        """Sets the state of every stream to be carried."""
        for s in self.watched():
            self._client.blob_set(s.blob, s.get(), s.scope)

    def watched(self):
        """The streams to be carried; all of their blobs but the states are set."""
        self._check_others()
        streams = self.all()
        for blob, scope in self._forget:
            self._client.blob_set(blob, b"", scope)
        head = {"version": _VERSION, "streams": {s.name: s.rule for s in streams}}
        self._client.blob_set(_HEAD, json.dumps(head).encode())
        return streams

    def _check_others(self):
        """Generators of devices that are not this rank's: nothing has been drawn from them, or their owner has named them."""
        named = [thing for thing in self._named.values() if isinstance(thing, torch.Generator)]
        for kind, own in self._own.items():
            if kind in self._left:
                continue
            for i, generator in enumerate(getattr(torch, kind).default_generators):
                if i != own and not any(generator is n for n in named) and any(generator.get_state().tolist()[8:16]):
                    refuse(f"rng {kind}: numbers have been drawn from the generator of {kind}:{i}, and this rank's device is "
                           f"{kind}:{own}; choose the device before attach(), or give the generator by name, "
                           f"rng={{\"other\": torch.{kind}.default_generators[{i}]}}")
