/* SPDX-License-Identifier: Apache-2.0 */
/* A geometry: spec, layout and allocation of one generation, made from its document and the wire. It tells which node
 * holds which boxes. A geometry does not change once made. If geometries differ only in the numbers of generation and
 * snapshot, they share a shape; shapes are cached (geometry_shape.h). Any thread. Failure modes: geometry.c. */
#pragma once

#include "base/status.h"
#include "base/cache/counted_cache.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/calls/agent_env.h"
#include "reshard/box/box.h"
#include "reshard/layout/layout.h"
#include "reshard/spec/config.h"
#include "reshard/spec/spec.h"

struct Ptc__V1__Generation;
struct Ptc__V1__SwitchInfo;

struct ptc_geometry {
	uint64_t generation, snapshot;
	const struct ptc_spec *spec; /* borrowed from the spec or layout cache; lives as long as the geometry */
	const struct ptc_layout *layout;
	struct ptc_layout
		*own_layout; /* `layout`, if it was made from rules; NULL: it was declared, and layout_ref borrows it */
	struct ptc_allocation allocation; /* node numbers index `nodes` */
	/* Layout and allocation with copies: each node's copies of a rank's part are one further rank
	 * (copies_beside.c). If there are no copies, these are the layout and allocation above. */
	const struct ptc_layout *copied;
	struct ptc_allocation copied_at;
	struct ptc_layout *own_copied;
	/* copied_at by node: the ranks of node n are node_ranks[node_first[n]] to node_ranks[node_first[n + 1] - 1] */
	uint32_t *node_first, *node_ranks;
	uint64_t *snapshots; /* per node: the snapshot number of its table; NULL: `snapshot` for all nodes */
	char **nodes, **addresses;
	size_t nnodes;
	char uuid[37];           /* the job */
	char spec_hash[65];      /* names the spec's blob */
	struct ptc_agent *agent; /* gives the references back */
	void *spec_ref, *layout_ref;
	struct ptc_geometry_shape *shape; /* owns all but generation and snapshot; NULL: made by ptc_geometry_place */
};
/* Accepts an empty geometry, and leaves the geometry empty. */
void ptc_geometry_done(struct ptc_geometry *g);

/* Makes a geometry from a message. which: `from` or `to` of info. Checks every number from the wire. It must end before
 * the agent does. */
int ptc_agent_geometry(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_error *err);
/* Checks the version and the numbers of a request's SwitchInfo. */
int ptc_switch_info_check(uint32_t version, const struct Ptc__V1__SwitchInfo *info, struct ptc_error *err);
/* Makes a geometry of names, allocation and configuration only, without spec and layout, which may not be known yet. */
int ptc_geometry_place(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_config *ret_config, struct ptc_error *err);

struct ptc_replica {
	uint32_t item, node;
	struct ptc_box box;
};
/* The boxes of an item on all nodes, by node, then first byte. */
struct ptc_item_replicas {
	const struct ptc_replica *v; /* borrowed from the geometry, or `own` */
	size_t n;
	struct ptc_replica *own;
};
/* If all items together have more than PTC_AGENT_REPLICAS_KEPT boxes, they are listed anew for each call, and *ret owns
 * them. Else the shape keeps them. */
int ptc_geometry_replicas(const struct ptc_geometry *g, uint32_t item, struct ptc_item_replicas *ret,
			  struct ptc_error *err);
void ptc_item_replicas_done(struct ptc_item_replicas *r); /* a zeroed one is fine */
/* Appends the boxes of a node, with those beside the layout, of the items from `first` to end - 1. Fails as
 * ptc_layout_ranks_needs. */
int ptc_geometry_boxes(const struct ptc_geometry *g, uint32_t node, uint32_t first, uint32_t end, size_t most,
		       struct ptc_needs *needs, struct ptc_error *err);
/* Gives the index of a node's name in g->nodes. PTC_EINVAL: g does not have the node. */
int ptc_geometry_node(const struct ptc_geometry *g, const char *name, uint32_t *ret_node, struct ptc_error *err);
/* Gives the shape of an item in bytes. PTC_EINVAL: there is no such item. */
int ptc_geometry_shape(const struct ptc_geometry *g, uint32_t item, uint32_t *ret_ndim, int64_t *ret_shape,
		       struct ptc_error *err);
struct ptc_table_key ptc_geometry_key(const struct ptc_geometry *g); /* this node's table */
/* The snapshot number in the key of that node's table, for a read of `snapshot`. It differs for a node with copies,
 * because these lie in a table with another number. */
uint64_t ptc_geometry_snapshot(const struct ptc_geometry *g, uint32_t node, uint64_t snapshot);

/* ---- copies_beside.c ---- */
/* Fills copied, copied_at and snapshots; layout and allocation are there. */
int ptc_geometry_copies(struct ptc_geometry *g, const struct Ptc__V1__Generation *which, struct ptc_error *err);
void ptc_geometry_copies_done(struct ptc_geometry *g);
const char *ptc_geometry_item_name(const struct ptc_geometry *g, uint32_t item, char *buf, size_t size);
/* Puts the tensor's name in place of "item N", with which an error of the store begins. Returns err's code. */
int ptc_geometry_name_error(const struct ptc_geometry *g, struct ptc_error *err);

/* If rc is PTC_ENOMEM, puts this node's name and its memory.work before the line, unless a node has done so. */
void ptc_agent_memory_short(const struct ptc_agent *agent, int rc, struct ptc_error *err);

/* The boxes of this node, borrowed from g. copies: with those that are beside the layout. PTC_EINVAL: g does not have
 * this node. */
int ptc_geometry_needs(const struct ptc_geometry *g, bool copies, const struct ptc_needs **ret, struct ptc_error *err);
/* Gives the hash of the plan from `from` to `to`; from NULL: nothing is held before. usable: as for ptc_plan_new.
 * False: nobody has noted it, so make the plan and note its hash. For each `to`, the plan that was noted last is kept.
 */
bool ptc_geometry_plan_known(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
			     char ret_hash[33]);
void ptc_geometry_plan_note(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
			    const char hash[33]);
/* That plan with the moves into this node, as it was kept; NULL: nobody has kept it. It is the caller's, so that one
 * call at a time has it. _keep takes a plan over, and frees it if it is long. */
struct ptc_plan *ptc_geometry_plan_take(const struct ptc_geometry *from, const struct ptc_geometry *to,
					const bool *usable);
void ptc_geometry_plan_keep(const struct ptc_geometry *from, const struct ptc_geometry *to, const bool *usable,
			    struct ptc_plan *plan);

/* A geometry on the heap. */
struct ptc_geometry_ref {
	struct ptc_geometry g;
};
int ptc_geometry_get(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		     const struct Ptc__V1__Generation *which, struct ptc_geometry_ref **ret, struct ptc_error *err);
void ptc_geometry_put(struct ptc_geometry_ref *ref); /* NULL ok */
void ptc_geometry_cache_init(struct ptc_agent *agent);
