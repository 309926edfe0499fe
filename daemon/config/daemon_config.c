/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys and what reads and writes it; checks across keys are in
 * config_check.c.
 *
 * Happy path: libyaml's document is walked once; each scalar finds its key by
 * its dotted path and is parsed by the key's kind into the struct.
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

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define FILE_MAX_BYTES (1u << 20)
#define MAX_DEPTH      8    /* keys need 3 */
#define STRING_MAX     1023 /* longest value of a key */
#define NEAR_MAX       64   /* longest key that gets a suggestion */

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
		return ptc_error_set(err, PTC_ELIMIT, "longer than %d bytes", STRING_MAX);
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return ptc_error_set(err, PTC_EINVAL, "holds a control character");
	*s = ptc_strdup(text);
	return *s ? 0 : ptc_error_set(err, PTC_ENOMEM, "out of memory");
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

static bool is_name(const char *s)
{
	size_t len = strlen(s);

	if (len == 0 || len > PTC_NAME_MAX || s[0] == '-' || s[len - 1] == '-')
		return false;
	return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static int parse_name(void *field, const char *text, struct ptc_error *err)
{
	if (!is_name(text))
		return ptc_error_set(err, PTC_EINVAL,
				     "\"%.80s\" is no name: write 1 to %d of a-z, 0-9 and -, with a letter or digit at "
				     "both ends",
				     text, PTC_NAME_MAX);
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
	char **grown;
	int rc;

	if (list->n == PTC_DAEMON_ENDPOINTS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "more than %d endpoints", PTC_DAEMON_ENDPOINTS_MAX);
	grown = ptc_reallocarray(list->v, list->n + 1, sizeof *grown);
	if (!grown)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	list->v = grown;
	rc = parse_address(&grown[list->n], text, err);
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
static const struct kind k_path = { "PATH", parse_path, print_string };
static const struct kind k_dns = { "DNS-NAME", parse_dns, print_string };
static const struct kind k_address = { "HOST:PORT|unix:PATH", parse_address, print_string };
static const struct kind k_etcd_listen = { "unix|https://HOST:PORT", parse_etcd_listen, print_string };
static const struct kind k_bytes = { "SIZE", parse_bytes, print_bytes };
static const struct kind k_ms = { "DURATION", parse_ms, print_ms };
static const struct kind k_devices = { "auto|NUMBER", parse_devices, print_devices };
static const struct kind k_local = { "local", parse_local, print_local };
static const struct kind k_endpoints = { "[HOST:PORT, ...]", add_endpoint, print_endpoints, true };
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
	  "What this node shares a switch with. A TP group that needs several nodes stays in one rack, where it fits; "
	  "nodes "
	  "that name none count as one rack." },
	{ "state_dir", &k_path, AT(state_dir), NULL, "a directory on a disk",
	  "What the node must remember: which bytes it holds, with their checksums. Durable, small." },
	{ "chunk_dir", &k_path, AT(chunk_dir), NULL, "a directory, for speed on a tmpfs",
	  "The state's bytes. On a tmpfs they are lost when the machine restarts, and reported as lost." },
	{ "run_dir", &k_path, AT(run_dir), NULL, "a directory such as /run/ptc", "Sockets." },
	{ "control_socket", &k_path, AT(control_socket), "@RUN_DIR/control.sock", NULL,
	  "Where ptcctl reaches this daemon; any local user may connect, and acts as that user." },
	{ "listen", &k_address, AT(listen), NULL, "HOST:PORT, or unix:PATH for daemons of one user on one machine",
	  "Where other daemons reach this one. TCP needs tls; unix: needs a directory of mode 0700." },
	{ "advertise", &k_address, AT(advertise), "@listen", NULL, "The same as other nodes must write it." },
	{ "tls.ca", &k_path, AT(tls.ca), NULL, NULL,
	  "PEM file of the authority that signs every node and administrator." },
	{ "tls.cert", &k_path, AT(tls.cert), NULL, NULL, "PEM file of this node's certificate." },
	{ "tls.key", &k_path, AT(tls.key), NULL, NULL, "PEM file of its key, readable by ptcd only." },
	{ "tls.member", &k_dns, AT(tls.member), PTC_RPC_MEMBER, NULL,
	  "DNS name that certificates of this cluster's nodes carry, beside ptc://node/NAME, and no others do: who "
	  "lacks "
	  "it is no member. Clusters of one authority have different ones." },
	{ "tls.crl", &k_path, AT(tls.crl), NULL, NULL,
	  "PEM file, signed by the authority, of certificates that count no more. It is read again when it changes." },
	{ "devices", &k_devices, AT(devices), "auto", NULL,
	  "auto finds the GPUs that the driver and CUDA_VISIBLE_DEVICES show; a number gives that many virtual "
	  "devices." },
	{ "memory.ceiling", &k_bytes, AT(memory.ceiling), NULL, "a size such as 8GiB",
	  "What chunks, staging, buffers and a local etcd may use together. What does not fit is refused." },
	{ "memory.staging", &k_bytes, AT(memory.staging), "256MiB", NULL, "The part of it for bytes on their way." },
	{ "memory.work", &k_bytes, AT(memory.work), "96MiB", NULL,
	  "The part for the program, specs, layouts and plans. A model of very many tensors on very many devices needs "
	  "more." },
	{ "memory.spare", &k_bytes, AT(memory.spare), "0B", NULL,
	  "What a job may keep of memory it has freed, for its next switch: new memory costs more time than the "
	  "network. "
	  "0B: a tenth of what it uses, at least 64MiB." },
	{ "coordinator", &k_local, AT(coordinator.local), NULL, NULL,
	  "local: this daemon runs an etcd of its own. Otherwise a section with these keys:" },
	{ "coordinator.endpoints", &k_endpoints, AT(coordinator.endpoints), NULL, NULL, "The etcd members." },
	{ "coordinator.tls.ca", &k_path, AT(coordinator.tls.ca), "@tls.ca", NULL, "Authority of etcd's certificates." },
	{ "coordinator.tls.cert", &k_path, AT(coordinator.tls.cert), "@tls.cert", NULL, "Certificate shown to etcd." },
	{ "coordinator.tls.key", &k_path, AT(coordinator.tls.key), "@tls.key", NULL, "Its key." },
	{ "coordinator.stranger.cert", &k_path, AT(coordinator.stranger.cert), NULL, NULL,
	  "A certificate of the same authority that names no node: ptcd shows it to every etcd member when it starts, "
	  "and "
	  "does not start if one lets it in. Not needed where coordinator.tls has an authority of its own: then "
	  "tls.cert "
	  "is the stranger." },
	{ "coordinator.stranger.key", &k_path, AT(coordinator.stranger.key), NULL, NULL, "Its key." },
	{ "coordinator.unproved", &k_flag, AT(coordinator.unproved), "no", NULL,
	  "yes: ptcd starts without having seen that etcd turns strangers away." },
	{ "local_coordinator.data_dir", &k_path, AT(local_coordinator.data_dir), "@STATE_DIR/etcd", NULL,
	  "Data of the local etcd; mode 0700, on a disk." },
	{ "local_coordinator.listen", &k_etcd_listen, AT(local_coordinator.listen), "unix", NULL,
	  "Where the local etcd listens: a socket in data_dir, or TLS for other nodes." },
	{ "lease_ttl", &k_ms, AT(lease_ttl_ms), "5s", NULL,
	  "How long a silent node counts as alive. Whole seconds; etcd grants at least 2." },
	{ "stall_after", &k_ms, AT(stall_after_ms), "10m", NULL,
	  "Ranks whose step has not moved for so long, and for 30 times what a step took, are said to have stalled, in "
	  "events and "
	  "status. Nothing is done to them. 0s: never." },
	{ "copy_timeout", &k_ms, AT(copy_timeout_ms), "30s", NULL,
	  "A rank's memory that does not answer for so long while at most 16MiB of it are copied is taken to hang, as "
	  "a mapping "
	  "of a dead file system does: the snapshot or switch fails and names the rank." },
	{ "fuse.dir", &k_path, AT(fuse.dir), NULL, NULL,
	  "Where jobs' state appears as files, each user's own to him; made if missing. Not set: nowhere." },
	{ "fuse.cache", &k_bytes, AT(fuse.cache), "64MiB", NULL,
	  "What the process that serves them keeps in memory, besides memory.ceiling. At least 8MiB." },
	{ "fuse.timeout", &k_ms, AT(fuse.timeout_ms), "30s", NULL,
	  "A read there fails after this long without an answer. With less than 25s a node that hangs is not found out "
	  "in "
	  "time for a replica of its bytes to be read instead." },
	{ "sources.dir", &k_path, AT(sources.dir), "@STATE_DIR/sources", NULL,
	  "Where samples of datasets that lie on other nodes are kept; made, mode 0700, with the first of them." },
	{ "sources.cache", &k_bytes, AT(sources.cache), "1GiB", NULL,
	  "How large the file there is, at most. At least 16MiB; 0B: nothing is kept, and nothing read ahead." },
	{ "quota.jobs", &k_count, AT(quota.jobs), "100", NULL,
	  "How many jobs one user may have, in the whole cluster. root has no bound. The same on every node." },
	{ "quota.documents", &k_bytes, AT(quota.documents), "256MiB", NULL,
	  "What the documents of one user's jobs may take in etcd: descriptions, layouts, rank state beside "
	  "tensors, "
	  "events. At least 1MiB. root has no bound." },
	{ "quota.etcd", &k_bytes, AT(quota.etcd), "2GiB", NULL,
	  "How large etcd's database may become: a local etcd is given that, of a cluster it is what its members have "
	  "as "
	  "--quota-backend-bytes. Above three quarters of it no job is created, so that jobs can commit. 32MiB to "
	  "8GiB." },
	{ "metrics", &k_tcp, AT(metrics), NULL, NULL,
	  "Where Prometheus finds numbers of this daemon, at the path /metrics, such as 127.0.0.1:7461. Without TLS or "
	  "passwords. Not set: nowhere." },
	{ "metrics_jobs", &k_flag, AT(metrics_jobs), "no", NULL,
	  "Whether jobs are listed there by name, with step and rate: whoever can connect sees those of every user." },
	{ "metrics_public", &k_flag, AT(metrics_public), "no", NULL,
	  "yes: metrics may be an address that other machines reach. Otherwise it must be one of this machine's own." },
	{ "log", &k_log, AT(log), "info", NULL, "What goes to the log." },
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

int ptc_daemon_config_error(const struct ptc_daemon_config *cfg, const char *name, struct ptc_error *err, int code,
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
	yaml_document_t *doc;
	struct ptc_error *err;
};

__attribute__((format(printf, 5, 6))) static int node_error(const struct walk *w, const yaml_node_t *node,
							    const char *name, int code, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX / 2];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ptc_error_set(w->err, code, "%.300s:%zu:%zu: %s%s%s", w->cfg->file, node->start_mark.line + 1,
			     node->start_mark.column + 1, name, *name ? ": " : "", text);
}

/* ---- the nearest key -------------------------------------------------------------- */

/* Levenshtein distance; both at most NEAR_MAX long. */
static size_t distance(const char *a, const char *b)
{
	size_t row[NEAR_MAX + 1], lb = strlen(b);

	for (size_t j = 0; j <= lb; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			size_t change = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			row[j] = PTC_MIN(change, PTC_MIN(row[j], row[j - 1]) + 1);
		}
	}
	return row[lb];
}

/* The known name nearest to the dotted one, at any depth; what is near is judged by the last component too. */
static bool nearest(const char *name, char *ret_name, size_t size)
{
	const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
	size_t best = SIZE_MAX;

	if (strlen(name) > NEAR_MAX)
		return false;
	for (size_t i = 0; i < PTC_ARRAY_LEN(keys); i++) {
		/* every prefix of a key that ends at a component: sections are names too */
		for (const char *end = keys[i].name; end; end = *end ? end : NULL) {
			char candidate[NEAR_MAX + 1];
			const char *tail;
			size_t d;

			end += strcspn(end, ".");
			snprintf(candidate, sizeof candidate, "%.*s", (int)(end - keys[i].name), keys[i].name);
			tail = strrchr(candidate, '.');
			d = distance(name, candidate) * 2;
			d = PTC_MIN(d, distance(last, tail ? tail + 1 : candidate) * 2 + 1); /* same word elsewhere */
			if (d < best) {
				best = d;
				snprintf(ret_name, size, "%s", candidate);
			}
			end += *end == '.';
		}
	}
	return best / 2 <= PTC_MAX(strlen(last) / 3, 2);
}

static int unknown_key(const struct walk *w, const yaml_node_t *node, const char *name)
{
	char near[NEAR_MAX + 1];

	if (nearest(name, near, sizeof near))
		return node_error(w, node, name, PTC_EINVAL, "unknown key; did you mean %s?", near);
	return node_error(w, node, name, PTC_EINVAL, "unknown key; ptcd --dump-config prints the known ones");
}

/* ---- walking the document ------------------------------------------------------------ */

/* The text of a scalar without NULs inside; NULL: it is none. */
static const char *scalar(const yaml_node_t *node)
{
	if (node->type != YAML_SCALAR_NODE || strlen((const char *)node->data.scalar.value) != node->data.scalar.length)
		return NULL;
	return (const char *)node->data.scalar.value;
}

static int set_value(const struct walk *w, const struct key *k, const yaml_node_t *node)
{
	const char *text = scalar(node);
	struct ptc_error why = PTC_ERROR_INIT;
	int rc;

	if (!text || !*text)
		return node_error(w, node, k->name, PTC_EINVAL, "needs a value: %s", k->kind->syntax);
	rc = k->kind->parse(field_of(w->cfg, k), text, &why);
	return rc ? node_error(w, node, k->name, rc, "%s", why.text) : 0;
}

static int set_list(const struct walk *w, const struct key *k, const yaml_node_t *node)
{
	int rc = 0;

	if (node->type != YAML_SEQUENCE_NODE || node->data.sequence.items.start == node->data.sequence.items.top)
		return node_error(w, node, k->name, PTC_EINVAL, "needs a list: %s", k->kind->syntax);
	for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top && !rc; i++)
		rc = set_value(w, k, yaml_document_get_node(w->doc, *i));
	return rc;
}

static int walk_mapping(const struct walk *w, const yaml_node_t *map, const char *prefix);

static int walk_pair(const struct walk *w, const yaml_node_t *key, const yaml_node_t *value, const char *prefix)
{
	char name[STRING_MAX + 1];
	const char *text = scalar(key);
	const struct key *k;
	size_t i;

	if (!text || snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", text) >= (int)sizeof name)
		return node_error(w, key, prefix, PTC_EINVAL, "a key must be a short word");
	k = strchr(text, '.') ? NULL : find_key(name);
	if (value->type == YAML_MAPPING_NODE && is_section(name) && !strchr(text, '.'))
		return walk_mapping(w, value, name);
	if (!k && is_section(name))
		return node_error(w, value, name, PTC_EINVAL, "needs a section with keys of its own");
	if (!k)
		return unknown_key(w, key, name);
	i = (size_t)(k - keys);
	w->cfg->where[i].line = (unsigned)key->start_mark.line + 1;
	w->cfg->where[i].col = (unsigned)key->start_mark.column + 1;
	return k->kind->list ? set_list(w, k, value) : set_value(w, k, value);
}

static bool given_before(const struct walk *w, const yaml_node_t *map, const yaml_node_pair_t *pair)
{
	const char *text = scalar(yaml_document_get_node(w->doc, pair->key));

	for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; text && p < pair; p++) {
		const char *other = scalar(yaml_document_get_node(w->doc, p->key));

		if (other && strcmp(other, text) == 0)
			return true;
	}
	return false;
}

static int walk_mapping(const struct walk *w, const yaml_node_t *map, const char *prefix)
{
	int rc = 0;

	if (map->data.mapping.pairs.top - map->data.mapping.pairs.start > PTC_DAEMON_CONFIG_KEYS_MAX)
		return node_error(w, map, prefix, PTC_ELIMIT, "more keys than there are");
	for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top && !rc; p++) {
		const yaml_node_t *key = yaml_document_get_node(w->doc, p->key);

		if (given_before(w, map, p))
			return node_error(w, key, scalar(key), PTC_EINVAL, "given twice; remove one");
		rc = walk_pair(w, key, yaml_document_get_node(w->doc, p->value), prefix);
	}
	return rc;
}

static int yaml_error(const struct ptc_daemon_config *cfg, const yaml_parser_t *p, struct ptc_error *err)
{
	if (p->error == YAML_MEMORY_ERROR)
		return ptc_error_set(err, PTC_ENOMEM, "%s: out of memory", cfg->file);
	return ptc_error_set(err, PTC_EINVAL, "%.300s:%zu:%zu: not YAML: %.200s", cfg->file, p->problem_mark.line + 1,
			     p->problem_mark.column + 1, p->problem ? p->problem : "syntax error");
}

/* libyaml's time grows with the square of the depth, so what is nested deeper than any key is refused before it is read. */
static int check_depth(struct ptc_daemon_config *cfg, yaml_parser_t *parser, struct ptc_error *err)
{
	bool end = false;
	size_t line;
	int depth = 0;

	while (!end) {
		yaml_event_t e;

		if (!yaml_parser_parse(parser, &e))
			return yaml_error(cfg, parser, err);
		depth += e.type == YAML_MAPPING_START_EVENT || e.type == YAML_SEQUENCE_START_EVENT;
		depth -= e.type == YAML_MAPPING_END_EVENT || e.type == YAML_SEQUENCE_END_EVENT;
		end = e.type == YAML_STREAM_END_EVENT;
		line = e.start_mark.line + 1;
		yaml_event_delete(&e);
		if (depth > MAX_DEPTH)
			return ptc_error_set(err, PTC_ELIMIT, "%.300s:%zu: nested too deeply", cfg->file, line);
	}
	return 0;
}

static int walk_document(struct ptc_daemon_config *cfg, yaml_parser_t *parser, struct ptc_error *err)
{
	yaml_document_t doc, next;
	struct walk w = { cfg, &doc, err };
	yaml_node_t *root;
	int rc;

	if (!yaml_parser_load(parser, &doc))
		return yaml_error(cfg, parser, err);
	root = yaml_document_get_root_node(&doc);
	if (!root || root->type != YAML_MAPPING_NODE)
		rc = ptc_error_set(err, PTC_EINVAL, "%s: expected keys such as \"node: NAME\"", cfg->file);
	else
		rc = walk_mapping(&w, root, "");
	yaml_document_delete(&doc);
	if (rc)
		return rc;
	if (!yaml_parser_load(parser, &next))
		return yaml_error(cfg, parser, err);
	root = yaml_document_get_root_node(&next);
	if (root)
		rc = ptc_error_set(err, PTC_EINVAL, "%s:%zu: a second document; there may be one", cfg->file,
				   root->start_mark.line + 1);
	yaml_document_delete(&next);
	return rc;
}

/* ---- defaults -------------------------------------------------------------------------- */

static int default_string(char **field, const char *dir, const char *name, struct ptc_error *err)
{
	if (*field || !dir)
		return 0;
	*field = ptc_asprintf("%s%s", dir, name);
	return *field ? 0 : ptc_error_set(err, PTC_ENOMEM, "out of memory");
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

static int parse_with(struct ptc_daemon_config *cfg, const char *text, size_t len,
		      int (*fn)(struct ptc_daemon_config *, yaml_parser_t *, struct ptc_error *), struct ptc_error *err)
{
	yaml_parser_t parser;
	int rc;

	if (!yaml_parser_initialize(&parser))
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
	rc = fn(cfg, &parser, err);
	yaml_parser_delete(&parser);
	return rc;
}

int ptc_daemon_config_parse(const char *name, const char *text, size_t len, struct ptc_daemon_config *ret_cfg,
			    struct ptc_error *err)
{
	struct ptc_daemon_config cfg = { .file = ptc_strdup(name) };
	int rc = cfg.file ? 0 : ptc_error_set(err, PTC_ENOMEM, "out of memory");

	if (!rc)
		rc = parse_with(&cfg, text, len, check_depth, err);
	if (!rc)
		rc = parse_with(&cfg, text, len, walk_document, err);
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
