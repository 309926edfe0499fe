/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to many peers at once, for a thread that waits for the answers. The thread owns the struct, and gives it
 * back when the time is over, also if answers come later, or never as the daemon stops.
 *
 * Failure modes: a question that cannot be sent is no question (ptc_pb_ask); an answer that does not come in time is
 * not `there`. Threads: only the loop may ask, for once it has stopped the client may be gone; any other may wait. */
#pragma once

#include "proto/pb.h"
#include "rpc/client/client.h"

#include <stdatomic.h>

struct ptc_pb_answer {
	size_t of;  /* the asker's number of the question */
	bool there; /* it came in time; else the rest is 0 */
	int status;
	void *data; /* the reply, if status is 0 */
	size_t len;
};
struct ptc_pb_asking;

/* For at most so many questions. It borrows the client. NULL: out of memory. */
struct ptc_pb_asking *ptc_pb_asking_new(struct ptc_rpc_client *client, size_t most);
/* Loop thread. False: out of memory. */
bool ptc_pb_ask(struct ptc_pb_asking *a, struct ptc_rpc_channel *channel, const char *method,
		const ProtobufCMessage *request, int timeout_ms, size_t of);
/* Call it once, after all questions. It returns when all answers are there, after ms, or soon after *stopping (NULL:
 * nobody stops), because a daemon that stops waits for its threads, and its loop hears nothing any more. The answers
 * are in the order of the questions, and borrowed. */
const struct ptc_pb_answer *ptc_pb_asking_wait(struct ptc_pb_asking *a, int64_t ms, const atomic_bool *stopping,
					       size_t *ret_n);
struct ptc_pb_asking *ptc_pb_asking_free(struct ptc_pb_asking *a); /* NULL ok */
