# SPDX-License-Identifier: Apache-2.0
"""A root file system that has glibc, a shell, two users and nothing else, for tests of a bundle's tree: made in the test's own folder, which
is seen inside under the name that it has here. Needs root and Debian's libc6; failure modes: the test fails."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig

NOBODY = 65534
# In a mount namespace of its own; what it mounts goes with it. The test's folder is seen under the name that it has here.
MOUNTS = r"""
set -eu
mount --bind "$1" "$1$1"
mount --rbind /proc "$1/proc"
for name in null zero urandom; do mount --bind /dev/$name "$1/dev/$name"; done
mount -t tmpfs tmpfs "$1/dev/shm"
echo mounted
exec cat
"""


def run(*argv, **kw):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)


def listed(package):
    """The files of a Debian package."""
    r = run("dpkg-query", "--listfiles", package)
    return [p for p in r.stdout.splitlines() if os.path.isfile(p)] if r.returncode == 0 else []


class Root:
    def __init__(self, top, holder):
        self.top, self.holder, self.space = top, holder, os.readlink(f"/proc/{holder}/ns/mnt")

    def run_by(self, uid):
        """What a command is run by inside, as that user."""
        return ["nsenter", f"--mount=/proc/{self.holder}/ns/mnt", "chroot", f"--userspec={uid}:{uid}", "--groups=", self.top]

    def processes(self):
        """{process inside: (its program, the files it has mapped)}, the paths as inside."""
        found = {}
        for pid in (int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != self.holder):
            with contextlib.suppress(OSError): # gone, or nobody may look at it
                if os.readlink(f"/proc/{pid}/ns/mnt") == self.space:
                    with open(f"/proc/{pid}/maps") as f:
                        mapped = {line.split(None, 5)[5].strip().removeprefix(self.top) for line in f if "/" in line}
                    found[pid] = os.readlink(f"/proc/{pid}/exe").removeprefix(self.top), mapped
        return found


def make(top):
    """Fills the folder."""
    for path in [p for p in listed("libc6") if ".so" in p] + ["/bin/sh"]:
        os.makedirs(top + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, top + path)
    os.makedirs(os.path.join(top, "lib64"), exist_ok=True) # where every program of x86-64 looks for its loader
    shutil.copy("/lib64/ld-linux-x86-64.so.2", os.path.join(top, "lib64"))
    for folder in ("proc", "dev/shm", "etc", top[1:]):
        os.makedirs(os.path.join(top, folder), exist_ok=True)
    for name in ("null", "zero", "urandom"):
        open(os.path.join(top, "dev", name), "w").close()
    os.makedirs(os.path.join(top, "tmp"), exist_ok=True)
    os.chmod(os.path.join(top, "tmp"), 0o1777)
    for name, text in (("passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"), ("group", "root:x:0:\nnogroup:x:65534:\n")):
        with open(os.path.join(top, "etc", name), "w") as f:
            f.write(text)


def add_python(top):
    """Adds this Python, its library and what its modules need, without packages. Returns the program's path inside."""
    program = os.path.realpath(sys.executable)
    for library in {sysconfig.get_path(which, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix}) for which in ("stdlib", "platstdlib")}:
        shutil.copytree(library, top + library, symlinks=True, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "config-*"))
    needed = {program}
    for folder, _, names in os.walk(top + sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})):
        needed |= {os.path.join(folder, name) for name in names if name.endswith(".so")}
    found = {}
    for path in needed:
        for line in run("ldd", path).stdout.splitlines():
            name, _, where = line.strip().partition(" => ")
            if where.startswith("/"):
                found[name] = where.split(" (")[0]
    for path in [program, *found.values()]:
        os.makedirs(top + os.path.dirname(path), exist_ok=True)
        if not os.path.exists(top + path):
            shutil.copy(path, top + path)
    return program


@contextlib.contextmanager
def mounted(top):
    """The root file system with its mounts."""
    with subprocess.Popen(["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", MOUNTS, "sh", top], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        said = holder.stdout.readline()
        if said != "mounted\n":
            raise RuntimeError(f"{top}: cannot be mounted")
        root = Root(top, holder.pid)
        try:
            yield root
        finally:
            for pid in root.processes(): # of a test that failed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            holder.stdin.close()
