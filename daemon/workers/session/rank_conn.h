/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's connection: a socket, and the frames that wait to be sent on it. The lock of daemon/workers guards it
 * (worker_state.h). A connection is in ptc_workers.conns until the loop closes it. */
#pragma once

#include "daemon/workers/state/worker_state.h"

struct outgoing {
	struct outgoing *next;
	uint16_t type;
	int fd; /* sent with the frame and closed then; -1: none */
	size_t len, offset;
	uint8_t *data;
};
struct conn {
	struct conn *next;
	struct job *job;
	struct worker *worker; /* NULL until HELLO */
	struct ptc_local_conn link;
	pid_t pid;
	uid_t uid;
	int64_t since_ns;
	struct outgoing *out, **out_end;
	size_t out_bytes; /* memory that `out` takes */
	bool broken;      /* the loop closes it */
	bool closing;     /* the loop closes it once the queue is sent */
};

void ptc_conn_accept_locked(struct ptc_workers *w, struct job *job);
static inline bool ptc_conn_reads(const struct conn *c)
{
	return c->out_bytes <= WORKERS_QUEUE_READ;
}
void ptc_conn_flush_locked(struct conn *c);
/* Takes ownership of fd. */
void ptc_conn_send_locked(struct conn *c, uint16_t type, const struct ptc_local_out *body, int fd);
void ptc_conn_refuse_locked(struct conn *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ptc_conn_close_locked(struct ptc_workers *w, struct conn *c); /* frees it; it must be out of the list */
int ptc_conn_listen(struct job *job, struct ptc_error *err);
