/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the local connection to bytes and back. Failure modes: writing remembers that memory ran out; reading
 * remembers that the bytes were none of ours, and answers zeros and empty strings from then on. */
#include "proto/local_messages.h"

#include "proto/local_page.h"
#include "proto/local_rules.h"

#include <string.h>

static bool room(struct ptc_local_out *o, size_t n)
{
	size_t cap = o->cap ? o->cap : 256;
	uint8_t *p;

	if (o->failed || n > SIZE_MAX / 4 || o->len > SIZE_MAX / 4) {
		o->failed = true;
		return false;
	}
	if (o->len + n <= o->cap)
		return true;
	while (cap < o->len + n)
		cap *= 2;
	p = o->grow(o->data, cap);
	if (!p) {
		o->failed = true;
		return false;
	}
	o->data = p;
	o->cap = cap;
	return true;
}

static void put(struct ptc_local_out *o, const void *data, size_t n)
{
	if (!n || !room(o, n))
		return;
	memcpy(o->data + o->len, data, n);
	o->len += n;
}

void ptc_local_put_u8(struct ptc_local_out *o, uint8_t v)
{
	put(o, &v, sizeof v);
}

void ptc_local_put_u32(struct ptc_local_out *o, uint32_t v)
{
	put(o, &v, sizeof v);
}

void ptc_local_put_u64(struct ptc_local_out *o, uint64_t v)
{
	put(o, &v, sizeof v);
}

void ptc_local_put_bytes(struct ptc_local_out *o, const void *data, size_t len)
{
	ptc_local_put_u32(o, (uint32_t)len);
	put(o, data, len);
}

void ptc_local_put_text(struct ptc_local_out *o, const char *s)
{
	ptc_local_put_bytes(o, s, strlen(s) + 1);
}

static void get(struct ptc_local_in *in, void *ret, size_t n)
{
	if (in->bad || (size_t)(in->end - in->p) < n) {
		in->bad = true;
		memset(ret, 0, n);
		return;
	}
	memcpy(ret, in->p, n);
	in->p += n;
}

uint8_t ptc_local_get_u8(struct ptc_local_in *in)
{
	uint8_t v;

	get(in, &v, sizeof v);
	return v;
}

uint32_t ptc_local_get_u32(struct ptc_local_in *in)
{
	uint32_t v;

	get(in, &v, sizeof v);
	return v;
}

uint64_t ptc_local_get_u64(struct ptc_local_in *in)
{
	uint64_t v;

	get(in, &v, sizeof v);
	return v;
}

static const void *get_bytes(struct ptc_local_in *in, size_t max, size_t *ret_len)
{
	size_t n = ptc_local_get_u32(in);
	const uint8_t *p = in->p;

	*ret_len = 0;
	if (in->bad || n > max || n > (size_t)(in->end - in->p)) {
		in->bad = true;
		return "";
	}
	in->p += n;
	*ret_len = n;
	return p;
}

const char *ptc_local_get_text(struct ptc_local_in *in, size_t max)
{
	size_t n;
	const char *s = get_bytes(in, max + 1, &n);

	if (in->bad || !n || memchr(s, '\0', n) != s + n - 1) {
		in->bad = true;
		return "";
	}
	return s;
}

/* ---- members of structs -------------------------------------------------------- */

/* Bytes of one number. */
static const uint8_t sizes[] = { [PTC_LOCAL_U8] = 1, [PTC_LOCAL_FLAG] = 1, [PTC_LOCAL_U32] = 4, [PTC_LOCAL_U64] = 8 };

static void put_member(struct ptc_local_out *o, const struct ptc_local_member *f, const char *at)
{
	const char *text;
	size_t len;

	switch (f->kind) {
	case PTC_LOCAL_TEXT:
		memcpy(&text, at, sizeof text);
		ptc_local_put_text(o, text ? text : "");
		break;
	case PTC_LOCAL_ARRAY:
		ptc_local_put_text(o, at);
		break;
	case PTC_LOCAL_BYTES:
		memcpy(&text, at, sizeof text);
		memcpy(&len, at + sizeof text, sizeof len);
		ptc_local_put_bytes(o, text, len);
		break;
	case PTC_LOCAL_EXACTLY:
		memcpy(&text, at, sizeof text);
		ptc_local_put_bytes(o, text, f->max);
		break;
	default:
		put(o, at, f->size);
	}
}

static uint64_t number_at(const char *at, size_t size)
{
	uint32_t v;
	uint64_t w;

	if (size == 1)
		return *(const uint8_t *)at;
	if (size == sizeof v)
		return memcpy(&v, at, sizeof v), v;
	return memcpy(&w, at, sizeof w), w;
}

/* One that is above its max is 0, and the message bad. */
static void get_number(struct ptc_local_in *in, const struct ptc_local_member *f, char *at)
{
	const size_t size = sizes[f->kind];

	for (char *end = at + f->size; at < end; at += size) {
		get(in, at, size);
		if (f->max && number_at(at, size) > f->max) {
			memset(at, 0, size);
			in->bad = true;
		}
	}
}

static void get_member(struct ptc_local_in *in, const struct ptc_local_member *f, char *at)
{
	const void *text;
	size_t len;

	switch (f->kind) {
	case PTC_LOCAL_TEXT:
		text = ptc_local_get_text(in, f->max);
		memcpy(at, &text, sizeof text);
		break;
	case PTC_LOCAL_ARRAY:
		text = ptc_local_get_text(in, f->size - 1u);
		memcpy(at, text, strlen(text) + 1);
		break;
	case PTC_LOCAL_BYTES:
		text = get_bytes(in, f->max, &len);
		memcpy(at, &text, sizeof text);
		memcpy(at + sizeof text, &len, sizeof len);
		break;
	case PTC_LOCAL_EXACTLY:
		text = get_bytes(in, f->max, &len);
		memcpy(at, &text, sizeof text);
		in->bad |= len != f->max;
		break;
	default:
		if (f->later && in->p == in->end)
			memset(at, 0, f->size);
		else
			get_number(in, f, at);
	}
}

void ptc_local_put_members(struct ptc_local_out *o, const struct ptc_local_member *f, size_t n, const void *from)
{
	for (size_t i = 0; i < n; i++)
		put_member(o, &f[i], (const char *)from + f[i].offset);
}

void ptc_local_get_members(struct ptc_local_in *in, const struct ptc_local_member *f, size_t n, void *to)
{
	for (size_t i = 0; i < n; i++)
		get_member(in, &f[i], (char *)to + f[i].offset);
}

/* ---- messages ------------------------------------------------------------------ */

static struct ptc_local_in reader(const void *data, size_t len)
{
	return (struct ptc_local_in){ .p = data, .end = (const uint8_t *)data + len };
}

/* At the end of every message: where a later version adds its fields. */
static void put_added(struct ptc_local_out *o)
{
#if PTC_VERSION_RAISED
	ptc_local_put_u64(o, PTC_VERSION_ADDED);
#else
	(void)o;
#endif
}

#define LEN(a)                      sizeof(a) / sizeof((a)[0])
#define IS(m, member, kind, max)    PTC_LOCAL_MEMBER(struct ptc_local_##m, member, kind, max, false)
#define RUN32(m, first, last, n)    PTC_LOCAL_RUN(struct ptc_local_##m, first, last, U32, 4, n)
#define RUN64(m, first, last, n)    PTC_LOCAL_RUN(struct ptc_local_##m, first, last, U64, 8, n)
#define LATER(m, member, kind, max) PTC_LOCAL_MEMBER(struct ptc_local_##m, member, kind, max, true)

/* Both directions of a message that is the members of a struct. sound: what must be true of `m` beside their limits. */
#define PUT(name)                                                                                                      \
	void ptc_local_put_##name(struct ptc_local_out *o, const struct ptc_local_##name *m)                           \
	{                                                                                                              \
		ptc_local_put_members(o, name##_members, LEN(name##_members), m);                                      \
		put_added(o);                                                                                          \
	}
#define GET(name, sound)                                                                                               \
	bool ptc_local_get_##name(const void *data, size_t len, struct ptc_local_##name *m)                            \
	{                                                                                                              \
		struct ptc_local_in in = reader(data, len);                                                            \
                                                                                                                       \
		ptc_local_get_members(&in, name##_members, LEN(name##_members), m);                                    \
		return !in.bad && (sound);                                                                             \
	}
#define MESSAGE(name, sound) PUT(name) GET(name, sound)

static const struct ptc_local_member hello_members[] = { RUN32(hello, protocol_min, protocol_max, 2),
							 IS(hello, pid, U64, 0),
							 IS(hello, token, TEXT, PTC_LOCAL_TOKEN),
							 IS(hello, version, TEXT, PTC_LOCAL_SHORT_MAX),
							 IS(hello, resume_phase, U8, PTC_LOCAL_IS_STOPPED),
							 RUN64(hello, generation, incarnation, 2),
							 IS(hello, rank, U32, 0),
							 LATER(hello, features, U32, 0) };
MESSAGE(hello, true)

static const struct ptc_local_member welcome_members[] = { IS(welcome, protocol, U32, 0), IS(welcome, pid, U64, 0),
							   IS(welcome, version, TEXT, PTC_LOCAL_SHORT_MAX),
							   LATER(welcome, features, U32, 0) };
MESSAGE(welcome, true)

static const struct ptc_local_member generation_members[] = { RUN64(generation, generation, incarnation, 2),
							      IS(generation, start_step, U64, PTC_LOCAL_STEP_MAX),
							      IS(generation, has_state, FLAG, 1),
							      RUN32(generation, rank, global_batch, 20),
							      IS(generation, config, TEXT, PTC_LOCAL_CONFIG_MAX),
							      IS(generation, job, TEXT, PTC_LOCAL_SHORT_MAX) };
MESSAGE(generation, true)

static const struct ptc_local_member declared_members[] = { IS(declared, what, U64, PTC_LOCAL_DECLARES_LAYOUT),
							    LATER(declared, does, U32, 0) };
MESSAGE(declared, true)

static const struct ptc_local_member blob_members[] = { IS(blob, name, TEXT, PTC_LOCAL_SHORT_MAX),
							IS(blob, scope, U8, PTC_LOCAL_SCOPE_MAX),
							IS(blob, data, BYTES, PTC_LOCAL_BLOB_MAX) };
MESSAGE(blob, m->scope && !ptc_local_short_error(m->name))

static const struct ptc_local_member cursor_members[] = { IS(cursor, name, TEXT, PTC_LOCAL_SHORT_MAX),
							  IS(cursor, tag, TEXT, PTC_LOCAL_SHORT_MAX),
							  IS(cursor, position, U64, 0) };
MESSAGE(cursor, !ptc_local_short_error(m->name))

static const struct ptc_local_member stopped_members[] = { IS(stopped, step, U64, PTC_LOCAL_STEP_MAX),
							   IS(stopped, finished, FLAG, 1), IS(stopped, staged, FLAG, 1),
							   IS(stopped, refused, TEXT, PTC_LOCAL_SHORT_MAX),
							   LATER(stopped, later, FLAG, 1) };
MESSAGE(stopped, true)

static const struct ptc_local_member rendezvous_members[] = { IS(rendezvous, id, U64, 0),
							      IS(rendezvous, code, U32, 0),
							      IS(rendezvous, key, TEXT, PTC_LOCAL_SHORT_MAX),
							      IS(rendezvous, text, TEXT, PTC_LOCAL_TEXT_MAX),
							      IS(rendezvous, value, BYTES, PTC_LOCAL_RENDEZVOUS_MAX),
							      IS(rendezvous, timeout_ms, U32, 0) };
MESSAGE(rendezvous, true)

static const struct ptc_local_member restored_members[] = { IS(restored, restored, FLAG, 1),
							    IS(restored, step, U64, PTC_LOCAL_STEP_MAX) };
MESSAGE(restored, true)

static const struct ptc_local_member filled_members[] = { RUN64(filled, id, failed, 2), IS(filled, code, U32, 0),
							  LATER(filled, damaged, FLAG, 1) };
MESSAGE(filled, true)

static const struct ptc_local_member device_members[] = { RUN64(device, address, buffer, 4),
							  IS(device, uuid, TEXT, PTC_LOCAL_UUID_MAX),
							  IS(device, why, TEXT, PTC_LOCAL_WHY_MAX),
							  IS(device, ipc, EXACTLY, PTC_LOCAL_IPC_BYTES),
							  IS(device, descriptor, U8, 0) };
MESSAGE(device, m->bytes && m->address <= UINT64_MAX - m->bytes)

static const struct ptc_local_member keeps_members[] = { RUN64(keeps, address, bytes, 2) };
MESSAGE(keeps, m->bytes && m->address <= UINT64_MAX - m->bytes)

static const struct ptc_local_member refusal_members[] = { IS(refusal, code, U32, 0),
							   IS(refusal, text, TEXT, PTC_LOCAL_TEXT_MAX) };
GET(refusal, true)

void ptc_local_put_refusal(struct ptc_local_out *o, int32_t code, const char *text)
{
	ptc_local_put_members(o, refusal_members, LEN(refusal_members), &(struct ptc_local_refusal){ code, text });
	put_added(o);
}

void ptc_local_put_ended(struct ptc_local_out *o, uint64_t generation, uint64_t incarnation)
{
	ptc_local_put_u64(o, generation);
	ptc_local_put_number(o, incarnation);
}

bool ptc_local_get_ended(const void *data, size_t len, uint64_t *ret_generation, uint64_t *ret_incarnation)
{
	struct ptc_local_in in = reader(data, len);

	*ret_generation = ptc_local_get_u64(&in);
	*ret_incarnation = ptc_local_get_u64(&in);
	return !in.bad;
}

void ptc_local_put_number(struct ptc_local_out *o, uint64_t v)
{
	ptc_local_put_u64(o, v);
	put_added(o);
}

bool ptc_local_get_number(const void *data, size_t len, uint64_t *ret)
{
	struct ptc_local_in in = reader(data, len);

	*ret = ptc_local_get_u64(&in);
	return !in.bad;
}

/* ---- messages with lists ------------------------------------------------------- */

static void put_i64s(struct ptc_local_out *o, const int64_t *v, uint32_t n)
{
	put(o, v, n * sizeof *v);
}

static void get_i64s(struct ptc_local_in *in, int64_t *v, uint32_t n)
{
	get(in, v, n * sizeof *v);
}

static const struct ptc_local_member tensor_members[] = {
	IS(tensor, name, TEXT, PTC_LOCAL_NAME_MAX), IS(tensor, field, TEXT, PTC_LOCAL_FIELD_MAX),
	IS(tensor, dtype, TEXT, PTC_LOCAL_FIELD_MAX), IS(tensor, flags, U32, 0), IS(tensor, ndim, U32, PTC_LOCAL_DIMS)
};

void ptc_local_put_tensor(struct ptc_local_out *o, const struct ptc_local_tensor *m, const struct ptc_local_box *boxes)
{
	ptc_local_put_members(o, tensor_members, LEN(tensor_members), m);
	put_i64s(o, m->shape, m->ndim);
	ptc_local_put_u32(o, m->nboxes);
	for (uint32_t i = 0; i < m->nboxes; i++) {
		put_i64s(o, boxes[i].offset, m->ndim);
		put_i64s(o, boxes[i].extent, m->ndim);
		put_i64s(o, boxes[i].stride, m->ndim);
		ptc_local_put_u64(o, boxes[i].address);
	}
	put_added(o);
}

bool ptc_local_get_tensor(const void *data, size_t len, struct ptc_local_tensor *ret)
{
	struct ptc_local_in in = reader(data, len);

	*ret = (struct ptc_local_tensor){ 0 };
	ptc_local_get_members(&in, tensor_members, LEN(tensor_members), ret);
	get_i64s(&in, ret->shape, ret->ndim);
	ret->nboxes = ptc_local_get_u32(&in);
	ret->boxes = in;
	return !in.bad && ret->nboxes <= PTC_LOCAL_BOXES_MAX &&
	       (size_t)(in.end - in.p) >= (size_t)ret->nboxes * (3 * ret->ndim + 1) * 8;
}

bool ptc_local_get_box(struct ptc_local_tensor *t, struct ptc_local_box *ret)
{
	*ret = (struct ptc_local_box){ 0 };
	get_i64s(&t->boxes, ret->offset, t->ndim);
	get_i64s(&t->boxes, ret->extent, t->ndim);
	get_i64s(&t->boxes, ret->stride, t->ndim);
	ret->address = ptc_local_get_u64(&t->boxes);
	return !t->boxes.bad;
}

static const struct ptc_local_member staging_members[] = { IS(staging, bytes, U64, 0),
							   IS(staging, nspans, U32, PTC_LOCAL_SPANS_MAX) };
static const struct ptc_local_member span_members[] = { RUN64(span, address, offset, 3) };

void ptc_local_put_staging(struct ptc_local_out *o, uint64_t bytes, const struct ptc_local_span *spans, uint32_t nspans)
{
	ptc_local_put_members(o, staging_members, LEN(staging_members), &(struct ptc_local_staging){ bytes, nspans });
	for (uint32_t i = 0; i < nspans; i++)
		ptc_local_put_members(o, span_members, LEN(span_members), &spans[i]);
	put_added(o);
}

bool ptc_local_get_staging(const void *data, size_t len, struct ptc_local_staging *ret)
{
	struct ptc_local_in in = reader(data, len);

	ptc_local_get_members(&in, staging_members, LEN(staging_members), ret);
	ret->spans = in;
	return !in.bad && (size_t)(in.end - in.p) >= (size_t)ret->nspans * 24;
}

bool ptc_local_get_span(struct ptc_local_staging *s, struct ptc_local_span *ret)
{
	ptc_local_get_members(&s->spans, span_members, LEN(span_members), ret);
	return !s->spans.bad && ret->bytes <= s->bytes && ret->offset <= s->bytes - ret->bytes;
}

static const struct ptc_local_member fill_members[] = { RUN64(fill, generation, id, 3),
							IS(fill, nrows, U32, PTC_LOCAL_ROWS_MAX) };
static const struct ptc_local_member rows_members[] = { RUN64(rows, address, offset_step, 6) };
#define ROWS_BYTES  48u
#define CHUNK_BYTES (8u * CHUNK_WORDS)
#define CHUNK_WORDS (3u + PTC_DIRECT_READ_CHUNK_BLOCKS)
static const struct ptc_local_member chunks_members[] = { LATER(fill, nchunks, U32, PTC_LOCAL_CHUNKS_MAX) };
static const struct ptc_local_member chunk_members[] = {
	PTC_LOCAL_RUN(struct ptc_direct_read_chunk, at, sums[PTC_DIRECT_READ_CHUNK_BLOCKS - 1], U64, 8, CHUNK_WORDS)
};

void ptc_local_put_fill(struct ptc_local_out *o, const struct ptc_local_fill *m, const struct ptc_local_rows *rows,
			const struct ptc_direct_read_chunk *chunks)
{
	ptc_local_put_members(o, fill_members, LEN(fill_members), m);
	for (uint32_t i = 0; i < m->nrows; i++)
		ptc_local_put_members(o, rows_members, LEN(rows_members), &rows[i]);
	ptc_local_put_members(o, chunks_members, LEN(chunks_members), m);
	for (uint32_t i = 0; i < m->nchunks; i++)
		ptc_local_put_members(o, chunk_members, LEN(chunk_members), &chunks[i]);
	put_added(o);
}

bool ptc_local_get_fill(const void *data, size_t len, struct ptc_local_fill *ret)
{
	struct ptc_local_in in = reader(data, len);

	ptc_local_get_members(&in, fill_members, LEN(fill_members), ret);
	ret->rows = in;
	if (in.bad || (size_t)(in.end - in.p) < (size_t)ret->nrows * ROWS_BYTES)
		return false;
	in.p += (size_t)ret->nrows * ROWS_BYTES;
	ptc_local_get_members(&in, chunks_members, LEN(chunks_members), ret);
	ret->chunks = in;
	return !in.bad && (size_t)(in.end - in.p) >= (size_t)ret->nchunks * CHUNK_BYTES;
}

bool ptc_local_get_chunk(struct ptc_local_fill *f, struct ptc_direct_read_chunk *ret)
{
	ptc_local_get_members(&f->chunks, chunk_members, LEN(chunk_members), ret);
	return !f->chunks.bad && ret->at <= INT64_MAX - PTC_DIRECT_READ_CHUNK_BYTES;
}

/* Whether the last row of a side ends below limit; nothing wraps on the way. */
static bool rows_end_below(uint64_t first, uint64_t step, uint64_t count, uint64_t bytes, uint64_t limit)
{
	if (bytes > limit || first > limit - bytes)
		return false;
	return !step || count - 1 <= (limit - bytes - first) / step;
}

bool ptc_local_get_rows(struct ptc_local_fill *f, struct ptc_local_rows *ret)
{
	ptc_local_get_members(&f->rows, rows_members, LEN(rows_members), ret);
	return !f->rows.bad && ret->count &&
	       rows_end_below(ret->address, ret->address_step, ret->count, ret->bytes, UINT64_MAX) &&
	       rows_end_below(ret->offset, ret->offset_step, ret->count, ret->bytes, INT64_MAX);
}

const char *ptc_local_tensor_error(struct ptc_local_tensor *t, uint32_t element_bytes, struct ptc_local_box *boxes)
{
	const char *what = ptc_local_name_error(t->name);
	size_t a, b;

	if (!what && *t->field)
		what = ptc_local_field_error(t->field);
	if (!what && !element_bytes)
		what = "an unknown dtype";
	if (!what)
		what = ptc_local_shape_error(t->ndim, t->shape, element_bytes);
	if (!what && !t->ndim && t->nboxes > 1)
		what = "a scalar with more than one box";
	for (uint32_t i = 0; i < t->nboxes && !what; i++)
		what = ptc_local_get_box(t, &boxes[i])
			       ? ptc_local_box_error(t->ndim, t->shape, element_bytes, &boxes[i])
			       : "boxes that end early";
	if (!what && !ptc_local_boxes_disjoint(t->ndim, boxes, t->nboxes, &a, &b))
		what = "two boxes that overlap";
	return what;
}
