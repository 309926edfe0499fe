/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent's files share. Nothing outside daemon/agent includes this.
 *
 * Operations that change a job's tables (Seal, Prepare, Pull, Finish) run one
 * at a time per job: ptc_agent_enter/leave. A newer fencing token, or Finish,
 * cancels what runs. Put streams are writers: they may be several, but none
 * beside an operation. */
#pragma once

#include "daemon/agent/agent.h"
#include "daemon/agent/crew.h"
#include "daemon/agent/placed.h"
#include "daemon/agent/ticket.h"
#include "daemon/agent/wire.h"
#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/group/rank_seats.h"
#include "daemon/workers/group/rank_status.h"
#include "daemon/workers/session/rank_meet.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include <pthread.h>

#define PTC_AGENT_STAGING_MIN     (16u << 20)
#define PTC_AGENT_RECV_TICKET     (2u * PTC_BULK_MESSAGE_BYTES)
#define PTC_AGENT_PUSH_BYTES      (16u << 20) /* copies on their way to other nodes; of the transport's share */
#define PTC_AGENT_PULL_THREADS    8
#define PTC_AGENT_LANES           2
#define PTC_AGENT_REQUEST_BYTES   (64 << 20) /* of one Fetch by Pull: small enough to share sources between threads */
#define PTC_AGENT_REQUEST_BOXES   16384
#define PTC_AGENT_DIGEST_THREADS  2
#define PTC_AGENT_TICK_MS         200
#define PTC_AGENT_STALL_MS        60000 /* a stream without a byte for so long is given up */
#define PTC_AGENT_CONTROL_TIMEOUT 60000
#define PTC_AGENT_GEOMETRIES      8     /* kept between calls */
#define PTC_AGENT_BEAT_MS         1000  /* a call about ranks that goes on says so this often */
#define PTC_AGENT_MEETS           16    /* of those that wait for a key; others are told to ask again */
#define PTC_AGENT_MEET_MS         5000  /* and no longer than this */
#define PTC_AGENT_FINISH_MS       15000 /* see ptc_agent_env.finish_wait_ms */

/* One job while something is done with it, or between its Prepare and Finish. */
struct ptc_agent_job {
	struct ptc_agent_job *next;
	char uuid[37];
	unsigned refs, writers;
	bool busy, prepared;
	int64_t seen_fence; /* of the requests so far ... */
	uint64_t seen_seq;  /* ... and the highest number among those of that fence */
	atomic_bool cancel;
	uint64_t switch_id;       /* of the last Prepare */
	struct ptc_table_key key; /* the table it made */
	int64_t copied_bytes;     /* by derive, for that table */
};

struct ptc_agent {
	struct ptc_agent_env env;
	char *node;
	struct ptc_pool send, recv, gate, push; /* see ticket.h */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		struct ptc_agent_job *jobs;
		struct ptc_geometry_ref *geometries; /* newest first */
		struct ptc_agent_held *held;         /* hold.c */
		unsigned settlers;                   /* threads of settle.c */
		bool stopping;
	} shared;
	_Atomic unsigned meets;
};

/* ---- requests and replies of the server side ---- */
/* The one request message of a call, decoded; ptc_pb_free it. */
int ptc_agent_request(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret,
		      struct ptc_error *err);
int ptc_agent_reply(struct ptc_rpc_call *call, const ProtobufCMessage *msg, struct ptc_error *err);

/* ---- one operation at a time ---- */
/* The operation of the calling handler: what stops it. */
struct ptc_agent_op {
	struct ptc_agent *agent;
	struct ptc_agent_job *job; /* NULL: only the call counts */
	const struct ptc_rpc_call *call;
};
bool ptc_agent_op_stopped(void *op); /* a ptc_stop_fn; the handler's thread only */
/* Checks the fence (durably) and the order, ends what runs of an older request, waits for its turn, checks again.
 * cancel_running: Finish. seq 0: not ordered. */
int ptc_agent_enter(struct ptc_agent *agent, const struct ptc_rpc_call *call, const char *uuid, int64_t fence,
		    uint64_t seq, bool cancel_running, struct ptc_agent_op *ret_op, struct ptc_error *err);
void ptc_agent_leave(struct ptc_agent_op *op); /* an op of zeros is fine */

/* ---- writers of an import ---- */
struct ptc_put_target {
	struct ptc_agent *agent;
	struct ptc_agent_job *job;
	uint64_t import_id;
	struct ptc_table *table;
};
int ptc_put_target_open(struct ptc_agent *agent, const char *uuid, uint64_t import_id, struct ptc_put_target *ret,
			struct ptc_error *err);
int ptc_put_target_write(struct ptc_put_target *t, uint32_t item, const struct ptc_box *box, const void *data,
			 struct ptc_error *err);
void ptc_put_target_close(struct ptc_put_target *t);

/* ---- geometry ---- */
struct ptc_holder {
	uint32_t item, node;
	struct ptc_box box;
};
/* All (node, box) that hold part of item under g. Borrowed from g. */
int ptc_geometry_holders(const struct ptc_geometry *g, uint32_t item, const struct ptc_holder **ret, size_t *ret_n,
			 struct ptc_error *err);
/* Index of a node's name in g->nodes; PTC_EINVAL when it is not there. */
int ptc_geometry_node(const struct ptc_geometry *g, const char *name, uint32_t *ret_node, struct ptc_error *err);
/* Byte shape of item; checks that item exists. */
int ptc_geometry_shape(const struct ptc_geometry *g, uint32_t item, uint32_t *ret_ndim, int64_t *ret_shape,
		       struct ptc_error *err);
struct ptc_table_key ptc_geometry_key(const struct ptc_geometry *g);
const char *ptc_geometry_item_name(const struct ptc_geometry *g, uint32_t item, char *buf, size_t size);
/* An error of the store begins with "item N": says the tensor's name instead. Returns err's code. */
int ptc_geometry_name_error(const struct ptc_geometry *g, struct ptc_error *err);

/* A cached geometry. */
struct ptc_geometry_ref {
	struct ptc_geometry_ref *next;
	unsigned refs; /* under the agent's lock; the cache holds one */
	char key[33];
	struct ptc_geometry g;
};
int ptc_geometry_get(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		     struct ptc_geometry_ref **ret, struct ptc_error *err);
void ptc_geometry_put(struct ptc_agent *agent, struct ptc_geometry_ref *ref); /* NULL ok */
void ptc_geometry_cache_done(struct ptc_agent *agent);

/* ---- client side of Fetch ---- */
/* Where the i-th requested box goes: memory that holds `outer` row-major compact, over a few spans. */
struct ptc_fetch_dst {
	struct ptc_box outer;
	struct iovec iov[16];
	int niov;
};
struct ptc_fetch_ops {
	/* Before the box's first byte. */
	int (*begin)(void *arg, size_t i, struct ptc_fetch_dst *ret, struct ptc_error *err);
	/* Now and then, and before its end: so many of its bytes, in row-major order, are in place and just written. May be NULL. */
	int (*arrived)(void *arg, size_t i, int64_t bytes, struct ptc_error *err);
	/* After its last. */
	int (*end)(void *arg, size_t i, struct ptc_error *err);
	/* After each message: bytes of payload. May be NULL. */
	void (*progress)(void *arg, size_t bytes);
	void *arg;
	bool begun;     /* the table need not be sealed; what is not filled of it is refused */
	int timeout_ms; /* of the whole; 0: none */
};
struct ptc_fetch {
	struct ptc_rpc_stream *stream;
	const struct ptc_store_box *boxes; /* borrowed; none empty */
	size_t nboxes;
	struct ptc_fetch_ops ops;
	bool local_error; /* a callback or our own memory failed, not the peer */
	bool lied;        /* a message was malformed, or there was more than asked for */
	/* private */
	size_t at;
	bool open;
	struct ptc_fetch_dst dst;
	struct ptc_runs runs;
	int64_t in_run, in_box; /* bytes received */
};
/* Opens a bulk stream to g's node and asks for boxes of its table. */
int ptc_fetch_open(struct ptc_agent *agent, const struct ptc_geometry *g, uint32_t node, unsigned lane,
		   const struct ptc_store_box *boxes, size_t nboxes, const struct ptc_fetch_ops *ops,
		   struct ptc_fetch *ret_fetch, struct ptc_error *err);
/* Receives everything asked for, strictly, and the peer's status. */
int ptc_fetch_drain(struct ptc_fetch *f, struct ptc_error *err);
void ptc_fetch_done(struct ptc_fetch *f); /* cancels if unfinished; one of zeros is fine */

/* Which nodes give which part of box: appends disjoint parts that cover as much of it as the usable holders can; the
 * rest to uncovered. prefer: this node first; others in turn from `first` on. */
struct ptc_part {
	uint32_t node;
	struct ptc_box box;
};
struct ptc_parts {
	struct ptc_part *v;
	size_t n, cap;
};
int ptc_parts_push(struct ptc_parts *p, uint32_t node, const struct ptc_box *box);
void ptc_parts_done(struct ptc_parts *p);
int ptc_parts_cover(const struct ptc_box *box, const struct ptc_holder *holders, size_t nholders, const bool *usable,
		    uint32_t prefer, uint32_t first, struct ptc_parts *out, struct ptc_boxes *uncovered,
		    struct ptc_error *err);

/* ---- replicas that count and are on other nodes (away.c) ---- */
struct ptc_away {
	struct ptc_holder *v; /* disjoint; node: who has it */
	size_t n, cap;
	uint32_t *nodes; /* of each of the boxes that ptc_away_split has put last */
	size_t nboxes;
};
struct ptc_reduce;
/* Of needs, what by rules only other nodes have as it counts, by node; and what has to be made of several nodes' parts. Both are to be
 * given back. */
int ptc_away_find(const struct ptc_geometry *g, const struct ptc_spec *rules, uint32_t self,
		  const struct ptc_needs *needs, struct ptc_away *ret, struct ptc_reduce *ret_reduce,
		  struct ptc_error *err);
int ptc_away_add(struct ptc_away *a, uint32_t item, uint32_t node, const struct ptc_box *box, struct ptc_error *err);
void ptc_away_done(struct ptc_away *a); /* one of zeros is fine */
/* Cuts missing so that the last a->nboxes of its boxes are what is away, in its order and each at most max_bytes, and the others
 * nothing of it. */
int ptc_away_split(struct ptc_away *a, int64_t max_bytes, struct ptc_store_boxes *missing, struct ptc_error *err);
struct ptc_away_fetch {
	struct ptc_agent *agent;
	const struct ptc_geometry *g; /* generation and snapshot: those of the tables to read */
	const uint32_t *nodes;        /* whom each box is asked of; those of one node together */
	const struct ptc_store_box *boxes;
	size_t n;
	struct ptc_table *table; /* where they go, ... */
	const uint32_t *extents; /* ... unfilled ones of these very boxes */
	/* Or NULL: the bytes of a box, at most PTC_AWAY_TAKE_BYTES, are handed over; perhaps more than once. */
	int (*take)(void *arg, size_t i, const void *data, struct ptc_error *err);
	void *take_arg;
	ptc_stop_fn stop;
	void (*tick)(void *arg);
	void *arg; /* of both */
};
#define PTC_AWAY_TAKE_BYTES (256 << 10)
int ptc_away_fetch(const struct ptc_away_fetch *job, struct ptc_error *err);

/* ---- replicas of which the greatest counts (reduce.c) ---- */
struct ptc_reduce_ask {
	uint32_t node, own; /* own: index into own.v */
};
struct ptc_reduce {
	struct ptc_away own;         /* is merged here, of what is here and ... */
	struct ptc_reduce_ask *asks; /* ... what these nodes have of it, by node */
	size_t nasks, asks_cap;
	struct ptc_away parts; /* others ask for what is here of it; it is away, too */
};
/* needs from..to: all of one item, of which the greatest counts. Adds what is to be fetched when it is merged. */
int ptc_reduce_item(struct ptc_reduce *r, const struct ptc_geometry *g, uint32_t self, const struct ptc_needs *needs,
		    size_t from, size_t to, struct ptc_away *away, struct ptc_error *err);
void ptc_reduce_sort(struct ptc_reduce *r); /* when all items are in */
void ptc_reduce_done(struct ptc_reduce *r); /* one of zeros is fine */
/* Merges what the asked nodes have into the extents of own, which have what is here. fetch: all but nodes, boxes, n and take; its
 * table is where own goes, its geometry's snapshot that of the parts, its extents own's. */
int ptc_reduce_merge(const struct ptc_reduce *r, const struct ptc_away_fetch *fetch, const struct ptc_store_box *boxes,
		     uint64_t *ret_bytes, struct ptc_error *err);
/* The table of what a node lends to whoever merges: of one request, so that what an earlier attempt has left is never taken for it.
 * No record names it: Finish drops it, as does what comes after all nodes have answered. */
#define PTC_PARTS_SNAPSHOT (1ull << 63)
struct ptc_table_key ptc_reduce_key(const struct ptc_table_key *table, uint64_t switch_id, uint64_t launch,
				    uint64_t step);

/* ---- a rank's local tensor ---- */
/* Total bytes of the local tensor; PTC_ENOTFOUND if the rank has none of item. */
struct ptc_rank_tensor {
	const struct ptc_geometry *g;
	struct ptc_table *table;
	uint32_t rank, item;
	uint64_t bytes;
};
int ptc_rank_tensor_init(struct ptc_rank_tensor *t, const struct ptc_geometry *g, struct ptc_table *table,
			 uint32_t rank, uint32_t item, struct ptc_error *err);
/* Where the range ends; PTC_EINVAL when it does not lie inside. */
int ptc_rank_range_end(const struct ptc_rank_tensor *t, const struct ptc_rank_range *range, uint64_t *ret_end,
		       struct ptc_error *err);
/* Bytes [off, off+len) into dst, padding as zeros; scratch of PTC_RANK_SCRATCH bytes. */
#define PTC_RANK_SCRATCH (1u << 20)
int ptc_rank_tensor_read(const struct ptc_rank_tensor *t, uint64_t off, size_t len, void *dst, void *scratch,
			 struct ptc_error *err);

/* ---- digests of what a node holds ---- */
struct ptc_digest_job {
	struct ptc_table *table;
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	ptc_stop_fn stop;
	void (*tick)(void *arg);          /* a few times a second, calling thread */
	void *arg;                        /* of both */
	uint64_t *digests;                /* one per need, filled */
	const struct ptc_store_box *done; /* sorted by item, disjoint: what digests have already; the rest is added */
	size_t ndone;                     /* 0: digests are set */
};
int ptc_digest_needs(const struct ptc_digest_job *job, struct ptc_error *err);
/* Of an extent that is being filled, in slices as it comes: while its bytes are in the processor's cache, digests and checksums cost a
 * fraction of what reading them again does. */
#define PTC_DIGEST_SLICE (512 << 10)
struct ptc_digest_fill {
	struct ptc_table *table;
	const struct ptc_geometry *g;
	const struct ptc_needs *needs;
	uint64_t *digests; /* per need; added to */
};
/* part: a box inside the extent's box of item. Any thread. */
int ptc_digest_part(const struct ptc_digest_fill *f, uint32_t extent, uint32_t item, const struct ptc_box *part,
		    struct ptc_error *err);

/* ---- whom a pull asks ---- */
struct ptc_pull_source {
	size_t next, end; /* parts it is to send: those left */
	unsigned lanes;   /* bits of lanes in use */
	bool failed;
};
/* Of n sources, one per node, the one that node `self` asks next: with fewest streams, of those with most left, of those the
 * next after itself, so that nodes that lack the same begin with different ones. NULL: nothing is left, or no lane is free. */
struct ptc_pull_source *ptc_pull_choose(struct ptc_pull_source *sources, size_t n, uint32_t self);

/* ---- handlers ---- */
int ptc_agent_on_seal(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_prepare(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_pull(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_put(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_finish(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_fetch(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_fetch_rank(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_digest(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_stat(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_capture(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_start(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_arm(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_stop(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_end(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_build(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_meet(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_ranks(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_log(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
int ptc_agent_on_hold(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);

/* ---- tables that readers hold (hold.c) ---- */
/* As ptc_table_open, and where the table was dropped while somebody holds it, that one. */
int ptc_agent_table_open(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_table **ret_table,
			 struct ptc_error *err);
void ptc_agent_holds_done(struct ptc_agent *agent);

/* ---- shared by Prepare and Pull (switch.c) ---- */
/* One side of a switch as this node sees it. */
struct ptc_switch_view {
	struct ptc_geometry_ref *from, *to; /* from NULL: nothing before */
	uint32_t self;                      /* our index in nodes */
	struct ptc_needs needs;
	struct ptc_store_box *need_boxes; /* the same as the store wants them; empty boxes left out */
	size_t nneed_boxes;
	bool *usable;  /* per node: may be a source */
	bool *fresh;   /* per item: begins as zeros here, for its rule resets it; NULL: none does */
	bool *derived; /* per item: what is missing is made from its master here; NULL: none is */
};
int ptc_switch_view_init(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			 struct ptc_error *err);
void ptc_switch_view_done(struct ptc_switch_view *v, struct ptc_agent *agent);
int ptc_switch_plan(const struct ptc_switch_view *v, struct ptc_plan **ret_plan, struct ptc_error *err);
/* What must still be filled, each with its extent. PTC_ENOSPC before anything changed. */
struct ptc_fill {
	struct ptc_store_boxes missing; /* bytes: of those that nodes bring, not of fresh and derived ones */
	uint32_t *extents;
	int64_t new_bytes;    /* of chunks taken by this call */
	int64_t copied_bytes; /* by this call; other jobs' copies at the same time count too */
};
int ptc_fill_reserve(struct ptc_fill *f, struct ptc_agent *agent, const struct ptc_switch_view *v,
		     struct ptc_table *table, struct ptc_error *err);
void ptc_fill_done(struct ptc_fill *f);
/* derived.c. Fills all of fill, boxes of derived items, from masters, which are filled. */
int ptc_derived_make(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_fill *fill,
		     ptc_stop_fn stop, void *arg, struct ptc_error *err);
/* Of a sealed table: what this node needs of masters makes what it has of parameters; PTC_EINVAL naming tensor and element. */
int ptc_derived_check(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_needs *needs,
		      ptc_stop_fn stop, void *arg, struct ptc_error *err);
/* The version and numbers every request with a SwitchInfo must have right. */
int ptc_switch_info_check(uint32_t version, const Ptc__V1__SwitchInfo *info, struct ptc_error *err);
/* PTC_ENOSPC saying how much is missing, where so many more bytes do not fit. */
int ptc_agent_memory_check(struct ptc_agent *agent, int64_t new_bytes, struct ptc_error *err);
/* Drops one table, however far it is; missing is fine. */
int ptc_agent_table_drop(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_error *err);
/* Drops the job's tables of parts (PTC_PARTS_SNAPSHOT). */
int ptc_agent_parts_drop(struct ptc_agent *agent, const char *uuid, struct ptc_error *err);
/* Drops the job's tables that are older than the newest of keep and not in it, and those of parts. */
int ptc_agent_tables_drop_old(struct ptc_agent *agent, const char *uuid, Ptc__V1__TableKey *const *keep, size_t nkeep,
			      struct ptc_error *err);

/* ---- ranks on this node (group.c) ---- */
/* Names, allocation and configuration of a generation that nothing may be known of yet but these: no spec, no layout. */
int ptc_geometry_place(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
		       struct ptc_geometry *ret_geometry, struct ptc_config *ret_config, struct ptc_error *err);
/* PTC_ESTATE where no ranks run on this node. */
int ptc_group_workers(struct ptc_agent *agent, struct ptc_error *err);
void ptc_group_key_of(const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which, struct ptc_group_key *ret);
/* How the ranks of a generation on this node are started; owns what it points to. nranks 0: there are none here. */
struct ptc_group_start {
	struct ptc_group_desc desc;
	struct ptc_geometry place;
	struct ptc_group_rank *ranks;
	struct ptc_config *config;
	char *config_text;
	const char **env; /* the job's, and its seed, whose text lies behind the list */
	void *job_ref;
};
int ptc_group_start_make(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which,
			 struct ptc_group_start *ret, struct ptc_error *err);
void ptc_group_start_done(struct ptc_group_start *s, struct ptc_agent *agent);

/* The seats of a group here, by rank; exactly those that the allocation puts here. */
struct ptc_group {
	struct ptc_workers *workers;
	struct ptc_group_key key;
	struct ptc_seat_view *raw; /* as they were given */
	struct ptc_seat_view *v;
	size_t n;
};
/* PTC_ENOTFOUND: no such group here. PTC_ESTATE naming ranks: others than there should be. */
int ptc_group_open(struct ptc_agent *agent, const struct ptc_allocation *a, uint32_t self,
		   const struct ptc_group_key *key, struct ptc_group *ret, struct ptc_error *err);
void ptc_group_close(struct ptc_group *group); /* one of zeros is fine */
/* A declared region of one seat, in bytes. */
struct ptc_seat_source {
	uint32_t item, seat; /* seat: index into group->v */
	bool secondary;      /* by its rule another replica counts; false until capture.c says so, as is the next */
	bool max;            /* by its rule the greatest does */
	struct ptc_placed at;
};
struct ptc_seat_sources {
	struct ptc_seat_source *v; /* by item, then rank */
	size_t n;
};
/* Every region of every seat; PTC_ELAYOUT naming rank and tensor where a rank has declared other than g lays it out. */
int ptc_seat_sources_make(const struct ptc_geometry *g, const struct ptc_group *group, struct ptc_seat_sources *ret,
			  struct ptc_error *err);
void ptc_seat_sources_done(struct ptc_seat_sources *s);

/* ---- a snapshot's bytes into the ranks that have declared (restore.c) ---- */
struct ptc_restore {
	struct ptc_table *table; /* sealed */
	const struct ptc_geometry *g;
	const struct ptc_group *group; /* its DECLARED seats are written */
	ptc_stop_fn stop;
	void *arg;
};
int ptc_restore_seats(const struct ptc_restore *job, struct ptc_error *err);

/* ---- what ranks carry beside tensors (carried.c) ---- */

struct ptc_carried {
	struct ptc_state state;
	struct ptc_seat_carried *of; /* of each rank of the group here; NULL: nothing is carried */
	struct ptc_seat_blob *blobs;
	struct ptc_seat_cursor *cursors;
	size_t nblobs;
};
/* hash: of the blob; "": nothing. *ret is always set. */
int ptc_carried_read(struct ptc_agent *agent, const char *uuid, const char *hash, const struct ptc_group_desc *desc,
		     struct ptc_carried *ret, struct ptc_error *err);
void ptc_carried_done(struct ptc_carried *c);

/* ---- what Finish says of ranks (settle.c) ---- */
/* Makes what runs here what the request says, or ends all ranks of the job. Waits finish_wait_ms at most, then goes on behind the
 * answer; what fails is news. */
int ptc_settle(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, struct ptc_error *err);
void ptc_settle_stop(struct ptc_agent *agent); /* ends what goes on; waits for it */
