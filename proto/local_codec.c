// SPDX-License-Identifier: Apache-2.0
/* Messages of the local connection to bytes and back. Failure modes: writing remembers that memory ran out; reading remembers
 * that the bytes were none of ours, and answers zeros and empty strings from then on. */
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

const void *ptc_local_get_bytes(struct ptc_local_in *in, size_t max, size_t *ret_len)
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
	const char *s = ptc_local_get_bytes(in, max + 1, &n);

	if (in->bad || !n || memchr(s, '\0', n) != s + n - 1) {
		in->bad = true;
		return "";
	}
	return s;
}

static bool get_flag(struct ptc_local_in *in)
{
	uint8_t v = ptc_local_get_u8(in);

	if (v > 1)
		in->bad = true;
	return v == 1;
}

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

void ptc_local_put_hello(struct ptc_local_out *o, const struct ptc_local_hello *m)
{
	ptc_local_put_u32(o, m->protocol_min);
	ptc_local_put_u32(o, m->protocol_max);
	ptc_local_put_u64(o, m->pid);
	ptc_local_put_text(o, m->token);
	ptc_local_put_text(o, m->version);
	ptc_local_put_u8(o, m->resume_phase);
	ptc_local_put_u64(o, m->generation);
	ptc_local_put_u64(o, m->incarnation);
	ptc_local_put_u32(o, m->rank);
	ptc_local_put_u32(o, m->features);
	put_added(o);
}

bool ptc_local_get_hello(const void *data, size_t len, struct ptc_local_hello *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->protocol_min = ptc_local_get_u32(&in);
	ret->protocol_max = ptc_local_get_u32(&in);
	ret->pid = ptc_local_get_u64(&in);
	ret->token = ptc_local_get_text(&in, PTC_LOCAL_TOKEN);
	ret->version = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	ret->resume_phase = ptc_local_get_u8(&in);
	ret->generation = ptc_local_get_u64(&in);
	ret->incarnation = ptc_local_get_u64(&in);
	ret->rank = ptc_local_get_u32(&in);
	ret->features = in.p < in.end ? ptc_local_get_u32(&in) : 0; /* of a libptc before there were any */
	return !in.bad && ret->resume_phase <= PTC_LOCAL_IS_STOPPED;
}

void ptc_local_put_welcome(struct ptc_local_out *o, const struct ptc_local_welcome *m)
{
	ptc_local_put_u32(o, m->protocol);
	ptc_local_put_u64(o, m->pid);
	ptc_local_put_text(o, m->version);
	put_added(o);
}

bool ptc_local_get_welcome(const void *data, size_t len, struct ptc_local_welcome *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->protocol = ptc_local_get_u32(&in);
	ret->pid = ptc_local_get_u64(&in);
	ret->version = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	return !in.bad;
}

void ptc_local_put_refusal(struct ptc_local_out *o, int32_t code, const char *text)
{
	ptc_local_put_u32(o, (uint32_t)code);
	ptc_local_put_text(o, text);
	put_added(o);
}

bool ptc_local_get_refusal(const void *data, size_t len, struct ptc_local_refusal *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->code = (int32_t)ptc_local_get_u32(&in);
	ret->text = ptc_local_get_text(&in, PTC_LOCAL_TEXT_MAX);
	return !in.bad;
}

void ptc_local_put_generation(struct ptc_local_out *o, const struct ptc_local_generation *m)
{
	ptc_local_put_u64(o, m->generation);
	ptc_local_put_u64(o, m->incarnation);
	ptc_local_put_u64(o, m->start_step);
	ptc_local_put_u8(o, m->has_state);
	ptc_local_put_u32(o, m->rank);
	ptc_local_put_u32(o, m->world);
	ptc_local_put_u32(o, m->local_rank);
	ptc_local_put_u32(o, m->local_world);
	ptc_local_put_u32(o, m->node_rank);
	ptc_local_put_u32(o, m->nodes);
	ptc_local_put_u32(o, m->device);
	for (int i = 0; i < 6; i++)
		ptc_local_put_u32(o, m->degrees[i]);
	for (int i = 0; i < 4; i++)
		ptc_local_put_u32(o, m->coordinates[i]);
	ptc_local_put_u32(o, m->zero);
	ptc_local_put_u32(o, m->micro_batch);
	ptc_local_put_u32(o, m->global_batch);
	ptc_local_put_text(o, m->config);
	ptc_local_put_text(o, m->job);
	put_added(o);
}

bool ptc_local_get_generation(const void *data, size_t len, struct ptc_local_generation *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->generation = ptc_local_get_u64(&in);
	ret->incarnation = ptc_local_get_u64(&in);
	ret->start_step = ptc_local_get_u64(&in);
	ret->has_state = get_flag(&in);
	ret->rank = ptc_local_get_u32(&in);
	ret->world = ptc_local_get_u32(&in);
	ret->local_rank = ptc_local_get_u32(&in);
	ret->local_world = ptc_local_get_u32(&in);
	ret->node_rank = ptc_local_get_u32(&in);
	ret->nodes = ptc_local_get_u32(&in);
	ret->device = ptc_local_get_u32(&in);
	for (int i = 0; i < 6; i++)
		ret->degrees[i] = ptc_local_get_u32(&in);
	for (int i = 0; i < 4; i++)
		ret->coordinates[i] = ptc_local_get_u32(&in);
	ret->zero = ptc_local_get_u32(&in);
	ret->micro_batch = ptc_local_get_u32(&in);
	ret->global_batch = ptc_local_get_u32(&in);
	ret->config = ptc_local_get_text(&in, PTC_LOCAL_CONFIG_MAX);
	ret->job = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	return !in.bad && ret->start_step <= PTC_LOCAL_STEP_MAX;
}

static void put_i64s(struct ptc_local_out *o, const int64_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ptc_local_put_u64(o, (uint64_t)v[i]);
}

static void get_i64s(struct ptc_local_in *in, int64_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = (int64_t)ptc_local_get_u64(in);
}

void ptc_local_put_tensor(struct ptc_local_out *o, const struct ptc_local_tensor *m, const struct ptc_local_box *boxes)
{
	ptc_local_put_text(o, m->name);
	ptc_local_put_text(o, m->field);
	ptc_local_put_text(o, m->dtype);
	ptc_local_put_u32(o, m->flags);
	ptc_local_put_u32(o, m->ndim);
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
	ret->name = ptc_local_get_text(&in, PTC_LOCAL_NAME_MAX);
	ret->field = ptc_local_get_text(&in, PTC_LOCAL_FIELD_MAX);
	ret->dtype = ptc_local_get_text(&in, PTC_LOCAL_FIELD_MAX);
	ret->flags = ptc_local_get_u32(&in);
	ret->ndim = ptc_local_get_u32(&in);
	if (in.bad || ret->ndim > PTC_LOCAL_DIMS)
		return false;
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

void ptc_local_put_blob(struct ptc_local_out *o, const struct ptc_local_blob *m)
{
	ptc_local_put_text(o, m->name);
	ptc_local_put_u8(o, m->scope);
	ptc_local_put_bytes(o, m->data, m->len);
	put_added(o);
}

bool ptc_local_get_blob(const void *data, size_t len, struct ptc_local_blob *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->name = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	ret->scope = ptc_local_get_u8(&in);
	ret->data = ptc_local_get_bytes(&in, PTC_LOCAL_BLOB_MAX, &ret->len);
	return !in.bad && ret->scope >= 1 && ret->scope <= PTC_LOCAL_SCOPE_MAX && !ptc_local_short_error(ret->name);
}

void ptc_local_put_cursor(struct ptc_local_out *o, const struct ptc_local_cursor *m)
{
	ptc_local_put_text(o, m->name);
	ptc_local_put_text(o, m->tag);
	ptc_local_put_u64(o, m->position);
	put_added(o);
}

bool ptc_local_get_cursor(const void *data, size_t len, struct ptc_local_cursor *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->name = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	ret->tag = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	ret->position = ptc_local_get_u64(&in);
	return !in.bad && !ptc_local_short_error(ret->name);
}

void ptc_local_put_stopped(struct ptc_local_out *o, const struct ptc_local_stopped *m)
{
	ptc_local_put_u64(o, m->step);
	ptc_local_put_u8(o, m->finished);
	ptc_local_put_u8(o, m->staged);
	ptc_local_put_text(o, m->refused);
	ptc_local_put_u8(o, m->later);
	put_added(o);
}

bool ptc_local_get_stopped(const void *data, size_t len, struct ptc_local_stopped *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->step = ptc_local_get_u64(&in);
	ret->finished = get_flag(&in);
	ret->staged = get_flag(&in);
	ret->refused = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	ret->later = in.p < in.end && get_flag(&in); /* a libptc before ptc_stop_later does not say */
	return !in.bad && ret->step <= PTC_LOCAL_STEP_MAX;
}

void ptc_local_put_rendezvous(struct ptc_local_out *o, const struct ptc_local_rendezvous *m)
{
	ptc_local_put_u64(o, m->id);
	ptc_local_put_u32(o, (uint32_t)m->code);
	ptc_local_put_text(o, m->key ? m->key : "");
	ptc_local_put_text(o, m->text ? m->text : "");
	ptc_local_put_bytes(o, m->value, m->len);
	ptc_local_put_u32(o, m->timeout_ms);
	put_added(o);
}

bool ptc_local_get_rendezvous(const void *data, size_t len, struct ptc_local_rendezvous *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->id = ptc_local_get_u64(&in);
	ret->code = (int32_t)ptc_local_get_u32(&in);
	ret->key = ptc_local_get_text(&in, PTC_LOCAL_SHORT_MAX);
	ret->text = ptc_local_get_text(&in, PTC_LOCAL_TEXT_MAX);
	ret->value = ptc_local_get_bytes(&in, PTC_LOCAL_RENDEZVOUS_MAX, &ret->len);
	ret->timeout_ms = ptc_local_get_u32(&in);
	return !in.bad;
}

void ptc_local_put_restored(struct ptc_local_out *o, const struct ptc_local_restored *m)
{
	ptc_local_put_u8(o, m->restored);
	ptc_local_put_u64(o, m->step);
	put_added(o);
}

bool ptc_local_get_restored(const void *data, size_t len, struct ptc_local_restored *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->restored = get_flag(&in);
	ret->step = ptc_local_get_u64(&in);
	return !in.bad && ret->step <= PTC_LOCAL_STEP_MAX;
}

void ptc_local_put_staging(struct ptc_local_out *o, uint64_t bytes, const struct ptc_local_span *spans, uint32_t nspans)
{
	ptc_local_put_u64(o, bytes);
	ptc_local_put_u32(o, nspans);
	for (uint32_t i = 0; i < nspans; i++) {
		ptc_local_put_u64(o, spans[i].address);
		ptc_local_put_u64(o, spans[i].bytes);
		ptc_local_put_u64(o, spans[i].offset);
	}
	put_added(o);
}

bool ptc_local_get_staging(const void *data, size_t len, struct ptc_local_staging *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->bytes = ptc_local_get_u64(&in);
	ret->nspans = ptc_local_get_u32(&in);
	ret->spans = in;
	return !in.bad && ret->nspans <= PTC_LOCAL_SPANS_MAX && (size_t)(in.end - in.p) >= (size_t)ret->nspans * 24;
}

bool ptc_local_get_span(struct ptc_local_staging *s, struct ptc_local_span *ret)
{
	ret->address = ptc_local_get_u64(&s->spans);
	ret->bytes = ptc_local_get_u64(&s->spans);
	ret->offset = ptc_local_get_u64(&s->spans);
	return !s->spans.bad && ret->bytes <= s->bytes && ret->offset <= s->bytes - ret->bytes;
}

void ptc_local_put_fill(struct ptc_local_out *o, const struct ptc_local_fill *m, const struct ptc_local_rows *rows)
{
	ptc_local_put_u64(o, m->generation);
	ptc_local_put_u64(o, m->incarnation);
	ptc_local_put_u64(o, m->id);
	ptc_local_put_u32(o, m->nrows);
	for (uint32_t i = 0; i < m->nrows; i++) {
		ptc_local_put_u64(o, rows[i].address);
		ptc_local_put_u64(o, rows[i].offset);
		ptc_local_put_u64(o, rows[i].bytes);
		ptc_local_put_u64(o, rows[i].count);
		ptc_local_put_u64(o, rows[i].address_step);
		ptc_local_put_u64(o, rows[i].offset_step);
	}
	put_added(o);
}

bool ptc_local_get_fill(const void *data, size_t len, struct ptc_local_fill *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->generation = ptc_local_get_u64(&in);
	ret->incarnation = ptc_local_get_u64(&in);
	ret->id = ptc_local_get_u64(&in);
	ret->nrows = ptc_local_get_u32(&in);
	ret->rows = in;
	return !in.bad && ret->nrows <= PTC_LOCAL_ROWS_MAX;
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
	ret->address = ptc_local_get_u64(&f->rows);
	ret->offset = ptc_local_get_u64(&f->rows);
	ret->bytes = ptc_local_get_u64(&f->rows);
	ret->count = ptc_local_get_u64(&f->rows);
	ret->address_step = ptc_local_get_u64(&f->rows);
	ret->offset_step = ptc_local_get_u64(&f->rows);
	return !f->rows.bad && ret->count &&
	       rows_end_below(ret->address, ret->address_step, ret->count, ret->bytes, UINT64_MAX) &&
	       rows_end_below(ret->offset, ret->offset_step, ret->count, ret->bytes, INT64_MAX);
}

void ptc_local_put_filled(struct ptc_local_out *o, const struct ptc_local_filled *m)
{
	ptc_local_put_u64(o, m->id);
	ptc_local_put_u64(o, m->failed);
	ptc_local_put_u32(o, (uint32_t)m->code);
	put_added(o);
}

bool ptc_local_get_filled(const void *data, size_t len, struct ptc_local_filled *ret)
{
	struct ptc_local_in in = reader(data, len);

	ret->id = ptc_local_get_u64(&in);
	ret->failed = ptc_local_get_u64(&in);
	ret->code = (int32_t)ptc_local_get_u32(&in);
	return !in.bad;
}

void ptc_local_put_device(struct ptc_local_out *o, const struct ptc_local_device *m)
{
	ptc_local_put_u64(o, m->address);
	ptc_local_put_u64(o, m->bytes);
	ptc_local_put_u64(o, m->context);
	ptc_local_put_u64(o, m->buffer);
	ptc_local_put_text(o, m->uuid);
	ptc_local_put_text(o, m->why);
	ptc_local_put_bytes(o, m->ipc, PTC_LOCAL_IPC_BYTES);
	ptc_local_put_u8(o, m->descriptor);
}

bool ptc_local_get_device(const void *data, size_t len, struct ptc_local_device *ret)
{
	struct ptc_local_in in = reader(data, len);
	size_t ipc = 0;

	ret->address = ptc_local_get_u64(&in);
	ret->bytes = ptc_local_get_u64(&in);
	ret->context = ptc_local_get_u64(&in);
	ret->buffer = ptc_local_get_u64(&in);
	ret->uuid = ptc_local_get_text(&in, PTC_LOCAL_UUID_MAX);
	ret->why = ptc_local_get_text(&in, PTC_LOCAL_WHY_MAX);
	ret->ipc = ptc_local_get_bytes(&in, PTC_LOCAL_IPC_BYTES, &ipc);
	ret->descriptor = ptc_local_get_u8(&in);
	return !in.bad && ipc == PTC_LOCAL_IPC_BYTES && ret->bytes && ret->address <= UINT64_MAX - ret->bytes;
}

void ptc_local_put_ended(struct ptc_local_out *o, uint64_t generation, uint64_t incarnation)
{
	ptc_local_put_u64(o, generation);
	ptc_local_put_u64(o, incarnation);
	put_added(o);
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
