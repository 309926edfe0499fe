/* SPDX-License-Identifier: Apache-2.0 */
/* The shares into which memory.ceiling is divided. They are one sum, made from the configuration alone:
 *
 *   ceiling = staging + work + transport + etcd + tables + chunks
 *
 * Chunks get what is left. docs/memory.md says what each share covers, what
 * enforces it, and how it was measured. Pure; thread-safe. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct ptc_memory {
	uint64_t ceiling;   /* memory.ceiling: all of the below */
	uint64_t staging;   /* memory.staging: tickets of transfers */
	uint64_t work;      /* memory.work: the program, its threads, specs, layouts, plans, the heap's slack */
	uint64_t transport; /* what gRPC buffers besides what has a ticket */
	uint64_t etcd;      /* the child of coordinator: local, else 0 */
	uint64_t tables;    /* page tables of the store's maps, LMDB's dirty pages, checksums */
	uint64_t chunks;    /* the rest: the store's ceiling */
};

#define PTC_MEMORY_WORK_MIN   (32ull << 20)
#define PTC_MEMORY_TRANSPORT  (64ull << 20)
#define PTC_MEMORY_ETCD       (128ull << 20)
#define PTC_MEMORY_TABLES     (4ull << 20) /* and a 256th of the ceiling */
#define PTC_MEMORY_CHUNKS_MIN (64ull << 20)

/* PTC_EINVAL: too small to be useful; the text names the least ceiling. *ret_memory is set in any case. */
int ptc_memory_split(uint64_t ceiling, uint64_t staging, uint64_t work, bool local_etcd, struct ptc_memory *ret_memory,
		     struct ptc_error *err);
/* What ptc_alloc_limit_set and ptc_rpc_memory_limit_set take. */
uint64_t ptc_memory_heap(const struct ptc_memory *m);
uint64_t ptc_memory_wire(const struct ptc_memory *m);
/* {"ceiling_bytes":…, "chunks_bytes":…, …}; out of memory shows in b. */
void ptc_memory_json(const struct ptc_memory *m, struct ptc_buf *b);
/* The sum as comment lines of a YAML file. */
void ptc_memory_comment(const struct ptc_memory *m, struct ptc_buf *b);
