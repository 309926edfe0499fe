/* SPDX-License-Identifier: Apache-2.0 */
/* Servers, calls and connections: the state that the files of rpc/server share. */
#pragma once

#include "rpc/door/door.h"
#include "rpc/internal.h"
#include "rpc/server/server.h"
#include "rpc/trust/creds.h"

struct ptc_rpc_method {
	char name[PTC_RPC_METHOD_NAME_MAX];
	unsigned roles;
	enum ptc_rpc_kind kind;
	ptc_rpc_handler_fn fn;
	void *arg;
	atomic_uint_least64_t calls, errors; /* for ptc_rpc_server_methods */
};

enum ptc_rpc_call_state {
	PTC_RPC_FREE,
	PTC_RPC_ACCEPTING, /* with the thread that waits in the core for the next call */
	PTC_RPC_READY,     /* can go on, and waits for a thread */
	PTC_RPC_RUNNING,   /* has a thread */
	PTC_RPC_WAITING,   /* waits for its caller or its time, without a thread */
	PTC_RPC_LOOKED,    /* the waiter checks whether the call is ready */
};

/* How far a call has come: what happens next. */
enum ptc_rpc_call_phase {
	PTC_RPC_REQUEST, /* its first message comes */
	PTC_RPC_HANDLER, /* its handler runs */
	PTC_RPC_STEPS,   /* its step runs at due_ns */
	PTC_RPC_DRAIN,   /* its queued messages go out */
	PTC_RPC_STATUS,  /* its status goes out, then its end comes */
};

struct ptc_rpc_out {
	struct ptc_rpc_out *next;
	grpc_byte_buffer *buf;
	size_t len;
};

/* One call on the server; the storage is reused. It belongs to one thread at a time: one that runs it, or the waiter.
 */
struct ptc_rpc_call {
	struct ptc_rpc_server *srv;
	grpc_completion_queue *cq;
	grpc_call *core;
	grpc_call_details details;
	grpc_metadata_array metadata;
	char **meta_text; /* NUL-terminated copies handed out by ptc_rpc_call_meta */
	size_t nmeta_text;
	struct ptc_rpc_slot accept, recv, send, close;
	grpc_byte_buffer *incoming; /* output of the recv batch */
	bool recv_started;          /* a receive batch was started ahead of ptc_rpc_call_recv */
	int cancelled;              /* output of the close batch */
	bool initial_sent;
	int64_t polled_ns;
	struct ptc_rpc_message msg;
	struct ptc_rpc_identity identity;
	const char *stranger; /* why the caller has no role */
	unsigned epoch;       /* epoch of the server's trust when the caller was identified */
	char peer[PTC_RPC_ADDRESS_MAX];

	struct ptc_rpc_method *method; /* NULL: there is no such method */
	enum ptc_rpc_kind kind;
	enum ptc_rpc_call_phase phase;
	bool refused; /* the handler never ran */
	bool unheard; /* refused because its request did not come */
	int rc;       /* the call's status, with err's text */
	struct ptc_error err;
	struct ptc_rpc_out *out, *sending; /* of a brief call: messages to send next, and the one being sent */
	atomic_size_t out_bytes;
	int64_t sent_ns; /* when `sending` or the status was given to the core */
	ptc_rpc_step_fn step;
	void *step_arg;
	void (*step_release)(void *arg);
	bool again; /* the step asked for another one */
	int64_t due_ns;
	atomic_bool woken; /* since its last step began */

	/* guarded by the server's lock */
	enum ptc_rpc_call_state state;
	bool counted; /* the call counts against its user's bound */
	uint64_t turn;
	int64_t waiting_ns, look_ns;
	bool look_now; /* whatever look_ns says */
};

struct ptc_rpc_unix;  /* a unix listener, rpc/server/unix.c */
struct ptc_rpc_front; /* a TCP listener, rpc/server/front.c */

struct ptc_rpc_server {
	grpc_server *core;
	grpc_completion_queue *main_cq; /* receives the shutdown's tag */
	bool started;
	struct ptc_rpc_method methods[PTC_RPC_METHODS_MAX];
	size_t nmethods;
	struct ptc_rpc_unix *unix_listeners;
	struct ptc_rpc_trust *trust; /* the TLS listener's; NULL: there is none */
	struct ptc_rpc_front *fronts;
	int nfronts;
	struct ptc_rpc_fd_handler
		*fd_handlers[PTC_RPC_FRONTS_MAX]; /* the core's; it fills them in when a front is added */
	bool insecure;
	struct ptc_rpc_renewal *renewals; /* the TLS listeners' */
	atomic_bool serving;
	atomic_bool cancelling; /* the grace time is over */
	int max_calls, max_open, max_calls_per_user, stall_ms, keepalive_ms;
	grpc_completion_queue *accept_cq;

	pthread_mutex_t lock; /* guards all members below */
	pthread_cond_t wake, waiter_wake, quiet;
	pthread_t *threads, waiter;
	int nthreads, idle, running, busy; /* busy: calls that are not free, nor being accepted */
	struct ptc_rpc_call **calls;       /* room for max_open */
	int ncalls;
	uint64_t turn;
	bool waiter_started, accepting, stopping, over;
	bool unlooked; /* a call began to wait after the waiter began its round */
};

/* Whether the bound per user applies to the call's caller. */
static inline bool ptc_rpc_call_is_user(const struct ptc_rpc_call *call)
{
	return call->srv->max_calls_per_user && call->identity.role == PTC_ROLE_USER && call->identity.uid != 0;
}

/* rpc/server/call.c */
bool ptc_rpc_call_accept(struct ptc_rpc_call *call); /* blocks until a call comes; false: the server stops */
/* Finds out the caller and the method; does not block. Then the call is ready for _run, unless _refuse comes first. */
void ptc_rpc_call_begin(struct ptc_rpc_call *call);
void ptc_rpc_call_refuse(struct ptc_rpc_call *call, int rc);
/* Runs the call as far as it can go. true: the call is over and cleaned up. false: it waits, and _look tells when to
 * run it again. */
bool ptc_rpc_call_run(struct ptc_rpc_call *call);
bool ptc_rpc_call_look(struct ptc_rpc_call *call, int64_t now_ns);

/* rpc/server/schedule.c */
int ptc_rpc_schedule_start(struct ptc_rpc_server *srv, struct ptc_error *err);
void ptc_rpc_schedule_stop(
	struct ptc_rpc_server *srv); /* call it before the core's shutdown; no more calls are accepted */
void ptc_rpc_schedule_join(struct ptc_rpc_server *srv); /* call it when all calls can end */

/* rpc/server/out_room.c */
/* Whether `len` more bytes may wait to be sent for this call's user. Takes the server's lock. */
bool ptc_rpc_out_room(struct ptc_rpc_call *call, size_t len);

/* ---- connections ---------------------------------------------------------- */

enum ptc_rpc_peer_kind {
	PTC_RPC_PEER_USER, /* a local user, over a unix socket */
	PTC_RPC_PEER_NODE, /* a node, over a unix peer socket */
	PTC_RPC_PEER_TCP,
};

struct ptc_rpc_peer {
	enum ptc_rpc_peer_kind kind;
	struct ptc_rpc_identity id; /* of unix peers */
	struct ptc_door_caller tcp; /* of TCP peers */
};

/* rpc/server/conns.c; any thread. */
/* Duplicates fd to a number that stands for this peer while the duplicate is open; closes fd. -1: refused. */
int ptc_rpc_conn_take(int fd, const struct ptc_rpc_peer *peer);
/* The identity of the peer that the core names "fd:N". false: the connection is not one of ours. */
bool ptc_rpc_conn_identity(const char *peer, struct ptc_rpc_identity *ret_id);
/* Notes that a call of a member came over this TCP connection; the core names its peer so. */
void ptc_rpc_conn_known(const char *peer);
void ptc_rpc_conn_expire(void); /* shuts down connections of strangers whose time is over */
/* Reports that accept(2) at `what` failed because descriptors or memory are short. */
void ptc_rpc_conn_exhausted(const char *what, int errnum);
/* Counts a TCP connection that was ended before it came to the table: to make room, or out of time. */
void ptc_rpc_conn_dropped(bool out_of_time);

/* rpc/server/unix.c */
int ptc_rpc_unix_start(struct ptc_rpc_unix *list, struct ptc_error *err);
struct ptc_rpc_unix *ptc_rpc_unix_free(struct ptc_rpc_unix *list); /* stops accepting, removes the files */

/* rpc/server/front.c */
struct ptc_rpc_fd_handler;
void ptc_rpc_args_fronts(struct ptc_rpc_args *a, struct ptc_rpc_fd_handler *handlers[PTC_RPC_FRONTS_MAX]);
int ptc_rpc_front_listen(struct ptc_rpc_server *srv, const char *address, grpc_server_credentials *creds, bool tls,
			 int *ret_port, struct ptc_error *err);
int ptc_rpc_front_start(struct ptc_rpc_front *list, struct ptc_error *err);
struct ptc_rpc_front *ptc_rpc_front_free(struct ptc_rpc_front *list); /* stops accepting */

/* rpc/server/health.c */
int ptc_rpc_health_register(struct ptc_rpc_server *srv, struct ptc_error *err);
