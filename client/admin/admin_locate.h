/* SPDX-License-Identifier: Apache-2.0 */
/* Where bytes of items lie on the daemon's own node, for a program that maps the store's file and reads there itself
 * (ptc-fuse). Not installed: the format (proto/direct_read.h) changes with the daemon.
 * Errors, threads and ownership: <ptc/admin.h>. */
#pragma once

#include <ptc/admin_state.h>

struct ptc_admin_piece { /* bytes [offset, offset + length) of an item, row-major; length > 0 */
	uint32_t item, ndim;
	int64_t shape[8]; /* of the item, the last dim in bytes */
	uint64_t offset, length;
};
struct ptc_admin_span {
	uint64_t at, bytes;       /* of the file */
	uint32_t chunk, reserved; /* the chunk that it lies in */
};
/* Bytes that were read are right if each block of them has its checksum (proto/direct_read.h), and if then, after an acquire
 * fence, the 8 bytes at use_at still equal `use`. */
struct ptc_admin_chunk {
	uint64_t at;
	uint64_t use_at, use;
	uint64_t sums[16];
};
struct ptc_admin_spans {
	struct ptc_admin_span *v; /* of all pieces, in order; ptc_admin_free it */
	size_t n;
	struct ptc_admin_chunk *chunks; /* ptc_admin_free it */
	size_t nchunks;
	uint64_t dev, ino; /* the file's. Before the call: of the one that the caller has open; 0: none */
	int fd;            /* the file, for reading only, the caller's; -1: the caller has it */
};
/* PTC_ENOTFOUND: some bytes are not there; PTC_ELIMIT: they are in too many pieces; PTC_ESTATE: they are not in memory. After
 * any code: read them as usual. Takes two seconds at most; a daemon that did not answer is not asked again for one. The call
 * holds nothing of what it found. */
int ptc_admin_locate(struct ptc_admin *a, const struct ptc_admin_export *e, const struct ptc_admin_piece *pieces,
		     size_t n, struct ptc_admin_spans *spans, struct ptc_error *err);
