# SPDX-License-Identifier: Apache-2.0
"""docs/install.md, done: its certificates, configurations and commands bring up two nodes; and what --check-config says about
certificates that will not do."""
import os
import re
import subprocess
import textwrap

import harness
import numpy as np
import state as states
from bare_root import run
from harness import PATIENCE, wait_for


def block(name):
    """The code after <!-- test: NAME -->."""
    with open(os.path.join(harness.ROOT, "docs", "install.md")) as f:
        return textwrap.dedent(re.search(rf"^ *<!-- test: {name} -->\n *```\w+\n(.*?)^ *```$", f.read(), re.M | re.S)[1])


class Install(harness.Case):
    def script(self, name, here, **env):
        tools = self.path("bin")
        os.makedirs(tools, exist_ok=True)
        for program in ("ptcd", "ptcctl"):
            if not os.path.lexists(os.path.join(tools, program)):
                os.symlink(harness.program(program), os.path.join(tools, program))
        os.makedirs(here, exist_ok=True)
        r = run("bash", "-euc", self.moved(block(name)), cwd=here, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **env})
        self.assertEqual(0, r.returncode, r.stdout)
        return r.stdout

    def moved(self, text, node=None):
        """The page's addresses and folders, as ones that a test may use."""
        text = text.replace("192.0.2.10:2379", f"127.0.0.1:{self.ports[2]}")
        for i in (0, 1):
            text = text.replace(f"192.0.2.1{i}:7460", f"127.0.0.1:{self.ports[i]}")
        if node:
            i = ("n0", "n1").index(node)
            text = text.replace("metrics: 127.0.0.1:7461", f"metrics: 127.0.0.1:{self.ports[3 + i]}").replace("devices: auto", "devices: 2")
            text = text.replace("64GiB", "1GiB").replace("/etc/ptc/tls/node.", self.path("ca", f"{node}.")).replace("/etc/ptc/tls/", self.path("ca") + "/")
            for folder, name in (("/var/lib/ptc", "s"), ("/dev/shm/ptc", "c"), ("/run/ptc", "r")):
                text = text.replace(folder, self.path(node, name))
            text = re.sub(r"^fuse:.*\n", "", text, flags=re.M)
        return text

    def configure(self):
        self.ports = [harness.clusters.free_port() for _ in range(5)]
        self.script("certificates", self.path("ca"))
        for node in ("n0", "n1"):
            os.makedirs(self.path(node))
            with open(self.path(node, "ptcd.yaml"), "w") as f:
                f.write(self.moved(block(node), node))

    def start(self, node):
        log = open(self.path(node, "log"), "w")
        self.addCleanup(log.close)
        p = subprocess.Popen([harness.program("ptcd"), "--config", self.path(node, "ptcd.yaml")], stdin=subprocess.DEVNULL, stdout=log,
                             stderr=log)

        def end():
            p.terminate()
            p.wait(60 * PATIENCE)
        self.addCleanup(end)

    def test_guide(self):
        self.configure()
        for node in ("n0", "n1"):
            config = self.path(node, "ptcd.yaml")
            r = run("bash", "-euc", block("check").replace("ptcd ", f'"$0" --config {config} '), harness.program("ptcd"))
            self.assertEqual((0, ""), (r.returncode, r.stdout))
        for node in ("n0", "n1"):
            self.start(node)
        env = {"PTC_SOCKET": self.path("n0", "r", "control.sock")}
        wait_for(lambda: run(harness.program("ptcctl"), "nodes", env={**os.environ, **env}).stdout.count(" up ") == 2, 60 * PATIENCE,
                 "two nodes")
        out = self.script("nodes", self.path("ca"), **env)
        self.assertEqual(4, out.count(" up "), out)
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "BF16", (300, 70))
        os.makedirs(self.path("job"))
        s.write(self.path("job"))
        self.script("job", self.path("job"), **env)
        found = states.read_file(self.path("job", "out.safetensors"))
        self.assertEqual({"w": s.tensors["param"]["w"].tobytes()}, {n: t.tobytes() for n, t in found.items()})
        self.script("revoke", self.path("ca"))
        for node, says in (("n0", r"^$"), ("n1", r"tls.crl: \S+n1.crt is revoked by \S+crl.pem")):
            with open(self.path(node, "ptcd.yaml")) as f, open(self.path("case.yaml"), "w") as t:
                t.write(f.read().replace("tls: {", "tls: {crl: " + self.path("ca", "crl.pem") + ", "))
            self.assertRegex(run(harness.program("ptcd"), "--check-config", "--config", self.path("case.yaml")).stdout, says)

    def test_certificates(self):
        """Each thing that can be wrong with them is one line that names key, file and remedy."""
        self.configure()
        with open(self.path("n0", "ptcd.yaml")) as f:
            right = f.read()
        ca = self.path("ca")

        def sign(name, days, *extensions):
            key = self.path("ca", f"{name}.key")
            run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
            os.chmod(key, 0o600)
            run("openssl", "req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", self.path("ca", f"{name}.csr"))
            with open(self.path("ca", f"{name}.ext"), "w") as f:
                f.write("\n".join(extensions) + "\n")
            r = run("openssl", "x509", "-req", "-in", f"{ca}/{name}.csr", "-CA", f"{ca}/ca.crt", "-CAkey", f"{ca}/ca.key", "-CAcreateserial",
                    "-days", str(days), "-extfile", f"{ca}/{name}.ext", "-out", f"{ca}/{name}.crt")
            self.assertEqual(0, r.returncode, r.stdout)

        both, uri = "extendedKeyUsage=serverAuth,clientAuth", "subjectAltName=DNS:ptc-node,URI:ptc://node/n0"
        sign("old", -1, both, uri)
        sign("oneway", 1, "extendedKeyUsage=clientAuth", uri)
        sign("several", 1, both, uri + ",URI:ptc://node/n1")
        sign("nameless", 1, both, "subjectAltName=DNS:n0")
        sign("outsider", 1, both, "subjectAltName=DNS:n0,DNS:ptc-node.example,URI:ptc://node/n0")
        run("openssl", "req", "-x509", "-new", "-key", f"{ca}/n1.key", "-days", "1", "-subj", "/CN=other", "-out", f"{ca}/other.crt")
        with open(f"{ca}/junk.crt", "w") as f:
            f.write("no certificate\n")
        with open(f"{ca}/n0.crt") as f, open(f"{ca}/trailed.crt", "w") as t:
            t.write(f.read() + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        run("openssl", "ec", "-in", f"{ca}/n0.key", "-aes256", "-passout", "pass:x", "-out", f"{ca}/locked.key")
        os.chmod(f"{ca}/locked.key", 0o600)
        node = lambda name: right.replace(f"{ca}/n0.", f"{ca}/{name}.")
        cases = ((right, None), (node("n1"), "tls.cert: .*n1.crt carries ptc://node/n1 .* must be ptc://node/n0"),
                 (right.replace("n0.key", "n1.key"), "tls.key: .*n1.key is not the key of .*n0.crt"),
                 (right.replace("ca.crt", "other.crt"), "tls.cert: .*n0.crt against .*other.crt: .*issuer"),
                 (right.replace("ca.crt", "junk.crt"), "tls.ca: .*junk.crt holds no certificate"),
                 (right.replace("n0.crt", "junk.crt"), "tls.cert: .*junk.crt holds no certificate"),
                 (right.replace("n0.key", "locked.key"), "tls.key: .*locked.key holds no private key .* or one with a password"),
                 (node("old"), "tls.cert: .*old.crt .*expired; have it signed anew"),
                 (node("oneway"), "tls.cert: .*oneway.crt .*serverAuth and clientAuth"),
                 (node("several"), "tls.cert: .*several.crt carries 2 names of ptc's"),
                 (node("n0").replace("n0.crt", "trailed.crt"), "tls.cert: .*trailed.crt holds a certificate that cannot be read"),
                 (node("nameless"), "tls.cert: .*nameless.crt carries no name of ptc's"),
                 (node("outsider"), "tls.cert: .*outsider.crt lacks the DNS name ptc-node, .*subjectAltName=URI:ptc://node/n0,DNS:ptc-node"),
                 (node("alice"), "tls.cert: .*alice.crt carries ptc://admin/alice"))
        for text, says in cases:
            with open(self.path("case.yaml"), "w") as f:
                f.write(text)
            r = run(harness.program("ptcd"), "--check-config", "--config", self.path("case.yaml"))
            self.assertEqual(1 if says else 0, r.returncode, (says, r.stdout))
            if says:
                self.assertRegex(r.stdout, rf"^ptcd: \S+case.yaml:\d+:\d+: {says}[^\n]*\n$")
            else:
                self.assertEqual("", r.stdout)


if __name__ == "__main__":
    harness.unittest.main()
