/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration: degrees, rank order, batch. Text form is what ptcctl takes
 * and etcd shows: "tp=2,pp=2,dp=2,zero=1,order=tp-cp-ep-dp-pp". Unset degrees are 1. Pure. */
#pragma once

#include "base/status.h"
#include "reshard/spec/rule.h"

#include <stddef.h>
#include <stdint.h>

#define PTC_MAX_STAGES  1024
#define PTC_MAX_EXPERTS 1024 /* of one layer */

/* How zero cuts what it cuts over the data-parallel group ("shard=dim0"). */
enum ptc_shard_kind {
	PTC_SHARDS_FLAT,  /* ranges of each tensor, flattened (DeepSpeed ZeRO) */
	PTC_SHARDS_DIM0,  /* ceil chunks of dim 0 (FSDP2) */
	PTC_SHARDS_BUFFER /* ranges of buffers that hold many tensors (Megatron's distributed optimizer, FSDP1) */
};

struct ptc_config {
	uint32_t tp, pp, dp, cp, ep, etp; /* world = tp*cp*dp*pp; etp*ep*edp = tp*cp*dp */
	uint32_t zero; /* what is cut over data-parallel ranks: 0 nothing, 1 and 2 optimizer fields, 3 parameters too */
	char order[5][3]; /* permutation of tp cp ep dp pp, first fastest; dense ranks skip ep */
	uint32_t stages[PTC_MAX_STAGES];
	uint32_t nstages; /* layers per stage ("stages=4:3:3:2"); nstages 0: even, first ones get the extra layer */
	uint32_t micro_batch, global_batch; /* 0: unset */
	uint32_t vpp;      /* stages per pipeline rank: stage s of pp*vpp is on rank s % pp; stages then lists pp*vpp */
	uint32_t replicas; /* HSDP: the data-parallel group is this many groups of consecutive ranks, each cut like
			      others */
	enum ptc_shard_kind shard;
	uint32_t experts[PTC_MAX_EXPERTS]; /* "experts=0:4:1:5": place i of the ep axis's order holds expert experts[i]
					    */
	uint32_t nexperts;                 /* 0: in order */
};
struct ptc_coords {
	uint32_t tp, pp, dp, cp;
};
/* Of expert tensors: the ranks of a stage, in rank order, divided by the same order with etp in tp's place, edp in
 * dp's, and no cp (Megatron's second rank generator). */
struct ptc_expert_coords {
	uint32_t etp, ep, edp;
};

#define PTC_CONFIG_TEXT_MAX 16384
int ptc_config_parse(const char *text, struct ptc_config *ret_config, struct ptc_error *err);
/* Canonical form: every non-default key, fixed key order; parse(format(c)) == c. */
int ptc_config_format(const struct ptc_config *c, char *buf, size_t size);
int ptc_config_world(const struct ptc_config *c, uint32_t *ret_world, struct ptc_error *err); /* checks too */
struct ptc_coords ptc_config_coords(const struct ptc_config *c, uint32_t rank);
uint32_t ptc_config_rank(const struct ptc_config *c, const struct ptc_coords *coords);
struct ptc_expert_coords ptc_config_expert_coords(const struct ptc_config *c, uint32_t rank);
static inline uint32_t ptc_config_edp(const struct ptc_config *c)
{
	return c->tp * c->cp * c->dp / (c->etp * c->ep);
}
/* This rank's place in its dp*cp group, in rank order. */
uint32_t ptc_config_zero_index(const struct ptc_config *c, const struct ptc_coords *k);
/* What the rank holds counts where replicas differ. Every rank's does without a primary, or with one that no rank of
 * the configuration is. rule may be NULL. */
bool ptc_rule_is_primary(const struct ptc_rule *rule, const struct ptc_config *c, uint32_t rank);
