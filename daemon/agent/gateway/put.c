/* SPDX-License-Identifier: Apache-2.0 */
/* Put: takes boxes of an import, which the node that the client called (the gateway) sends. Happy path: each message's
 * box goes from the socket through a buffer, for which a ticket (calls/ticket.h) was taken, into the reserved extents.
 * The call has a thread only while messages come. So it waits for no other node while it has one, and imports that send
 * to each other's nodes cannot wait in a circle.
 *
 * Failure modes: no such import open here, or it is being committed
 * (PTC_ESTATE), numbers that do not fit or a payload that is not the box's
 * size (PTC_EPEER, PTC_EINVAL; nothing is written), a message that changes
 * job or import in mid-stream (PTC_EINVAL). */
#include "daemon/agent/calls/operation.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "base/limits.h"

#include <string.h>

#define LINGER_MS   20
#define WAIT_MAX_MS 100
#define TURN_NS     INT64_C(250000000)

struct put {
	struct ptc_agent *agent;
	struct ptc_agent_op op;
	struct ptc_put_target target;
	bool open;
	uint64_t bytes;
	int64_t heard_ns; /* when the last message came */
};

static int target_check(struct put *p, const Ptc__V1__PutChunk *chunk, struct ptc_error *err)
{
	int rc;

	if (p->open) {
		if (chunk->import_id != p->target.import_id || strcmp(chunk->uuid, p->target.job->uuid))
			return ptc_error_set(err, PTC_EINVAL, "malformed put stream: it changes its import on the way");
		return 0;
	}
	rc = ptc_put_target_open(p->agent, chunk->uuid, chunk->import_id, &p->target, err);
	p->open = !rc;
	return rc;
}

static int payload_write(struct put *p, struct ptc_rpc_message *msg, uint32_t item, const struct ptc_box *box,
			 struct ptc_error *err)
{
	size_t len = (size_t)ptc_box_volume(box);
	struct ptc_staging *s;
	int rc = ptc_staging_new(&p->agent->recv, len, ptc_agent_op_stopped, &p->op, &s, err);

	if (rc)
		return rc;
	if (ptc_rpc_message_read(msg, s->data, len) != len)
		rc = ptc_error_set(err, PTC_EPEER, "malformed put message: it is shorter than its head says");
	if (rc == 0)
		rc = ptc_put_target_write(&p->target, item, box, s->data, err);
	ptc_staging_release(s);
	if (!rc && ptc_fault("agent.put.middle"))
		rc = ptc_error_set(err, PTC_EIO, "fault agent.put.middle");
	p->bytes += rc ? 0 : len;
	return rc;
}

static int chunk_take(struct put *p, struct ptc_rpc_message *msg, struct ptc_error *err)
{
	uint8_t head[PTC_WIRE_HEAD_MAX];
	Ptc__V1__PutChunk *chunk;
	struct ptc_box box;
	uint64_t payload;
	size_t len;
	int rc = ptc_wire_message_head(msg, head, &len, &payload, err);

	if (rc)
		return rc;
	chunk = ptc__v1__put_chunk__unpack(&ptc_pb_allocator, len, head);
	if (!chunk)
		return ptc_error_set(err, PTC_EPEER, "malformed put message: its head cannot be read");
	rc = ptc_pb_version(chunk->version, err);
	if (rc == 0)
		rc = ptc_wire_box(chunk->offset, chunk->n_offset, chunk->extent, chunk->n_extent, &box, err);
	if (rc == 0)
		rc = target_check(p, chunk, err);
	if (!rc && (payload != (uint64_t)ptc_box_volume(&box) || payload > PTC_BULK_MESSAGE_MAX))
		rc = ptc_error_set(err, PTC_EPEER, "a put message has %llu bytes for a box of %lld",
				   (unsigned long long)payload, (long long)ptc_box_volume(&box));
	if (rc == 0)
		rc = payload_write(p, msg, chunk->item, &box, err);
	ptc__v1__put_chunk__free_unpacked(chunk, &ptc_pb_allocator);
	return rc;
}

static void put_free(void *arg)
{
	struct put *p = arg;

	if (p->open)
		ptc_put_target_close(&p->target);
	ptc_free(p);
}

static int put_reply(const struct put *p, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__PutReply reply = PTC__V1__PUT_REPLY__INIT;

	reply.version = PTC_WIRE_VERSION;
	reply.bytes = p->bytes;
	return ptc_agent_reply(call, &reply.base, err);
}

/* 0 at the end of a turn; else an eighth of the time since the last message. */
static int wait_ms(const struct put *p)
{
	int64_t ms = (ptc_sys_now_ns() - p->heard_ns) / 8000000;

	return (int)PTC_MIN(ms, WAIT_MAX_MS);
}

/* Messages for as long as they come, and for a while: others may wait for the thread. */
static int put_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	const int64_t until = ptc_sys_now_ns() + TURN_NS;
	struct put *p = arg;

	do {
		struct ptc_rpc_message *msg;
		int rc = ptc_rpc_call_recv_within(call, LINGER_MS, &msg, err);

		if (rc == PTC_ETIMEOUT)
			break;
		if (rc || !msg)
			return rc ? rc : put_reply(p, call, err);
		rc = chunk_take(p, msg, err);
		ptc_rpc_message_done(msg);
		if (rc)
			return rc;
		p->heard_ns = ptc_sys_now_ns();
	} while (ptc_sys_now_ns() < until);
	ptc_rpc_call_again(call, wait_ms(p));
	return 0;
}

int ptc_agent_on_put(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct put *p = ptc_calloc(1, sizeof *p);

	if (!p)
		return ptc_nomem(err);
	p->agent = arg;
	p->op = (struct ptc_agent_op){ arg, NULL, call };
	p->heard_ns = ptc_sys_now_ns();
	ptc_rpc_call_follow(call, 0, put_step, p, put_free);
	return 0;
}
