/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration: degrees of parallelism, rank order, batch sizes. Its text form is what ptcctl takes and etcd holds:
 * "tp=2,pp=2,dp=2,zero=1,order=tp-cp-ep-dp-pp". Degrees that are not given are 1. Pure. */
#pragma once

#include "base/status.h"
#include "order/order.h"
#include "reshard/spec/rule.h"

#include <stddef.h>
#include <stdint.h>

#define PTC_MAX_STAGES      1024
#define PTC_MAX_EXPERTS     1024 /* experts of one layer */
#define PTC_RECOMPUTE_KINDS 8    /* kinds of layers that may recompute each for itself */

/* How zero cuts items over the data-parallel group ("shard=dim0"). */
enum ptc_shard_kind {
	PTC_SHARDS_FLAT,  /* ranges of each tensor, flattened (DeepSpeed ZeRO) */
	PTC_SHARDS_DIM0,  /* ceil chunks of dim 0 (FSDP2) */
	PTC_SHARDS_BUFFER /* ranges of buffers that hold many tensors (Megatron's distributed optimizer, FSDP1) */
};

/* What the backward pass computes anew instead of keeping it ("recompute=full"). */
enum ptc_recompute { PTC_RECOMPUTE_NONE, PTC_RECOMPUTE_SELECTIVE, PTC_RECOMPUTE_FULL };

/* In which order micro-batches pass the pipeline ("schedule=gpipe"). */
enum ptc_schedule {
	PTC_SCHEDULE_1F1B,  /* interleaved if vpp > 1 */
	PTC_SCHEDULE_GPIPE, /* all forward, then all backward; holds every micro-batch */
	PTC_SCHEDULE_ZB1P   /* zero bubble, ZB1P: 1F1B's memory, a third of its bubble */
};

struct ptc_config {
	uint32_t tp, pp, dp, cp, ep, etp; /* world = tp*cp*dp*pp; etp*ep*edp = tp*cp*dp */
	uint32_t zero;    /* what data-parallel ranks cut: 0 nothing; 1, 2 optimizer fields; 3 parameters too */
	char order[5][3]; /* permutation of tp cp ep dp pp, fastest first; dense ranks skip ep */
	uint32_t stages[PTC_MAX_STAGES];
	/* layers per stage ("stages=4:3:3:2"); nstages 0: even, the first stages get the extra layers */
	uint32_t nstages;
	uint32_t micro_batch, global_batch; /* samples; 0: unset */
	/* stages per pipeline rank: stage s of pp*vpp is on rank s % pp; `stages` then lists pp*vpp */
	uint32_t vpp;
	/* HSDP: the data-parallel group has this many groups of consecutive ranks; zero cuts each by itself */
	uint32_t replicas;
	enum ptc_shard_kind shard;
	uint32_t experts[PTC_MAX_EXPERTS]; /* "experts=0:4:1:5": place i of the ep axis has expert experts[i] */
	uint32_t nexperts;                 /* 0: in order */
	/* "micro_steps=2x6:4x3": micro steps that data-parallel ranks compute (docs/order.md); n 0: equally many */
	struct ptc_micro_runs micro_steps;
	/* "recompute=none/full": enum ptc_recompute of each kind of layers, in the model's order. Kinds that are not
	 * listed are as the first. n 0: none recomputes. It changes what ranks compute, never what they hold. */
	uint8_t recompute[PTC_RECOMPUTE_KINDS];
	uint32_t nrecompute;
	/* "schedule=1f1b": enum ptc_schedule + 1. 0: the program's own. With it, ranks promise this order and vpp. */
	uint32_t schedule;
};
struct ptc_coords {
	uint32_t tp, pp, dp, cp;
};
/* Coordinates for expert tensors. The ranks of a stage, in rank order, are divided by the same order as dense ones,
 * with etp in place of tp, edp in place of dp, and no cp (Megatron's second rank generator). */
struct ptc_expert_coords {
	uint32_t etp, ep, edp;
};

#define PTC_CONFIG_TEXT_MAX 16384
int ptc_config_parse(const char *text, struct ptc_config *ret_config, struct ptc_error *err);
/* Writes the canonical form: every key whose value is not the default, in a fixed order. parse(format(c)) == c. */
int ptc_config_format(const struct ptc_config *c, char *buf, size_t size);
/* checks the configuration, too */
int ptc_config_world(const struct ptc_config *c, uint32_t *ret_world, struct ptc_error *err);
struct ptc_coords ptc_config_coords(const struct ptc_config *c, uint32_t rank);
uint32_t ptc_config_rank(const struct ptc_config *c, const struct ptc_coords *coords);
struct ptc_expert_coords ptc_config_expert_coords(const struct ptc_config *c, uint32_t rank);
/* Removes kinds at the end of `recompute` that equal the first kind. Parsing and formatting do so, too. */
void ptc_config_recompute_trim(struct ptc_config *c);
static inline uint32_t ptc_config_edp(const struct ptc_config *c)
{
	return c->tp * c->cp * c->dp / (c->etp * c->ep);
}
/* The rank's place in its dp*cp group, in rank order. */
uint32_t ptc_config_zero_index(const struct ptc_config *c, const struct ptc_coords *k);
/* Whether the rank's replica is primary where replicas differ. Without a `primary` in the rule, or with one that no
 * rank of the configuration has, every rank's is. rule may be NULL. */
bool ptc_rule_is_primary(const struct ptc_rule *rule, const struct ptc_config *c, uint32_t rank);
