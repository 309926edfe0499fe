/* SPDX-License-Identifier: Apache-2.0 */
/* Rules: how tensors are cut over ranks, which ranks hold them, and what becomes
 * of them in a switch; how they lie in a framework's flat buffers. Part of a
 * spec (reshard/spec/spec.h), which owns their strings and arrays. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a split may name. dp and cp: for state that a framework cuts over its data-parallel ranks itself. */
enum ptc_axis { PTC_AXIS_NONE, PTC_AXIS_TP, PTC_AXIS_EP, PTC_AXIS_ETP, PTC_AXIS_DP, PTC_AXIS_CP };
enum ptc_split_kind { PTC_SPLIT_EVEN, PTC_SPLIT_CEIL, PTC_SPLIT_BALANCED };
enum ptc_place {
	PTC_PLACE_ALL,
	PTC_PLACE_LAYER,
	PTC_PLACE_FIRST,
	PTC_PLACE_LAST,
	PTC_PLACE_ENDS
}; /* pipeline stages holding it */
/* How data parallelism cuts what zero=N of the configuration says it cuts. CONFIG: as the configuration says. */
enum ptc_shard { PTC_SHARD_CONFIG, PTC_SHARD_NONE, PTC_SHARD_FLAT, PTC_SHARD_DIM };
enum ptc_carry { PTC_CARRY, PTC_CARRY_MAX, PTC_CARRY_REPLICATE, PTC_CARRY_DERIVE, PTC_CARRY_RESET, PTC_CARRY_REFUSE };

/* One cut of a tensor's dim over an axis of the configuration, of degree p. The dim's size n is that of the tensor, or
 * what earlier splits of the same rule have left on the rank. In this order:
 *   permute    the dim is npermute units; position i of the new order is unit permute[i] (experts on ranks).
 *   blocks     fused parts along dim: sizes that sum to n, or with ratio their proportions. Each is split by itself and
 *              a rank's parts lie one after the other; with interleave = g each block is cut in g, the pieces are put
 * in the order (piece 0 of each block, piece 1 of each ...), and the result is split as one (Megatron's QKV). pad_to
 * the dim is padded with zeros to the next multiple of pad_to * p. kind       of a block of b elements in units of u =
 * max(unit, 1): even      b must divide by p * u. With a stated unit and fewer units than p (GQA heads), p must divide
 * by the number of units, and rank r of the axis has unit r * units / p, shared with its neighbours. ceil      chunks
 * of ceil(units / p) units as torch.chunk; later ranks may have fewer or nothing. balanced  the first units % p ranks
 * have one unit more. */
struct ptc_split {
	enum ptc_axis axis; /* PTC_AXIS_NONE: ends the list */
	uint32_t dim;
	enum ptc_split_kind kind;
	const int64_t *blocks;
	size_t nblocks; /* none: one block */
	bool ratio;
	int64_t interleave; /* 0: no */
	const int64_t *permute;
	size_t npermute; /* none: as they are */
	int64_t unit; /* indivisible elements along dim (head size); 0: none is stated, elements are cut one by one */
	const int64_t *units; /* of each block its own, instead of unit; nblocks of them, or NULL */
	int64_t pad_to;       /* 0: none; not together with blocks or unit */
};
#define PTC_MAX_SPLITS 4

/* One rule. For each item the first rule that is for it wins: its match fits the parameter's name, and its fields, if
 * given, name the item's field (such a rule is never for the parameter itself). Fields so follow their parameter unless
 * an earlier rule is made for them. No rule: replicated, on all pipeline stages, carried.
 *
 * Splits apply one after the other, also to the same dim: [tp, dp] on dim 0 is what FSDP over TP makes (DTensor's
 * _StridedShard), [dp, tp] cuts by dp first. A rule that names ep or etp, or has expert, is one for expert tensors:
 * data parallelism then means the ranks that hold the same experts (edp), else dp*cp.
 * State: PTC_CARRY_REFUSE makes the layout fail, naming the tensor; of PTC_CARRY_RESET a plan moves nothing, and each
 * generation begins with zeros of it. PTC_CARRY_DERIVE is of BF16 parameters: what a device lacks of one is made from
 * its F32 field `master` (ptc_layout_derives); their fields are carried. The others are laid out, stored and moved like
 * PTC_CARRY; of PTC_CARRY_MAX a snapshot of running ranks has the greatest of what they hold (ptc_rule_takes_max). Who
 * makes a job is refused a derive that names no master, and a max or replicate that is cut (ptc_job_check_states). */
struct ptc_rule {
	const char *match; /* glob over the parameter name: * (also across dots), ?, [..] */
	struct ptc_split splits[PTC_MAX_SPLITS];
	enum ptc_place place;
	const char *
		layer; /* PLACE_LAYER: pattern with {} where the layer's number stands, e.g. "h.{}.*"; NULL: number 0 */
	int64_t layer_offset; /* added to that number (a decoder's layers come after the encoder's) */
	const char
		*expert; /* pattern with {} for the expert's index: the tensor lies on one rank of the ep axis only */
	const int64_t *experts;
	size_t nexperts; /* with expert: position i of the ep axis's order is expert experts[i]; none: as they are */
	enum ptc_shard shard;
	uint32_t shard_dim; /* PTC_SHARD_DIM */
	const char *fields; /* NULL: fields follow their parameter; else comma-separated fields this rule is for */
	enum ptc_carry carry;
	enum ptc_axis primary; /* PTC_CARRY_REPLICATE of what running ranks declare: tp, dp or cp, see
				  ptc_rule_is_primary; NONE: all agree */
	uint32_t primary_at;
	bool of_set; /* from a named rule set, which has rules for what a job may not have; known where the job is read
			only */
	bool whole;  /* says that it splits nothing (axis none); nothing but a review asks */
	const char *master; /* PTC_CARRY_DERIVE: the field; NULL, in jobs of earlier versions: carried */
};

/* How tensors lie behind one another where a configuration shards buffers (shard=buffer). There is one buffer per stage
 * of pp*vpp, field, dtype of the parameter, and dense or expert; of tensors with rules' shard unset. Each tensor begins
 * at the next multiple of align, counted from its bucket's begin. A bucket ends after the tensor with which it has at
 * least `bucket` elements, before and after a tensor that lies on both ends of a pipeline of 2 stages or more, where
 * by_layer and the layer changes, and at the end; its length is rounded up to a multiple of lcm(pad, range * n), n the
 * ranks of the group, of which each has one n-th. All zero: name order, one bucket. Parameter groups have buffers of
 * their own, that is buckets: those of group 0 come first, tensors that fit no group last. */
struct ptc_buffer_group {
	const char *glob;
	uint32_t number; /* of the group: ascending from 0, without gaps */
};
struct ptc_buffers {
	const char **order; /* globs; a tensor comes at the first that fits its name, after all of them if none does. */
	size_t norder; /* Neighbours with {} take turns: all of them for number 0, then for number 1, ...; neighbours */
	/* with a second {} take turns by that within the first (a layer's experts) */
	struct ptc_buffer_group *groups; /* a tensor is of the first whose glob fits its name */
	size_t ngroups;                  /* globs */
	bool reverse;                    /* the order so made is turned round (Megatron: as in the backward pass) */
	bool by_layer;   /* tensors whose rule places them by layer first by that, after all others (FSDP1's units) */
	bool first_only; /* `bucket` counts on the first stage only */
	int64_t align, pad, range, bucket;
	int64_t bucket_per_dp; /* a bucket ends no earlier than at so many elements times dp */
};

/* Frees a rule's strings and arrays (all made with base/alloc.h) and zeroes it. */
void ptc_rule_done(struct ptc_rule *r);
/* It cuts nothing, and zero does not either. */
bool ptc_rule_is_whole(const struct ptc_rule *r);
/* Replicas of running ranks may differ, and the greatest counts, element by element (reshard/values/max.h). One that is
 * cut is of a job of an earlier version, which carried it like any other. NULL ok: false. */
bool ptc_rule_takes_max(const struct ptc_rule *r);
/* Does a split of the rule name the axis? NULL ok: no. */
bool ptc_rule_names_axis(const struct ptc_rule *r, enum ptc_axis axis);
/* Does its data-parallel group count by experts? NULL ok: no. */
bool ptc_rule_is_expert(const struct ptc_rule *r);
/* Both lay out a tensor alike, under any configuration. */
bool ptc_rule_same_place(const struct ptc_rule *a, const struct ptc_rule *b);
