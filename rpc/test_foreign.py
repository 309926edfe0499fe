# SPDX-License-Identifier: Apache-2.0
"""Python's grpcio as a foreign peer of our server: raw bytes, over TLS and a unix socket.

test_foreign.py RPC_PEER: starts that binary. Exits 77 where grpcio or openssl is missing."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import grpc
except ImportError:
    print("skipped: no grpc module; scripts/venv makes an interpreter that has it")
    sys.exit(77)

PEER = sys.argv.pop(1)
CALL_S = 20


def cert(where, name, san):
    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=where, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    if name == "ca":
        openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        return
    with open(f"{where}/{name}.ext", "w", encoding="ascii") as f:
        f.write(f"subjectAltName={san}\n")
    openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt")


class Foreign(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="ptc-test-rpc-")
        cert(cls.dir, "ca", None)
        cert(cls.dir, "n1", "URI:ptc://node/n1,DNS:ptc-node,DNS:localhost,IP:127.0.0.1")
        cert(cls.dir, "op", "URI:ptc://admin/op")
        cert(cls.dir, "nobody", "DNS:nobody")
        cls.peer = subprocess.Popen([PEER, "serve", cls.dir, "10000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        cls.tls_port, cls.plain_port = map(int, cls.peer.stdout.readline().split())

    @classmethod
    def tearDownClass(cls):
        cls.peer.stdin.close()
        code = cls.peer.wait(30)
        cls.peer.stdout.close()
        shutil.rmtree(cls.dir)
        if code != 0:
            raise AssertionError(f"the peer ended with {code}")

    def read(self, name):
        with open(f"{self.dir}/{name}", "rb") as f:
            return f.read()

    def tls(self, name):
        creds = grpc.ssl_channel_credentials(self.read("ca.crt"), self.read(f"{name}.key"), self.read(f"{name}.crt"))
        return grpc.secure_channel(f"127.0.0.1:{self.tls_port}", creds)

    def channels(self):
        yield self.tls("op"), f"3 0 op x".encode()
        yield grpc.insecure_channel(f"unix:{self.dir}/peer.sock"), f"1 {os.getuid()}  x".encode()

    def test_unary(self):
        for channel, who in self.channels():
            with channel:
                for payload in (b"", b"hello", os.urandom(1 << 20)):
                    self.assertEqual(channel.unary_unary("/t.T/Echo")(payload, timeout=CALL_S), payload)
                self.assertEqual(channel.unary_unary("/t.T/Who")(b"", timeout=CALL_S, metadata=[("note", "x")]), who)

    def test_bidi(self):
        for channel, _ in self.channels():
            with channel:
                sent = [os.urandom(n) for n in range(0, 5000, 100)]
                self.assertEqual(list(channel.stream_stream("/t.T/Echo")(iter(sent), timeout=CALL_S)), sent)

    def test_server_stream_cancelled(self):
        for channel, _ in self.channels():
            with channel:
                call = channel.unary_stream("/t.T/Endless")(b"", timeout=CALL_S)
                self.assertEqual(len(next(call)), 1 << 20)
                call.cancel()
                with self.assertRaises(grpc.RpcError):
                    while True:
                        next(call)

    def error(self, channel, method, payload=b"", **kw):
        with self.assertRaises(grpc.RpcError) as caught:
            channel.unary_unary(method)(payload, timeout=CALL_S, **kw)
        return caught.exception

    def test_status(self):
        for channel, _ in self.channels():
            with channel:
                e = self.error(channel, "/t.T/Fail")
                self.assertEqual(e.code(), grpc.StatusCode.FAILED_PRECONDITION)
                self.assertEqual(e.details(), "8 devices asked for, 4 known: ä")
                self.assertEqual(dict(e.trailing_metadata())["ptc-status"], "-503")
                self.assertEqual(self.error(channel, "/t.T/None").code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_too_large(self):
        for channel, _ in self.channels():
            with channel:
                e = self.error(channel, "/t.T/Echo", bytes((1 << 20) + 1))
                self.assertEqual(e.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_compressed_is_refused(self):
        for channel, _ in self.channels():
            with channel:
                e = self.error(channel, "/t.T/Echo", bytes(100000), compression=grpc.Compression.Gzip)
                self.assertIn(e.code(), (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE))

    def test_health(self):
        for channel, _ in self.channels():
            with channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                self.assertEqual(check(b"", timeout=CALL_S), b"\x08\x01")
                self.assertEqual(check(b"\n\x03t.T", timeout=CALL_S), b"\x08\x01")
                e = self.error(channel, "/grpc.health.v1.Health/Check", b"\n\x01x")
                self.assertEqual(e.code(), grpc.StatusCode.NOT_FOUND)
                watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\n\x01x", timeout=CALL_S)
                self.assertEqual(next(watch), b"\x08\x03")
                watch.cancel()

    def test_certificate_without_a_name_of_ours(self):
        with self.tls("nobody") as channel:
            e = self.error(channel, "/t.T/Echo")
            self.assertEqual(e.code(), grpc.StatusCode.UNAUTHENTICATED)
            self.assertEqual(dict(e.trailing_metadata())["ptc-status"], "-106")

    def test_no_certificate(self):
        creds = grpc.ssl_channel_credentials(self.read("ca.crt"))
        with grpc.secure_channel(f"127.0.0.1:{self.tls_port}", creds) as channel:
            self.assertEqual(self.error(channel, "/t.T/Echo").code(), grpc.StatusCode.UNAVAILABLE)

    def test_plain_to_the_tls_port(self):
        with grpc.insecure_channel(f"127.0.0.1:{self.tls_port}") as channel:
            self.assertEqual(self.error(channel, "/t.T/Echo").code(), grpc.StatusCode.UNAVAILABLE)


if __name__ == "__main__":
    unittest.main()
