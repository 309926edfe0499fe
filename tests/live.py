# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks run tests/trainer.py, through ptcctl; and what its state must be after any step."""
import contextlib
import glob
import json
import os
import subprocess
import sys
import time

import harness
import numpy as np
from harness import PATIENCE, wait_for
from safetensors.numpy import load_file


def memory_kib(pid):
    """Memory of its own, which a page of a file or of shared memory is not."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:"))


def threads(pid):
    """Without those that run handlers: as many stay as calls have ever run at one time, which test_bounds bounds."""
    out = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/comm") as f:
            out += f.read().strip() != "ptc-rpc-call"
    return out


def usage(c, ranks, of=sum):
    """What a switch must leave as it was; of daemons and of ranks (pids) the sum, or max."""
    out = {}
    for kind, pids in (("ptcd", [n.pid() for n in c.nodes.values()]), ("rank", list(ranks))):
        out[f"{kind} KiB"] = of(map(memory_kib, pids))
        out[f"{kind} fds"] = of(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        out[f"{kind} threads"] = of(threads(pid) for pid in pids)
    out["processes"] = len(c.processes())
    out["shm"] = sum(len(files) for _, _, files in os.walk(c.options["chunk_root"]))
    return out


def least(look):
    """Of what look() counts, the least of five looks. Calls that have just ended are no leak, and nobody tells when their threads and
    descriptors are gone: hence by the clock. None of a look: something ended meanwhile, and it does not count."""
    rows = [look()]
    while len(rows) < 5:
        time.sleep(0.2)
        rows.append(look())
    rows = [row for row in rows if row is not None]
    return {k: min(row[k] for row in rows) for k in rows[0]}


def database(c):
    """etcd's file, what of it is in use, and its revision."""
    s = json.loads(c.etcdctl("endpoint", "status", "-w", "json").stdout)[0]["Status"]
    return s["dbSize"], s["dbSizeInUse"], s["header"]["revision"]


def layer(rows, l, step, sign=1):
    """A layer after some step, as trainer.py says it is."""
    i, j = np.meshgrid(np.arange(rows), np.arange(6), indexing="ij")
    return sign * (1000.0 * l + 10.0 * i + j + step)


class Job:
    patience = 120 * PATIENCE # seconds that a switch may take

    def __init__(self, c, directory, name="live", mode="restart", rows=13, layers=4, gpus=None, run=None, grace="30s",
                 env=None, build_timeout=None, **options):
        self.c, self.name, self.dir, self.rows, self.layers = c, name, directory, rows, layers
        self.logs = os.path.join(directory, "steps")
        self.apart = {"amax", "amax.rows"} if "amax" in options else set()  # tensors of which each rank has its own
        os.makedirs(self.logs, exist_ok=True)
        os.chmod(self.logs, 0o777)
        argv = [sys.executable, "-B", os.path.join(harness.ROOT, "tests", "trainer.py"), "--rows", str(rows), "--layers",
                str(layers), "--log", self.logs]
        for key, value in options.items():
            argv += [f"--{key.replace('_', '-')}", str(value)]
        env = {"PYTHONPATH": os.path.join(harness.ROOT, "client", "python"),
               "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1"), "PYTHONDONTWRITEBYTECODE": "1",
               **harness.sanitizer_env(), **(env or {})}
        spec = {"version": 1, "name": name, "mode": mode, "run": {"argv": argv, "env": env, "grace": grace}, **(run or {})}
        if build_timeout:
            spec["run"]["build_timeout"] = build_timeout
        if gpus:
            spec["gpus"] = gpus
        if spec.get("build") == "ahead": # such ranks yield to all else that computes: beside five other tests they take minutes
            self.patience = 900
        self.yaml = os.path.join(directory, f"{name}.yaml")
        with open(self.yaml, "w") as f:
            json.dump(spec, f)  # JSON is YAML

    def run(self, config, nodes=None, **kw):
        kw.setdefault("timeout_s", 120 * PATIENCE)
        return self.c.ptcctl("run", "-f", self.yaml, "--config", str(config), "--wait", *(["--nodes", nodes] if nodes else []), **kw)

    def resize(self, config, nodes=None, **kw):
        kw.setdefault("timeout_s", self.patience)
        r = self.c.ptcctl("resize", self.name, "--config", str(config), "--wait", "--format", "json",
                          *(["--nodes", nodes] if nodes else []), **kw)
        return json.loads(r.stdout) if r.returncode == 0 else r

    def do(self, verb, **kw):
        kw.setdefault("timeout_s", 120 * PATIENCE)
        return self.c.ptcctl(verb, self.name, *(["--wait"] if verb == "snapshot" else []), **kw)

    @contextlib.contextmanager
    def hold(self, what):
        """New processes wait before they ask for their first generation ("start"), or ranks as they build one ("build"), or once they
        have declared without memory ("place")."""
        path = os.path.join(self.logs, f"hold-{what}")
        open(path, "w").close()
        try:
            yield
        finally:
            os.unlink(path)

    def let_go(self, rank=None):
        """Ranks, or one of them, that wait behind --hold-at."""
        open(os.path.join(self.logs, "go" if rank is None else f"go-{rank}"), "w").close()

    def status(self, **kw):
        return self.c.json("status", self.name, **kw)["jobs"][0]

    def step(self):
        return self.status()["run"].get("step", -1)

    def wait_step(self, step, timeout_s=60):
        return wait_for(lambda: self.step() >= step or None, timeout_s * PATIENCE, f"step {step}", 0.05)

    def wait_run(self, state, timeout_s=60):
        return wait_for(lambda: (lambda s: s if s["run"]["state"] == state and s["phase"] == "idle" else None)(self.status()),
                        timeout_s * PATIENCE, f"job {state}", 0.05)

    def expected(self, step):
        """{field: {name: array}} after `step` steps."""
        tensors = {f"layer.{l}.weight": layer(self.rows, l, step) for l in range(self.layers)}
        fields = {f"layer.{l}.weight": layer(self.rows, l, step, -1) for l in range(self.layers)}
        return {"param": {**tensors, "steps": np.array(step, dtype=np.int64)}, "m": fields}

    def check_state(self, case, step, directory, snapshot=None):
        """What is committed, or the snapshot that is kept, is the state after exactly `step` steps, every byte."""
        os.makedirs(directory, exist_ok=True)
        model = os.path.join(directory, "model.safetensors")
        which = [] if snapshot is None else ["--snapshot", snapshot]
        self.c.ptcctl("export", self.name, model, *which, timeout_s=60 * PATIENCE)
        found = {name: array for name, array in load_file(model).items() if name not in self.apart}
        want = self.expected(step)
        flat = {**want["param"], **{f"{n}:m": a for n, a in want["m"].items()}}
        case.assertEqual(sorted(flat), sorted(found))
        for name, array in flat.items():
            case.assertEqual(array.dtype, found[name].dtype, name)
            case.assertEqual(array.tobytes(), found[name].tobytes(), f"{name} at step {step}")

    def amax_logged(self):
        """[{generation, incarnation, rank, what, step, world, amax, first, rows}] as ranks wrote them."""
        out = []
        for path in glob.glob(os.path.join(self.logs, "*.amax")):
            g, l, r = (int(part[1:]) for part in os.path.basename(path)[:-5].split("-"))
            with open(path) as f:
                for line in f:
                    row = {"generation": g, "incarnation": l, "rank": r, **json.loads(line)}
                    row["amax"] = np.frombuffer(bytes.fromhex(row["amax"]), "<f4")
                    row["rows"] = np.frombuffer(bytes.fromhex(row["rows"]), "<f2")
                    out.append(row)
        return out

    def greatest(self, step, generation, incarnation=None):
        """(amax, rows): of what ranks had as they stopped at a step for the last time before this generation."""
        stopped = [row for row in self.amax_logged() if row["what"] == "stopped" and row["step"] == step and
                   row["generation"] <= generation and (row["generation"], row["incarnation"]) != (generation, incarnation)]
        last = max(row["generation"] for row in stopped)
        stopped = [row for row in stopped if row["generation"] == last]
        assert {row["rank"] for row in stopped} == set(range(stopped[0]["world"])), stopped
        rows = np.full(self.rows, -np.inf, "<f2")
        for row in stopped:
            part = rows[row["first"]:row["first"] + row["rows"].size]
            np.maximum(part, row["rows"], out=part)
        return np.maximum.reduce([row["amax"] for row in stopped]), rows

    def check_amax(self, case):
        """Each rank began with the greatest of what the ranks before it had stopped with. How many did."""
        restored = [row for row in self.amax_logged() if row["what"] == "restored"]
        for row in restored:
            amax, rows = self.greatest(row["step"], row["generation"], row["incarnation"])
            what = {k: row[k] for k in ("generation", "incarnation", "rank", "step")}
            np.testing.assert_array_equal(row["amax"], amax, str(what))
            np.testing.assert_array_equal(row["rows"], rows[row["first"]:row["first"] + row["rows"].size], str(what))
            case.assertEqual(not np.isnan(amax[5]), np.signbit(row["amax"][4]), "rank 0 has -0, rank 1 and others 0")
        return len(restored)

    def follow_logs(self, out, node="n0"):
        """A ptcctl that writes what every rank logs to a file, until the job has ended."""
        argv = [harness.program("ptcctl"), "logs", self.name, "--rank", "all", "--follow"]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out,
                                env=self.c.environment({"PTC_SOCKET": self.c.nodes[node].socket}))

    def processes(self):
        """Ids of the ranks that run."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as f:
                    if entry.isdigit() and self.logs.encode() in f.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
        return found

    def steps_logged(self):
        """{(generation, incarnation, rank): [step]} of all ranks so far."""
        out = {}
        for path in glob.glob(os.path.join(self.logs, "*.jsonl")):
            g, l, r = os.path.basename(path)[:-6].split("-")
            with open(path) as f:
                out[int(g[1:]), int(l[1:]), int(r[1:])] = [json.loads(line)["step"] for line in f if line.endswith("\n")]
        return out
