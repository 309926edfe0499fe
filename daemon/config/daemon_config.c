/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys and what reads and writes it; checks across keys are in daemon_config_check.c.
 *
 * Happy path: libyaml's document is walked once; each scalar finds its key by
 * its dotted path and is parsed by the key's kind into the struct.
 *
 * Failure modes: not YAML, unknown key (with the nearest known one), key given
 * twice, missing key, wrong shape, malformed value: one line each, with
 * file, line and column. */
#include "daemon/config/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/sys/sys.h"
#include "base/number/units.h"
#include "daemon/gpu/node/node_devices.h"
#include "formats/doc.h"
#include "formats/names.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX_BYTES (1u << 20)
#define STRING_MAX     1023 /* longest value of a key */
#define SECTION_MAX    32   /* longest name of a section */

/* ---- kinds of values ------------------------------------------------------ */

struct kind {
	const char *syntax; /* for messages and the man page */
	int (*parse)(void *field, const char *text, struct ptc_error *err);
	bool (*print)(const void *field, struct ptc_buf *b); /* false: not set */
	bool list;
};

static int set_string(void *field, const char *text, struct ptc_error *err)
{
	char **s = field;

	if (strlen(text) > STRING_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "write at most %d bytes", STRING_MAX);
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return ptc_error_set(err, PTC_EINVAL, "leave out control characters");
	*s = ptc_strdup(text);
	return *s ? 0 : ptc_nomem(err);
}

static void print_text(const char *s, struct ptc_buf *b)
{
	bool plain = isalnum((unsigned char)*s) || *s == '/';

	for (const char *p = s; *p; p++)
		plain = plain && (isalnum((unsigned char)*p) || strchr("_./:-", *p));
	if (plain && s[strlen(s) - 1] != ':') {
		ptc_buf_puts(b, s);
		return;
	}
	ptc_buf_puts(b, "\"");
	for (const char *p = s; *p; p++) {
		if (*p == '"' || *p == '\\')
			ptc_buf_puts(b, "\\");
		ptc_buf_append(b, p, 1);
	}
	ptc_buf_puts(b, "\"");
}

static bool print_string(const void *field, struct ptc_buf *b)
{
	const char *s = *(char *const *)field;

	if (s)
		print_text(s, b);
	return s != NULL;
}

static int parse_name(void *field, const char *text, struct ptc_error *err)
{
	if (ptc_name_check_job(text, NULL))
		return ptc_error_set(err, PTC_EINVAL,
				     "\"%.80s\" is no name: write 1 to %d of a-z, 0-9 and -, with a letter or digit at "
				     "both ends",
				     text, PTC_NAME_MAX);
	return set_string(field, text, err);
}

/* Of a device, as drivers write it. */
static int parse_label(void *field, const char *text, struct ptc_error *err)
{
	size_t n = strlen(text);

	if (n == 0 || n >= PTC_DEVICE_LABEL_BYTES)
		return ptc_error_set(err, PTC_EINVAL, "\"%.40s\": write a device's name of 1 to %d characters", text,
				     PTC_DEVICE_LABEL_BYTES - 1);
	for (const char *p = text; *p; p++)
		if (*p < ' ' || *p > '~')
			return ptc_error_set(err, PTC_EINVAL, "a device's name has printable ASCII characters only");
	return set_string(field, text, err);
}

static bool has_dotdot(const char *path)
{
	for (const char *p = path; (p = strstr(p, "..")); p += 2)
		if ((p == path || p[-1] == '/') && (p[2] == '/' || p[2] == '\0'))
			return true;
	return false;
}

static int parse_path(void *field, const char *text, struct ptc_error *err)
{
	if (text[0] != '/' || has_dotdot(text))
		return ptc_error_set(err, PTC_EINVAL, "\"%.200s\": write an absolute path without \"..\"", text);
	return set_string(field, text, err);
}

/* A name that a certificate may carry and etcd compares; no wildcard. */
static int parse_dns(void *field, const char *text, struct ptc_error *err)
{
	size_t len = strlen(text);

	if (len == 0 || len > 253 || strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-.") != len ||
	    strchr("-.", text[0]) || strchr("-.", text[len - 1]))
		return ptc_error_set(err, PTC_EINVAL,
				     "\"%.80s\" is no DNS name: write a-z, 0-9, - and dots between them", text);
	return set_string(field, text, err);
}

static int parse_address(void *field, const char *text, struct ptc_error *err)
{
	struct ptc_daemon_address a;
	int rc = ptc_daemon_address_parse(text, &a, err);

	return rc ? rc : set_string(field, text, err);
}

static int parse_etcd_listen(void *field, const char *text, struct ptc_error *err)
{
	struct ptc_daemon_address a;
	bool http = strncmp(text, "http://", 7) == 0;

	if (strcmp(text, "unix") == 0)
		return set_string(field, text, err);
	if ((!http && strncmp(text, "https://", 8) != 0) || ptc_daemon_address_parse(text + (http ? 7 : 8), &a, NULL) ||
	    a.local)
		return ptc_error_set(err, PTC_EINVAL, "\"%.200s\": write unix or https://HOST:PORT", text);
	return set_string(field, text, err);
}

static int parse_bytes(void *field, const char *text, struct ptc_error *err)
{
	return ptc_units_parse_bytes(text, field, err);
}

static bool print_bytes(const void *field, struct ptc_buf *b)
{
	char text[PTC_UNITS_MAX];

	ptc_buf_puts(b, ptc_units_print_bytes(*(const uint64_t *)field, text));
	return true;
}

static int parse_share(void *field, const char *text, struct ptc_error *err)
{
	if (strcmp(text, "auto") != 0)
		return ptc_units_parse_bytes(text, field, err);
	*(uint64_t *)field = PTC_FUSE_BACKING_AUTO;
	return 0;
}

static bool print_share(const void *field, struct ptc_buf *b)
{
	if (*(const uint64_t *)field != PTC_FUSE_BACKING_AUTO)
		return print_bytes(field, b);
	ptc_buf_puts(b, "auto");
	return true;
}

static int parse_ms(void *field, const char *text, struct ptc_error *err)
{
	return ptc_units_parse_ms(text, field, err);
}

static bool print_ms(const void *field, struct ptc_buf *b)
{
	char text[PTC_UNITS_MAX];

	ptc_buf_puts(b, ptc_units_print_ms(*(const uint64_t *)field, text));
	return true;
}

static int parse_version(void *field, const char *text, struct ptc_error *err)
{
	if (strcmp(text, "1") != 0)
		return ptc_error_set(err, PTC_EVERSION, "\"%.40s\": this ptcd reads version 1", text);
	*(uint64_t *)field = 1;
	return 0;
}

static bool print_version(const void *field, struct ptc_buf *b)
{
	ptc_buf_printf(b, "%" PRIu64, *(const uint64_t *)field);
	return true;
}

static struct ptc_daemon_config *config_of_devices(void *field)
{
	return (struct ptc_daemon_config *)((char *)field - offsetof(struct ptc_daemon_config, devices));
}

static int parse_devices(void *field, const char *text, struct ptc_error *err)
{
	struct ptc_daemon_config *cfg = config_of_devices(field);
	unsigned long n;

	cfg->devices_auto = strcmp(text, "auto") == 0;
	if (cfg->devices_auto)
		return 0;
	n = strlen(text) <= 4 && strspn(text, "0123456789") == strlen(text) ? strtoul(text, NULL, 10) : 0;
	if (n < 1 || n > PTC_MAX_DEVICES_PER_NODE)
		return ptc_error_set(err, PTC_EINVAL, "\"%.40s\": write auto, or 1 to %d for that many virtual devices",
				     text, PTC_MAX_DEVICES_PER_NODE);
	cfg->devices = n;
	return 0;
}

static bool print_devices(const void *field, struct ptc_buf *b)
{
	const struct ptc_daemon_config *cfg =
		(const void *)((const char *)field - offsetof(struct ptc_daemon_config, devices));

	if (cfg->devices_auto)
		ptc_buf_puts(b, "auto");
	else
		ptc_buf_printf(b, "%" PRIu64, cfg->devices);
	return true;
}

static int parse_count(void *field, const char *text, struct ptc_error *err)
{
	const size_t len = strlen(text);

	if (len == 0 || len > 6 || strspn(text, "0123456789") != len || text[0] == '0')
		return ptc_error_set(err, PTC_EINVAL, "\"%.40s\": write a number from 1 to 999999", text);
	*(uint64_t *)field = strtoul(text, NULL, 10);
	return 0;
}

static int parse_local(void *field, const char *text, struct ptc_error *err)
{
	if (strcmp(text, "local") != 0)
		return ptc_error_set(err, PTC_EINVAL, "\"%.80s\": write local, or {endpoints: [HOST:PORT, ...]}", text);
	*(bool *)field = true;
	return 0;
}

static bool print_local(const void *field, struct ptc_buf *b)
{
	if (*(const bool *)field)
		ptc_buf_puts(b, "local");
	return *(const bool *)field;
}

static int add_endpoint(void *field, const char *text, struct ptc_error *err)
{
	struct ptc_daemon_strings *list = field;
	int rc;

	if (list->n == PTC_DAEMON_ENDPOINTS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "more than %d endpoints", PTC_DAEMON_ENDPOINTS_MAX);
	if (!PTC_MORE(list->v, list->n))
		return ptc_nomem(err);
	rc = parse_address(&list->v[list->n], text, err);
	if (rc == 0)
		list->n++;
	return rc;
}

static bool print_endpoints(const void *field, struct ptc_buf *b)
{
	const struct ptc_daemon_strings *list = field;

	for (size_t i = 0; i < list->n; i++) {
		ptc_buf_puts(b, i ? ", " : "[");
		print_text(list->v[i], b);
	}
	if (list->n)
		ptc_buf_puts(b, "]");
	return list->n > 0;
}

/* v has room for the NULL behind them. */
static int add_argument(void *field, const char *text, struct ptc_error *err)
{
	struct ptc_daemon_strings *list = field;
	int rc;

	if (list->n == PTC_DAEMON_ARGS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "more than %d arguments", PTC_DAEMON_ARGS_MAX);
	if (!list->n && text[0] != '/')
		return ptc_error_set(err, PTC_EINVAL, "\"%.200s\": begin with the absolute path of a program", text);
	if (!list->v)
		list->v = ptc_calloc(PTC_DAEMON_ARGS_MAX + 1, sizeof *list->v);
	if (!list->v)
		return ptc_nomem(err);
	rc = set_string(&list->v[list->n], text, err);
	if (rc == 0)
		list->n++;
	return rc;
}

static int parse_flag(void *field, const char *text, struct ptc_error *err)
{
	const bool yes = strcmp(text, "yes") == 0;

	if (!yes && strcmp(text, "no") != 0)
		return ptc_error_set(err, PTC_EINVAL, "\"%.40s\": write yes or no", text);
	*(bool *)field = yes;
	return 0;
}

static bool print_flag(const void *field, struct ptc_buf *b)
{
	ptc_buf_puts(b, *(const bool *)field ? "yes" : "no");
	return true;
}

static const char *const log_names[] = { "error", "warn", "info", "debug" };

static int parse_log(void *field, const char *text, struct ptc_error *err)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(log_names); i++)
		if (strcmp(text, log_names[i]) == 0) {
			*(enum ptc_log_level *)field = (enum ptc_log_level)i;
			return 0;
		}
	return ptc_error_set(err, PTC_EINVAL, "\"%.40s\": write error, warn, info or debug", text);
}

static bool print_log(const void *field, struct ptc_buf *b)
{
	ptc_buf_puts(b, log_names[*(const enum ptc_log_level *)field]);
	return true;
}

static const struct kind k_version = { "1", parse_version, print_version };
static const struct kind k_count = { "NUMBER", parse_count, print_version };
static const struct kind k_name = { "NAME", parse_name, print_string };
static const struct kind k_label = { "NAME", parse_label, print_string };
static const struct kind k_path = { "PATH", parse_path, print_string };
static const struct kind k_dns = { "DNS-NAME", parse_dns, print_string };
static const struct kind k_address = { "HOST:PORT|unix:PATH", parse_address, print_string };
static const struct kind k_etcd_listen = { "unix|https://HOST:PORT", parse_etcd_listen, print_string };
static const struct kind k_bytes = { "SIZE", parse_bytes, print_bytes };
static const struct kind k_share = { "auto|SIZE", parse_share, print_share };
static const struct kind k_ms = { "DURATION", parse_ms, print_ms };
static const struct kind k_devices = { "auto|NUMBER", parse_devices, print_devices };
static const struct kind k_local = { "local", parse_local, print_local };
static const struct kind k_endpoints = { "[HOST:PORT, ...]", add_endpoint, print_endpoints, true };
static const struct kind k_argv = { "[PROGRAM, ARGUMENT, ...]", add_argument, print_endpoints, true };
static const struct kind k_tcp = { "ADDRESS:PORT", parse_address, print_string };
static const struct kind k_flag = { "yes|no", parse_flag, print_flag };
static const struct kind k_log = { "error|warn|info|debug", parse_log, print_log };

/* ---- the table --------------------------------------------------------------- */

static const struct key {
	const char *name; /* dotted */
	const struct kind *kind;
	size_t offset;
	const char *fallback; /* parsed like a value; NULL: none, "@...": computed in fill_computed */
	const char *missing;  /* what to write when the key must be there; NULL: it need not */
	const char *help;
} keys[] = {
#define AT(member) offsetof(struct ptc_daemon_config, member)
	{ "version", &k_version, AT(version), NULL, "1", "Version of this file." },
	{ "node", &k_name, AT(node), NULL, "a name that no other node has, such as n0",
	  "Name of this node in the cluster. With TLS the certificate must carry the URI ptc://node/NAME." },
	{ "rack", &k_name, AT(rack), NULL, NULL,
	  "Name of the nodes that share a network switch. A TP group that needs several nodes stays in one rack if it "
	  "fits. Nodes without a rack count as one rack." },
	{ "state_dir", &k_path, AT(state_dir), NULL, "a directory on a disk",
	  "Records of this node: which bytes it holds, with their checksums. Durable, small." },
	{ "chunk_dir", &k_path, AT(chunk_dir), NULL, "a directory, for speed on a tmpfs",
	  "Bytes of jobs' state. On a tmpfs they are lost when the machine restarts, and reported as lost." },
	{ "run_dir", &k_path, AT(run_dir), NULL, "a directory such as /run/ptc", "Sockets." },
	{ "control_socket", &k_path, AT(control_socket), "@RUN_DIR/control.sock", NULL,
	  "Where ptcctl reaches this daemon; any local user may connect, and acts as that user." },
	{ "listen", &k_address, AT(listen), NULL, "HOST:PORT, or unix:PATH for daemons of one user on one machine",
	  "Where other daemons reach this one. TCP needs tls; unix: needs a directory of mode 0700." },
	{ "advertise", &k_address, AT(advertise), "@listen", NULL, "The address of `listen` as other nodes reach it." },
	{ "tls.ca", &k_path, AT(tls.ca), NULL, NULL,
	  "PEM file of the authority that signs every node and administrator." },
	{ "tls.cert", &k_path, AT(tls.cert), NULL, NULL, "PEM file of this node's certificate." },
	{ "tls.key", &k_path, AT(tls.key), NULL, NULL, "PEM file of its key, readable by ptcd only." },
	{ "tls.member", &k_dns, AT(tls.member), PTC_RPC_MEMBER, NULL,
	  "DNS name in the certificates of this cluster's nodes, beside ptc://node/NAME. A certificate without it is "
	  "no member's. Clusters of one authority need different names." },
	{ "tls.crl", &k_path, AT(tls.crl), NULL, NULL,
	  "PEM file of revoked certificates, signed by the authority. ptcd reads it again when it changes." },
	{ "devices", &k_devices, AT(devices), "auto", NULL,
	  "auto finds the GPUs that the driver and CUDA_VISIBLE_DEVICES show; a number gives that many virtual "
	  "devices." },
	{ "device_copy", &k_bytes, AT(device_copy), "0B", NULL,
	  "Memory of each GPU in which a switch may keep what stays on the GPU, from the stop to the restore. The next "
	  "ranks need the rest. 0B: everything comes from the host." },
	{ "prefetch", &k_bytes, AT(prefetch), "0B", NULL,
	  "Page-locked memory of this node into which state is read while new ranks build, so that only the copy to "
	  "their "
	  "GPUs is left. It counts against memory.ceiling while it is used. 0B: none." },
	{ "device_name", &k_label, AT(device_name), NULL, NULL,
	  "What each device of this node is, by a name of devices_file, such as H100-80GB; for the planner. By default "
	  "what "
	  "the driver says; virtual devices are then of no kind." },
	{ "devices_file", &k_path, AT(devices_file), NULL, NULL,
	  "YAML file of devices by name, with peaks, memory and price, for the planner. By default the installed "
	  "share/ptc/devices.yaml." },
	{ "memory.ceiling", &k_bytes, AT(memory.ceiling), NULL, "a size such as 8GiB",
	  "Most memory that chunks, staging, buffers and a local etcd use together. Work that does not fit is "
	  "refused." },
	{ "memory.staging", &k_bytes, AT(memory.staging), "256MiB", NULL,
	  "Part of the ceiling for bytes on their way." },
	{ "memory.work", &k_bytes, AT(memory.work), "96MiB", NULL,
	  "Part of the ceiling for the program, specs, layouts and plans. A model of very many tensors on very many "
	  "devices needs more." },
	{ "memory.spare", &k_bytes, AT(memory.spare), "0B", NULL,
	  "Free memory that a job may keep for its next switch, because new memory costs more time than the network. "
	  "It "
	  "is made ready while nothing else happens. 0B: a tenth of the memory that it uses, at least 64MiB, and only "
	  "memory that a switch has freed." },
	{ "coordinator", &k_local, AT(coordinator.local), NULL, NULL,
	  "local: this daemon runs an etcd of its own. Otherwise a section with these keys:" },
	{ "coordinator.endpoints", &k_endpoints, AT(coordinator.endpoints), NULL, NULL, "The etcd members." },
	{ "coordinator.tls.ca", &k_path, AT(coordinator.tls.ca), "@tls.ca", NULL, "Authority of etcd's certificates." },
	{ "coordinator.tls.cert", &k_path, AT(coordinator.tls.cert), "@tls.cert", NULL, "Certificate shown to etcd." },
	{ "coordinator.tls.key", &k_path, AT(coordinator.tls.key), "@tls.key", NULL, "Its key." },
	{ "coordinator.stranger.cert", &k_path, AT(coordinator.stranger.cert), NULL, NULL,
	  "A certificate of the same authority that names no node. When ptcd starts it shows this to every etcd "
	  "member, and does not start if one lets it in. Not needed if coordinator.tls has an authority of its own: "
	  "then tls.cert is the stranger." },
	{ "coordinator.stranger.key", &k_path, AT(coordinator.stranger.key), NULL, NULL, "Its key." },
	{ "coordinator.unproved", &k_flag, AT(coordinator.unproved), "no", NULL,
	  "yes: ptcd starts without proof that etcd refuses strangers." },
	{ "local_coordinator.data_dir", &k_path, AT(local_coordinator.data_dir), "@STATE_DIR/etcd", NULL,
	  "Data of the local etcd; mode 0700, on a disk." },
	{ "local_coordinator.listen", &k_etcd_listen, AT(local_coordinator.listen), "unix", NULL,
	  "Where the local etcd listens: a socket in data_dir, or TLS for other nodes." },
	{ "lease_ttl", &k_ms, AT(lease_ttl_ms), "5s", NULL,
	  "Time for which a silent node counts as alive. Whole seconds; etcd grants at least 2." },
	{ "node_lost_after", &k_ms, AT(node_lost_after_ms), "10s", NULL,
	  "Time that switches wait for a node after its lease has ended. Then the node counts as lost: switches of "
	  "jobs that never had ranks go on without it if other nodes hold the state. While etcd is unreachable no node "
	  "becomes lost; if most nodes end together, it takes three times as long." },
	{ "node_quarantine", &k_ms, AT(node_quarantine_ms), "1m", NULL,
	  "A node that comes back after it was lost a second time is quarantined for this time, and twice as long "
	  "after "
	  "each further loss, at most 1h: no job moves ranks to it by itself. 0s: never." },
	{ "cut_off_after", &k_ms, AT(cut_off_after_ms), "0s", NULL,
	  "If this node has had no lease for this time, and no other machine of the cluster takes or refuses a "
	  "connection, the node is cut off: its ranks are ended, because their jobs may go on elsewhere. 0s: never." },
	{ "stall_after", &k_ms, AT(stall_after_ms), "10m", NULL,
	  "If the step of ranks does not move for this time, and for 30 times a step's time, events and status say "
	  "that they have stalled. ptcd does nothing to them. 0s: never." },
	{ "copy_timeout", &k_ms, AT(copy_timeout_ms), "30s", NULL,
	  "If a copy of at most 16MiB of a rank's memory does not answer for this time, the memory hangs, for example "
	  "because it is mapped from a dead file system. The snapshot or switch then fails and names the rank." },
	{ "fuse.dir", &k_path, AT(fuse.dir), NULL, NULL,
	  "Directory that shows jobs' state as files, to each user their own; made if missing. Not set: no files." },
	{ "fuse.cache", &k_bytes, AT(fuse.cache), "64MiB", NULL,
	  "Memory of the process that serves these files, besides memory.ceiling. At least 8MiB." },
	{ "fuse.backing", &k_share, AT(fuse.backing), "auto", NULL,
	  "Most memory for files of the mount that are kept whole, from which the kernel reads by itself (Linux 6.9, "
	  "root). "
	  "auto: a quarter of the memory that memory.ceiling leaves. 0B: none." },
	{ "fuse.backing_dir", &k_path, AT(fuse.backing_dir), NULL, NULL,
	  "Directory on a disk in which these files lie instead. Not set: they are in memory. Not on overlayfs." },
	{ "fuse.timeout", &k_ms, AT(fuse.timeout_ms), "30s", NULL,
	  "A read of these files fails after this time without an answer. With less than 25s ptcd does not notice a "
	  "node that hangs in time to read a replica of its bytes instead." },
	{ "sources.dir", &k_path, AT(sources.dir), "@STATE_DIR/sources", NULL,
	  "Directory that keeps samples of datasets on other nodes; made, mode 0700, with the first sample." },
	{ "sources.cache", &k_bytes, AT(sources.cache), "1GiB", NULL,
	  "Largest size of the file there. At least 16MiB; 0B: keep no samples, and read none ahead." },
	{ "scrub.rate", &k_bytes, AT(scrub.rate), "32MiB", NULL,
	  "Bytes of chunks that ptcd reads each second, while no switch is under way here, to find damaged blocks and "
	  "heal them from other nodes. 100MiB cost a hundredth of a core. 0B: none; only damage that readers find is "
	  "healed." },
	{ "scrub.pause", &k_ms, AT(scrub.pause_ms), "1m", NULL,
	  "Time from the last chunk until ptcd begins with the first again." },
	{ "copies.rate", &k_bytes, AT(copies.rate), "64MiB", NULL,
	  "Bytes of copies (`copies` in job.yaml) that may come to this node each second, beside the jobs' own "
	  "traffic. At least 1MiB; 0B: no limit." },
	{ "near", &k_flag, AT(near), "yes", NULL,
	  "yes: if another ptcd of this machine runs as the same user, both read each other's chunks in memory. no: "
	  "their "
	  "bytes go over sockets, as between machines." },
	{ "health.argv", &k_argv, AT(health.argv), NULL, NULL,
	  "Program and arguments of a command that says whether this node's devices are well, run as ptcd's user. Exit "
	  "status 0: they are. Another one: those that lines of its output begin with, as in \"device 3: reason\", are "
	  "not, or all if there is no such line; no ranks get them until it succeeds. Not set: there is none." },
	{ "health.every", &k_ms, AT(health.every_ms), "1m", NULL,
	  "Time from the end of that command until it runs again." },
	{ "health.timeout", &k_ms, AT(health.timeout_ms), "30s", NULL,
	  "A health command that takes longer is killed, which is no verdict." },
	{ "quota.jobs", &k_count, AT(quota.jobs), "100", NULL,
	  "Most jobs of one user in the whole cluster. root has no bound. Write the same on every node." },
	{ "quota.datasets", &k_count, AT(quota.datasets), "250", NULL,
	  "Most datasets that one user may have registered in the whole cluster. root has no bound. Write the same on "
	  "every node." },
	{ "quota.documents", &k_bytes, AT(quota.documents), "256MiB", NULL,
	  "Most bytes in etcd for the documents of one user's jobs: descriptions, layouts, rank state, events. At "
	  "least 1MiB. root has no bound." },
	{ "quota.etcd", &k_bytes, AT(quota.etcd), "2GiB", NULL,
	  "Largest size of etcd's database. A local etcd gets this value; for a cluster write its members' "
	  "--quota-backend-bytes. Above three quarters of it no job is created, so that jobs can commit. 32MiB to "
	  "8GiB." },
	{ "metrics", &k_tcp, AT(metrics), NULL, NULL,
	  "Address where Prometheus finds this daemon's metrics, at the path /metrics, such as 127.0.0.1:7461. Without "
	  "TLS or passwords. Not set: no metrics." },
	{ "metrics_jobs", &k_flag, AT(metrics_jobs), "no", NULL,
	  "yes: the metrics list jobs by name, with step and rate. Whoever can connect then sees the jobs of every "
	  "user." },
	{ "metrics_public", &k_flag, AT(metrics_public), "no", NULL,
	  "yes: `metrics` may be an address that other machines reach. no: it must be a loopback address." },
	{ "log", &k_log, AT(log), "info", NULL, "Least severe messages that go to the log." },
#undef AT
};

_Static_assert(PTC_ARRAY_LEN(keys) <= PTC_DAEMON_CONFIG_KEYS_MAX, "raise PTC_DAEMON_CONFIG_KEYS_MAX");

static void *field_of(struct ptc_daemon_config *cfg, const struct key *k)
{
	return (char *)cfg + k->offset;
}

static const struct key *find_key(const char *name)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++)
		if (strcmp(keys[i].name, name) == 0)
			return &keys[i];
	return NULL;
}

static bool is_section(const char *name)
{
	size_t len = strlen(name);

	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++)
		if (strncmp(keys[i].name, name, len) == 0 && keys[i].name[len] == '.')
			return true;
	return false;
}

/* ---- errors --------------------------------------------------------------------- */

int(ptc_daemon_config_error)(const struct ptc_daemon_config *cfg, const char *name, struct ptc_error *err, int code,
			     const char *fmt, ...)
{
	const struct key *k = find_key(name);
	char text[PTC_ERROR_MAX / 2];
	va_list ap;
	size_t i = k ? (size_t)(k - keys) : 0;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (k && cfg->where[i].line)
		return ptc_error_set(err, code, "%.300s:%u:%u: %s: %s", cfg->file, cfg->where[i].line,
				     cfg->where[i].col, name, text);
	return ptc_error_set(err, code, "%.300s: %s: %s", cfg->file, name, text);
}

bool ptc_daemon_config_given(const struct ptc_daemon_config *cfg, const char *name)
{
	const struct key *k = find_key(name);

	return k && cfg->where[k - keys].line;
}

struct walk {
	struct ptc_daemon_config *cfg;
	struct ptc_error *err;
};

__attribute__((format(printf, 6, 7))) static int error_at(const struct walk *w, uint32_t line, unsigned column,
							  const char *name, int code, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX / 2];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ptc_error_set(w->err, code, "%.300s:%" PRIu32 ":%u: %s: %s", w->cfg->file, line, column, name, text);
}
#define VALUE_ERROR(w, n, ...) error_at(w, (n)->line, (n)->column, __VA_ARGS__)
#define KEY_ERROR(w, n, ...)   error_at(w, (n)->key_line, (n)->key_column, __VA_ARGS__)

/* ---- the nearest key -------------------------------------------------------------- */

static const char *last_part(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot ? dot + 1 : name;
}

/* The key or section nearest to a dotted name; else the key whose last part is, in whatever section. NULL: none is
 * near. */
static const char *nearest(const char *name, char sections[][SECTION_MAX])
{
	const char *all[2 * PTC_ARRAY_LEN(keys)], *parts[PTC_ARRAY_LEN(keys)], *near;
	size_t n = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		snprintf(sections[i], SECTION_MAX, "%.*s", (int)(last_part(keys[i].name) - keys[i].name), keys[i].name);
		sections[i][strlen(sections[i]) - (*sections[i] != '\0')] = '\0';
		all[n++] = keys[i].name;
		all[n++] = sections[i];
		parts[i] = last_part(keys[i].name);
	}
	near = ptc_name_nearest(name, all, n);
	if (near)
		return near;
	near = ptc_name_nearest(last_part(name), parts, PTC_ARRAY_LEN(keys));
	for (size_t i = 0; near && i < PTC_ARRAY_LEN(keys); i++)
		if (parts[i] == near)
			return keys[i].name;
	return NULL;
}

static int unknown_key(const struct walk *w, const struct ptc_doc_node *node, const char *name)
{
	char sections[PTC_ARRAY_LEN(keys)][SECTION_MAX];
	const char *near = nearest(name, sections);

	if (near)
		return KEY_ERROR(w, node, name, PTC_EINVAL, "unknown key; did you mean %s?", near);
	return KEY_ERROR(w, node, name, PTC_EINVAL, "unknown key; ptcd --dump-config prints the known ones");
}

/* ---- walking the document ------------------------------------------------------------ */

static int set_value(const struct walk *w, const struct key *k, const struct ptc_doc_node *node)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc;

	if (node->kind != PTC_DOC_TEXT || !node->text[0])
		return VALUE_ERROR(w, node, k->name, PTC_EINVAL, "needs a value: %s", k->kind->syntax);
	rc = k->kind->parse(field_of(w->cfg, k), node->text, &why);
	return rc ? VALUE_ERROR(w, node, k->name, rc, "%s", why.text) : 0;
}

static int set_list(const struct walk *w, const struct key *k, const struct ptc_doc_node *node)
{
	int rc = 0;

	if (node->kind != PTC_DOC_LIST || !node->n)
		return VALUE_ERROR(w, node, k->name, PTC_EINVAL, "needs a list: %s", k->kind->syntax);
	for (const struct ptc_doc_node *n = node->first; n && !rc; n = n->next)
		rc = set_value(w, k, n);
	return rc;
}

static int walk_map(const struct walk *w, const struct ptc_doc_node *map, const char *prefix);

static int walk_member(const struct walk *w, const struct ptc_doc_node *node, const char *prefix)
{
	char name[STRING_MAX + 1];
	const bool dotted = strchr(node->key, '.');
	const struct key *k;
	size_t i;

	if (snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", node->key) >= (int)sizeof name)
		return KEY_ERROR(w, node, *prefix ? prefix : "a key", PTC_EINVAL, "a key must be a short word");
	k = dotted ? NULL : find_key(name);
	if (node->kind == PTC_DOC_MAP && is_section(name) && !dotted)
		return walk_map(w, node, name);
	if (!k && is_section(name))
		return VALUE_ERROR(w, node, name, PTC_EINVAL, "needs a section with keys of its own");
	if (!k)
		return unknown_key(w, node, name);
	i = (size_t)(k - keys);
	w->cfg->where[i].line = node->key_line;
	w->cfg->where[i].col = node->key_column;
	return k->kind->list ? set_list(w, k, node) : set_value(w, k, node);
}

static int walk_map(const struct walk *w, const struct ptc_doc_node *map, const char *prefix)
{
	int rc = 0;

	for (const struct ptc_doc_node *n = map->first; n && !rc; n = n->next)
		rc = walk_member(w, n, prefix);
	return rc;
}

static int walk_document(struct ptc_daemon_config *cfg, const char *text, size_t len, struct ptc_error *err)
{
	struct ptc_doc doc = { 0 };
	int rc = ptc_doc_from_yaml(cfg->file, text, len, &doc, err);

	if (!rc && doc.root->kind != PTC_DOC_MAP)
		rc = ptc_error_set(err, PTC_EINVAL, "%s: expected keys such as \"node: NAME\"", cfg->file);
	if (!rc)
		rc = walk_map(&(struct walk){ cfg, err }, doc.root, "");
	ptc_doc_done(&doc);
	return rc;
}

/* ---- defaults -------------------------------------------------------------------------- */

static int default_string(char **field, const char *dir, const char *name, struct ptc_error *err)
{
	if (*field || !dir)
		return 0;
	*field = ptc_asprintf("%s%s", dir, name);
	return *field ? 0 : ptc_nomem(err);
}

static int fill_computed(struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	struct ptc_daemon_tls *tls = &cfg->coordinator.tls;
	int rc = default_string(&cfg->control_socket, cfg->run_dir, "/control.sock", err);

	if (!rc)
		rc = default_string(&cfg->advertise, cfg->listen, "", err);
	if (!rc)
		rc = default_string(&cfg->local_coordinator.data_dir, cfg->state_dir, "/etcd", err);
	if (!rc)
		rc = default_string(&cfg->sources.dir, cfg->state_dir, "/sources", err);
	if (rc || tls->ca || tls->cert || tls->key) /* taken over as a whole */
		return rc;
	rc = default_string(&tls->ca, cfg->tls.ca, "", err);
	if (!rc)
		rc = default_string(&tls->cert, cfg->tls.cert, "", err);
	return rc ? rc : default_string(&tls->key, cfg->tls.key, "", err);
}

static int fill_defaults(struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		const struct key *k = &keys[i];
		int rc = 0;

		if (cfg->where[i].line)
			continue;
		if (k->missing)
			return ptc_error_set(err, PTC_EINVAL, "%.300s: %s: missing; write %s: and %s", cfg->file,
					     k->name, k->name, k->missing);
		if (k->fallback && k->fallback[0] != '@')
			rc = k->kind->parse(field_of(cfg, k), k->fallback, err);
		if (rc)
			return rc;
	}
	if (!cfg->coordinator.local && cfg->coordinator.endpoints.n == 0)
		return ptc_error_set(err, PTC_EINVAL,
				     "%.300s: coordinator: missing; write coordinator: local, or coordinator: "
				     "{endpoints: [HOST:PORT, ...]}",
				     cfg->file);
	return fill_computed(cfg, err);
}

int ptc_daemon_config_parse(const char *name, const char *text, size_t len, struct ptc_daemon_config *ret_cfg,
			    struct ptc_error *err)
{
	struct ptc_daemon_config cfg = { .file = ptc_strdup(name) };
	int rc = cfg.file ? 0 : ptc_nomem(err);

	if (!rc)
		rc = walk_document(&cfg, text, len, err);
	if (!rc)
		rc = fill_defaults(&cfg, err);
	if (rc) {
		ptc_daemon_config_done(&cfg);
		return rc;
	}
	*ret_cfg = cfg;
	return 0;
}

int ptc_daemon_config_load(const char *path, struct ptc_daemon_config *ret_cfg, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	size_t len;
	int rc = ptc_sys_read_file(path, FILE_MAX_BYTES, &text, &len, err);

	return rc ? rc : ptc_daemon_config_parse(path, text, len, ret_cfg, err);
}

void ptc_daemon_config_done(struct ptc_daemon_config *cfg)
{
	if (!cfg)
		return;
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++)
		if (keys[i].kind->print == print_string)
			ptc_free(*(char **)field_of(cfg, &keys[i]));
	for (size_t i = 0; i < cfg->coordinator.endpoints.n; i++)
		ptc_free(cfg->coordinator.endpoints.v[i]);
	ptc_free(cfg->coordinator.endpoints.v);
	for (size_t i = 0; i < cfg->health.argv.n; i++)
		ptc_free(cfg->health.argv.v[i]);
	ptc_free(cfg->health.argv.v);
	ptc_free(cfg->file);
	ptc_node_devices_free(cfg->found);
	*cfg = (struct ptc_daemon_config){ 0 };
}

/* ---- writing it -------------------------------------------------------------------------- */

int ptc_daemon_config_memory(const struct ptc_daemon_config *cfg, struct ptc_memory *ret_memory, struct ptc_error *err)
{
	return ptc_memory_split(cfg->memory.ceiling, cfg->memory.staging, cfg->memory.work, cfg->coordinator.local,
				ret_memory, err);
}

/* Section headers between the key written last and this one. */
static void open_sections(const char *last, const char *name, struct ptc_buf *b)
{
	int depth = 0;

	for (const char *p = name, *dot; (dot = strchr(p, '.')); p = dot + 1, depth++) {
		size_t len = (size_t)(dot - name) + 1;

		if (strncmp(last, name, len) != 0)
			ptc_buf_printf(b, "%*s%.*s:\n", depth * 2, "", (int)(dot - p), p);
	}
}

/* Keys that do not apply: those of the coordinator that is not used. */
static bool applies(const struct ptc_daemon_config *cfg, const char *name)
{
	if (strncmp(name, "coordinator.", 12) == 0)
		return !cfg->coordinator.local;
	if (strncmp(name, "fuse.", 5) == 0)
		return cfg->fuse.dir != NULL;
	if (strncmp(name, "metrics_", 8) == 0)
		return cfg->metrics != NULL;
	if (strcmp(name, "tls.member") == 0)
		return cfg->tls.ca != NULL;
	return cfg->coordinator.local || strncmp(name, "local_coordinator.", 18) != 0;
}

void ptc_daemon_config_dump(const struct ptc_daemon_config *cfg, struct ptc_buf *b)
{
	const char *last = "";
	struct ptc_memory memory;

	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		const struct key *k = &keys[i];
		const char *dot = strrchr(k->name, '.');
		struct ptc_buf value = PTC_BUF_INIT;
		int depth = 0;

		for (const char *p = k->name; (p = strchr(p, '.')); p++)
			depth++;
		if (applies(cfg, k->name) && k->kind->print((const char *)cfg + k->offset, &value)) {
			open_sections(last, k->name, b);
			ptc_buf_printf(b, "%*s%s: %s\n", depth * 2, "", dot ? dot + 1 : k->name,
				       value.data ? value.data : "");
			last = k->name;
		}
		b->failed = b->failed || ptc_buf_failed(&value);
		ptc_buf_done(&value);
	}
	ptc_daemon_config_memory(cfg, &memory, NULL);
	ptc_memory_comment(&memory, b);
}

static void roff(FILE *out, const char *text)
{
	for (const char *p = text; *p; p++) {
		if (*p == '-' || *p == '\\')
			fputc('\\', out);
		fputc(*p, out);
	}
}

void ptc_daemon_config_print_man(FILE *out)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		const struct key *k = &keys[i];

		fputs(".TP\n\\fB", out);
		roff(out, k->name);
		fputs("\\fR: \\fI", out);
		roff(out, k->kind->syntax);
		fputs("\\fR", out);
		if (k->missing)
			fputs(" (required)", out);
		if (k->fallback) {
			fputs(" (default: ", out);
			roff(out, k->fallback + (k->fallback[0] == '@'));
			fputs(")", out);
		}
		fputs("\n\\&", out); /* a line must not begin with a dot */
		roff(out, k->help);
		fputc('\n', out);
	}
}
