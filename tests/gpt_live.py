#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt/train.py as a job's ranks run it. With --damage: once resized, one row of one moment of one layer is lost. With
--heap DIR: as each generation begins, DIR/PID has how many KiB of the C heap are in use. (Freed memory that the C library
keeps is as much again, and moves up and down: PyTorch's threads have arenas of their own.) With --files DIR: records are read
from that directory of a mount, data/NAME, and no sampler of ptc's is asked. With --rest SECONDS: each step leaves the processors
for so long to others, as one on a device does. Ranks that build ahead have a low priority, and get next to nothing of processors
that are all busy."""
import ctypes
import gc
import itertools
import json
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "gpt"))
import ptc.torch  # noqa: E402
import train  # noqa: E402


def damage():
    attach = ptc.torch.Generation.attach

    def damaged(self, model=None, optim=None, zero1=None, **others):
        restored = attach(self, model=model, optim=optim, zero1=zero1, **others)
        if restored and self.tp_rank == 0:
            name = "layers.0.attn.wq.weight"
            width = dict(model.named_parameters())[name].shape[1]
            optim.state[zero1[name][2]]["exp_avg_sq"][:width] = 0
        return restored
    ptc.torch.Generation.attach = damaged


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                     "uordblks", "fordblks", "keepcost")]


def write_heap(folder):
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    enter = ptc.torch.Generation.__enter__

    def measured(self):
        gc.collect()
        m = mallinfo2()
        path = os.path.join(folder, str(os.getpid()))
        with open(path + ".new", "w") as f:
            f.write(str((m.uordblks + m.hblkhd) >> 10))
        os.replace(path + ".new", path)
        return enter(self)
    ptc.torch.Generation.__enter__ = measured


def rest(seconds):
    boundary = ptc.torch.Generation.boundary

    def rested(self, step):
        time.sleep(seconds)
        return boundary(self, step)
    ptc.torch.Generation.boundary = rested


class Slots:
    """In the batch sampler's place: where this rank's records of each micro step lie, from its start step on."""

    def __init__(self, gen, folder, micro_batches):
        self.gen, self.micro_batches = gen, micro_batches
        self.base = f"{folder}/gen-{gen.generation}/dp-{gen.dp_rank}"

    def __iter__(self):
        deadline = time.monotonic() + 20  # the daemon there may learn of the generation a moment after we did
        while not os.path.isdir(self.base) and time.monotonic() < deadline:
            time.sleep(0.02)
        step = self.gen.start_step
        for epoch in itertools.count(min(int(name[6:]) for name in os.listdir(self.base))):
            part = Part(f"{self.base}/epoch-{epoch}", self.micro_batches)
            for step in range(max(step, part.first_step), part.end_step):
                for m in range(self.micro_batches):
                    row = ((step - part.first_step) * self.micro_batches + m) * part.micro_batch
                    yield [(part, row + k) for k in range(part.micro_batch)]
            step = max(step, part.end_step)


class Part:
    def __init__(self, folder, micro_batches):
        import numpy as np
        with open(f"{folder}/partition.json", encoding="ascii") as f:
            said = json.load(f)
        if said["micro_steps"] != micro_batches:
            raise ValueError(f"{folder} has {said['micro_steps']} micro steps, not {micro_batches}")
        self.micro_batch, self.first_step, self.end_step = said["micro_batch"], said["first_step"], said["first_step"] + said["steps"]
        self.rows = np.memmap(f"{folder}/samples.bin", np.uint8, "r").reshape(said["slots"], said["stride_bytes"])
        self.ids, self.weights = (np.load(f"{folder}/{what}.npy", mmap_mode="r") for what in ("ids", "weights"))


def read_files(folder):
    import torch
    attach = ptc.torch.Generation.attach

    def sampler(self, records, global_batch, micro_batch, **_):
        return Slots(self, folder, -(-global_batch // (micro_batch * self.dp)))

    def item(self, at):
        part, row = (None, 0) if at == train.data.PAD else at
        if part is None or not part.weights[row]:
            return train.data.PAD, torch.zeros(self.length, dtype=torch.int64), torch.full((self.length,), train.data.IGNORE)
        tokens = torch.from_numpy(part.rows[row].astype("int64"))
        return int(part.ids[row]), tokens[:-1], tokens[1:]
    ptc.torch.Generation.batch_sampler = sampler
    ptc.torch.Generation.attach = lambda self, data=None, **others: attach(self, **others)
    train.data.Records.__getitem__ = item


if __name__ == "__main__":
    if "--files" in sys.argv:
        at = sys.argv.index("--files")
        read_files(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    if "--heap" in sys.argv:
        at = sys.argv.index("--heap")
        write_heap(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    if "--rest" in sys.argv:
        at = sys.argv.index("--rest")
        rest(float(sys.argv[at + 1]))
        del sys.argv[at:at + 2]
    if "--damage" in sys.argv:
        sys.argv.remove("--damage")
        damage()
    train.main()
