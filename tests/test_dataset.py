# SPDX-License-Identifier: Apache-2.0
"""dataset/ against NumPy, against a reader written from the format, and against damage; needs no daemon."""
import os
import random
import subprocess
import unittest

import dataset_oracle as oracle
import harness
import numpy as np
from harness import SANITIZED

CASES = 150 if SANITIZED else harness.size(500, 1200, 4000)
EINVAL, ENOTFOUND, EIO, ECORRUPT = -101, -102, -304, -302


class Dataset(harness.Case):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(self.seed)
        self.p = subprocess.Popen([harness.binary("tests/dataset-dump")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tearDown(self):
        self.p.communicate()
        self.assertEqual(0, self.p.returncode)

    def ask(self, *fields):
        self.p.stdin.write("\t".join(str(f) for f in fields).encode() + b"\n")
        self.p.stdin.flush()
        lines = []
        while (line := self.p.stdout.readline()) != b".\n":
            self.assertTrue(line, f"dataset-dump died at {fields}")
            lines.append(line.decode("utf-8", "surrogateescape").rstrip("\n"))
        return lines

    def opened(self, kind, path, dtype="-", record=0):
        """[dtype, record, samples, documents, left out, memory], or the error's (code, text)."""
        return self.answer(self.ask("open", kind, dtype, record, path))

    def answer(self, lines):
        self.assertEqual(1, len(lines), lines)
        if lines[0].startswith("error "):
            _, code, text = lines[0].split(" ", 2)
            self.assertNotIn("\n", text)
            return int(code), text
        f = lines[0].split(" ")
        return [f[0], *map(int, f[1:])] if len(f) == 6 else [int(x) for x in f]

    def refused(self, code, said, kind, path, dtype="-", record=0):
        got = self.opened(kind, path, dtype, record)
        self.assertIsInstance(got, tuple, f"taken: {got}")
        self.assertEqual(code, got[0], got)
        self.assertRegex(got[1], said)

    def sample_bytes(self, i):
        line = self.ask("sample", i, 1)[0].split("\t")
        return line[0], bytes.fromhex(self.ask("read", i, 0, line[2])[0]), int(line[1])

    def random_sequences(self, dtype, n):
        rng = np.random.default_rng(self.rng.getrandbits(32))
        return [rng.integers(0, 100, self.rng.choice((0, 1, 2, rng.integers(0, 60)))).astype(dtype) for _ in range(n)]

    @harness.labels("repeats")
    def test_indexed(self):
        """All dtypes, empty sequences, documents of several, gaps, modes."""
        for case in range(CASES // 10):
            dtype, n = self.rng.choice(list(oracle.CODES.values())), self.rng.choice((1, 2, self.rng.randrange(1, 200)))
            sequences = self.random_sequences(dtype, n)
            marks = sorted({0, n, *(self.rng.randrange(n + 1) for _ in range(5))})
            gaps = [self.rng.randrange(20) for _ in sequences] if self.rng.random() < 0.3 else None
            prefix = self.path(f"s{case}")
            oracle.write_indexed(prefix, sequences, marks, dtype, gaps, self.rng.random() < 0.3)
            got = self.opened("indexed", prefix + self.rng.choice(("", ".bin", ".idx")))
            self.assertEqual([dtype, 0, n, len(marks) - 1, 0], got[:5])
            self.assertLess(got[5], 4096)
            other = oracle.Indexed(prefix)
            for i in self.rng.sample(range(n), min(n, 8)):
                name, data, offset = self.sample_bytes(i)
                self.assertEqual((prefix + ".bin", sequences[i].tobytes(), other.place(i)[0]), (name, data, offset))
            sums = [0, sum(s.nbytes for s in sequences), sum(gaps) if gaps else 0, max(s.nbytes for s in sequences)]
            self.assertEqual(sums, self.answer(self.ask("check")))
            self.assertEqual(EINVAL, self.answer(self.ask("sample", n, 1))[0])
            os.unlink(prefix + ".bin")
            os.unlink(prefix + ".idx")

    def damage(self, path):
        with open(path, "rb") as f:
            raw = bytearray(f.read())
        kind = self.rng.randrange(4)
        if kind == 0:
            raw = raw[:self.rng.randrange(len(raw) + 1)]
        elif kind == 1:
            raw += bytes(self.rng.randrange(1, 40))
        else:
            for _ in range(self.rng.choice((1, 1, 1, 3))):
                at = self.rng.randrange(len(raw)) if raw and kind == 2 else self.rng.randrange(34)
                if at < len(raw):
                    raw[at] = self.rng.choice((0, 1, 0x7f, 0x80, 0xff, raw[at] ^ 1 << self.rng.randrange(8)))
        with open(path, "wb") as f:
            f.write(raw)

    def test_indexed_damaged(self):
        """Whatever is done to the files, both readers agree on which sequences can be read, and on how many are wrong."""
        found = {"refused": 0, "problems": 0, "sequences": 0}
        for case in range(CASES):
            prefix, n = self.path("d"), self.rng.randrange(1, 30)
            oracle.write_indexed(prefix, self.random_sequences("uint16", n), None, "uint16")
            self.damage(prefix + (".bin" if self.rng.random() < 0.2 else ".idx"))
            got, what = self.opened("indexed", prefix), f"case {case}"
            try:
                other = oracle.Indexed(prefix)
                other.place(len(other) - 1)
            except oracle.Wrong:
                self.assertIsInstance(got, tuple, what)
                found["refused"] += 1
                continue
            self.assertIsInstance(got, list, f"{what}: {got}")
            self.assertEqual((len(other), other.dtype.name), (got[2], got[0]), what)
            for i in range(len(other)):
                line = self.ask("sample", i, 1)[0]
                try:
                    self.assertEqual(other.place(i), tuple(map(int, line.split("\t")[1:])), what)
                except oracle.Wrong:
                    self.assertRegex(line, f"^error {EINVAL} .*sequence {i} ", what)
                    found["sequences"] += 1
            *lines, sums = self.ask("check")
            self.assertEqual(other.problems(), len(lines), f"{what}: {lines}")
            self.assertEqual(len(lines), int(sums.split()[0]))
            found["problems"] += bool(lines)
        self.assertTrue(all(n > CASES // 100 for n in found.values()), found)

    def test_indexed_says_what(self):
        prefix = self.path("x")

        def header(**change):
            oracle.write_indexed(prefix, [[1, 2, 3], [4, 5], [6]])
            with open(prefix + ".idx", "r+b") as f:
                raw = bytearray(f.read())
                for at, data in change.get("put", ()):
                    raw[at:at + len(data)] = data
                f.seek(0)
                f.truncate()
                f.write(raw)
            return prefix

        self.refused(ENOTFOUND, "cannot open .*none.idx", "indexed", self.path("none"))
        self.refused(EINVAL, "begin with MMIDIDX", "indexed", header(put=[(0, b"TNTIDX")]))
        self.refused(EINVAL, "version 2 ", "indexed", header(put=[(9, b"\2")]))
        self.refused(EINVAL, "dtype code 9 at byte 17", "indexed", header(put=[(17, b"\x09")]))
        self.refused(EINVAL, "no sequences", "indexed", header(put=[(18, bytes(8))]))
        self.refused(EINVAL, "do not fit", "indexed", header(put=[(18, b"\xff" * 7)]))
        self.refused(EINVAL, "4 sequences and 4 .* take 114 bytes; it has 102", "indexed", header(put=[(18, b"\4")]))
        self.refused(EINVAL, "its dtype is int32, not uint16", "indexed", header(), "uint16")
        self.refused(EINVAL, "no record length", "indexed", header(), "-", 4)
        self.refused(EINVAL, "marks go from 0 to 9, not from 0 to 3", "indexed", header(put=[(94, b"\x09")]))
        self.refused(EINVAL, "sequence 2 has 4 bytes from byte 21 on; .*x.bin has 24", "indexed", header(put=[(62, b"\x15")]))
        self.opened("indexed", header(put=[(54, b"\x08")]))
        self.assertEqual([f"problem {prefix}.idx: sequence 1 begins at byte 8 of {prefix}.bin, before byte 12, where those "
                          f"before it end"], self.ask("check")[:-1])
        self.opened("indexed", header(put=[(38, b"\xff" * 4)]))
        self.assertIn("sequence 1 has -1 elements", self.ask("check")[0])
        self.opened("indexed", header(put=[(78, b"\7")]))
        self.assertEqual([f"problem {prefix}.idx: document mark 1 is 7, not within 0 to 3"], self.ask("check")[:-1])

    def test_flat(self):
        for dtype in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"):
            record, n, rest = self.rng.randrange(1, 50), self.rng.randrange(1, 40), self.rng.randrange(3)
            rest = min(rest, record - 1)
            a = np.frombuffer(self.rng.randbytes((record * n + rest) * np.dtype(dtype).itemsize), dtype)
            path = self.path("flat.bin")
            a.tofile(path)
            self.assertEqual([dtype, record, n, 0, rest], self.opened("flat", path, dtype, record)[:5])
            for i in {0, n - 1, self.rng.randrange(n)}:
                self.assertEqual(a[i * record:(i + 1) * record].tobytes(), self.sample_bytes(i)[1])
            np.save(self.path("a.npy"), a)
            self.assertEqual([dtype, record, n, 0, rest], self.opened("npy", self.path("a.npy"), "-", record)[:5])
            self.assertEqual(a[:record].tobytes(), self.sample_bytes(0)[1])
            rows = a[:n * record].reshape(n, record, 1)
            np.save(self.path("b.npy"), rows)
            self.assertEqual([dtype, record, n, 0, 0], self.opened("npy", self.path("b.npy"), dtype)[:5])
            self.assertEqual(rows[n - 1].tobytes(), self.sample_bytes(n - 1)[1])
            self.assertEqual([0, rows.nbytes, 0, rows[0].nbytes], self.answer(self.ask("check")))
        self.refused(EINVAL, "needs a dtype", "flat", path, "-", 4)
        self.refused(EINVAL, "1 to 2147483647 elements, not 0", "flat", path, "uint8", 0)
        self.refused(EINVAL, "less than one record of 100000", "flat", path, "uint8", 100000)
        self.refused(EINVAL, "not a regular file", "flat", self.dir, "uint8", 1)
        with open(path, "ab") as f:
            f.write(b"x")
        self.refused(EINVAL, "no whole number of float64 of 8 bytes", "flat", path, "float64", 2)

    def test_npy_refused(self):
        def save(a, **kw):
            np.save(self.path("r.npy"), a, **kw)
            return self.path("r.npy")

        self.refused(EINVAL, "big-endian", "npy", save(np.zeros((2, 3), ">i4")))
        self.refused(EINVAL, "Fortran", "npy", save(np.asfortranarray(np.zeros((2, 3)))))
        self.refused(EINVAL, "not supported", "npy", save(np.zeros((2, 3), "c8")))
        self.refused(EINVAL, "structured", "npy", save(np.zeros(3, [("a", "i4")])))
        self.refused(EINVAL, "without dimensions", "npy", save(np.zeros(())))
        self.refused(EINVAL, "needs a record length", "npy", save(np.zeros(8)))
        self.refused(EINVAL, "rows have 3 elements, not 4", "npy", save(np.zeros((2, 3))), "-", 4)
        self.refused(EINVAL, "0 elements", "npy", save(np.zeros((0, 3))))
        with open(save(np.zeros((2, 3))), "r+b") as f:
            f.truncate(os.path.getsize(f.name) - 1)
        self.refused(EINVAL, "takes 176 bytes with the header; it has 175", "npy", f.name)

    @harness.labels("repeats")
    def test_npy_damaged(self):
        """NumPy takes what we take, and it is the same array."""
        taken = 0
        for _ in range(CASES):
            path = self.path("n.npy")
            np.save(path, np.arange(24, dtype="<i2").reshape(4, 6))
            self.damage(path)
            got = self.opened("npy", path)
            if isinstance(got, tuple):
                continue
            a = np.load(path)
            taken += 1
            self.assertEqual([a.dtype.name, a.size // len(a), len(a)], got[:3])
            self.assertEqual(a[-1].tobytes(), self.sample_bytes(len(a) - 1)[1])
        self.assertGreater(taken, CASES // 50)

    def test_files(self):
        root = self.path("tree")
        for _ in range(60):
            folder = os.path.join(root, *self.rng.choices(("a", "b", "a.b", ".hidden", "é"), k=self.rng.randrange(4)))
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, self.rng.choice(("", ".", "z")) + str(self.rng.randrange(30))), "wb") as f:
                f.write(self.rng.randbytes(self.rng.randrange(300)))
        os.symlink("b" if os.path.exists(os.path.join(root, "b", "1")) else "gone", os.path.join(root, ".link"))
        names = oracle.tree(root)
        got = self.opened("files", root)
        self.assertEqual(["-", 0, len(names), 0, 0], got[:5])
        for i, name in enumerate(names):
            with open(os.path.join(os.fsencode(root), name), "rb") as f:
                self.assertEqual((os.fsdecode(name), f.read(), 0), self.sample_bytes(i))
        sizes = [os.path.getsize(os.path.join(os.fsencode(root), n)) for n in names]
        self.assertEqual([0, sum(sizes), 0, max(sizes)], self.answer(self.ask("check")))
        self.assertEqual(["ok"], self.ask("print", 1))
        os.symlink("a", os.path.join(root, "folder"))
        self.refused(EINVAL, "folder is neither a file nor a folder", "files", root)
        os.unlink(os.path.join(root, "folder"))
        os.mkfifo(os.path.join(root, "pipe"))
        self.refused(EINVAL, "pipe is neither", "files", root)
        os.mkdir(self.path("empty"))
        self.refused(EINVAL, "has no files", "files", self.path("empty"))

    def test_changed(self):
        """What is done to a source after it was added is found."""
        def same(said=None):
            got = self.ask("same")[0]
            if said is None:
                self.assertEqual("ok", got)
            else:
                self.assertRegex(got, f"^error {ECORRUPT} .*{said}")

        def touch(path, ns=5 * 10**9):
            st = os.stat(path)
            os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns + ns))

        prefix = self.path("c")
        for whole, what in ((0, "in the middle, its time put back"), (1, "the same, looked at whole")):
            oracle.write_indexed(prefix, [[i] * 5 for i in range(40000)])
            self.opened("indexed", prefix)
            self.ask("print", whole)
            same()
            st = os.stat(prefix + ".idx")
            with open(prefix + ".idx", "r+b") as f:
                f.seek(os.path.getsize(f.name) // 2)
                f.write(b"\x77")
            os.utime(f.name, ns=(st.st_atime_ns, st.st_mtime_ns))
            same("c.idx has changed .* its time are as they were" if whole else None)  # a quick look cannot see it
            touch(prefix + ".idx")
            same("c.idx was written to")
        oracle.write_indexed(prefix, [[1] * 5, [2] * 7])
        self.opened("indexed", prefix)
        self.ask("print", 0)
        with open(prefix + ".bin", "r+b") as f:
            f.write(b"\x77")
        same("c.bin has changed .* other bytes at its ends")
        with open(prefix + ".bin", "ab") as f:
            f.write(b"x")
        same("it had 48 bytes, it has 49")
        root = self.path("t")
        os.mkdir(root)
        for i in range(9):
            with open(os.path.join(root, str(i)), "w") as f:
                f.write("x")
        self.opened("files", root)
        self.ask("print", 1)
        same()
        touch(os.path.join(root, "3"))
        same("files in it were written to")
        os.unlink(os.path.join(root, "4"))
        same("other files than when")

    def test_bounds(self):
        """No byte beyond a sample, and no sample beyond the last, of any kind."""
        oracle.write_indexed(self.path("k"), [[1, 2], [], [3]])
        np.arange(6, dtype="int32").tofile(self.path("flat"))
        os.mkdir(self.path("files"))
        for name, size in (("a", 8), ("b", 0), ("c", 4)):
            with open(self.path("files", name), "wb") as f:
                f.write(bytes(size))
        for args in (("indexed", self.path("k")), ("flat", self.path("flat"), "int32", 2), ("files", self.path("files"))):
            self.opened(*args)
            first = self.ask("read", 0, 0, 8)[0]
            self.assertEqual((16, first[8:]), (len(first), self.ask("read", 0, 4, 4)[0]))
            self.assertEqual("", self.ask("read", 0, 8, 0)[0])
            for i, at, n in ((0, 0, 9), (0, 8, 1), (0, 9, 0), (0, 2**63, 1), (3, 0, 0), (3, 0, 1)):
                self.assertRegex(self.ask("read", i, at, n)[0], f"^error {EINVAL} ", f"{args[0]} {i} {at} {n}")

    def test_cut_while_open(self):
        """A file that somebody cuts is an error of one read, not the end of the process."""
        oracle.write_indexed(self.path("k"), [[i] for i in range(1000)])
        self.opened("indexed", self.path("k"))
        os.truncate(self.path("k.idx"), 100)
        self.assertRegex(self.ask("sample", 900, 1)[0], f"^error {EIO} .*k.idx ends at byte 3634; it had 20042")
        os.truncate(self.path("k.bin"), 10)
        self.assertRegex(self.ask("sample", 2, 1)[0], f"^error {EIO} ")
        self.assertEqual("", self.ask("read", 999, 0, 0)[0][:0])

    def test_a_billion(self):
        """An index of 10^9 sequences opens at once: nothing of it is held."""
        n, prefix = 10**9, self.path("b")
        open(prefix + ".bin", "wb").close()
        with open(prefix + ".idx", "wb") as f:
            oracle.write_indexed(self.path("one"), [[]])
            with open(self.path("one.idx"), "rb") as one:
                f.write(one.read(18) + n.to_bytes(8, "little") + (2).to_bytes(8, "little"))
            f.truncate(34 + 12 * n + 8)
            f.seek(0, os.SEEK_END)
            f.write(n.to_bytes(8, "little"))
        before = int(self.ask("rss")[0])
        got = self.opened("indexed", prefix)
        self.assertEqual(["int32", 0, n, 1, 0], got[:5])
        for i in (0, n - 1, *(self.rng.randrange(n) for _ in range(1000))):
            self.assertEqual(f"{prefix}.bin\t0\t0", self.ask("sample", i, 1)[0])
        self.assertLess(int(self.ask("rss")[0]) - before, 4096)
        self.assertLess(got[5], 4096)


if __name__ == "__main__":
    unittest.main()
