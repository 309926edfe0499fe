# SPDX-License-Identifier: Apache-2.0
"""ptcctl dataset, against real daemons: what is registered, who sees it, what has changed, which sample is where."""
import json
import os
import random

import dataset_oracle as oracle
import harness
import numpy as np
import order_oracle


class DatasetCtl(harness.Case):
    def fails(self, c, code, said, *args, **options):
        p = c.ptcctl(*args, check=False, **options)
        self.assertEqual(code, p.returncode, f"{args}: {p.stdout} {p.stderr}")
        self.assertRegex(p.stderr, said)
        self.assertEqual(1, p.stderr.count("\n"), p.stderr)
        return p

    def test_life(self):
        rng = random.Random(self.seed)
        sequences = [np.array([rng.randrange(-9, 9) for _ in range(rng.randrange(1, 40))], "int16") for _ in range(60)]
        oracle.write_indexed(self.path("text"), sequences, [0, 10, 60], "int16")
        flat = np.arange(1000, dtype="uint16")
        flat.tofile(self.path("flat.bin"))
        np.save(self.path("rows.npy"), np.linspace(0, 1, 30, dtype="float32").reshape(6, 5))
        os.mkdir(self.path("files"))
        for i in range(7):
            with open(self.path("files", f"f{i}"), "w") as f:
                f.write("x" * i)
        with self.cluster(nodes=2) as c:
            self.assertEqual([], c.json("dataset", "list")["datasets"])
            c.ptcctl("dataset", "add", "text", self.path("text.idx"))
            c.ptcctl("dataset", "add", "flat", self.path("flat.bin"), "--kind", "flat", "--dtype", "uint16", "--record", "7")
            c.ptcctl("dataset", "add", "rows", self.path("rows.npy"), node="n1")
            c.ptcctl("dataset", "add", "files", self.path("files"))
            listed = {d["name"]: d for d in c.json("dataset", "list", node="n1")["datasets"]}
            self.assertEqual({"files": ("files", "", 0, 7), "flat": ("flat", "uint16", 7, 142), "rows": ("npy", "float32", 5, 6),
                              "text": ("indexed", "int16", 0, 60)},
                             {n: (d["kind"], d["dtype"], d["record"], d["samples"]) for n, d in listed.items()})
            self.assertEqual((2, self.path("text"), os.getuid()), tuple(listed["text"][k] for k in ("documents", "path", "uid")))
            lines = c.etcdctl("get", f"/ptc/datasets/{os.getuid()}/text").stdout.splitlines()
            self.assertEqual(listed["text"], json.loads(lines[1]))
            for name, total in (("text", sum(s.nbytes for s in sequences)), ("flat", 142 * 14), ("rows", 120), ("files", 21)):
                got = c.json("dataset", "check", name)
                self.assertEqual((0, total, [], listed[name]["samples"]),
                                 tuple(got[k] for k in ("wrong", "sample_bytes", "problems", "samples")))
            self.inspect(c, sequences, flat)
            self.refusals(c)
            self.fails(c, 1, 'a dataset named "text" exists already', "dataset", "add", "text", self.path("text"))
            c.ptcctl("dataset", "remove", "text")
            self.assertEqual({"files", "flat", "rows"}, {d["name"] for d in c.json("dataset", "list")["datasets"]})
            self.fails(c, 1, 'dataset "text" does not exist', "dataset", "remove", "text", node="n1")
            self.fails(c, 1, 'dataset "text" does not exist', "dataset", "inspect", "text")
            self.assertTrue(os.path.exists(self.path("text.bin")))

    def inspect(self, c, sequences, flat):
        got = c.json("dataset", "inspect", "text", "--sample", "17", "--elements", "100")
        self.assertEqual((sequences[17].tolist(), sequences[17].nbytes, sum(s.nbytes for s in sequences[:17])),
                         (got["elements"], got["bytes"], got["offset"]))
        for k in range(0, 142, 23):
            got = c.json("dataset", "inspect", "flat", "--at", str(k), "--seed", "5", "--epoch", "2")
            i = order_oracle.at(142, 5, 2, k)
            self.assertEqual((i, flat[7 * i:7 * i + 7].tolist()), (got["sample"], got["elements"]))
        got = c.json("dataset", "inspect", "rows", "--sample", "5", "--elements", "2")
        np.testing.assert_array_equal(np.load(self.path("rows.npy"))[5, :2], np.array(got["elements"], "float32"))
        self.assertEqual(("f3", 3), tuple(c.json("dataset", "inspect", "files", "--sample", "3")[k] for k in ("file", "bytes")))
        self.assertIn("f6", c.ptcctl("dataset", "inspect", "files", "--sample", "6").stdout)
        self.fails(c, 1, "samples 0 to 59, no 60", "dataset", "inspect", "text", "--sample", "60")
        self.fails(c, 1, "places 0 to 59, no 60", "dataset", "inspect", "text", "--at", "60")
        self.fails(c, 2, "not both", "dataset", "inspect", "text", "--at", "6", "--sample", "1")
        self.fails(c, 2, "they need --at", "dataset", "inspect", "text", "--seed", "6")

    def refusals(self, c):
        self.fails(c, 2, "cannot tell what", "dataset", "add", "x", self.path("flat.bin"))
        self.fails(c, 2, "needs --dtype and --record", "dataset", "add", "x", self.path("flat.bin"), "--kind", "flat")
        self.fails(c, 2, "not supported; docs/dataset.md", "dataset", "add", "x", self.path("flat.bin"), "--kind", "flat", "--dtype", "int5")
        self.fails(c, 2, "indexed, flat, npy or files, not", "dataset", "add", "x", self.path("flat.bin"), "--kind", "tape")
        self.fails(c, 1, "cannot open .*none", "dataset", "add", "x", self.path("none"), "--kind", "npy")
        self.fails(c, 1, "X_y", "dataset", "add", "X_y", self.path("rows.npy"))
        oracle.write_indexed(self.path("bad"), [[1, 2], [3]], None, "int32")
        with open(self.path("bad.idx"), "r+b") as f:
            f.seek(34 + 8 + 8)
            f.write(b"\4")
        self.fails(c, 1, r"bad.idx: sequence 1 begins at byte 4 .*\(1 thing is wrong\)", "dataset", "add", "x", self.path("bad"))
        self.assertNotIn("x", [d["name"] for d in c.json("dataset", "list")["datasets"]])

    def test_changed(self):
        """What is found when a source is not what it was, by everything that opens it."""
        with self.cluster(nodes=1) as c:
            oracle.write_indexed(self.path("s"), [[i] * 9 for i in range(50000)])
            c.ptcctl("dataset", "add", "s", self.path("s"))
            c.ptcctl("dataset", "check", "s")
            before = os.stat(self.path("s.idx"))
            with open(self.path("s.idx"), "r+b") as f:
                f.seek(before.st_size // 2)
                old = f.read(1)
                f.seek(before.st_size // 2)
                f.write(bytes([old[0] ^ 64]))
            os.utime(self.path("s.idx"), ns=(before.st_atime_ns, before.st_mtime_ns))
            p = self.fails(c, 1, "dataset s: .* wrong", "dataset", "check", "s")
            self.assertRegex(p.stdout, "s.idx has changed since it was added; its size")
            self.assertRegex(p.stdout, "sequence [0-9]+ ")
            os.truncate(self.path("s.bin"), os.path.getsize(self.path("s.bin")) - 4)
            self.fails(c, 1, "sequence 49999 has 36 bytes", "dataset", "inspect", "s")
            oracle.write_indexed(self.path("s"), [[i] * 9 for i in range(50001)])
            self.fails(c, 1, "dataset s: .*s.idx has changed since it was added: it had", "dataset", "inspect", "s")

    def test_other_user(self):
        """A dataset is its owner's and root's; to others it does not exist, and its name is free."""
        if os.getuid() != 0:
            self.skipTest("needs root to be two users")
        os.mkdir(self.path("files"))
        with open(self.path("files", "a"), "w") as f:
            f.write("x")
        other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        with self.cluster(nodes=1) as c:
            c.ptcctl("dataset", "add", "mine", self.path("files"))
            self.assertEqual([], json.loads(c.ptcctl("dataset", "list", "--format", "json", prefix=other).stdout)["datasets"])
            self.fails(c, 1, 'dataset "mine" does not exist', "dataset", "remove", "mine", prefix=other)
            self.fails(c, 1, "exists already", "dataset", "add", "mine", self.path("files"))
            c.ptcctl("dataset", "add", "mine", self.path("files"), prefix=other)
            self.assertEqual([0, 65534], sorted(d["uid"] for d in c.json("dataset", "list")["datasets"]))
            c.ptcctl("dataset", "remove", "mine", prefix=other)
            c.ptcctl("dataset", "add", "theirs", self.path("files"), prefix=other)
            listed = {d["name"]: d["uid"] for d in c.json("dataset", "list")["datasets"]}
            self.assertEqual({"mine": 0, "theirs": 65534}, listed)
            os.chmod(self.path("files"), 0o700)
            self.fails(c, 1, "cannot open", "dataset", "add", "sly", self.path("files"), prefix=other)
            c.ptcctl("dataset", "remove", "theirs")
