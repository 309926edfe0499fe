/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the event log of a job (`ptcctl events`), and drops old events: one line a decision, in etcd, so that it
 * outlives every daemon. A failed append is logged and forgotten: events explain, they decide nothing. The oldest are
 * dropped, now and then, by an append. For callers while the coordinator is unreachable, this daemon also remembers
 * events, at most RING lines: the events that the daemon wrote, and those that it read when it began to keep a job's
 * documents. */
#include "daemon/cluster/job_events.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_EVENTS 1000
#define PRUNE_EVERY 20
#define SLOTS       256
#define RING        4096 /* of a few hundred bytes, 5 KiB at most */
#define KEY_BYTES   128

struct line {
	char uuid[PTC_UUID_TEXT];
	uint64_t number;
	char *json;
};

struct ptc_event_line {
	struct line line;
	char key[KEY_BYTES], kind[32], text[PTC_ERROR_MAX];
};

static atomic_uint_fast64_t last_number;
static struct {
	pthread_mutex_t lock;
	struct line v[RING];
	size_t next;
} ring = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Increasing within a daemon, and across daemons as far as clocks agree. */
static uint64_t next_number(void)
{
	uint64_t now = (uint64_t)ptc_sys_realtime_ms() * 1000;
	uint64_t last = atomic_load(&last_number), next;

	do {
		next = now > last ? now : last + 1;
	} while (!atomic_compare_exchange_weak(&last_number, &last, next));
	return next;
}

/* ---- remembered ---- */

static void remember(const char *uuid, uint64_t number, const char *json, size_t len)
{
	char *copy = ptc_strndup(json, len);
	struct line *l;

	if (!copy)
		return;
	pthread_mutex_lock(&ring.lock);
	l = &ring.v[ring.next++ % RING];
	ptc_free(l->json);
	*l = (struct line){ .number = number, .json = copy };
	snprintf(l->uuid, sizeof l->uuid, "%s", uuid);
	pthread_mutex_unlock(&ring.lock);
}

void ptc_events_free(void)
{
	for (size_t i = 0; i < RING; i++) {
		ptc_free(ring.v[i].json);
		ring.v[i] = (struct line){ .number = 0 };
	}
}

void ptc_events_remember(struct ptc_etcd *etcd, const char *uuid)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", uuid);
	if (ptc_etcd_get(etcd, prefix, true, 0, &kvs, NULL) != 0)
		return;
	for (size_t i = kvs.n > KEEP_EVENTS ? kvs.n - KEEP_EVENTS : 0; i < kvs.n; i++)
		remember(uuid, strtoull(kvs.kv[i].key + strlen(prefix), NULL, 10), kvs.kv[i].value, kvs.kv[i].len);
	ptc_etcd_kvs_done(&kvs);
}

int ptc_events_read(struct ptc_etcd *etcd, const char *uuid, struct ptc_read_events *to, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];
	int rc;

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", uuid);
	rc = ptc_etcd_get(etcd, prefix, true, 0, &kvs, err);
	for (size_t i = 0; rc == 0 && i < kvs.n; i++)
		rc = ptc_read_events_add(to, strtoull(kvs.kv[i].key + strlen(prefix), NULL, 10), kvs.kv[i].value,
					 kvs.kv[i].len);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

int ptc_events_remembered(const char *uuid, struct ptc_read_events *to)
{
	struct line *found = ptc_calloc(RING, sizeof *found);
	size_t n = 0;
	int rc = found ? 0 : PTC_ENOMEM;

	pthread_mutex_lock(&ring.lock); /* for copying only: the loop waits for it when it writes an event */
	for (size_t i = 0; rc == 0 && i < RING; i++) {
		if (!ring.v[i].json || strcmp(ring.v[i].uuid, uuid) != 0)
			continue;
		found[n] = (struct line){ .number = ring.v[i].number, .json = ptc_strdup(ring.v[i].json) };
		rc = found[n++].json ? 0 : PTC_ENOMEM;
	}
	pthread_mutex_unlock(&ring.lock);
	for (size_t i = 0; i < n; i++) {
		if (rc == 0)
			rc = ptc_read_events_add(to, found[i].number, found[i].json, strlen(found[i].json));
		ptc_free(found[i].json);
	}
	ptc_free(found);
	return rc;
}

/* ---- written ---- */

/* Whether a job's log is to be cut: at its first event here, and whenever twenty have come since. Jobs that share a
 * slot are due each time, so that none of them is left out. */
static bool due(const char *uuid)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		char uuid[PTC_UUID_TEXT];
		unsigned n;
	} slots[SLOTS];
	size_t at = 0;
	bool is_due;

	for (const char *p = uuid; *p; p++)
		at = at * 31 + (unsigned char)*p;
	at %= SLOTS;
	pthread_mutex_lock(&lock);
	is_due = strcmp(slots[at].uuid, uuid) != 0 || ++slots[at].n >= PRUNE_EVERY;
	if (is_due) {
		snprintf(slots[at].uuid, sizeof slots[at].uuid, "%s", uuid);
		slots[at].n = 0;
	}
	pthread_mutex_unlock(&lock);
	return is_due;
}

/* With the event that comes: in the same revision. */
static void prune(struct ptc_etcd *etcd, const char *uuid, struct ptc_etcd_kvs *kvs, struct ptc_etcd_op *op)
{
	char prefix[96];

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", uuid);
	if (!due(uuid) || ptc_etcd_get_keys(etcd, prefix, kvs, NULL) != 0 || kvs->n <= KEEP_EVENTS)
		return;
	*op = (struct ptc_etcd_op){ .key = kvs->kv[0].key, .until = kvs->kv[kvs->n - KEEP_EVENTS].key };
}

static void key_of(const struct line *l, char ret_key[KEY_BYTES])
{
	snprintf(ret_key, KEY_BYTES, "/ptc/events/%s/%020" PRIu64, l->uuid, l->number);
}

static void append(void *arg, struct ptc_etcd *etcd)
{
	struct ptc_etcd_op ops[2] = { { 0 } };
	struct ptc_etcd_kvs kvs = { 0 };
	struct line *l = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	char key[KEY_BYTES], meta[96];
	bool ok;

	key_of(l, key);
	snprintf(meta, sizeof meta, "/ptc/jobs/%s/meta", l->uuid);
	/* only while the job exists: an event of a deleted one would stay for ever */
	ops[0] = (struct ptc_etcd_op){ .key = key, .value = l->json, .len = strlen(l->json) };
	prune(etcd, l->uuid, &kvs, &ops[1]);
	if (ptc_etcd_txn(etcd, &(struct ptc_etcd_compare){ meta, PTC_ETCD_VERSION, 1 }, 1, ops, ops[1].key ? 2 : 1,
			 "etcd.event", &ok, NULL, &err) != 0)
		ptc_warn("event", "not recorded: %s (%s)", l->json, err.text);
	ptc_etcd_kvs_done(&kvs);
	ptc_free(l->json);
	ptc_free(l);
}

static char *encode(struct ptc_cluster *c, const char *kind, const struct ptc_switch_end *end, const char *text)
{
	struct ptc_event_doc doc = {
		.time_ms = ptc_sys_realtime_ms(), .node = ptc_cluster_self(c), .kind = kind, .text = text
	};

	if (end)
		doc.end = *end;
	return ptc_event_doc_encode(&doc);
}

static void post(struct ptc_cluster *c, const char *uuid, const char *kind, const struct ptc_switch_end *end,
		 const char *text)
{
	struct line *l = ptc_calloc(1, sizeof *l);

	ptc_info("event", "job=%s %s: %s", uuid, kind, text);
	if (!l)
		return;
	snprintf(l->uuid, sizeof l->uuid, "%s", uuid);
	l->json = encode(c, kind, end, text);
	l->number = next_number();
	if (l->json)
		remember(uuid, l->number, l->json, strlen(l->json));
	if (!l->json || ptc_cluster_run(c, uuid, append, NULL, l) != 0) {
		ptc_free(l->json);
		ptc_free(l);
	}
}

void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	post(c, uuid, kind, NULL, text);
}

void ptc_event_with(struct ptc_cluster *c, const char *uuid, const char *kind, const struct ptc_switch_end *end,
		    const char *fmt, ...)
{
	char text[PTC_ERROR_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	post(c, uuid, kind, end, text);
}

/* ---- written with something else ---- */

struct ptc_event_line *ptc_event_line_new(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt,
					  ...)
{
	struct ptc_event_line *l = ptc_calloc(1, sizeof *l);
	va_list ap;

	if (!l)
		return NULL;
	va_start(ap, fmt);
	vsnprintf(l->text, sizeof l->text, fmt, ap);
	va_end(ap);
	snprintf(l->kind, sizeof l->kind, "%s", kind);
	snprintf(l->line.uuid, sizeof l->line.uuid, "%s", uuid);
	l->line.number = next_number();
	l->line.json = encode(c, kind, NULL, l->text);
	key_of(&l->line, l->key);
	return l->line.json ? l : ptc_event_line_free(l, false);
}

struct ptc_etcd_op ptc_event_line_op(const struct ptc_event_line *l)
{
	return (struct ptc_etcd_op){ .key = l->key, .value = l->line.json, .len = strlen(l->line.json) };
}

struct ptc_event_line *ptc_event_line_free(struct ptc_event_line *l, bool happened)
{
	if (!l)
		return NULL;
	if (happened) {
		ptc_info("event", "job=%s %s: %s", l->line.uuid, l->kind, l->text);
		remember(l->line.uuid, l->line.number, l->line.json, strlen(l->line.json));
	}
	ptc_free(l->line.json);
	ptc_free(l);
	return NULL;
}
