#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch DataLoader reads what a rank consumes in an epoch (docs/files.md, "Data"), and then the same from plain files.

  loader.py --data DIR --copies DIR --plain DIR --workers N,N --rounds N --batch N [--pids P,P]

DIR/tokens/gen-1/dp-0 and DIR/files/gen-1/dp-0 are read, for each number of workers. Each round reads an epoch below --data that nobody
has read before, and then a copy of it below --plain, which is made before the round from --copies, another mount of the same: so
that neither the kernel nor ptc-fuse has what is measured. The workers are the same in all rounds; the first round is not reported,
and is the one in which every byte is compared.
  tokens  rows of samples.bin by samples.idx, mapped, made int64 and stacked into batches, as a trainer of a language model does
  files   the files of files/, whole, each a tensor of bytes
Prints one JSON document: samples, bytes and seconds of every round, CPU seconds with those of the processes in --pids and of workers.
Needs torch and numpy. Failure modes: other bytes come from the copy: exit 1, one line."""
import argparse
import json
import os
import shutil
import sys
import time
import zlib

sys.dont_write_bytecode = True
import numpy as np  # noqa: E402
import torch  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
IDX_HEAD = 34


class Tokens:
    """Rows of an indexed dataset, mapped."""

    def __init__(self, folder):
        index = np.memmap(os.path.join(folder, "samples.idx"), np.uint8, "r")
        self.rows = int(index[18:26].view("<i8")[0])
        self.sizes = index[IDX_HEAD:IDX_HEAD + 4 * self.rows].view("<i4")
        self.pointers = index[IDX_HEAD + 4 * self.rows:IDX_HEAD + 12 * self.rows].view("<i8")
        self.data = np.memmap(os.path.join(folder, "samples.bin"), np.uint8, "r")

    def __getitem__(self, row):
        at, n = int(self.pointers[row]), int(self.sizes[row])
        return torch.from_numpy(self.data[at:at + 2 * n].view("<u2").astype(np.int64))


class Files:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "files")
        self.names = sorted(os.listdir(self.folder))
        self.rows = len(self.names)

    def __getitem__(self, row):
        with open(os.path.join(self.folder, self.names[row]), "rb") as f:
            return torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)


# What of an epoch's directory a shape reads, as what, and bytes of an element of what comes.
SHAPES = {"tokens": (Tokens, ("samples.bin", "samples.idx"), 2), "files": (Files, ("files",), 1)}


class Turns(torch.utils.data.Dataset):
    """Samples (folder, row): each process keeps the folder open that it had a sample of last."""

    def __init__(self, shape):
        self.shape, self.folder, self.rows = SHAPES[shape][0], None, None

    def __getitem__(self, at):
        folder, row = at
        if folder != self.folder:
            self.folder, self.rows = folder, self.shape(folder)
        return self.rows[row]


class Turn(torch.utils.data.Sampler):
    """Whose turn it is: all rows of one folder, in order."""

    def __init__(self):
        self.folder, self.n = None, 0

    def __iter__(self):
        return ((self.folder, row) for row in range(self.n))

    def __len__(self):
        return self.n


def copy(src, dst):
    (shutil.copytree if os.path.isdir(src) else shutil.copyfile)(src, dst)


def cpu_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as f:
        fields = f.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Bench:
    def __init__(self, args, shape, workers, epoch):
        self.args, self.shape, self.workers, self.epoch, self.turn = args, shape, workers, epoch, Turn()
        collate = {"collate_fn": list} if shape == "files" else {}
        self.loader = torch.utils.data.DataLoader(Turns(shape), batch_size=args.batch, sampler=self.turn, num_workers=workers,
                                                  persistent_workers=workers > 0, **collate)

    def cpu(self, pids):
        its = getattr(self.loader, "_iterator", None)
        workers = [w.pid for w in its._workers] if its and self.workers else []
        return sum(map(cpu_of, [os.getpid(), *workers, *pids]))

    def read(self, folder, pids, check):
        self.turn.folder = folder
        cpu, began, samples, elements, crc = self.cpu(pids), time.monotonic(), 0, 0, 0
        for batch in self.loader:
            samples += len(batch)
            elements += sum(x.numel() for x in batch)
            for x in batch if check else ():
                crc = zlib.crc32(x.numpy(), crc)
        seconds = time.monotonic() - began
        return {"samples": samples, "bytes": elements * SHAPES[self.shape][2], "seconds": seconds, "crc": crc,
                "cpu_seconds": max(self.cpu(pids) - cpu, 1 / TICKS)}

    def round(self, number):
        epoch, first = f"epoch-{self.epoch + number}", number == 0
        folder, copies = (os.path.join(top, self.shape, "gen-1", "dp-0", epoch) for top in (self.args.data, self.args.copies))
        plain, (shape, parts, _) = os.path.join(self.args.plain, epoch), SHAPES[self.shape]
        os.mkdir(plain)
        try:
            for part in parts:
                copy(os.path.join(copies, part), os.path.join(plain, part))
            self.turn.n = shape(plain).rows
            found = {"subject": self.read(folder, self.args.pids, first), "limit": self.read(plain, [], first)}
        finally:
            shutil.rmtree(plain)
        if found["subject"].pop("crc") != found["limit"].pop("crc"):
            raise SystemExit(f"loader.py: other bytes came from {folder} than from its copy")
        return found

    def rounds(self):
        return [self.round(r) for r in range(self.args.rounds + 1)][1:]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "copies", "plain"):
        p.add_argument(f"--{name}", required=True)
    p.add_argument("--workers", required=True)
    p.add_argument("--rounds", type=int, required=True)
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--pids", default="")
    args = p.parse_args()
    args.pids = [int(x) for x in args.pids.split(",") if x]
    torch.set_num_threads(1)
    results = []
    for shape in SHAPES:
        for i, workers in enumerate(map(int, args.workers.split(","))):
            rounds = Bench(args, shape, workers, i * (args.rounds + 1)).rounds()
            results.append({"shape": shape, "workers": workers, "rounds": rounds})
    print(json.dumps({"version": 1, "torch": torch.__version__, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
