/* SPDX-License-Identifier: Apache-2.0 */
/* The documents in etcd: keys, JSON and meaning. `etcdctl get --prefix /ptc/` shows them; docs/control.md lists them.
 *
 *   /ptc/cluster             {version, id}, written once; a daemon whose state has another id does not start
 *   /ptc/key, /ptc/upkeep    {version, id}: the key that seals descriptions (vault.c); daemon/coord/etcd_upkeep.c
 *   /ptc/profile             the cluster's devices and links (daemon/planning/remembered.h)
 *   /ptc/nodes/NAME          node document, under its lease. /ptc/nodes-known/NAME: {version, store}, until forgotten
 *   /ptc/nodes-drained/NAME, /ptc/nodes-bad/NAME/INDEX  {version}: the node, or the device, gets no new ranks
 *   /ptc/nodes-lost/NAME     {version}: an operator calls it lost; until it is back. -losses/NAME: quarantine_doc.h
 *   /ptc/nodes-devices       which job has which devices (daemon/cluster/devices/given_devices.h)
 *   /ptc/names/UID/JOB       the job's uuid
 *   /ptc/users/UID/UUID      {version, bytes}: a job of that user, and its spec's length (daemon/cluster/quota.h)
 *   /ptc/creating/UUID       {version, node, boot_id, uid}: a job whose spec is being written; gone once it exists
 *   /ptc/datasets/UID/NAME   a registered dataset (formats/dataset/dataset_doc.h)
 *   /ptc/blobs/UUID/HASH/PART-BYTES   parts of at most 512 KiB by content: spec (sealed), generation, manifest ...
 *   /ptc/events/UUID/NUMBER  event log; the oldest are dropped
 *   /ptc/jobs/UUID/meta      {version, uuid, name, uid, spec, created_ms}, and files_group if the job has one
 *   /ptc/jobs/UUID/lock      {version, node}, under the controller's lease; its create_revision is the fence
 *   /ptc/jobs/UUID/record    the one committed thing, at most 4 KiB
 *   /ptc/jobs/UUID/intent    the switch under way. /barrier: each abort changes it, so earlier transactions fail
 *   /ptc/jobs/UUID/worker/NODE   events of its ranks (workers/types/worker_event.h); a listing has them last
 *   /ptc/jobs/UUID/copies, /older, /slow/NODE/INDEX   copies_doc.h; older_doc.h; devices/slow_devices.h
 *   /ptc/jobs/UUID/measured, /probed, /weighed   not mirrored: measured_doc.h, probed.h, controller/recovery/growth.c
 *   /ptc/jobs/UUID/damage/NODE   damaged blocks (daemon/scrub/damage_doc.h)
 * Encoders return JSON text for ptc_free, or NULL when out of memory. Decoders check every member that they know, pass
 * over others, and refuse versions that they cannot read (base/number/versions.h). */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "base/status.h"
#include "daemon/core/switch_terms.h"
#include "daemon/cluster/devices/unhealthy.h"
#include "daemon/cluster/marks/mark_docs.h"
#include "formats/dataset/ledger.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PTC_HASH_HEX  33
#define PTC_UUID_TEXT 37
struct ptc_node_doc {
	char name[PTC_NAME_MAX + 1];
	char address[256]; /* where peers connect */
	uint32_t devices;
	char device_name[PTC_DEVICE_NAME_BYTES]; /* of each of them, as the driver or ptcd.yaml says; "": not known */
	uint64_t device_bytes;                   /* memory of the smallest; 0: not known */
	char unhealthy[PTC_UNHEALTHY_BYTES];     /* devices that are given to nobody (devices/unhealthy.h) */
	uint64_t ceiling_bytes;                  /* of chunks */
	char store_id[PTC_UUID_TEXT];
	char boot_id[PTC_UUID_TEXT]; /* of this run of the daemon */
	char rack[PTC_NAME_MAX + 1];
	bool insecure;
	int pid;
	uint32_t documents_oldest, documents; /* versions of documents: the oldest it reads, the newest it writes */
};
char *ptc_node_doc_encode(const struct ptc_node_doc *d);
int ptc_node_doc_decode(const char *json, size_t len, struct ptc_node_doc *ret_doc, struct ptc_error *err);
/* PTC_EVERSION: the node's version differs from ours by more than one; the line says what to do. */
int ptc_node_doc_near(const struct ptc_node_doc *d, struct ptc_error *err);

struct ptc_meta_doc {
	char uuid[PTC_UUID_TEXT];
	char name[PTC_NAME_MAX + 1];
	uid_t uid;
	bool shared; /* members of group gid may read its files; false in jobs of older versions */
	gid_t gid;
	char spec_hash[PTC_HASH_HEX];
	int64_t created_ms;
};
char *ptc_meta_doc_encode(const struct ptc_meta_doc *d);
int ptc_meta_doc_decode(const char *json, size_t len, struct ptc_meta_doc *ret_doc, struct ptc_error *err);

/* Whether the job's ranks run. */
enum ptc_run {
	PTC_RUN_NONE, /* a state-only job: it has no ranks */
	PTC_RUN_LIVE,
	PTC_RUN_STOPPED, /* by a person */
	PTC_RUN_DONE,    /* every rank has finished */
	PTC_RUN_FAILED,  /* a rank exited with an error */
	PTC_RUN_COUNT,
};
const char *ptc_run_name(enum ptc_run run);

/* Why ranks that do not run are to be started again without a request: a node was lost, or a rank failed by itself. */
enum ptc_recovery_kind { PTC_RECOVERY_NONE, PTC_RECOVERY_NODE, PTC_RECOVERY_PROGRAM, PTC_RECOVERY_COUNT };

/* The committed record. manifest_hash names a blob. snapshot 0: ranks run, and have made no snapshot yet. */
struct ptc_record_doc {
	uint64_t generation, snapshot, step;
	char manifest_hash[PTC_HASH_HEX];
	enum ptc_run run;
	uint64_t incarnation; /* of the generation's ranks; 0: there are none */
	uint64_t switch_id;   /* of the last committed switch; 0: an older version did not say */
	enum ptc_recovery_kind recovery;
	uint64_t reached;     /* with recovery: the greatest boundary that a rank is known to have published */
	uint32_t restarts;    /* since restarted_ms, those that count (docs/failures.md, "When the job gives up") */
	int64_t restarted_ms; /* Unix time of the first restart; 0: there was none */
	uint64_t failed_step; /* step of the last error, or what had been reached at the last loss */
	bool hung;            /* with recovery PROGRAM: ranks had hung */
};
const char *ptc_record_run_name(const struct ptc_record_doc *d); /* for people: "recovering", too */
char *ptc_record_doc_encode(const struct ptc_record_doc *d);
int ptc_record_doc_decode(const char *json, size_t len, struct ptc_record_doc *ret_doc, struct ptc_error *err);

#define PTC_WITHOUT_MAX 2048 /* bytes of names; after a larger loss no switch goes on */

struct ptc_intent_doc {
	uint64_t id;
	enum ptc_switch_kind kind;
	uint64_t from_generation, from_snapshot, to_generation, to_snapshot;
	char generation_hash[PTC_HASH_HEX]; /* blob of the new ptc_generation_doc */
	int64_t started_ms;
	bool run_from, run_to;    /* ranks of the old generation run; ranks of the new one will */
	enum ptc_run end;         /* of a snapshot without run_to, or a halt: the record's `run` afterwards */
	uint64_t stop;            /* first round of arming; held: where ranks are captured */
	bool held, leaves;        /* a snapshot: held: of ranks that survived a loss; leaves: that start elsewhere */
	uint64_t reached;         /* held: the greatest step that any rank was seen to come to */
	uint64_t source;          /* import: the older snapshot whose state it is; 0: a client sends the state */
	bool skip_data, recovers; /* source: the data's position stays as in the record before; a recovery asked */
	char without[PTC_WITHOUT_MAX]; /* names of nodes, with spaces between: they are lost, or hold old tables */
};
char *ptc_intent_doc_encode(const struct ptc_intent_doc *d);
int ptc_intent_doc_decode(const char *json, size_t len, struct ptc_intent_doc *ret_doc, struct ptc_error *err);
bool ptc_intent_without(const struct ptc_intent_doc *d, const char *node);
int ptc_intent_without_add(struct ptc_intent_doc *d, const char *node); /* 0 or PTC_ELIMIT */

/* Configuration and allocation; a blob. */
struct ptc_generation_doc {
	char *config; /* canonical text */
	char **nodes;
	size_t nnodes;
	uint32_t *rank_node, *rank_device;
	uint32_t world;
	char layout_hash[PTC_HASH_HEX];    /* blob: what ranks declared (formats/state/layout_doc.h); "": by rules */
	uint64_t cost_linear, cost_square; /* of a sample by its length (planner/cost/step.h); both 0: not known */
};
char *ptc_generation_doc_encode(const struct ptc_generation_doc *d);
int ptc_generation_doc_decode(const char *json, size_t len, struct ptc_generation_doc *ret_doc, struct ptc_error *err);
void ptc_generation_doc_done(struct ptc_generation_doc *d);
bool ptc_generation_doc_names(const struct ptc_generation_doc *d, const char *node); /* it has ranks there */
bool ptc_generation_doc_gives(const struct ptc_generation_doc *d, const char *node, uint32_t device); /* to a rank */
int ptc_generation_doc_copy(const struct ptc_generation_doc *d,
			    struct ptc_generation_doc *ret_doc); /* 0 or PTC_ENOMEM */

/* An imported file, so that an export gives the same bytes. */
struct ptc_file_doc {
	char *field, *name;
	char header_hash[PTC_HASH_HEX]; /* blob */
	uint32_t *items;
	size_t nitems;
};

/* A layout that ranks have declared under a configuration. Plans use it when the configuration comes again. */
struct ptc_known_layout {
	char *config;
	char layout_hash[PTC_HASH_HEX];
};
#define PTC_KNOWN_LAYOUTS_MAX 32 /* the oldest is forgotten */

/* The full description of a record's snapshot; a blob. */
struct ptc_manifest_doc {
	uint64_t generation, snapshot, step;
	char spec_hash[PTC_HASH_HEX];
	char generation_hash[PTC_HASH_HEX];
	uint64_t *digests;
	size_t ndigests; /* of items */
	struct ptc_file_doc *files;
	size_t nfiles;
	char state_hash[PTC_HASH_HEX]; /* blob: the ranks' blobs and cursors (formats/state/state_doc.h); "": none */
	struct ptc_known_layout *layouts;
	size_t nlayouts; /* oldest first */
	struct ptc_ledger ledger;
	/* Nodes of the generation's layout that were left out: they have none of the snapshot's bytes. */
	char **without;
	size_t nwithout;
};
bool ptc_manifest_placed(const struct ptc_manifest_doc *d, const char *node); /* false: it was left out */
int ptc_manifest_without_add(struct ptc_manifest_doc *d, const char *node);   /* 0 or PTC_ENOMEM */
char *ptc_manifest_doc_encode(const struct ptc_manifest_doc *d);
int ptc_manifest_doc_decode(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err);
/* The same, but only for the names of other blobs: it skips digests and lists of items, and does not check them. */
int ptc_manifest_doc_names(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err);
void ptc_manifest_doc_done(struct ptc_manifest_doc *d);
int ptc_manifest_layout_add(struct ptc_manifest_doc *d, const char *config, const char *hash); /* 0 or PTC_ENOMEM */
const char *ptc_manifest_layout_find(const struct ptc_manifest_doc *d, const char *config);    /* NULL: not known */

/* A node's report about its ranks. */
enum ptc_worker_state { PTC_WORKER_FAILED, PTC_WORKER_FINISHED, PTC_WORKER_DUE, PTC_WORKER_STATES };
struct ptc_worker_doc {
	uint64_t generation, incarnation, step;
	enum ptc_worker_state state;
	uint32_t rank;
	int exit_status; /* as of wait(2) */
	bool gone;       /* failed: the node has lost its ranks or their state; no rank failed */
	char text[1024];
};
char *ptc_worker_doc_encode(const struct ptc_worker_doc *d);
int ptc_worker_doc_decode(const char *json, size_t len, struct ptc_worker_doc *ret_doc, struct ptc_error *err);
