# SPDX-License-Identifier: Apache-2.0
"""A ptc cluster on this machine: used by scripts/local-cluster and by the tests (tests/harness.py).

Happy path: Cluster.create() writes a directory (certificates, a configuration per node, cluster.json), up() starts
etcd members and daemons and waits until every node is listed, down() stops them and removes what was made.
Every process started carries PTC_LOCAL_CLUSTER=<id> in its environment or runs inside the directory (ptcd gives etcd a
clean environment), so that down() finds exactly its own, whatever crashed before.
Failure modes: ClusterError with one line for a person; up() that fails leaves the directory for a look, down() cleans.
Standard library only.
"""
import contextlib
import glob
import json
import os
import random
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MARK = "PTC_LOCAL_CLUSTER"
MEMBER = "ptc-node" # the DNS name in certificates of nodes: tls.member, in make-test-ca and ptcd by default
SOCKET_PATH_MAX = 107
HELPERS = ("ptc-exec",) # beside each rank


class ClusterError(Exception):
    pass


def end_on_signals():
    """From here on SIGTERM and SIGHUP end the program as an exception does, so that what it started is taken down."""
    def end(number, _frame):
        for s in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN) # once: a second one must not end the taking down
        raise SystemExit(128 + number)
    for s in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, end)


_drawn = []  # sockets, open while this process lives


def free_port():
    """A TCP port of 127.0.0.1 nobody listens on, below the range outgoing connections are given. Nobody else draws it while this
    process lives, whether it is listened on or not: the UDP port of the number, which nothing here uses, is held for it."""
    for _ in range(1000):
        port = random.randint(20000, 32000)
        held = socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.closing(socket.socket()) as s:
            try:
                held.bind(("127.0.0.1", port))
                s.bind(("127.0.0.1", port))
            except OSError:
                held.close()
                continue
        _drawn.append(held)
        return port
    raise ClusterError("no free port on 127.0.0.1 between 20000 and 32000")


def stat_fields(pid):
    """The fields of /proc/PID/stat behind the name; None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()
    except OSError:
        return None


def is_dying(pid):
    """Whether its first thread has ended. A killed process has its sockets until the last one has, which may take long on a busy machine
    where that thread has a low priority (daemon/scrub/scrubber.c)."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] in (b"Z", b"X")


def start_time(pid):
    """Clock ticks since boot at which the process started; None when it is gone, or a zombie without further threads."""
    fields = stat_fields(pid)
    if fields is None or fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


def stands(pid):
    """Whether no thread of the process runs any more, nor will before SIGCONT."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/stat", "rb") as f:
            if f.read().rpartition(b")")[2].split()[0] not in b"TtXZ":
                return False
    return True


def processes_of(mark, directory):
    """Ids of the processes whose environment holds `mark` ("NAME=value"), that run inside the directory, or that are ranks of
    a daemon there."""
    found, rank_of = [], f"PTC_WORKER_SOCKET={directory}/".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as f:
                environment = f.read().split(b"\0")
            ours = mark.encode() in environment or any(e.startswith(rank_of) for e in environment)
            ours = ours or os.readlink(f"/proc/{entry}/cwd").startswith(directory + "/")
        except OSError:
            continue
        if ours and start_time(int(entry)) is not None:
            found.append(int(entry))
    return found


def command(pid):
    """What a process was started as, as far as it is still there."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def is_program(said, names):
    """Whether what command() says of a process is a program of one of these names."""
    return os.path.basename(said.split(" ")[0]).startswith(names)


def children(pid):
    """{id: start time} of a process's children."""
    found = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(entry)}/stat", "rb") as f:
            if int(f.read().rpartition(b")")[2].split()[1]) == pid and (began := start_time(int(entry))) is not None:
                found[int(entry)] = began
    return found


def cgroup_parent():
    """Our own cgroup's directory in the v2 hierarchy, below which daemons make those of ranks; None if there is none."""
    with open("/proc/self/cgroup") as f:
        own = next((line.strip()[3:] for line in f if line.startswith("0::/")), None)
    with open("/proc/self/mountinfo") as f:
        mounts = [line.split() for line in f if " - cgroup2 " in line]
    for fields in mounts if own else []:
        root, mount = fields[3], fields[4]
        if root == "/" or own.startswith(root):
            return mount + (own if root == "/" else own[len(root):]).rstrip("/")
    return None


def cgroups_of(jobs):
    """Directories of the cgroups of these jobs' ranks that are there."""
    parent = cgroup_parent()
    return sorted(path for job in jobs for path in glob.glob(f"{parent}/ptc-{job}-*")) if parent else []


def answers(port):
    """Does somebody listen there?"""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_for(condition, timeout_s, what, every_s=0.05):
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise ClusterError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


def program(build, name):
    """Path of ptcd or ptcctl in a build directory, or where they were installed."""
    places = {"ptcd": ("daemon", "sbin"), "ptcctl": ("client", "client/ctl", "bin")}[name]
    paths = [os.path.join(build, place, name) for place in places]
    found = next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)
    if not found:
        raise ClusterError(f"{paths[0]} is not built")
    return found


class Process:
    """A process remembered by id and start time in a file, so that another run of us can find and stop it."""

    def __init__(self, pid_file, log_file):
        self.pid_file, self.log_file = pid_file, log_file
        self.popen = None

    def start(self, argv, env, cwd, prefix=()):
        if self.pid():
            raise ClusterError(f"{argv[0]} is running already (process {self.pid()})")
        with open(self.log_file, "ab") as log:
            self.popen = subprocess.Popen([*prefix, *argv], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=log, start_new_session=True)
        with open(self.pid_file, "w") as f:
            f.write(f"{self.popen.pid} {start_time(self.popen.pid)}\n")

    def pid(self):
        """Its id while it runs, else None."""
        if self.popen is not None:
            return None if self.popen.poll() is not None else self.popen.pid
        try:
            with open(self.pid_file) as f:
                pid, started = f.read().split()
        except (OSError, ValueError):
            return None
        return int(pid) if str(start_time(int(pid))) == started else None

    def signal(self, number):
        pid = self.pid()
        if pid:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(pid, number)
                if number == signal.SIGSTOP: # one thread takes the signal and stops the others, once it has a CPU: until then they run
                    wait_for(lambda: stands(pid), 10, f"process {pid} to stop", 0.005)

    def wait_gone(self, timeout_s):
        wait_for(lambda: not self.pid(), timeout_s, f"the end of the process of {self.pid_file}")

    def stop(self, timeout_s=15):
        """SIGTERM, and after timeout_s SIGKILL. True: it ended by itself."""
        self.signal(signal.SIGTERM)
        try:
            self.wait_gone(timeout_s)
            return True
        except ClusterError:
            self.signal(signal.SIGKILL)
            self.wait_gone(5)
            return False

    def log_tail(self, lines=5):
        try:
            with open(self.log_file, errors="replace") as f:
                return "".join(f.readlines()[-lines:]).rstrip()
        except OSError:
            return ""


class Node(Process):
    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.dir = os.path.join(cluster.dir, name)
        self.config = os.path.join(self.dir, "ptcd.yaml")
        self.socket = os.path.join(self.dir, "run", "control.sock")
        self.chunk_dir = os.path.join(cluster.options["chunk_root"], name)
        self.build = None # runs the cluster's; else this one, as after an upgrade of this node alone
        self.run_in = () # what brings its programs to where they are to run, e.g. a network namespace
        super().__init__(os.path.join(self.dir, "ptcd.pid"), os.path.join(self.dir, "ptcd.log"))

    def run(self, env=None, prefix=()):
        """Starts ptcd; does not wait until it serves."""
        argv = [program(self.build or self.cluster.options["build"], "ptcd"), "--config", self.config]
        if self.cluster.options["transport"] == "insecure":
            argv.append("--insecure-loopback")
        self.start(argv, self.cluster.environment(env), self.dir,
                   (*self.cluster.options.get("run_by", ()), *self.run_in, *prefix))

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait_gone(10)


def yaml_scalar(value):
    return json.dumps(value) # every JSON value is YAML


def yaml_map(values, indent=""):
    out = ""
    for key, value in values.items():
        if isinstance(value, dict):
            out += f"{indent}{key}:\n" + yaml_map(value, indent + "  ")
        else:
            out += f"{indent}{key}: {yaml_scalar(value)}\n"
    return out


DEFAULTS = {"nodes": 4, "devices": 2, "coordinator": "local", "transport": "tls", "ceiling": "1GiB", "staging": "64MiB", "spare": "0B",
            "store": "tmpfs", "build": os.path.join(ROOT, "build", "release")}


class Cluster:
    def __init__(self, directory):
        """Opens a cluster made by create()."""
        self.dir = os.path.abspath(directory)
        try:
            with open(os.path.join(self.dir, "cluster.json")) as f:
                self.options = json.load(f)
        except FileNotFoundError:
            raise ClusterError(f"{directory}: no cluster here (no cluster.json)") from None
        self.nodes = {name: Node(self, name) for name in self.options["names"]}
        self.members = [Process(os.path.join(self.dir, m["name"], "etcd.pid"), os.path.join(self.dir, m["name"], "etcd.log"))
                        for m in self.options["members"]]
        self.helpers_killed = False

    # ---- making one ---------------------------------------------------------

    @classmethod
    def create(cls, directory, **options):
        """Writes everything a cluster needs; starts nothing. Options: see DEFAULTS; store is "tmpfs", "disk" (inside
        the directory) or a directory; run_by is what our programs are run by, e.g. another root file system's chroot; hosts has
        the addresses of nodes that are not at 127.0.0.1."""
        o = {**DEFAULTS, **options}
        directory = os.path.abspath(directory)
        if os.path.exists(os.path.join(directory, "cluster.json")):
            raise ClusterError(f"{directory}: there is a cluster already; take it down first")
        if o["transport"] not in ("tls", "unix", "insecure") or o["coordinator"] not in ("local", "etcd-cluster"):
            raise ClusterError("transport is tls, unix or insecure; coordinator is local or etcd-cluster")
        if o["coordinator"] == "etcd-cluster" and o["transport"] == "unix":
            raise ClusterError("an etcd cluster needs transport tls or insecure")
        for name in ("ptcd", "ptcctl"):
            program(o["build"], name)
        names = [f"n{i}" for i in range(int(o["nodes"]))]
        if not names:
            raise ClusterError(f"{o['nodes']} nodes: at least 1 is needed")
        if len(os.path.join(directory, names[-1], "run", "control.sock.lock")) > SOCKET_PATH_MAX:
            raise ClusterError(f"{directory}: too long for unix sockets inside it; choose a shorter directory")
        o.update(id=secrets.token_hex(6), names=names, build=os.path.abspath(o["build"]))
        o["chunk_root"] = cls._chunk_root(directory, o)
        ports = [free_port() for _ in range(len(names) + 7)]
        o["ports"] = dict(zip(names, ports))
        o["etcd_port"] = ports[len(names)]
        o["members"] = [{"name": f"etcd{i}", "client": ports[-1 - 2 * i], "peer": ports[-2 - 2 * i]}
                        for i in range(3)] if o["coordinator"] == "etcd-cluster" else []
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, "cluster.json"), "w") as f:
            json.dump(o, f, indent=1)
        cluster = cls(directory)
        try:
            cluster._write()
        except BaseException:
            cluster.down()
            raise
        return cluster

    @staticmethod
    def _chunk_root(directory, o):
        if o["store"] == "disk":
            return os.path.join(directory, "chunks")
        parent = "/dev/shm" if o["store"] == "tmpfs" else os.path.abspath(o["store"])
        if not os.path.isdir(parent):
            raise ClusterError(f"{parent}: no such directory")
        return os.path.join(parent, f"ptc-local-{o['id']}")

    def _write(self):
        if self.options["transport"] == "tls":
            subprocess.run([os.path.join(ROOT, "deploy", "make-test-ca"), os.path.join(self.dir, "ca"), "--nodes",
                            ",".join([*self.nodes, *[m["name"] for m in self.options["members"]]]), "--admin", "admin",
                            "--stranger", "stranger"],
                           check=True, stdin=subprocess.DEVNULL)
        os.makedirs(self.options["chunk_root"], mode=0o755, exist_ok=True)
        for m in self.options["members"]:
            os.makedirs(os.path.join(self.dir, m["name"]), mode=0o700)
        for node in self.nodes.values():
            os.makedirs(os.path.join(node.dir, "run"))
            self.write_config(node)

    def tls(self, name):
        return {k: os.path.join(self.dir, "ca", f) for k, f in
                (("ca", "ca.crt"), ("cert", f"{name}.crt"), ("key", f"{name}.key"))}

    def etcd_socket(self):
        """The unix socket of n0's etcd: the one in its data directory that is not for etcd's own peers."""
        data = os.path.join(self.dir, "n0", "etcd")
        found = []
        with contextlib.suppress(FileNotFoundError):
            found = [e.path for e in os.scandir(data) if stat.S_ISSOCK(e.stat(follow_symlinks=False).st_mode)]
        return next((p for p in sorted(found) if "peer" not in os.path.basename(p)), None)

    def host(self, name):
        return self.options.get("hosts", {}).get(name, "127.0.0.1")

    def endpoints(self):
        """What coordinator.endpoints lists, for nodes that do not run etcd themselves."""
        if self.options["members"]:
            return [f"127.0.0.1:{m['client']}" for m in self.options["members"]]
        if self.options["transport"] == "unix":
            return [f"unix:{self.etcd_socket() or os.path.join(self.dir, 'n0', 'etcd', 'client.sock:0')}"]
        return [f"{self.host('n0')}:{self.options['etcd_port']}"]

    def config(self, node):
        """The configuration of a node as a dict; tests change it and write it with write_config."""
        o, transport = self.options, self.options["transport"]
        address = f"unix:{node.dir}/run/peer/peer.sock" if transport == "unix" else f"{self.host(node.name)}:{o['ports'][node.name]}"
        c = {"version": 1, "node": node.name, "state_dir": f"{node.dir}/state", "chunk_dir": node.chunk_dir,
             "run_dir": f"{node.dir}/run", "control_socket": node.socket, "listen": address, "advertise": address,
             "devices": int(o["devices"]), "memory": {"ceiling": o["ceiling"], "staging": o["staging"], "spare": o["spare"]}}
        if not o.get("near", not o.get("hosts")): # nodes with addresses of their own play machines of their own
            c["near"] = "no"
        if "lease_ttl" in o:
            c["lease_ttl"] = o["lease_ttl"]
        for key in ("stall_after", "copy_timeout", "node_lost_after", "node_quarantine", "cut_off_after"):
            if key in o:
                c[key] = o[key]
        if node.name in o.get("fuse", {}):
            c["fuse"] = o["fuse"][node.name]
        if node.name in o.get("racks", {}):
            c["rack"] = o["racks"][node.name]
        if node.name in o.get("ceilings", {}):
            c["memory"]["ceiling"] = o["ceilings"][node.name]
        if "work" in o:
            c["memory"]["work"] = o["work"]
        for key in ("quota", "scrub", "sources", "copies", "health"):
            if key in o:
                c[key] = o[key]
        tls = {"tls": self.tls(node.name)} if transport == "tls" else {}
        c.update(tls)
        if node.name == "n0" and o["coordinator"] == "local":
            url = {"tls": f"https://{self.host('n0')}:{o['etcd_port']}", "unix": "unix",
                   "insecure": f"http://127.0.0.1:{o['etcd_port']}"}[transport]
            c["coordinator"] = "local"
            c["local_coordinator"] = {"data_dir": f"{node.dir}/etcd", "listen": url}
        else:
            c["coordinator"] = {"endpoints": self.endpoints(), **tls}
            if tls:
                c["coordinator"]["stranger"] = {k: self.tls("stranger")[k] for k in ("cert", "key")}
        return c

    def write_config(self, node, **changes):
        if self.options["transport"] == "unix":
            os.makedirs(f"{node.dir}/run/peer", mode=0o700, exist_ok=True)
        with open(node.config, "w") as f:
            f.write(f"# written by scripts/lib/cluster.py\n{yaml_map({**self.config(node), **changes})}")

    # ---- running it ---------------------------------------------------------

    def environment(self, extra=None):
        return {**os.environ, MARK: self.options["id"], **(extra or {})}

    def _start_member(self, i, without=()):
        m, scheme = self.options["members"][i], "https" if self.options["transport"] == "tls" else "http"
        d = os.path.join(self.dir, m["name"])
        argv = ["etcd", "--name", m["name"], "--data-dir", os.path.join(d, "data"), "--log-outputs", "stderr", "--logger",
                "zap", "--log-level", "warn", "--enable-grpc-gateway=false", "--initial-cluster-state", "new",
                "--initial-cluster-token", self.options["id"],
                "--initial-cluster", ",".join(f"{x['name']}={scheme}://127.0.0.1:{x['peer']}"
                                              for x in self.options["members"])]
        for flag, port in (("client-urls", m["client"]), ("peer-urls", m["peer"])):
            argv += [f"--listen-{flag}", f"{scheme}://127.0.0.1:{port}",
                     "--advertise-" + flag if flag == "client-urls" else "--initial-advertise-" + flag,
                     f"{scheme}://127.0.0.1:{port}"]
        if scheme == "https":
            t = self.tls(m["name"])
            argv += [flag for flag in (
                "--client-cert-auth", f"--trusted-ca-file={t['ca']}", f"--cert-file={t['cert']}", f"--key-file={t['key']}",
                f"--client-cert-allowed-hostname={MEMBER}", "--peer-client-cert-auth", f"--peer-trusted-ca-file={t['ca']}",
                f"--peer-cert-file={t['cert']}", f"--peer-key-file={t['key']}", f"--peer-cert-allowed-hostname={MEMBER}")
                if flag.partition("=")[0] not in without]
        self.members[i].start(argv, self.environment(), d)

    def etcd_urls(self):
        """The endpoints as etcdctl wants them."""
        scheme = "https://" if self.options["transport"] == "tls" else "http://"
        return [e.replace("unix:", "unix://") if e.startswith("unix:") else scheme + e for e in self.endpoints()]

    def etcdctl(self, *args, timeout_s=10, given=""):
        """Runs etcdctl, given that on its standard input, against the cluster's etcd with n0's (or etcd0's) certificate; returns the
        completed process."""
        argv = [*self.nodes["n0"].run_in, "etcdctl", "--endpoints", ",".join(self.etcd_urls())]
        if self.options["transport"] == "tls":
            t = self.tls("n0")
            argv += ["--cacert", t["ca"], "--cert", t["cert"], "--key", t["key"]]
        env = {**self.environment(), "ETCDCTL_API": "3"}
        return subprocess.run([*argv, *args], env=env, input=given, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=timeout_s, check=False)

    def restart_member(self, i, without=()):
        """A member of the etcd cluster again, without some of its flags."""
        self.members[i].stop()
        self._start_member(i, without)
        port = self.options["members"][i]["client"]
        wait_for(lambda: answers(port), 30, f"etcd{i} to listen", 0.1)

    def start_members(self):
        for i in range(len(self.members)):
            self._start_member(i)
        if self.members:
            wait_for(lambda: self.etcdctl("endpoint", "health").returncode == 0, 30, "a healthy etcd cluster", 0.2)

    def start_node(self, node, env=None, prefix=()):
        """Starts one node's daemon. In unix mode the others learn n0's etcd socket here."""
        if self.options["transport"] == "unix" and node.name != "n0" and not self.members:
            wait_for(lambda: self.etcd_socket() or not self.nodes["n0"].pid(), 20, "the etcd socket of n0")
            self.write_config(node)
        node.run(env, prefix)

    def up(self, env=None, timeout_s=60, in_turn=False):
        """Starts everything and waits until every node is listed as up. env: NODE -> extra environment. in_turn: each
        node joins after the one before, so that listings have them in the order of their names."""
        self.start_members()
        for i, node in enumerate(self.nodes.values(), 1):
            self.start_node(node, (env or {}).get(node.name))
            if in_turn:
                self.wait_nodes(list(self.nodes)[:i], timeout_s)
        self.wait_nodes(list(self.nodes), timeout_s)

    def ptcctl(self, *args, node="n0", check=True, timeout_s=120, env=None, prefix=(), **kwargs):
        """Runs ptcctl against one node's daemon. check: ClusterError with its message when it fails."""
        argv = [*self.options.get("run_by", ()), *prefix, program(self.options["build"], "ptcctl"), *args]
        kwargs.setdefault("stderr", subprocess.PIPE)
        r = subprocess.run(argv, env=self.environment({"PTC_SOCKET": self.nodes[node].socket, **(env or {})}),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False,
                           **kwargs)
        if check and r.returncode:
            raise ClusterError(f"ptcctl {' '.join(args)}: exit {r.returncode}: {(r.stderr or '').strip()}")
        return r

    def json(self, *args, **kwargs):
        return json.loads(self.ptcctl(*args, "--format", "json", **kwargs).stdout)

    def nodes_up(self, node="n0"):
        """Names of the nodes that `ptcctl nodes` lists as up, as seen by one node's daemon; None while it does not answer."""
        r = self.ptcctl("nodes", "--format", "json", node=node, check=False, timeout_s=30)
        if r.returncode:
            return None
        return {n["node"] for n in json.loads(r.stdout)["nodes"] if n["state"] != "down"}

    def wait_nodes(self, names, timeout_s=60, node=None):
        node = node or names[0]

        def listed():
            dead = [n for n in names if not self.nodes[n].pid()]
            if dead:
                raise ClusterError(f"ptcd of {dead[0]} ended: {self.nodes[dead[0]].log_tail()}")
            return set(names) <= (self.nodes_up(node) or set())

        wait_for(listed, timeout_s, f"nodes {' '.join(names)} up (logs: {self.dir}/*/ptcd.log)", 0.1)

    def restart(self, name, env=None, timeout_s=60, prefix=()):
        """Stops the daemon if it runs, starts it, waits until it is listed."""
        node = self.nodes[name]
        node.stop()
        self.start_node(node, env, prefix)
        self.wait_nodes([name], timeout_s)

    # ---- losing machines ----------------------------------------------------

    def machine(self, name):
        """Ids of every process of a node: ptcd, its ranks with their helpers, and what any of these has started."""
        node = self.nodes[name]
        found, todo = set(), {*filter(None, [node.pid()]), *processes_of("none=none", node.dir)}
        while todo:
            found |= todo
            todo = {child for pid in todo for child in children(pid)} - found
        return found

    def power_off(self, *names, chunks=True):
        """Machines die at once: kill -9 of every process that runs on them. What a machine that starts anew has none of is removed:
        directories and cgroups of ranks, and without `chunks` what the store had in memory. Returns the ids of the processes."""
        cgroups, dead, nodes = cgroups_of(self.jobs_with_ranks()), set(), [self.nodes[name] for name in names]
        pids = {pid for name in names for pid in self.machine(name)}
        for node in nodes: # first, or it sees its ranks die and says so while its own end is still to come
            node.signal(signal.SIGKILL)
        for node in nodes:
            node.wait_gone(60)

        def gone():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            dead.update(pids)
            pids.clear()
            pids.update(pid for name in names for pid in self.machine(name))
            return not pids

        wait_for(gone, 60, f"the end of all processes of {', '.join(names)}", 0.02)
        for node in nodes:
            if not chunks:
                shutil.rmtree(node.chunk_dir)
            shutil.rmtree(os.path.join(node.dir, "run", "workers"), ignore_errors=True)
        for path in cgroups:
            wait_for(lambda: self._cgroup_ends(path, dead), 60, f"the end of {path}", 0.02) # noqa: B023
        return dead

    @staticmethod
    def _cgroup_ends(path, dead):
        """It is gone, or has processes that are not dead; a process that is being killed keeps it for a moment."""
        try:
            with open(os.path.join(path, "cgroup.procs")) as f:
                if set(map(int, f.read().split())) - dead:
                    return True
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    # ---- taking it down -----------------------------------------------------

    def processes(self):
        """Ids of every process of this cluster, children of crashed daemons too."""
        return processes_of(f"{MARK}={self.options['id']}", self.dir)

    @staticmethod
    def _stop_node(node):
        """A daemon that ends by itself leaves nothing behind but ranks' helpers, whose ranks outlive it, and mounts."""
        there = {pid: (began, command(pid)) for pid, began in children(node.pid()).items()}
        if not node.stop():
            return [f"ptcd of {node.name} did not end within 15 s of SIGTERM"]

        def left():
            return {pid: said for pid, (began, said) in there.items()
                    if start_time(pid) == began and not is_program(said, (*HELPERS, "ptc-fuse"))}
        with contextlib.suppress(ClusterError):
            wait_for(lambda: not left(), 2, "the end of its children")
        return [f"ptcd of {node.name} ended and left process {pid}: {said}" for pid, said in left().items()]

    def _end(self, number, spared, patience_s):
        """Sends a signal to every process but programs of those names, also to those that come meanwhile. True: all processes have
        ended, these programs too."""
        told = set()

        def ended():
            there = {(pid, command(pid)) for pid in self.processes()} # a helper becomes the program that it starts
            for pid, said in there - told:
                with contextlib.suppress(ProcessLookupError):
                    if not is_program(said, spared):
                        os.kill(pid, number)
            told.update(there)
            return not there
        with contextlib.suppress(ClusterError):
            return wait_for(ended, patience_s, "the end of the cluster's processes")
        return False

    def stop(self):
        """Ends every process; returns what is worth a complaint, one line each."""
        complaints = []
        for node in reversed(list(self.nodes.values())): # n0, which may run etcd, last
            node.signal(signal.SIGCONT)
            if node.pid():
                complaints += self._stop_node(node)
        for member in self.members:
            member.stop()
        # a rank's helper removes the rank's cgroup as the rank ends: it is killed last, and only if it does not end by itself
        for number, spared, patience_s in ((signal.SIGTERM, (), 5), (signal.SIGKILL, HELPERS, 30), (signal.SIGKILL, (), 5)):
            if self._end(number, spared, patience_s):
                break
            self.helpers_killed = number == signal.SIGKILL
        for pid in self.processes():
            complaints.append(f"process {pid} could not be ended")
        return complaints

    def jobs_with_ranks(self):
        """Ids of the jobs that ranks were started for."""
        return {os.path.basename(d) for n in self.nodes.values() for d in glob.glob(os.path.join(n.dir, "run", "workers", "*"))}

    def down(self):
        """Stops everything and removes what create() and the daemons made. Returns complaints, one line each."""
        jobs = self.jobs_with_ranks()
        complaints = self.stop()
        for path in cgroups_of(jobs):
            if not self.helpers_killed:
                complaints.append(f"cgroup {path} left")
            with contextlib.suppress(ClusterError): # what was killed keeps it for a moment
                wait_for(lambda: self._cgroup_ends(path, set()) and not os.path.exists(path), 5, "its end", 0.02) # noqa: B023
            if os.path.exists(path):
                complaints.append(f"cgroup {path} cannot be removed")
        shutil.rmtree(self.options["chunk_root"], ignore_errors=True)
        for name in [*self.nodes, *[m["name"] for m in self.options["members"]], "ca"]:
            shutil.rmtree(os.path.join(self.dir, name), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.dir, "cluster.json"))
        with contextlib.suppress(OSError):
            os.rmdir(self.dir) # not empty: somebody else's files
        return complaints
