# SPDX-License-Identifier: Apache-2.0
"""An attacker, for test_bounds.py: takes what it can of a daemon as another user, says what it has, and keeps it until
its standard input ends.

    hostile.py UID unix PATH N            connections that say nothing
    hostile.py UID tcp PORT N             the same, without a certificate
    hostile.py UID follow PATH N JOB      calls that last: events of JOB, followed
    hostile.py UID silent PATH N          calls whose request never comes
    hostile.py UID flood-unix PATH N      connections in a loop, without end, of which it keeps the last N
    hostile.py UID flood-tcp PORT N       the same, without a certificate
    hostile.py UID flood-hello PORT N HOSTS  the same, and each begins a handshake; from HOSTS, "127.0.0.2,127.0.0.3"
    hostile.py UID flood-tls PORT N CA    whole handshakes in a loop, N at a time, with CA.crt and CA.key, as fast as it can
"""
import collections
import contextlib
import itertools
import os
import select
import socket
import ssl
import sys
import threading
import time

IP_BIND_ADDRESS_NO_PORT = 24
CALM_S = 0.3 # nothing was refused for so long: the calls that are left last


def connections(kind, to, n):
    held = []
    for _ in range(n):
        s = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        try:
            s.connect(to if kind == "unix" else ("127.0.0.1", int(to)))
            held.append(s)
        except OSError:
            s.close()
    return held


def client_hello():
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()


def flood(kind, to, n, hosts):
    """Never waits: neither for the listener nor for whether it succeeded."""
    kept, hosts = collections.deque(), itertools.cycle(hosts.split(",")) if hosts else None
    family, to = (socket.AF_UNIX, to) if kind == "flood-unix" else (socket.AF_INET, ("127.0.0.1", int(to)))
    words = client_hello() if kind == "flood-hello" else b""
    print(0, 0, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(100):
            s = socket.socket(family)
            s.setblocking(False)
            kept.append(s)
            if hosts:
                s.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                s.bind((next(hosts), 0))
            s.connect_ex(to)
            if words:
                with contextlib.suppress(OSError): # the listener's queue is full
                    s.send(words)
            if len(kept) > n:
                kept.popleft().close()
        if words:
            time.sleep(0.05) # 2,000 a second: what a handshake costs is the attack, not who has more of the processor


def handshakes(port, n, name):
    """Each begins HTTP/2, so that the daemon takes it for a caller, and goes once it is answered or refused. One that is through is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(f"{name}.crt", f"{name}.key")
    through, over = threading.Event(), threading.Event()

    def one():
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as s, context.wrap_socket(s) as t:
                t.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                through.set()
                t.recv(64)

    for _ in range(n):
        threading.Thread(target=one, daemon=True).start()
    return through, over


def drain(call):
    import grpc
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass


def calls(kind, path, n, job):
    """Some on each of several connections, as one alone has a bound of its own."""
    import wire
    never, out = threading.Event(), []

    def request():
        never.wait()
        yield b""

    for i in range(n):
        if i % 20 == 0:
            p = wire.Peer(f"unix:{path}", timeout_s=600)
        if kind == "follow":
            c = p.start("Control", "Events", wire.message("EventsRequest", job=job, follow=True))
            threading.Thread(target=drain, args=(c,), daemon=True).start()
        else:
            c = p.channel.stream_stream("/ptc.v1.Control/Nodes")(request(), timeout=600)
        out.append(c)
    before, since = -1, time.monotonic()
    while time.monotonic() - since < CALM_S:
        done = sum(c.done() for c in out)
        if done != before:
            before, since = done, time.monotonic()
        time.sleep(0.02)
    return [c for c in out if not c.done()], [c for c in out if c.done()]


def main():
    uid, kind, to, n = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    if kind in ("follow", "silent"):
        import grpc # noqa: F401, while it may still be read
        import wire # noqa: F401
    ended = handshakes(int(to), n, sys.argv[5]) if kind == "flood-tls" else None # whose key is root's
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    if ended:
        through, over = ended
        print(int(through.wait(60)), 0, flush=True)
        sys.stdin.read()
        over.set()
        os._exit(0)
    if kind.startswith("flood-"):
        flood(kind, to, n, sys.argv[5] if len(sys.argv) > 5 else "")
        return
    if kind in ("unix", "tcp"):
        held = connections(kind, to, n)
        print(len(held), 0, flush=True)
    else:
        held, refused = calls(kind, to, n, sys.argv[5] if len(sys.argv) > 5 else "")
        words = {c.details() for c in refused}
        print(len(held), len(refused), *sorted(words), flush=True)
    sys.stdin.read()
    os._exit(0) # threads of calls that never end


main()
