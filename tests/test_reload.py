# SPDX-License-Identifier: Apache-2.0
"""SIGHUP: what ptcd reads again while it runs, and that nothing ends for it."""
import datetime
import os
import signal
import ssl
import subprocess
import threading
import time
import unittest

import harness
import numpy as np
import state as states
from harness import LONG, PATIENCE, Job, wait_for

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]


class Reload(harness.Case):
    def job(self, c, kib=64):
        s = states.State()
        for i in range(4):
            s.add(np.random.default_rng(self.seed + i), f"w.{i}", "F32", (kib, 64))
        job = Job(c, "reload", s, self.path("reload"), RULES)
        job.imported("tp=2")
        return job

    def said(self, node, text):
        with open(node.log_file) as f:
            return text in f.read()

    def hang_up(self, node, text):
        node.signal(signal.SIGHUP)
        wait_for(lambda: self.said(node, text), 10 * PATIENCE, f"{node.name} to say: {text}")
        self.assertIsNotNone(node.pid(), "SIGHUP has ended it")

    def test_configuration(self):
        """The log's level is taken; what is wrong, or needs a restart, is said; in the midst of the start, and many at once, nothing
        happens."""
        with self.cluster(nodes=1, up=False) as c:
            node = c.nodes["n0"]
            starting = threading.Thread(target=c.start_node, args=[node])
            starting.start()
            wait_for(node.pid, 10 * PATIENCE, "its process")
            while "ptcd" not in open(f"/proc/{node.pid()}/cmdline").read():
                time.sleep(0.001)
            wait_for(lambda: os.path.exists(os.path.join(node.dir, "state")), 10 * PATIENCE, "its first steps", 0.001)
            for _ in range(20):
                node.signal(signal.SIGHUP)
            starting.join()
            c.wait_nodes(["n0"], 60 * PATIENCE)
            c.write_config(node, log="debug", stall_after="7m")
            self.hang_up(node, "of all else once ptcd is started again")
            self.assertTrue(self.said(node, " debug ptcd: "), "the level is not in force")
            c.write_config(node, log="loud")
            self.hang_up(node, "the configuration stays as it was")
            for _ in range(200):
                node.signal(signal.SIGHUP)
            self.assertEqual({"n0"}, c.nodes_up())
            self.assertTrue(node.stop(timeout_s=15 * PATIENCE))
            self.assertEqual(0, node.popen.returncode)

    def sign(self, c, name, until=None, *, role="node"):
        """A certificate of the cluster's authority for a new key; until: seconds from now (0: has expired)."""
        ca = os.path.join(c.dir, "ca")
        san = subprocess.run(["openssl", "x509", "-in", f"{ca}/{name}.crt", "-noout", "-ext", "subjectAltName"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.split("\n")[1].strip().replace("IP Address:", "IP:")
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=86400 if until is None else until)
        work = self.path("sign")
        os.makedirs(work, exist_ok=True)
        for file, text in (("index", ""), ("index.attr", "unique_subject = no\n"), ("serial", f"{self.random.randrange(1 << 60):016X}\n"),
                           ("ca.cnf", f"[ca]\ndefault_ca=x\n[x]\ndatabase={work}/index\nserial={work}/serial\nnew_certs_dir={work}\n"
                                      f"default_md=sha256\npolicy=p\nx509_extensions=e\n[p]\ncommonName=supplied\n[e]\n"
                                      f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n"
                                      f"authorityKeyIdentifier=keyid\nsubjectAltName={san}\n")):
            with open(os.path.join(work, file), "w") as f:
                f.write(text)
        def openssl(*args):
            r = subprocess.run(["openssl", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(0, r.returncode, r.stdout)
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{work}/key", "-out", f"{work}/csr")
        openssl("ca", "-batch", "-notext", "-config", f"{work}/ca.cnf", "-cert", f"{ca}/ca.crt", "-keyfile", f"{ca}/ca.key", "-in",
                f"{work}/csr", "-out", f"{work}/crt", "-startdate", "20200101000000Z", "-enddate", end.strftime("%Y%m%d%H%M%SZ"))
        os.chmod(f"{work}/key", 0o600)
        for kind in ("crt", "key"): # as tools do that renew: each file at once, one after the other
            os.replace(f"{work}/{kind}", f"{ca}/{name}.{kind}")
        return end

    def shown(self, c, name):
        """The certificate that a node's listener shows."""
        return ssl.get_server_certificate(("127.0.0.1", c.options["ports"][name]), timeout=10)

    def file(self, c, name):
        with open(os.path.join(c.dir, "ca", f"{name}.crt")) as f:
            text = f.read()
        return text[text.index("-----BEGIN"):]

    def test_certificates(self):
        """Renewed while state moves between nodes: connections made after SIGHUP show the new certificate, no switch fails, and one
        that has expired or does not fit is not taken."""
        with self.cluster(nodes=2, transport="tls") as c:
            job, failures, over = self.job(c, 4096), [], threading.Event()

            def switches():
                i = 0
                while not over.is_set() or i < 4:
                    r = c.ptcctl("resize", job.name, "--config", ["tp=1", "tp=2"][i % 2], "--wait", check=False, timeout_s=120)
                    failures.extend([r.stderr] if r.returncode else [])
                    i += 1

            moving = threading.Thread(target=switches)
            moving.start()
            try:
                for _ in range(2):
                    for name, node in c.nodes.items():
                        before = self.shown(c, name)
                        self.sign(c, name)
                        self.assertEqual(before, self.shown(c, name), "nobody has told it")
                        node.signal(signal.SIGHUP)
                        wait_for(lambda: self.shown(c, name) == self.file(c, name), 10 * PATIENCE, "the new one") # noqa: B023
            finally:
                over.set()
                moving.join()
            self.assertEqual([], failures)
            good = self.shown(c, "n1")
            self.sign(c, "n1", 0)
            self.hang_up(c.nodes["n1"], "certificates stay as they were")
            self.assertEqual(good, self.shown(c, "n1"))
            self.sign(c, "n1")
            job.check_whole(self)

    def test_a_certificate_that_ends_soon(self):
        """From 14 days before a node's certificate ends, its log and `ptcctl status` say so, and no longer once it is renewed."""
        day = 24 * 3600
        with self.cluster(nodes=1, devices=1, transport="tls") as c:
            node = c.nodes["n0"]

            def renewed(seconds):
                end = self.sign(c, "n0", seconds)
                self.hang_up(node, "certificates are read again")
                wait_for(lambda: c.json("status")["daemon"]["certificate_ends_ms"] // 1000 == int(end.timestamp()), 60 * PATIENCE,
                                 "the end of the certificate")

            first = c.json("status")["daemon"]["certificate_ends_ms"]
            self.assertGreater(first, 0)
            self.sign(c, "n0", 20 * day) # not in use before SIGHUP
            self.assertEqual(first, c.json("status")["daemon"]["certificate_ends_ms"])
            renewed(15 * day)
            self.assertNotIn("certificate", c.ptcctl("status").stdout)
            with open(node.log_file) as f:
                self.assertNotIn("have it signed anew", f.read())
            renewed(3 * day + day // 2)
            self.assertIn("a certificate of node n0 ends in 3 days; have it signed anew", c.ptcctl("status").stdout)
            with open(node.log_file) as f:
                self.assertRegex(f.read(), r"tls.cert: .* ends in 3 days; have it signed anew, and send ptcd SIGHUP")
            renewed(30 * day)
            self.assertNotIn("certificate", c.ptcctl("status").stdout)

    @unittest.skipUnless(LONG, "waits for a certificate to expire: PTC_TEST_LONG=1")
    def test_expiry(self):
        """Certificates of two nodes that run expire; both were renewed before. A third node that is started afterwards reaches them,
        and they it, and etcd."""
        with self.cluster(nodes=3, devices=1, transport="tls") as c:
            for name in ("n0", "n1", "n2"):
                end = self.sign(c, name, 20 * PATIENCE)
            for name in ("n1", "n2"): # so that they know no others
                c.nodes[name].stop()
                c.restart(name)
            job = self.job(c, 48)
            for name in ("n0", "n1"):
                self.sign(c, name)
                self.hang_up(c.nodes[name], "certificates are read again")
            left = (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
            time.sleep(max(left, 0) + 1)
            self.sign(c, "n2")
            c.nodes["n2"].kill()
            c.restart("n2")
            for config in ("tp=3", "tp=2", "tp=3"):
                job.resize(config)
            job.check_whole(self)


if __name__ == "__main__":
    unittest.main()
