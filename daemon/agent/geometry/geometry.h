/* SPDX-License-Identifier: Apache-2.0 */
/* Spec, layout and allocation of one generation, out of its document and the wire; who holds what
 * under it; a cache of them. Any thread; made once, then only read. Failure modes: geometry.c. */
#pragma once

#include "base/status.h"
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
	struct ptc_replicas *replicas; /* who needs which boxes of which item; built at first use, any thread */
};
/* Accepts an empty one; leaves it empty. */
void ptc_geometry_done(struct ptc_geometry *g);

/* From the protobuf-c form (struct Ptc__V1__SwitchInfo). which: its `from` or `to`. Checks every number from the wire. */
int ptc_agent_geometry(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_error *err);
/* The version and numbers every request with a SwitchInfo must have right. */
int ptc_switch_info_check(uint32_t version, const struct Ptc__V1__SwitchInfo *info, struct ptc_error *err);
/* Names, allocation and configuration of a generation that nothing may be known of yet but these: no spec, no layout. */
int ptc_geometry_place(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		       const struct Ptc__V1__Generation *which, struct ptc_geometry *ret_geometry,
		       struct ptc_config *ret_config, struct ptc_error *err);

struct ptc_replica {
	uint32_t item, node;
	struct ptc_box box;
};
/* All (node, box) that hold part of item under g. Borrowed from g. */
int ptc_geometry_replicas(const struct ptc_geometry *g, uint32_t item, const struct ptc_replica **ret, size_t *ret_n,
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
int ptc_geometry_get(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
		     const struct Ptc__V1__Generation *which, struct ptc_geometry_ref **ret, struct ptc_error *err);
void ptc_geometry_put(struct ptc_agent *agent, struct ptc_geometry_ref *ref); /* NULL ok */
void ptc_geometry_cache_done(struct ptc_agent *agent);
