/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: received slices read in order, and parts gathered for sending.
 *
 * Happy path: a received message is walked slice by slice, one copy from
 * socket slice to destination or none; sent parts become slices that alias
 * the caller's memory until the core has done with them.
 *
 * Failure modes: too many parts (PTC_ELIMIT), no memory (PTC_ENOMEM): every
 * part is then released at once. */
#include "rpc/internal.h"

#include "base/alloc.h"

#include <string.h>

int ptc_rpc_message_init(struct ptc_rpc_message *m, grpc_byte_buffer *buf, struct ptc_error *err)
{
	ptc_rpc_message_done(m);
	if (buf->data.raw.compression != GRPC_COMPRESS_NONE || !grpc_byte_buffer_reader_init(&m->reader, buf)) {
		grpc_byte_buffer_destroy(buf);
		return ptc_error_set(err, PTC_EPEER, "the peer sent a compressed message, which was not offered");
	}
	m->buf = buf;
	m->at = NULL;
	m->left = 0;
	m->len = grpc_byte_buffer_length(buf);
	return 0;
}

struct ptc_rpc_message *ptc_rpc_message_done(struct ptc_rpc_message *m)
{
	if (m && m->buf) {
		grpc_byte_buffer_reader_destroy(&m->reader);
		grpc_byte_buffer_destroy(m->buf);
		m->buf = NULL;
	}
	return NULL;
}

size_t ptc_rpc_message_len(const struct ptc_rpc_message *m)
{
	return m->len;
}

/* Makes m->at the next unread bytes; false at the end. */
static bool fill(struct ptc_rpc_message *m)
{
	while (m->left == 0) {
		grpc_slice *s;

		if (!grpc_byte_buffer_reader_peek(&m->reader, &s))
			return false;
		m->at = GRPC_SLICE_START_PTR(*s);
		m->left = GRPC_SLICE_LENGTH(*s);
	}
	return true;
}

size_t ptc_rpc_message_read(struct ptc_rpc_message *m, void *dst, size_t len)
{
	uint8_t *p = dst;
	size_t got = 0;

	while (got < len && fill(m)) {
		size_t n = PTC_MIN(len - got, m->left);

		memcpy(p + got, m->at, n);
		m->at += n;
		m->left -= n;
		got += n;
	}
	return got;
}

size_t ptc_rpc_message_next(struct ptc_rpc_message *m, const void **ret_data)
{
	size_t n;

	if (!fill(m))
		return 0;
	*ret_data = m->at;
	n = m->left;
	m->left = 0;
	return n;
}

static void release_from(const struct ptc_rpc_part *parts, size_t first, size_t nparts)
{
	for (size_t i = first; i < nparts; i++)
		if (parts[i].release)
			parts[i].release(parts[i].arg);
}

static grpc_slice part_slice(const struct ptc_rpc_part *p)
{
	/* The slice never writes; its constructor just is not const. */
	union {
		const void *in;
		void *out;
	} data = { .in = p->data };

	if (p->release)
		return grpc_slice_new_with_user_data(data.out, p->len, p->release, p->arg);
	return grpc_slice_from_copied_buffer(p->data, p->len);
}

int ptc_rpc_parts_pack(const struct ptc_rpc_part *parts, size_t nparts, grpc_byte_buffer **ret_buf,
		       struct ptc_error *err)
{
	grpc_slice local[8];
	grpc_slice *slices = local;

	if (nparts > PTC_RPC_PARTS_MAX) {
		release_from(parts, 0, nparts);
		return ptc_error_set(err, PTC_ELIMIT, "a message has %zu parts; at most %d are allowed", nparts,
				     PTC_RPC_PARTS_MAX);
	}
	if (nparts > PTC_ARRAY_LEN(local))
		slices = ptc_reallocarray(NULL, nparts, sizeof *slices);
	if (!slices) {
		release_from(parts, 0, nparts);
		return ptc_nomem(err);
	}
	for (size_t i = 0; i < nparts; i++)
		slices[i] = part_slice(&parts[i]);
	*ret_buf = grpc_raw_byte_buffer_create(slices, nparts);
	for (size_t i = 0; i < nparts; i++)
		grpc_slice_unref(slices[i]);
	if (slices != local)
		ptc_free(slices);
	return 0;
}
