/* SPDX-License-Identifier: Apache-2.0 */
/* Drops tables of a job, and says whether there is memory for new ones. Happy path: the job's tables are listed, and
 * all are kept but those to be dropped. Failure modes: no memory for the list; PTC_ENOSPC that says how much is
 * missing. The Drop call besides: a stale controller (PTC_EFENCED). */
#include "daemon/agent/calls/operation.h"
#include "daemon/store/store.h"
#include "daemon/agent/tables/tables.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct key_list {
	const struct ptc_table_key *except;
	struct ptc_table_key *v;
	size_t n, cap;
	bool seen, failed;
};

static void key_collect(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes)
{
	struct key_list *l = arg;

	if (key->generation == l->except->generation && key->snapshot == l->except->snapshot) {
		l->seen = true;
		return;
	}
	if (!PTC_ROOM(l->v, l->n + 1, l->cap)) {
		l->failed = true;
		return;
	}
	l->v[l->n++] = *key;
}

static int key_list_read(struct key_list *l, struct ptc_agent *agent, const struct ptc_table_key *except,
			 struct ptc_error *err)
{
	int rc;

	*l = (struct key_list){ .except = except };
	rc = ptc_store_tables(agent->env.store, except->uuid, key_collect, l, err);
	if (!rc && l->failed)
		rc = ptc_nomem(err);
	return rc;
}

int ptc_agent_table_there(struct ptc_agent *agent, const struct ptc_table_key *key, bool *ret_there,
			  struct ptc_error *err)
{
	struct key_list others;
	int rc = key_list_read(&others, agent, key, err);

	ptc_free(others.v);
	if (!rc)
		*ret_there = others.seen;
	return rc;
}

int ptc_agent_table_drop(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_error *err)
{
	struct key_list after;
	int rc = key_list_read(&after, agent, key, err);

	if (!rc && after.seen)
		rc = ptc_store_keep(agent->env.store, key->uuid, after.v, after.n, err);
	ptc_free(after.v);
	return rc;
}

int ptc_agent_parts_drop(struct ptc_agent *agent, const char *uuid, struct ptc_error *err)
{
	struct ptc_table_key none = { 0 };
	struct key_list all;
	size_t n = 0;
	int rc;

	snprintf(none.uuid, sizeof(none.uuid), "%s", uuid);
	rc = key_list_read(&all, agent, &none, err);
	for (size_t i = 0; !rc && i < all.n; i++)
		if (!(all.v[i].snapshot & PTC_PARTS_SNAPSHOT))
			all.v[n++] = all.v[i];
	if (!rc && n < all.n)
		rc = ptc_store_keep(agent->env.store, uuid, all.v, n, err);
	ptc_free(all.v);
	return rc;
}

static bool older(const struct ptc_table_key *a, const struct ptc_table_key *b)
{
	return a->generation < b->generation || (a->generation == b->generation && a->snapshot < b->snapshot);
}

int ptc_agent_tables_drop_old(struct ptc_agent *agent, const char *uuid, Ptc__V1__TableKey *const *keep, size_t nkeep,
			      struct ptc_error *err)
{
	struct ptc_table_key none = { 0 }, newest = { 0 };
	struct key_list all;
	size_t n = 0;
	int rc;

	snprintf(none.uuid, sizeof(none.uuid), "%s", uuid);
	for (size_t i = 0; i < nkeep; i++) {
		struct ptc_table_key k = { .generation = keep[i]->generation, .snapshot = keep[i]->snapshot };

		if (older(&newest, &k))
			newest = k;
	}
	rc = key_list_read(&all, agent, &none, err);
	for (size_t i = 0; !rc && i < all.n; i++) {
		bool stays = !older(&all.v[i], &newest) && !(all.v[i].snapshot & PTC_PARTS_SNAPSHOT);

		for (size_t k = 0; k < nkeep; k++)
			stays = stays ||
				(keep[k]->generation == all.v[i].generation && keep[k]->snapshot == all.v[i].snapshot);
		if (stays)
			all.v[n++] = all.v[i];
	}
	if (!rc && n < all.n)
		rc = ptc_store_keep(agent->env.store, uuid, all.v, n, err);
	ptc_free(all.v);
	return rc;
}

int ptc_agent_memory_check(struct ptc_agent *agent, int64_t new_bytes, struct ptc_error *err)
{
	struct ptc_store_stats stats;
	uint64_t room;

	ptc_store_stats(agent->env.store, &stats);
	room = stats.ceiling - PTC_MIN(stats.ceiling, stats.used_bytes + stats.outside_bytes);
	if (new_bytes <= 0 || (uint64_t)new_bytes <= room)
		return 0;
	return ptc_error_set(err, PTC_ENOSPC,
			     "memory: node %s needs %lld more bytes and has %llu of %llu free; use more nodes, drop "
			     "snapshots or jobs, or raise its memory.ceiling by %llu bytes",
			     agent->node, (long long)new_bytes, (unsigned long long)room,
			     (unsigned long long)stats.ceiling, (unsigned long long)new_bytes - room);
}

/* ---- the Drop call ---- */

#define DROP_MAX 4096

static int drop_named(struct ptc_agent *agent, const Ptc__V1__DropRequest *req, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = 0;

	if (agent->env.keep_committed)
		rc = agent->env.keep_committed(agent->env.arg, req->uuid, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < req->n_tables && !rc; i++) {
		struct ptc_table_key key = { .generation = req->tables[i]->generation,
					     .snapshot = req->tables[i]->snapshot };

		snprintf(key.uuid, sizeof key.uuid, "%s", req->uuid);
		rc = ptc_agent_table_drop(agent, &key, &why);
	}
	if (rc == PTC_ENOTFOUND || rc == PTC_ELOST || rc == PTC_ECORRUPT) /* nothing of the job is here */
		return 0;
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}

int ptc_agent_on_drop(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	Ptc__V1__Ack reply = PTC__V1__ACK__INIT;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__drop_request__descriptor, &msg, err);
	const Ptc__V1__DropRequest *req = (const Ptc__V1__DropRequest *)msg;

	if (rc == 0)
		rc = ptc_pb_version(req->version, err);
	if (!rc && (strlen(req->uuid) != 36 || strspn(req->uuid, "0123456789abcdef-") != 36))
		rc = ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", req->uuid);
	if (!rc && req->n_tables > DROP_MAX)
		rc = ptc_error_set(err, PTC_ELIMIT, "%zu tables to drop; at most %d", req->n_tables, DROP_MAX);
	if (rc == 0)
		rc = ptc_agent_enter(agent, call, req->uuid, req->fence, req->seq, PTC_TURN_IN_ORDER, &op, err);
	if (rc == 0)
		rc = drop_named(agent, req, err);
	else if (rc == PTC_ENOTFOUND) /* a job never seen here */
		rc = 0;
	ptc_agent_leave(&op);
	reply.version = PTC_WIRE_VERSION;
	if (rc == 0)
		rc = ptc_agent_reply(call, &reply.base, err);
	ptc_pb_free(msg);
	return rc;
}
