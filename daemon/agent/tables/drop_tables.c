/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping tables of a job, and whether there is memory for new ones. Happy path: the job's tables
 * are listed, and all are kept but those to be dropped. Failure modes: no memory for the list;
 * PTC_ENOSPC that says how much is missing. */
#include "daemon/agent/calls/agent_state.h"
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
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 8;
		struct ptc_table_key *v = ptc_reallocarray(l->v, cap, sizeof(*v));

		if (!v) {
			l->failed = true;
			return;
		}
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = *key;
}

static int key_list_read(struct key_list *l, struct ptc_agent *agent, const struct ptc_table_key *except,
			 struct ptc_error *err)
{
	int r;

	*l = (struct key_list){ .except = except };
	r = ptc_store_tables(agent->env.store, except->uuid, key_collect, l, err);
	if (!r && l->failed)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for the list of tables");
	return r;
}

int ptc_agent_table_there(struct ptc_agent *agent, const struct ptc_table_key *key, bool *ret_there,
			  struct ptc_error *err)
{
	struct key_list others;
	int r = key_list_read(&others, agent, key, err);

	ptc_free(others.v);
	if (!r)
		*ret_there = others.seen;
	return r;
}

int ptc_agent_table_drop(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_error *err)
{
	struct key_list after;
	int r = key_list_read(&after, agent, key, err);

	if (!r && after.seen)
		r = ptc_store_keep(agent->env.store, key->uuid, after.v, after.n, err);
	ptc_free(after.v);
	return r;
}

int ptc_agent_parts_drop(struct ptc_agent *agent, const char *uuid, struct ptc_error *err)
{
	struct ptc_table_key none = { 0 };
	struct key_list all;
	size_t n = 0;
	int r;

	snprintf(none.uuid, sizeof(none.uuid), "%s", uuid);
	r = key_list_read(&all, agent, &none, err);
	for (size_t i = 0; !r && i < all.n; i++)
		if (!(all.v[i].snapshot & PTC_PARTS_SNAPSHOT))
			all.v[n++] = all.v[i];
	if (!r && n < all.n)
		r = ptc_store_keep(agent->env.store, uuid, all.v, n, err);
	ptc_free(all.v);
	return r;
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
	int r;

	snprintf(none.uuid, sizeof(none.uuid), "%s", uuid);
	for (size_t i = 0; i < nkeep; i++) {
		struct ptc_table_key k = { .generation = keep[i]->generation, .snapshot = keep[i]->snapshot };

		if (older(&newest, &k))
			newest = k;
	}
	r = key_list_read(&all, agent, &none, err);
	for (size_t i = 0; !r && i < all.n; i++) {
		bool stays = !older(&all.v[i], &newest) && !(all.v[i].snapshot & PTC_PARTS_SNAPSHOT);

		for (size_t k = 0; k < nkeep; k++)
			stays = stays ||
				(keep[k]->generation == all.v[i].generation && keep[k]->snapshot == all.v[i].snapshot);
		if (stays)
			all.v[n++] = all.v[i];
	}
	if (!r && n < all.n)
		r = ptc_store_keep(agent->env.store, uuid, all.v, n, err);
	ptc_free(all.v);
	return r;
}

int ptc_agent_memory_check(struct ptc_agent *agent, int64_t new_bytes, struct ptc_error *err)
{
	struct ptc_store_stats stats;
	uint64_t room;

	ptc_store_stats(agent->env.store, &stats);
	room = stats.ceiling - PTC_MIN(stats.ceiling, stats.used_bytes + stats.outside_bytes);
	if (new_bytes <= 0 || (uint64_t)new_bytes <= room)
		return 0;
	return ptc_error_set(
		err, PTC_ENOSPC,
		"memory: node %s needs %lld more bytes for this and has %llu of %llu free; use more nodes, "
		"drop snapshots or jobs, or raise its memory.ceiling by %llu bytes",
		agent->node, (long long)new_bytes, (unsigned long long)room, (unsigned long long)stats.ceiling,
		(unsigned long long)new_bytes - room);
}
