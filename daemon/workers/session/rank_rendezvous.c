/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous keys of one group, kept by the daemon of rank 0's node. Happy path: if that daemon is this one, a put
 * wakes all callers that wait for the key; otherwise a task asks that daemon. Failure modes: the same key with another
 * value (EEXIST), too many keys (ELIMIT), nobody puts it (ETIMEOUT), no group (ENOTFOUND). */
#include "daemon/workers/session/internal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

static bool is_here(const struct ptc_workers *w, const struct group *g)
{
	return strcmp(g->desc.rank0_node, w->node) == 0;
}

static void reply(struct worker *k, uint64_t id, int code, const void *value, size_t len, const char *text)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	if (!k->conn)
		return;
	ptc_local_put_rendezvous(&out, &(struct ptc_local_rendezvous){
					       .id = id, .code = code, .value = value, .len = len, .text = text });
	ptc_conn_send_locked(k->conn, PTC_LOCAL_RENDEZVOUS_REPLY, &out, -1);
	ptc_free(out.data);
}

static int result_of(int status)
{
	switch (status) {
	case 0:
		return 0;
	case PTC_ETIMEOUT:
		return PTC_LOCAL_R_TIMEOUT;
	case PTC_ELIMIT:
		return PTC_LOCAL_R_LIMIT;
	case PTC_ENOTFOUND:
		return PTC_LOCAL_R_STALE;
	case PTC_EPEER:
		return PTC_LOCAL_R_LOST;
	default:
		return PTC_LOCAL_R_REFUSED;
	}
}

static void answer_waiting(struct group *g, const struct rendezvous_entry *e)
{
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;

		if (!k || !k->get.active || strcmp(k->get.key, e->key) != 0)
			continue;
		k->get.active = false;
		reply(k, k->get.id, 0, e->value, e->len, "");
	}
}

static int put_locked(struct ptc_workers *w, struct group *g, const char *key, const void *value, size_t len,
		      struct ptc_error *err)
{
	int rc = ptc_rendezvous_add(g, key, value, len, err);

	if (rc)
		return rc < 0 ? rc : 0;
	ptc_rendezvous_keep(g, &g->rendezvous[g->nrendezvous - 1]); /* before anybody is told that it is there */
	answer_waiting(g, &g->rendezvous[g->nrendezvous - 1]);
	pthread_cond_broadcast(&w->changed);
	return 0;
}

/* ---- another node keeps them --------------------------------------------------------- */

struct remote {
	struct ptc_group_key key;
	char node[64], address[256];
	unsigned number; /* of the worker that asks */
	bool put;
	uint64_t id;
	uint32_t timeout_ms;
	char name[PTC_LOCAL_SHORT_MAX + 1];
	size_t len;
	uint8_t value[PTC_LOCAL_RENDEZVOUS_MAX];
};

struct remote_wait {
	struct ptc_workers *w;
	const struct remote *r;
};

static struct worker *asker_locked(struct ptc_workers *w, const struct remote *r)
{
	struct group *g = ptc_group_find_locked(w, &r->key);

	for (size_t i = 0; g && !g->ending && i < g->desc.nranks; i++)
		if (g->slots[i].worker && g->slots[i].worker->number == r->number)
			return g->slots[i].worker;
	return NULL;
}

static bool remote_cancelled(void *arg)
{
	struct remote_wait *x = arg;
	struct worker *k;
	bool yes;

	pthread_mutex_lock(&x->w->lock);
	k = asker_locked(x->w, x->r);
	yes = x->w->quit || !k || (!x->r->put && (!k->get.active || k->get.id != x->r->id));
	pthread_mutex_unlock(&x->w->lock);
	return yes;
}

static void remote_task(struct ptc_workers *w, void *arg)
{
	struct remote *r = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	struct remote_wait x = { w, r };
	struct ptc_wait wait = { .cancelled = remote_cancelled, .arg = &x, .timeout_ms = r->timeout_ms };
	struct worker *k;
	int rc;

	if (r->put)
		rc = w->env.rendezvous_put(w->env.arg, &r->key, r->node, r->address, r->name, r->value, r->len, &wait,
					   &err);
	else
		rc = w->env.rendezvous_get(w->env.arg, &r->key, r->node, r->address, r->name, r->value, sizeof r->value,
					   &r->len, &wait, &err);
	pthread_mutex_lock(&w->lock);
	k = asker_locked(w, r);
	if (k && (r->put || (k->get.active && k->get.id == r->id))) {
		if (!r->put)
			k->get.active = false;
		reply(k, r->id, result_of(rc), r->value, rc || r->put ? 0 : r->len, rc ? err.text : "");
	}
	pthread_mutex_unlock(&w->lock);
	ptc_free(r);
}

static void ask_remote_locked(struct ptc_workers *w, struct worker *k, bool put, const struct ptc_local_rendezvous *m)
{
	const struct ptc_group_desc *d = &k->group->desc;
	struct remote *r = ptc_calloc(1, sizeof *r);

	if (r) {
		r->key = d->key;
		memcpy(r->node, d->rank0_node, sizeof r->node);
		memcpy(r->address, d->rank0_address, sizeof r->address);
		r->number = k->number;
		r->put = put;
		r->id = m->id;
		r->timeout_ms = m->timeout_ms;
		snprintf(r->name, sizeof r->name, "%s", m->key);
		r->len = m->len;
		memcpy(r->value, m->value, m->len);
	}
	if (r && w->env.rendezvous_get && w->env.rendezvous_put && ptc_workers_task_locked(w, remote_task, r))
		return;
	ptc_free(r);
	k->get.active = put && k->get.active;
	reply(k, m->id, PTC_LOCAL_R_LIMIT, NULL, 0, "ptcd has too much to ask of other nodes just now");
}

void ptc_rendezvous_message_locked(struct ptc_workers *w, struct worker *k, uint16_t type,
				   const struct ptc_local_rendezvous *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct group *g = k->group;
	struct rendezvous_entry *e;
	int rc;

	if (!g || ptc_worker_ending(k) || k->phase < WORKER_BUILDING) {
		reply(k, m->id, PTC_LOCAL_R_STALE, NULL, 0, "the generation has ended");
		return;
	}
	if (type == PTC_LOCAL_RENDEZVOUS_PUT && is_here(w, g)) {
		rc = put_locked(w, g, m->key, m->value, m->len, &err);
		reply(k, m->id, result_of(rc), NULL, 0, rc ? err.text : "");
		return;
	}
	if (type == PTC_LOCAL_RENDEZVOUS_PUT) {
		ask_remote_locked(w, k, true, m);
		return;
	}
	k->get.active = true;
	k->get.id = m->id;
	k->get.until_ns = ptc_sys_now_ns() + (int64_t)m->timeout_ms * 1000000;
	snprintf(k->get.key, sizeof k->get.key, "%s", m->key);
	if (!is_here(w, g)) {
		ask_remote_locked(w, k, false, m);
	} else if ((e = ptc_rendezvous_find(g, m->key))) {
		k->get.active = false;
		reply(k, m->id, 0, e->value, e->len, "");
	}
}

void ptc_rendezvous_expire_locked(struct worker *k, int64_t now_ns)
{
	/* The rank gives up by itself; this only forgets it. */
	if (k->get.active && now_ns > k->get.until_ns)
		k->get.active = false;
}

/* ---- for other nodes ------------------------------------------------------------------ */

int ptc_workers_rendezvous_put(struct ptc_workers *w, const struct ptc_group_key *key, const char *name,
			       const void *value, size_t len, struct ptc_error *err)
{
	struct group *g;
	int rc;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	rc = g && !g->ending ? put_locked(w, g, name, value, len, err) : ptc_group_missing(key, err);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

static int copy_entry(const struct rendezvous_entry *e, void *buffer, size_t capacity, size_t *ret_len,
		      struct ptc_error *err)
{
	if (e->len > capacity)
		return ptc_error_set(err, PTC_ELIMIT, "\"%.255s\" has %zu bytes, there is room for %zu", e->key, e->len,
				     capacity);
	if (e->len)
		memcpy(buffer, e->value, e->len);
	*ret_len = e->len;
	return 1;
}

int ptc_workers_rendezvous_get(struct ptc_workers *w, const struct ptc_group_key *key, const char *name, void *buffer,
			       size_t capacity, size_t *ret_len, const struct ptc_wait *wait, struct ptc_error *err)
{
	int64_t deadline = ptc_workers_deadline(wait);
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while (!rc) {
		struct group *g = ptc_group_find_locked(w, key);
		const struct rendezvous_entry *e = g && !g->ending ? ptc_rendezvous_find(g, name) : NULL;

		if (!g || g->ending) {
			rc = ptc_group_missing(key, err);
		} else if (e) {
			rc = copy_entry(e, buffer, capacity, ret_len, err);
		} else {
			rc = ptc_workers_pause_locked(w, wait, deadline, err);
			if (rc)
				ptc_error_wrap(err, "no rank has put the rendezvous key \"%.255s\"", name);
		}
	}
	pthread_mutex_unlock(&w->lock);
	return rc < 0 ? rc : 0;
}
