/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: spans get places in the order of their addresses; a search finds them again. Failure modes:
 * device_shadow.h. */
#include "daemon/workers/device/device_shadow.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 256 /* of a span, as the driver aligns allocations */

static int by_address(const void *pa, const void *pb)
{
	const struct ptc_device_shadow *a = pa, *b = pb;

	if (a->pid != b->pid)
		return a->pid < b->pid ? -1 : 1;
	return a->address < b->address ? -1 : a->address > b->address;
}

int ptc_device_shadows_add(struct ptc_device_shadows *s, pid_t pid, const char *uuid,
			   const struct ptc_device_span *spans, size_t n, uint64_t *ret_bytes, struct ptc_error *err)
{
	struct ptc_device_memory *memory = ptc_reallocarray(s->memory, s->nmemory + 1, sizeof *memory);
	struct ptc_device_shadow *v;

	*ret_bytes = 0;
	if (!memory)
		return ptc_nomem(err);
	s->memory = memory;
	memory[s->nmemory++] = (struct ptc_device_memory){ 0 };
	v = ptc_reallocarray(s->v, s->n + n, sizeof *v);
	if (!v)
		return ptc_nomem(err);
	s->v = v;
	for (size_t i = 0; i < n; i++) {
		if (strcmp(spans[i].range->uuid, uuid) != 0)
			continue;
		v[s->n++] =
			(struct ptc_device_shadow){ pid, spans[i].address, spans[i].bytes, *ret_bytes, s->nmemory - 1 };
		*ret_bytes = (*ret_bytes + spans[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
	}
	if (s->n)
		qsort(s->v, s->n, sizeof *s->v, by_address);
	return 0;
}

const struct ptc_device_shadow *ptc_device_shadow_at(const struct ptc_device_shadows *s, pid_t pid, uint64_t address,
						     uint64_t bytes)
{
	const struct ptc_device_shadow key = { .pid = pid, .address = address }, *x;
	size_t low = 0, high = s->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (by_address(&s->v[mid], &key) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	x = low ? &s->v[low - 1] : NULL;
	return x && x->pid == pid && address - x->address <= x->bytes && bytes <= x->bytes - (address - x->address)
		       ? x
		       : NULL;
}
