/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of rpc/ only: what wraps the C core's objects. */
#pragma once

#include "base/limits.h"
#include "base/check.h"
#include "base/status.h"
#include "rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#define PTC_RPC_META_MAX         16           /* extra request metadata entries per call */
#define PTC_RPC_METADATA_BYTES   (16 * 1024)  /* all metadata of one message; an error text of 1 KiB is 3 KiB encoded */
#define PTC_RPC_PARTS_MAX        1024         /* parts of one message */
#define PTC_RPC_METHODS_MAX      128          /* methods of one server */
#define PTC_RPC_METHOD_NAME_MAX  128          /* "/package.Service/Method" */
#define PTC_RPC_ADDRESS_MAX      256          /* host name (253) and port */
#define PTC_RPC_PEM_MAX          (1u << 20)   /* a PEM file; CA bundles of some hundred KiB exist */
#define PTC_RPC_CRL_MAX          (16u << 20)  /* a list of revoked certificates: some 40 bytes each */
#define PTC_RPC_KEEPALIVE_MS     10000        /* default of keepalive_ms */
#define PTC_RPC_KEEPALIVE_MIN_MS 500          /* see tick_main() */
#define PTC_RPC_BULK_FRAME       (4 << 20)    /* HTTP/2 frame limit we advertise: fewer headers per byte */
#define PTC_RPC_BULK_WINDOW      (4 << 20)    /* flow-control window per stream on bulk connections */
#define PTC_RPC_SERVER_WINDOW    (1 << 20)    /* per stream a server receives: nobody takes a ticket for these */
#define PTC_RPC_STATUS_KEY       "ptc-status" /* trailing metadata: our code, decimal */
#define PTC_RPC_MAX_ARGS         32
#define PTC_RPC_FRONTS_MAX       4           /* TCP listeners of one server */
#define PTC_RPC_CONNECTION_BYTES (32 * 1024) /* the core's for one that is idle; 28 KiB were measured */

/* ---- completion queues -------------------------------------------------- */

/* One batch in flight: its tag. Lives in the object that owns the queue, so
 * it outlives the batch (queues are drained before their owner is freed). */
struct ptc_rpc_slot {
	bool pending;
	bool ok;
};

grpc_call_error ptc_rpc_slot_start(struct ptc_rpc_slot *slot, grpc_call *call, const grpc_op *ops, size_t nops);
/* Runs the queue until the slot has completed; returns its ok. Not pending: returns at once. */
bool ptc_rpc_slot_wait(grpc_completion_queue *cq, struct ptc_rpc_slot *slot);
/* Takes completions for at most wait_ms; true if one came. */
bool ptc_rpc_cq_poll(grpc_completion_queue *cq, int wait_ms);
/* Shuts down, drains (every slot must still exist) and destroys. NULL ok. */
void ptc_rpc_cq_free(grpc_completion_queue *cq);

/* ---- threads, log ------------------------------------------------------- */

/* Starts a thread with every signal blocked. */
int ptc_rpc_thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg,
			 struct ptc_error *err);
/* What the core last complained about on this thread since _clear; "" if nothing. */
void ptc_rpc_core_log_clear(void);
const char *ptc_rpc_core_log(void);

/* ---- loop --------------------------------------------------------------- */

struct ptc_loop_node {
	struct ptc_loop_node *next;
	void (*fn)(void *arg);
	void *arg;
};
/* ptc_loop_post with the caller's node: cannot run out of memory. The node may be reused once fn runs. */
int ptc_loop_post_node(struct ptc_loop *loop, struct ptc_loop_node *node);

/* ---- status: the one place that knows both code spaces ------------------- */

grpc_status_code ptc_rpc_status_to_core(int code, enum ptc_role role);
/* details: the peer's text or the core's; target names the peer where the
 * core speaks. Returns 0 for OK. */
int ptc_rpc_status_from_core(grpc_status_code code, const grpc_metadata_array *trailing, grpc_slice details,
			     const char *target, struct ptc_error *err);
int ptc_rpc_status_from_call_error(grpc_call_error e, const char *what, struct ptc_error *err);

/* ---- channel arguments --------------------------------------------------- */

struct ptc_rpc_args {
	grpc_arg list[PTC_RPC_MAX_ARGS];
	size_t count;
};
void ptc_rpc_args_int(struct ptc_rpc_args *a, const char *key, int value);
void ptc_rpc_args_str(struct ptc_rpc_args *a, const char *key, char *value);
/* Limits, keepalive and what is off everywhere (compression, channelz, proxies). */
void ptc_rpc_args_common(struct ptc_rpc_args *a, uint32_t max_message_bytes, int keepalive_ms, bool permit_idle);
int ptc_rpc_keepalive(int keepalive_ms); /* as in the options to as it is */
void ptc_rpc_args_bulk(struct ptc_rpc_args *a, int window);
void ptc_rpc_args_memory(struct ptc_rpc_args *a); /* under the process's quota, if it has one */
grpc_channel_args ptc_rpc_args_core(struct ptc_rpc_args *a);

/* ---- credentials and addresses ------------------------------------------- */

struct ptc_rpc_trust;

/* "host:port" with a numeric port and no scheme. *ret_loopback: the host is this machine's loopback. */
int ptc_rpc_address_check(const char *address, bool *ret_loopback, struct ptc_error *err);
int ptc_rpc_creds_client(const struct ptc_rpc_tls *tls, const char *expect_node, grpc_channel_credentials **ret_creds,
			 struct ptc_error *err);
/* *ret_renewal: what a listener reads renewed files by; free it when the server is no more. */
struct ptc_rpc_renewal;
int ptc_rpc_creds_server(const struct ptc_rpc_tls *tls, struct ptc_rpc_renewal **ret_renewal,
			 grpc_server_credentials **ret_creds, struct ptc_error *err);
struct ptc_rpc_renewal *ptc_rpc_renewal_free(struct ptc_rpc_renewal *r); /* NULL ok */
unsigned ptc_rpc_tls_renewals(void);                                     /* how often ptc_rpc_tls_renew was called */
/* Identity of a certificate's URI names: exactly one of ours, or PTC_ROLE_NONE. */
void ptc_rpc_identity_from_uris(const char *const *uris, size_t nuris, struct ptc_rpc_identity *ret_id);
/* From a TLS call's auth context; *ret_tls tells whether the call came over TLS at all. With PTC_ROLE_NONE *ret_why says
 * what the certificate lacks. */
void ptc_rpc_identity_from_call(grpc_call *call, struct ptc_rpc_trust *trust_or_null, bool *ret_tls,
				struct ptc_rpc_identity *ret_id, const char **ret_why);

/* The peer of a call that we have made: on the list now. */
bool ptc_rpc_peer_revoked(grpc_call *call, struct ptc_rpc_trust *trust);

/* ---- trust.c: whose certificates count ------------------------------------ */

int ptc_rpc_trust_new(const struct ptc_rpc_tls *tls, struct ptc_rpc_trust **ret_trust, struct ptc_error *err);
struct ptc_rpc_trust *ptc_rpc_trust_ref(struct ptc_rpc_trust *t);
struct ptc_rpc_trust *ptc_rpc_trust_free(struct ptc_rpc_trust *t); /* counted; NULL ok */
const char *ptc_rpc_trust_member(const struct ptc_rpc_trust *t);
/* Any thread. Grows when the list of revoked certificates has been read again; cheap. */
unsigned ptc_rpc_trust_epoch(struct ptc_rpc_trust *t);
/* Any thread. Has the authority revoked this certificate? Without a list nothing is; with one, what is no certificate is. */
bool ptc_rpc_trust_revoked(struct ptc_rpc_trust *t, const char *pem, size_t len);
/* The list in a file, signed by one of the authority's certificates; an X509_CRL. ret_crl NULL: only whether it will do. */
int ptc_rpc_crl_read(const char *path, const char *ca_path, void **ret_crl, struct ptc_error *err);

/* ---- messages ------------------------------------------------------------ */

struct ptc_rpc_message {
	grpc_byte_buffer *buf; /* NULL: none */
	grpc_byte_buffer_reader reader;
	const uint8_t *at; /* rest of the current slice */
	size_t left;
	size_t len;
};
/* Takes buf over. PTC_EPEER: compressed, which we never announce. */
int ptc_rpc_message_init(struct ptc_rpc_message *m, grpc_byte_buffer *buf, struct ptc_error *err);
/* Releases every part on failure, and when the core has done with the buffer. */
int ptc_rpc_parts_pack(const struct ptc_rpc_part *parts, size_t nparts, grpc_byte_buffer **ret_buf,
		       struct ptc_error *err);

/* ---- client calls -------------------------------------------------------- */

struct ptc_rpc_channel {
	pthread_mutex_t lock; /* core, old, renewed */
	grpc_channel *core;
	grpc_channel *old; /* what core was before certificates were renewed; NULL: none */
	int64_t old_ns;    /* since when */
	unsigned renewed;
	struct ptc_rpc_trust *trust;      /* NULL: no list of revoked certificates */
	unsigned listed;                  /* its epoch when core was made */
	struct ptc_rpc_channel_opts opts; /* its strings are ours, its tls the caller's */
	atomic_int refs;
	char target[PTC_RPC_ADDRESS_MAX], expect_node[PTC_NAME_MAX + 1];
};
struct ptc_rpc_channel *ptc_rpc_channel_ref(struct ptc_rpc_channel *ch);
int ptc_rpc_channel_call(struct ptc_rpc_channel *ch, const char *method, grpc_completion_queue *cq, int timeout_ms,
			 grpc_call **ret_call, struct ptc_error *err);

struct ptc_rpc_meta_list {
	grpc_metadata list[PTC_RPC_META_MAX];
	size_t count;
};
int ptc_rpc_meta_pack(struct ptc_rpc_meta_list *l, const struct ptc_rpc_meta *meta, size_t nmeta,
		      struct ptc_error *err);
void ptc_rpc_meta_done(struct ptc_rpc_meta_list *l);

/* What a client call receives: outputs of batches, with the lifetime of the call object that holds it. */
struct ptc_rpc_outcome {
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice details;
};
void ptc_rpc_outcome_init(struct ptc_rpc_outcome *o);
void ptc_rpc_outcome_done(struct ptc_rpc_outcome *o);
grpc_op ptc_rpc_outcome_status_op(struct ptc_rpc_outcome *o);
grpc_op ptc_rpc_outcome_initial_op(struct ptc_rpc_outcome *o);

/* One unary call, blocking or asynchronous. */
struct ptc_rpc_unary_call {
	struct ptc_rpc_channel *ch;
	grpc_call *core;
	grpc_byte_buffer *request, *reply;
	struct ptc_rpc_meta_list meta;
	struct ptc_rpc_outcome out;
};
struct ptc_rpc_unary_args {
	const char *method;
	const void *request;
	size_t len;
	int timeout_ms;
	const struct ptc_rpc_meta *meta;
	size_t nmeta;
};
int ptc_rpc_unary_start(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
			grpc_completion_queue *cq, void *tag, struct ptc_error *err);
/* After the tag came back: the reply, flat; ptc_free it. */
int ptc_rpc_unary_result(struct ptc_rpc_unary_call *u, void **ret_reply, size_t *ret_len, struct ptc_error *err);
void ptc_rpc_unary_done(struct ptc_rpc_unary_call *u);

/* ---- server --------------------------------------------------------------- */

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
	PTC_RPC_ACCEPTING, /* with the thread that waits in the core */
	PTC_RPC_READY,     /* has something to do and waits for a thread */
	PTC_RPC_RUNNING,   /* has one */
	PTC_RPC_WAITING,   /* for its caller or its time, without a thread */
	PTC_RPC_LOOKED,    /* the waiter looks whether it is ready */
};

/* How far it has come. */
enum ptc_rpc_call_phase {
	PTC_RPC_REQUEST, /* its first message is to come */
	PTC_RPC_HANDLER, /* its handler is to run */
	PTC_RPC_STEPS,   /* its step is to run at due_ns */
	PTC_RPC_DRAIN,   /* what it sent is to go */
	PTC_RPC_STATUS,  /* its status is to go, then its end to come */
};

struct ptc_rpc_out {
	struct ptc_rpc_out *next;
	grpc_byte_buffer *buf;
	size_t len;
};

/* One call on the server; storage is reused. It belongs to whoever has it: a thread, or the waiter. */
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
	bool recv_started;          /* ahead of ptc_rpc_call_recv */
	int cancelled;              /* output of the close batch */
	bool initial_sent, status_sent;
	int64_t polled_ns;
	struct ptc_rpc_message msg;
	struct ptc_rpc_identity identity;
	const char *stranger; /* why the caller is nobody */
	unsigned epoch;       /* of the server's trust when the caller was identified */
	char peer[PTC_RPC_ADDRESS_MAX];

	struct ptc_rpc_method *method; /* NULL: no such */
	enum ptc_rpc_kind kind;
	enum ptc_rpc_call_phase phase;
	bool refused; /* its handler never ran */
	int rc;       /* its status, with err's text */
	struct ptc_error err;
	struct ptc_rpc_out *out, *sending; /* brief: what is sent next, and now */
	atomic_size_t out_bytes;
	int64_t sent_ns; /* when `sending` or the status was given to the core */
	ptc_rpc_step_fn step;
	void *step_arg;
	void (*step_release)(void *arg);
	bool again; /* the step asked for another one */
	int64_t due_ns;

	/* guarded by the server's lock */
	enum ptc_rpc_call_state state;
	bool counted; /* against its user's bound */
	uint64_t turn;
	int64_t waiting_ns, look_ns;
};

struct ptc_rpc_unix;  /* a unix listener, rpc/unix.c */
struct ptc_rpc_front; /* a TCP listener, rpc/front.c */

struct ptc_rpc_server {
	grpc_server *core;
	grpc_completion_queue *main_cq; /* for the shutdown's tag */
	bool started;
	struct ptc_rpc_method methods[PTC_RPC_METHODS_MAX];
	size_t nmethods;
	struct ptc_rpc_unix *unix_listeners;
	struct ptc_rpc_trust *trust; /* of the TLS listener; NULL: there is none */
	struct ptc_rpc_front *fronts;
	int nfronts;
	struct ptc_rpc_fd_handler
		*fd_handlers[PTC_RPC_FRONTS_MAX]; /* the core's; it writes them when a front is added */
	bool insecure;
	struct ptc_rpc_renewal *renewals; /* of its TLS listeners */
	atomic_bool serving;
	atomic_bool cancelling; /* the grace time is over */
	int max_calls, max_open, max_calls_per_user, stall_ms, keepalive_ms;
	grpc_completion_queue *accept_cq;

	pthread_mutex_t lock; /* below */
	pthread_cond_t wake, waiter_wake, quiet;
	pthread_t *threads, waiter;
	int nthreads, idle, running, busy; /* busy: calls that are not free, nor being accepted */
	struct ptc_rpc_call **calls;       /* room for max_open */
	int ncalls;
	uint64_t turn;
	bool waiter_started, accepting, stopping, over;
	bool unlooked; /* a call waits since the waiter began its round */
};

/* rpc/call.c */
bool ptc_rpc_call_accept(struct ptc_rpc_call *call); /* blocks; false: the server stops */
/* Who calls what; does not block. It is ready for _run then, unless _refuse comes first. */
void ptc_rpc_call_begin(struct ptc_rpc_call *call);
void ptc_rpc_call_refuse(struct ptc_rpc_call *call, int rc);
/* Goes on as far as it can. true: over, and taken apart; else it waits, and _look tells when to run it again. */
bool ptc_rpc_call_run(struct ptc_rpc_call *call);
bool ptc_rpc_call_look(struct ptc_rpc_call *call, int64_t now_ns);

/* rpc/schedule.c */
int ptc_rpc_schedule_start(struct ptc_rpc_server *srv, struct ptc_error *err);
void ptc_rpc_schedule_stop(struct ptc_rpc_server *srv); /* before the core's shutdown: no more calls are accepted */
/* May so many bytes more wait for this call's user? */
bool ptc_rpc_schedule_room(struct ptc_rpc_call *call, size_t len);
void ptc_rpc_schedule_join(struct ptc_rpc_server *srv); /* when all calls can end */

/* ---- connections ---------------------------------------------------------- */

enum ptc_rpc_peer_kind {
	PTC_RPC_PEER_USER, /* unix, a local user */
	PTC_RPC_PEER_NODE, /* unix, a peer socket */
	PTC_RPC_PEER_TCP,
};

struct ptc_rpc_peer {
	enum ptc_rpc_peer_kind kind;
	struct ptc_rpc_identity id; /* unix */
	struct in6_addr host;       /* TCP; IPv4 as mapped */
	uint16_t port;
};

/* rpc/conns.c; any thread. */
/* A duplicate of fd under a number that stands for this peer as long as it is open; -1: refused. Closes fd. */
int ptc_rpc_conn_take(int fd, const struct ptc_rpc_peer *peer);
/* peer "fd:N" as the core gives it; false: not one of ours. */
bool ptc_rpc_conn_identity(const char *peer, struct ptc_rpc_identity *ret_id);
/* A call of a member came over the TCP connection of this peer, as the core names it. */
void ptc_rpc_conn_known(const char *peer);
void ptc_rpc_conn_expire(void); /* shuts down strangers that have had their time */
/* accept(2) at `what` failed for want of descriptors or memory. */
void ptc_rpc_conn_exhausted(const char *what, int errnum);
void ptc_rpc_v4_mapped(const struct in_addr *v4, struct in6_addr *ret);

/* rpc/unix.c */
int ptc_rpc_unix_start(struct ptc_rpc_unix *list, struct ptc_error *err);
struct ptc_rpc_unix *ptc_rpc_unix_free(struct ptc_rpc_unix *list); /* stops accepting, removes the files */

/* rpc/front.c */
struct ptc_rpc_fd_handler;
void ptc_rpc_args_fronts(struct ptc_rpc_args *a, struct ptc_rpc_fd_handler *handlers[PTC_RPC_FRONTS_MAX]);
int ptc_rpc_front_listen(struct ptc_rpc_server *srv, const char *address, grpc_server_credentials *creds, int *ret_port,
			 struct ptc_error *err);
int ptc_rpc_front_start(struct ptc_rpc_front *list, struct ptc_error *err);
struct ptc_rpc_front *ptc_rpc_front_free(struct ptc_rpc_front *list); /* stops accepting */

/* rpc/health.c */
int ptc_rpc_health_register(struct ptc_rpc_server *srv, struct ptc_error *err);
