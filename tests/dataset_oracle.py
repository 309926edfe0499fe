# SPDX-License-Identifier: Apache-2.0
"""Datasets on disk, written and read by hand from docs/dataset.md and NumPy. Shares no code with dataset/."""
import os
import struct

import numpy as np

CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


def write_indexed(prefix, sequences, documents=None, dtype="int32", gaps=None, modes=False):
    """sequences: arrays. documents: sequences where documents begin, with the end; default: one each."""
    code = next(c for c, name in CODES.items() if name == dtype)
    documents = list(range(len(sequences) + 1)) if documents is None else documents
    pointers, at = [], 0
    with open(prefix + ".bin", "wb") as f:
        for i, s in enumerate(sequences):
            f.write(bytes(gaps[i] if gaps else 0))
            at += gaps[i] if gaps else 0
            pointers.append(at)
            at += f.write(np.asarray(s, dtype="<" + np.dtype(dtype).str[1:]).tobytes())
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(documents)))
        f.write(np.array([len(s) for s in sequences], "<i4").tobytes())
        f.write(np.array(pointers, "<i8").tobytes() + np.array(documents, "<i8").tobytes())
        f.write(bytes(len(sequences)) if modes else b"")


class Wrong(Exception):
    pass


class Indexed:
    """Megatron's reader, in its own terms: mmap of the index, frombuffer of each part. Raises where the file cannot be one."""

    def __init__(self, prefix):
        with open(prefix + ".idx", "rb") as f:
            raw = f.read()
        if len(raw) < 34 or raw[:9] != b"MMIDIDX\0\0":
            raise Wrong("magic")
        version, code, n, m = struct.unpack("<QBQQ", raw[9:34])
        if version != 1 or code not in CODES or n == 0 or m < 2:
            raise Wrong("header")
        if len(raw) not in (34 + 12 * n + 8 * m, 34 + 13 * n + 8 * m):
            raise Wrong("length")
        self.dtype = np.dtype(CODES[code])
        self.lengths = np.frombuffer(raw, "<i4", n, 34)
        self.pointers = np.frombuffer(raw, "<i8", n, 34 + 4 * n)
        self.documents = np.frombuffer(raw, "<i8", m, 34 + 12 * n)
        if self.documents[0] != 0 or self.documents[-1] != n:
            raise Wrong("documents")
        self.path, self.size = prefix + ".bin", os.path.getsize(prefix + ".bin")

    def __len__(self):
        return len(self.lengths)

    def place(self, i):
        at, n = int(self.pointers[i]), int(self.lengths[i]) * self.dtype.itemsize
        if n < 0 or at < 0 or at + n > self.size:
            raise Wrong("sequence")
        return at, n

    def __getitem__(self, i):
        at, n = self.place(i)
        with open(self.path, "rb") as f:
            f.seek(at)
            return np.frombuffer(f.read(n), self.dtype)

    def problems(self):
        """How many sequences and marks are wrong."""
        found, end, before = 0, 0, 0
        for i in range(len(self)):
            try:
                at, n = self.place(i)
            except Wrong:
                found += 1
                continue
            found += at < end
            end = max(end, at + n)
        for mark in self.documents.tolist():
            if mark < before or mark > len(self):
                found += 1
            else:
                before = mark
        return found


def tree(path):
    """All files under a directory, as docs/dataset.md orders them."""
    found = []
    for folder, folders, files in os.walk(os.fsencode(path)):
        folders[:] = [d for d in folders if not d.startswith(b".")]
        found += [os.path.relpath(os.path.join(folder, f), os.fsencode(path)) for f in files if not f.startswith(b".")]
    return sorted(found)
