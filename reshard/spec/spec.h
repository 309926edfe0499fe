/* SPDX-License-Identifier: Apache-2.0 */
/* The spec: the tensors, fields and rules of a job's state. Made once from the canonical spec JSON (formats/job/job.h)
 * and immutable afterwards; readable from any thread. The spec owns its strings. Pure. */
#pragma once

#include "reshard/box/box.h"
#include "reshard/spec/rule.h"

/* safetensors names: BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 I16 U16 F16 BF16 I32
 * U32 F32 C64 F64 I64 U64 */
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

struct ptc_tensor {
	const char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
};
struct ptc_field {
	const char *name;
	enum ptc_dtype dtype;
	bool same_dtype; /* the field has the parameter's dtype; `dtype` is then unused */
};

/* An item is one (tensor, field). Field 0 is the parameter itself, field f > 0 is fields[f - 1]. An item's number is
 * tensor * (1 + nfields) + field. */
struct ptc_spec {
	const char *name; /* the job's name */
	struct ptc_tensor *tensors;
	size_t ntensors; /* tensors are in name order */
	struct ptc_field *fields;
	size_t nfields;
	struct ptc_rule *rules;
	size_t nrules;
	struct ptc_buffers buffers;
	/* the parts of job.yaml that layouts do not need stay in formats/ */
};
/* PTC_ELAYOUT: the rule takes the maximum, and the dtype has none; the message names tensor and dtype. */
int ptc_rule_check_max(const struct ptc_rule *r, const char *name, enum ptc_dtype dtype, struct ptc_error *err);
/* Frees every string and array (all made with base/alloc.h) and zeroes the struct. NULL ok. */
void ptc_spec_done(struct ptc_spec *spec);
static inline size_t ptc_spec_items(const struct ptc_spec *s)
{
	return s->ntensors * (1 + s->nfields);
}
enum ptc_dtype ptc_item_dtype(const struct ptc_spec *s, size_t item);
#define PTC_ITEM_NAME_SIZE (PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2)
/* Writes "h.0.attn.qkv" or "h.0.attn.qkv:exp_avg" into buf; returns buf. */
const char *ptc_item_name(const struct ptc_spec *s, size_t item, char *buf, size_t size);
/* The item's byte shape: the element shape with the last dim in bytes ([4,8] F32 -> [4,32]; a scalar F32 -> [4]). For
 * F4 and F6, trailing dims are merged until a row is whole bytes. PTC_ELAYOUT: a row never is. */
int ptc_item_byte_shape(const struct ptc_spec *s, size_t item, uint32_t *ret_ndim, int64_t *ret_shape,
			struct ptc_error *err);
/* Turns a box of elements into a byte box. PTC_ELAYOUT: it does not fall on bytes; the message names tensor and cut. */
int ptc_item_byte_box(const struct ptc_spec *s, size_t item, const struct ptc_box *elements, struct ptc_box *ret_bytes,
		      struct ptc_error *err);
int64_t ptc_item_bytes(const struct ptc_spec *s, size_t item);
/* The rule that wins for an item; NULL when none does. Borrowed from the spec. */
const struct ptc_rule *ptc_spec_rule(const struct ptc_spec *s, size_t item);
/* The rule for a tensor that ranks declare by this name: the first whose match fits it, among rules without `fields`.
 * Borrowed. */
const struct ptc_rule *ptc_spec_rule_named(const struct ptc_spec *s, const char *name);
