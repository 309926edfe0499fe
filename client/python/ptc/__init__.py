# SPDX-License-Identifier: Apache-2.0
"""libptc for Python: the calls of ptc/ptc.h, checked, with exceptions.

Needs libptc.so.1 and nothing else. It is looked for in $PTC_LIBRARY (a file),
then in the tree that this package is installed in, then where the dynamic
linker looks. Threads: one thread at a time per Client;
calls that block release the interpreter lock.

Happy path: Client() -> next() -> declare() ... -> restore() -> boundary()
... -> next() or finish(). Failure: ptc.Error with the library's one line.
"""
import contextlib
import ctypes
import faulthandler
import math
import operator
import os
import signal
import time

__all__ = ["Client", "Error", "Later", "Generation", "Sampling", "Balance", "sequence_slices", "library", "RANK",
           "JOB", "TP"]

DIMS_MAX = 8
BLOB_MAX = 256 << 10
BLOBS_MAX = 64  # names that a rank carries (ptc.h)
RANK, JOB, TP = 1, 2, 3  # scopes of blobs
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = (None, "1f1b", "gpipe", "zb1p")
TIED, DEVICE = 1, 2


class Error(RuntimeError):
    """What libptc refused, in one line; `code` is its enum ptc_result."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Later(Error):
    """Raised by the function given to Client.on_stop(): the state cannot be taken at this boundary, but at a later one."""

    def __init__(self, text):
        super().__init__(-2, text)


class _Generation(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("generation", ctypes.c_uint64), ("incarnation", ctypes.c_uint64),
                ("start_step", ctypes.c_uint64), ("has_state", ctypes.c_int32)] + [
        (name, ctypes.c_uint32) for name in
        ("rank", "world", "local_rank", "local_world", "node_rank", "nodes", "device", "tp", "pp", "dp", "cp", "ep",
         "etp", "tp_rank", "pp_rank", "dp_rank", "cp_rank", "zero", "micro_batch", "global_batch")] + [
        ("config", ctypes.c_char_p), ("job", ctypes.c_char_p)]


class _ShardBox(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_int64 * DIMS_MAX), ("extent", ctypes.c_int64 * DIMS_MAX),
                ("data_offset", ctypes.c_uint64), ("stride", ctypes.c_int64 * DIMS_MAX)]


class _TensorDesc(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("field", ctypes.c_char_p),
                ("dtype", ctypes.c_char_p), ("ndim", ctypes.c_uint32), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("boxes", ctypes.POINTER(_ShardBox)), ("nboxes", ctypes.c_size_t), ("data", ctypes.c_void_p),
                ("flags", ctypes.c_uint32)]


_STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)


_library = None


def _installed():
    """libptc as it lies beside lib/python3/dist-packages/ptc, else a name for the dynamic linker."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "libptc.so.1")
    return os.path.normpath(path) if os.path.exists(path) else "libptc.so.1"


def library():
    """The loaded libptc, with its prototypes."""
    global _library
    if _library is not None:
        return _library
    path = os.environ.get("PTC_LIBRARY") or _installed()
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise Error(-7, f"cannot load libptc from {path!r} ({e}); install libptc, or set PTC_LIBRARY to its file") from e
    p, u64, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    for name, result, arguments in (
            ("ptc_open", ctypes.c_int, [p, ctypes.POINTER(p)]),
            ("ptc_close", p, [p]),
            ("ptc_error_text", ctypes.c_char_p, [p]),
            ("ptc_version", ctypes.c_char_p, []),
            ("ptc_next", ctypes.c_int, [p, ctypes.POINTER(_Generation)]),
            ("ptc_rendezvous_put", ctypes.c_int, [p, ctypes.c_char_p, p, size]),
            ("ptc_rendezvous_get", ctypes.c_int, [p, ctypes.c_char_p, p, size, ctypes.POINTER(size), ctypes.c_uint32]),
            ("ptc_tensor_declare", ctypes.c_int, [p, ctypes.POINTER(_TensorDesc)]),
            ("ptc_declared", ctypes.c_int, [p]),
            ("ptc_recompute", ctypes.c_int, [p, ctypes.c_uint32]),
            ("ptc_schedule", ctypes.c_int, [p, ctypes.POINTER(ctypes.c_uint32)]),
            ("ptc_blob_set", ctypes.c_int, [p, ctypes.c_char_p, ctypes.c_int, p, size]),
            ("ptc_blob_get", ctypes.c_int, [p, ctypes.c_char_p, ctypes.c_int, p, size, ctypes.POINTER(size)]),
            ("ptc_cursor_set", ctypes.c_int, [p, ctypes.c_char_p, u64, ctypes.c_char_p]),
            ("ptc_cursor_get", ctypes.c_int, [p, ctypes.c_char_p, ctypes.POINTER(u64), ctypes.c_char_p, size]),
            ("ptc_restore", ctypes.c_int, [p]),
            ("ptc_start_step", ctypes.c_int, [p, ctypes.POINTER(u64)]),
            ("ptc_on_stop", ctypes.c_int, [p, _STOP, p]),
            ("ptc_stop_refuse", ctypes.c_int, [p, ctypes.c_char_p]),
            ("ptc_stop_later", ctypes.c_int, [p, ctypes.c_char_p]),
            ("ptc_stop_holds", ctypes.c_int, [p]),
            ("ptc_boundary", ctypes.c_int, [p, u64]),
            ("ptc_update_begin", None, [p]),
            ("ptc_stream", ctypes.c_int, [p, p]),
            ("ptc_update_captured", ctypes.c_int, [p, p]),
            ("ptc_survive", ctypes.c_int, [p, ctypes.c_int]),
            ("ptc_survive_checked", ctypes.c_int, [p]),
            ("ptc_survive_broken", ctypes.c_char_p, [p, ctypes.c_char_p]),
            ("ptc_leave", None, [p]),
            ("ptc_update_alone", ctypes.c_int, [p, ctypes.c_int]),
            ("ptc_finish", ctypes.c_int, [p, u64]),
            ("ptc_report", ctypes.c_int, [p, ctypes.c_char_p, ctypes.c_double]),
            ("ptc_micro_steps", u64, [p]),
            ("ptc_rank_micro_steps", u64, [p, ctypes.c_uint32]),
            ("ptc_micro_batch", ctypes.c_int, [p, u64, u64, ctypes.c_uint32, ctypes.POINTER(u64),
                                               ctypes.POINTER(ctypes.c_float)]),
            ("ptc_balance_step", ctypes.c_int, [p, ctypes.POINTER(u64), u64, u64, ctypes.POINTER(u64), p]),
            ("ptc_sequence_slice", ctypes.c_int, [u64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int, p])):
        try:
            f = getattr(lib, name)
        except AttributeError:
            raise Error(-7, f"the library {path!r} has no {name}(): it is not libptc, or older than this package; install the libptc "
                            f"of the same version, or set PTC_LIBRARY to its file") from None
        f.restype, f.argtypes = result, arguments
    _library = lib
    return lib


class Generation:
    """struct ptc_generation, by the same names."""

    def __init__(self, g):
        for name, _ in _Generation._fields_[1:]:
            value = getattr(g, name)
            setattr(self, name, value.decode() if isinstance(value, bytes) else value)
        self.has_state = bool(self.has_state)


def _tell_stacks():
    """ptcd asks ranks that hang for their stacks by SIGURG, which does nothing in a program without a handler. Ours is C code: it
    writes the stacks of all threads to the rank's log, also while Python waits in a call."""
    if signal.getsignal(signal.SIGURG) is signal.SIG_DFL: # else the program has one of its own
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.register(signal.SIGURG, file=2, all_threads=True)


class Client:
    """One connection to the node's ptcd; see ptc/ptc.h for what each call means."""

    def __init__(self):
        self._lib = library()
        self._c = ctypes.c_void_p()
        self._keep = None
        self._raise_in_stop = None
        self._own_s = 0.0  # own work since the start
        rc = self._lib.ptc_open(None, ctypes.byref(self._c))
        if rc < 0:
            raise Error(rc, self._lib.ptc_error_text(None).decode(errors="replace"))
        _tell_stacks()

    def _check(self, rc):
        if rc < 0:
            raise Error(rc, self._lib.ptc_error_text(self._c).decode(errors="replace"))
        return rc

    def close(self):
        if self._c:
            self._lib.ptc_close(self._c)
            self._c = ctypes.c_void_p()

    def next(self):
        """The generation this process is to run, or None when it is not needed any more."""
        g = _Generation(size=ctypes.sizeof(_Generation))
        found = self._check(self._lib.ptc_next(self._c, ctypes.byref(g)))
        self._keep = self._raise_in_stop = None  # ptc_next has forgotten the last generation's function
        return Generation(g) if found else None

    def rendezvous_put(self, key, value):
        self._check(self._lib.ptc_rendezvous_put(self._c, key.encode(), value, len(value)))

    def rendezvous_get(self, key, timeout_ms=300000):
        buffer, n = ctypes.create_string_buffer(4096), ctypes.c_size_t()
        self._check(self._lib.ptc_rendezvous_get(self._c, key.encode(), buffer, len(buffer), ctypes.byref(n), timeout_ms))
        return buffer.raw[:n.value]

    def declare(self, name, dtype, shape, boxes, data, field=None, tied=False, device=False):
        """boxes: [(offset, extent, data_offset, strides in bytes or None)]; data: an address that stays valid, or None: it is declared
        again, with data, before restore(); device: of device memory."""
        array = (_ShardBox * max(1, len(boxes)))()
        for b, (offset, extent, data_offset, stride) in zip(array, boxes):
            b.offset[:len(offset)] = offset
            b.extent[:len(extent)] = extent
            b.data_offset = data_offset
            if stride is not None:
                b.stride[:len(stride)] = stride
        dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        desc = _TensorDesc(ctypes.sizeof(_TensorDesc), name.encode(), field.encode() if field else None, dtype.encode(),
                           len(shape), dims, array, len(boxes), data, (TIED if tied else 0) | (DEVICE if device else 0))
        self._check(self._lib.ptc_tensor_declare(self._c, ctypes.byref(desc)))

    def declared(self):
        """All tensors have been declared, with data or without (ptc_declared in ptc.h)."""
        self._check(self._lib.ptc_declared(self._c))

    def recompute(self, kind=0):
        """"none", "selective" or "full": how layers of this kind (0: the model's first) are to be computed backward. A program that asks
        promises to do so; ask before declared() and restore() (ptc_recompute in ptc.h)."""
        return RECOMPUTE[self._check(self._lib.ptc_recompute(self._c, kind))]

    def schedule(self):
        """(order, stages): the order in which micro-batches pass the pipeline, "1f1b", "gpipe" or "zb1p", or None if it is the program's
        own; and how many stages each rank has (vpp). A program that asks promises both; ask before declared() and restore()
        (ptc_schedule in ptc.h)."""
        stages = ctypes.c_uint32()
        return SCHEDULES[self._check(self._lib.ptc_schedule(self._c, ctypes.byref(stages)))], stages.value

    def blob_set(self, name, data, scope=JOB):
        self._check(self._lib.ptc_blob_set(self._c, name.encode(), scope, data, len(data)))

    def blob_get(self, name, scope=JOB):
        """bytes, or None when the snapshot has none."""
        buffer, n = ctypes.create_string_buffer(BLOB_MAX), ctypes.c_size_t()
        found = self._check(self._lib.ptc_blob_get(self._c, name.encode(), scope, buffer, BLOB_MAX, ctypes.byref(n)))
        return buffer.raw[:n.value] if found else None

    def cursor_set(self, name, position, tag=""):
        self._check(self._lib.ptc_cursor_set(self._c, name.encode(), position, tag.encode()))

    def cursor_get(self, name):
        """(position, tag), or None."""
        position, tag = ctypes.c_uint64(), ctypes.create_string_buffer(256)
        found = self._check(self._lib.ptc_cursor_get(self._c, name.encode(), ctypes.byref(position), tag, len(tag)))
        return (position.value, tag.value.decode()) if found else None

    def restore(self):
        """True when the declared memory now holds the snapshot's bytes."""
        return self._check(self._lib.ptc_restore(self._c)) == 1

    def start_step(self):
        """After restore(): the step at which training goes on."""
        step = ctypes.c_uint64()
        self._check(self._lib.ptc_start_step(self._c, ctypes.byref(step)))
        return step.value

    def on_stop(self, fn):
        """fn(step) runs in the calling thread when a boundary is about to wait: the place to set blobs and cursors. Where it
        raises an Error, the state is not taken, whoever wanted it is told why, and boundary() returns False as if nothing
        had been wanted; finish() raises it. Later moves the stop to the next boundary of all ranks. Any other exception comes out of boundary() and finish()."""

        def call(_, step):
            try:
                fn(step)
            except BaseException as e:  # must not cross C
                self._raise_in_stop = e
                say = self._lib.ptc_stop_later if isinstance(e, Later) else self._lib.ptc_stop_refuse
                say(self._c, (str(e) or type(e).__name__).encode())
                return 1
            return 0

        self._keep = _STOP(call)
        self._check(self._lib.ptc_on_stop(self._c, self._keep, None))

    def stop_holds(self):
        """Within that function: False once the stop has moved on, because another rank was past it, which may never come here."""
        return self._check(self._lib.ptc_stop_holds(self._c)) == 1

    def _stopped(self, rc, goes_on=False):
        e, self._raise_in_stop = self._raise_in_stop, None
        if e is not None and not (goes_on and rc >= 0 and isinstance(e, Error)):
            raise e
        return self._check(rc) == 1

    def boundary(self, step):
        """True: this generation has ended here."""
        return self._stopped(self._lib.ptc_boundary(self._c, step), True)

    def update_begin(self):
        self._lib.ptc_update_begin(self._c)

    def stream(self, handle):
        """handle: the number of the CUDA stream in whose order declared memory changes; its device is current on this thread. True: the
        device writes marks there from now on. False: it cannot, or another stream was named before in this generation."""
        return self._check(self._lib.ptc_stream(self._c, handle)) == 1

    def update_captured(self, handle):
        """In the place of update_begin(), while the stream of this number captures a CUDA graph with the update: each launch of the graph
        takes the device's mark back. False: it cannot, or no stream was named before; then there are no marks in this generation."""
        return self._check(self._lib.ptc_update_captured(self._c, handle)) == 1

    def survive(self, yes=True):
        """A promise (ptc_survive in ptc.h) by which the job goes on from this rank's memory when a node is lost."""
        self._check(self._lib.ptc_survive(self._c, int(yes)))

    def survive_checked(self):
        """The program's own checks of its promise have passed, for the boundary to come."""
        self._check(self._lib.ptc_survive_checked(self._c))

    def survive_broken(self, why=None):
        """Why the promise is broken in this generation; None: it is not. libptc finds pieces of declared memory that have changed
        before update_begin(). With why, one line, the program breaks its promise."""
        found = self._lib.ptc_survive_broken(self._c, None if why is None else why.encode(errors="replace"))
        return None if found is None else found.decode(errors="replace")

    def leave(self):
        """Waits until nobody wants what is in this rank's memory, where the program gives up. Call it before anything is freed."""
        self._lib.ptc_leave(self._c)

    def update_alone(self, gone=False):
        """Where this rank has its gradients and waits for others before its update: is it to end the update without them? gone: they
        cannot be reached; waits until that is decided (ptc_update_alone in ptc/survive.h). True: go on with update_begin()."""
        return self._lib.ptc_update_alone(self._c, int(gone)) == 1

    def finish(self, step):
        """True: not finished after all, this process is needed in another generation."""
        return self._stopped(self._lib.ptc_finish(self._c, step))

    def report(self, name, value):
        self._check(self._lib.ptc_report(self._c, name.encode(), value))

    def add_own_work(self, seconds):
        """Work of this rank alone, by which slow ranks are found (`on_straggler` of job.yaml): without time in which it waits for others."""
        if not 0 <= seconds < math.inf:
            raise Error(-1, f"add_own_work: a number of seconds, not {seconds}")
        self._own_s += seconds
        self.report("own_seconds", self._own_s)

    @contextlib.contextmanager
    def own_work(self):
        """What is done inside is own work; it must not wait for other ranks. Work that a device has not ended by then does not count:
        measure it by the device's events, and give the seconds to add_own_work()."""
        began = time.monotonic()
        yield
        self.add_own_work(time.monotonic() - began)


class Sampling(ctypes.Structure):
    """struct ptc_sampling: which samples a data-parallel rank computes (docs/order.md). Needs no ptcd. config: the generation's,
    which may give some ranks more micro steps of a step than others; None: that of the generation which this process runs."""
    _fields_ = [("size", ctypes.c_size_t), ("samples", ctypes.c_uint64), ("seed", ctypes.c_uint64),
                ("global_batch", ctypes.c_uint64), ("micro_batch", ctypes.c_uint32), ("dp", ctypes.c_uint32),
                ("sequential", ctypes.c_int32), ("config", ctypes.c_char_p)]

    def __init__(self, samples, seed, global_batch, micro_batch, dp, sequential=False, config=None):
        super().__init__(ctypes.sizeof(Sampling), samples, seed, global_batch, micro_batch, dp, sequential,
                         None if config is None else config.encode())
        self.micro_steps = library().ptc_micro_steps(ctypes.byref(self))
        if not self.micro_steps:
            raise Error(-1, f"no batches of {global_batch} out of {samples} samples, {micro_batch} at a time on {dp} ranks"
                        f"{' by the micro steps of ' + config if config and 'micro_steps=' in config else ''}")
        self._ids, self._weights = (ctypes.c_uint64 * micro_batch)(), (ctypes.c_float * micro_batch)()

    def micro_steps_of(self, dp_rank):
        """How many of them the rank has to compute: the weights of those after them are 0."""
        return library().ptc_rank_micro_steps(ctypes.byref(self), dp_rank)

    def micro_batch_of(self, position, micro_step, dp_rank):
        """(ids, weights), lists of micro_batch."""
        rc = library().ptc_micro_batch(ctypes.byref(self), position, micro_step, dp_rank, self._ids, self._weights)
        if rc < 0:
            raise Error(rc, library().ptc_error_text(None).decode(errors="replace"))
        return list(self._ids), list(self._weights)

    def balanced(self, position, lengths_of, cost, dp_rank):
        """The same assigned by what samples cost (docs/order.md): ([(ids, weights)], one for each micro step, and the step's
        Balance). lengths_of(ids): a list of their lengths, the same on every rank; cost (a, b): a * length + b * length^2."""
        g, width = self.global_batch, self.micro_batch * self.dp
        ids = Sampling(self.samples, self.seed, g, g, 1, self.sequential).micro_batch_of(position, 0, 0)[0]
        lengths = [operator.index(n) for n in lengths_of(ids)]
        for n, what in (*((n, f"sample {i} has length") for i, n in zip(ids, lengths)), *((c, "cost has") for c in cost)):
            if not 0 <= n < 1 << 64:
                raise Error(-1, f"{what} {n}; it must be a number of tokens, or what one costs: 0 or more, in 64 bits")
        slots, balance = (ctypes.c_uint64 * (self.micro_steps * width))(), Balance(ctypes.sizeof(Balance))
        rc = library().ptc_balance_step(ctypes.byref(self), (ctypes.c_uint64 * g)(*lengths), *cost, slots,
                                        ctypes.byref(balance))
        if rc < 0:
            raise Error(rc, library().ptc_error_text(None).decode(errors="replace"))
        mine = [slots[at:at + self.micro_batch] for at in range(dp_rank * self.micro_batch, len(slots), width)]
        return [([ids[s % g] for s in part], [float(s < g) for s in part]) for part in mine], balance


class Balance(ctypes.Structure):
    """struct ptc_balance: what a step costs its ranks, by length and by count."""
    _fields_ = [("size", ctypes.c_size_t), ("max", ctypes.c_uint64), ("total", ctypes.c_uint64),
                ("count_max", ctypes.c_uint64), ("count_total", ctypes.c_uint64)]


def sequence_slices(length, cp, cp_rank, zigzag=True):
    """[(first, length, real)]: which tokens of a sequence a context-parallel rank has (docs/order.md); those beyond `real` are
    padding. Needs no ptcd."""
    if not (0 < length <= 1 << 63 and 0 <= cp_rank < cp < 1 << 32):
        raise Error(-1, f"no slice of a sequence of {length} tokens for context-parallel rank {cp_rank} of {cp}")
    slices = (ctypes.c_uint64 * 6)()
    n = library().ptc_sequence_slice(length, cp, cp_rank, bool(zigzag), slices)
    return [tuple(slices[3 * i:3 * i + 3]) for i in range(n)]
