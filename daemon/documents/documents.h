/* SPDX-License-Identifier: Apache-2.0 */
/* Documents of jobs in etcd, as daemons read them: specs, layouts, rank state, and the generations of a switch. Parsed
 * documents are cached by their hash, counted, and shared by all readers.
 *
 * Threads: any but the loop, unless a function says otherwise. Functions block (etcd). A function marked [loop] is for
 * the loop thread.
 *
 * Failure modes: etcd is unreachable (PTC_ECOORD); a document does not decode (its own code; the message names the
 * hash); memory. */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "daemon/cluster/channels.h"
#include "daemon/cluster/cluster.h"
#include "formats/job/job.h"
#include "formats/members.h"
#include "formats/state/state_doc.h"
#include "reshard/layout/declared.h"

struct ptc_kept;
struct ptc_kept_job;
struct ptc_rpc_server;
struct ptc_specs;
struct ptc_layouts;
struct ptc_vault;

/* The caches, and the cluster from which they read. Rooms that read documents borrow them. */
struct ptc_documents {
	struct ptc_cluster *cluster;
	struct ptc_kept *kept;
	struct ptc_specs *specs;
	struct ptc_layouts *layouts;
	struct ptc_vault *vault;
};

/* ---- vault.c: what jobs' descriptions in etcd are sealed with ---------------- */
#define PTC_SEALED_SPEC_MAX_BYTES (PTC_SPEC_MAX_BYTES + 64u)
struct ptc_vault_opts { /* all borrowed */
	struct ptc_cluster *cluster;
	struct ptc_channels *channels;
	const char *node, *state_dir;
};
/* Makes the vault, and reads the node's copy of the cluster's key if there is one. */
int ptc_vault_new(const struct ptc_vault_opts *opts, struct ptc_vault **ret_vault, struct ptc_error *err);
struct ptc_vault *ptc_vault_free(struct ptc_vault *v); /* NULL ok */
/* Ensures that this node has the cluster's key; makes the key if no node has one yet. PTC_ECOORD: etcd, or every node
 * with the key, is unreachable; the vault tries again when the key is needed. Blocks; any thread but the loop. */
int ptc_vault_join(struct ptc_vault *v, struct ptc_error *err);
/* Seals a job's description for etcd, and opens it again. ptc_free *ret_data. Descriptions that older versions wrote
 * are not sealed. Both block; any thread but the loop. */
int ptc_vault_seal(struct ptc_vault *v, const char *uuid, const char *json, size_t len, char **ret_data,
		   size_t *ret_len, struct ptc_error *err);
int ptc_vault_open(struct ptc_vault *v, const char *uuid, char *data, size_t len, char **ret_json, size_t *ret_len,
		   struct ptc_error *err); /* takes `data` over, also on failure */
#define PTC_VAULT_ID 17
bool ptc_vault_key_id(struct ptc_vault *v, char ret_id[PTC_VAULT_ID]); /* false: this node has no key */
int ptc_vault_register(struct ptc_vault *v, struct ptc_rpc_server *peers, struct ptc_error *err);

/* ---- kept.c: committed documents, for when the coordinator is unreachable ---------- */
struct ptc_kept *ptc_kept_new(struct ptc_cluster *c, struct ptc_store *store); /* NULL: out of memory */
struct ptc_kept *ptc_kept_free(struct ptc_kept *k);
void ptc_kept_tick(struct ptc_kept *k); /* [loop] */
/* number of jobs with kept documents, except jobs that are too large; any thread */
size_t ptc_kept_jobs(struct ptc_kept *k);
uint64_t ptc_kept_bytes(struct ptc_kept *k); /* that they take in the store; any thread */
/* Takes a job's documents over into memory, as if they had been read. Any thread. */
void ptc_kept_install(struct ptc_kept *k, struct ptc_kept_job *job);
/* Keeps what is committed of the job now, durably before it returns. Call it before tables of an earlier commit are
 * dropped. A job without state here, or with nothing committed, is fine. Blocks; any thread but the loop. */
int ptc_kept_now(struct ptc_kept *k, const char *uuid, struct ptc_error *err);
/* Reads a blob of a job from the kept documents or from etcd; ptc_free it. Blocks; any thread but the loop. */
int ptc_document_get(struct ptc_kept *k, const char *uuid, const char *hash, size_t max, char **ret_data,
		     size_t *ret_len, struct ptc_error *err);

/* ---- specs.c: parsed specs by hash ----------------------------------------- */
int ptc_specs_new(struct ptc_kept *k, struct ptc_vault *v, struct ptc_specs **ret_specs, struct ptc_error *err);
struct ptc_specs *ptc_specs_free(struct ptc_specs *s);
/* Blocking (etcd on a miss); any thread. ref is released with ptc_specs_release. */
int ptc_specs_get(struct ptc_specs *s, const char *uuid, const char *hash, const struct ptc_job_desc **ret_desc,
		  void **ret_ref, struct ptc_error *err);
void ptc_specs_release(void *ref);
/* The hash of the description's canonical JSON, computed when it is first asked for. Everywhere else, `hash` is that of
 * the sealed description in etcd. */
int ptc_specs_plain_hash(void *ref, char ret_hash[PTC_HASH_HEX], struct ptc_error *err);
/* Reads the canonical JSON itself; ptc_free *ret_json. Blocks; any thread but the loop. */
int ptc_specs_read(const struct ptc_documents *docs, const char *uuid, const char *hash, char **ret_json,
		   size_t *ret_len, struct ptc_error *err);

/* ---- layouts.c: layouts that ranks have declared, by hash, and those that rules make ---- */
int ptc_layouts_new(struct ptc_kept *k, struct ptc_layouts **ret_layouts, struct ptc_error *err);
struct ptc_layouts *ptc_layouts_free(struct ptc_layouts *l); /* NULL ok */
/* Blocking (etcd on a miss); any thread. ref is released with ptc_layouts_release. */
int ptc_layouts_get(struct ptc_layouts *l, const char *uuid, const char *hash, const struct ptc_declared **ret_declared,
		    const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err);
/* A layout that the job's rules make of a configuration, with the spec that it borrows. spec_hash: the description's.
 * Blocking and threads as of ptc_specs_get; ref is released with ptc_layouts_release. */
int ptc_layouts_of_rules(const struct ptc_documents *docs, const char *uuid, const char *spec_hash, const char *config,
			 const struct ptc_spec **ret_spec, const struct ptc_layout **ret_layout, void **ret_ref,
			 struct ptc_error *err);
void ptc_layouts_release(void *ref);

/* ---- rank_states.c: rank state, in a switch (formats/state/state_doc.h) ---- */
/* Checks that the job's rules let ranks give this state. Blocks; any thread but the loop. */
int ptc_rank_states_check(const struct ptc_documents *docs, const struct ptc_meta_doc *meta,
			  const struct ptc_state *state, struct ptc_error *err);
struct ptc_rank_states_ask {
	const struct ptc_documents *docs;
	const struct ptc_meta_doc *meta;
	const char *from, *to; /* configurations, as text */
	const char *hash;      /* hash of the snapshot's state document; "": there is none */
	const char *data_hash; /* of the state whose place in the data counts (ptc_state_go_on); NULL: as `hash` */
	int64_t fence;
};
struct ptc_rank_states {
	char hash[PTC_HASH_HEX]; /* hash of the new generation's state document; "": it is the snapshot's */
	struct ptc_blobs_review review;
};
/* Applies the job's rules to a state document in a switch. state NULL: it is read. e NULL: nothing is written, and no
 * hash is known. Otherwise the new document is written while the lock of that fence is held. Blocks; any thread but the
 * loop. */
int ptc_rank_states_switch(const struct ptc_rank_states_ask *ask, const struct ptc_state *state, struct ptc_etcd *e,
			   struct ptc_rank_states *ret, struct ptc_error *err);
/* Whether a job with the state of `now` can go back to the state of `to`, but keep its place in the data. PTC_ESTATE:
 * the samples that would be skipped cannot be named. Blocks; any thread but the loop. */
int ptc_rank_states_skips(const struct ptc_documents *docs, const struct ptc_meta_doc *meta,
			  const struct ptc_manifest_doc *to, const struct ptc_manifest_doc *now, struct ptc_error *err);
/* For summaries and plans (docs/control.md). */
extern const struct ptc_members ptc_blobs_review_members;

/* ---- view.c: one generation or switch of a job, ready to be sent or read ------ */
/* Everything that a peer must know about a job's generations. Owns its memory. */
struct ptc_view {
	struct ptc_meta_doc meta;
	int64_t fence;
	uint64_t seq; /* of the request that this view becomes; 0: not ordered */
	uint64_t switch_id;
	uint64_t from_generation, from_snapshot, to_generation, to_snapshot; /* 0: absent */
	/* of the generations' ranks; 0: none run */
	uint64_t from_incarnation, to_incarnation;
	struct ptc_generation_doc from, to;
	struct ptc_manifest_doc manifest; /* of from */
	/* copies that are valid for the bytes of `from`; zeroed if there are none */
	struct ptc_copies_doc copies;
	/* borrowed: if the view adds copies, `to` is `from` with these copies; NULL: the view is of a switch */
	const struct ptc_copies_doc *more;
	/* Every node that a generation uses or that has copies, in order of first use. An address is "" while its node
	 * is down. down: the node is no source. It is also set for a node that is up and was left out of the snapshot
	 * (manifest). */
	char **nodes, **addresses;
	bool *down;
	size_t nnodes;
};
void ptc_view_done(struct ptc_view *v);
/* Loads the documents that record and intent name; either may be NULL. Blocks; any thread but the loop. */
int ptc_view_load(struct ptc_kept *k, const struct ptc_meta_doc *meta, const struct ptc_record_doc *record,
		  const struct ptc_intent_doc *intent, struct ptc_view *ret_view, struct ptc_error *err);
/* Loads those of an older snapshot that the job keeps. Blocks; any thread but the loop. PTC_ENOTFOUND: it does not. */
int ptc_view_older(struct ptc_kept *k, const struct ptc_meta_doc *meta, const struct ptc_older_doc *doc,
		   uint64_t snapshot, struct ptc_view *ret_view, struct ptc_error *err);
/* The copies of a bridge; zeros: it has none. Blocks; any thread but the loop. */
int ptc_bridge_copies(struct ptc_kept *k, const char *uuid, const struct ptc_older *bridge, struct ptc_copies_doc *ret,
		      struct ptc_error *err);
/* Copies those parts of the document into v that are valid for v->from's bytes, in place of earlier ones. Returns 0 or
 * PTC_ENOMEM. */
int ptc_view_copies(struct ptc_view *v, const struct ptc_copies_doc *copies);
/* [loop] ptc_view_copies with the mirror's document. */
int ptc_view_find_copies(struct ptc_view *v, struct ptc_cluster *c);
/* Whether the node has v->from's table, or a table with copies. */
bool ptc_view_placed(const struct ptc_view *v, const char *node);
/* The number of that table: v->from_snapshot, or that of the node's table with copies. */
uint64_t ptc_view_table(const struct ptc_view *v, const char *node);
/* The layout and allocation of v->from with its copies. `base` is its layout; it is borrowed, as is the spec. */
struct ptc_view_copied {
	const struct ptc_layout *layout;
	struct ptc_layout *own;
	struct ptc_allocation at;
};
int ptc_view_copied(const struct ptc_view *v, const struct ptc_layout *base, struct ptc_view_copied *ret,
		    struct ptc_error *err);
void ptc_view_copied_done(struct ptc_view_copied *h); /* a zeroed one is fine */
/* Collects v->nodes from the generations. Returns 0 or PTC_ENOMEM. */
int ptc_view_nodes(struct ptc_view *v);
/* The index in v->nodes of a node of its generations or with copies. */
uint32_t ptc_view_number(const struct ptc_view *v, const char *node);
/* [loop] Fills `addresses` and `down` from the mirror. */
int ptc_view_locate(struct ptc_view *v, struct ptc_cluster *c);
/* Makes the message. Its parts borrow from v; ptc_info_done releases its arrays. */
struct ptc_info {
	struct Ptc__V1__SwitchInfo *pb;
	void *memory;
};
int ptc_view_info(const struct ptc_view *v, struct ptc_info *ret_info, struct ptc_error *err);
void ptc_info_done(struct ptc_info *info);
/* The geometry of the view's `from` or `to` generation. Blocks. */
int ptc_view_geometry(struct ptc_agent *agent, const struct ptc_view *v, bool to, struct ptc_geometry *ret_geometry,
		      struct ptc_error *err);
/* The allocation of a generation document, with node numbers of v->nodes. */
int ptc_view_allocation(const struct ptc_view *v, const struct ptc_generation_doc *g, struct ptc_allocation *ret_alloc);
