/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a client of libptc. Two threads: the caller's, and ours (link.c), which owns the connection. `lock`
 * guards their shared state. Only our thread sends. It derives its messages from the shared state (link.c,
 * next_message), so a new connection only has to forget which messages were sent.
 *
 *   IDLE -> NEXT -> BUILDING -> RESTORING -> RUNNING <-> STOPPED
 *    ^        \-> OVER   |          |           |           |
 *    +-------------------+----------+-----------+-----------+   ended: ptcd said so; or ptc_next */
#pragma once

#include "client/lib/device/device.h"
#include "client/lib/promise/promise.h"
#include "proto/local_page.h"
#include "proto/local_rules.h"
#include "ptc/ptc.h"

#include <pthread.h>
#include <sys/types.h>

#define CLIENT_HUGE_BYTES (UINT64_C(2) << 20) /* a huge page */

/* From BUILDING to STOPPED in the order of enum ptc_local_resume_phase. */
enum phase { PHASE_IDLE, PHASE_NEXT, PHASE_BUILDING, PHASE_RESTORING, PHASE_RUNNING, PHASE_STOPPED, PHASE_OVER };

/* A descriptor that we have opened, and which file that was: a program may close descriptors that it has not opened,
 * and then the number may be another file, which is not ours to touch. */
struct guarded_fd {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
};

struct tensor {
	char *name, *field; /* field "": none */
	char dtype[16];
	uint32_t ndim, flags, element_bytes;
	int64_t shape[PTC_DIMS_MAX];
	struct ptc_local_box *boxes;
	uint32_t nboxes;
	bool no_memory; /* addresses mean nothing yet */
};

/* Kept as long as the generation, and put again at a new connection: ptcd may have forgotten. */
struct put {
	char key[PTC_LOCAL_SHORT_MAX + 1];
	void *value;
	size_t len;
	uint64_t id;
	bool answered;
	int code;
};

struct get {
	bool active, answered;
	uint64_t id;
	char key[PTC_LOCAL_SHORT_MAX + 1];
	uint32_t timeout_ms;
	int code;
	uint8_t value[PTC_LOCAL_RENDEZVOUS_MAX];
	size_t len;
};

struct staging {
	unsigned link; /* the connection it was offered on */
	uint64_t bytes;
	uint32_t nspans;
	struct ptc_local_span *spans;
	uint8_t *map;
	uint64_t touched; /* bytes whose pages are known to be in our page table */
};

/* The memory of promise.said, which ptcd has as well; map NULL: promise.said lies in the heap. */
struct kept {
	struct guarded_fd fd;
	void *map;
	uint64_t bytes;
};

struct ptc_client {
	/* the caller's thread only */
	bool running, stepped; /* stepped: a boundary has been passed since ptc_restore */
	uint64_t next_step;    /* after `stepped`: the last boundary's + 1 */
	unsigned forks;        /* ptc_client_forks when the client was made; a forked child has more */
	struct ptc_local_page *page;
	struct staging staging; /* mapped */
	struct device_marks marks;
	char error[PTC_LOCAL_TEXT_MAX + 1];
	int (*on_stop)(void *arg, uint64_t step);
	void *on_stop_arg;
	struct promise promise;

	/* constant */
	char *socket, token[PTC_LOCAL_TOKEN + 1];
	const char *socket_from; /* "$PTC_WORKER_SOCKET" or "options" */
	pthread_t thread;
	struct guarded_fd wake[2]; /* sockets, each with an inode: what is sent into [1] wakes our thread, at [0] */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* under lock */
	enum phase phase;
	uint32_t does;             /* PTC_LOCAL_DOES_: of this generation's configuration */
	bool layout, takes_layout; /* ptc_declared was called; this connection's ptcd knows its message */
	bool quit, welcomed, ended, restored, declined, finished, leaves, state_again;
	int fatal; /* no way on: enum ptc_result */
	char fatal_text[PTC_LOCAL_TEXT_MAX + 1], link_text[512];
	struct guarded_fd page_fd;
	struct kept kept; /* once made it stays; `map` is written by the caller's thread alone */
	struct ptc_local_generation generation;
	char config[PTC_LOCAL_CONFIG_MAX + 1], job[PTC_LOCAL_SHORT_MAX + 1];
	struct tensor *tensors;
	size_t ntensors, tensors_cap, nregions;
	struct device_list devices;   /* what of them lies on devices */
	struct rank_state *set, *got; /* for the next snapshot; of the restored one */
	struct put *puts;
	size_t nputs, puts_cap;
	struct get get;
	uint64_t last_id;
	uint64_t stop_step;
	bool stop_finished, stop_staged, stop_later;
	char stop_refused[PTC_LOCAL_SHORT_MAX + 1]; /* "": not */
	char why[PTC_LOCAL_SHORT_MAX + 1];          /* the caller's thread's own */
	bool finishing;                             /* likewise: within ptc_finish */
	bool later;                                 /* likewise: `why` says why a later boundary is wanted */
	unsigned link;                              /* connections made */
	struct staging offered; /* by ptcd on this connection, made ready by our thread; map NULL: none */
	struct {                /* on this connection */
		bool next, layout, declared, stopped, get, leaves, keeps;
		size_t tensors, devices, puts;
	} sent;

	struct { /* huge.c: how far it is */
		size_t tensor;
		uint32_t box;
		uint64_t at;
		bool off, works; /* `off` to `refused`: our thread only */
		unsigned refused;
	} huge;

	/* our thread only */
	struct ptc_local_conn conn;
	struct guarded_fd conn_fd; /* conn.fd */
	bool connected, handshake;
	struct ptc_local_out out; /* the message being sent */
	uint16_t out_type;
	size_t out_offset;
	bool out_busy;
	int out_fd; /* goes with it, ours; -1: none */
	struct {    /* fill.c: on this connection */
		uint64_t id, failed;
		int code;
		bool unsaid, damaged, on_disk;
		uint8_t *map; /* of file dev, ino */
		uint64_t map_bytes;
		dev_t dev;
		ino_t ino;
	} filled;
};

/* Stores the line and returns code. c NULL: stores it for the thread, as a failed open does. */
int ptc_client_fail(ptc_client *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Every call but the fast path of ptc_boundary begins with it: INVALID for NULL and after fork. */
int ptc_client_enter(ptc_client *c);
void ptc_client_wake_locked(ptc_client *c);
/* guarded_fd.c. Takes fd; false: it cannot be looked at, and is closed. */
bool ptc_client_guard_fd(struct guarded_fd *o, int fd);
bool ptc_client_fd_is_ours(const struct guarded_fd *o);
void ptc_client_close_guarded(struct guarded_fd *o); /* closes it, if it is still ours */
/* Under lock: a descriptor of ours is gone; then the client is over. */
bool ptc_client_fds_closed_locked(ptc_client *c);
void ptc_client_set_fatal_locked(ptc_client *c, int code, const char *text);
extern atomic_uint ptc_client_forks; /* number of forks, since the library was loaded, that lead to this process */
static inline bool ptc_client_forked(const ptc_client *c)
{
	return c->forks != atomic_load_explicit(&ptc_client_forks, memory_order_relaxed);
}
int ptc_client_fatal_locked(ptc_client *c);
/* The value of a key of a configuration's text, *ret_len long; NULL: it has none. */
const char *ptc_client_config_value(const char *config, const char *key, size_t *ret_len);
/* sampling.c: from now on the client's generation is what a struct ptc_sampling without a configuration means. */
void ptc_client_sampling_is(const ptc_client *c);
/* Waits until devices have done all work up to `step`, a published boundary; PTC_LOCAL_NO_STOP: all queued work. false:
 * `why` says what failed or took too long. The caller's thread only. */
bool ptc_client_settle(ptc_client *c, uint64_t step, char *why, size_t size);
void ptc_client_staging_done(struct staging *s);
struct blob *ptc_client_blob(struct rank_state *k, const char *name, enum ptc_blob_scope scope);
struct cursor *ptc_client_cursor(struct rank_state *k, const char *name);
/* Copies what was restored from `got` to `set`, also over what the program has set, so that the next snapshot has it.
 */
void ptc_client_rank_state_on_locked(ptc_client *c);
void ptc_client_rank_state_clear(struct rank_state *k);
