/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's backend: copies and digests.
 *
 * A part is cut into tiles. Happy path, host memory not pinned: each tile goes through a slot of the ring, packed
 * there; while the host empties (or fills) one slot the device works on the others. Pinned host memory: each tile is
 * one strided copy between both sides, and the call waits once. Short rows go through the ring in both cases, packed by
 * a kernel where there are kernels (gpu_launch.c). The last tiles of a copy may be in the ring while the next copy
 * fills the slots that come free. A digest is computed on the device, or without kernels of tiles that come out through
 * the ring.
 *
 * Failure modes: the device does not do a copy. The call waits for all queued copies before it returns, so nothing of
 * this copy is written to host memory after it. Tiles of the copy before it stay in the ring and are emptied as usual.
 * If a tile of the copy before fails, only that copy fails, unless the failure is sticky. If even waiting fails, the
 * failure is sticky and the process ends. */
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/fault.h"
#include "daemon/gpu/backend/gpu_internal.h"

#include <inttypes.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define PAST_CACHES_MIN ((size_t)4096) /* of shorter rows the ends cost more than is saved */

/* Where the next tile of a part begins. */
struct cutter {
	struct ptc_gpu_part part;
	uint64_t tile_max, max_pitch;
	bool other_strided; /* the driver sees the other side's strides too: they bind it as the device's do */
	bool free;          /* a kernel moves it: no limits of the driver's */
	uint64_t x, y, z;
};

/* CUDA steps from slice to slice in whole rows. */
static bool slices_fit(const struct cutter *c)
{
	const struct ptc_gpu_part *p = &c->part;

	return c->free ||
	       (p->device_slice % p->device_row == 0 && (!c->other_strided || p->other_slice % p->other_row == 0));
}

static bool rows_fit(const struct cutter *c)
{
	return c->free ||
	       (c->part.device_row <= c->max_pitch && (!c->other_strided || c->part.other_row <= c->max_pitch));
}

static struct ptc_gpu_tile tile_at(const struct cutter *c, uint64_t width, uint64_t height, uint64_t depth)
{
	const struct ptc_gpu_part *p = &c->part;

	return (struct ptc_gpu_tile){
		.device_at = p->device_at + c->z * p->device_slice + c->y * p->device_row + c->x,
		.other_at = p->other_at + c->z * p->other_slice + c->y * p->other_row + c->x,
		.width = width,
		.height = height,
		.depth = depth,
		.after = p->other_at + (p->depth - c->z - depth) * p->other_slice +
			 (p->height - c->y - height) * p->other_row + (p->width - c->x - width),
	};
}

/* The next tile of at most tile_max bytes; false after the last one. */
static bool next_tile(struct cutter *c, struct ptc_gpu_tile *ret)
{
	const struct ptc_gpu_part *p = &c->part;
	uint64_t rows, slices;

	if (c->z == p->depth)
		return false;
	if (p->width > c->tile_max) {
		*ret = tile_at(c, PTC_MIN(c->tile_max, p->width - c->x), 1, 1);
		c->x += ret->width;
		if (c->x < p->width)
			return true;
		c->x = 0;
		c->y++;
	} else {
		rows = rows_fit(c) ? PTC_MIN(c->tile_max / p->width, p->height - c->y) : 1;
		slices = 1;
		if (c->y == 0 && rows == p->height && p->depth > 1 && slices_fit(c))
			slices = PTC_MIN(PTC_MAX(c->tile_max / p->width / rows, 1), p->depth - c->z);
		*ret = tile_at(c, p->width, rows, slices);
		c->y += rows;
		if (slices > 1) {
			c->y = 0;
			c->z += slices;
		}
	}
	if (c->y == p->height) {
		c->y = 0;
		c->z++;
	}
	return true;
}

/* One copy of the driver between the device and host memory whose rows and slices lie row and slice bytes apart. */
static CUresult copy_tile(const struct ptc_gpu *g, CUstream link, const struct ptc_gpu_memory *m,
			  const struct ptc_gpu_part *p, const struct ptc_gpu_tile *t, enum ptc_gpu_direction direction,
			  unsigned char *host, uint64_t row, uint64_t slice)
{
	CUdeviceptr device = m->base + t->device_at;
	uint64_t device_row = t->height > 1 || t->depth > 1 ? p->device_row : t->width;
	uint64_t device_height = t->depth > 1 ? p->device_slice / p->device_row : t->height;
	uint64_t host_height = t->depth > 1 ? slice / row : t->height;
	CUDA_MEMCPY3D c = { .WidthInBytes = t->width, .Height = t->height, .Depth = t->depth };

	if (t->height == 1 && t->depth == 1)
		return direction == PTC_GPU_OUT ? g->cu->cuMemcpyDtoHAsync(host, device, t->width, link)
						: g->cu->cuMemcpyHtoDAsync(device, host, t->width, link);
	if (direction == PTC_GPU_OUT) {
		c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		c.srcDevice = device;
		c.srcPitch = device_row;
		c.srcHeight = device_height;
		c.dstMemoryType = CU_MEMORYTYPE_HOST;
		c.dstHost = host;
		c.dstPitch = row;
		c.dstHeight = host_height;
	} else {
		c.srcMemoryType = CU_MEMORYTYPE_HOST;
		c.srcHost = host;
		c.srcPitch = row;
		c.srcHeight = host_height;
		c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		c.dstDevice = device;
		c.dstPitch = device_row;
		c.dstHeight = device_height;
	}
	return g->cu->cuMemcpy3DAsync(&c, link);
}

/* memcpy to memory that nobody reads soon. What it writes does not go through the caches, which saves reading the lines
 * first; with several copiers the memory's bandwidth is what they share. */
static void past_caches(unsigned char *to, const unsigned char *from, size_t n)
{
#ifdef __SSE2__
	size_t head = PTC_MIN((size_t)(-(uintptr_t)to & 15), n);

	if (n >= PAST_CACHES_MIN) {
		memcpy(to, from, head);
		to += head;
		from += head;
		n -= head;
		for (; n >= 64; n -= 64, to += 64, from += 64) {
			__m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
			__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
			__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
			__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

			_mm_stream_si128((__m128i *)(void *)to, a);
			_mm_stream_si128((__m128i *)(void *)(to + 16), b);
			_mm_stream_si128((__m128i *)(void *)(to + 32), c);
			_mm_stream_si128((__m128i *)(void *)(to + 48), d);
		}
		_mm_sfence(); /* before whoever hears of it reads */
	}
#endif
	memcpy(to, from, n);
}

/* Between a slot, where a tile lies packed, and host memory. */
static void move_rows(const struct ptc_gpu_part *p, const struct ptc_gpu_tile *t, enum ptc_gpu_direction direction,
		      unsigned char *slot, unsigned char *host)
{
	for (uint64_t z = 0; z < t->depth; z++)
		for (uint64_t y = 0; y < t->height; y++) {
			unsigned char *at = host + t->other_at + z * p->other_slice + y * p->other_row;

			if (direction == PTC_GPU_OUT)
				past_caches(at, slot, t->width);
			else
				memcpy(slot, at, t->width);
			slot += t->width;
		}
}

/* What a packed tile contributes to its tensor's digest: Horner's rule over rows, then over slices. */
static uint64_t tile_digest(const struct ptc_gpu_part *p, const struct ptc_gpu_tile *t, const unsigned char *slot)
{
	uint64_t row = ptc_digest_xpow(p->other_row), slice = ptc_digest_xpow(p->other_slice), all = 0;

	for (uint64_t z = 0; z < t->depth; z++) {
		uint64_t sum = 0;

		for (uint64_t y = 0; y < t->height; y++) {
			sum = (y ? ptc_digest_mul(sum, row) : 0) ^ ptc_digest_run(slot, t->width);
			slot += t->width;
		}
		all = (z ? ptc_digest_mul(all, slice) : 0) ^ sum;
	}
	return ptc_digest_shift(all, t->after);
}

/* A copy, or a digest, as its tiles are issued. */
struct ring_run {
	struct ptc_gpu *g;
	struct ptc_gpu_copier *c;
	struct ptc_gpu_memory *m;
	enum ptc_gpu_direction direction;
	unsigned char *host; /* NULL: digest */
	bool kernels;
	uint64_t first; /* the number of its first tile; those below are of the copy before */
};

/* Waits for the oldest tile; what came out of the device is passed on. */
static int finish_tile(struct ptc_gpu *g, struct ptc_gpu_copier *c, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_slot *slot = &c->slots[c->finished++ % PTC_GPU_SLOTS];
	int rc = ptc_gpu_check(g, g->cu->cuEventSynchronize(slot->done), f, "device %s: copy", g->uuid);

	if (rc || slot->direction == PTC_GPU_IN)
		return rc;
	if (slot->host)
		move_rows(&slot->part, &slot->tile, PTC_GPU_OUT, slot->bytes, slot->host);
	else
		c->digest ^= tile_digest(&slot->part, &slot->tile, slot->bytes);
	return 0;
}

static bool is_short(const struct ptc_gpu_part *merged)
{
	return merged->width < PTC_GPU_SHORT_ROW && merged->height * merged->depth > 1;
}

/* What `later` is told from now on comes after what `first` has been told. */
static CUresult after(struct ptc_gpu *g, CUstream first, CUstream later, CUevent event)
{
	CUresult result = g->cu->cuEventRecord(event, first);

	return result ? result : g->cu->cuStreamWaitEvent(later, event, 0);
}

/* By a kernel: between the box and the slot's device memory, and between that and the slot in one piece. Kernels have a
 * stream of their own, so one packs while the link copies what another has packed. */
static CUresult move_tile(struct ring_run *r, const struct ptc_gpu_part *p, const struct ptc_gpu_tile *t,
			  const struct ptc_gpu_slot *slot)
{
	struct ptc_gpu *g = r->g;
	CUdeviceptr box = r->m->base + t->device_at, packed = slot->buffer;
	CUstream link = r->c->link[r->direction];
	struct ptc_gpu_part size = { .width = t->width,
				     .height = t->height,
				     .depth = t->depth,
				     .device_row = p->device_row,
				     .device_slice = p->device_slice };
	uint64_t bytes = t->width * t->height * t->depth;
	CUresult result;

	if (r->direction == PTC_GPU_OUT) {
		result = ptc_gpu_launch_move(g, r->c->stream, PTC_GPU_OUT, box, &size, slot);
		if (!result)
			result = after(g, r->c->stream, link, slot->packed);
		return result ? result : g->cu->cuMemcpyDtoHAsync(slot->bytes, packed, bytes, link);
	}
	result = g->cu->cuMemcpyHtoDAsync(packed, slot->bytes, bytes, link);
	if (!result)
		result = after(g, link, r->c->stream, slot->packed);
	return result ? result : ptc_gpu_launch_move(g, r->c->stream, PTC_GPU_IN, box, &size, slot);
}

/* *ret_last: the stream that has the last of its work. */
static CUresult start_tile(struct ring_run *r, const struct ptc_gpu_part *p, const struct ptc_gpu_tile *t,
			   const struct ptc_gpu_slot *slot, CUstream *ret_last)
{
	bool kernel = r->kernels && is_short(p);
	CUstream link = r->c->link[r->direction];

	*ret_last = kernel && r->direction == PTC_GPU_IN ? r->c->stream : link;
	if (kernel)
		return move_tile(r, p, t, slot);
	return copy_tile(r->g, link, r->m, p, t, r->direction, slot->bytes, t->width, t->width * t->height);
}

/* Nothing of ours may be under way when host memory is given back. If that cannot be known the process has to end. */
static int wait_for(struct ptc_gpu *g, CUstream stream, int rc, struct ptc_gpu_failure *f)
{
	CUresult result = g->cu->cuStreamSynchronize(stream);

	if (rc == 0)
		rc = ptc_gpu_check(g, result, f, "device %s: copy", g->uuid);
	if (result != CUDA_SUCCESS)
		f->fault.sticky = true;
	return rc;
}

/* After a copy that has failed, whatever it has begun. */
static int drain(struct ptc_gpu *g, const struct ptc_gpu_copier *c, int rc, struct ptc_gpu_failure *f)
{
	rc = wait_for(g, c->stream, rc, f);
	rc = wait_for(g, c->link[PTC_GPU_OUT], rc, f);
	return wait_for(g, c->link[PTC_GPU_IN], rc, f);
}

/* A tile of the copy before has failed: none of it is wanted any more. This copy goes on, unless the failure is sticky.
 */
static int before_failed(struct ring_run *r, int rc, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_copier *c = r->c;

	rc = drain(r->g, c, rc, f);
	c->failure = *f;
	c->finished = r->first;
	if (f->fault.sticky)
		return rc;
	*f = (struct ptc_gpu_failure){ .err = PTC_ERROR_INIT };
	return 0;
}

/* Until so many are left under way. The oldest may be of the copy before. */
static int finish_tiles(struct ring_run *r, uint64_t left, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_copier *c = r->c;
	int rc = 0;

	while (rc == 0 && c->issued - c->finished > left) {
		bool before = c->finished < r->first;

		rc = finish_tile(r->g, c, f);
		if (rc && before)
			rc = before_failed(r, rc, f);
	}
	return rc;
}

static int issue_tile(struct ring_run *r, const struct ptc_gpu_part *p, const struct ptc_gpu_tile *t,
		      struct ptc_gpu_failure *f)
{
	struct ptc_gpu_slot *slot = &r->c->slots[r->c->issued % PTC_GPU_SLOTS];
	CUstream last;
	int rc = finish_tiles(r, PTC_GPU_SLOTS - 1, f);

	if (rc)
		return rc;
	if (r->direction == PTC_GPU_IN)
		move_rows(p, t, PTC_GPU_IN, slot->bytes, r->host);
	rc = ptc_gpu_check(r->g, start_tile(r, p, t, slot, &last), f, "device %s: copy %" PRIu64 " bytes", r->g->uuid,
			   t->width * t->height * t->depth);
	if (rc == 0)
		rc = ptc_gpu_check(r->g, r->g->cu->cuEventRecord(slot->done, last), f, "device %s: record an event",
				   r->g->uuid);
	if (rc)
		return rc;
	slot->tile = *t;
	slot->part = *p;
	slot->direction = r->direction;
	slot->host = r->host;
	r->c->issued++;
	return 0;
}

/* After a failure: what the copy has begun ends and is forgotten. Tiles of the copy before are kept. */
static int give_up(struct ring_run *r, int rc, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_copier *c = r->c;

	rc = drain(r->g, c, rc, f);
	if (c->finished < r->first)
		c->issued = r->first;
	else
		c->finished = c->issued;
	return rc;
}

/* Returns with the last tiles under way. */
static int through_ring(struct ring_run *r, const struct ptc_gpu_part *parts, size_t nparts, struct ptc_gpu_failure *f)
{
	int rc = 0;

	for (size_t i = 0; i < nparts && rc == 0; i++) {
		struct cutter c = { .part = ptc_gpu_part_merged(parts[i]),
				    .tile_max = PTC_GPU_SLOT_BYTES,
				    .max_pitch = r->g->max_pitch };
		struct ptc_gpu_tile t;

		c.free = r->kernels && is_short(&c.part);

		while (rc == 0 && next_tile(&c, &t)) {
			rc = issue_tile(r, &c.part, &t, f);
			if (rc == 0 && r->c->issued - r->first > 1 && ptc_fault("gpu.copy.middle"))
				rc = ptc_gpu_fail(f, PTC_EIO, PTC_GPU_BLAME_REQUEST, "a test's failure");
		}
	}
	return rc;
}

/* Into pinned memory, to its end; short rows, where a kernel packs them, through the ring. */
static int straight(struct ring_run *r, const struct ptc_gpu_part *parts, size_t nparts, struct ptc_gpu_failure *f)
{
	struct ptc_gpu *g = r->g;
	CUstream link = r->c->link[r->direction];
	int rc = 0;

	for (size_t i = 0; i < nparts && rc == 0; i++) {
		struct cutter c = { .part = ptc_gpu_part_merged(parts[i]),
				    .tile_max = UINT64_MAX,
				    .max_pitch = g->max_pitch,
				    .other_strided = true };
		struct ptc_gpu_tile t;

		if (r->kernels && is_short(&c.part)) {
			rc = through_ring(r, &parts[i], 1, f);
			if (rc == 0) /* the next part may lie over it, and does not wait for slots */
				rc = finish_tiles(r, 0, f);
			continue;
		}
		while (rc == 0 && next_tile(&c, &t)) {
			uint64_t row = t.height > 1 || t.depth > 1 ? c.part.other_row : t.width;

			rc = ptc_gpu_check(g,
					   copy_tile(g, link, r->m, &c.part, &t, r->direction, r->host + t.other_at,
						     row, c.part.other_slice),
					   f, "device %s: copy %" PRIu64 " bytes", g->uuid,
					   t.width * t.height * t.depth);
		}
	}
	return rc ? rc : wait_for(g, link, 0, f);
}

/* Whether the host side lies in one page-locked piece. */
static bool in_piece(const struct ptc_gpu_host *host, const struct ptc_gpu_part *p)
{
	const uint64_t last =
		p->other_at + (p->depth - 1) * p->other_slice + (p->height - 1) * p->other_row + p->width - 1;

	return last < host->locked && p->other_at / host->step == last / host->step;
}

static int copy_one(struct ring_run *r, const struct ptc_gpu_host *host, const struct ptc_gpu_part *p,
		    struct ptc_gpu_failure *f)
{
	int rc;

	if (in_piece(host, p))
		return straight(r, p, 1, f);
	rc = through_ring(r, p, 1, f);
	return rc ? rc : finish_tiles(r, 0, f);
}

/* A box that crosses the end of a piece is copied row by row, and such a row in parts. */
static int in_pieces(struct ring_run *r, const struct ptc_gpu_host *host, const struct ptc_gpu_part *p,
		     struct ptc_gpu_failure *f)
{
	int rc = 0;

	if (p->other_at >= host->locked)
		return copy_one(r, host, p, f);
	for (uint64_t i = 0; i < p->depth * p->height && rc == 0; i++) {
		uint64_t slice = i / p->height, row = i % p->height, bytes;

		for (uint64_t at = 0; at < p->width && rc == 0; at += bytes) {
			uint64_t other = p->other_at + slice * p->other_slice + row * p->other_row + at;
			struct ptc_gpu_part one = { .device_at = p->device_at + slice * p->device_slice +
								 row * p->device_row + at,
						    .other_at = other,
						    .height = 1,
						    .depth = 1 };

			bytes = p->width - at;
			if (other < host->locked)
				bytes = PTC_MIN(bytes, PTC_MIN(host->step - other % host->step, host->locked - other));
			one.width = one.device_row = one.device_slice = one.other_row = one.other_slice = bytes;
			rc = copy_one(r, host, &one, f);
		}
	}
	return rc;
}

bool ptc_gpu_cuda_packs(const struct ptc_gpu_part *parts, size_t nparts)
{
	bool any = false;

	for (size_t i = 0; i < nparts && !any; i++) {
		struct ptc_gpu_part p = ptc_gpu_part_merged(parts[i]);

		any = is_short(&p);
	}
	return any;
}

static int copy_parts(struct ring_run *r, const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts,
		      size_t nparts, struct ptc_gpu_failure *f)
{
	int rc = 0;

	if (!host->locked)
		return through_ring(r, parts, nparts, f);
	for (size_t i = 0, n; i < nparts && rc == 0; i += n) {
		for (n = 0; i + n < nparts && in_piece(host, &parts[i + n]); n++)
			continue;
		rc = n ? straight(r, parts + i, n, f) : in_pieces(r, host, &parts[i], f);
		n += !n;
	}
	return rc;
}

int ptc_gpu_cuda_copy(struct ptc_gpu *g, unsigned copier, struct ptc_gpu_memory *m, enum ptc_gpu_direction direction,
		      const struct ptc_gpu_host *host, const struct ptc_gpu_part *parts, size_t nparts, bool kernels,
		      struct ptc_gpu_failure *f)
{
	struct ptc_gpu_copier *c = &g->copiers[copier];
	struct ring_run r = { .g = g,
			      .c = c,
			      .m = m,
			      .direction = direction,
			      .host = host->base,
			      .kernels = kernels,
			      .first = c->issued };
	int rc;

	ptc_assert(copier < g->ncopiers && c->nbegun < PTC_GPU_BEGUN_MAX);
	rc = copy_parts(&r, host, parts, nparts, f);
	if (rc)
		return give_up(&r, rc, f);
	c->begun[c->nbegun++] = c->issued;
	return 0;
}

int ptc_gpu_cuda_copied(struct ptc_gpu *g, unsigned copier, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_copier *c = &g->copiers[copier];
	uint64_t end = c->begun[0];
	int rc = c->failure.fault.status;

	ptc_assert(c->nbegun > 0);
	if (rc)
		*f = c->failure;
	while (rc == 0 && c->finished < end)
		rc = finish_tile(g, c, f);
	if (rc) {
		rc = drain(g, c, rc, f);
		c->finished = PTC_MAX(c->finished, end);
	}
	memmove(c->begun, c->begun + 1, --c->nbegun * sizeof *c->begun);
	c->failure = (struct ptc_gpu_failure){ .err = PTC_ERROR_INIT };
	return rc;
}

/* ---- within the device ---- */

#define WITHIN_TILE ((uint64_t)1 << 30) /* a row's length is bounded as its pitch is */

static CUresult copy_within_tile(struct ptc_gpu *g, CUdeviceptr to, CUdeviceptr from, const struct ptc_gpu_part *p,
				 const struct ptc_gpu_tile *t)
{
	bool rows = t->height > 1 || t->depth > 1;
	CUDA_MEMCPY3D c = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
			    .srcDevice = from + t->other_at,
			    .srcPitch = rows ? p->other_row : t->width,
			    .srcHeight = t->depth > 1 ? p->other_slice / p->other_row : t->height,
			    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			    .dstDevice = to + t->device_at,
			    .dstPitch = rows ? p->device_row : t->width,
			    .dstHeight = t->depth > 1 ? p->device_slice / p->device_row : t->height,
			    .WidthInBytes = t->width,
			    .Height = t->height,
			    .Depth = t->depth };

	return g->cu->cuMemcpy3DAsync(&c, g->stream);
}

/* Short rows: packed by one kernel, unpacked by the next. The stream keeps their order, so one slot's buffer does. */
static CUresult move_within_tile(struct ptc_gpu *g, CUdeviceptr to, CUdeviceptr from, const struct ptc_gpu_part *p,
				 const struct ptc_gpu_tile *t)
{
	struct ptc_gpu_part size = { .width = t->width,
				     .height = t->height,
				     .depth = t->depth,
				     .device_row = p->other_row,
				     .device_slice = p->other_slice };
	CUresult result =
		ptc_gpu_launch_move(g, g->stream, PTC_GPU_OUT, from + t->other_at, &size, &g->copiers[0].slots[0]);

	size.device_row = p->device_row;
	size.device_slice = p->device_slice;
	return result ? result
		      : ptc_gpu_launch_move(g, g->stream, PTC_GPU_IN, to + t->device_at, &size,
					    &g->copiers[0].slots[0]);
}

/* Maps the memory of another device, once for each. Then copies and kernels of g's stream read it as g's own. */
static int map_peer(struct ptc_gpu *g, const struct ptc_gpu_memory *from, struct ptc_gpu_failure *f)
{
	CUresult result;
	int can = 0, rc;

	for (unsigned i = 0; i < g->npeers; i++)
		if (g->peers[i] == from->context)
			return 0;
	if (from->context == g->context)
		return 0;
	rc = ptc_gpu_check(g, g->cu->cuDeviceCanAccessPeer(&can, g->device, from->device), f,
			   "device %s: ask whether it can read another device", g->uuid);
	if (rc)
		return rc;
	if (!can || g->npeers == PTC_GPU_PEERS_MAX)
		return ptc_gpu_fail(f, PTC_ENODEVICES, PTC_GPU_BLAME_REQUEST,
				    "device %s cannot read the memory of CUDA's device %d", g->uuid, from->device);
	result = g->cu->cuCtxEnablePeerAccess(from->context, 0);
	if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
		rc = ptc_gpu_check(g, result, f, "device %s: map the memory of CUDA's device %d", g->uuid,
				   from->device);
	if (rc == 0)
		g->peers[g->npeers++] = from->context;
	return rc;
}

int ptc_gpu_cuda_copy_within(struct ptc_gpu *g, struct ptc_gpu_memory *to, struct ptc_gpu_memory *from,
			     const struct ptc_gpu_part *parts, size_t nparts, struct ptc_gpu_failure *f)
{
	bool kernels;
	int rc = ptc_gpu_kernels_ready(g, &kernels, f);

	if (rc == 0)
		rc = map_peer(g, from, f);
	if (rc)
		return rc;

	for (size_t i = 0; i < nparts && rc == 0; i++) {
		struct cutter c = { .part = ptc_gpu_part_merged(parts[i]),
				    .max_pitch = g->max_pitch,
				    .other_strided = true };
		struct ptc_gpu_tile t;

		c.free = kernels && is_short(&c.part);
		c.tile_max = c.free ? PTC_GPU_SLOT_BYTES : WITHIN_TILE;
		while (rc == 0 && next_tile(&c, &t))
			rc = ptc_gpu_check(
				g, (c.free ? move_within_tile : copy_within_tile)(g, to->base, from->base, &c.part, &t),
				f, "device %s: copy %" PRIu64 " bytes on it", g->uuid, t.width * t.height * t.depth);
	}
	return wait_for(g, g->stream, rc, f);
}

int ptc_gpu_cuda_digest(struct ptc_gpu *g, struct ptc_gpu_memory *m, const struct ptc_gpu_part *parts, size_t nparts,
			uint64_t *ret_digest, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_copier *c = &g->copiers[0];
	struct ring_run r = { .g = g, .c = c, .m = m, .direction = PTC_GPU_OUT, .first = c->issued };
	bool kernels;
	int rc = ptc_gpu_kernels_ready(g, &kernels, f);

	if (rc)
		return rc;
	if (kernels)
		return ptc_gpu_launch_digest(g, m->base, parts, nparts, ret_digest, f);
	c->digest = 0;
	rc = through_ring(&r, parts, nparts, f);
	if (rc == 0)
		rc = finish_tiles(&r, 0, f);
	if (rc)
		return give_up(&r, rc, f);
	*ret_digest = c->digest;
	return 0;
}
