/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the image that the assembler took into this program. Failure modes: gpu_image.h. */
#include "daemon/gpu/kernels/gpu_image.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 20)

#ifdef PTC_GPU_FATBIN
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".global ptc_gpu_fatbin\n"
	"ptc_gpu_fatbin:\n"
	".incbin \"" PTC_GPU_FATBIN "\"\n"
	".byte 0\n"
	".popsection\n");
extern const char ptc_gpu_fatbin[] __attribute__((visibility("hidden")));
static const void *const embedded = ptc_gpu_fatbin;
#else
static const void *const embedded = NULL;
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const void *image;
static char why[512];

/* The image of a file, with a zero byte behind it, as PTX is text. */
static const void *read_image(const char *path)
{
	ptc_auto_fclose FILE *f = fopen(path, "re");
	char *bytes = f ? ptc_malloc(FILE_MAX) : NULL, *fitted;
	size_t n = bytes ? fread(bytes, 1, FILE_MAX, f) : 0;

	if (n == 0 || n == FILE_MAX) {
		snprintf(why, sizeof why, "PTC_GPU_KERNELS=%s: no such image of at most 64 MiB", path);
		ptc_free(bytes);
		return NULL;
	}
	bytes[n] = '\0';
	fitted = ptc_realloc(bytes, n + 1);
	return fitted ? fitted : bytes;
}

static void find(void)
{
	const char *other = getenv("PTC_GPU_KERNELS");

	if (other && strcmp(other, "off") == 0)
		snprintf(why, sizeof why, "PTC_GPU_KERNELS=off");
	else if (other && other[0])
		image = read_image(other);
	else if (embedded)
		image = embedded;
	else
		snprintf(why, sizeof why, "built without nvcc");
}

const void *ptc_gpu_image(const char **ret_why)
{
	pthread_once(&once, find);
	if (!image && ret_why)
		*ret_why = why;
	return image;
}
