# SPDX-License-Identifier: Apache-2.0
"""GET /metrics of real daemons, read by a parser of its own and compared with what ptcctl says, with the documented list and with
the dashboard's queries; and what strangers may send there."""
import contextlib
import errno
import json
import math
import os
import re
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request

import harness
import live
import numpy as np
import state as states
from harness import PATIENCE, Job, wait_for

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


def parse(text):
    """({name: type}, {(name, frozenset(labels)): value}) of text format 0.0.4; refuses what the format does not allow."""
    types, helps, samples, family = {}, set(), {}, None
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        m = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.*)", line)
        if m and m[1] == "HELP":
            assert m[2] not in helps, f"{m[2]} is explained twice"
            helps.add(m[2])
        elif m:
            assert m[2] not in types and m[3] in ("counter", "gauge", "histogram"), line
            types[m[2]], family = m[3], m[2]
        else:
            m = re.fullmatch(rf'({NAME})(?:\{{((?:{NAME}="(?:[^"\\\n]|\\[\\"n])*",?)*)\}})? (\S+)', line)
            assert m, f"not a sample: {line!r}"
            base = re.sub("_(bucket|sum|count)$", "", m[1]) if types[family] == "histogram" else m[1]
            assert base == family, f"{line!r} stands below {family}"
            labels = re.findall(rf'({NAME})="((?:[^"\\]|\\.)*)"', m[2] or "")
            key = m[1], frozenset((k, re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1], v)) for k, v in labels)
            assert key not in samples and len(dict(labels)) == len(labels), f"twice: {line!r}"
            samples[key] = math.inf if m[3] == "+Inf" else float(m[3])
    assert helps == set(types)
    return types, samples


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics?x=1", timeout=20 * PATIENCE) as r:
        assert r.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse(r.read().decode())


def at(samples, name, **labels):
    return samples.get((name, frozenset(labels.items())))


def total(samples, name, **labels):
    return sum(v for (n, l), v in samples.items() if n == name and set(labels.items()) <= l)


def documented():
    """{name: type} of docs/metrics.md."""
    with open(os.path.join(harness.ROOT, "docs", "metrics.md")) as f:
        return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", f.read(), re.M))


class Metrics(harness.Case):
    def addresses(self, c, **more):
        """Each node's configuration gets an address; {node: address}. The cluster is not up yet."""
        given = {name: f"127.0.0.1:{harness.clusters.free_port()}" for name in c.nodes}
        write = c.write_config
        c.write_config = lambda node, **changes: write(node, **{"metrics": given[node.name], "metrics_jobs": "yes", **more, **changes})
        for node in c.nodes.values():
            c.write_config(node)
        return given

    def check_histograms(self, types, samples):
        for family in (n for n, t in types.items() if t == "histogram"):
            groups = {}
            for (name, labels), value in samples.items():
                if name == family + "_bucket":
                    le = dict(labels)["le"]
                    rest = frozenset(l for l in labels if l[0] != "le")
                    groups.setdefault(rest, []).append((math.inf if le == "+Inf" else float(le), value))
            self.assertTrue(groups, family)
            for rest, buckets in groups.items():
                counts = [v for _, v in sorted(buckets)]
                self.assertEqual(sorted(counts), counts, (family, rest))
                self.assertEqual(math.inf, max(buckets)[0])
                self.assertEqual(counts[-1], samples[family + "_count", rest])
                self.assertGreaterEqual(samples[family + "_sum", rest], 0)

    def test_values(self):
        """A state-only job and one that trains, resized: every number that ptcctl knows too is the same there."""
        with self.cluster(up=False, nodes=2, devices=2) as c:
            where = self.addresses(c)
            c.up(timeout_s=60 * PATIENCE)
            s = states.State()
            for i in range(4):
                s.add(np.random.default_rng(self.seed + i), f"w.{i}", "F32", (60, 96))
            job = Job(c, "still", s, self.path("still"), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
            job.imported("tp=2")
            summary = job.resize("tp=3")
            trains = live.Job(c, self.dir, steps=100000, sleep=0.01)
            trains.run("tp=1")
            trains.wait_step(5)
            moved = trains.resize("tp=2")
            wait_for(lambda: all(r.get("steps_per_s") for r in trains.status()["run"]["ranks"]), 60 * PATIENCE, "rates")
            scraped = {name: scrape(address) for name, address in where.items()}
            status = {row["job"]: row for row in c.json("status")["jobs"]}
            for name, (types, samples) in scraped.items():
                self.assertEqual(documented(), types)
                self.check_histograms(types, samples)
                self.assertEqual(1, at(samples, "ptc_coordinator_up"))
                self.assertEqual(1, total(samples, "ptc_build_info", node=name))
                self.assertEqual((2, 0, 0), tuple(at(samples, "ptc_nodes", state=s) for s in ("up", "drained", "down")))
            self.check_jobs(scraped, status)
            self.check_switches(scraped, summary, moved, status)
            for _, samples in scraped.values():
                self.assertEqual(0, at(samples, "ptc_store_checksum_errors_total"))
            self.assertGreater(moved["captured_bytes"], 0)
            self.assertEqual(moved["captured_bytes"], sum(total(s, "ptc_switch_captured_bytes_total") for _, s in scraped.values()))
            self.check_node(c, scraped)
            before = total(scraped["n0"][1], "ptc_rpc_calls_total", method="ptc.v1.Control/Plan")
            c.ptcctl("plan", "still", "--config", "tp=1")
            self.refused(c, "plan", "still", "--config", "tp=77")
            _, samples = scrape(where["n0"])
            calls = total(samples, "ptc_rpc_calls_total", method="ptc.v1.Control/Plan")
            self.assertEqual(before + 2, calls)
            self.assertGreaterEqual(total(samples, "ptc_rpc_errors_total", method="ptc.v1.Control/Plan"), 1)
            self.assertGreater(at(samples, "ptc_etcd_request_seconds_count"), 0)
            trains.do("stop")
            self.check_damage(c, where)

    def check_damage(self, c, where):
        """A byte of the store that changes by itself is found and counted; a node that dies is down."""
        uuid = c.json("status", "still")["jobs"][0]["uuid"]
        with open(self.path("still", "model.safetensors"), "rb") as f:
            part = f.read()[-64:] # of one tensor
        damaged = set()
        for name, node in c.nodes.items():
            with open(os.path.join(node.chunk_dir, uuid, "data.mdb"), "r+b") as chunks:
                for m in re.finditer(re.escape(part), chunks.read()):
                    chunks.seek(m.start())
                    chunks.write(bytes([part[0] ^ 1]))
                    damaged.add(name)
        self.assertTrue(damaged)
        self.refused(c, "verify", "still")
        for name in damaged:
            self.assertGreater(at(scrape(where[name])[1], "ptc_store_checksum_errors_total"), 0)
        c.nodes["n1"].kill()
        wait_for(lambda: at(scrape(where["n0"])[1], "ptc_nodes", state="down") == 1, 60 * PATIENCE, "a node that is down")

    def check_jobs(self, scraped, status):
        """Each job is shown once, by its controller, with what its record says."""
        for metric, key in (("ptc_job_generation", "generation"), ("ptc_job_snapshot", "snapshot"), ("ptc_job_step", "step")):
            for job, row in status.items():
                shown = {n: at(s, metric, ptc_job=job, uid=str(os.getuid())) for n, (_, s) in scraped.items()}
                self.assertEqual({n: row[key] if n == row["controller"] else None for n in scraped}, shown, (metric, job))
        everywhere = [s for _, s in scraped.values()]
        self.assertEqual(len(status), sum(total(s, "ptc_jobs") for s in everywhere))
        self.assertEqual(1, sum(total(s, "ptc_job_running", ptc_job="live") for s in everywhere))
        self.assertEqual(0, sum(total(s, "ptc_job_running", ptc_job="still") for s in everywhere))
        self.assertEqual(2, sum(total(s, "ptc_job_local_ranks", ptc_job="live") for s in everywhere))
        self.assertGreaterEqual(sum(total(s, "ptc_job_local_step", ptc_job="live") for s in everywhere), 5)
        rate = sum(total(s, "ptc_job_local_steps_per_second", ptc_job="live") for s in everywhere)
        self.assertTrue(0 < rate < 100, rate) # it sleeps 10 ms a step

    def check_switches(self, scraped, summary, moved, status):
        samples = scraped[status["still"]["controller"]][1]
        everywhere = [s for _, s in scraped.values()]
        for kind, count in (("resize", 3), ("import", 1)): # the start of ranks counts as one from nothing
            self.assertEqual(count, sum(total(s, "ptc_switches_total", kind=kind, outcome="committed") for s in everywhere))
        self.assertEqual(0, sum(total(s, "ptc_switches_total", outcome="aborted") for s in everywhere))
        self.assertGreaterEqual(total(samples, "ptc_switch_between_bytes_total"), summary["received_bytes"])
        self.assertGreaterEqual(total(samples, "ptc_switch_within_bytes_total"), summary["copied_bytes"])
        self.assertEqual(sum(of["plan"]["totals"]["bound_any_mapping"] for of in (summary, moved)),
                         sum(total(s, "ptc_switch_bound_bytes_total") for s in everywhere))
        for row in summary["phases"]:
            self.assertGreaterEqual(total(samples, "ptc_switch_phase_seconds_count", phase=row["phase"]), 1, row)
        for part, lost_ms in (("paused", moved["pause"]["total_ms"] - moved["pause"]["first_step_ms"]), ("slowed", 0)):
            self.assertEqual(1, sum(total(s, "ptc_switch_lost_seconds_count", part=part) for s in everywhere), part)
            self.assertAlmostEqual(lost_ms / 1e3, sum(total(s, "ptc_switch_lost_seconds_sum", part=part) for s in everywhere), delta=0.01)

    def check_node(self, c, scraped):
        for row in c.json("nodes")["nodes"]:
            samples = scraped[row["node"]][1]
            self.assertEqual(row["ceiling_bytes"], at(samples, "ptc_store_limit_bytes"))
            self.assertGreater(at(samples, "ptc_store_used_bytes"), 0)
            self.assertLessEqual(at(samples, "ptc_store_used_bytes"), at(samples, "ptc_store_reserved_bytes"))
            self.assertEqual(at(samples, "ptc_memory_ceiling_bytes"), total(samples, "ptc_memory_share_bytes"))
            self.assertEqual(at(samples, "ptc_store_limit_bytes"), at(samples, "ptc_memory_share_bytes", share="chunks"))
            self.assertLessEqual(at(samples, "ptc_heap_bytes"), at(samples, "ptc_heap_peak_bytes"))
            with open(f"/proc/{row['pid']}/status") as f:
                rss = int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) * 1024
            self.assertTrue(rss / 2 < at(samples, "process_resident_memory_bytes") < rss * 2)
            started = os.stat(f"/proc/{row['pid']}").st_mtime
            self.assertAlmostEqual(started, at(samples, "process_start_time_seconds"), delta=120)

    @harness.labels("repeats")
    def test_strangers(self):
        """What is no request, too long, too slow or too many is refused in bounded memory; the next scrape is as good as ever."""
        with self.cluster(up=False, nodes=1, devices=1) as c:
            where = self.addresses(c, metrics_jobs="no")["n0"]
            c.up(timeout_s=60 * PATIENCE)
            host, port = where.split(":")

            def say(data, expect):
                with socket.create_connection((host, int(port)), timeout=20 * PATIENCE) as s:
                    s.sendall(data)
                    got = b""
                    while block := s.recv(65536):
                        got += block
                self.assertEqual(expect, got.split(b"\r\n")[0].decode(), data[:40])

            say(b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found")
            say(b"GET /metricsx HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found")
            say(b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 405 Method Not Allowed")
            say(b"GET /metrics\r\n\r\n", "HTTP/1.1 400 Bad Request")
            say(b"\0\1\2\3", "HTTP/1.1 400 Bad Request")
            say(self.random.randbytes(100).replace(b"\0", b"x").replace(b"\n", b"x") + b"\r\n\r\n", "HTTP/1.1 400 Bad Request")
            say(b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 9000, "HTTP/1.1 431 Request Header Fields Too Large")
            say(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK")
            for _ in range(100): # mutated requests in random pieces: an answer or a closed connection
                data = bytearray(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
                for _ in range(self.random.randrange(4)):
                    data[self.random.randrange(len(data))] = self.random.randrange(256)
                with socket.create_connection((host, int(port)), timeout=20 * PATIENCE) as s:
                    try:
                        while data:
                            n = self.random.randrange(1, len(data) + 1)
                            s.sendall(data[:n])
                            del data[:n]
                        s.shutdown(socket.SHUT_WR)
                    except OSError as e: # answered, and closed, at what came first
                        self.assertIn(e.errno, (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN))
                    try:
                        got = s.recv(65536)
                    except ConnectionResetError:
                        got = b""
                    self.assertRegex(got or b"HTTP/1.1 000 ", rb"^HTTP/1\.1 (000|200|400|404|405) ")
            for part in (b"GET /met", b"", b"GET /metrics HTTP/1.1\r\n\r\n"): # gone before, or without, the answer
                s = socket.create_connection((host, int(port)))
                s.sendall(part)
                s.close()
            slow = [socket.create_connection((host, int(port)), timeout=60 * PATIENCE) for _ in range(40)]
            for s in slow: # more than there is room for: they are ended in time, and then we are served
                s.sendall(b"GET /metrics HTTP/1.1\r\n")
            self.assertEqual(b"", slow[0].recv(10))
            for s in slow:
                s.close()
            types, samples = scrape(where)
            self.assertEqual(documented(), types)
            self.assertEqual([], [n for n, l in samples if "ptc_job" in dict(l)])

    @harness.labels("repeats")
    def test_config(self):
        """Off unless asked for; reachable from elsewhere only when that is said."""
        with self.cluster(up=False, nodes=1, devices=1) as c:
            node = c.nodes["n0"]
            for changes, says in (({"metrics": "0.0.0.0:7461"}, "metrics_public: yes"), ({"metrics": "[::]:7461"}, "metrics_public"),
                                  ({"metrics": "unix:/x"}, "in numbers"), ({"metrics": "host.example:7461"}, "in numbers"),
                                  ({"metrics": "127.0.0.1"}, "HOST:PORT"), ({"metrics_jobs": "no"}, "without metrics"),
                                  ({"metrics": "127.0.0.1:1", "metrics_jobs": "maybe"}, "write yes or no"),
                                  ({"metrics": "0.0.0.0:7461", "metrics_public": "yes"}, None), ({"metrics": "[::1]:7461"}, None),
                                  ({"metrics": "localhost:7461"}, None)):
                c.write_config(node, **changes)
                r = harness.subprocess.run([harness.program("ptcd"), "--check-config", "--config", node.config], text=True,
                                           stdout=harness.subprocess.PIPE, stderr=harness.subprocess.STDOUT)
                self.assertEqual(1 if says else 0, r.returncode, (changes, r.stdout))
                self.assertIn(says or "", r.stdout)
                self.assertLessEqual(r.stdout.count("\n"), 1)
            c.write_config(node)
            with open(node.config) as f:
                self.assertNotIn("metrics", f.read())

    @harness.labels("repeats")
    def test_list(self):
        """What is documented is the program's table; the dashboard asks for nothing else."""
        r = harness.subprocess.run([harness.program("ptcd"), "--list-metrics"], stdout=harness.subprocess.PIPE, text=True, check=True)
        with open(os.path.join(harness.ROOT, "docs", "metrics.md")) as f:
            text = f.read()
        self.assertIn("| --- | --- | --- | --- |\n" + r.stdout + "\n", text)
        known = documented()
        for line in (l for l in text.split("\n") if l.startswith("- `")):
            self.check_query(line.split("`")[1], known)
        with open(os.path.join(harness.ROOT, "deploy", "grafana", "ptc.json")) as f:
            board = json.load(f)
        queries = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
        queries += [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
        self.assertGreater(len(queries), 15)
        for query in queries:
            self.check_query(query, known)
        spots = [[p["gridPos"][k] for k in "xywh"] for p in board["panels"]]
        cells = [(x + i, y + j) for x, y, w, h in spots for i in range(w) for j in range(h)]
        self.assertEqual(len(cells), len(set(cells)), "panels overlap")
        self.assertEqual(len(board["panels"]), len({p["id"] for p in board["panels"]}))

    @harness.unittest.skipUnless(shutil.which("promtool"), "needs Prometheus's promtool")
    def test_alert_rules(self):
        """Each alert fires when its test says so, and asks for documented series only."""
        folder = os.path.join(harness.ROOT, "deploy", "prometheus")
        r = harness.subprocess.run(["promtool", "test", "rules", "ptc.rules.test.yaml"], cwd=folder, text=True,
                                   stdout=harness.subprocess.PIPE, stderr=harness.subprocess.STDOUT)
        self.assertEqual(0, r.returncode, r.stdout)
        with open(os.path.join(folder, "ptc.rules.yaml")) as f:
            rules = re.findall(r"alert: (\w+)\n +expr: (.+)", f.read())
        with open(os.path.join(folder, "ptc.rules.test.yaml")) as f:
            fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", f.read()))
        self.assertEqual({name for name, _ in rules}, fired)
        for _, query in rules:
            if query != 'up{job="ptc"} == 0': # of Prometheus itself
                self.check_query(query, documented())

    @harness.unittest.skipUnless(shutil.which("prometheus"), "needs Prometheus")
    def test_prometheus(self):
        """A real Prometheus with its default settings: every query of the dashboard is answered, and jobs keep their names."""
        with self.cluster(up=False, nodes=2, devices=1) as c:
            where = self.addresses(c)
            c.up(timeout_s=60 * PATIENCE)
            s = states.State()
            s.add(np.random.default_rng(self.seed), "w", "F32", (8, 8))
            Job(c, "still", s, self.path("still"), [{"match": "*"}]).imported("dp=2")
            with self.prometheus(list(where.values())) as ask:
                wait_for(lambda: len(ask("ptc_job_generation")) == 1 and len(ask("up == 1")) == 2, 60 * PATIENCE, "scrapes")
                labels = ask("ptc_job_generation")[0]["metric"]
                self.assertEqual(("ptc", "still", None), (labels["job"], labels["ptc_job"], labels.get("exported_job")))
                with open(os.path.join(harness.ROOT, "deploy", "grafana", "ptc.json")) as f:
                    board = json.load(f)
                for variable in (v for v in board["templating"]["list"] if v["type"] == "query"):
                    series, label = re.fullmatch(r"label_values\((.*), *(\w+)\)", variable["query"]).groups()
                    values = {r["metric"].get(label) for r in ask(f"count by ({label}) ({series})")}
                    self.assertEqual({"still"} if variable["name"] == "ptc_job" else set(where.values()), values, variable["query"])
                answered = 0
                for query in (t["expr"].replace("$__rate_interval", "5m") for p in board["panels"] for t in p.get("targets", [])):
                    ask(re.sub(r"\$(ptc_job|instance)\b", ".*", query)) # raises where Prometheus does not understand it
                    names = set(re.findall(r"\bptc_\w+(?=\{[^}]*\$ptc_job)", query))
                    if names and "rate(" not in query and all(ask(f'{name}{{ptc_job="still"}}') for name in names):
                        answered += 1
                        self.assertTrue(ask(query.replace("$ptc_job", "still").replace("$instance", ".*")), query)
                self.assertGreater(answered, 0)
                self.assertEqual(["1"], [r["value"][1] for r in ask("sum(ptc_jobs)")])

    @contextlib.contextmanager
    def prometheus(self, addresses):
        """Runs one that scrapes these; gives a function that sends a query and returns its result."""
        port, config = harness.clusters.free_port(), self.path("prometheus.yml")
        with open(config, "w") as f:
            json.dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [{"job_name": "ptc", "static_configs": [{"targets": addresses}]}],
                       "rule_files": [os.path.join(harness.ROOT, "deploy", "prometheus", "ptc.rules.yaml")]}, f) # JSON is YAML

        def ask(query):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            try:
                with urllib.request.urlopen(url, timeout=20 * PATIENCE) as r:
                    return json.load(r)["data"]["result"]
            except urllib.error.HTTPError as e:
                if e.code == 503:
                    return [] # it is still starting
                raise AssertionError(f"{query}: {e.read().decode()}") from e
            except urllib.error.URLError:
                return [] # it has not started yet

        process = harness.subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.path('tsdb')}",
                                            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"])
        try:
            yield ask
        finally:
            process.kill()
            process.wait()

    def check_query(self, query, known):
        """Every series in it is documented, with a type that fits how it is used."""
        names = set(re.findall(r"\b(?:ptc|process)_\w+", query)) - {"ptc_job"} # a label
        self.assertTrue(names, query)
        for name in names:
            base = name if name in known else re.sub("_(bucket|sum|count)$", "", name)
            self.assertIn(base, known, query)
            self.assertTrue(base == name or known[base] == "histogram", query)
        for name in re.findall(r"\b(?:rate|increase)\((\w+)", query):
            self.assertIn(known.get(name, "histogram"), ("counter", "histogram"), query)


if __name__ == "__main__":
    harness.unittest.main()
