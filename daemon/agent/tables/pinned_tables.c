/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that readers pin: leases on references. Happy path: Pin takes a reference to a sealed table, or renews the
 * lease of one. If a switch then drops the table, the table's chunks stay, and Fetch finds the table here, until the
 * reader gives the pin up.
 *
 * Failure modes: a table that is not here (PTC_ENOTFOUND), too many (PTC_ELIMIT), a reader that is gone (its lease ends
 * by itself). After a restart of the daemon no table is pinned, so tables that a switch had dropped are gone. */
#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_table.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/tables/tables.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

struct ptc_pinned_table {
	struct ptc_pinned_table *next;
	struct ptc_table_key key;
	char reader[PTC_PIN_READER_MAX + 1];
	struct ptc_table *table;
	int64_t until_ns;
};

static struct ptc_pinned_table **find_locked(struct ptc_agent *agent, const struct ptc_table_key *key,
					     const char *reader)
{
	struct ptc_pinned_table **at = &agent->shared.pinned;

	while (*at && !(ptc_table_key_same(&(*at)->key, key) && (!reader || !strcmp((*at)->reader, reader))))
		at = &(*at)->next;
	return at;
}

static void pin_free(struct ptc_pinned_table *h)
{
	ptc_table_unref(h->table);
	ptc_free(h);
}

int ptc_agent_table_open(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_table **ret_table,
			 struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = ptc_table_open(agent->env.store, key, ret_table, &why);
	struct ptc_pinned_table *h;

	if (rc != PTC_ENOTFOUND)
		return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
	pthread_mutex_lock(&agent->shared.lock);
	h = *find_locked(agent, key, NULL);
	if (h)
		*ret_table = ptc_table_ref(h->table);
	pthread_mutex_unlock(&agent->shared.lock);
	return h ? 0 : ptc_error_set(err, rc, "%s", why.text);
}

static int add_locked(struct ptc_agent *agent, struct ptc_pinned_table *fresh, struct ptc_error *err)
{
	size_t n = 0;

	for (struct ptc_pinned_table *h = agent->shared.pinned; h; h = h->next)
		n++;
	if (n >= PTC_MAX_PINS)
		return ptc_error_set(err, PTC_ELIMIT, "readers pin %zu snapshots here already; close some files", n);
	fresh->next = agent->shared.pinned;
	agent->shared.pinned = fresh;
	return 0;
}

static int pin(struct ptc_agent *agent, const struct ptc_table_key *key, const char *reader, int64_t until_ns,
	       struct ptc_error *err)
{
	struct ptc_pinned_table *fresh = ptc_calloc(1, sizeof *fresh), *h;
	int rc = 0;

	if (!fresh)
		return ptc_nomem(err);
	fresh->key = *key;
	snprintf(fresh->reader, sizeof fresh->reader, "%s", reader);
	fresh->until_ns = until_ns;
	rc = ptc_agent_table_open(agent, key, &fresh->table, err);
	pthread_mutex_lock(&agent->shared.lock);
	h = rc ? NULL : *find_locked(agent, key, reader);
	if (h)
		h->until_ns = until_ns;
	else if (!rc)
		rc = add_locked(agent, fresh, err);
	pthread_mutex_unlock(&agent->shared.lock);
	if (rc || h)
		pin_free(fresh);
	return rc;
}

int ptc_agent_pin(struct ptc_agent *agent, const struct ptc_table_key *key, const char *reader, uint32_t ttl_ms,
		  struct ptc_error *err)
{
	struct ptc_pinned_table **at, *h;

	if (strlen(reader) > PTC_PIN_READER_MAX || !reader[0])
		return ptc_error_set(err, PTC_EINVAL, "the pin request has no reader's name, or one that is too long");
	if (ttl_ms)
		return pin(agent, key, reader, ptc_sys_now_ns() + (int64_t)PTC_MIN(ttl_ms, PTC_PIN_MAX_MS) * 1000000,
			   err);
	pthread_mutex_lock(&agent->shared.lock);
	at = find_locked(agent, key, reader);
	h = *at;
	if (h)
		*at = h->next;
	pthread_mutex_unlock(&agent->shared.lock);
	if (h)
		pin_free(h);
	return 0;
}

static void release_until(struct ptc_agent *agent, int64_t now_ns)
{
	struct ptc_pinned_table *over = NULL, *h;

	pthread_mutex_lock(&agent->shared.lock);
	for (struct ptc_pinned_table **at = &agent->shared.pinned; (h = *at);) {
		if (h->until_ns > now_ns) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		h->next = over;
		over = h;
	}
	pthread_mutex_unlock(&agent->shared.lock);
	while ((h = over)) {
		over = h->next;
		pin_free(h);
	}
}

void ptc_agent_pins_expire(struct ptc_agent *agent)
{
	release_until(agent, ptc_sys_now_ns());
}

void ptc_agent_pins_done(struct ptc_agent *agent)
{
	release_until(agent, INT64_MAX);
}

int ptc_agent_on_pin(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	ProtobufCMessage *msg = NULL;
	struct ptc_table_key key = { 0 };
	int rc = ptc_agent_request(call, &ptc__v1__pin_request__descriptor, &msg, err);
	const Ptc__V1__PinRequest *req = (const Ptc__V1__PinRequest *)msg;

	if (rc == 0)
		rc = ptc_pb_version(req->version, err);
	if (!rc && strlen(req->uuid) != sizeof(key.uuid) - 1)
		rc = ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", req->uuid);
	if (!rc) {
		snprintf(key.uuid, sizeof key.uuid, "%s", req->uuid);
		key.generation = req->generation;
		key.snapshot = req->snapshot;
		rc = ptc_agent_pin(agent, &key, req->reader, req->ttl_ms, err);
	}
	ptc_pb_free(msg);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_agent_reply(call, &ack.base, err);
}
