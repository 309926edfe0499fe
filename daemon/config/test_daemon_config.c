/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/daemon_config.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/ptc-config-XXXXXX";

#define BASE                                                                                                           \
	"version: 1\n"                                                                                                 \
	"node: n0\n"                                                                                                   \
	"state_dir: /var/lib/ptc\n"                                                                                    \
	"chunk_dir: /dev/shm/ptc\n"                                                                                    \
	"run_dir: /run/ptc\n"                                                                                          \
	"listen: unix:/run/ptc/peer.sock\n"                                                                            \
	"memory: {ceiling: 8GiB}\n"

static int parse(const char *text, struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	return ptc_daemon_config_parse("f.yaml", text, strlen(text), cfg, err);
}

/* Parses, then checks as ptcd would. */
static int accept(const char *text, bool insecure, struct ptc_error *err)
{
	struct ptc_daemon_config cfg = { 0 };
	int rc = parse(text, &cfg, err);

	if (rc)
		return rc;
	cfg.insecure_loopback = insecure;
	rc = ptc_daemon_config_check(&cfg, err);
	ptc_daemon_config_done(&cfg);
	return rc;
}

static void defaults_are_filled(void **state)
{
	struct ptc_daemon_config cfg = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;

	if (parse(BASE "coordinator: local\ndevices: 2\n", &cfg, &err))
		fail_msg("%s", err.text);
	assert_string_equal(cfg.node, "n0");
	assert_null(cfg.rack);
	assert_string_equal(cfg.control_socket, "/run/ptc/control.sock");
	assert_string_equal(cfg.advertise, "unix:/run/ptc/peer.sock");
	assert_string_equal(cfg.local_coordinator.data_dir, "/var/lib/ptc/etcd");
	assert_string_equal(cfg.local_coordinator.listen, "unix");
	assert_true(cfg.memory.ceiling == UINT64_C(8) << 30 && cfg.memory.staging == 256u << 20 &&
		    cfg.memory.spare == 0);
	assert_true(cfg.stall_after_ms == 600000);
	assert_true(cfg.node_lost_after_ms == 10000 && cfg.node_quarantine_ms == 60000 && cfg.lease_ttl_ms == 5000 &&
		    cfg.log == PTC_LOG_INFO && cfg.devices == 2);
	assert_true(!cfg.fuse.dir && cfg.fuse.cache == 64 << 20 && cfg.fuse.timeout_ms == 30000);
	assert_true(cfg.fuse.backing == PTC_FUSE_BACKING_AUTO && !cfg.fuse.backing_dir);
	assert_true(cfg.sources.cache == 1 << 30);
	assert_string_equal(cfg.sources.dir, "/var/lib/ptc/sources");
	assert_true(cfg.coordinator.local && !cfg.devices_auto);
	assert_int_equal(ptc_daemon_config_check(&cfg, &err), 0);
	ptc_daemon_config_done(&cfg);
	ptc_daemon_config_done(&cfg);
}

#define TIMED BASE "coordinator: local\n"

/* Those that contradict each other are told of, each in one line; the defaults do not. */
static void timeouts(void **state)
{
	static const struct {
		const char *text, *say[3];
	} k[] = {
		{ TIMED, { NULL } },
		{ TIMED "node_lost_after: 30s\nfuse: {dir: /f, timeout: 25s}\ncopy_timeout: 4m\n", { NULL } },
		{ TIMED "fuse: {timeout: 2s}\n", { NULL } }, /* there are no files */
		{ TIMED "lease_ttl: 20s\n", { NULL } },
		{ TIMED "lease_ttl: 21s\n",
		  { "lease_ttl: 21s is longer than a rank that gives up is held (20s), so if a node is lost while etcd "
		    "is unreachable, ranks are let go before their node has noticed it; write at most 20s" } },
		{ TIMED "node_lost_after: 1m\n",
		  { "node_lost_after: 1m is longer than a switch waits for a node that is down (30s), so a switch "
		    "gives up "
		    "before it can go on without the node; write at most 30s (docs/timeouts.md)" } },
		{ TIMED "copy_timeout: 5m\nfuse: {dir: /f, timeout: 24s}\nnode_lost_after: 31s\n",
		  { "node_lost_after: 31s is longer",
		    "fuse.timeout: 24s is shorter than it takes to notice a node that "
		    "hangs (25s)",
		    "copy_timeout: 5m is longer than ranks are held after the loss of a node (4m)" } },
	};

	for (size_t n = 0; n < PTC_ARRAY_LEN(k); n++) {
		struct ptc_daemon_config cfg = { 0 };
		struct ptc_error err = PTC_ERROR_INIT;
		char text[512];
		size_t i = 0;

		assert_int_equal(parse(k[n].text, &cfg, &err), 0);
		for (; ptc_daemon_config_timeout_clash(&cfg, i, text, sizeof text); i++) {
			assert_true(i < 3 && k[n].say[i]);
			assert_int_equal(strncmp(text, k[n].say[i], strlen(k[n].say[i])), 0);
		}
		assert_true(i == 3 || !k[n].say[i]);
		ptc_daemon_config_done(&cfg);
	}
}

static void every_key_is_read(void **state)
{
	static const char text[] = BASE "rack: r-1\n"
					"control_socket: /run/ptc/c\n"
					"advertise: unix:/run/other\n"
					"tls: {ca: /e/ca, cert: /e/cert, key: /e/key}\n"
					"devices: auto\n"
					"coordinator:\n"
					"  endpoints: ['10.0.0.1:2379', \"[fe80::1]:2379\", unix:/x]\n"
					"  tls: {ca: /f/ca, cert: /f/cert, key: /f/key}\n"
					"lease_ttl: 7s\nnode_lost_after: 9s\nstall_after: 8s\nlog: debug\nfuse: {dir: "
					"/f, cache: 9MiB, timeout: 2s, backing: 3GiB, backing_dir: /b}\n"
					"sources: {dir: /s, cache: 17MiB}\n";
	struct ptc_daemon_config cfg = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_tls tls;

	if (parse(text, &cfg, &err))
		fail_msg("%s", err.text);
	assert_string_equal(cfg.rack, "r-1");
	assert_string_equal(cfg.control_socket, "/run/ptc/c");
	assert_string_equal(cfg.advertise, "unix:/run/other");
	assert_true(ptc_daemon_tls_rpc(&cfg.tls, &tls));
	assert_string_equal(tls.key_path, "/e/key");
	assert_string_equal(cfg.coordinator.tls.ca, "/f/ca");
	assert_int_equal(cfg.coordinator.endpoints.n, 3);
	assert_string_equal(cfg.coordinator.endpoints.v[1], "[fe80::1]:2379");
	assert_true(cfg.stall_after_ms == 8000);
	assert_true(cfg.devices_auto && cfg.lease_ttl_ms == 7000 && cfg.node_lost_after_ms == 9000 &&
		    cfg.log == PTC_LOG_DEBUG);
	assert_string_equal("/f", cfg.fuse.dir);
	assert_true(cfg.fuse.cache == 9 << 20 && cfg.fuse.timeout_ms == 2000);
	assert_true(cfg.fuse.backing == UINT64_C(3) << 30);
	assert_string_equal("/b", cfg.fuse.backing_dir);
	assert_string_equal("/s", cfg.sources.dir);
	assert_true(cfg.sources.cache == 17 << 20);
	ptc_daemon_config_done(&cfg);
}

static void the_nodes_tls_serves_the_coordinator(void **state)
{
	struct ptc_daemon_config cfg = { 0 };

	assert_int_equal(parse(BASE "tls: {ca: /a, cert: /b, key: /c}\ncoordinator: {endpoints: [h:1]}\n", &cfg, NULL),
			 0);
	assert_string_equal(cfg.coordinator.tls.key, "/c");
	ptc_daemon_config_done(&cfg);
}

/* What dump prints loads to the same thing, and dumps to the same text. */
static void dump_loads_back(void **state)
{
	static const char *const text[] = {
		BASE "coordinator: local\nlocal_coordinator: {listen: 'https://0.0.0.0:2379', data_dir: /d}\n",
		BASE "coordinator: {endpoints: [a:1, 'unix:/b c/\"d\\e']}\nrack: r\ndevices: 3\ndevice_name: 'H100 "
		     "80GB: x'\n"
		     "devices_file: /d.yaml\nlog: warn\nhealth: {argv: [/c/check, --all, 'a \"b'], every: 5s}\n",
		BASE
		"coordinator: {endpoints: [a:1]}\ntls: {ca: /a, cert: /b, key: /c}\nlease_ttl: 1m\ndevices: auto\n",
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(text); i++) {
		struct ptc_daemon_config a = { 0 }, b = { 0 };
		struct ptc_buf first = PTC_BUF_INIT, second = PTC_BUF_INIT;
		struct ptc_error err = PTC_ERROR_INIT;

		if (parse(text[i], &a, &err))
			fail_msg("%s", err.text);
		ptc_daemon_config_dump(&a, &first);
		assert_false(ptc_buf_failed(&first));
		if (parse(first.data, &b, &err))
			fail_msg("%s in\n%s", err.text, first.data);
		ptc_daemon_config_dump(&b, &second);
		assert_string_equal(first.data, second.data);
		assert_int_equal(a.coordinator.endpoints.n, b.coordinator.endpoints.n);
		for (size_t j = 0; j < a.coordinator.endpoints.n; j++)
			assert_string_equal(a.coordinator.endpoints.v[j], b.coordinator.endpoints.v[j]);
		assert_true(a.lease_ttl_ms == b.lease_ttl_ms && a.devices == b.devices && a.log == b.log);
		ptc_daemon_config_done(&a);
		ptc_daemon_config_done(&b);
		ptc_buf_done(&first);
		ptc_buf_done(&second);
	}
}

#define COORD "coordinator: local\n"

static const struct {
	const char *text, *says;
	int code; /* 0: PTC_EINVAL */
} bad[] = {
	{ "", "f.yaml: empty document" },
	{ "- a\n", "f.yaml: expected keys" },
	{ "a: [\n", "f.yaml:2: not YAML: column 1: did not find expected node" },
	{ "a:\n  [[[[[[[[[[[[[[[[[[[[\n", "f.yaml:2: nested too deeply", PTC_ELIMIT },
	{ "version: 2\n", "f.yaml:1:10: version: \"2\": this ptcd reads version 1", PTC_EVERSION },
	{ "version: 1\n", "f.yaml: node: missing; write node: and a name" },
	{ BASE, "f.yaml: coordinator: missing" },
	{ BASE COORD "---\na: 1\n", "f.yaml:9: more than one document" },
	{ BASE COORD "node: n1\n", "f.yaml:9: key \"node\" appears twice; remove one" },
	{ BASE COORD "nod: n1\n", "f.yaml:9:1: nod: unknown key; did you mean node?" },
	{ BASE COORD "cordinator: n1\n", "did you mean coordinator?" },
	{ BASE COORD "tls: {cert_: /a}\n", "f.yaml:9:7: tls.cert_: unknown key; did you mean tls.cert?" },
	{ BASE COORD "ceiling: 1GiB\n", "unknown key; did you mean memory.ceiling?" },
	{ BASE COORD "xyzzy_plugh: 1\n", "f.yaml:9:1: xyzzy_plugh: unknown key; ptcd --dump-config" },
	{ BASE COORD "tls: yes\n", "f.yaml:9:6: tls: needs a section" },
	{ BASE COORD "tls.ca: /a\n", "unknown key; did you mean tls.ca?" },
	{ BASE COORD "rack:\n", "rack: needs a value" },
	{ BASE COORD "rack: [a]\n", "rack: needs a value" },
	{ BASE COORD "rack: {a: b}\n", "rack: needs a value" },
	{ BASE COORD "? [a]\n: b\n", "f.yaml:9: a key must be a plain word" },
	{ BASE COORD "rack: ../x\n", "f.yaml:9:7: rack: \"../x\" is no name" },
	{ BASE COORD "rack: Rack\n", "is no name" },
	{ BASE COORD "rack: -a\n", "is no name" },
	{ BASE COORD "rack: a-\n", "is no name" },
	{ BASE COORD "rack: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", "is no name" },
	{ BASE COORD "rack: \"a\\0b\"\n", "f.yaml:9: a NUL character is not allowed" },
	{ BASE COORD "control_socket: run/x\n", "write an absolute path" },
	{ BASE COORD "control_socket: /a/../x\n", "write an absolute path" },
	{ BASE COORD "control_socket: /a/..\n", "write an absolute path" },
	{ BASE COORD "control_socket: \"/a\\nb\"\n", "control character" },
	{ BASE COORD "advertise: host\n", "write HOST:PORT" },
	{ BASE COORD "advertise: host:0\n", "write HOST:PORT" },
	{ BASE COORD "advertise: host:65536\n", "write HOST:PORT" },
	{ BASE COORD "advertise: host:1x\n", "write HOST:PORT" },
	{ BASE COORD "advertise: a b:1\n", "write HOST:PORT" },
	{ BASE COORD "advertise: ':1'\n", "write HOST:PORT" },
	{ BASE COORD "advertise: unix:x\n", "write unix: and an absolute path" },
	{ BASE COORD "devices: 0\n", "write auto, or 1 to 64" },
	{ BASE COORD "devices: 65\n", "write auto, or 1 to 64" },
	{ BASE COORD "devices: two\n", "write auto, or 1 to 64" },
	{ BASE COORD "device_name: ''\n", "device_name: needs a value: NAME" },
	{ BASE COORD "device_name: \"a\\tb\"\n", "printable ASCII characters only" },
	{ BASE COORD "devices_file: devices.yaml\n", "write an absolute path" },
	{ BASE COORD "lease_ttl: 5\n", "lease_ttl: \"5\" is not a duration" },
	{ BASE COORD "lease_ttl: 5 sec\n", "is not a duration" },
	{ BASE COORD "quota: {jobs: 0}\n", "quota.jobs: \"0\": write a number from 1 to 999999" },
	{ BASE COORD "quota: {jobs: 1000000}\n", "write a number" },
	{ BASE COORD "quota: {jobs: many}\n", "write a number" },
	{ BASE COORD "log: verbose\n", "write error, warn, info or debug" },
	{ BASE COORD "local_coordinator: {listen: 'tcp://a:1'}\n", "write unix or https://HOST:PORT" },
	{ BASE COORD "memory: {staging: 1GiB}\n", "key \"memory\" appears twice" },
	{ BASE "coordinator: remote\n", "f.yaml:8:14: coordinator: \"remote\": write local, or {endpoints:" },
	{ BASE "coordinator: {endpoints: a:1}\n", "coordinator.endpoints: needs a list" },
	{ BASE "coordinator: {endpoints: []}\n", "coordinator.endpoints: needs a list" },
	{ BASE "coordinator: {endpoints: [a]}\n", "f.yaml:8:27: coordinator.endpoints: \"a\": write HOST:PORT" },
	{ BASE "coordinator: {endpoint: [a:1]}\n", "did you mean coordinator.endpoints?" },
	{ "memory: {ceiling: 8}\n", "f.yaml:1:19: memory.ceiling: \"8\" is not a size" },
	{ "memory: {ceiling: 8G}\n", "is not a size" },
	{ "health: {argv: [check, -q]}\n", "health.argv: \"check\": begin with the absolute path of a program" },
	{ "health: {argv: /bin/true}\n", "health.argv: needs a list: [PROGRAM, ARGUMENT, ...]" },
	{ "a: &a {b: *a}\n", "f.yaml:1: anchors and tags are not allowed" },
	{ "tls: {ca: *a}\n", "f.yaml:1: aliases are not allowed" },
};

static void bad_input_is_one_clear_line(void **state)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		int rc = accept(bad[i].text, false, &err);

		if (rc != (bad[i].code ? bad[i].code : PTC_EINVAL) || !strstr(err.text, bad[i].says))
			fail_msg("case %zu: %d \"%s\" instead of \"%s\"", i, rc, err.text, bad[i].says);
		if (strchr(err.text, '\n'))
			fail_msg("case %zu: more than one line: %s", i, err.text);
	}
}

static void write_file(const char *name, mode_t mode, char ret_path[128])
{
	int fd;

	snprintf(ret_path, 128, "%s/%s", dir, name);
	fd = open(ret_path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

#define HEAD "version: 1\nnode: n0\nstate_dir: /nowhere/s\nchunk_dir: /nowhere/c\nrun_dir: /nowhere/r\ndevices: 1\n"
#define MEM  "memory: {ceiling: 8GiB}\n"
#define LOC  "coordinator: local\n"
#define UNIX "listen: unix:/nowhere/p\n"

static char ca[128], key[128], open_key[128];

/* $T: tls with real files, $O: with a key open to everybody, $M: with a missing file, $P: without a key. */
static void expand(const char *in, char *out, size_t size)
{
	size_t n = 0;

	for (; *in && n + 1 < size; in++) {
		const char *k = in[1] == 'T' ? key : in[1] == 'O' ? open_key : "/nowhere/key";

		if (*in != '$') {
			out[n++] = *in;
			continue;
		}
		in++;
		n += (size_t)snprintf(out + n, size - n, "tls: {ca: %s, cert: %s%s%s}", ca, ca,
				      *in == 'P' ? "" : ", key: ", *in == 'P' ? "" : k);
	}
	out[n] = '\0';
}

struct rule_case {
	const char *text;
	bool insecure;
	const char *says; /* NULL: fine */
};

static const struct rule_case across_keys[] = {
	{ MEM LOC UNIX, false, NULL },
	{ MEM LOC "listen: h:1\n", false, "f.yaml:9:1: listen: h:1 without tls" },
	{ MEM LOC "listen: 127.0.0.1:1\n", false, "listen: 127.0.0.1:1 without tls" },
	{ MEM LOC "listen: 127.0.0.1:1\n", true, NULL },
	{ MEM LOC "listen: '[::1]:1'\n", true, NULL },
	{ MEM LOC "listen: 10.0.0.1:1\n", true, "--insecure-loopback is for 127.0.0.1 only" },
	{ MEM LOC "listen: 0.0.0.0:1\n", true, "--insecure-loopback is for 127.0.0.1 only" },
	{ MEM LOC "$T\nlisten: 10.0.0.1:1\n", false, NULL },
	{ MEM LOC "$T\nlisten: 0.0.0.0:1\n", false, "advertise: nobody can connect to 0.0.0.0:1" },
	{ MEM LOC "$T\nlisten: 0.0.0.0:1\nadvertise: h:1\n", false, NULL },
	{ MEM LOC "$T\nlisten: h:1\nadvertise: unix:/a\n", false, "both must be unix: or neither" },
	{ MEM LOC "$O\nlisten: h:1\n", false, "tls.key: " },
	{ MEM LOC "$M\nlisten: h:1\n", false, "tls.key: cannot read /nowhere/key" },
	{ MEM LOC "$P\nlisten: h:1\n", false, "tls.key: missing; tls needs ca, cert and key together" },
	{ MEM LOC "tls: {ca: /tmp, cert: /tmp, key: /tmp}\n" UNIX, false, "tls.ca: /tmp is not a file" },
	{ MEM UNIX "coordinator: {endpoints: [h:1]}\n", false, "coordinator.endpoints: h:1 without tls" },
	{ MEM UNIX "coordinator: {endpoints: [h:1]}\n", true, "coordinator.endpoints: h:1 without tls" },
	{ MEM UNIX "coordinator: {endpoints: [h:1]}\n$T\n", false, NULL },
	{ MEM UNIX "coordinator: {endpoints: [h:1], $T}\n", false, NULL },
	{ MEM UNIX "coordinator: {endpoints: [h:1], $P}\n", false, "coordinator.tls.key: missing" },
	{ MEM UNIX "coordinator: {endpoints: ['127.0.0.1:1']}\n", true, NULL },
	{ MEM UNIX "coordinator: {endpoints: ['0.0.0.0:1']}\n", true, "nobody can connect" },
	{ MEM UNIX "coordinator: {endpoints: [unix:/a]}\n", false, NULL },
	{ MEM UNIX "coordinator: {endpoints: [unix:/a]}\nlocal_coordinator: {listen: unix}\n", false,
	  "local_coordinator.listen: has no effect" },
	{ MEM LOC UNIX "local_coordinator: {listen: 'https://h:1'}\n", false, "needs tls" },
	{ MEM LOC UNIX "local_coordinator: {listen: 'https://h:1'}\n$T\n", false, NULL },
	{ MEM LOC UNIX "local_coordinator: {listen: 'http://127.0.0.1:1'}\n", false, "is not protected" },
	{ MEM LOC UNIX "local_coordinator: {listen: 'http://127.0.0.1:1'}\n", true, NULL },
	{ MEM LOC UNIX "local_coordinator: {listen: 'http://h:1'}\n", true, "is not protected" },
	{ "memory: {ceiling: 1GiB, staging: 15MiB}\n" LOC UNIX, false, "memory.staging: must be at least 16MiB" },
	{ "memory: {ceiling: 256MiB}\n" LOC UNIX, false, "memory.ceiling: too small to be useful" },
	{ "memory: {ceiling: 610MiB}\n" LOC UNIX, false, "etcd 128MiB; write at least 616MiB" },
	{ "memory: {ceiling: 616MiB}\n" LOC UNIX, false, NULL },
	{ "memory: {ceiling: 488MiB}\n" UNIX "coordinator: {endpoints: [unix:/a]}\n", false, NULL },
	{ "memory: {ceiling: 1GiB, work: 31MiB}\n" LOC UNIX, false, "memory.work: must be at least 32MiB" },
	{ "memory: {ceiling: 1GiB, work: 16777216TiB}\n" LOC UNIX, false, "" },
	{ MEM LOC UNIX "fuse: {dir: /ptc, cache: 7MiB}\n", false, "fuse.cache: must be at least 8MiB" },
	{ MEM LOC UNIX "health: {every: 999ms}\n", false, "health.every: write 1s to 1d" },
	{ MEM LOC UNIX "health: {argv: [/bin/true], timeout: 0s}\n", false, "health.timeout: write 1s to 1d" },
	{ MEM LOC UNIX "health: {argv: [/bin/true, -q, a b]}\n", false, NULL },
	{ MEM LOC UNIX "copies: {rate: 1023KiB}\n", false, "copies.rate: must be at least 1MiB, or 0B" },
	{ MEM LOC UNIX "sources: {cache: 15MiB}\n", false, "sources.cache: must be at least 16MiB, or 0B" },
	{ MEM LOC UNIX "fuse: {backing: 0B}\n", false, "fuse.backing: has no effect without" },
	{ MEM LOC UNIX "fuse: {dir: /ptc, backing: some}\n", false, "fuse.backing" },
	{ MEM LOC UNIX "fuse: {timeout: 5s}\n", false, "fuse.timeout: has no effect without" },
	{ MEM LOC UNIX "node_lost_after: 0s\n", false, "f.yaml:10:1: node_lost_after: write 1s to 7d" },
	{ MEM LOC UNIX "node_lost_after: 8d\n", false, "node_lost_after: write 1s to 7d" },
	{ MEM LOC UNIX "node_quarantine: 61m\n", false, "node_quarantine: write at most 1h, or 0s for never" },
	{ MEM LOC UNIX "lease_ttl: 500ms\n", false, "f.yaml:10:1: lease_ttl: write whole seconds" },
	{ MEM LOC UNIX "lease_ttl: 1500ms\n", false, "lease_ttl: write whole seconds" },
	{ MEM LOC UNIX "lease_ttl: 1h\n", false, "lease_ttl: write whole seconds" },
	{ MEM LOC UNIX "cut_off_after: 999ms\n", false, "cut_off_after: write 1s to 7d" },
	{ MEM LOC UNIX "cut_off_after: 8d\n", false, "cut_off_after: write 1s to 7d" },
	{ MEM LOC UNIX "cut_off_after: 0s\n", true, NULL },
	{ MEM LOC UNIX "stall_after: 999ms\n", false, "stall_after: write 1s to 7d" },
	{ MEM LOC UNIX "stall_after: 8d\n", false, "stall_after: write 1s to 7d" },
	{ MEM LOC UNIX "stall_after: 0s\n", true, NULL },
	{ MEM LOC UNIX "local_coordinator: {data_dir: /dev/null}\n", false, "is not a directory" },
	{ MEM LOC UNIX "local_coordinator: {data_dir: /dev/null/x}\n", false, "cannot use /dev/null/x" },
};

static void rules_across_keys(void **state)
{
	write_file("ca", 0644, ca);
	write_file("key", 0600, key);
	write_file("open-key", 0644, open_key);
	for (size_t i = 0; i < PTC_ARRAY_LEN(across_keys); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		char text[4096];
		int rc;

		expand(across_keys[i].text, text + sizeof HEAD - 1, sizeof text - sizeof HEAD);
		memcpy(text, HEAD, sizeof HEAD - 1);
		rc = accept(text, across_keys[i].insecure, &err);
		if (!rc != !across_keys[i].says || (rc && !strstr(err.text, across_keys[i].says)))
			fail_msg("case %zu: %d \"%s\" instead of \"%s\"", i, rc, err.text,
				 across_keys[i].says ? across_keys[i].says : "fine");
	}
}

/* The shares are the whole ceiling, and the least ceiling a refusal names is accepted while 2 MiB less is not. */
static void memory_adds_up(void **state)
{
	uint64_t x = 88172645463325252ull;

	for (int i = 0; i < 1000; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_memory m;
		unsigned long long least = 0;
		uint64_t staging, work;
		const char *at;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		staging = (16 + x % 100000) << 20;
		work = (32 + (x >> 32) % 5000) << 20;
		assert_int_equal(ptc_memory_split(1 << 20, staging, work, x & 1, &m, &err), PTC_EINVAL);
		at = strstr(err.text, "write at least ");
		assert_non_null(at);
		assert_int_equal(sscanf(at, "write at least %lluMiB", &least), 1);
		assert_int_equal(ptc_memory_split((least - 2) << 20, staging, work, x & 1, &m, &err), PTC_EINVAL);
		assert_int_equal(ptc_memory_split(least << 20, staging, work, x & 1, &m, &err), 0);
		assert_true(m.chunks + m.staging + m.work + m.transport + m.etcd + m.tables == least << 20);
		assert_true(m.chunks >= PTC_MEMORY_CHUNKS_MIN && (m.etcd != 0) == (x & 1));
	}
	assert_int_equal(ptc_memory_split(UINT64_MAX, UINT64_MAX, UINT64_MAX, true, &(struct ptc_memory){ 0 }, NULL),
			 PTC_EINVAL);
}

static void socket_paths_are_bounded(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char text[1024], path[128];

	memset(path, 'p', sizeof path);
	path[0] = '/';
	path[sizeof path - 1] = '\0';
	snprintf(text, sizeof text, HEAD MEM LOC UNIX "control_socket: %s\n", path);
	assert_int_equal(accept(text, false, &err), PTC_ELIMIT);
	snprintf(text, sizeof text, HEAD MEM LOC "listen: unix:%s\n", path);
	assert_int_equal(accept(text, false, &err), PTC_EINVAL);
}

/* What is found where there is a driver: daemon/gpu/node, tests/test_gpu_devices.py. */
static void devices_are_found(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	setenv("PTC_GPU", "/nonexistent", 1);
	assert_int_equal(accept(BASE COORD "devices: auto\n", true, &err), PTC_ENODEVICES);
	assert_non_null(strstr(err.text, "auto found no device: "));
	assert_non_null(strstr(err.text, "write devices: NUMBER for virtual devices"));
	unsetenv("PTC_GPU");
}

static void files_are_loaded(void **state)
{
	struct ptc_daemon_config cfg = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	char path[128];

	snprintf(path, sizeof path, "%s/ptcd.yaml", dir);
	assert_int_equal(ptc_daemon_config_load(path, &cfg, &err), PTC_ENOTFOUND);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(ptc_sys_write_file(path, BASE COORD, strlen(BASE COORD), 0600, NULL, &err), 0);
	assert_int_equal(ptc_daemon_config_load(path, &cfg, &err), 0);
	assert_string_equal(cfg.file, path);
	ptc_daemon_config_done(&cfg);
}

/* Each allocation of ours fails in turn: one error, nothing leaked. (libyaml's own are not ours to fail.) */
static void out_of_memory(void **state)
{
	static const char text[] = BASE "coordinator: {endpoints: [a:1, b:2]}\ntls: {ca: /a, cert: /b, key: /c}\n";
	int64_t live = ptc_alloc_live();
	int rc = -1;

	for (uint64_t i = 1; rc; i++) {
		struct ptc_daemon_config cfg = { 0 };
		struct ptc_error err = PTC_ERROR_INIT;

		ptc_alloc_fail_at(i);
		rc = parse(text, &cfg, &err);
		ptc_alloc_fail_at(0);
		assert_true(rc == 0 || rc == PTC_ENOMEM);
		ptc_daemon_config_done(&cfg);
		assert_true(ptc_alloc_live() == live);
		assert_true(i < 1000);
	}
}

static void man_page_names_every_key(void **state)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	assert_non_null(f);
	ptc_daemon_config_print_man(f);
	fclose(f);
	assert_non_null(strstr(text, "\n\\fBmemory.ceiling\\fR: \\fISIZE\\fR (required)\n"));
	assert_non_null(strstr(text, "\\fBlocal_coordinator.listen\\fR"));
	assert_non_null(strstr(text, "(default: 256MiB)"));
	for (const char *p = text; (p = strchr(p, '\n')) && p[1]; p++)
		assert_true(p[1] != '.' || strncmp(p + 1, ".TP\n", 4) == 0);
	free(text);
}

static int setup(void **state)
{
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	return ptc_sys_remove_tree(dir, NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_filled),      cmocka_unit_test(timeouts),
		cmocka_unit_test(every_key_is_read),        cmocka_unit_test(the_nodes_tls_serves_the_coordinator),
		cmocka_unit_test(dump_loads_back),          cmocka_unit_test(bad_input_is_one_clear_line),
		cmocka_unit_test(rules_across_keys),        cmocka_unit_test(socket_paths_are_bounded),
		cmocka_unit_test(devices_are_found),        cmocka_unit_test(files_are_loaded),
		cmocka_unit_test(memory_adds_up),           cmocka_unit_test(out_of_memory),
		cmocka_unit_test(man_page_names_every_key),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
