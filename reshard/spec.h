/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's state is: tensors, fields, rules. Built once from the
 * canonical spec JSON (formats/spec_json.h), immutable afterwards. Pure;
 * readable from any thread. Strings are owned by the spec. */
#pragma once

#include "reshard/box.h"

/* safetensors names: BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64 */
enum ptc_dtype {
	PTC_BOOL,
	PTC_F4,
	PTC_F6_E2M3,
	PTC_F6_E3M2,
	PTC_U8,
	PTC_I8,
	PTC_F8_E5M2,
	PTC_F8_E4M3,
	PTC_F8_E5M2FNUZ,
	PTC_F8_E4M3FNUZ,
	PTC_F8_E8M0,
	PTC_I16,
	PTC_U16,
	PTC_F16,
	PTC_BF16,
	PTC_I32,
	PTC_U32,
	PTC_F32,
	PTC_C64,
	PTC_F64,
	PTC_I64,
	PTC_U64,
	PTC_DTYPE_COUNT,
};
uint32_t ptc_dtype_bits(enum ptc_dtype t);
const char *ptc_dtype_name(enum ptc_dtype t);
bool ptc_dtype_parse(const char *name, enum ptc_dtype *ret);

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
 *              a rank's parts lie one after the other; with interleave = g each block is cut in g, the pieces are put in
 *              the order (piece 0 of each block, piece 1 of each ...), and the result is split as one (Megatron's QKV).
 *   pad_to     the dim is padded with zeros to the next multiple of pad_to * p.
 *   kind       of a block of b elements in units of u = max(unit, 1):
 *     even      b must divide by p * u. With a stated unit and fewer units than p (GQA heads), p must divide by the
 *               number of units, and rank r of the axis has unit r * units / p, shared with its neighbours.
 *     ceil      chunks of ceil(units / p) units as torch.chunk; later ranks may have fewer or nothing.
 *     balanced  the first units % p ranks have one unit more. */
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
 * generation begins with zeros of it. PTC_CARRY_DERIVE is of BF16 parameters: what a device lacks of one is made from its F32
 * field `master` (ptc_layout_derives); their fields are carried. The others are laid out, stored and moved like PTC_CARRY; of
 * PTC_CARRY_MAX a snapshot of running ranks has the greatest of what they hold (ptc_rule_takes_max). Who makes a job is refused
 * a derive that names no master, and a max or replicate that is cut (ptc_job_check_states). */
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
	enum ptc_axis
		primary; /* PTC_CARRY_REPLICATE of what running ranks declare: tp, dp or cp, see ptc_rule_is_primary; NONE: all agree */
	uint32_t primary_at;
	bool of_set; /* from a named rule set, which has rules for what a job may not have; known where the job is read only */
	bool whole;         /* says that it splits nothing (axis none); nothing but a review asks */
	const char *master; /* PTC_CARRY_DERIVE: the field; NULL, in jobs of earlier versions: carried */
};

/* How tensors lie behind one another where a configuration shards buffers (shard=buffer). There is one buffer per stage
 * of pp*vpp, field, dtype of the parameter, and dense or expert; of tensors with rules' shard unset. Each tensor begins
 * at the next multiple of align, counted from its bucket's begin. A bucket ends after the tensor with which it has at
 * least `bucket` elements, before and after a tensor that lies on both ends of a pipeline of 2 stages or more, where
 * by_layer and the layer changes, and at the end; its length is rounded up to a multiple of lcm(pad, range * n), n the ranks
 * of the group, of which each has one n-th. All zero: name order, one bucket. Parameter groups have buffers of their own,
 * that is buckets: those of group 0 come first, tensors that fit no group last. */
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

struct ptc_tensor {
	const char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
};
struct ptc_field {
	const char *name;
	enum ptc_dtype dtype;
	bool same_dtype; /* as the parameter's */
};

/* An item is one (tensor, field): field 0 is the parameter itself, field f > 0 is fields[f - 1].
 * Item number = tensor * (1 + nfields) + field. */
struct ptc_spec {
	const char *name; /* the job's */
	struct ptc_tensor *tensors;
	size_t ntensors; /* in name order */
	struct ptc_field *fields;
	size_t nfields;
	struct ptc_rule *rules;
	size_t nrules;
	struct ptc_buffers buffers;
	/* gpus table and the rest of job.yaml that layouts do not need stay in formats/ */
};
/* Frees a rule's strings and arrays (all made with base/alloc.h) and zeroes it. */
void ptc_rule_done(struct ptc_rule *r);
/* It cuts nothing, and zero does not either. */
bool ptc_rule_is_whole(const struct ptc_rule *r);
/* Replicas of running ranks may differ, and the greatest counts, element by element (reshard/max.h). One that is cut is of a job of
 * an earlier version, which carried it like any other. NULL ok: false. */
bool ptc_rule_takes_max(const struct ptc_rule *r);
/* PTC_ELAYOUT naming tensor and dtype where there is no greatest of it. */
int ptc_rule_check_max(const struct ptc_rule *r, const char *name, enum ptc_dtype dtype, struct ptc_error *err);
/* Frees every string and array (all made with base/alloc.h) and zeroes the struct. NULL ok. */
void ptc_spec_done(struct ptc_spec *spec);
static inline size_t ptc_spec_items(const struct ptc_spec *s)
{
	return s->ntensors * (1 + s->nfields);
}
enum ptc_dtype ptc_item_dtype(const struct ptc_spec *s, size_t item);
/* "h.0.attn.qkv" or "h.0.attn.qkv:exp_avg" into buf; returns buf. */
const char *ptc_item_name(const struct ptc_spec *s, size_t item, char *buf, size_t size);
/* The item's byte shape: element shape with the last dim in bytes ([4,8] F32 -> [4,32]; scalar F32 -> [4]); for F4/F6
 * trailing dims are merged until a row is whole bytes. PTC_ELAYOUT if it never is. */
int ptc_item_byte_shape(const struct ptc_spec *s, size_t item, uint32_t *ret_ndim, int64_t *ret_shape,
			struct ptc_error *err);
/* Element box to byte box; PTC_ELAYOUT naming tensor and cut where it does not fall on a byte. */
int ptc_item_byte_box(const struct ptc_spec *s, size_t item, const struct ptc_box *elements, struct ptc_box *ret_bytes,
		      struct ptc_error *err);
int64_t ptc_item_bytes(const struct ptc_spec *s, size_t item);
/* The rule that wins for an item; NULL when none does. Borrowed from the spec. */
const struct ptc_rule *ptc_spec_rule(const struct ptc_spec *s, size_t item);
/* The rule for what ranks declare by this name: the first that fits it, of those that are not for certain fields. Borrowed. */
const struct ptc_rule *ptc_spec_rule_named(const struct ptc_spec *s, const char *name);
/* Ambiguous, overlapping, uncovered or impossible rules: tensor, axis and sizes in err. Independent of any configuration. */
int ptc_spec_lint(const struct ptc_spec *s, struct ptc_error *err);
/* What lint lets pass and is probably not meant: tensors that no rule covers or that rules contend for (wrong); rules that
 * match nothing, or leave it all to earlier ones (a note). One line each, borrowed for the call. */
typedef void (*ptc_review_fn)(void *arg, bool wrong, const char *text);
int ptc_spec_review(const struct ptc_spec *s, ptc_review_fn fn, void *arg, struct ptc_error *err);
/* What configurations leave uncut that is probably not meant so: a degree that cuts nothing, large tensors whole on every
 * rank, experts that the ep axis does not part. Without a configuration: what no degree of tp would cut. */
struct ptc_config;
int ptc_spec_review_cuts(const struct ptc_spec *s, const struct ptc_config *const *configs, size_t nconfigs,
			 ptc_review_fn fn, void *arg, struct ptc_error *err);
/* Glob: * any run (dots too), ? one character, [abc] [a-z] [!x]; no escapes. Time is pattern times text. */
bool ptc_glob_valid(const char *pattern);
/* pattern is a glob with one {} for a run of digits: *ret_number is that in the name. false when the name does not fit. */
bool ptc_layer_number(const char *pattern, const char *name, int64_t *ret_number);
bool ptc_glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len);
