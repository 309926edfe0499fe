/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what a rank may declare (names, shapes, boxes), and knows dtypes; callers say themselves that one is unknown.
 * Failure modes: each check answers with a phrase that fits after "tensor NAME: ". */
#include "proto/local_rules.h"

#include <stdlib.h>
#include <string.h>

/* Of those that safetensors knows, whole bytes only. */
static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[] = {
	{ "BOOL", 1 },        { "U8", 1 },          { "I8", 1 },      { "F8_E5M2", 1 }, { "F8_E4M3", 1 },
	{ "F8_E5M2FNUZ", 1 }, { "F8_E4M3FNUZ", 1 }, { "F8_E8M0", 1 }, { "I16", 2 },     { "U16", 2 },
	{ "F16", 2 },         { "BF16", 2 },        { "I32", 4 },     { "U32", 4 },     { "F32", 4 },
	{ "C64", 8 },         { "F64", 8 },         { "I64", 8 },     { "U64", 8 },
};

uint32_t ptc_local_dtype_bytes(const char *dtype)
{
	for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
		if (strcmp(dtypes[i].name, dtype) == 0)
			return dtypes[i].bytes;
	return 0;
}

static const char *text_error(const char *s, size_t max, const char *too_long)
{
	if (!*s)
		return "the name is empty";
	if (strlen(s) > max)
		return too_long;
	for (const unsigned char *p = (const unsigned char *)s; *p; p++)
		if (*p < 0x20 || *p == 0x7f)
			return "a control character in the name";
	return NULL;
}

const char *ptc_local_name_error(const char *name)
{
	const char *what = text_error(name, PTC_LOCAL_NAME_MAX, "the name is longer than 1023 bytes");

	if (what)
		return what;
	if (strchr(name, ':'))
		return "a ':' in the name; it divides parameter and field";
	if (strstr(name, ".."))
		return "\"..\" in the name";
	if (name[0] == '/' || name[strlen(name) - 1] == '/' || strstr(name, "//"))
		return "an empty path component in the name";
	return NULL;
}

const char *ptc_local_field_error(const char *field)
{
	if (!*field)
		return "the field is empty";
	if (strlen(field) > PTC_LOCAL_FIELD_MAX)
		return "the field is longer than 63 bytes";
	for (const char *p = field; *p; p++) {
		bool word =
			(*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_';

		if (!word && ((*p != '.' && *p != '-') || p == field))
			return "only letters, digits, '_' and inner '-' and '.' are allowed in a field";
	}
	return strstr(field, "..") ? "\"..\" in the field" : NULL;
}

const char *ptc_local_short_error(const char *name)
{
	return text_error(name, PTC_LOCAL_SHORT_MAX, "the name is longer than 255 bytes");
}

const char *ptc_local_shape_error(uint32_t ndim, const int64_t *shape, uint32_t element_bytes)
{
	int64_t bytes = element_bytes;

	if (ndim > PTC_LOCAL_DIMS)
		return "more than 8 dims";
	for (uint32_t d = 0; d < ndim; d++) {
		if (shape[d] < 0)
			return "a negative size in the shape";
		if (shape[d] && __builtin_mul_overflow(bytes, shape[d], &bytes))
			return "the shape holds more than 2^63 bytes";
	}
	return NULL;
}

struct stretch {
	int64_t stride, extent;
};

static int by_stride(const void *a, const void *b)
{
	const struct stretch *x = a, *y = b;

	return (x->stride > y->stride) - (x->stride < y->stride);
}

/* In order of their strides, each dim's step must lead beyond all that the smaller ones reach. */
static const char *strides_error(uint32_t ndim, uint32_t element_bytes, const struct ptc_local_box *b)
{
	struct stretch s[PTC_LOCAL_DIMS];
	int64_t reach = element_bytes, n;
	uint64_t end;
	size_t count = 0;

	for (uint32_t d = 0; d < ndim; d++)
		if (b->extent[d] > 1)
			s[count++] = (struct stretch){ b->stride[d], b->extent[d] };
	qsort(s, count, sizeof s[0], by_stride);
	for (size_t i = 0; i < count; i++) {
		if (s[i].stride < reach)
			return "strides that are not positive, or by which elements lie on each other";
		if (__builtin_mul_overflow(s[i].stride, s[i].extent - 1, &n) ||
		    __builtin_add_overflow(reach, n, &reach))
			return "a box larger than memory";
	}
	if (!b->address)
		return "a box without memory";
	if (__builtin_add_overflow(b->address, (uint64_t)reach, &end) || end > INT64_MAX)
		return "a box beyond the end of memory";
	return NULL;
}

const char *ptc_local_box_error(uint32_t ndim, const int64_t *shape, uint32_t element_bytes,
				const struct ptc_local_box *b)
{
	for (uint32_t d = 0; d < ndim; d++) {
		if (b->extent[d] <= 0)
			return "a box without elements";
		if (b->offset[d] < 0 || b->offset[d] > shape[d] || b->extent[d] > shape[d] - b->offset[d])
			return "a box that is not inside of the shape";
	}
	return strides_error(ndim, element_bytes, b);
}

void ptc_local_box_span(uint32_t ndim, uint32_t element_bytes, const struct ptc_local_box *b, uint64_t *ret_low,
			uint64_t *ret_high)
{
	uint64_t reach = element_bytes;

	for (uint32_t d = 0; d < ndim; d++)
		if (b->extent[d] > 1)
			reach += (uint64_t)b->stride[d] * (uint64_t)(b->extent[d] - 1);
	*ret_low = b->address;
	*ret_high = b->address + reach;
}

/* All dims count: those a tensor does not have are 0 in every box. */
static int by_offset(const void *a, const void *b)
{
	const struct ptc_local_box *x = a, *y = b;

	for (uint32_t d = 0; d < PTC_LOCAL_DIMS; d++)
		if (x->offset[d] != y->offset[d])
			return x->offset[d] < y->offset[d] ? -1 : 1;
	return 0;
}

static bool overlap(uint32_t ndim, const struct ptc_local_box *a, const struct ptc_local_box *b)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (a->offset[d] >= b->offset[d] + b->extent[d] || b->offset[d] >= a->offset[d] + a->extent[d])
			return false;
	return true;
}

bool ptc_local_boxes_disjoint(uint32_t ndim, struct ptc_local_box *boxes, size_t n, size_t *ret_a, size_t *ret_b)
{
	if (n)
		qsort(boxes, n, sizeof boxes[0], by_offset);
	for (size_t i = 0; i < n; i++)
		for (size_t j = i + 1; j < n; j++) {
			if (ndim && boxes[j].offset[0] >= boxes[i].offset[0] + boxes[i].extent[0])
				break; /* nor do any that follow it */
			if (!overlap(ndim, &boxes[i], &boxes[j]))
				continue;
			*ret_a = i;
			*ret_b = j;
			return false;
		}
	return true;
}
