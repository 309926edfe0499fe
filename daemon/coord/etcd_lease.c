/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of etcd: grant, keep-alive on a thread of its own, revoke.
 *
 * Happy path: one keep-alive every third of the TTL. The lease certainly lives
 * until one TTL after the last answered keep-alive was sent.
 *
 * Failure modes: a lost keep-alive is tried again a ninth of a TTL later; etcd
 * answering that the lease is gone, or a whole TTL without an answer, ends the
 * thread with one call of on_lost. (Our clock starts before etcd's, so we give
 * up no later than etcd does.) A grant whose answer was lost is granted again;
 * the first one expires by itself. */
#include "daemon/coord/etcd_i.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <inttypes.h>

struct ptc_etcd_lease {
	struct ptc_etcd_task task;
	struct ptc_etcd *e;
	int64_t id;
	int64_t ttl_ms;
	int64_t alive_until_ms; /* keep-alive thread */
	void (*on_lost)(void *arg);
	void *arg;
};

static int64_t now_ms(void)
{
	return ptc_sys_now_ns() / 1000000;
}

static int grant(struct ptc_etcd *e, int ttl_s, int64_t *ret_id, int64_t *ret_ttl_s, struct ptc_error *err)
{
	Ptc__Etcd__LeaseGrantRequest req = PTC__ETCD__LEASE_GRANT_REQUEST__INIT;
	const Ptc__Etcd__LeaseGrantResponse *r;
	ProtobufCMessage *reply;
	int rc;

	if (ptc_fault("etcd.grant.before"))
		return ptc_error_set(err, PTC_ECOORD, "nothing was sent: fault point etcd.grant.before");
	req.ttl = ttl_s;
	rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.Lease/LeaseGrant", &req.base,
			   &ptc__etcd__lease_grant_response__descriptor, 0, &reply, err);
	if (rc)
		return rc;
	r = (const Ptc__Etcd__LeaseGrantResponse *)reply;
	if (r->id == 0 || r->ttl <= 0)
		rc = ptc_error_set(err, PTC_ECOORD, "etcd granted no lease: %s", r->error);
	else if (ptc_fault("etcd.grant.after"))
		rc = ptc_error_set(err, PTC_ECOORD, "outcome unknown: fault point etcd.grant.after");
	if (!rc) {
		*ret_id = r->id;
		*ret_ttl_s = r->ttl;
	}
	ptc_pb_free(reply);
	return rc;
}

/* *ret_ttl_s: 0 when etcd says the lease is gone. LeaseKeepAlive is a stream,
 * but one request, half-close and one reply are on the wire what a unary call is. */
static int keep_alive(struct ptc_etcd_lease *l, int timeout_ms, int64_t *ret_ttl_s, struct ptc_error *err)
{
	Ptc__Etcd__LeaseKeepAliveRequest req = PTC__ETCD__LEASE_KEEP_ALIVE_REQUEST__INIT;
	ProtobufCMessage *reply;
	int rc;

	req.id = l->id;
	rc = ptc_etcd_call(l->e, PTC_ETCD_REPEATABLE, "/etcdserverpb.Lease/LeaseKeepAlive", &req.base,
			   &ptc__etcd__lease_keep_alive_response__descriptor, timeout_ms, &reply, err);
	if (rc == PTC_ENOTFOUND) {
		*ret_ttl_s = 0;
		return 0;
	}
	if (rc)
		return rc;
	*ret_ttl_s = ((const Ptc__Etcd__LeaseKeepAliveResponse *)reply)->ttl;
	ptc_pb_free(reply);
	return 0;
}

static void lease_run(struct ptc_etcd_task *t)
{
	struct ptc_etcd_lease *l = (struct ptc_etcd_lease *)t; /* first member */
	int64_t wait_ms = l->ttl_ms / 3;

	for (;;) {
		int64_t left = l->alive_until_ms - now_ms(), sent_ms, ttl_s;

		if (ptc_etcd_task_wait(t, PTC_MIN(wait_ms, left)))
			return;
		sent_ms = now_ms();
		left = l->alive_until_ms - sent_ms;
		if (left <= 0)
			break;
		if (keep_alive(l, (int)PTC_MIN(left, l->ttl_ms / 3), &ttl_s, NULL)) {
			wait_ms = l->ttl_ms / 9;
			continue;
		}
		if (ttl_s <= 0)
			break;
		l->alive_until_ms = sent_ms + ttl_s * 1000;
		wait_ms = l->ttl_ms / 3;
	}
	if (!ptc_etcd_task_wait(t, 0) && l->on_lost)
		l->on_lost(l->arg);
}

int ptc_etcd_lease_new(struct ptc_etcd *e, int ttl_s, void (*on_lost)(void *arg), void *arg,
		       struct ptc_etcd_lease **ret_lease, struct ptc_error *err)
{
	int64_t asked_ms = now_ms(), ttl = 0;
	struct ptc_etcd_lease *l;
	int rc;

	if (ttl_s < 1 || ttl_s > 86400)
		return ptc_error_set(err, PTC_EINVAL, "a lease lasts 1 to 86400 s, not %d s", ttl_s);
	l = ptc_calloc(1, sizeof *l);
	if (!l)
		return ptc_nomem(err);
	l->e = e;
	l->on_lost = on_lost;
	l->arg = arg;
	rc = grant(e, ttl_s, &l->id, &ttl, err);
	if (rc == 0) {
		l->ttl_ms = ttl * 1000;
		l->alive_until_ms = asked_ms + l->ttl_ms;
		rc = ptc_etcd_task_start(&l->task, e, "ptc-keepalive", lease_run, err);
		if (rc) {
			struct ptc_error ignored = PTC_ERROR_INIT; /* it expires by itself */

			ptc_etcd_revoke(e, l->id, &ignored);
		}
	}
	if (rc) {
		ptc_free(l);
		return rc;
	}
	*ret_lease = l;
	return 0;
}

int ptc_etcd_lease_left(struct ptc_etcd *e, int64_t lease, int timeout_ms, struct ptc_etcd_left *ret_left,
			struct ptc_error *err)
{
	Ptc__Etcd__LeaseTimeToLiveRequest req = PTC__ETCD__LEASE_TIME_TO_LIVE_REQUEST__INIT;
	const Ptc__Etcd__LeaseTimeToLiveResponse *r;
	ProtobufCMessage *reply;
	int rc;

	req.id = lease;
	rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.Lease/LeaseTimeToLive", &req.base,
			   &ptc__etcd__lease_time_to_live_response__descriptor, timeout_ms, &reply, err);
	if (rc)
		return rc;
	r = (const Ptc__Etcd__LeaseTimeToLiveResponse *)reply;
	*ret_left = (struct ptc_etcd_left){ r->ttl, r->grantedttl };
	ptc_pb_free(reply);
	return 0;
}

int64_t ptc_etcd_lease_id(const struct ptc_etcd_lease *l)
{
	return l->id;
}

struct ptc_etcd_lease *ptc_etcd_lease_free(struct ptc_etcd_lease *l, bool revoke)
{
	bool alive;

	if (!l)
		return NULL;
	alive = l->task.running; /* false: the client is gone already */
	ptc_etcd_task_stop(&l->task);
	if (revoke && alive)
		ptc_etcd_revoke(l->e, l->id, NULL); /* best effort: it expires otherwise */
	ptc_etcd_task_done(&l->task);
	ptc_free(l);
	return NULL;
}

int ptc_etcd_revoke(struct ptc_etcd *e, int64_t lease, struct ptc_error *err)
{
	Ptc__Etcd__LeaseRevokeRequest req = PTC__ETCD__LEASE_REVOKE_REQUEST__INIT;
	struct ptc_error why = PTC_ERROR_INIT;
	ProtobufCMessage *reply = NULL;
	int rc;

	if (ptc_fault("etcd.revoke.before"))
		return ptc_error_set(err, PTC_ECOORD, "nothing was sent: fault point etcd.revoke.before");
	req.id = lease;
	rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.Lease/LeaseRevoke", &req.base,
			   &ptc__etcd__put_response__descriptor, 0, &reply, &why); /* header only, like Put's */
	ptc_pb_free(reply);
	if (rc == PTC_ENOTFOUND) /* gone is what was wanted, also when a lost answer made us ask twice */
		rc = 0;
	if (rc == 0 && ptc_fault("etcd.revoke.after"))
		return ptc_error_set(err, PTC_ECOORD, "outcome unknown: fault point etcd.revoke.after");
	return rc ? ptc_error_set(err, rc, "revoke lease %" PRIx64 ": %s", (uint64_t)lease, why.text) : 0;
}
