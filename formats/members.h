/* SPDX-License-Identifier: Apache-2.0 */
/* A document's members as a table: one row for each member of a struct says its key, its kind, where it lies and what
 * it may be. The same table writes the document and reads it, and frees what was read. Unknown members are passed over
 * on reading: a later version has added them.
 *
 * Tables are constant. Functions are pure; any thread. Failure modes: PTC_EINVAL naming document and member,
 * PTC_ENOMEM; what was read until then is in the struct, for ptc_members_done. */
#pragma once

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptc_member_kind {
	PTC_IS_U32, /* of numbers, there may be several, as a list: the member is an array of them */
	PTC_IS_U64, /* at most INT64_MAX: JSON has numbers with a sign */
	PTC_IS_I64,
	PTC_IS_INT,
	PTC_IS_BOOL,
	PTC_IS_REAL,   /* double, not negative */
	PTC_IS_WORD,   /* an enum; words has max + 1 of them */
	PTC_IS_TEXT,   /* char[]; what is longer is refused */
	PTC_IS_STRING, /* char *, owned; at most max bytes, 0: any */
	PTC_IS_HEX,    /* uint64_t as 16 digits */
	PTC_IS_EMPTY,  /* {}; nothing is read */
	PTC_IS_MAP,    /* a struct; of: its members */
	PTC_IS_LIST,   /* a pointer to count structs, owned; at least min, at most max of them (0: any number) */
	PTC_IS_ARRAY,  /* an array of structs, count of which are used; at least min */
};

struct ptc_members {
	const struct ptc_member *v;
	size_t n, size; /* rows; bytes of the struct */
	bool tuple;     /* a list of the values in their order; else a map. A row without key: that value alone */
};
struct ptc_member {
	const char *key;
	enum ptc_member_kind kind;
	bool optional; /* it may be missing, and is written nonetheless */
	uint32_t offset, size;
	/* Written where one of these bytes of the struct is not 0, and may be missing then. if_size 0: always there. */
	uint32_t if_offset, if_size;
	uint32_t count_offset, count_size; /* of a uint32_t or size_t */
	int64_t min, max;                  /* max 0: what the kind can hold */
	const char *const *words;
	const struct ptc_members *of;
};
/* ...: initialisers of what else the row has, such as .max = 3. */
#define PTC_ROW(type, key, member, kind, ...)                                                                          \
	{                                                                                                              \
		key, PTC_IS_##kind, PTC_AT(type, member), __VA_ARGS__                                                  \
	}
#define PTC_SIZEOF(type, member)  sizeof(((type *)0)->member)
#define PTC_AT(type, member)      .offset = offsetof(type, member), .size = PTC_SIZEOF(type, member)
#define PTC_IF(type, member)      .if_offset = offsetof(type, member), .if_size = PTC_SIZEOF(type, member)
#define PTC_IF_TEXT(type, member) .if_offset = offsetof(type, member), .if_size = 1
#define PTC_COUNT(type, member)   .count_offset = offsetof(type, member), .count_size = PTC_SIZEOF(type, member)
#define PTC_MEMBERS(table, type)                                                                                       \
	{                                                                                                              \
		table, sizeof(table) / sizeof((table)[0]), sizeof(type), false                                         \
	}
#define PTC_TUPLE(table, type)                                                                                         \
	{                                                                                                              \
		table, sizeof(table) / sizeof((table)[0]), sizeof(type), true                                          \
	}

/* Adds the members to a map. 0, or -1: out of memory, or a text is not UTF-8. */
int ptc_members_put(json_t *map, const struct ptc_members *t, const void *from);
/* The whole; NULL as ptc_members_put's -1. */
json_t *ptc_members_to_json(const struct ptc_members *t, const void *from);
/* what names the document in errors. *to is zeroed, or holds what missing members are to be. */
int ptc_members_from_json(const char *what, const struct ptc_members *t, const json_t *json, void *to,
			  struct ptc_error *err);
/* Frees strings and lists, and zeroes these members. */
void ptc_members_done(const struct ptc_members *t, void *of);
