/* SPDX-License-Identifier: Apache-2.0 */
/* A generation's ranks on this node: how to start them, their slots, and the places of their declared memory. Failure
 * modes: rank_group.c. */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/memory/strided.h"
#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/group/rank_slots.h"

struct Ptc__V1__Generation;
struct Ptc__V1__SwitchInfo;

/* PTC_ESTATE: no ranks run on this node. */
int ptc_group_workers(struct ptc_agent *agent, struct ptc_error *err);
void ptc_group_key_of(const struct Ptc__V1__SwitchInfo *info, const struct Ptc__V1__Generation *which,
		      struct ptc_group_key *ret);
/* How to start the ranks of a generation on this node. Owns everything that it points to. nranks 0: there are none
 * here. */
struct ptc_group_start {
	struct ptc_group_desc desc;
	struct ptc_geometry place;
	struct ptc_group_rank *ranks;
	struct ptc_config *config;
	char *config_text;
	const char **env; /* the job's environment and its seed, whose text lies behind the list */
	void *job_ref;
	uint64_t cost_linear, cost_square; /* of a sample by its length; both 0: not known */
};
int ptc_group_start_make(struct ptc_agent *agent, const struct Ptc__V1__SwitchInfo *info,
			 const struct Ptc__V1__Generation *which, struct ptc_group_start *ret, struct ptc_error *err);
void ptc_group_start_done(struct ptc_group_start *s, struct ptc_agent *agent);

/* The slots of a group here, by rank: exactly those that the allocation puts here. */
struct ptc_group {
	struct ptc_workers *workers;
	struct ptc_group_key key;
	struct ptc_slot_view *raw; /* in the order of the group */
	size_t nraw;
	struct ptc_slot_view *v; /* by rank; a caller may leave some out */
	size_t n;
};
/* PTC_ENOTFOUND: there is no such group here. PTC_ESTATE: its ranks are others than the allocation's; the line names
 * them. */
int ptc_group_open(struct ptc_agent *agent, const struct ptc_allocation *a, uint32_t self,
		   const struct ptc_group_key *key, struct ptc_group *ret, struct ptc_error *err);
void ptc_group_close(struct ptc_group *group); /* accepts one of zeros */
/* A declared region of one slot, in bytes. */
struct ptc_slot_source {
	uint32_t item, slot; /* slot: index into group->v */
	bool secondary;      /* another replica is the primary; capture.c sets this and the next member */
	bool max;            /* the greatest value of all replicas counts */
	struct ptc_strided at;
};
struct ptc_slot_sources {
	struct ptc_slot_source *v; /* by item, then rank */
	size_t n;
};
/* Lists every region of every slot. PTC_ELAYOUT: a rank has declared other regions than g's layout; the line names rank
 * and tensor. */
int ptc_slot_sources_make(const struct ptc_geometry *g, const struct ptc_group *group, struct ptc_slot_sources *ret,
			  struct ptc_error *err);
void ptc_slot_sources_done(struct ptc_slot_sources *s);
