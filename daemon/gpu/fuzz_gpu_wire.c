/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a byte that says how many descriptors come along, then a request. Each box of a request that is
 * accepted is checked against random memory sizes, and an accepted one again by wider arithmetic: no byte of it lies
 * outside. */
#include "base/check.h"
#include "daemon/gpu/gpu_wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

typedef unsigned __int128 wide;

static void inside(uint64_t at, const struct ptc_gpu_part *p, uint64_t row, uint64_t slice, uint64_t bytes)
{
	wide end = (wide)at + (wide)(p->depth - 1) * slice + (wide)(p->height - 1) * row + p->width;

	ptc_require(end <= bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct ptc_gpu_request q;
	const struct ptc_gpu_head *h = &q.head;
	struct ptc_error err = PTC_ERROR_INIT;

	if (len < 1 || len - 1 > sizeof q)
		return 0;
	memset(&q, 0, sizeof q);
	memcpy(&q, data + 1, len - 1);
	if (ptc_gpu_request_check(&q, len - 1, data[0] % (PTC_GPU_FDS_MAX + 1), &err)) {
		ptc_require(err.code && err.text[0]);
		return 0;
	}
	ptc_require(h->op != PTC_GPU_BIND || memchr(h->bind.uuid, '\0', sizeof h->bind.uuid));
	for (uint32_t i = 0; i < h->nparts; i++) {
		const struct ptc_gpu_part *p = &q.parts[i];
		uint64_t device = h->bytes, other = i % 2 ? UINT64_MAX : h->guard_at;

		if (ptc_gpu_part_check(p, device, other, NULL))
			continue;
		inside(p->device_at, p, p->device_row, p->device_slice, device);
		inside(p->other_at, p, p->other_row, p->other_slice, other);
		ptc_require(p->height == 1 || p->device_row >= p->width);
	}
	return 0;
}
