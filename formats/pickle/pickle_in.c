/* SPDX-License-Identifier: Apache-2.0 */
/* A pickle as a tree. Opcodes are those that Python's pickler writes in protocols 2 to 5 for plain values, classes and
 * torch.save's tensors; each has one line in step(). Value 0 is None; where a value may be missing, 0 says so. Failure
 * modes: pickle.h. */
#include "formats/pickle/pickle.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/status.h"

#include <inttypes.h>
#include <string.h>

#define MARKED    UINT32_MAX
#define TEXT_MAX  (64u << 20)
#define MEMBERS   64         /* of an object: more are not looked at, so one large dict in many places costs nothing */
#define STACK_MAX (8u << 20) /* values that wait for the list or dict that takes them */

struct reader {
	struct ptc_pickle p;
	const uint8_t *data;
	size_t len, at, began; /* began: where the opcode is */
	const char *const *names;
	uint32_t *stack, *memo, nstack, cap_stack, nmemo, cap_memo, cap_values;
	uint32_t *cap_items; /* of each value */
	bool ended;
	struct ptc_error *err;
};

static int bad(const struct reader *r, const char *what)
{
	return ptc_error_set(r->err, PTC_EINVAL, "pickle: %s, at byte %zu", what, r->began);
}

static int new_value(struct reader *r, struct ptc_pickle_value v, uint32_t *ret)
{
	uint32_t cap = r->cap_values;

	if (r->p.nvalues == PTC_PICKLE_MAX_VALUES)
		return ptc_error_set(r->err, PTC_ELIMIT, "pickle: more than %u values", PTC_PICKLE_MAX_VALUES);
	if (r->p.nvalues == cap) {
		uint32_t caps = cap;

		if (!PTC_ROOM(r->p.values, (size_t)r->p.nvalues + 1, cap) ||
		    !PTC_ROOM(r->cap_items, (size_t)r->p.nvalues + 1, caps))
			return ptc_nomem(r->err);
		r->cap_values = PTC_MIN(cap, caps);
	}
	r->cap_items[r->p.nvalues] = 0;
	r->p.values[r->p.nvalues] = v;
	*ret = r->p.nvalues++;
	return 0;
}

/* ---- the stack ---- */

static int push(struct reader *r, uint32_t value)
{
	if (r->nstack == STACK_MAX)
		return ptc_error_set(r->err, PTC_ELIMIT, "pickle: more than %u values on the stack", STACK_MAX);
	if (!PTC_ROOM(r->stack, (size_t)r->nstack + 1, r->cap_stack))
		return ptc_nomem(r->err);
	r->stack[r->nstack++] = value;
	return 0;
}

static int push_new(struct reader *r, struct ptc_pickle_value v)
{
	uint32_t value = 0;
	int rc = new_value(r, v, &value);

	return rc ? rc : push(r, value);
}

static int pop(struct reader *r, uint32_t *ret)
{
	if (!r->nstack || r->stack[r->nstack - 1] == MARKED)
		return bad(r, "an opcode lacks its operand");
	*ret = r->stack[--r->nstack];
	return 0;
}

/* Items above the topmost mark. */
static int marked(struct reader *r, uint32_t *ret_first)
{
	uint32_t i = r->nstack;

	while (i && r->stack[i - 1] != MARKED)
		i--;
	if (!i)
		return bad(r, "an opcode lacks its mark");
	*ret_first = i;
	return 0;
}

static int add_items(struct reader *r, uint32_t value, uint32_t first)
{
	struct ptc_pickle_value *v = &r->p.values[value];
	uint32_t n = r->nstack - first;

	if (n && !PTC_ROOM(v->items, (size_t)v->nitems + n, r->cap_items[value]))
		return ptc_nomem(r->err);
	for (uint32_t i = 0; i < n; i++)
		v->items[v->nitems + i] = r->stack[first + i];
	v->nitems += n;
	r->nstack = first;
	return 0;
}

static int tuple(struct reader *r, uint32_t n, bool by_mark)
{
	uint32_t value = 0, first = 0;
	int rc = by_mark ? marked(r, &first) : 0;

	for (uint32_t i = 0; i < n && !rc && !by_mark; i++)
		if (r->nstack < n || r->stack[r->nstack - 1 - i] == MARKED)
			rc = bad(r, "a tuple lacks items");
	if (!rc)
		rc = new_value(r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_SEQ }, &value);
	if (!rc)
		rc = add_items(r, value, by_mark ? first : r->nstack - n);
	if (rc)
		return rc;
	r->nstack -= by_mark; /* the mark */
	return push(r, value);
}

/* Lists and dicts take what lies above them; so do objects that are made as an empty list or dict. */
static int extend(struct reader *r, bool pairs, bool by_mark)
{
	uint32_t first = r->nstack - (pairs ? 2 : 1), value;
	int rc = by_mark ? marked(r, &first) : 0;
	uint32_t under = rc ? 0 : first - by_mark;

	if (rc)
		return rc;
	if (r->nstack < (pairs ? 3u : 2u) - by_mark || !under || under > r->nstack || r->stack[under - 1] == MARKED)
		return bad(r, "items without a list or dict");
	for (uint32_t i = first; i < r->nstack; i++)
		if (r->stack[i] == MARKED)
			return bad(r, "a mark among items");
	value = r->stack[under - 1];
	if (r->p.values[value].kind != PTC_PICKLE_CALL &&
	    r->p.values[value].kind != (pairs ? PTC_PICKLE_DICT : PTC_PICKLE_SEQ))
		return bad(r, "items of something that is no list or dict");
	if (pairs && (r->nstack - first) % 2)
		return bad(r, "a key without a value");
	rc = add_items(r, value, first);
	r->nstack = under;
	return rc;
}

/* ---- operands in the input ---- */

static int take(struct reader *r, size_t n, const uint8_t **ret)
{
	if (n > r->len - r->at)
		return bad(r, "it ends in the middle of a value");
	*ret = r->data + r->at;
	r->at += n;
	return 0;
}

static int number(struct reader *r, unsigned bytes, uint64_t *ret)
{
	const uint8_t *p = NULL;
	int rc = take(r, bytes, &p);

	*ret = 0;
	for (unsigned i = 0; i < bytes && !rc; i++)
		*ret |= (uint64_t)p[i] << (8 * i);
	return rc;
}

static int push_int(struct reader *r, unsigned bytes, bool is_signed)
{
	uint64_t n;
	int rc = number(r, bytes, &n);
	int64_t s = (int64_t)n;

	if (!rc && is_signed && bytes && bytes < 8 && (n >> (8 * bytes - 1)))
		s = (int64_t)(n | UINT64_MAX << (8 * bytes));
	return rc ? rc : push_new(r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_INT, .n = s });
}

/* LONG1: little-endian, in two's complement. */
static int push_long(struct reader *r)
{
	uint64_t bytes;
	int rc = number(r, 1, &bytes);

	if (rc)
		return rc;
	if (bytes > 8)
		return bad(r, "a number of more than 64 bits");
	return push_int(r, (unsigned)bytes, true);
}

static int push_float(struct reader *r)
{
	struct ptc_pickle_value v = { .kind = PTC_PICKLE_FLOAT };
	const uint8_t *p = NULL;
	uint64_t bits = 0;
	int rc = take(r, 8, &p);

	for (int i = 0; i < 8 && !rc; i++)
		bits = bits << 8 | p[i];
	memcpy(&v.f, &bits, sizeof v.f);
	return rc ? rc : push_new(r, v);
}

static int push_text(struct reader *r, unsigned bytes, enum ptc_pickle_kind kind)
{
	struct ptc_pickle_value v = { .kind = kind };
	const uint8_t *p = NULL;
	uint64_t n;
	int rc = number(r, bytes, &n);

	if (!rc && n > TEXT_MAX)
		return ptc_error_set(r->err, PTC_ELIMIT, "pickle: a text of more than %u bytes, at byte %zu", TEXT_MAX,
				     r->began);
	if (!rc)
		rc = take(r, (size_t)n, &p);
	if (rc)
		return rc;
	v.text.at = (uint32_t)(p - r->data);
	v.text.len = (uint32_t)n;
	return push_new(r, v);
}

/* ---- names ---- */

/* For a message: what is not plain ASCII may be anything. */
static void shown(const char *text, size_t len, char *ret, size_t size)
{
	size_t n = PTC_MIN(len, size - 1);

	for (size_t i = 0; i < n; i++)
		ret[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
	ret[n] = '\0';
}

static int unknown_name(const struct reader *r, const char *module, size_t nmodule, const char *name, size_t nname)
{
	char m[81], n[81];

	shown(module, nmodule, m, sizeof m);
	shown(name, nname, n, sizeof n);
	return ptc_error_set(r->err, PTC_EINVAL,
			     "pickle: it names \"%s.%s\", which a checkpoint has no need of (byte %zu)", m, n,
			     r->began);
}

static int push_name(struct reader *r, const char *module, size_t nmodule, const char *name, size_t nname)
{
	struct ptc_pickle_value v = { .kind = PTC_PICKLE_NAME };
	size_t i = 0;

	while (r->names[i] && !(strlen(r->names[i]) == nmodule + 1 + nname && !memcmp(r->names[i], module, nmodule) &&
				r->names[i][nmodule] == ' ' && !memcmp(r->names[i] + nmodule + 1, name, nname)))
		i++;
	if (!r->names[i])
		return unknown_name(r, module, nmodule, name, nname);
	v.text.at = (uint32_t)r->p.names.len;
	v.text.len = (uint32_t)(nmodule + 1 + nname);
	ptc_buf_puts(&r->p.names, r->names[i]);
	if (ptc_buf_failed(&r->p.names))
		return ptc_nomem(r->err);
	return push_new(r, v);
}

static int line(struct reader *r, const char **ret, size_t *ret_len)
{
	const uint8_t *p = r->data + r->at, *end = memchr(p, '\n', r->len - r->at);

	if (!end)
		return bad(r, "a name does not end");
	*ret = (const char *)p;
	*ret_len = (size_t)(end - p);
	r->at += *ret_len + 1;
	return 0;
}

static int global(struct reader *r)
{
	const char *module = NULL, *name = NULL;
	size_t nmodule = 0, nname = 0;
	int rc = line(r, &module, &nmodule);

	if (!rc)
		rc = line(r, &name, &nname);
	return rc ? rc : push_name(r, module, nmodule, name, nname);
}

static int stack_global(struct reader *r)
{
	const struct ptc_pickle_value *m, *n;
	uint32_t name, module;
	int rc = pop(r, &name);

	if (!rc)
		rc = pop(r, &module);
	if (rc)
		return rc;
	m = &r->p.values[module];
	n = &r->p.values[name];
	if (m->kind != PTC_PICKLE_TEXT || n->kind != PTC_PICKLE_TEXT)
		return bad(r, "a name that is no text");
	return push_name(r, r->p.data + m->text.at, m->text.len, r->p.data + n->text.at, n->text.len);
}

/* ---- objects ---- */

static int make(struct reader *r)
{
	struct ptc_pickle_value v = { .kind = PTC_PICKLE_CALL };
	int rc = pop(r, &v.made.args);

	if (!rc)
		rc = pop(r, &v.made.callee);
	if (rc)
		return rc;
	if (r->p.values[v.made.callee].kind != PTC_PICKLE_NAME || r->p.values[v.made.args].kind != PTC_PICKLE_SEQ)
		return bad(r, "a call of something that is no class or function");
	return push_new(r, v);
}

static int build(struct reader *r)
{
	uint32_t state, value;
	int rc = pop(r, &state);

	if (!rc)
		rc = pop(r, &value);
	if (rc)
		return rc;
	if (r->p.values[value].kind != PTC_PICKLE_CALL || r->p.values[value].made.state)
		return bad(r, "a state of something that is no new object");
	r->p.values[value].made.state = state;
	return push(r, value);
}

static int persistent(struct reader *r)
{
	struct ptc_pickle_value v = { .kind = PTC_PICKLE_ID };
	int rc = pop(r, &v.made.args);

	return rc ? rc : push_new(r, v);
}

/* ---- the memo ---- */

static int put(struct reader *r, uint64_t index)
{
	if (!r->nstack || r->stack[r->nstack - 1] == MARKED)
		return bad(r, "nothing to remember");
	if (index > r->nmemo)
		return bad(r, "the memo is not filled in order");
	if (index == r->nmemo) {
		if (!PTC_ROOM(r->memo, (size_t)r->nmemo + 1, r->cap_memo))
			return ptc_nomem(r->err);
		r->nmemo++;
	}
	r->memo[index] = r->stack[r->nstack - 1];
	return 0;
}

static int memo(struct reader *r, unsigned bytes, bool get)
{
	uint64_t index;
	int rc = number(r, bytes, &index);

	if (rc || !get)
		return rc ? rc : put(r, index);
	if (index >= r->nmemo)
		return bad(r, "it refers to something that was not remembered");
	return push(r, r->memo[index]);
}

/* ---- opcodes ---- */

static int protocol(struct reader *r)
{
	uint64_t n;
	int rc = number(r, 1, &n);

	if (!rc && (n < 2 || n > 5))
		return ptc_error_set(r->err, PTC_EVERSION, "pickle: protocol %" PRIu64 "; 2 to 5 can be read", n);
	return rc;
}

static int frame(struct reader *r)
{
	uint64_t n;
	int rc = number(r, 8, &n);

	return !rc && n > r->len - r->at ? bad(r, "a frame is longer than the file") : rc;
}

/* Values that are written out: numbers, texts, constants. */
static int constant(struct reader *r, uint8_t op, bool *ret_is)
{
	*ret_is = true;
	switch (op) {
	case 'N':
		return push(r, 0);
	case 0x88:
		return push_new(r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_BOOL, .n = 1 });
	case 0x89:
		return push_new(r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_BOOL });
	case 'K':
		return push_int(r, 1, false);
	case 'M':
		return push_int(r, 2, false);
	case 'J':
		return push_int(r, 4, true);
	case 0x8a:
		return push_long(r);
	case 'G':
		return push_float(r);
	case 0x8c:
		return push_text(r, 1, PTC_PICKLE_TEXT);
	case 'X':
		return push_text(r, 4, PTC_PICKLE_TEXT);
	case 0x8d:
		return push_text(r, 8, PTC_PICKLE_TEXT);
	case 'C':
		return push_text(r, 1, PTC_PICKLE_BYTES);
	case 'B':
		return push_text(r, 4, PTC_PICKLE_BYTES);
	case 'c':
		return global(r);
	case 0x93:
		return stack_global(r);
	default:
		*ret_is = false;
		return 0;
	}
}

static int step(struct reader *r, uint8_t op)
{
	switch (op) {
	case 0x80:
		return protocol(r);
	case 0x95:
		return frame(r);
	case '(':
		return push(r, MARKED);
	case '}':
		return push_new(r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_DICT });
	case ']':
	case ')':
		return push_new(r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_SEQ });
	case 't':
		return tuple(r, 0, true);
	case 0x85:
		return tuple(r, 1, false);
	case 0x86:
		return tuple(r, 2, false);
	case 0x87:
		return tuple(r, 3, false);
	case 'u':
		return extend(r, true, true);
	case 's':
		return extend(r, true, false);
	case 'e':
		return extend(r, false, true);
	case 'a':
		return extend(r, false, false);
	case 0x81:
	case 'R':
		return make(r);
	case 'b':
		return build(r);
	case 'Q':
		return persistent(r);
	case 0x94:
		return put(r, r->nmemo);
	case 'q':
		return memo(r, 1, false);
	case 'r':
		return memo(r, 4, false);
	case 'h':
		return memo(r, 1, true);
	case 'j':
		return memo(r, 4, true);
	case '.':
		r->ended = true;
		return 0;
	default:
		return ptc_error_set(r->err, PTC_EINVAL, "pickle: opcode 0x%02x at byte %zu is none that is read here",
				     op, r->began);
	}
}

int ptc_pickle_read(const void *data, size_t len, const char *const *names, struct ptc_pickle *ret,
		    struct ptc_error *err)
{
	struct reader r = { .data = data, .len = len, .names = names, .err = err, .p = { .data = data } };
	uint32_t none;
	bool is;
	int rc = len > PTC_PICKLE_MAX_BYTES
			 ? ptc_error_set(err, PTC_ELIMIT, "pickle: more than %u bytes", PTC_PICKLE_MAX_BYTES)
			 : new_value(&r, (struct ptc_pickle_value){ .kind = PTC_PICKLE_NONE }, &none);

	while (!rc && !r.ended) {
		uint8_t op;

		r.began = r.at;
		if (r.at == len) {
			rc = bad(&r, "it does not end");
			break;
		}
		op = r.data[r.at++];
		rc = constant(&r, op, &is);
		if (!rc && !is)
			rc = step(&r, op);
	}
	if (!rc && (r.nstack != 1 || r.stack[0] == MARKED))
		rc = bad(&r, "it has no one result");
	if (!rc)
		r.p.root = r.stack[0];
	ptc_free(r.stack);
	ptc_free(r.memo);
	ptc_free(r.cap_items);
	if (rc)
		ptc_pickle_done(&r.p);
	else
		*ret = r.p;
	return rc;
}

void ptc_pickle_done(struct ptc_pickle *p)
{
	for (uint32_t i = 0; i < p->nvalues; i++)
		ptc_free(p->values[i].items);
	ptc_free(p->values);
	ptc_buf_done(&p->names);
	*p = (struct ptc_pickle){ 0 };
}

/* ---- looking at a tree ---- */

const char *ptc_pickle_str(const struct ptc_pickle *p, const struct ptc_pickle_value *v)
{
	return (v->kind == PTC_PICKLE_NAME ? p->names.data : p->data) + v->text.at;
}

bool ptc_pickle_is(const struct ptc_pickle *p, const struct ptc_pickle_value *v, const char *text)
{
	size_t n = strlen(text);

	return (v->kind == PTC_PICKLE_TEXT || v->kind == PTC_PICKLE_NAME) && v->text.len == n &&
	       !memcmp(ptc_pickle_str(p, v), text, n);
}

const struct ptc_pickle_value *ptc_pickle_member(const struct ptc_pickle *p, const struct ptc_pickle_value *v,
						 const char *key)
{
	if (v->kind == PTC_PICKLE_CALL)
		v = ptc_pickle_at(p, v->made.state);
	if (v->kind != PTC_PICKLE_DICT)
		return NULL;
	for (uint32_t i = 0; i + 1 < PTC_MIN(v->nitems, 2u * MEMBERS); i += 2)
		if (ptc_pickle_item(p, v, i)->kind == PTC_PICKLE_TEXT &&
		    ptc_pickle_is(p, ptc_pickle_item(p, v, i), key))
			return ptc_pickle_item(p, v, i + 1);
	return NULL;
}

bool ptc_pickle_made_by(const struct ptc_pickle *p, const struct ptc_pickle_value *v, const char *name)
{
	return v->kind == PTC_PICKLE_CALL && ptc_pickle_is(p, ptc_pickle_at(p, v->made.callee), name);
}
