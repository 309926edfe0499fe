/* SPDX-License-Identifier: Apache-2.0 */
/* Python's pickle format, as far as checkpoints of PyTorch need it. Writing appends opcodes of protocol 2 to a buffer.
 * Reading makes a tree of values and runs nothing: a class or function that a pickle names stays a name, and only names
 * on the caller's list are taken.
 *
 * A tree borrows the input, and is immutable once made; readable from any thread. Failure modes of reading: PTC_EINVAL
 * (opcode or name, and its place), PTC_ELIMIT, PTC_ENOMEM. Pure. */
#pragma once

#include "base/buf.h"
#include "base/include/ptc/error.h"

#define PTC_PICKLE_MAX_BYTES  (1u << 30) /* a checkpoint of 10^6 tensors on 8 ranks each takes half */
#define PTC_PICKLE_MAX_VALUES (32u << 20)

/* ---- writing ---- */

struct ptc_pickle_out {
	struct ptc_buf *b;
	const char *known[64]; /* names that were written before, by their place in the memo */
	unsigned nknown;
};
void ptc_pickle_begin(struct ptc_pickle_out *o, struct ptc_buf *b);
void ptc_pickle_end(struct ptc_pickle_out *o);
/* One of the opcodes that take no argument. */
void ptc_pickle_op(struct ptc_pickle_out *o, char opcode);
/* name: "module\nname". The same pointer again costs two bytes. */
void ptc_pickle_global(struct ptc_pickle_out *o, const char *name);
void ptc_pickle_int(struct ptc_pickle_out *o, int64_t n);
void ptc_pickle_float(struct ptc_pickle_out *o, double f);
void ptc_pickle_text(struct ptc_pickle_out *o, const char *text);
void ptc_pickle_text_n(struct ptc_pickle_out *o, const char *text, size_t len);
void ptc_pickle_bool(struct ptc_pickle_out *o, bool truth);
void ptc_pickle_none(struct ptc_pickle_out *o);

enum {
	PTC_PICKLE_MARK = '(',
	PTC_PICKLE_EMPTY_DICT = '}',
	PTC_PICKLE_EMPTY_LIST = ']',
	PTC_PICKLE_EMPTY_TUPLE = ')',
	PTC_PICKLE_TUPLE = 't',
	PTC_PICKLE_TUPLE1 = '\x85',
	PTC_PICKLE_TUPLE2 = '\x86',
	PTC_PICKLE_SETITEMS = 'u',
	PTC_PICKLE_APPENDS = 'e',
	PTC_PICKLE_NEWOBJ = '\x81',
	PTC_PICKLE_REDUCE = 'R',
	PTC_PICKLE_BUILD = 'b',
	PTC_PICKLE_PERSID = 'Q',
};

/* ---- reading ---- */

enum ptc_pickle_kind {
	PTC_PICKLE_NONE,
	PTC_PICKLE_BOOL,  /* n */
	PTC_PICKLE_INT,   /* n */
	PTC_PICKLE_FLOAT, /* f */
	PTC_PICKLE_TEXT,  /* text */
	PTC_PICKLE_BYTES, /* text */
	PTC_PICKLE_SEQ,   /* a tuple or list: items */
	PTC_PICKLE_DICT,  /* items: key, value, key, value .. */
	PTC_PICKLE_NAME,  /* text: "module name" */
	/* an object: `made` has the class or function and its arguments; items: those of a list or dict object */
	PTC_PICKLE_CALL,
	PTC_PICKLE_ID, /* a persistent id: made.args */
};
struct ptc_pickle_value {
	enum ptc_pickle_kind kind;
	uint32_t nitems;
	union {
		int64_t n;
		double f;
		struct {
			uint32_t at, len; /* in the input; a name's: in `names` */
		} text;
		struct {
			uint32_t callee, args, state; /* values; state 0: none */
		} made;
	};
	uint32_t *items; /* values */
};
struct ptc_pickle {
	const char *data; /* borrowed */
	struct ptc_pickle_value *values;
	uint32_t nvalues, root;
	struct ptc_buf names;
};
/* names: "module name" of all that may be there, NULL last. */
int ptc_pickle_read(const void *data, size_t len, const char *const *names, struct ptc_pickle *ret,
		    struct ptc_error *err);
void ptc_pickle_done(struct ptc_pickle *p); /* a zeroed one is fine */

static inline const struct ptc_pickle_value *ptc_pickle_at(const struct ptc_pickle *p, uint32_t value)
{
	return &p->values[value];
}
/* Item i of v, which has it. */
static inline const struct ptc_pickle_value *ptc_pickle_item(const struct ptc_pickle *p,
							     const struct ptc_pickle_value *v, uint32_t i)
{
	return &p->values[v->items[i]];
}
/* The text's first byte (no NUL follows); of a text, bytes or name. */
const char *ptc_pickle_str(const struct ptc_pickle *p, const struct ptc_pickle_value *v);
bool ptc_pickle_is(const struct ptc_pickle *p, const struct ptc_pickle_value *v, const char *text);
/* The value of a text key in a dict, or of an attribute of an object that was built. NULL: not there. */
const struct ptc_pickle_value *ptc_pickle_member(const struct ptc_pickle *p, const struct ptc_pickle_value *v,
						 const char *key);
/* Whether v was made by the class or function of that name. */
bool ptc_pickle_made_by(const struct ptc_pickle *p, const struct ptc_pickle_value *v, const char *name);
