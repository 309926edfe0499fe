# SPDX-License-Identifier: Apache-2.0
"""What scripts/quickstart shows, once everything is built. Every step is a ptcctl command that a person could type; they
are printed. Failure: the command, its message and the daemons' last log lines; the cluster is taken down in any case."""
import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
from cluster import ROOT, Cluster, ClusterError, end_on_signals, program, wait_for

JOB = "minilm"
FIRST = "tp=2,pp=2,dp=2"
SWITCHES = ["tp=4", "pp=2,dp=2,zero=1", "tp=2,dp=4,zero=1", "tp=4,pp=2", FIRST]
KILL_DURING = 2 # which switch loses a daemon half-way
FIELDS = {"exp_avg": "F32", "exp_avg_sq": "F32"}


def say(text):
    print(text, flush=True)


def read_header(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(n))


def make_field(path, header, seed):
    """A field as Adam has it: for each parameter, fp32 of its shape; random, so that no two cuts look alike."""
    rng, entries, offset = np.random.default_rng(seed), {}, 0
    for name, e in header.items():
        if name != "__metadata__":
            size = 4 * int(np.prod(e["shape"], dtype=np.int64))
            entries[name] = {"dtype": "F32", "shape": e["shape"], "data_offsets": [offset, offset + size]}
            offset += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for e in entries.values():
            count = (e["data_offsets"][1] - e["data_offsets"][0]) // 4
            f.write(rng.standard_normal(count, dtype=np.float32).tobytes())


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def mb(n):
    return f"{n / 1e6:.1f}"


class Show:
    def __init__(self, cluster, directory, model):
        self.c, self.dir = cluster, directory
        self.files = {"param": model}
        self.rows = []

    def ptcctl(self, *args, **kw):
        say(f"$ ptcctl {' '.join(args)}")
        return self.c.ptcctl(*args, **kw)

    def make_input(self):
        header = read_header(self.files["param"])
        for i, field in enumerate(FIELDS):
            self.files[field] = os.path.join(self.dir, f"{field}.safetensors")
            make_field(self.files[field], header, i + 1)
        for field, path in self.files.items():
            say(f"  {field}: {mb(os.path.getsize(path))} MB, sha256 {sha256(path)[:16]}…")
        with open(os.path.join(self.dir, "job.yaml"), "w") as f:
            f.write(f"version: 1\nname: {JOB}\ntensors: {{from: {json.dumps(self.files['param'])}}}\nfields:\n"
                    + "".join(f"  {n}: {{dtype: {d}}}\n" for n, d in FIELDS.items())
                    + "rules: bert\ngpus:\n  8: {tp: 2, pp: 2, dp: 2}\n  4: {tp: 4}\n")

    def field_args(self, files):
        return [a for f in FIELDS for a in ("--field", f"{f}={files[f]}")]

    def bring_in(self):
        say(self.ptcctl("job", "create", "-f", os.path.join(self.dir, "job.yaml")).stdout.rstrip())
        start = time.monotonic()
        self.ptcctl("import", JOB, self.files["param"], *self.field_args(self.files), "--config", FIRST)
        say(f"  imported in {time.monotonic() - start:.1f} s")

    def switch(self, number, config):
        """One live resize; in one of them a daemon is killed while it runs, and started again."""
        if number != KILL_DURING:
            r = self.ptcctl("resize", JOB, "--config", config, "--wait", "--format", "json")
            return self.note(json.loads(r.stdout), "")
        before = self.status()["generation"]
        argv = [program(self.c.options["build"], "ptcctl"), "resize", JOB, "--config", config, "--wait",
                "--format", "json"]
        say(f"$ {' '.join(['ptcctl', *argv[1:]])} &")
        client = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                                  env=self.c.environment({"PTC_SOCKET": self.c.nodes["n0"].socket}))
        time.sleep(0.15)
        say("$ kill -9 <ptcd of n2>; ptcd --config n2/ptcd.yaml &")
        self.c.nodes["n2"].kill()
        self.c.start_node(self.c.nodes["n2"])
        out, err = client.communicate(timeout=90)
        self.c.wait_nodes(["n2"])
        wait_for(lambda: self.status()["phase"] == "idle", 60, "the end of the switch")
        if client.returncode == 0:
            return self.note(json.loads(out), "n2 killed and back meanwhile")
        if self.status()["generation"] != before:
            raise ClusterError(f"the switch ended, but its client was told: {err.strip()}")
        say(f"  aborted, nothing lost: {err.strip()}; once more:")
        r = self.ptcctl("resize", JOB, "--config", config, "--wait", "--format", "json")
        return self.note(json.loads(r.stdout), "after an abort: n2 was killed")

    def status(self):
        return self.c.json("status", JOB)["jobs"][0]

    def note(self, s, remark):
        self.rows.append((s, remark))
        t = s["plan"]["totals"]
        say(f"  generation {s['generation']} in {s['seconds']:.2f} s, {mb(t['between_nodes'])} MB between nodes {remark}")

    def table(self):
        say("\nEach switch (MB; no placement of these configurations could send less than the bound between nodes;")
        say("≥ marks one that perhaps none reaches):")
        head = ("from", "to", "between", "bound", "within", "stays", "s", "digests")
        rows = []
        for s, _ in self.rows:
            t = s["plan"]["totals"]
            bound, exact = t["bound_any_mapping"], t["bound_exact"]
            rows.append((s["from"], s["to"], mb(t["between_nodes"]), "-" if bound < 0 else ("" if exact else "≥ ") + mb(bound),
                         mb(t["within_node"]), mb(t["in_place"]), f"{s['seconds']:.2f}", str(s["digests_verified"])))
        widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        for r in [head, *rows]:
            say("  " + "  ".join(v.ljust(w) if i < 2 else v.rjust(w) for i, (v, w) in enumerate(zip(r, widths))))
        say("\nTime per phase (ms):")
        for s, remark in self.rows:
            say(f"  -> {s['to']}: " + ", ".join(f"{p['phase']} {p['ms']:.0f}" for p in s["phases"])
                + (f"  ({remark})" if remark else ""))

    def bring_out(self):
        out = {f: os.path.join(self.dir, f"out-{f}.safetensors") for f in self.files}
        self.ptcctl("verify", JOB)
        self.ptcctl("export", JOB, out["param"], *self.field_args(out))
        same = True
        say("\nsha256 of input and export:")
        for field, path in self.files.items():
            a, b = sha256(path), sha256(out[field])
            same &= a == b
            say(f"  {a}  {os.path.basename(path)}\n  {b}  {os.path.basename(out[field])}  {'same' if a == b else 'DIFFERENT'}")
        if not same:
            raise ClusterError("the export differs from the input")


def main():
    end_on_signals()
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--transport", choices=("tls", "unix", "insecure"), default="tls")
    p.add_argument("--coordinator", choices=("local", "etcd-cluster"), default="local")
    p.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    args = p.parse_args()
    directory, start, cluster = tempfile.mkdtemp(prefix="ptc-quickstart-"), time.monotonic(), None
    try:
        cluster = Cluster.create(os.path.join(directory, "c"), nodes=4, devices=2, transport=args.transport, build=args.build,
                                 coordinator=args.coordinator, ceiling="1GiB", staging="128MiB")
        say(f"four ptcd with two devices each, {args.coordinator} etcd, {args.transport}:")
        cluster.up()
        show = Show(cluster, directory, args.model)
        say(show.ptcctl("nodes").stdout.rstrip())
        say("\nthe input, a sentence encoder with Adam-like fields beside it:")
        show.make_input()
        show.bring_in()
        for i, config in enumerate(SWITCHES):
            show.switch(i, config)
        show.table()
        show.bring_out()
        say(f"\nEvery byte is the same after {len(SWITCHES)} switches. {time.monotonic() - start:.0f} s in all.")
        return 0
    except (ClusterError, subprocess.TimeoutExpired, KeyError) as e:
        print(f"quickstart: {type(e).__name__ if isinstance(e, KeyError) else ''}{e}", file=sys.stderr)
        for node in cluster.nodes.values() if cluster else ():
            print(f"-- {node.name}\n{node.log_tail(10)}", file=sys.stderr)
        return 1
    finally:
        if cluster:
            for complaint in cluster.down():
                print(f"quickstart: {complaint}", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
