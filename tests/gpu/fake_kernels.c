/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver: modules and kernels (fake_cuda.h). It has our kernels' own source, compiled as C, and does the work
 * of a launch thread by thread when its stream comes to it. Of an image it looks at the beginning alone: a fat binary,
 * or the text of FAKE_IMAGE where there is no nvcc. */
#include "tests/gpu/fake_cuda.h"

#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "daemon/gpu/kernels/gpu_kernels.cu"
#pragma GCC diagnostic pop

#define FATBIN_MAGIC 0xBA55ED50u

union parameters {
	struct ptc_gpu_pack pack;
	struct ptc_gpu_digest_run run;
	struct ptc_gpu_digest_rows rows;
};

struct CUfunc_st {
	const char *name;
	size_t size; /* of its parameters */
	CUresult (*check)(const union parameters *p);
	void (*thread)(const union parameters *p);
};

struct CUmod_st {
	struct CUmod_st *next;
};
static CUmodule modules;

struct fake_launch {
	CUfunction function;
	uint64_t threads;
	union parameters p;
};

/* ---- what each kernel may touch ---- */

static CUresult check_pack(const union parameters *p)
{
	const struct ptc_gpu_pack *k = &p->pack;
	uint64_t rows = k->units / k->width_units, width = (uint64_t)k->width_units * k->unit;
	uint64_t all = k->box | k->packed | width | k->row | k->slice;
	uint64_t span = (rows / k->height - 1) * k->slice + (uint64_t)(k->height - 1) * k->row + width;
	CUresult result;

	if (k->unit == 0 || k->unit > 16 || (k->unit & (k->unit - 1)) || all % k->unit || rows % k->height)
		return fake.dead = fake_wrong(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel's units of %u are not aligned",
					      k->unit);
	result = fake_device_check(k->box, span, "a kernel's box");
	return result ? result : fake_device_check(k->packed, (size_t)k->units * k->unit, "a kernel's buffer");
}

static CUresult check_run(const union parameters *p)
{
	CUresult result = fake_device_check(p->run.result, 8, "a digest's result");

	/* The words of both ends may reach beyond an allocation, which is whole pages on a device and here. */
	return result ? result : fake_device_check(p->run.words + 3, p->run.nwords * 4 - 6, "a digest's run");
}

static CUresult check_rows(const union parameters *p)
{
	const struct ptc_gpu_digest_rows *k = &p->rows;
	CUresult result = fake_device_check(k->result, 8, "a digest's result");

	if (!result)
		result = fake_device_check(k->table, 256 * sizeof(uint64_t), "a digest's table");
	return result ? result
		      : fake_device_check(k->box, (k->depth - 1) * k->slice + (k->height - 1) * k->row + k->width,
					  "a digest's rows");
}

static void do_pack(const union parameters *p)
{
	ptc_gpu_pack_1(p->pack);
}

static void do_unpack(const union parameters *p)
{
	ptc_gpu_unpack_1(p->pack);
}

static void do_run(const union parameters *p)
{
	ptc_gpu_digest_run_2(p->run);
}

static void do_rows(const union parameters *p)
{
	ptc_gpu_digest_rows_1(p->rows);
}

static struct CUfunc_st functions[] = {
	{ PTC_GPU_KERNEL_PACK, sizeof(struct ptc_gpu_pack), check_pack, do_pack },
	{ PTC_GPU_KERNEL_UNPACK, sizeof(struct ptc_gpu_pack), check_pack, do_unpack },
	{ PTC_GPU_KERNEL_DIGEST_RUN, sizeof(struct ptc_gpu_digest_run), check_run, do_run },
	{ PTC_GPU_KERNEL_DIGEST_ROWS, sizeof(struct ptc_gpu_digest_rows), check_rows, do_rows },
};

/* ---- modules ---- */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	uint32_t magic;

	ENTER(cuModuleLoadData, true);
	memcpy(&magic, image, sizeof magic);
	if (magic != FATBIN_MAGIC && strcmp(image, FAKE_IMAGE) != 0)
		LEAVE(CUDA_ERROR_INVALID_IMAGE);
	*module = calloc(1, sizeof **module);
	if (!*module)
		abort();
	(*module)->next = modules;
	modules = *module;
	fake.modules++;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuModuleUnload(CUmodule module)
{
	CUmodule *at = &modules;

	ENTER(cuModuleUnload, true);
	while (*at && *at != module)
		at = &(*at)->next;
	if (!*at)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_HANDLE, "cuModuleUnload of what is not loaded"));
	*at = module->next;
	free(module);
	fake.modules--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	ENTER(cuModuleGetFunction, true);
	for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
		if (strcmp(functions[i].name, name) == 0) {
			*function = &functions[i];
			LEAVE(CUDA_SUCCESS);
		}
	LEAVE(CUDA_ERROR_NOT_FOUND);
}

/* ---- launches ---- */

CUresult fake_launch_do(struct fake_launch *l)
{
	CUresult result = l->function->check(&l->p);

	kernel_at.threads = l->threads;
	for (kernel_at.thread = 0; kernel_at.thread < l->threads && !result; kernel_at.thread++)
		l->function->thread(&l->p);
	free(l);
	return result;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
			unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,
			void **extra)
{
	struct fake_launch *l;
	CUresult result;

	ENTER(cuLaunchKernel, true);
	if (!modules)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernel of an unloaded module"));
	if (!grid_x || !block_x || block_x > 1024 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel with a grid of %u times %u", grid_x,
				 block_x));
	l = calloc(1, sizeof *l);
	if (!l)
		abort();
	l->function = function;
	l->threads = (uint64_t)grid_x * block_x;
	memcpy(&l->p, parameters[0], function->size); /* the caller's are gone when the launch is done */
	result = function->check(&l->p);
	if (result == CUDA_SUCCESS)
		result = fake_stream_launch(stream, l);
	else
		free(l);
	LEAVE(result);
}
