#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt/train.py as a job's ranks run it. With --damage: once resized, one row of one moment of one layer is lost."""
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


if __name__ == "__main__":
    if "--damage" in sys.argv:
        sys.argv.remove("--damage")
        damage()
    train.main()
