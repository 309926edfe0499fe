/* SPDX-License-Identifier: Apache-2.0 */
/* See quota.h. */
#include "daemon/cluster/quota.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/number/units.h"
#include "daemon/cluster/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_BYTES            8192 /* meta, lock, record, intent, barrier, and what its ranks' nodes say of it */
/* Written without a count, which takes a request or two for each job of the user: rank state is written while they
 * stand. */
#define FREE_BYTES            (1u << 20)
/* Of etcd's quota. Commits have the last eighth for themselves: thousands of manifests. */
#define CREATE_SHARE(quota)   ((quota) / 4 * 3)
#define DOCUMENT_SHARE(quota) ((quota) / 8 * 7)

struct usage {
	size_t jobs;
	uint64_t bytes;  /* all but events */
	uint64_t events; /* bytes of events, at most */
	struct ptc_etcd_kvs announced;
	char (*uuids)[PTC_UUID_TEXT]; /* of the mirror */
	size_t nuuids;
};

void ptc_quota_key(uid_t uid, const char *uuid, char ret_key[PTC_USER_KEY])
{
	snprintf(ret_key, PTC_USER_KEY, "/ptc/users/%u/%s", (unsigned)uid, uuid);
}

/* ---- what a user has ------------------------------------------------------------------- */

static uint64_t part_bytes(const char *key)
{
	const char *dash = strrchr(key, '-'), *slash = strrchr(key, '/');

	return dash && slash && dash > slash ? strtoull(dash + 1, NULL, 10) : PTC_ETCD_VALUE_MAX;
}

static int count_blobs(struct ptc_etcd *e, const char *uuid, uint64_t *bytes, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];
	int rc;

	snprintf(prefix, sizeof prefix, "/ptc/blobs/%s/", uuid);
	rc = ptc_etcd_get_keys(e, prefix, &kvs, err);
	for (size_t i = 0; rc == 0 && i < kvs.n; i++)
		*bytes += strlen(kvs.kv[i].key) + part_bytes(kvs.kv[i].key);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* exact: reads them, else as many times the most that one can be. */
static int count_events(struct ptc_etcd *e, const char *uuid, bool exact, uint64_t *bytes, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];
	size_t n = 0;
	int rc;

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", uuid);
	if (!exact) {
		rc = ptc_etcd_count(e, prefix, &n, err);
		*bytes += n * (PTC_EVENT_MAX_BYTES + sizeof prefix);
		return rc;
	}
	rc = ptc_etcd_get(e, prefix, true, 0, &kvs, err);
	for (size_t i = 0; rc == 0 && i < kvs.n; i++)
		*bytes += strlen(kvs.kv[i].key) + kvs.kv[i].len;
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* What was said of its size when it was announced: its spec may still be on its way. */
static uint64_t announced_bytes(const struct ptc_etcd_kv *kv)
{
	struct ptc_announced_doc doc;

	return ptc_announced_doc_decode(kv->value, kv->len, &doc, NULL) == 0 ? doc.bytes : 0;
}

struct mirror {
	struct ptc_cluster *c;
	uid_t uid;
	struct usage *u;
};

static void list_mirror(void *arg)
{
	struct mirror *m = arg;
	size_t n = ptc_cluster_njobs(m->c);

	m->u->uuids = ptc_calloc(n + 1, sizeof *m->u->uuids);
	for (size_t i = 0; m->u->uuids && i < n; i++) {
		const struct ptc_job_view *j = ptc_cluster_job(m->c, i);

		if (j->has_meta && j->meta.uid == m->uid)
			memcpy(m->u->uuids[m->u->nuuids++], j->uuid, sizeof *m->u->uuids);
	}
}

static bool is_announced(const struct usage *u, const char *uuid)
{
	for (size_t i = 0; i < u->announced.n; i++)
		if (strcmp(strrchr(u->announced.kv[i].key, '/') + 1, uuid) == 0)
			return true;
	return false;
}

static int count_job(struct ptc_etcd *e, struct usage *u, const char *uuid, uint64_t least, struct ptc_error *err)
{
	uint64_t bytes = 0;
	int rc = count_blobs(e, uuid, &bytes, err);

	if (rc == 0)
		rc = count_events(e, uuid, false, &u->events, err);
	u->jobs++;
	u->bytes += PTC_MAX(bytes, least) + KEYS_BYTES;
	return rc;
}

static int list_jobs(struct ptc_cluster *c, uid_t uid, struct usage *u, struct ptc_error *err)
{
	struct mirror m = { .c = c, .uid = uid, .u = u };
	char prefix[PTC_USER_KEY];
	int rc = ptc_loop_call(ptc_cluster_loop(c), list_mirror, &m);

	if (rc || !u->uuids)
		return rc ? ptc_error_set(err, rc, "the daemon is stopping") : ptc_nomem(err);
	ptc_quota_key(uid, "", prefix);
	return ptc_etcd_get(ptc_cluster_etcd(c), prefix, true, 0, &u->announced, err);
}

static void usage_done(struct usage *u)
{
	ptc_etcd_kvs_done(&u->announced);
	ptc_free(u->uuids);
}

/* Everything of one user; events as many as there can be. */
static int count(struct ptc_cluster *c, uid_t uid, struct usage *u, struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(c);
	int rc = list_jobs(c, uid, u, err);

	for (size_t i = 0; rc == 0 && i < u->announced.n; i++)
		rc = count_job(e, u, strrchr(u->announced.kv[i].key, '/') + 1, announced_bytes(&u->announced.kv[i]),
			       err);
	for (size_t i = 0; rc == 0 && i < u->nuuids; i++)
		if (!is_announced(u, u->uuids[i]))
			rc = count_job(e, u, u->uuids[i], 0, err);
	return rc;
}

/* Once more, where it matters how long they are. */
static int count_events_exactly(struct ptc_etcd *e, struct usage *u, struct ptc_error *err)
{
	int rc = 0;

	u->events = 0;
	for (size_t i = 0; rc == 0 && i < u->announced.n; i++)
		rc = count_events(e, strrchr(u->announced.kv[i].key, '/') + 1, true, &u->events, err);
	for (size_t i = 0; rc == 0 && i < u->nuuids; i++)
		if (!is_announced(u, u->uuids[i]))
			rc = count_events(e, u->uuids[i], true, &u->events, err);
	return rc;
}

/* ---- what is allowed ---------------------------------------------------------------------- */

/* more: bytes that are not written yet and not announced either. */
static int check_user(struct ptc_cluster *c, uid_t uid, uint64_t more, struct ptc_error *err)
{
	const uint64_t limit = ptc_cluster_quota(c)->documents;
	char has[PTC_UNITS_MAX], may[PTC_UNITS_MAX];
	struct usage u = { 0 };
	int rc;

	if (uid == 0)
		return 0;
	rc = count(c, uid, &u, err);
	if (rc == 0 && u.bytes + more <= limit && u.bytes + more + u.events > limit)
		rc = count_events_exactly(ptc_cluster_etcd(c), &u, err);
	if (rc == 0 && u.jobs > ptc_cluster_quota(c)->jobs)
		rc = ptc_error_set(err, PTC_ELIMIT,
				   "uid %u has %zu jobs, and may have %llu (quota.jobs); delete one first (`ptcctl job "
				   "list`)",
				   (unsigned)uid, u.jobs - 1, (unsigned long long)ptc_cluster_quota(c)->jobs);
	if (rc == 0 && u.bytes + u.events + more > limit)
		rc = ptc_error_set(err, PTC_ELIMIT,
				   "this document would bring uid %u's jobs to %s in etcd, and they may have %s "
				   "(quota.documents); delete a job first (`ptcctl job list`)",
				   (unsigned)uid, ptc_units_format_bytes(u.bytes + u.events + more, has),
				   ptc_units_format_bytes(limit, may));
	usage_done(&u);
	return rc;
}

static int check_room(struct ptc_cluster *c, uint64_t share, uint64_t more, struct ptc_error *err)
{
	char has[PTC_UNITS_MAX], may[PTC_UNITS_MAX];
	struct ptc_etcd_size s;
	int rc = ptc_etcd_size(ptc_cluster_etcd(c), &s, err);

	if (rc)
		return rc;
	if (s.full)
		return ptc_error_set(err, PTC_ENOSPC,
				     "etcd takes no writes: its database has reached its quota; see \"etcd is full\" "
				     "in docs/install.md");
	if (s.bytes + more <= share)
		return 0;
	return ptc_error_set(
		err, PTC_ENOSPC,
		"etcd's database has %s of quota.etcd %s, and the rest is kept for commits of the jobs there "
		"are; delete jobs, or see \"etcd is full\" in docs/install.md",
		ptc_units_format_bytes(s.bytes, has), ptc_units_format_bytes(ptc_cluster_quota(c)->etcd, may));
}

int ptc_quota_room(struct ptc_cluster *c, uint64_t bytes, struct ptc_error *err)
{
	return check_room(c, CREATE_SHARE(ptc_cluster_quota(c)->etcd), bytes, err);
}

int ptc_quota_job(struct ptc_cluster *c, uid_t uid, struct ptc_error *err)
{
	return check_user(c, uid, 0, err);
}

int ptc_quota_document(struct ptc_cluster *c, uid_t uid, size_t bytes, const char *what, struct ptc_error *err)
{
	int rc;

	if (bytes <= FREE_BYTES)
		return 0;
	rc = check_user(c, uid, bytes, err);
	if (rc == 0)
		rc = check_room(c, DOCUMENT_SHARE(ptc_cluster_quota(c)->etcd), bytes, err);
	if (rc)
		ptc_error_wrap(err, "%s", what);
	return rc;
}
