# SPDX-License-Identifier: Apache-2.0
"""What integration tests share: a cluster in a private directory, faults, and proof that nothing is left.

    class Resize(harness.Case):
        def test_smoke(self):
            with self.cluster(nodes=2) as c: ...

Run one case as ctest does: tests/run MODULE Class.test_name (PTC_BUILD names the build directory).
"""
import base64
import contextlib
import functools
import glob
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "scripts", "lib"), os.path.join(ROOT, "client", "python")]
import cluster as clusters  # noqa: E402
from cluster import ClusterError, wait_for  # noqa: E402,F401

BUILD = os.path.abspath(os.environ.get("PTC_BUILD", os.path.join(ROOT, "build", "release")))
CAMPAIGN = bool(os.environ.get("PTC_TEST_CAMPAIGN"))
LONG = CAMPAIGN or bool(os.environ.get("PTC_TEST_LONG"))
SANITIZED = os.environ.get("PTC_SANITIZED", "") # by what: "address,undefined" or "thread"
NO_LEAKS = "detect_leaks=0"
PATIENCE = 3 # times every limit in seconds of a wait for something that is to happen: machines that build and test are busy
UNREAD = "has just started and is still reading the coordinator's keys; ask again"
SLOWED = 3 if SANITIZED else 1 # times what is asserted of a duration


def sanitizer_env():
    """What a program that is not sanitized itself needs to load our libraries that are. Its own leaks are not ours."""
    if "address" not in SANITIZED:
        return {}
    # libstdc++ as well: its exceptions, which PyTorch throws, go through libasan, which looks for them when it is loaded.
    runtimes = [subprocess.run(["cc", f"-print-file-name={library}"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
                for library in ("libasan.so", "libstdc++.so.6")]
    return {"LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": NO_LEAKS}


def measured_env(given=None):
    """For a ptcd whose memory a test measures, or with ASAN_OPTIONS `given` a rank. AddressSanitizer keeps what is freed, 256 MiB and 1 MiB a
    thread, and gives each thread 11 MiB of fake stack that fills as it runs. So a daemon that has 7034, 7036, 7037 KiB allocated
    after 5, 10 and 15 switches of the C trainer (__sanitizer_get_current_allocated_bytes) has 94, 137 and 175 MiB resident; 75, 91
    and 104 without the former, 56, 59 and 61 without both."""
    if not SANITIZED:
        return {}
    options = os.environ.get("ASAN_OPTIONS", "") if given is None else given
    for option in ("quarantine_size_mb=1", "thread_local_quarantine_size_kb=64", "detect_stack_use_after_return=0"):
        options = f"{options}:{option}".strip(":")
    return {"ASAN_OPTIONS": options}


def size(short, long, campaign):
    """Of a random campaign: how much of it CI runs, scripts/test --full (PTC_TEST_LONG), and --campaign (PTC_TEST_CAMPAIGN). Seeds are
    drawn anew each time, so what a small sample leaves out is in that of another day."""
    return campaign if CAMPAIGN else long if LONG else short


def replace_file(path, text=""):
    """Who reads the file meanwhile has its old text, or the new one, as a whole."""
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def binary(path):
    return os.path.join(BUILD, path)


def program(name):
    return clusters.program(BUILD, name)


class Case(unittest.TestCase):
    longMessage = True

    def setUp(self):
        drawn = os.environ.get("PTC_TEST_SEEDS")  # of the whole run: a test that is repeated in it draws the same
        self.seed = int(os.environ.get("PTC_TEST_SEED") or
                        random.Random(f"{drawn} {self.id()}" if drawn else None).randrange(1 << 32))
        self.random = random.Random(self.seed)
        print(f"seed {self.seed} (repeat with PTC_TEST_SEED={self.seed})", flush=True)
        self.dir = tempfile.mkdtemp(prefix="ptc-")
        os.chmod(self.dir, 0o755)
        self.addCleanup(shutil.rmtree, self.dir, True)

    def check_prompt(self, took, least=3):
        """Of answers, the seconds that each took: nine of ten within a second, all within five. A busy machine delays one now and
        then; an attacker, or memory that hangs, keeps all waiting until it goes."""
        took = sorted(took)
        self.assertGreaterEqual(len(took), least)
        print(f"{len(took)} answers, half within {took[len(took) // 2]:.3f} s, the slowest {took[-1]:.3f} s", flush=True)
        self.assertLess(took[(len(took) - 1) * 9 // 10], 1 * SLOWED)
        self.assertLess(took[-1], 5 * SLOWED)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    @contextlib.contextmanager
    def cluster(self, up=True, env=None, **options):
        """A running cluster. However the block ends, everything is stopped, and what was left behind fails the test. Its nodes are as
        machines of their own, with sockets between them; near=True: as daemons of one machine, which they are."""
        options.setdefault("build", BUILD)
        options.setdefault("near", options["build"] != BUILD)  # an older daemon does not know the key
        options.setdefault("transport", "unix")
        directory = tempfile.mkdtemp(prefix="c", dir=self.dir)
        os.chmod(directory, 0o755)
        c = clusters.Cluster.create(directory, **options)
        failed = True
        try:
            if up:
                c.up(env, timeout_s=60 * PATIENCE)
            yield c
            failed = False
        finally:
            if failed:
                self.show_logs(c)
            complaints = c.stop()
            crashed = sanitizer_reports(c) # after the end: leaks are reported by then
            complaints += c.down() + leftovers(c)
            wrong = "\n".join(complaints + crashed)  # whole: a sanitizer's report is longer than what assertEqual shows
            if wrong and not failed:
                self.fail(wrong)
            if wrong:
                print(wrong, file=sys.stderr)

    def arm(self, node, rule=""):
        """Rules of fault points for a daemon whose PTC_FAULT_FILE is `fault` in its directory: from now on, or from its start on."""
        replace_file(os.path.join(node.dir, "fault"), rule)

    def events(self, c, job, *kinds):
        """A job's events, of these kinds only if any are given."""
        lines = c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()
        return [e for e in map(json.loads, lines) if not kinds or e["kind"] in kinds]

    def wait_lost(self, c, node):
        wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == node).get("lost"), 60 * PATIENCE,
                 f"{node} counted as lost")

    def empty_and_restart(self, c, node):
        """A reboot of a machine whose chunks were in memory."""
        c.nodes[node].kill()
        shutil.rmtree(c.nodes[node].chunk_dir)
        c.restart(node)

    @staticmethod
    def etcd_pid(c):
        """Of a cluster whose etcd is a child of a daemon."""
        return next(pid for pid in c.processes() if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "etcd")

    @contextlib.contextmanager
    def unread(self, c, name):
        """In the block, that node's daemon has just been started and takes calls, and etcd, another one's child, does not list its keys."""
        node, etcd = c.nodes[name], self.etcd_pid(c)
        node.stop()
        c.start_node(node, {"PTC_FAULT": "etcd.node.after=stop"}) # before the first listing
        wait_for(lambda: clusters.stands(node.pid()), 60 * PATIENCE, "a daemon that has begun")
        os.kill(etcd, signal.SIGSTOP)
        try:
            wait_for(lambda: clusters.stands(etcd), 60 * PATIENCE, "etcd to stand")
            node.signal(signal.SIGCONT)
            yield
        finally:
            os.kill(etcd, signal.SIGCONT)

    @staticmethod
    def leases(c):
        """{node: the revision at which its key was made}: a node that loses its lease takes another, and its key is made anew. False: no
        answer."""
        out = c.etcdctl("get", "--prefix", "/ptc/nodes/", "-w", "json")
        return out.returncode == 0 and {base64.b64decode(kv["key"]).decode().rpartition("/")[2]: kv["create_revision"]
                                        for kv in json.loads(out.stdout).get("kvs", [])}

    @contextlib.contextmanager
    def keeps_leases(self, c, *nodes):
        """Their leases are kept through the block."""
        def made():
            return self.leases(c)

        before = wait_for(made, 60 * PATIENCE, "etcd's answer")
        self.assertLessEqual(set(nodes), set(before))
        yield
        after = wait_for(made, 60 * PATIENCE, "etcd's answer")
        self.assertEqual({n: before[n] for n in nodes}, {n: after.get(n) for n in nodes}, "a node has lost its lease")

    @staticmethod
    def show_logs(c):
        for p in [*c.nodes.values(), *c.members]:
            print(f"---- {p.log_file}\n{p.log_tail(30)}", file=sys.stderr)

    def refused(self, c, *args, codes=(1,), contains="", **kwargs):
        """ptcctl fails with one clear line, "ptcctl VERB: text", after at most lines of progress; returns the line."""
        r = c.ptcctl(*args, check=False, **kwargs)
        shown = f"ptcctl {' '.join(args)} -> exit {r.returncode}\nstdout: {r.stdout}\nstderr: {r.stderr}"
        self.assertIn(r.returncode, codes, shown)
        lines = r.stderr.strip().split("\n")
        self.assertEqual([len(lines) - 1], [i for i, line in enumerate(lines) if line.startswith("ptcctl")], shown)
        self.assertIn(contains.lower(), lines[-1].lower(), shown)
        self.assertEqual("", r.stdout.strip(), shown)
        return lines[-1]


def sanitizer_reports(c):
    """What sanitizers, and our own requirements, have said of daemons and of ranks."""
    found = []
    for path in (p for n in c.nodes.values() for p in (n.log_file, *glob.glob(os.path.join(n.dir, "run/workers/*/processes/*/log")))):
        with contextlib.suppress(OSError), open(path, errors="replace") as f:
            lines = f.readlines()
            for i, line in enumerate(lines):
                if "ERROR: " in line and "Sanitizer" in line: # with the first stacks, or nobody knows what it was
                    found.append(f"{os.path.relpath(path, c.dir)}: {''.join(lines[i:i + 60]).strip()}")
                elif "runtime error:" in line or "requirement failed" in line:
                    found.append(f"{os.path.relpath(path, c.dir)}: {line.strip()}")
    return found


def leftovers(c):
    """After down(): processes, sockets, shared memory and files of this cluster that are still there."""
    left = [f"process {pid} left" for pid in c.processes()]
    for path in (c.options["chunk_root"], *(n.dir for n in c.nodes.values())):
        if os.path.exists(path):
            left.append(f"{path} left")
    sockets = subprocess.run(["ss", "-Hlx"], stdout=subprocess.PIPE, text=True, check=True).stdout
    left += [f"socket left: {line}" for line in sockets.split("\n") if c.dir + "/" in line]
    ports = {*c.options["ports"].values(), c.options["etcd_port"]}
    listening = subprocess.run(["ss", "-Hltn"], stdout=subprocess.PIPE, text=True, check=True).stdout
    left += [f"port left: {line}" for line in listening.split("\n")
             if line.split() and int(line.split()[3].rpartition(":")[2]) in ports]
    return left


def skip_unless_root(test):
    return unittest.skipUnless(os.geteuid() == 0, "needs root, to become another user")(test)


def needs(*programs, modules=()):
    """Foreign readers and the like: a test that has none of them is skipped, and with PTC_TEST_LONG fails, so that a run of
    everything leaves nothing out that nobody notices."""
    missing = [p for p in programs if not shutil.which(p)] + [m for m in modules if not importlib.util.find_spec(m)]
    text = f"no {', '.join(missing)} here: scripts/install-deps --full; scripts/venv --torch"

    def decorate(test):
        @functools.wraps(test)
        def fails(self, *_):
            self.fail(text)
        return test if not missing else fails if LONG else unittest.skip(text)(test)
    return decorate


def labels(*names):
    """What ctest calls a case, or every case of a class, beside its module's labels; tests/CMakeLists.txt reads the line.
    "repeats": what other cases show, again at random, in bulk, at one more point or against the clock. CI runs half of these, drawn
    anew each time, and none with AddressSanitizer; scripts/test --full runs all, and with AddressSanitizer half. "threads": what TSan looks at in scripts/test --full.
    "gpu": what needs a device and its driver. "alone": what loads the whole machine itself and measures answers, so that no other
    test runs beside it."""
    if not set(names) <= {"alone", "gpu", "repeats", "threads"}:
        raise ValueError(f"no such label: {names}")
    return lambda case: case


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


# ---- a job through ptcctl -------------------------------------------------------------------------------------------


class Job:
    """A job made from a state.State; knows the commands. JSON is as docs/control.md describes it."""

    def __init__(self, c, name, state, directory, rules, gpus=None, more=None):
        self.c, self.name, self.state, self.dir = c, name, state, directory
        os.makedirs(directory, exist_ok=True)
        self.files = state.write(directory)
        self.yaml = os.path.join(directory, "job.yaml")
        spec = {"version": 1, "name": name, "tensors": {"from": os.path.basename(self.files["param"])},
                "fields": {f: {"dtype": d} for f, d in state.fields.items()}, "rules": rules, **(more or {})}
        if gpus:
            spec["gpus"] = gpus
        with open(self.yaml, "w") as f:
            json.dump(spec, f) # JSON is YAML

    def create(self, **kw):
        return self.c.ptcctl("job", "create", "-f", self.yaml, **kw)

    def import_args(self, config):
        args = ["import", self.name, self.files["param"]]
        for field in self.state.fields:
            args += ["--field", f"{field}={self.files[field]}"]
        return args if config is None else [*args, "--config", str(config)]

    def imported(self, config, **kw):
        self.create()
        kw.setdefault("timeout_s", 120 * PATIENCE)
        return self.c.ptcctl(*self.import_args(config), **kw)

    def resize(self, config, extra=(), **kw):
        kw.setdefault("timeout_s", 120 * PATIENCE)
        r = self.c.ptcctl("resize", self.name, "--config", str(config), *extra, "--wait", "--format", "json", **kw)
        return json.loads(r.stdout) if r.returncode == 0 else r

    def status(self, **kw):
        """The job's row of `ptcctl status`."""
        return self.c.json("status", self.name, **kw)["jobs"][0]

    def generation(self, **kw):
        return self.status(**kw)["generation"]

    def wait_idle(self, timeout_s=60, node="n0"):
        """Until no switch is in progress, as one daemon sees it. Returns the status."""
        def idle():
            try:
                s = self.status(node=node)
            except (ClusterError, subprocess.TimeoutExpired):
                return None
            return s if s["phase"] in ("idle", "empty") else None # the controller says which phase it is in

        return wait_for(idle, timeout_s * PATIENCE, f"job {self.name} idle", 0.1)

    def export(self, directory, ranks=False, **kw):
        """Exports everything below directory; returns {field: file}, or with ranks the directory of the rank files."""
        os.makedirs(directory, exist_ok=True)
        kw.setdefault("timeout_s", 120 * PATIENCE)
        if ranks:
            self.exported("--ranks", directory, **kw)
            return directory
        out = {"param": os.path.join(directory, "model.safetensors")}
        args = [out["param"]]
        for field in self.state.fields:
            out[field] = os.path.join(directory, f"{field}.safetensors")
            args += ["--field", f"{field}={out[field]}"]
        self.exported(*args, **kw)
        return out

    def exported(self, *args, **kw):
        said = json.loads(self.c.ptcctl("export", self.name, *args, "--format", "json", **kw).stdout)
        for f in said["files"]:
            if os.path.getsize(f["file"]) != f["bytes"]:
                raise AssertionError(f"{f['file']} has not the {f['bytes']} bytes that ptcctl says")
        if not said["files"] or said["job"] != self.name:
            raise AssertionError(f"ptcctl export says {said}")

    def check_whole(self, test, **kw):
        """The whole export has the input's bytes, header included."""
        directory = tempfile.mkdtemp(dir=self.dir)
        out = self.export(directory, **kw)
        for field, path in out.items():
            test.assertEqual(sha256(self.files[field]), sha256(path), f"export of {field} differs from the input")
        shutil.rmtree(directory)

    def check_ranks(self, test, config, rules, **kw):
        """Each rank's file equals what the oracle cuts out of the input."""
        import oracle
        directory = self.export(tempfile.mkdtemp(dir=self.dir), ranks=True, **kw)
        oracle.compare_rank_files(test, directory, self.state, config, rules)
        shutil.rmtree(directory)

    def delete(self, **kw):
        r = self.c.ptcctl("job", "delete", self.name, "--format", "json", **kw)
        if r.returncode == 0 and json.loads(r.stdout) != {"version": 1, "job": self.name, "deleted": True}:
            raise AssertionError(f"ptcctl job delete says {r.stdout}")
        return r
