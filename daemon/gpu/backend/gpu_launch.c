/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's backend: kernels (daemon/gpu/kernels).
 *
 * Happy path: the first request that has a use for them loads the module and takes device memory: a buffer for each
 * slot of the ring, a result, a table. Failure modes: where a device does not take the image or has no memory for the
 * buffers, that is said once and the device works without kernels. Every other failure is the request's. */
#include "base/check.h"
#include "base/log.h"
#include "base/number/digest.h"
#include "daemon/gpu/backend/gpu_internal.h"
#include "daemon/gpu/kernels/gpu_image.h"

#include <inttypes.h>
#include <string.h>

#define TABLE_AT      64 /* in the scratch memory, behind the result */
#define SCRATCH_BYTES (TABLE_AT + 256 * sizeof(uint64_t))
#define BLOCKS_MAX    2048u                /* enough for every device; threads go on with the next piece */
#define RUN_BYTES     ((uint64_t)64 << 10) /* from here on a contiguous digest is one run */
#define ROW_RUN_BYTES ((uint64_t)1 << 20)  /* from here on each row is */
#define SEGMENT_BYTES ((uint64_t)1024)     /* of a row, for one thread */

/* Whether the device can do without: it is not made for this image, or full. */
static bool can_do_without(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_INVALID_IMAGE:
	case CUDA_ERROR_NO_BINARY_FOR_GPU:
	case CUDA_ERROR_INVALID_PTX:
	case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
	case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
	case CUDA_ERROR_NOT_FOUND:
	case CUDA_ERROR_NOT_SUPPORTED:
		return true;
	default:
		return false;
	}
}

void ptc_gpu_kernels_done(struct ptc_gpu *g)
{
	struct ptc_gpu_kernels *k = &g->kernels;

	if (k->buffers)
		g->cu->cuMemFree(k->buffers);
	if (k->scratch)
		g->cu->cuMemFree(k->scratch);
	if (k->module)
		g->cu->cuModuleUnload(k->module);
	memset(k, 0, sizeof *k);
}

static CUresult load(struct ptc_gpu *g, const void *image)
{
	struct ptc_gpu_kernels *k = &g->kernels;
	const struct {
		CUfunction *function;
		const char *name;
	} all[] = { { &k->pack, PTC_GPU_KERNEL_PACK },
		    { &k->unpack, PTC_GPU_KERNEL_UNPACK },
		    { &k->digest_run, PTC_GPU_KERNEL_DIGEST_RUN },
		    { &k->digest_rows, PTC_GPU_KERNEL_DIGEST_ROWS } };
	CUresult result = g->cu->cuModuleLoadData(&k->module, image);
	int processors = 0;

	if (result) {
		k->module = NULL;
		return result;
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(all) && !result; i++)
		result = g->cu->cuModuleGetFunction(all[i].function, k->module, all[i].name);
	if (!result)
		result = g->cu->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->device);
	k->chunks = (uint64_t)PTC_MAX(processors, 1) * PTC_GPU_BLOCKS_BUSY * (PTC_GPU_BLOCK / PTC_GPU_LANES);
	k->chunks = PTC_MIN(k->chunks, PTC_GPU_CHUNKS_MAX);
	if (!result)
		result = g->cu->cuMemAlloc(&k->scratch, SCRATCH_BYTES);
	if (!result)
		result = g->cu->cuMemAlloc(&k->buffers, g->ncopiers * PTC_GPU_COPIER_BYTES);
	for (unsigned i = 0; i < g->ncopiers * PTC_GPU_SLOTS && !result; i++)
		g->copiers[i / PTC_GPU_SLOTS].slots[i % PTC_GPU_SLOTS].buffer = k->buffers + i * PTC_GPU_SLOT_BYTES;
	return result;
}

/* The digests of single bytes; by the ring's first slot, as that is pinned. */
static CUresult write_table(struct ptc_gpu *g)
{
	uint64_t *table = (uint64_t *)(void *)g->copiers[0].slots[0].bytes;
	CUresult result;

	for (unsigned i = 0; i < 256; i++) {
		unsigned char byte = (unsigned char)i;

		table[i] = ptc_digest_run(&byte, 1);
	}
	result = g->cu->cuMemcpyHtoDAsync(g->kernels.scratch + TABLE_AT, table, 256 * sizeof *table, g->stream);
	return result ? result : g->cu->cuStreamSynchronize(g->stream);
}

int ptc_gpu_kernels_ready(struct ptc_gpu *g, bool *ret_usable, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_kernels *k = &g->kernels;
	const char *why = "";
	const void *image = ptc_gpu_image(&why);
	struct ptc_error err = PTC_ERROR_INIT;
	CUresult result;

	*ret_usable = image && k->state == PTC_GPU_KERNELS_LOADED;
	if (!image || k->state != PTC_GPU_KERNELS_UNTRIED)
		return 0;
	result = load(g, image);
	if (!result)
		result = write_table(g);
	if (!result) {
		k->state = PTC_GPU_KERNELS_LOADED;
		*ret_usable = true;
		return 0;
	}
	if (!can_do_without(result)) {
		int rc = ptc_gpu_check(g, result, f, "device %s: load kernels", g->uuid);

		ptc_gpu_kernels_done(g); /* the next request tries again */
		return rc;
	}
	ptc_cuda_check(g->cu, result, NULL, &err, "device %s works without kernels: load them", g->uuid);
	ptc_log(PTC_LOG_WARN, "gpu", "%s", err.text);
	ptc_gpu_kernels_done(g);
	k->state = PTC_GPU_KERNELS_REFUSED;
	return 0;
}

static CUresult launch(struct ptc_gpu *g, CUstream stream, CUfunction function, uint64_t threads, void *parameters)
{
	uint64_t blocks = (threads + PTC_GPU_BLOCK - 1) / PTC_GPU_BLOCK;
	void *all[] = { parameters };

	return g->cu->cuLaunchKernel(function, (unsigned)PTC_MIN(blocks, BLOCKS_MAX), 1, 1, PTC_GPU_BLOCK, 1, 1, 0,
				     stream, all, NULL);
}

/* ---- boxes ---- */

CUresult ptc_gpu_launch_move(struct ptc_gpu *g, CUstream stream, enum ptc_gpu_direction direction, CUdeviceptr box,
			     const struct ptc_gpu_part *size, const struct ptc_gpu_slot *slot)
{
	struct ptc_gpu_pack p = { .box = box,
				  .packed = slot->buffer,
				  .row = size->device_row,
				  .slice = size->depth > 1 ? size->device_slice : 0,
				  .height = (uint32_t)size->height };
	uint64_t all = p.box | p.packed | size->width | p.row | p.slice;

	p.unit = all % 16 == 0 ? 16 : (uint32_t)(all & (0 - all));
	p.width_units = (uint32_t)(size->width / p.unit);
	p.units = (uint32_t)(size->width * size->height * size->depth / p.unit);
	return launch(g, stream, direction == PTC_GPU_OUT ? g->kernels.pack : g->kernels.unpack, p.units, &p);
}

/* ---- digests ---- */

/* first * base^i */
static void write_powers(uint64_t *powers, size_t n, uint64_t first, uint64_t base)
{
	for (size_t i = 0; i < n; i++, first = ptc_digest_mul(first, base))
		powers[i] = first;
}

/* A run of `bytes` at `at`, with `after` bytes of its tensor behind it. */
static CUresult launch_run(struct ptc_gpu *g, CUdeviceptr at, uint64_t bytes, uint64_t after)
{
	uint64_t end = at + bytes, pad = (0 - end) & 3, block = PTC_GPU_ROWS * PTC_GPU_LANES, blocks, chunk, factor;
	struct ptc_gpu_digest_run p = { .words = at & ~(CUdeviceptr)3,
					.result = g->kernels.scratch,
					.first_mask = UINT32_MAX << (8 * (at & 3)),
					.last_mask = UINT32_MAX >> (8 * pad) };

	p.nwords = (end + pad - p.words) / 4;
	blocks = (p.nwords + block - 1) / block;
	p.blocks = (blocks + g->kernels.chunks - 1) / g->kernels.chunks;
	p.chunks = (blocks + p.blocks - 1) / p.blocks;
	chunk = ptc_digest_xpow(4 * block * p.blocks);
	/* x^64 of the digest's definition; the padding and a block are taken back by their inverse, as x^(2^64 - 1)
	 * is 1. */
	factor = ptc_digest_mul(ptc_digest_mul(ptc_digest_xpow(8), ptc_digest_xpow(after)),
				ptc_digest_xpow(UINT64_MAX - pad - 4 * block));
	write_powers(p.lane_low, PTC_ARRAY_LEN(p.lane_low), 1, ptc_digest_xpow(4));
	write_powers(p.lane_high, PTC_ARRAY_LEN(p.lane_high), 1, ptc_digest_xpow(4 * 16));
	write_powers(p.chunk_low, PTC_ARRAY_LEN(p.chunk_low), 1, chunk);
	chunk = ptc_digest_mul(p.chunk_low[15], chunk);
	write_powers(p.chunk_mid, PTC_ARRAY_LEN(p.chunk_mid), 1, chunk);
	write_powers(p.chunk_high, PTC_ARRAY_LEN(p.chunk_high), factor, ptc_digest_mul(p.chunk_mid[15], chunk));
	return launch(g, g->stream, g->kernels.digest_run, p.chunks * PTC_GPU_LANES, &p);
}

static CUresult launch_rows(struct ptc_gpu *g, CUdeviceptr box, const struct ptc_gpu_part *size)
{
	struct ptc_gpu_digest_rows p = { .box = box,
					 .row = size->device_row,
					 .slice = size->device_slice,
					 .other_row = size->other_row,
					 .other_slice = size->other_slice,
					 .width = size->width,
					 .height = size->height,
					 .depth = size->depth,
					 .after = size->other_at,
					 .segments = (size->width + SEGMENT_BYTES - 1) / SEGMENT_BYTES,
					 .segment_bytes = SEGMENT_BYTES,
					 .group = PTC_MAX(SEGMENT_BYTES / size->width, 1),
					 .result = g->kernels.scratch,
					 .table = g->kernels.scratch + TABLE_AT,
					 .row_power = ptc_digest_xpow(size->other_row) };
	uint64_t pieces = p.segments > 1 ? p.height * p.segments : (p.height + p.group - 1) / p.group;

	for (unsigned i = 0; i < 64; i++)
		p.powers[i] = i ? ptc_digest_mul(p.powers[i - 1], p.powers[i - 1]) : ptc_digest_xpow(1);
	return launch(g, g->stream, g->kernels.digest_rows, pieces * p.depth, &p);
}

struct ptc_gpu_part ptc_gpu_part_merged(struct ptc_gpu_part p)
{
	if (p.height > 1 && p.device_row == p.width && p.other_row == p.width) {
		p.width *= p.height;
		p.height = 1;
	}
	if (p.height == 1 && p.depth > 1) {
		p.height = p.depth;
		p.depth = 1;
		p.device_row = p.device_slice;
		p.other_row = p.other_slice;
		return ptc_gpu_part_merged(p);
	}
	return p;
}

static CUresult launch_digest(struct ptc_gpu *g, CUdeviceptr base, const struct ptc_gpu_part *part)
{
	struct ptc_gpu_part p = ptc_gpu_part_merged(*part);
	CUresult result = CUDA_SUCCESS;

	if (p.width < (p.height * p.depth > 1 ? ROW_RUN_BYTES : RUN_BYTES))
		return launch_rows(g, base + p.device_at, &p);
	for (uint64_t z = 0; z < p.depth && !result; z++)
		for (uint64_t y = 0; y < p.height && !result; y++)
			result = launch_run(g, base + p.device_at + z * p.device_slice + y * p.device_row, p.width,
					    p.other_at + (p.depth - 1 - z) * p.other_slice +
						    (p.height - 1 - y) * p.other_row);
	return result;
}

int ptc_gpu_launch_digest(struct ptc_gpu *g, CUdeviceptr base, const struct ptc_gpu_part *parts, size_t nparts,
			  uint64_t *ret_digest, struct ptc_gpu_failure *f)
{
	uint64_t *digest = (uint64_t *)(void *)g->copiers[0].slots[0].bytes;
	CUresult result = g->cu->cuMemsetD8Async(g->kernels.scratch, 0, sizeof *digest, g->stream);
	CUresult waited;
	int rc;

	for (size_t i = 0; i < nparts && !result; i++)
		result = launch_digest(g, base, &parts[i]);
	if (!result)
		result = g->cu->cuMemcpyDtoHAsync(digest, g->kernels.scratch, sizeof *digest, g->stream);
	waited = g->cu->cuStreamSynchronize(g->stream);
	rc = ptc_gpu_check(g, result ? result : waited, f, "device %s: digest", g->uuid);
	if (waited)
		f->fault.sticky = true; /* the slot may still be written */
	if (rc == 0)
		*ret_digest = *digest;
	return rc;
}
