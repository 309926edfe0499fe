/* SPDX-License-Identifier: Apache-2.0 */
/* TCP listeners of the server. We accept, count (conns.c) and hand the connection to the core, which makes the TLS
 * handshake.
 *
 * The core's own listener has no bound on connections, and the first accept(2) that fails for want of a descriptor ends
 * it for good (1.51, tcp_server_posix.cc, on_read). But the core takes connections from outside. If a server's port is
 * named "external:KEY", the core makes no socket. It stores a handler where the channel argument of that name points.
 * The handler is a C++ object with one method that takes a descriptor (grpc++'s ExternalConnectionAcceptor uses it). We
 * call it through its table of virtual functions, which the Itanium C++ ABI defines for every compiler here: two
 * destructors, then Handle. Another version of the core may have another class; docs/decisions/0010-bounded-calls.md
 * says what to look at, and a server without a handler refuses to listen.
 *
 * A door (rpc/door) accepts, and lets callers in whose ClientHello is whole, at a pace. Only these cost the core
 * anything.
 *
 * Happy path: listen binds, start accepts on a thread of the door's until the listener is freed.
 *
 * Failure modes: an address that cannot be bound or a certificate that the core does not take (PTC_EIO); no descriptor
 * at accept: the oldest stranger is shut down, callers wait in the kernel's queue, and the log says so. */
#include "rpc/server/internal.h"

#include "base/alloc.h"
#include "rpc/door/door.h"

#include <stdio.h>
#include <string.h>

#define KEY "external:ptc0"

/* grpc_core::TcpServerFdHandler. */
struct ptc_rpc_fd_handler {
	const struct fd_handler_table {
		void (*destroy)(struct ptc_rpc_fd_handler *self);
		void (*destroy_and_free)(struct ptc_rpc_fd_handler *self);
		void (*handle)(struct ptc_rpc_fd_handler *self, int listener_fd, int fd, grpc_byte_buffer *pending);
	} * table;
};

struct ptc_rpc_front {
	struct ptc_rpc_front *next;
	struct ptc_rpc_fd_handler *handler; /* the core's, as long as its server is */
	char address[PTC_RPC_ADDRESS_MAX];
	struct ptc_door *door;
};

/* ---- the core's side -------------------------------------------------------------- */

static void *place_copy(void *p)
{
	return p;
}

static void place_destroy(void *p)
{
	(void)p;
}

static int place_compare(void *a, void *b)
{
	return a < b ? -1 : a > b;
}

void ptc_rpc_args_fronts(struct ptc_rpc_args *a, struct ptc_rpc_fd_handler *handlers[PTC_RPC_FRONTS_MAX])
{
	static const grpc_arg_pointer_vtable vtable = { place_copy, place_destroy, place_compare };
	static char keys[PTC_RPC_FRONTS_MAX][sizeof KEY] = { "external:ptc0", "external:ptc1", "external:ptc2",
							     "external:ptc3" };

	for (int i = 0; i < PTC_RPC_FRONTS_MAX; i++) {
		ptc_require(a->count < PTC_RPC_MAX_ARGS);
		a->list[a->count++] = (grpc_arg){ .type = GRPC_ARG_POINTER,
						  .key = keys[i],
						  .value.pointer = { .p = &handlers[i], .vtable = &vtable } };
	}
}

static int core_listen(struct ptc_rpc_server *srv, struct ptc_rpc_front *f, grpc_server_credentials *creds,
		       struct ptc_error *err)
{
	char key[sizeof KEY] = KEY;

	key[sizeof key - 2] = (char)('0' + srv->nfronts);
	ptc_rpc_core_log_clear();
	grpc_server_add_http2_port(srv->core, key, creds);
	f->handler = srv->fd_handlers[srv->nfronts];
	if (f->handler && !*ptc_rpc_core_log())
		return 0;
	return ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", f->address,
			     *ptc_rpc_core_log() ? ptc_rpc_core_log() : "certificate not usable");
}

/* ---- the door's side ---------------------------------------------------------------- */

static void enter(void *arg, int listener, int fd, const struct ptc_door_caller *caller)
{
	struct ptc_rpc_front *f = arg;
	const struct ptc_rpc_peer peer = { .kind = PTC_RPC_PEER_TCP, .tcp = *caller };

	fd = ptc_rpc_conn_take(fd, &peer);
	if (fd >= 0)
		f->handler->table->handle(f->handler, listener, fd, NULL);
}

static void look(void *arg)
{
	(void)arg;
	ptc_rpc_conn_expire();
}

static void dropped(void *arg, bool out_of_time)
{
	(void)arg;
	ptc_rpc_conn_dropped(out_of_time);
}

static void exhausted(void *arg, int errnum)
{
	const struct ptc_rpc_front *f = arg;

	ptc_rpc_conn_exhausted(f->address, errnum);
}

int ptc_rpc_front_start(struct ptc_rpc_front *list, struct ptc_error *err)
{
	int rc = 0;

	for (struct ptc_rpc_front *f = list; f && !rc; f = f->next)
		rc = ptc_door_start(f->door, err);
	return rc;
}

struct ptc_rpc_front *ptc_rpc_front_free(struct ptc_rpc_front *list)
{
	while (list) {
		struct ptc_rpc_front *f = list;

		list = f->next;
		ptc_door_free(f->door);
		ptc_free(f);
	}
	return NULL;
}

static int front_open(struct ptc_rpc_front *f, bool tls, int keepalive_ms, int *ret_port, struct ptc_error *err)
{
	const struct ptc_door_opts opts = { .address = f->address,
					    .thread = "ptc-rpc-front",
					    .tls = tls,
					    .keepalive_ms = (unsigned)keepalive_ms,
					    .enter = enter,
					    .look = look,
					    .dropped = dropped,
					    .exhausted = exhausted,
					    .arg = f };

	return ptc_door_open(&opts, &f->door, ret_port, err);
}

int ptc_rpc_front_listen(struct ptc_rpc_server *srv, const char *address, grpc_server_credentials *creds, bool tls,
			 int *ret_port, struct ptc_error *err)
{
	struct ptc_rpc_front *f;
	int port, rc;

	if (srv->started || srv->nfronts == PTC_RPC_FRONTS_MAX)
		return ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", address,
				     srv->started ? "the server has started" : "it has too many listeners");
	f = ptc_calloc(1, sizeof *f);
	if (!f)
		return ptc_nomem(err);
	snprintf(f->address, sizeof f->address, "%s", address);
	rc = front_open(f, tls, srv->keepalive_ms, &port, err);
	if (rc == 0)
		rc = core_listen(srv, f, creds, err);
	if (rc) {
		ptc_rpc_front_free(f);
		return rc;
	}
	f->next = srv->fronts;
	srv->fronts = f;
	srv->nfronts++;
	if (ret_port)
		*ret_port = port;
	return 0;
}
