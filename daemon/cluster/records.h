/* SPDX-License-Identifier: Apache-2.0 */
/* The documents in etcd: their keys, their JSON, and what they mean. A person
 * reads them with `etcdctl get --prefix /ptc/`; docs/control.md lists them.
 *
 *   /ptc/cluster                      {version, id}: written once; a daemon with state of another id refuses to start
 *   /ptc/nodes/NAME                   node document, under the node's lease
 *   /ptc/nodes-drained/NAME           {version}: no new ranks here
 *   /ptc/names/UID/JOB                the job's uuid
 *   /ptc/key                          {version, id}: names the key that descriptions are sealed with (vault.c)
 *   /ptc/jobs/UUID/meta               {version, uuid, name, uid, spec, created_ms}, and files_group where the job has one
 *   /ptc/jobs/UUID/lock               {version, node}, under the controller's lease; create_revision is the fencing token
 *   /ptc/jobs/UUID/record             the one committed thing, at most 4 KiB
 *   /ptc/jobs/UUID/intent             the switch under way
 *   /ptc/jobs/UUID/barrier            moved on by every abort, so that what was on its way before it fails
 *   /ptc/jobs/UUID/worker/NODE        what a node's ranks have come to (daemon/workers/types/worker_event.h); read after the
 *                                     keys above, which sort before it
 *   /ptc/jobs/UUID/measured           steps and pauses that were measured (daemon/planning/measured_doc.h); no mirror has it
 *   /ptc/profile                      the cluster's devices and links (daemon/planning/remembered.h)
 *   /ptc/datasets/NAME                a registered dataset (formats/dataset/dataset_doc.h)
 *   /ptc/upkeep                       {version}: written by a local etcd's supervisor (daemon/coord/etcd_upkeep.c)
 *   /ptc/creating/UUID                {version, node, boot_id, uid}: a job whose spec is being written; gone when it exists
 *   /ptc/users/UID/UUID               {version, bytes}: a job of that user, and how long its spec is (daemon/cluster/quota.h)
 *   /ptc/blobs/UUID/HASH/PART-BYTES   content-addressed parts of at most 512 KiB: spec (sealed), generation, manifest, headers
 *   /ptc/events/UUID/NUMBER           event log, oldest dropped
 *
 * Encoders return ptc_free-able JSON text or NULL when out of memory;
 * decoders check every member that they know, pass over others, and refuse versions that are not next to ours. */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "base/status.h"
#include "daemon/core/job_switch.h"
#include "formats/dataset/ledger.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PTC_HASH_HEX  33
#define PTC_UUID_TEXT 37

struct ptc_node_doc {
	char name[PTC_NAME_MAX + 1];
	char address[256]; /* what peers connect to */
	uint32_t devices;
	uint64_t ceiling_bytes; /* of chunks */
	char store_id[PTC_UUID_TEXT];
	char boot_id[PTC_UUID_TEXT]; /* of this run of the daemon */
	char rack[PTC_NAME_MAX + 1];
	bool insecure;
	int pid;
	uint32_t documents_oldest, documents; /* versions of documents: the oldest it reads, the newest it writes */
};
char *ptc_node_doc_encode(const struct ptc_node_doc *d);
int ptc_node_doc_decode(const char *json, size_t len, struct ptc_node_doc *ret_doc, struct ptc_error *err);
/* PTC_EVERSION, and what to do, where its version is not next to ours. */
int ptc_node_doc_near(const struct ptc_node_doc *d, struct ptc_error *err);

struct ptc_meta_doc {
	char uuid[PTC_UUID_TEXT];
	char name[PTC_NAME_MAX + 1];
	uid_t uid;
	bool shared; /* its files, with members of group gid; of jobs made by older versions: not */
	gid_t gid;
	char spec_hash[PTC_HASH_HEX];
	int64_t created_ms;
};
char *ptc_meta_doc_encode(const struct ptc_meta_doc *d);
int ptc_meta_doc_decode(const char *json, size_t len, struct ptc_meta_doc *ret_doc, struct ptc_error *err);

/* Whether the job's ranks run. */
enum ptc_run {
	PTC_RUN_NONE, /* state only: it has none */
	PTC_RUN_LIVE,
	PTC_RUN_STOPPED, /* by a person */
	PTC_RUN_DONE,    /* every rank has finished */
	PTC_RUN_FAILED,  /* a rank exited with an error */
	PTC_RUN_COUNT,
};
const char *ptc_run_name(enum ptc_run run);

/* What is committed. manifest_hash names a blob. snapshot 0: ranks run that have not made one yet. */
struct ptc_record_doc {
	uint64_t generation, snapshot, step;
	char manifest_hash[PTC_HASH_HEX];
	enum ptc_run run;
	uint64_t incarnation; /* of the generation's ranks; 0: there are none */
	uint64_t switch_id;   /* that was committed last; 0: by a version that did not say */
};
char *ptc_record_doc_encode(const struct ptc_record_doc *d);
int ptc_record_doc_decode(const char *json, size_t len, struct ptc_record_doc *ret_doc, struct ptc_error *err);

struct ptc_intent_doc {
	uint64_t id;
	enum ptc_switch_kind kind;
	uint64_t from_generation, from_snapshot, to_generation, to_snapshot;
	char generation_hash[PTC_HASH_HEX]; /* blob of the new ptc_generation_doc */
	int64_t started_ms;
	bool run_from, run_to; /* ranks of the old generation run; of the new one are to */
	enum ptc_run end;      /* snapshot without run_to, halt: what the record then says */
	uint64_t stop;         /* first round of arming */
};
char *ptc_intent_doc_encode(const struct ptc_intent_doc *d);
int ptc_intent_doc_decode(const char *json, size_t len, struct ptc_intent_doc *ret_doc, struct ptc_error *err);

/* Configuration and allocation; a blob. */
struct ptc_generation_doc {
	char *config; /* canonical text */
	char **nodes;
	size_t nnodes;
	uint32_t *rank_node, *rank_device;
	uint32_t world;
	char layout_hash
		[PTC_HASH_HEX]; /* blob: what the ranks declared (formats/state/layout_doc.h); "": laid out by rules */
};
char *ptc_generation_doc_encode(const struct ptc_generation_doc *d);
int ptc_generation_doc_decode(const char *json, size_t len, struct ptc_generation_doc *ret_doc, struct ptc_error *err);
void ptc_generation_doc_done(struct ptc_generation_doc *d);
int ptc_generation_doc_copy(const struct ptc_generation_doc *d,
			    struct ptc_generation_doc *ret_doc); /* 0 or PTC_ENOMEM */

/* One imported file, for the same bytes on export. */
struct ptc_file_doc {
	char *field, *name;
	char header_hash[PTC_HASH_HEX]; /* blob */
	uint32_t *items;
	size_t nitems;
};

/* The layout that ranks declared under a configuration, remembered to plan with when it comes again. */
struct ptc_known_layout {
	char *config;
	char layout_hash[PTC_HASH_HEX];
};
#define PTC_KNOWN_LAYOUTS_MAX 32 /* the oldest is forgotten */

/* What a record's snapshot is, complete; a blob. */
struct ptc_manifest_doc {
	uint64_t generation, snapshot, step;
	char spec_hash[PTC_HASH_HEX];
	char generation_hash[PTC_HASH_HEX];
	uint64_t *digests;
	size_t ndigests; /* per item */
	struct ptc_file_doc *files;
	size_t nfiles;
	char state_hash[PTC_HASH_HEX]; /* blob: the ranks' blobs and cursors (formats/state/state_doc.h); "": none */
	struct ptc_known_layout *layouts;
	size_t nlayouts; /* oldest first */
	struct ptc_ledger ledger;
};
char *ptc_manifest_doc_encode(const struct ptc_manifest_doc *d);
int ptc_manifest_doc_decode(const char *json, size_t len, struct ptc_manifest_doc *ret_doc, struct ptc_error *err);
void ptc_manifest_doc_done(struct ptc_manifest_doc *d);
/* Remembers it as the newest. 0 or PTC_ENOMEM. */
int ptc_manifest_layout_add(struct ptc_manifest_doc *d, const char *config, const char *hash);
const char *ptc_manifest_layout_find(const struct ptc_manifest_doc *d, const char *config); /* NULL: not known */

/* What a node tells of its ranks. */
enum ptc_worker_state { PTC_WORKER_FAILED, PTC_WORKER_FINISHED, PTC_WORKER_DUE, PTC_WORKER_STATES };
struct ptc_worker_doc {
	uint64_t generation, incarnation, step;
	enum ptc_worker_state state;
	uint32_t rank;
	int exit_status; /* as of wait(2) */
	char text[1024];
};
char *ptc_worker_doc_encode(const struct ptc_worker_doc *d);
int ptc_worker_doc_decode(const char *json, size_t len, struct ptc_worker_doc *ret_doc, struct ptc_error *err);
