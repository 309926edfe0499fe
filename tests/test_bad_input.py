# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind: one clear line on stderr, exit 1 or 2, nothing changed."""
import json
import os
import shutil
import signal
import struct
import subprocess
import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import PATIENCE, Job, wait_for

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "even"}}]
GOOD = {"version": 1, "name": "bad", "tensors": [{"name": "w", "dtype": "F32", "shape": [4, 4]}], "rules": RULES}


def raw_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text + data)


class BadInput(harness.Case):
    def everything(self, c):
        """What may not change: the keys in etcd and the jobs' answers. `turn` only counts aborts."""
        keys = {}
        for prefix in ("/ptc/jobs/", "/ptc/names/"):
            lines = c.etcdctl("get", "--prefix", prefix).stdout.splitlines()
            keys.update((k, v) for k, v in zip(lines[::2], lines[1::2]) if not k.endswith("/barrier"))
        return keys, c.ptcctl("job", "list").stdout

    @harness.labels("repeats")
    def test_job_files(self):
        bad = {
            "not yaml": "version: [1", "empty": "", "a list": "- 1", "no version": {**GOOD, "version": None},
            "version 99": {**GOOD, "version": 99}, "no name": {k: v for k, v in GOOD.items() if k != "name"},
            "name with ..": {**GOOD, "name": ".."}, "name with a slash": {**GOOD, "name": "a/b"},
            "name with dots": {**GOOD, "name": "../../etc"}, "long name": {**GOOD, "name": "a" * 64},
            "empty name": {**GOOD, "name": ""}, "unknown key": {**GOOD, "tensor": []},
            "a table entry that does not fit": {**GOOD, "tensors": [{"name": "w", "dtype": "F32", "shape": [4, 4]}],
                                                "rules": [{"match": "w", "split": {"axis": "tp", "dim": 0, "kind": "even"}}],
                                                "gpus": {3: {"tp": 3}}},
            "unknown dtype": {**GOOD, "tensors": [{"name": "w", "dtype": "F33", "shape": [4]}]},
            "negative dim": {**GOOD, "tensors": [{"name": "w", "dtype": "F32", "shape": [-4]}]},
            "overflowing shape": {**GOOD, "tensors": [{"name": "w", "dtype": "F64", "shape": [1 << 31, 1 << 31, 1 << 31]}]},
            "nine dims": {**GOOD, "tensors": [{"name": "w", "dtype": "F32", "shape": [1] * 9}]},
            "same name twice": {**GOOD, "tensors": GOOD["tensors"] * 2},
            "tensor name too long": {**GOOD, "tensors": [{"name": "w" * 1024, "dtype": "F32", "shape": [4]}]},
            "missing file": {**GOOD, "tensors": {"from": "missing.safetensors"}},
            "split of a dim that is not there": {**GOOD, "rules": [{"match": "*", "split": {"axis": "tp", "dim": 5}}]},
            "padding without end": {**GOOD, "rules": [{"match": "*", "split": {"axis": "tp", "dim": 0, "pad_to": (1 << 63) - 1}}]},
            "unknown axis": {**GOOD, "rules": [{"match": "*", "split": {"axis": "xp", "dim": 0}}]},
            "blocks that do not sum up": {**GOOD, "rules": [{"match": "*", "split": {"axis": "tp", "dim": 0,
                                                                                     "blocks": [1, 1]}}]},
            "unknown rule set": {**GOOD, "rules": "no-such-rules"},
            "rule set with a path": {**GOOD, "rules": "../../etc/passwd"},
            "layer pattern that never fits": {**GOOD, "rules": [{"match": "*", "layer": "x.{}.y"}]},
            "gpus that do not multiply": {**GOOD, "gpus": {8: {"tp": 3}}},
        }
        with self.cluster(nodes=1) as c:
            before = self.everything(c)
            for what, spec in bad.items():
                path = self.path("bad.yaml")
                with open(path, "w") as f:
                    f.write(spec if isinstance(spec, str) else json.dumps(spec))
                with self.subTest(what):
                    self.refused(c, "job", "create", "-f", path, codes=(1, 2))
            self.refused(c, "job", "create", "-f", self.path("nothing.yaml"), codes=(1, 2))
            fifo = self.path("fifo.yaml")
            os.mkfifo(fifo) # nobody writes
            for special in (fifo, "/dev/zero"):
                self.refused(c, "job", "create", "-f", special, contains=f"{special}: not a regular file", timeout_s=20 * PATIENCE)
            self.refused(c, "job", "create", "-f", self.write_bad({
                **GOOD, "tensors": [{"name": n, "dtype": "F32", "shape": [4]} for n in ("w", "w:exp_avg")],
                "fields": {"exp_avg": {"dtype": "F32"}}}), contains='tensor "w:exp_avg" has the name of field "exp_avg" of tensor "w"')
            self.assertEqual(before, self.everything(c))

    def test_job_beyond_memory(self):
        """A job whose description needs more memory than the node has for its work."""
        with self.cluster(nodes=1, up=False) as c:
            c.write_config(c.nodes["n0"], memory={"ceiling": "512MiB", "staging": "32MiB", "spare": "0MiB", "work": "32MiB"})
            c.up(timeout_s=60 * PATIENCE)
            before = self.everything(c)
            many = self.write_bad({**GOOD, "tensors": {"from": "many.safetensors"}})
            raw_file(self.path("many.safetensors"), {f"w{i}": {"dtype": "U8", "shape": [1] * 8, "data_offsets": [i, i + 1]}
                                                     for i in range(300000)}, bytes(300000))
            self.refused(c, "job", "create", "-f", many, contains="node n0: this job needs more than its memory.work of 32MiB; raise it")
            self.assertEqual(before, self.everything(c))

    def test_sockets(self):
        """PTC_SOCKET that no socket can be."""
        for path, says in (("", 'the socket "" is not an absolute path; unset PTC_SOCKET'), ("a.sock", 'the socket "a.sock" is not an absolute'),
                           ("/tmp/" + "a" * 103, "has 108 bytes, at most 107 can be used")):
            r = subprocess.run([harness.program("ptcctl"), "nodes"], capture_output=True, text=True, check=False,
                               env={**os.environ, "PTC_SOCKET": path}, timeout=30 * PATIENCE)
            self.assertEqual((1, 1), (r.returncode, r.stderr.count("\n")), r.stderr)
            self.assertIn(says, r.stderr)

    def test_flags(self):
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (6, 4))
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, "flags", s, self.path("job"), RULES)
            job.imported("tp=2")
            before = self.everything(c)
            bad = [("resize", "flags"), ("resize", "flags", "--config", ""), ("resize", "flags", "--config", "tp=0"),
                   ("resize", "flags", "--config", "tp=-1"), ("resize", "flags", "--config", "tp=x"),
                   ("resize", "flags", "--config", "tp=2,tp=2"), ("resize", "flags", "--config", "warp=2"),
                   ("resize", "flags", "--config", "tp=4"), # 6 rows do not divide by 4
                   ("resize", "flags", "--config", "tp=99999999999999999999"), ("resize", "flags", "--config", "zero=4"),
                   ("resize", "flags", "--config", "order=tp-tp-ep-dp-pp"), ("resize", "flags", "--config", "shard=dim0"),
                   ("resize", "flags", "--gpus", "1000"),
                   ("resize", "flags", "--gpus", "-1"), ("resize", "flags", "--config", "pp=2,stages=9:9"),
                   ("resize", "flags", "--config", "dp=2", "--nodes", "n7"), ("resize", "nobody", "--config", "tp=1"),
                   ("resize", "..", "--config", "tp=1"), ("drain", "n7"), ("drain", ".."), ("status", "nobody"),
                   ("export", "nobody", self.path("x")), ("export", "flags", self.path("no/such/dir/x")),
                   ("export", "flags", self.path("x"), "--field", "momentum=y"), ("verify", "nobody"), ("frobnicate",),
                   ("status", "--format", "xml"), ("nodes", "--no-such-flag"), ("job", "delete", "nobody"),
                   ("job", "create", "-f", job.yaml)]
            for args in bad:
                with self.subTest(" ".join(args)):
                    if args[0] == "resize":
                        args = (*args, "--wait")
                    self.refused(c, *args, codes=(1, 2))
            self.assertEqual(before, self.everything(c))
            job.check_whole(self)
            job.check_ranks(self, oracle.Config(tp=2), RULES)

    def test_safetensors(self):
        """Headers that lie. Each is tried as the file to import and as the one a job's tensors come from."""
        w = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
        bad = {
            "empty file": lambda p: open(p, "wb").close(),
            "shorter than its length": lambda p: raw_file(p, {"w": w}, length=1 << 20),
            "length of 2^63": lambda p: raw_file(p, {"w": w}, length=1 << 63),
            "header over the limit": lambda p: raw_file(p, {"w": w}, length=100_000_001),
            "not json": lambda p: raw_file(p, b"{w}", bytes(64)), "a list": lambda p: raw_file(p, [1], bytes(64)),
            "truncated data": lambda p: raw_file(p, {"w": w}, bytes(63)),
            "data after the end": lambda p: raw_file(p, {"w": w}, bytes(65)),
            "offsets backwards": lambda p: raw_file(p, {"w": {**w, "data_offsets": [64, 0]}}, bytes(64)),
            "offsets that do not fit": lambda p: raw_file(p, {"w": {**w, "data_offsets": [0, 60]}}, bytes(60)),
            "negative offset": lambda p: raw_file(p, {"w": {**w, "data_offsets": [-64, 0]}}, bytes(64)),
            "overlap": lambda p: raw_file(p, {"w": w, "v": {**w, "data_offsets": [32, 96]}}, bytes(96)),
            "hole": lambda p: raw_file(p, {"w": w, "v": {**w, "data_offsets": [96, 160]}}, bytes(160)),
            "negative dim": lambda p: raw_file(p, {"w": {**w, "shape": [-4, -4]}}, bytes(64)),
            "shape overflow": lambda p: raw_file(p, {"w": {**w, "shape": [1 << 32, 1 << 32]}}, bytes(64)),
            "unknown dtype": lambda p: raw_file(p, {"w": {**w, "dtype": "X9"}}, bytes(64)),
            "same name twice": lambda p: raw_file(p, b'{"w":%s,"w":%s}' % ((json.dumps(w).encode(),) * 2), bytes(64)),
            "deep json": lambda p: raw_file(p, b'{"w":' + b"[" * 100000 + b"]" * 100000 + b"}", bytes(64)),
        }
        with self.cluster(nodes=1) as c:
            good = self.path("good.yaml")
            with open(good, "w") as f:
                json.dump({**GOOD, "name": "good"}, f)
            c.ptcctl("job", "create", "-f", good)
            before, path, spec = self.everything(c), self.path("bad.safetensors"), self.path("from.yaml")
            with open(spec, "w") as f:
                json.dump({**GOOD, "name": "from", "tensors": {"from": "bad.safetensors"}}, f)
            for what, write in bad.items():
                write(path)
                with self.subTest(what):
                    self.refused(c, "import", "good", path, "--config", "tp=1", codes=(1, 2))
                    if what not in ("truncated data", "data after the end"): # a header alone is enough to describe a job
                        self.refused(c, "job", "create", "-f", spec, codes=(1, 2))
            for what, tensors in {"another shape": {"w": ("F32", (4, 5))}, "another dtype": {"w": ("I32", (4, 4))},
                                  "a missing tensor": {"v": ("F32", (4, 4))},
                                  "one too many": {"w": ("F32", (4, 4)), "x": ("F32", (1,))}}.items():
                s = states.State()
                for name, (dtype, shape) in tensors.items():
                    s.add(np.random.default_rng(1), name, dtype, shape)
                states.write_file(path, s.tensors["param"])
                with self.subTest(what):
                    self.refused(c, "import", "good", path, "--config", "tp=1", codes=(1, 2))
            self.assertEqual(before, self.everything(c))

    def test_import_of_files_that_change(self):
        """A checkpoint that its writer replaces, or goes on writing, after its header was read."""
        def replace(path):
            shutil.copyfile(path, path + ".new")
            os.replace(path + ".new", path)

        def write(path):
            with open(path, "r+b") as f:
                f.seek(-1, os.SEEK_END)
                f.write(b"?")

        def fifo(path):
            os.unlink(path)
            os.mkfifo(path)

        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (6, 4))
        with self.cluster(nodes=1, devices=1) as c:
            job = Job(c, "moving", s, self.path("job"), RULES)
            job.create()
            for change in (replace, write, fifo):
                s.write(job.dir)
                p = subprocess.Popen([harness.program("ptcctl"), *job.import_args("tp=1")], stderr=subprocess.PIPE, text=True,
                                     env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket, "PTC_FAULT": "import.read=stop"}))
                try:
                    wait_for(lambda: open(f"/proc/{p.pid}/stat").read().rpartition(")")[2].split()[0] == "T", 20 * PATIENCE, # noqa: B023
                             "the header read", 0.01)
                    change(job.files["param"])
                finally:
                    p.send_signal(signal.SIGCONT)
                _, said = p.communicate(timeout=60 * PATIENCE)
                self.assertEqual(1, p.returncode, said)
                self.assertRegex(said.strip().splitlines()[-1], r"^ptcctl import: .* was replaced or written to while it was read; .*$")
                self.assertFalse(job.wait_idle()["has_state"])
                os.unlink(job.files["param"])
            s.write(job.dir)
            c.ptcctl(*job.import_args("tp=1"))
            job.check_whole(self)

    def test_export_of_files_named_as_others(self):
        """A shard of the parameters that has the name of a field's file: neither may overwrite the other."""
        s = states.State({"exp_avg": "F32"})
        for name in ("v", "w"):
            s.add(np.random.default_rng(self.seed), name, "F32", (6, 4))
        with self.cluster(nodes=1, devices=1) as c:
            job = Job(c, "shards", s, self.path("job"), RULES)
            job.create()
            shards, out = self.path("shards"), self.path("out")
            os.mkdir(shards)
            files = {"v": "a.safetensors", "w": "exp_avg.safetensors"}
            for name, file in files.items():
                states.write_file(os.path.join(shards, file), {name: s.tensors["param"][name]})
            with open(os.path.join(shards, "model.safetensors.index.json"), "w") as f:
                json.dump({"metadata": {}, "weight_map": files}, f)
            c.ptcctl("import", "shards", shards, "--field", f"exp_avg={job.files['exp_avg']}", "--config", "tp=1")
            self.refused(c, "export", "shards", out + "/", contains='"exp_avg.safetensors" of the parameters has the name of another file')
            self.assertEqual([], os.listdir(out) if os.path.isdir(out) else [])
            index = os.path.join(shards, "model.safetensors.index.json")
            os.unlink(index)
            os.mkfifo(index)
            self.refused(c, "import", "shards", shards, contains="index.json: not a regular file", timeout_s=20 * PATIENCE)

    def test_import_after_refusals(self):
        """A refused import leaves nothing that hinders the next."""
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (4, 4))
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "again", s, self.path("job"), RULES)
            job.create()
            bad = self.path("cut.safetensors")
            with open(job.files["param"], "rb") as f, open(bad, "wb") as g:
                g.write(f.read()[:-1])
            self.refused(c, "import", "again", bad, "--config", "tp=2")
            c.ptcctl(*job.import_args("tp=2"))
            job.check_whole(self)
            self.refused(c, *job.import_args("tp=2")) # it has its state now
            job.check_whole(self)
            self.refused(c, "export", "again", "", codes=(2,), contains="argument 2 is empty")
            self.refused(c, "export", "again", "/dev/full", contains="/dev/full is not a directory, and a file")
            self.closed_streams(c, job)
            self.interrupted_resize(c, job)

    def closed_streams(self, c, job):
        """Output that nobody takes is an error, and never ends up in a socket or a file that got its number."""
        def run(*args, closed):
            return subprocess.run([harness.program("ptcctl"), *args], env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                                  timeout=30 * PATIENCE, preexec_fn=lambda: [os.close(fd) for fd in closed])

        r = run("nodes", closed=(1,))
        self.assertEqual((1, "ptcctl nodes: writing the output: Bad file descriptor\n"), (r.returncode, r.stderr))
        r = run("events", job.name, closed=(1,))
        self.assertEqual((1, "ptcctl events: writing the output: Bad file descriptor\n"), (r.returncode, r.stderr))
        self.assertEqual(1, run("nodes", closed=(0, 1, 2)).returncode)
        self.assertEqual(0, run("export", job.name, self.path("closed.safetensors"), closed=(0, 1, 2)).returncode)

    def interrupted_resize(self, c, job):
        """Who stops waiting is told that the resize does not stop with him."""
        pid = c.nodes["n0"].pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            p = subprocess.Popen([harness.program("ptcctl"), "resize", job.name, "--config", "tp=1", "--wait"], text=True,
                                 stderr=subprocess.PIPE, env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
            wait_for(lambda: int(next(line for line in open(f"/proc/{p.pid}/status") if line.startswith("SigCgt")).split()[1], 16)
                     & 1 << signal.SIGINT - 1, 20 * PATIENCE, "a handler", 0.01)
            p.send_signal(signal.SIGINT)
            _, said = p.communicate(timeout=20 * PATIENCE)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual((-signal.SIGINT, "\nptcctl: interrupted; work that the daemon has begun goes on (ptcctl status, ptcctl abort)\n"),
                         (p.returncode, said))
        job.wait_idle()
        job.check_whole(self)

    def test_daemon_configuration(self):
        with self.cluster(nodes=1, up=False) as c:
            node = c.nodes["n0"]

            def check(path):
                return subprocess.run([harness.program("ptcd"), "--config", path, "--check-config"],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      timeout=30 * PATIENCE, check=False)

            self.assertEqual(0, check(node.config).returncode, "positive control")
            good = c.config(node)
            for what, change in {"unknown key": {"memry": 1}, "no node": {"node": ""}, "node with ..": {"node": ".."},
                                 "devices": {"devices": -1}, "version": {"version": 99},
                                 "memory": {"memory": {"ceiling": "lots"}},
                                 "coordinator": {"coordinator": {"endpoints": []}}}.items():
                r = check(self.write_bad({**good, **change}))
                with self.subTest(what):
                    self.assertNotEqual(0, r.returncode, r.stdout + r.stderr)
                    self.assertEqual(1, len(r.stderr.strip().split("\n")), r.stderr)
            self.assertIn("memory", check(self.write_bad({**good, "memry": 1})).stderr, "suggests the nearest key")

    def write_bad(self, values):
        path = self.path("bad.yaml")
        with open(path, "w") as f:
            f.write(harness.clusters.yaml_map(values))
        return path


if __name__ == "__main__":
    unittest.main()
