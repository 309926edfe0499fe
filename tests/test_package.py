# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in a clean Debian: installed by apt, ptc by itself first, used, removed, purged. PTC_TEST_LONG=1, root and a
mirror."""
import glob
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import harness
import numpy as np
import state as states

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
apt-get install -q -y --no-install-recommends ./ptc_*.deb
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
apt-get install -q -y --no-install-recommends ./libptc1_*.deb ./libptc-dev_*.deb ./ptc-python_*.deb
python3 -c 'import ptc; print("library", ptc.library().ptc_version().decode())'
printf '#include <ptc/ptc.h>\n#include <stdio.h>\nint main(void) { puts(ptc_version()); return 0; }\n' > /ptc-test/user.c
gcc /ptc-test/user.c -o /ptc-test/user $(pkg-config --cflags --libs ptc) && /ptc-test/user
man -w ptcd ptcctl ptc-fuse ptcd.yaml ptcd.conf job.yaml
"""
REMOVE = r"""
apt-get remove --autoremove -q -y ptc libptc1 libptc-dev ptc-python
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
        r = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", root, "/bin/bash", "/ptc-test/script"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(0, r.returncode, r.stdout[-8000:])
        return r.stdout

    def lines(self, root, name):
        with open(os.path.join(root, "ptc-test", name)) as f:
            return set(f.read().split("\n"))

    def test_chroot(self):
        root = self.chroot()
        r = subprocess.run([os.path.join(harness.ROOT, "scripts", "package")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(0, r.returncode, r.stdout[-4000:])
        work = os.path.join(root, "ptc-test")
        os.makedirs(os.path.join(work, "debs"))
        packages = glob.glob(os.path.join(harness.ROOT, "build", "packages", "*.deb"))
        self.assertEqual(["libptc-dev", "libptc1", "ptc", "ptc-python"], sorted(os.path.basename(p).split("_")[0] for p in packages))
        for path in packages:
            shutil.copy(path, os.path.join(work, "debs"))
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
