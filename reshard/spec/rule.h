/* SPDX-License-Identifier: Apache-2.0 */
/* Rules: how tensors are cut over ranks, which ranks hold them, and what a switch does with them. Also how tensors lie
 * in a framework's flat buffers. A rule is part of a spec (reshard/spec/spec.h), which owns its strings and arrays.
 * Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The axes that a split may name. dp and cp are for state that a framework itself cuts over its data-parallel ranks. */
enum ptc_axis { PTC_AXIS_NONE, PTC_AXIS_TP, PTC_AXIS_EP, PTC_AXIS_ETP, PTC_AXIS_DP, PTC_AXIS_CP };
enum ptc_split_kind { PTC_SPLIT_EVEN, PTC_SPLIT_CEIL, PTC_SPLIT_BALANCED };
enum ptc_place {
	PTC_PLACE_ALL,
	PTC_PLACE_LAYER,
	PTC_PLACE_FIRST,
	PTC_PLACE_LAST,
	PTC_PLACE_ENDS
}; /* the pipeline stages that hold a tensor */
/* How data parallelism cuts an item that zero=N of the configuration cuts. CONFIG: as the configuration says. */
enum ptc_shard { PTC_SHARD_CONFIG, PTC_SHARD_NONE, PTC_SHARD_FLAT, PTC_SHARD_DIM };
enum ptc_carry { PTC_CARRY, PTC_CARRY_MAX, PTC_CARRY_REPLICATE, PTC_CARRY_DERIVE, PTC_CARRY_RESET, PTC_CARRY_REFUSE };

/* One cut of a tensor's dim over an axis of the configuration, of degree p. The dim's size n is the tensor's, or the
 * part that earlier splits of the same rule have left on the rank. The steps, in this order:
 * - permute: the dim is npermute units; position i of the new order is unit permute[i] (experts on ranks).
 * - blocks: fused parts along the dim. Their sizes sum to n; with `ratio` they are proportions. Each block is split by
 *   itself, and a rank's parts lie one after the other.
 * - interleave = g: each block is cut in g pieces. The pieces are put in the order piece 0 of each block, piece 1 of
 *   each, and so on. The result is split as one (Megatron's QKV).
 * - pad_to: the dim is padded with zeros to the next multiple of pad_to * p.
 * - kind: how a block of b elements is split, in units of u = max(unit, 1).
 *   - even: p * u must divide b. Exception: a stated unit and fewer units than p (GQA heads). Then the number of units
 *     must divide p, and rank r of the axis has unit r * units / p, which it shares with its neighbours.
 *   - ceil: chunks of ceil(units / p) units, as torch.chunk; later ranks may have fewer units or none.
 *   - balanced: the first units % p ranks have one unit more. */
struct ptc_split {
	enum ptc_axis axis; /* PTC_AXIS_NONE: ends the list */
	uint32_t dim;
	enum ptc_split_kind kind;
	const int64_t *blocks;
	size_t nblocks; /* 0: the dim is one block */
	bool ratio;
	int64_t interleave; /* 0: no */
	const int64_t *permute;
	size_t npermute;      /* 0: the order stays */
	int64_t unit;         /* elements along dim that stay together (head size); 0: elements are cut one by one */
	const int64_t *units; /* a unit for each block, instead of `unit`: nblocks numbers, or NULL */
	int64_t pad_to;       /* 0: no padding; not together with blocks or unit */
};
#define PTC_MAX_SPLITS 4

/* One rule. For each item, the first rule that applies to it wins. A rule applies if its match fits the parameter's
 * name and, where `fields` is given, it names the item's field; such a rule never applies to the parameter itself. So
 * fields follow their parameter unless an earlier rule names them. An item without a rule is replicated, on all
 * pipeline stages and carried.
 *
 * Splits apply one after the other, also to the same dim. [tp, dp] on dim 0 is what FSDP over TP makes (DTensor's
 * _StridedShard); [dp, tp] cuts by dp first. A rule that names ep or etp, or has `expert`, is for expert tensors. Then
 * data parallelism means the ranks that hold the same experts (edp); otherwise it means dp*cp.
 *
 * The states (`carry`):
 * - PTC_CARRY: laid out, stored and moved.
 * - PTC_CARRY_REFUSE: the layout fails and names the tensor.
 * - PTC_CARRY_RESET: a plan moves nothing; each generation begins with zeros of the item.
 * - PTC_CARRY_DERIVE: for BF16 parameters. A device makes missing bytes from the F32 field `master`
 *   (ptc_layout_derives); the parameter's fields are carried.
 * - PTC_CARRY_MAX: as PTC_CARRY, but a snapshot of running ranks has the greatest of the replicas' values
 *   (ptc_rule_takes_max).
 * - PTC_CARRY_REPLICATE: as PTC_CARRY; all ranks hold the item whole.
 * ptc_job_check_states refuses a new job whose derive names no master, and one whose max or replicate is cut. */
struct ptc_rule {
	const char *match; /* glob for the parameter name: * (also across dots), ?, [..] */
	struct ptc_split splits[PTC_MAX_SPLITS];
	enum ptc_place place;
	const char
		*layer; /* for PTC_PLACE_LAYER: pattern with {} for the layer's number, e.g. "h.{}.*"; NULL: number 0 */
	int64_t layer_offset; /* added to that number (a decoder's layers come after the encoder's) */
	const char
		*expert; /* pattern with {} for the expert's index: the tensor lies on one rank of the ep axis only */
	const int64_t *experts;
	size_t nexperts; /* with `expert`: place i of the ep axis has expert experts[i]; none: in order */
	enum ptc_shard shard;
	uint32_t shard_dim; /* for PTC_SHARD_DIM */
	/* NULL: fields follow their parameter; else: comma-separated fields that this rule is for */
	const char *fields;
	enum ptc_carry carry;
	/* for PTC_CARRY_REPLICATE of declared tensors: tp, dp or cp, see ptc_rule_is_primary; NONE: all replicas
	 * agree */
	enum ptc_axis primary;
	uint32_t primary_at;
	/* the rule is from a named rule set, which has rules for tensors that a job may lack; known only where the
	 * job is read */
	bool of_set;
	bool whole; /* the rule says that it splits nothing (axis none); only reviews use it */
	/* for PTC_CARRY_DERIVE: the field; NULL, in jobs of earlier versions: the parameter is carried */
	const char *master;
};

/* The order of tensors in buffers, where a configuration shards buffers (shard=buffer). There is one buffer per stage
 * of pp*vpp, field, dtype of the parameter, and dense or expert. It has the tensors whose rules leave `shard` unset.
 *
 * Each tensor begins at the next multiple of `align`, counted from the begin of its bucket. A bucket ends after the
 * tensor with which it has at least `bucket` elements. It also ends where the layer changes and by_layer is set, and at
 * the end of the buffer. In a pipeline of 2 stages or more, it ends before and after a tensor that lies on both ends.
 * Its length is rounded up to a multiple of lcm(pad, range * n). n is the number of ranks of the group, and each rank
 * has one n-th.
 *
 * All zero: name order, one bucket. Parameter groups have buffers of their own, that is buckets. Those of group 0 come
 * first; tensors that fit no group come last. */
struct ptc_buffer_group {
	const char *glob;
	uint32_t number; /* the group's number: ascending from 0, without gaps */
};
struct ptc_buffers {
	/* Globs. A tensor comes at the first glob that fits its name, or after all of them. Neighbours with {} take
	 * turns: all of them for number 0, then for number 1, and so on. Neighbours with a second {} take turns by
	 * its number within the first (a layer's experts). */
	const char **order;
	size_t norder;
	struct ptc_buffer_group *groups; /* a tensor belongs to the first group whose glob fits its name */
	size_t ngroups;                  /* number of entries in `groups` */
	/* the order made by `order` is reversed (Megatron: as in the backward pass) */
	bool reverse;
	/* tensors whose rule places them by layer come after all others, layer by layer (FSDP1's units) */
	bool by_layer;
	bool first_only; /* `bucket` applies to the first stage only */
	int64_t align, pad, range, bucket;
	int64_t bucket_per_dp; /* a bucket has at least this many elements times dp */
};

/* Frees a rule's strings and arrays (all made with base/alloc.h) and zeroes it. */
void ptc_rule_done(struct ptc_rule *r);
/* Whether the rule cuts nothing, and lets zero cut nothing. */
bool ptc_rule_is_whole(const struct ptc_rule *r);
/* Whether replicas of running ranks may differ and the greatest value counts, element by element
 * (reshard/values/max.h). false for a rule that also cuts: it is of a job of an earlier version, which carried the
 * item. NULL ok: false. */
bool ptc_rule_takes_max(const struct ptc_rule *r);
/* Whether a split of the rule names the axis. NULL ok: no. */
bool ptc_rule_names_axis(const struct ptc_rule *r, enum ptc_axis axis);
/* Whether the rule is for expert tensors, so that data parallelism means edp. NULL ok: no. */
bool ptc_rule_is_expert(const struct ptc_rule *r);
/* Whether both rules lay out a tensor alike, under any configuration. */
bool ptc_rule_same_place(const struct ptc_rule *a, const struct ptc_rule *b);
