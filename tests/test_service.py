# SPDX-License-Identifier: Apache-2.0
"""What an administrator gets: an installed tree that works wherever it lies, and a unit that lets ranks be."""
import functools
import os
import re
import shutil
import socket
import sys
import threading
import unittest

import harness
import live
import test_fuse
import test_live
from bare_root import run
from harness import PATIENCE, wait_for

# Each of these would reach ranks or the mounts; deploy/systemd/README.md says how.
WRONG_FOR_RANKS = ("PrivateTmp PrivateDevices PrivateIPC PrivateNetwork PrivateMounts PrivateUsers ProtectSystem ProtectHome "
                   "ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectControlGroups ProtectProc ProtectClock "
                   "ReadOnlyPaths InaccessiblePaths TemporaryFileSystem DevicePolicy RuntimeDirectory RemoveIPC MountFlags "
                   "MemoryDenyWriteExecute RestrictNamespaces RestrictSUIDSGID RestrictAddressFamilies RestrictRealtime "
                   "LockPersonality SystemCallArchitectures User DynamicUser MemoryMax").split()


def notify(path, data):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.sendto(data, path)


def executables(pids):
    found = set()
    for pid in pids:
        try:
            found.add(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            continue
    return found


class Service(harness.Case):
    def installed(self, destdir=None):
        """The tree of cmake --install: below destdir, or a prefix of its own."""
        top = self.path("installed")
        env = {**os.environ, **({"DESTDIR": destdir} if destdir else {})}
        r = run("cmake", "--install", harness.BUILD, *([] if destdir else ["--prefix", top]), env=env)
        self.assertEqual(0, r.returncode, r.stdout)
        return top

    @harness.labels("repeats")
    def test_installed(self):
        """Moved after installation: a job runs by its own ptc-exec, libptc and Python package, its files by its own ptc-fuse."""
        top = self.path("moved here")
        shutil.move(self.installed(), top)
        library = next(os.path.join(d, "libptc.so.1") for d, _, files in os.walk(top) if "libptc.so.1" in files)
        fuse = {"n0": {"dir": self.path("files")}} if test_fuse.CAN_MOUNT else {}
        with self.cluster(nodes=2, devices=2, build=top, fuse=fuse) as c:
            job = live.Job(c, self.dir, steps=100000, sleep=0.01, env={
                "PYTHONPATH": os.path.join(top, "lib", "python3", "dist-packages"), "PTC_LIBRARY": ""})
            job.run("tp=2")
            job.wait_step(5)
            job.resize("tp=3")
            own = executables(c.processes())
            self.assertIn(os.path.join(top, "libexec", "ptc", "ptc-exec"), own)
            self.assertEqual({os.path.join(top, "sbin", "ptcd")}, {e for e in own if e.endswith("/ptcd")})
            if fuse:
                wait_for(lambda: os.path.isdir(self.path("files", job.name)), 30 * PATIENCE, "the job's files")
                self.assertIn(os.path.join(top, "libexec", "ptc", "ptc-fuse"), executables(c.processes()))
            for pid in job.processes():
                with open(f"/proc/{pid}/maps") as f:
                    self.assertIn(os.path.realpath(library), f.read(), "a rank uses another libptc")
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("out"))

    @harness.labels("repeats")
    def test_example_config(self):
        """The example is complete: it fails only for what must be changed, and loads once that is."""
        with open(os.path.join(harness.ROOT, "deploy", "systemd", "ptcd.yaml")) as f:
            text = f.read()
        keys = set(re.findall(r"^(\w+):", text, re.M))
        self.assertLessEqual({"version", "node", "state_dir", "listen", "tls", "memory", "coordinator", "fuse"}, keys)
        ca = run(os.path.join(harness.ROOT, "deploy", "make-test-ca"), self.path("ca"), "--nodes", "n0", "--admin", "me", "--stranger", "stranger")
        self.assertEqual(0, ca.returncode, ca.stdout)
        made = {os.path.splitext(f)[0]: f for f in os.listdir(self.path("ca")) if f.endswith(".crt")}
        changed = text.replace("/etc/ptc/tls/ca.crt", self.path("ca", made["ca"]))
        for kind in ("crt", "key"):
            changed = changed.replace(f"/etc/ptc/tls/node.{kind}", self.path("ca", f"n0.{kind}"))
            changed = changed.replace(f"/etc/ptc/tls/stranger.{kind}", self.path("ca", f"stranger.{kind}"))
        for name, body, says in (("as-it-is", text, "tls.ca: cannot read /etc/ptc/tls/ca.crt"),
                                 ("changed", changed.replace("devices: auto", "devices: 2"), "")):
            if says and os.path.exists("/etc/ptc/tls/ca.crt"):
                continue
            with open(self.path(name), "w") as f:
                f.write(body)
            r = run(harness.program("ptcd"), "--check-config", "--config", self.path(name))
            self.assertEqual(1 if says else 0, r.returncode, r.stdout)
            self.assertIn(says, r.stdout)

    @harness.labels("repeats")
    def test_unit(self):
        """systemd accepts unit, sysusers and tmpfiles as installed; nothing in the unit reaches ranks."""
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        root = self.path("root")
        self.installed(destdir=root)
        unit = next(os.path.join(d, "ptcd.service") for d, _, files in os.walk(root) if "ptcd.service" in files)
        for name in ("etc", "run"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
        # the targets that it names are there on every machine with systemd, but not below our root
        for target in ("network-online.target", "multi-user.target", "remote-fs.target", "basic.target", "sysinit.target",
                       "shutdown.target"):
            path = os.path.join(os.path.dirname(unit), target)
            with open(path, "w") as f:
                f.write(f"[Unit]\nDescription={target}\nDefaultDependencies=no\n")
        os.makedirs(os.path.join(root, "bin"), exist_ok=True)
        shutil.copy("/bin/sh", os.path.join(root, "bin", "sh")) # ExecReload= names it
        r = run("systemd-analyze", "verify", "--man=no", f"--root={root}", "ptcd.service",
                env={**os.environ, "SYSTEMD_UNIT_PATH": os.path.dirname(unit)[len(root):] + ":"})
        self.assertEqual((0, ""), (r.returncode, r.stdout.strip()))
        with open(unit) as f:
            text = f.read()
        given = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
        self.assertEqual([], sorted(set(WRONG_FOR_RANKS) & set(given)))
        self.assertEqual(("process", "yes", "continue", "no", "notify"),
                         tuple(given[k] for k in ("KillMode", "Delegate", "OOMPolicy", "NoNewPrivileges", "Type")))
        for directive in ("ExecStartPre", "ExecStart", "ExecStopPost"):
            program = given[directive].lstrip("-").split()[0]
            self.assertTrue(os.access(root + program, os.X_OK), program)
        # a directive that systemd does not know is found: the check above can fail
        with open(unit, "w") as f:
            f.write(text.replace("KillMode=", "KillModus="))
        r = run("systemd-analyze", "verify", "--man=no", f"--root={root}", "ptcd.service",
                env={**os.environ, "SYSTEMD_UNIT_PATH": os.path.dirname(unit)[len(root):] + ":"})
        self.assertIn("KillModus", r.stdout)

    @harness.labels("repeats")
    def test_tables(self):
        """sysusers.d and tmpfiles.d make what they say."""
        missing = [p for p in ("systemd-sysusers", "systemd-tmpfiles") if not shutil.which(p)]
        if missing or os.geteuid() != 0:
            self.skipTest(f"needs root and {missing}")
        root = self.path("root")
        self.installed(destdir=root)
        os.makedirs(os.path.join(root, "etc"), exist_ok=True)
        r = run("systemd-sysusers", f"--root={root}", "ptc.conf") # from where systemd looks
        self.assertEqual(0, r.returncode, r.stdout)
        with open(os.path.join(root, "etc", "group")) as f:
            self.assertRegex(f.read(), r"(?m)^ptc:")
        r = run("systemd-tmpfiles", f"--root={root}", "--create", "ptc.conf")
        self.assertEqual(0, r.returncode, r.stdout)
        for path, mode in (("run/ptc", 0o755), ("var/lib/ptc", 0o700), ("etc/ptc/tls", 0o750)):
            self.assertEqual(mode, os.stat(os.path.join(root, path)).st_mode & 0o777, path)

    @functools.cache
    def help_of(self, *verb):
        """The options of --help, and the verbs it lists."""
        out = run(harness.program("ptcctl"), *verb, "--help").stdout
        verbs = out.partition("\nverbs:\n")[2].partition("\n\n")[0].split("\n") if not verb else []
        return re.findall(r"^  (?:-\w, )?--([a-z-]+)", out, re.M), [re.match(r"  (\S+(?: \S+)?)  ", v).group(1) for v in verbs]

    @harness.labels("repeats")
    def test_man_pages(self):
        """Every verb, option and key is on its page, and man finds nothing wrong with the pages."""
        pages = os.path.join(harness.BUILD, "deploy", "man")

        def plain(name):
            with open(os.path.join(pages, name)) as f:
                return re.sub(r"\\f[BIR]|\\&", "", f.read()).replace("\\-", "-")

        text = plain("ptcctl.1")
        sections = dict(re.findall(r'\.SS "([^"]*)"\n(.*?)(?=\n\.S[SH])', text, re.S))
        globals_, verbs = self.help_of()
        self.assertEqual(verbs, list(sections))
        for verb in verbs:
            for option in set(self.help_of(*verb.split())[0]) - set(globals_):
                self.assertIn(f"--{option}", sections[verb], verb)
        for option in globals_:
            self.assertRegex(text.partition("GLOBAL OPTIONS")[2], rf"--{option}\b")
        for page, program in (("ptcd.8", "daemon/ptcd"), ("ptc-fuse.1", "daemon/ptc-fuse")):
            listed = re.findall(r"^  (--[a-z-]+)(?: [A-Z]+)?  +(.*)", run(harness.binary(program), "--help").stdout, re.M)
            self.assertGreater(len(listed), 4)
            for option, about in listed:
                self.assertRegex(plain(page), rf"(?m)^{option}( [A-Z]+)?\n{re.escape(about)}$")
        keys = re.findall(r"^\.TP\n([a-z_.]+): ", plain("ptcd.yaml.5"), re.M)
        self.assertLessEqual({"version", "tls.ca", "memory.ceiling", "coordinator.endpoints"}, set(keys))
        with open(os.path.join(harness.ROOT, "docs", "job.md")) as f: # all of its words, but for titles and targets of links
            words = re.findall(r"\w+", re.sub(r"\]\([^)]*\)|^```\w*$|^# .*", " ", f.read(), flags=re.M).lower())
        page = plain("job.yaml.5").partition(".SH DESCRIPTION\n")[2].replace("\\e", " ")
        shown = re.findall(r"\w+", re.sub(r"^\.(SH|SS|TP|PP|nf|fi|RS 4|RE|IP \\\(bu 2)\b", " ", page, flags=re.M).lower())
        self.assertEqual(words, shown)
        if shutil.which("man"):
            for page in ("ptcctl.1", "ptcd.8", "ptcd.yaml.5", "ptc-fuse.1", "job.yaml.5"):
                r = run("sh", "-c", '"$@" 2>&1 >/dev/null', "sh", "man", "--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l", os.path.join(pages, page),
                        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "160"})
                self.assertEqual((0, ""), (r.returncode, r.stdout), page)

    def complete(self, *words):
        """What bash would offer after these words, the last of which is being typed."""
        script = os.path.join(harness.BUILD, "deploy", "man", "ptcctl")
        r = run("bash", "-c", 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ptcctl; printf "%s\\n" "${COMPREPLY[@]}"',
                script, "ptcctl", *words)
        self.assertEqual(0, r.returncode, r.stdout)
        return set(r.stdout.split())

    @harness.labels("repeats")
    def test_completions(self):
        """bash offers every verb and each verb's options; the other shells, where they are, can read theirs."""
        globals_, verbs = self.help_of()
        self.assertEqual({v.split()[0] for v in verbs}, self.complete(""))
        for verb in verbs:
            words = verb.split()
            if len(words) > 1:
                self.assertIn(words[1], self.complete(words[0], ""))
            self.assertEqual({f"--{o}" for o in (*self.help_of(*words)[0], *globals_)}, self.complete(*words, "--"), verb)
        for shell, name in (("zsh", "_ptcctl"), ("fish", "ptcctl.fish")):
            path = os.path.join(harness.BUILD, "deploy", "man", name)
            if shutil.which(shell):
                r = run(shell, "-n", path)
                self.assertEqual((0, ""), (r.returncode, r.stdout))
            with open(path) as f:
                text = f.read()
            for verb in verbs:
                for option in self.help_of(*verb.split())[0]:
                    self.assertRegex(text, rf"(--|-l ){option}\b")

    @harness.labels("repeats")
    def test_restart(self):
        """What systemd does at "systemctl restart ptcd", by the unit's own lines: SIGTERM to ptcd alone, ExecStopPost, ExecStartPre,
        ptcd again. No rank ends, no step is lost, jobs' files stay where they are; the watchdog is answered all the time."""
        with open(os.path.join(harness.BUILD, "deploy", "ptcd.service")) as f:
            unit = dict(re.findall(r"^(\w+)=(.*)$", f.read(), re.M))
        fuse = {"n0": {"dir": self.path("files")}} if test_fuse.CAN_MOUNT else {}
        with self.cluster(nodes=2, devices=2, up=False, fuse=fuse) as c, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(self.path("notify"))
            told = []
            reader = threading.Thread(target=lambda: told.extend(iter(lambda: s.recv(4096), b"END")))
            reader.start()
            self.addCleanup(lambda: (notify(self.path("notify"), b"END"), reader.join()) if reader.is_alive() else None)
            env = {"NOTIFY_SOCKET": self.path("notify"), "WATCHDOG_USEC": "500000"}
            c.up(dict.fromkeys(c.nodes, env), timeout_s=60 * PATIENCE)
            job = live.Job(c, self.dir, sleep=0.01)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            ranks = {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]}
            if fuse:
                wait_for(lambda: os.path.isdir(self.path("files", job.name)), 30 * PATIENCE, "the job's files")
                held = os.open(self.path("files", job.name), os.O_RDONLY)
                files = os.listdir(held)
            for name in ("n1", "n0"):
                node = c.nodes[name]
                self.assertTrue(node.stop(timeout_s=15 * PATIENCE), "it does not end by itself")
                test_live.Live.steps_without(self, job)
                for line in ("ExecStopPost", "ExecStartPre"):
                    option = unit[line].replace("$PTCD_OPTIONS", "").split()[1]
                    r = run(harness.program("ptcd"), option, "--config", node.config, env=c.environment())
                    self.assertEqual((0, ""), (r.returncode, r.stdout), line)
                c.restart(name, env)
            at = job.wait_run("live")["run"]["step"]
            job.wait_step(at + 5)
            self.assertEqual(ranks, {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]})
            if fuse:
                self.assertLessEqual(set(files), set(os.listdir(held)))
                os.close(held)
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            job.check_state(self, last, self.path("end"))
            test_live.Live.check_steps(self, job, last)
            notify(self.path("notify"), b"END")
            reader.join()
            self.assertEqual((4, 2), (told.count(b"READY=1"), told.count(b"STOPPING=1")))
            self.assertGreater(told.count(b"WATCHDOG=1"), 8)

    @unittest.skipUnless(test_fuse.CAN_MOUNT, "FUSE cannot be mounted here")
    def test_unmount_stale(self):
        """What the unit runs after ptcd: a mount that is served stays, one whose process died goes."""
        top = self.path("files")
        with self.cluster(nodes=1, devices=1, fuse={"n0": {"dir": top}}) as c:
            node = c.nodes["n0"]

            def unmount():
                r = run(harness.program("ptcd"), "--unmount-stale", "--config", node.config, env=c.environment())
                self.assertEqual((0, ""), (r.returncode, r.stdout))

            def server():
                return test_fuse.Fuse.fuse_pid(node)

            wait_for(lambda: top in test_fuse.mounts(self.dir) and server(), 30 * PATIENCE, "the mount")
            unmount()
            self.assertIn(top, test_fuse.mounts(self.dir))
            pid = server()
            node.kill()
            os.kill(pid, 9)
            wait_for(lambda: server() is None, 10 * PATIENCE, "its end")
            self.assertIn(top, test_fuse.mounts(self.dir))
            unmount()
            self.assertNotIn(top, test_fuse.mounts(self.dir))


if __name__ == "__main__":
    sys.exit(unittest.main())
