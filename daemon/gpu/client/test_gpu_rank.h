/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer for tests: a process that owns memory of the fake driver's devices. The memory is filled with test_gpu_byte
 * of a given seed, so both sides know every byte. */
#pragma once

#include "daemon/gpu/cuda/gpu_export.h"

#include <sys/types.h>

enum test_rank_op {
	RANK_ALLOC,  /* kind, bytes, value: seed. -> address */
	RANK_EXPORT, /* address, bytes -> e */
	RANK_FDS,    /* address, e, first, count -> descriptors */
	RANK_FREE,   /* address */
	RANK_CHECK,  /* address, bytes, value: seed; rc 1: it differs */
	RANK_PAGE,   /* makes its shared page -> one descriptor */
	RANK_MARK,   /* value: into the page, in stream order */
	RANK_STEP,   /* the device does one piece of work */
};

enum test_rank_kind { RANK_PLAIN, RANK_VMM, RANK_POOL };

struct test_rank_order {
	enum test_rank_op op;
	enum test_rank_kind kind;
	uint64_t address, bytes, handle_bytes, value, first;
	unsigned count;
	struct ptc_gpu_export e;
};

struct test_rank_reply {
	int rc;
	uint64_t address;
	struct ptc_gpu_export e;
	char text[256];
};

static inline unsigned char test_gpu_byte(uint64_t seed, uint64_t at)
{
	return (unsigned char)((at * 2654435761u + seed * 40503u) >> 11);
}

/* The rank's main function: serves orders from descriptor 3 until it is closed. */
int test_rank_main(int device);
