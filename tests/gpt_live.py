#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt/train.py as a job's ranks run it. With --damage: once resized, one row of one moment of one layer is lost. With
--heap DIR: as each generation begins, DIR/PID has how many KiB of the C heap are in use. (Freed memory that the C library
keeps is as much again, and moves up and down: PyTorch's threads have arenas of their own.)"""
import ctypes
import gc
import os
import sys

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


if __name__ == "__main__":
    if "--heap" in sys.argv:
        at = sys.argv.index("--heap")
        write_heap(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    if "--damage" in sys.argv:
        sys.argv.remove("--damage")
        damage()
    train.main()
