/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of replicas that other nodes have, and fetching them: for remote_primary.c, which finds them, and max_reduce.c,
 * which merges them. Happy path: boxes of one node are asked for together, up to a request's limits.
 * Failure modes: a source that has not captured its part yet is asked again,
 * until the operation is stopped (the controller does, when the source fails)
 * or for REMOTE_WAIT_MS (PTC_EPEER naming the node and why); memory. */
#include "daemon/agent/transfer/remote_primary.h"

#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/transfer/fetch.h"
#include "daemon/store/store_table.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <string.h>
#include <unistd.h>

#define REMOTE_WAIT_MS     600000
#define REMOTE_TICK_MS     20 /* at first; a thousand nodes that wait for one must leave it time to do what they wait for */
#define REMOTE_TICK_MAX_MS 200

int ptc_remote_add(struct ptc_remote *a, uint32_t item, uint32_t node, const struct ptc_box *box, struct ptc_error *err)
{
	if (a->n == a->cap) {
		size_t more = a->cap ? 2 * a->cap : 16;
		struct ptc_replica *p = ptc_reallocarray(a->v, more, sizeof(*p));

		if (!p)
			return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu parts of replicas", more);
		a->v = p;
		a->cap = more;
	}
	a->v[a->n++] = (struct ptc_replica){ item, node, *box };
	return 0;
}

void ptc_remote_done(struct ptc_remote *a)
{
	ptc_free(a->v);
	ptc_free(a->nodes);
	*a = (struct ptc_remote){ 0 };
}

struct fetching {
	const struct ptc_remote_fetch *job;
	size_t first; /* of the request, of the job's boxes */
	void *buffer; /* of a box that is taken */
};

static int box_begin(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err)
{
	const struct fetching *f = arg;
	const struct ptc_store_box *box = &f->job->boxes[f->first + i];
	int64_t bytes = ptc_box_volume(&box->box);

	ret->outer = box->box;
	if (f->buffer) {
		ret->iov[0] = (struct iovec){ f->buffer, (size_t)bytes };
		ret->niov = 1;
		return ptc_fails(bytes <= PTC_REMOTE_TAKE_BYTES)
			       ? ptc_error_set(err, PTC_EINTERNAL, "a box of item %u is too large", box->item)
			       : 0;
	}
	ret->niov = ptc_table_extent_iov(f->job->table, f->job->extents[f->first + i], 0, bytes, ret->iov,
					 (int)PTC_ARRAY_LEN(ret->iov));
	if (ret->niov <= 0)
		return ptc_error_set(err, PTC_ESTATE, "an extent of item %u cannot be filled any more", box->item);
	return 0;
}

static int box_end(void *arg, size_t i, struct ptc_error *err)
{
	const struct fetching *f = arg;

	return f->buffer ? f->job->take(f->job->take_arg, f->first + i, f->buffer, err) : 0;
}

static int receive(struct fetching *f, size_t n, bool *ret_local, struct ptc_error *err)
{
	const struct ptc_remote_fetch *job = f->job;
	const struct ptc_fetch_ops ops = {
		.begin = box_begin, .end = box_end, .arg = f, .begun = true, .timeout_ms = PTC_AGENT_STALL_MS
	};
	struct ptc_fetch fetch = { 0 };
	int r = ptc_fetch_open(job->agent, job->g, job->nodes[f->first], 0, job->boxes + f->first, n, &ops, &fetch,
			       err);

	r = r ? r : ptc_fetch_drain(&fetch, err);
	*ret_local = r == PTC_ENOMEM || fetch.local_error;
	ptc_fetch_done(&fetch);
	return r;
}

/* One request. *ret_local: asking again is of no use. */
static int request(const struct ptc_remote_fetch *job, size_t first, size_t n, bool *ret_local, struct ptc_error *err)
{
	uint64_t bytes = PTC_AGENT_RECV_TICKET + (job->take ? PTC_REMOTE_TAKE_BYTES : 0);
	struct fetching f = { job, first, NULL };
	uint64_t ticket; /* none is held while the source is waited for */
	int r = ptc_pool_take(&job->agent->recv, bytes, job->stop, job->arg, &ticket, err);

	*ret_local = true;
	if (r)
		return r;
	if (job->take && !(f.buffer = ptc_malloc(PTC_REMOTE_TAKE_BYTES)))
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for parts of replicas");
	r = r ? r : receive(&f, n, ret_local, err);
	ptc_free(f.buffer);
	ptc_pool_give(&job->agent->recv, ticket);
	return r;
}

static int insist(const struct ptc_remote_fetch *job, size_t first, size_t n, struct ptc_error *err)
{
	int64_t end = ptc_sys_now_ns() + (int64_t)REMOTE_WAIT_MS * 1000000;
	const char *node = job->g->nodes[job->nodes[first]];

	for (unsigned tick_ms = REMOTE_TICK_MS;; tick_ms = PTC_MIN(2 * tick_ms, REMOTE_TICK_MAX_MS)) {
		struct ptc_error why = PTC_ERROR_INIT;
		bool local = false;
		int r = request(job, first, n, &local, &why);

		if (!r)
			return 0;
		if (job->stop(job->arg))
			return ptc_error_set(err, PTC_ECANCELED, "cancelled while waiting for replicas of node %s",
					     node);
		if (local)
			return ptc_error_set(err, r, "%s", why.text);
		if (ptc_sys_now_ns() > end)
			return ptc_error_set(err, PTC_EPEER, "node %s does not give the replicas that count: %.800s",
					     node, why.text);
		job->tick(job->arg);
		usleep(tick_ms * 1000); /* a server thread: waiting is its job */
	}
}

int ptc_remote_fetch(const struct ptc_remote_fetch *job, struct ptc_error *err)
{
	int r = 0;

	for (size_t i = 0, end; !r && i < job->n; i = end) {
		int64_t bytes = 0;

		for (end = i; end < job->n && job->nodes[end] == job->nodes[i] && end - i < PTC_AGENT_REQUEST_BOXES &&
			      (end == i || bytes + ptc_box_volume(&job->boxes[end].box) <= PTC_AGENT_REQUEST_BYTES);
		     end++)
			bytes += ptc_box_volume(&job->boxes[end].box);
		r = insist(job, i, end - i, err);
	}
	return r;
}
