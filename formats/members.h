/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes JSON documents by a table. One row for each member of a struct has its key, its kind, its place in
 * the struct and its limits. The same table writes the document, reads it, and frees the result. A reader skips unknown
 * members, because a later version may have added them.
 *
 * Tables are constant. Functions are pure; any thread. Failure modes: PTC_EINVAL and PTC_ELIMIT, which name document
 * and member; PTC_ENOMEM. Members read before the failure are in the struct; free them with ptc_members_done. */
#pragma once

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptc_member_kind {
	PTC_IS_U32, /* numbers may be arrays in the struct: the JSON value is then a list */
	PTC_IS_U64, /* at most INT64_MAX, because JSON numbers have a sign */
	PTC_IS_I64,
	PTC_IS_INT,
	PTC_IS_BOOL,
	PTC_IS_REAL,   /* double, not negative, at most max (0: no limit) */
	PTC_IS_NUMBER, /* double of any sign, written without a point if it is whole; null is NAN */
	PTC_IS_WORD,   /* an enum; `words` has max + 1 entries */
	PTC_IS_TEXT,   /* char[]; a longer text is refused, and one of less than min bytes */
	PTC_IS_STRING, /* char *, owned; at least min, at most max bytes; max 0: no limit */
	PTC_IS_HEX,    /* uint64_t as 16 digits */
	PTC_IS_BYTES,  /* a pointer to `count` bytes, owned, at least min; in JSON hexadecimal digits */
	PTC_IS_EMPTY,  /* an empty map, {}; nothing is read */
	PTC_IS_MAP,    /* a struct; `of` has its members. Without key: they are members of the map around them */
	PTC_IS_LIST,   /* a pointer to `count` structs, owned; at least min, at most max of them (0: no limit) */
	PTC_IS_KEYED,  /* as a list, but the JSON value is a map: of each struct, `of` has the key, then the value */
	PTC_IS_ARRAY,  /* an array of structs, of which `count` are used; at least min */
};

struct ptc_members {
	const struct ptc_member *v;
	size_t n, size; /* number of rows; bytes of the struct */
	/* the JSON value is a list of the values in order; otherwise a map. A row without key: the value alone,
	 * without a list */
	bool tuple;
};
struct ptc_member {
	const char *key;
	enum ptc_member_kind kind;
	bool optional; /* the member may be missing when read; it is always written */
	uint32_t offset, size;
	/* The member is written only if one of these bytes of the struct is not 0, and may be missing when read.
	 * if_size 0: it is always written. */
	uint32_t if_offset, if_size;
	bool seen; /* this byte is a bool, which is set if the member was there when it was read */
	bool null; /* null stands for a member that is missing: it is read as such, and written in its place */
	uint32_t count_offset, count_size; /* place of the count, a uint32_t or size_t */
	int64_t min, max;                  /* max 0: the kind's own limit */
	const char *const *words;
	const struct ptc_members *of;
};
/* ...: initializers of the row's other members, such as .max = 3. */
#define PTC_ROW(type, key, member, kind, ...)                                                                          \
	{                                                                                                              \
		key, PTC_IS_##kind, PTC_AT(type, member), __VA_ARGS__                                                  \
	}
#define PTC_SIZEOF(type, member)  sizeof(((type *)0)->member)
#define PTC_AT(type, member)      .offset = offsetof(type, member), .size = PTC_SIZEOF(type, member)
#define PTC_IF(type, member)      .if_offset = offsetof(type, member), .if_size = PTC_SIZEOF(type, member)
#define PTC_SEEN(type, member)    PTC_IF(type, member), .seen = true
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

/* Adds the members to a map. Returns 0; -1: out of memory, or a text is not UTF-8. */
int ptc_members_put(json_t *map, const struct ptc_members *t, const void *from);
/* Makes the whole value; NULL where ptc_members_put returns -1. */
json_t *ptc_members_to_json(const struct ptc_members *t, const void *from);
/* Adds a list of n structs to a map. A struct that cannot be written is left out. Returns as ptc_members_put. */
int ptc_members_put_list(json_t *map, const char *key, const struct ptc_members *t, const void *v, size_t n);
/* Makes a whole document: {"version": version}, then the members. The text is ptc_free'd. NULL: as above. */
json_t *ptc_members_to_doc(int version, const struct ptc_members *t, const void *from);
char *ptc_members_to_text(int version, const struct ptc_members *t, const void *from);
/* Reads the members. `what` names the document in errors. *to is zeroed, or holds the values of missing members. */
int ptc_members_from_json(const char *what, const struct ptc_members *t, const json_t *json, void *to,
			  struct ptc_error *err);
/* Reads a whole document, whose version must be one that ptc_json_version permits (json.h); ours 0: it does not matter.
 * On failure *to is zeroed. */
int ptc_members_from_text(const char *what, uint32_t oldest, uint32_t ours, const struct ptc_members *t,
			  const char *json, size_t len, void *to, struct ptc_error *err);
/* Frees strings and lists, and zeroes them. */
void ptc_members_done(const struct ptc_members *t, void *of);
