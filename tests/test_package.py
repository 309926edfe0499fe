# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in a clean Debian: installed by apt, ptc by itself first, used, removed, purged; and booted there, under a
systemd of its own. PTC_TEST_LONG=1, root and a mirror."""
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import harness
import numpy as np
import state as states
from harness import PATIENCE, wait_for

# In the chroot, in a mount and pid namespace of its own: whatever it starts ends with it.
SETUP = r"""
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mkdir -p /sys
listing() { find / -xdev \( -path /proc -o -path /ptc-test -o -path /tmp -o -path /var/cache -o -path /var/lib/apt -o -path /var/log \
	-o -path /var/lib/dpkg \) -prune -o -print | LC_ALL=C sort; }
"""
INSTALL = r"""
apt-get update -q
apt-get install -q -y --no-install-recommends etcd-server python3-minimal python3 systemd gcc libc6-dev pkg-config man-db
listing > /ptc-test/before
cd /ptc-test/debs
umount /proc # as image builders have it
apt-get install -q -y --no-install-recommends ./ptc_*.deb 2>/ptc-test/said || { cat /ptc-test/said; exit 1; }
mount -t proc proc /proc
grep 'directories of tmpfiles.d/ptc.conf are made at the next boot' /ptc-test/said
systemd-tmpfiles --create ptc.conf # as a boot does
test "$(dpkg-query --show --showformat '${Package} ' '*ptc*')" = "ptc "
systemd-analyze verify --man=no ptcd.service
getent group ptc
test -L /etc/systemd/system/multi-user.target.wants/ptcd.service
"""
# With nothing but that package: two daemons, and a resize from one to both.
USE = r"""
mkdir -p /var/lib/ptc/peer /var/lib/ptc/n1/peer; chmod 700 /var/lib/ptc/peer /var/lib/ptc/n1/peer
cat > /etc/ptc/ptcd.yaml <<END
version: 1
node: n0
state_dir: /var/lib/ptc/state
chunk_dir: /var/lib/ptc/chunks
run_dir: /run/ptc
listen: unix:/var/lib/ptc/peer/peer.sock
devices: 2
memory: {ceiling: 1GiB}
coordinator: local
END
ptcd --check-config
nodes() { for i in $(seq 600); do ptcctl nodes >/ptc-test/nodes 2>/ptc-test/error && [ $(grep -cw up /ptc-test/nodes) = $1 ] && return
	sleep 0.1; done; cat /ptc-test/nodes /ptc-test/error; return 1; }
ptcd & first=$!
nodes 1
cat > /var/lib/ptc/n1/ptcd.yaml <<END
version: 1
node: n1
state_dir: /var/lib/ptc/n1/state
chunk_dir: /var/lib/ptc/n1/chunks
run_dir: /var/lib/ptc/n1/run
listen: unix:/var/lib/ptc/n1/peer/peer.sock
devices: 2
memory: {ceiling: 1GiB}
coordinator: {endpoints: ["unix:$(find /var/lib/ptc/state/etcd -maxdepth 1 -type s ! -name '*peer*')"]}
END
ptcd --config /var/lib/ptc/n1/ptcd.yaml --check-config
ptcd --config /var/lib/ptc/n1/ptcd.yaml & second=$!
nodes 2
ptcctl job create -f /ptc-test/job.yaml
ptcctl import chroot /ptc-test/model.safetensors --config tp=2 --nodes n0
ptcctl resize chroot --config tp=4 --wait --format json > /ptc-test/resized
ptcctl verify chroot
ptcctl export chroot /ptc-test/out.safetensors
kill $second; wait $second
kill $first; wait $first
"""
REST = r"""
cd /ptc-test/debs
apt-get install -q -y --no-install-recommends ./libptc1_*.deb ./libptc-dev_*.deb ./libptcadmin1_*.deb ./libptcadmin-dev_*.deb ./ptc-python_*.deb
python3 -c 'import ptc; print("library", ptc.library().ptc_version().decode())'
printf '#include <ptc/ptc.h>\n#include <stdio.h>\nint main(void) { puts(ptc_version()); return 0; }\n' > /ptc-test/user.c
gcc /ptc-test/user.c -o /ptc-test/user $(pkg-config --cflags --libs ptc) && /ptc-test/user
printf '#include <ptc/admin.h>\n#include <stdio.h>\nint main(void) { puts(ptc_admin_version()); return 0; }\n' > /ptc-test/admin.c
gcc /ptc-test/admin.c -o /ptc-test/admin $(pkg-config --cflags --libs ptcadmin) && /ptc-test/admin
man -w ptc_boundary ptc_admin_moves_next ptcd ptcctl ptc-fuse ptcd.yaml ptcd.conf job.yaml
"""
# For a boot: with ptc-fuse's helper, without Debian's own etcd, and with a watchdog that does not take a minute.
BOOTABLE = r"""
apt-get update -q
apt-get install -q -y --no-install-recommends systemd-sysv dbus etcd-server fuse3 procps
apt-get install -q -y --no-install-recommends /ptc-test/debs/ptc_*.deb /ptc-test/debs/libptc1_*.deb
systemctl mask etcd.service
mkdir -p /etc/systemd/system/ptcd.service.d
printf '[Service]\nWatchdogSec=3\nRestartSec=100ms\n' > /etc/systemd/system/ptcd.service.d/test.conf
rm /usr/sbin/policy-rc.d
cat > /etc/ptc/ptcd.yaml <<END
version: 1
node: n0
state_dir: /var/lib/ptc/state
chunk_dir: /var/lib/ptc/chunks
run_dir: /run/ptc
listen: unix:/var/lib/ptc/peer/peer.sock
devices: 4
memory: {ceiling: 1GiB}
coordinator: local
fuse: {dir: /srv/ptc}
END
mkdir -p -m 700 /var/lib/ptc/peer
# the same packages, as a later version
cd /ptc-test
dpkg-deb -R debs/ptc_*.deb later
sed -i 's/^Version: .*/&+later/' later/DEBIAN/control
dpkg-deb -b later later.deb
"""
REMOVE = r"""
apt-get remove --autoremove -q -y ptc libptc1 libptc-dev libptcadmin1 libptcadmin-dev ptc-python
listing > /ptc-test/removed
apt-get purge -q -y ptc
listing > /ptc-test/purged
"""


def mirror():
    """Where this machine's apt has bookworm from; None: nowhere that debootstrap could use."""
    r = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"],
                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = [line.split()[1] for line in r.stdout.splitlines() if line.startswith("bookworm ")]
    return found[0] if found else None


class Package(harness.Case):
    def chroot(self):
        """A clean bookworm, or a skip that says why there is none."""
        if not harness.LONG or harness.SANITIZED:
            self.skipTest("takes minutes: PTC_TEST_LONG=1, not sanitized")
        if os.geteuid() != 0 or not shutil.which("debootstrap") or not shutil.which("unshare"):
            self.skipTest("needs root, debootstrap and unshare")
        source = mirror()
        if not source:
            self.skipTest("apt of this machine has no bookworm")
        root = tempfile.mkdtemp(prefix="root", dir=self.dir)
        os.chmod(root, 0o755)
        r = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root, source], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
        if r.returncode:
            self.skipTest(f"debootstrap: {r.stdout.strip().splitlines()[-1:]}")
        return root

    def script(self, root, text):
        """Runs it in the chroot; its output."""
        with open(os.path.join(root, "ptc-test", "script"), "w") as f:
            f.write(SETUP + "set -x\n" + text)
        env = {k: v for k, v in os.environ.items() if k != "TMPDIR"} # of the outer root
        r = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", root, "/bin/bash", "/ptc-test/script"],
                           env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(0, r.returncode, r.stdout[-8000:])
        return r.stdout

    def lines(self, root, name):
        with open(os.path.join(root, "ptc-test", name)) as f:
            return set(f.read().split("\n"))

    def packages(self, root):
        """Made, and put into the chroot: its folder for tests. One test at a time, for making them removes those that are there."""
        making = open(os.path.join(harness.ROOT, "build", "packages.lock"), "w")
        self.addCleanup(making.close)
        fcntl.flock(making, fcntl.LOCK_EX)
        r = subprocess.run([os.path.join(harness.ROOT, "scripts", "package")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(0, r.returncode, r.stdout[-4000:])
        work = os.path.join(root, "ptc-test")
        os.makedirs(os.path.join(work, "debs"))
        packages = glob.glob(os.path.join(harness.ROOT, "build", "packages", "*.deb"))
        self.assertEqual(["libptc-dev", "libptc1", "libptcadmin-dev", "libptcadmin1", "ptc", "ptc-python"], sorted(os.path.basename(p).split("_")[0] for p in packages))
        self.check_policy(packages)
        for path in packages:
            shutil.copy(path, os.path.join(work, "debs"))
        fcntl.flock(making, fcntl.LOCK_UN)
        return work

    def test_chroot(self):
        root = self.chroot()
        work = self.packages(root)
        s = states.State()
        rng = np.random.default_rng(self.seed)
        for i in range(5):
            s.add(rng, f"w.{i}", "BF16", (24 + 8 * i, 40))
        harness.Job(None, "chroot", s, work, [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
        self.script(root, INSTALL)
        self.script(root, USE)
        with open(os.path.join(work, "resized")) as f:
            resized = json.load(f)
        moved = sum(len(t.tobytes()) for t in s.tensors["param"].values()) // 2
        self.assertEqual(("tp=2", "tp=4", moved), (resized["from"], resized["to"], resized["received_bytes"]))
        self.assertIn("library ", self.script(root, REST))
        found = states.read_file(os.path.join(work, "out.safetensors"))
        self.assertEqual({n: t.tobytes() for n, t in s.tensors["param"].items()}, {n: t.tobytes() for n, t in found.items()})
        self.script(root, REMOVE)
        self.check_left(root)

    def check_policy(self, packages):
        """Debian's own checker has nothing to say, but of the maintainer's address, which is whoever's who builds them (DEBEMAIL)."""
        if not shutil.which("lintian"):
            self.fail("no lintian: scripts/install-deps --full")
        r = subprocess.run(["lintian", "--allow-root", "--suppress-tags", "bogus-mail-host,bogus-mail-host-in-debian-changelog", *packages],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual([], [line for line in r.stdout.splitlines() if line.startswith(("E:", "W:"))])

    # ---- under systemd --------------------------------------------------------------------------------------------

    def boot(self, root):
        log = open(self.path("boot.log"), "ab")
        self.addCleanup(log.close)
        self.nspawn = subprocess.Popen(["systemd-nspawn", "--register=no", "--keep-unit", "--quiet", "--boot", "--bind=/dev/fuse", "-D", root],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(self.power_off)
        self.wait_booted()

    def power_off(self):
        """Whatever state it is in; its init's namespace of processes goes with it."""
        if self.nspawn.poll() is None:
            self.nspawn.send_signal(signal.SIGTERM) # systemd-nspawn: orderly
            try:
                self.nspawn.wait(60 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()

    def init(self):
        """Process 1 of the container as we see it; None: there is none."""
        try:
            with open(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children") as f:
                return int(f.read().split()[0])
        except (OSError, IndexError):
            return None

    def inside(self, *argv, check=True):
        """Runs a command in the container; what it wrote."""
        init = self.init()
        r = subprocess.run(["nsenter", "--target", str(init), "--all", "--", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                            *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if check and r.returncode:
            self.fail(f"{argv}: {r.stdout}\n{self.inside('journalctl', '-u', 'ptcd', '-n', '40', '--no-pager', check=False)}")
        return r.stdout.strip()

    def wait_booted(self):
        wait_for(lambda: self.init() and self.inside("systemctl", "is-system-running", check=False) in ("running", "degraded"),
                 60 * PATIENCE, "a booted system", 0.2)

    def main_pid(self):
        return int(self.inside("systemctl", "show", "-P", "MainPID", "ptcd") or 0)

    def wait_active(self, other_than=None, within_s=60):
        def active(): # of one that has just ended systemd may still say "active", with process 0: to signal 0 would be to signal ourselves
            pid = self.main_pid()
            return self.inside("systemctl", "is-active", "ptcd", check=False) == "active" and pid not in (0, other_than) and pid
        return wait_for(active, within_s * PATIENCE, "ptcd under another process" if other_than else "ptcd", 0.2)

    def job(self):
        return json.loads(self.inside("ptcctl", "status", "ridge", "--format", "json", check=False))["jobs"][0]

    def ranks(self):
        return {r["pid"]: -1 if r["step"] is None else r["step"] for r in self.job()["run"]["ranks"]}

    def goes_on(self, before, what):
        """The same processes, beyond where they were; and the job's files can be read."""
        def further():
            try:
                now = self.ranks()
            except (ValueError, KeyError): # a daemon that has just begun
                return False
            return set(now) == set(before) and min(now.values()) > max(before.values()) + 5
        wait_for(further, 60 * PATIENCE, f"the ranks to go on after {what}", 0.2)
        self.model()

    def model(self):
        """Digest of the committed snapshot's model as the mount shows it; reads fail while ptcd comes back."""
        def read():
            try:
                job = self.job()
                said = self.inside("sha256sum", f"/srv/ptc/ridge/state/snap-{job['snapshot']}-step-{job['step']}/model.safetensors", check=False)
            except (ValueError, KeyError):
                return None
            return re.match("[0-9a-f]{64} ", said)
        return wait_for(read, 60 * PATIENCE, "the job's files", 0.2).group()

    def test_boot(self):
        """Under a real systemd, with ranks that train and files that are shown: started, reloaded, hung up, killed, hanging, restarted,
        upgraded; each time ranks go on. Then a reboot, and the job goes on from its snapshot; and a stop."""
        root = self.chroot()
        if not shutil.which("systemd-nspawn") or not os.path.exists("/dev/fuse"):
            self.skipTest("needs systemd-nspawn (Debian's systemd-container) and /dev/fuse")
        work = self.packages(root)
        shutil.copy(harness.binary("examples/c-trainer/c-trainer"), work)
        with open(os.path.join(work, "job.yaml"), "w") as f:
            json.dump({"version": 1, "name": "ridge", "gpus": {4: "tp=2,dp=2,global_batch=24,micro_batch=4"},
                       "run": {"argv": ["/ptc-test/c-trainer", "--steps", "100000000", "--sleep-ms", "20"]}}, f)
        self.script(root, BOOTABLE)
        self.boot(root)
        pid = self.wait_active()
        self.inside("ptcctl", "run", "-f", "/ptc-test/job.yaml", "--wait")
        self.inside("ptcctl", "snapshot", "ridge", "--wait")
        ranks = self.ranks()
        self.assertEqual(4, len(ranks))
        self.goes_on(ranks, "the start")
        with open(os.path.join(root, "etc", "ptc", "ptcd.yaml"), "a") as f:
            f.write("log: debug\n")
        for times, argv in enumerate((("systemctl", "reload", "ptcd"), ("kill", "-HUP", str(pid))), 1):
            self.inside(*argv)
            wait_for(lambda: self.inside("journalctl", "-u", "ptcd", "--no-pager").count("ptcd.yaml read again") == times,
                     60 * PATIENCE, f"the configuration to be read again after {argv}", 0.2)
        self.goes_on(self.ranks(), "SIGHUP")
        self.assertEqual(pid, self.main_pid(), "SIGHUP has ended it")
        for what, argv in (("kill -9", ("kill", "-KILL")), ("a hang", ("kill", "-STOP"))):
            before = self.ranks()
            self.inside(*argv, str(pid))
            pid = self.wait_active(pid)
            self.goes_on(before, what)
        for what, argv in (("restart", ("systemctl", "restart", "ptcd")), ("upgrade", ("dpkg", "-i", "/ptc-test/later.deb"))):
            before = self.ranks()
            self.inside(*argv)
            pid = self.wait_active(pid)
            self.goes_on(before, what)
        self.assertIn("+later", self.inside("dpkg-query", "--show", "--showformat", "${Version}", "ptc"))
        self.assertEqual(set(ranks), set(self.ranks()), "other processes than at first")
        self.check_reboot(root)

    def check_reboot(self, root):
        self.inside("ptcctl", "snapshot", "ridge", "--wait")
        was, digest, init = self.job(), self.model(), self.init()
        self.inside("systemctl", "reboot", check=False)
        wait_for(lambda: self.nspawn.poll() is not None or self.init() not in (None, init), 60 * PATIENCE, "the reboot", 0.2)
        if self.nspawn.poll() is None:
            self.wait_booted()
        else: # not every systemd-nspawn starts it again by itself
            self.boot(root)
        self.wait_active()
        # the ranks are gone with the machine: the job is started again by itself, from the snapshot
        wait_for(lambda: self.job()["generation"] == was["generation"] + 1, 60 * PATIENCE, "the job to be started again", 0.2)
        self.assertEqual((was["step"], digest), (self.job()["step"], self.model()))
        self.inside("ptcctl", "verify", "ridge")
        ranks = self.ranks()
        self.assertGreaterEqual(min(ranks.values()), was["step"])
        self.goes_on(ranks, "the reboot")
        self.inside("ptcctl", "stop", "ridge")
        self.inside("systemctl", "stop", "ptcd")
        self.assertEqual("inactive", self.inside("systemctl", "is-active", "ptcd", check=False))
        self.assertEqual("success", self.inside("systemctl", "show", "-P", "Result", "ptcd"))
        self.assertEqual(set(), {"ptcd", "etcd", "c-trainer"} & set(self.inside("ps", "-eo", "comm=").split()))

    def check_left(self, root):
        """remove leaves configuration and state; purge the state, and nothing else."""
        before = self.lines(root, "before")
        kept = {"/etc/default/ptcd", "/etc/ptc", "/etc/ptc/ptcd.yaml", "/etc/ptc/tls", "/var/lib/ptc"}
        system = ("/var/lib/systemd", "/etc/systemd/system", "/run/systemd", "/run/ptc") # remembered enablement; sockets until the next start
        removed = {p for p in self.lines(root, "removed") - before if not p.startswith(("/var/lib/ptc/", "/etc/group", "/etc/gshadow"))}
        self.assertEqual(kept, {p for p in removed if not p.startswith(system)})
        purged = self.lines(root, "purged") - before
        self.assertLessEqual({p for p in purged if not p.startswith(("/var/lib/ptc", "/etc/group-", "/etc/gshadow-", "/run/systemd"))}, set())
        self.assertIn("/var/lib/ptc/state/meta", purged)
        self.assertTrue(any(p.startswith("/var/lib/ptc/chunks/") for p in purged))


if __name__ == "__main__":
    unittest.main()
