/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: each boundary adds a thousandth of the time since the last one to what may be spent. Where that is enough
 * for a few pieces, they are chosen and copied by one call; where the update begins, they are read once more and
 * compared, and what both have cost is subtracted. Cost is CPU time, so that a process that has to wait for a CPU does
 * not stop looking. Failure modes: memory_samples.h. */
#include "client/lib/promise/memory_samples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SHARE         1000
#define CREDIT_MAX_NS INT64_C(4000000)
#define PIECE_NS      INT64_C(4000) /* before any was measured */
#define PIECE_MIN_NS  INT64_C(200)
#define PIECE_MAX_NS  (CREDIT_MAX_NS / SAMPLES_MIN)

static int64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* splitmix64 */
static uint64_t draw(struct samples *s)
{
	uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

bool ptc_samples_add(struct samples *s, const char *name, const char *field, uint32_t ndim, uint32_t element_bytes,
		     const struct ptc_local_box *box)
{
	uint64_t bytes = element_bytes;

	for (uint32_t d = 0; d < ndim; d++)
		bytes *= (uint64_t)box->extent[d];
	if (!bytes)
		return true;
	if (s->nboxes == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 64;
		struct sampled_box *p = realloc(s->boxes, cap * sizeof *p);

		if (!p)
			return false;
		s->boxes = p;
		s->cap = cap;
	}
	s->boxes[s->nboxes] =
		(struct sampled_box){ name, field,         box,
				      ndim, element_bytes, bytes + (s->nboxes ? s->boxes[s->nboxes - 1].end : 0) };
	s->nboxes++;
	return true;
}

void ptc_samples_begin(struct samples *s, uint64_t seed)
{
	s->random = seed;
	s->before_ns = 0;
	s->piece_ns = PIECE_NS;
	s->credit_ns = SAMPLES_MAX * PIECE_NS; /* the first step is looked at closely */
}

void ptc_samples_done(struct samples *s)
{
	free(s->boxes);
	free(s->was);
	free(s->is);
	*s = (struct samples){ 0 };
}

/* ---- which -------------------------------------------------------------------------- */

static size_t box_of_byte(const struct samples *s, uint64_t at)
{
	size_t low = 0, high = s->nboxes - 1;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (at < s->boxes[mid].end)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* The dims of more than one element, from that whose elements are closest together: a transposed box is as dense as
 * another one. Returns how many. */
static uint32_t by_stride(const struct sampled_box *b, uint32_t order[PTC_LOCAL_DIMS])
{
	uint32_t n = 0, i;

	for (uint32_t d = 0; d < b->ndim; d++) {
		if (b->box->extent[d] == 1)
			continue;
		for (i = n++; i > 0 && b->box->stride[order[i - 1]] > b->box->stride[d]; i--)
			order[i] = order[i - 1];
		order[i] = d;
	}
	return n;
}

static struct sample choose(struct samples *s, bool by_bytes)
{
	size_t i = by_bytes ? box_of_byte(s, draw(s) % s->boxes[s->nboxes - 1].end) : draw(s) % s->nboxes;
	const struct sampled_box *b = &s->boxes[i];
	uint64_t run = b->element_bytes, address = b->box->address, at;
	uint32_t order[PTC_LOCAL_DIMS], n = by_stride(b, order), k = 0;

	for (; k < n && (uint64_t)b->box->stride[order[k]] == run; k++)
		run *= (uint64_t)b->box->extent[order[k]];
	for (; k < n; k++)
		address += draw(s) % (uint64_t)b->box->extent[order[k]] * (uint64_t)b->box->stride[order[k]];
	at = draw(s) % ((run + SAMPLE_BYTES - 1) / SAMPLE_BYTES) * SAMPLE_BYTES;
	return (struct sample){ .box = (uint32_t)i,
				.bytes = (uint32_t)(run - at < SAMPLE_BYTES ? run - at : SAMPLE_BYTES),
				.address = address + at };
}

/* ---- reading ------------------------------------------------------------------------ */

/* All that is taken, into `to`. Returns how many bytes were read, up to the first piece that is not there; 0 where
 * there is no such call. */
static uint64_t read_taken(struct samples *s, uint8_t *to, uint64_t *ret_wanted)
{
	struct iovec from[SAMPLES_MAX], here = { .iov_base = to };
	ssize_t n;

	for (unsigned i = 0; i < s->ntaken; i++) {
		from[i] = (struct iovec){ (void *)(uintptr_t)s->taken[i].address, s->taken[i].bytes };
		here.iov_len += s->taken[i].bytes;
	}
	*ret_wanted = here.iov_len;
	n = process_vm_readv(getpid(), &here, 1, from, s->ntaken, 0);
	s->off = n < 0 && errno != EFAULT;
	return n < 0 ? 0 : (uint64_t)n;
}

static bool has_room(struct samples *s)
{
	if (!s->was)
		s->was = malloc((size_t)SAMPLES_MAX * SAMPLE_BYTES);
	if (!s->is)
		s->is = malloc((size_t)SAMPLES_MAX * SAMPLE_BYTES);
	return s->was && s->is;
}

void ptc_samples_take(struct samples *s)
{
	const int64_t now = s->nboxes && !s->off ? now_ns(CLOCK_MONOTONIC) : 0;
	int64_t began, pieces;
	uint64_t wanted;

	s->ntaken = 0;
	if (!now)
		return;
	if (s->before_ns)
		s->credit_ns += (now - s->before_ns) / SHARE;
	s->before_ns = now;
	if (s->credit_ns > CREDIT_MAX_NS)
		s->credit_ns = CREDIT_MAX_NS;
	pieces = s->credit_ns / s->piece_ns;
	if (pieces < SAMPLES_MIN || !has_room(s))
		return;
	began = now_ns(CLOCK_THREAD_CPUTIME_ID);
	s->ntaken = pieces < SAMPLES_MAX ? (unsigned)pieces : SAMPLES_MAX;
	for (unsigned i = 0; i < s->ntaken; i++)
		s->taken[i] = choose(s, i % 2);
	if (read_taken(s, s->was, &wanted) != wanted)
		s->ntaken = 0; /* gone already: what becomes of that is told where the state is read */
	s->spent_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
	s->credit_ns -= s->spent_ns;
}

static const struct sample *different(const struct samples *s, uint64_t readable)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < s->ntaken; i++) {
		const struct sample *p = &s->taken[i];

		if (at + p->bytes > readable || memcmp(s->was + at, s->is + at, p->bytes) != 0)
			return p;
		at += p->bytes;
	}
	return NULL;
}

bool ptc_samples_same(struct samples *s, const struct sampled_box **ret_changed)
{
	const struct sample *other;
	uint64_t wanted, readable;
	int64_t began, ns;

	*ret_changed = NULL;
	if (!s->ntaken)
		return true;
	began = now_ns(CLOCK_THREAD_CPUTIME_ID);
	readable = read_taken(s, s->is, &wanted);
	other = s->off ? NULL : different(s, readable);
	ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
	s->credit_ns -= ns;
	s->piece_ns = (s->spent_ns + ns) / s->ntaken;
	s->piece_ns = s->piece_ns < PIECE_MIN_NS ? PIECE_MIN_NS : s->piece_ns;
	s->piece_ns = s->piece_ns > PIECE_MAX_NS ? PIECE_MAX_NS : s->piece_ns;
	*ret_changed = s->off ? NULL : &s->boxes[other ? other->box : s->taken[0].box];
	s->ntaken = 0;
	return !other;
}
