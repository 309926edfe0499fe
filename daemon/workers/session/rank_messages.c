/* SPDX-License-Identifier: Apache-2.0 */
/* Takes messages of ranks from the connection, and gives each to its worker. Happy path: frames are read, and each
 * message goes to its worker. Failure modes: bytes that are no frames, and messages that are not expected, get
 * REFUSED, and the connection ends. */
#include "daemon/workers/session/internal.h"

#include "base/cleanup.h"

#include <errno.h>
#include <unistd.h>

#define FRAMES_A_TURN 256 /* so that one rank cannot keep the loop from the others */

static void message_locked(struct ptc_workers *w, struct conn *c, struct ptc_local_message *m)
{
	if (!c->worker)
		ptc_worker_hello_locked(w, c, m);
	else if (!ptc_worker_message_locked(w, c->worker, m))
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED,
				       "protocol: message %u of %zu bytes is not expected or not readable", m->type,
				       m->len);
	ptc_close(&m->fd);
}

void ptc_conn_read_locked(struct ptc_workers *w, struct conn *c)
{
	for (int i = 0; i < FRAMES_A_TURN && !c->broken && !c->closing && ptc_conn_reads(c); i++) {
		struct ptc_local_message m;
		bool more;
		int rc = ptc_local_receive(&c->link, &m, &more);

		if (rc == 0 && !more)
			return;
		if (rc == -EPROTO) {
			ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED,
					       "protocol: the bytes that came are no message of libptc");
			return;
		}
		if (rc < 0)
			c->broken = true;
		else if (rc > 0)
			message_locked(w, c, &m);
	}
}
