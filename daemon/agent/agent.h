/* SPDX-License-Identifier: Apache-2.0 */
/* The node's hands: everything that touches tensor bytes. Server side of the
 * ptc.v1.Peer service (Seal, Prepare, Pull, Put, Finish, Fetch, FetchRank,
 * Digest, Stat), and, for the daemon a client talks to (the gateway), scatter
 * (import) and gather (export, later FUSE).
 *
 * Runs on RPC server threads and its own few workers, never on the loop.
 * Every transfer takes a memory ticket from one pool (staging_bytes) before its first byte; a thread holds at most one
 * ticket and takes no second one while waiting, which keeps the pool free of deadlock.
 *
 * Happy path of a switch: Prepare computes needs and plan from spec, layouts and allocations, derives the new table from
 * the old one, reserves what is missing; Pull fetches missing boxes from the plan's sources (several streams at once, straight
 * from the socket's slices into the chunks), marks extents filled, seals, digests every needed box, answers digests.
 * Failure modes: source gone or stalled (PTC_EPEER; nothing lost, call again), fence lower than seen (PTC_EFENCED),
 * memory (PTC_ENOSPC before anything moved), a sent block that does not verify (PTC_ECORRUPT), a peer that sends fewer, more or other
 * bytes than asked (PTC_EPEER). */
#pragma once

#include "base/status.h"
#include "daemon/store/store.h"
#include "daemon/workers/types/worker_news.h"
#include "formats/job/job.h"
#include "formats/state/state_doc.h"
#include "reshard/layout/declared.h"
#include "reshard/plan/plan.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <stdatomic.h>

struct ptc_agent;

/* ---- geometry: spec + layout + allocation of one generation ---------------- */

struct ptc_geometry {
	uint64_t generation, snapshot;
	const struct ptc_spec *spec; /* borrowed from the spec or layout cache, lives as long as the geometry */
	const struct ptc_layout *layout;
	struct ptc_layout
		*own_layout; /* the same, when it was made of rules; NULL: declared, borrowed with layout_ref */
	struct ptc_allocation allocation; /* node numbers index `nodes` */
	char **nodes, **addresses;
	size_t nnodes;
	char uuid[37];           /* the job */
	char spec_hash[65];      /* names the spec's blob */
	struct ptc_agent *agent; /* gives the references back */
	void *spec_ref, *layout_ref;
	struct ptc_holders *holders; /* who needs which boxes of which item; built at first use, any thread */
};
/* Accepts an empty one; leaves it empty. */
void ptc_geometry_done(struct ptc_geometry *g);

struct ptc_agent_env {
	struct ptc_store *store;
	const char *node;        /* our name */
	uint64_t staging_bytes;  /* ticket pool */
	uint64_t work_bytes;     /* memory.work, for messages; 0: not said */
	const char *memory_json; /* what Stat says under "memory": an object, or NULL: {} */
	/* Blocking, any thread: the parsed spec with that hash (a reference; release gives it back). Reads the blob from etcd on a miss. */
	int (*spec_get)(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec, void **ret_ref,
			struct ptc_error *err);
	void (*spec_release)(void *arg, void *ref);
	/* Likewise a layout document with the spec it describes (formats/state/layout_doc.h). NULL: no declared layouts here. */
	int (*layout_get)(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec,
			  const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err);
	void (*layout_release)(void *arg, void *ref);
	/* Likewise the job's description, for how its ranks are started. */
	int (*job_get)(void *arg, const char *uuid, const char *spec_hash, const struct ptc_job_desc **ret_job,
		       void **ret_ref, struct ptc_error *err);
	void (*job_release)(void *arg, void *ref);
	/* Blocking, any thread: a blob of a job, as it is; ptc_free it. */
	int (*blob_get)(void *arg, const char *uuid, const char *hash, char **ret_data, size_t *ret_len,
			struct ptc_error *err);
	/* The ranks on this node; NULL: none run here, and calls about them are PTC_ESTATE. Outlives the agent. */
	struct ptc_workers *workers;
	uint32_t finish_wait_ms; /* Finish waits so long for ranks to go before it answers; 0: 15 s */
	/* What failed when ranks were started or restored after Finish had been answered; any thread. May be NULL. */
	void (*news)(void *arg, const struct ptc_worker_news *news);
	/* A bulk or control channel to a node; cached and owned by the callee, valid until the agent is freed. lane: separate connections. */
	int (*channel)(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
	void *arg;
};
int ptc_agent_new(const struct ptc_agent_env *env, struct ptc_agent **ret_agent, struct ptc_error *err);
/* Before the server starts: adds the methods of ptc.v1.Peer, role NODE only. */
int ptc_agent_register(struct ptc_agent *agent, struct ptc_rpc_server *server, struct ptc_error *err);
struct ptc_agent *ptc_agent_free(struct ptc_agent *agent); /* after the server is freed; NULL ok */

/* From the protobuf-c form (struct Ptc__V1__SwitchInfo). which: its `from` or `to`. Checks every number from the wire. */
struct Ptc__V1__SwitchInfo;
struct Ptc__V1__Generation;
int ptc_agent_geometry(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_error *err);

/* ---- what ranks of other nodes say, at the controller ------------------------ */

struct Ptc__V1__RankLayout;
struct Ptc__V1__RankState;
/* Of Build's reply into a merge; of Capture's last message into a state bundle. Check every number from the wire. */
int ptc_agent_declared_add(struct ptc_declared_merge *m, const struct Ptc__V1__RankLayout *rank, struct ptc_error *err);
int ptc_agent_state_add(struct ptc_state *s, const struct ptc_config *config, const struct Ptc__V1__RankState *rank,
			struct ptc_error *err);

/* ---- gateway: gather (export) ------------------------------------------------ */

/* Writes bytes [offset, offset+length) of the item, row-major over its logical shape, to sink in order, in spans of at most
 * PTC_BULK_MESSAGE_BYTES; reads local pieces from the store, remote ones by Fetch from any node of the geometry that has them
 * (another replica is tried when one is unreachable). Bounded memory. sink returns nonzero to stop. */
typedef int (*ptc_sink_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);
int ptc_agent_gather(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid, uint32_t item,
		     uint64_t offset, uint64_t length, ptc_sink_fn sink, void *arg, struct ptc_error *err);
/* Bytes of a rank's local tensor of an item, from that rank's node, padding as zeros. length 0: to the end. */
struct ptc_rank_range {
	uint32_t rank, item;
	uint64_t offset, length;
};
int ptc_agent_gather_rank(struct ptc_agent *agent, const struct ptc_geometry *g, const struct Ptc__V1__SwitchInfo *info,
			  const struct ptc_rank_range *range, ptc_sink_fn sink, void *arg, struct ptc_error *err);

/* ---- holding what readers have open --------------------------------------------- */

/* This node's table with that key stays readable for ttl_ms more, even where a switch drops it meanwhile; 0: the holder gives
 * it up. PTC_ENOTFOUND: it is not here (any more); PTC_ELIMIT: too many are held. What is held counts as used in the store. */
int ptc_agent_hold(struct ptc_agent *agent, const struct ptc_table_key *key, const char *holder, uint32_t ttl_ms,
		   struct ptc_error *err);
/* Gives up what nobody has asked for again in time. Any thread; does not block. */
void ptc_agent_holds_expire(struct ptc_agent *agent);

/* ---- lending chunk files to readers on this node: proto/lend.h ------------------- */

/* Listens beside socket_path, with a thread of its own. Free before the agent. */
struct ptc_lend;
int ptc_lend_new(struct ptc_agent *agent, const char *socket_path, struct ptc_lend **ret_lend, struct ptc_error *err);
struct ptc_lend *ptc_lend_free(struct ptc_lend *l); /* NULL ok */

/* ---- gateway: scatter (import) ------------------------------------------------ */

struct ptc_scatter; /* one per ImportData stream; one thread */
int ptc_scatter_new(struct ptc_agent *agent, const struct ptc_geometry *to, const char *uuid, uint64_t import_id,
		    struct ptc_scatter **ret_scatter, struct ptc_error *err);
/* Sends data (a contiguous row-major range of the item) to every node that needs part of it, as boxes (Put); local parts go to the store directly. */
int ptc_scatter_write(struct ptc_scatter *s, uint32_t item, uint64_t offset, const void *data, size_t len,
		      struct ptc_error *err);
int ptc_scatter_finish(struct ptc_scatter *s, struct ptc_error *err); /* every node has acknowledged */
struct ptc_scatter *ptc_scatter_free(struct ptc_scatter *s);          /* NULL ok */

/* ---- digests at the controller ------------------------------------------------ */

/* Collects PullReply digests of every node of a geometry and merges them: equal boxes of replicas must agree (else
 * PTC_EDIGEST naming tensor and nodes), and a disjoint cover of each item XORs to its digest. */
struct ptc_digests;
int ptc_digests_new(const struct ptc_geometry *g, struct ptc_digests **ret_digests, struct ptc_error *err);
int ptc_digests_add(struct ptc_digests *d, uint32_t node, const uint32_t *need_index, const uint64_t *digests, size_t n,
		    struct ptc_error *err);
/* ret_items: one per item, spec order. PTC_EDIGEST/PTC_ESTATE if something is missing. expected NULL or one per item to compare with, naming the tensor that differs. */
int ptc_digests_merge(struct ptc_digests *d, const uint64_t *expected, uint64_t *ret_items, struct ptc_error *err);
struct ptc_digests *ptc_digests_free(struct ptc_digests *d);
