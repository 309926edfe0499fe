/* SPDX-License-Identifier: Apache-2.0 */
/* The event log of a job: one line a decision, in etcd, so that it outlives
 * every daemon. A failed append is logged and forgotten: events explain, they
 * decide nothing. The oldest are dropped twenty at a time. */
#include "base/alloc.h"
#include "base/log.h"
#include "base/sys.h"
#include "daemon/daemon.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define KEEP_EVENTS 1000
#define PRUNE_EVERY 20

struct line {
	char uuid[PTC_UUID_TEXT];
	char *json;
};

static atomic_uint_fast64_t last_number;

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

static void prune(struct ptc_etcd *etcd, const char *uuid)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", uuid);
	if (ptc_etcd_get(etcd, prefix, true, 0, &kvs, NULL) != 0)
		return;
	for (size_t i = 0; i + KEEP_EVENTS < kvs.n; i++)
		ptc_etcd_delete(etcd, kvs.kv[i].key, false, "etcd.oldevent", NULL);
	ptc_etcd_kvs_done(&kvs);
}

static void append(void *arg, struct ptc_etcd *etcd)
{
	static uint64_t appended; /* coordination thread only */
	struct line *l = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	char key[128], meta[96];
	bool ok;

	snprintf(key, sizeof key, "/ptc/events/%s/%020" PRIu64, l->uuid, next_number());
	snprintf(meta, sizeof meta, "/ptc/jobs/%s/meta", l->uuid);
	/* only while the job exists: an event of a deleted one would stay for ever */
	if (ptc_etcd_txn(etcd, &(struct ptc_etcd_compare){ meta, PTC_ETCD_VERSION, 1 }, 1,
			 &(struct ptc_etcd_op){ .key = key, .value = l->json, .len = strlen(l->json) }, 1, "etcd.event",
			 &ok, NULL, &err) != 0)
		ptc_warn("event", "not recorded: %s (%s)", l->json, err.text);
	else if (++appended % PRUNE_EVERY == 0)
		prune(etcd, l->uuid);
	ptc_free(l->json);
	ptc_free(l);
}

void ptc_event(struct ptc_daemon *d, const char *uuid, const char *kind, const char *fmt, ...)
{
	struct line *l = ptc_calloc(1, sizeof *l);
	char text[PTC_ERROR_MAX];
	json_t *root;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ptc_info("event", "job=%s %s: %s", uuid, kind, text);
	if (!l)
		return;
	snprintf(l->uuid, sizeof l->uuid, "%s", uuid);
	root = json_pack("{s:i, s:I, s:s, s:s, s:s}", "version", PTC_DOC_VERSION, "time_ms",
			 (json_int_t)ptc_sys_realtime_ms(), "node", d->config.node, "kind", kind, "text", text);
	l->json = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	if (!l->json || ptc_cluster_run(d->cluster, append, NULL, l) != 0) {
		ptc_free(l->json);
		ptc_free(l);
	}
}
