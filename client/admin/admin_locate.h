/* SPDX-License-Identifier: Apache-2.0 */
/* What ptc's own programs do with memory that they share with the daemon of their node. ptc-fuse asks where bytes of
 * items lie, maps the store's file and reads it itself. ptcctl reads an import's bytes straight into the window through
 * which it hands them over. This header is not installed, because the formats (proto/direct_read.h) change with the
 * daemon. Errors, threads and ownership: <ptc/admin.h>. */
#pragma once

#include <ptc/admin_state.h>

#define PTC_ADMIN_LOCATE_BYTES (16u << 20) /* most bytes of 256 pieces that follow each other */

struct ptc_admin_piece { /* bytes [offset, offset + length) of an item, row-major; length > 0 */
	uint32_t item, ndim;
	int64_t shape[8]; /* of the item, the last dim in bytes */
	uint64_t offset, length;
};
struct ptc_admin_span {
	uint64_t at, bytes;       /* of the file */
	uint32_t chunk, reserved; /* index of its chunk in `chunks` */
};
/* Bytes are right under two conditions. Each of their blocks has its checksum (proto/direct_read.h). After that, and
 * after an acquire fence, the 8 bytes at use_at still equal `use`. */
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
	uint64_t dev, ino; /* of the file. Before the call: of the file that the caller has open; 0: none */
	int fd;            /* of the file, for reading only, owned by the caller; -1: the caller has the file open */
};
/* PTC_ENOTFOUND: the node does not have some of the bytes. PTC_ELIMIT: the bytes are in too many pieces. PTC_ESTATE:
 * the bytes are not in memory. After each of these, read the bytes with ptc_admin_read. The call takes at most two
 * seconds. If a daemon does not answer, the next second's calls do not ask it. The call pins none of the bytes. */
int ptc_admin_locate(struct ptc_admin *a, const struct ptc_admin_export *e, const struct ptc_admin_piece *pieces,
		     size_t n, struct ptc_admin_spans *spans, struct ptc_error *err);

/* Nodes whose daemons run on the machine of the one that is asked. */
struct ptc_admin_near {
	const char *node;                    /* that answers */
	const char *config;                  /* of the import, or of the committed state */
	const char *ranks_json;              /* of the same: [{rank, node, device}] */
	char *const *nodes, *const *sockets; /* n near ones, without the node that answers, and their control sockets */
	size_t n;
};
/* import_id 0: the nodes of the job's committed state. self: only who answers is asked for. ptc_admin_near_done *ret.
 * PTC_EPEER: the daemon is on another machine. */
int ptc_admin_near_ask(struct ptc_admin *a, const char *job, uint64_t import_id, bool self,
		       struct ptc_admin_near **ret_near, struct ptc_error *err);
void ptc_admin_near_done(struct ptc_admin_near *near);
/* A handle for another daemon of this machine, with the time limits of `a`. PTC_EPERM: the socket is not the user's who
 * runs the daemon of `a`. */
int ptc_admin_near_open(struct ptc_admin *a, const char *socket, struct ptc_admin **ret_admin, struct ptc_error *err);

/* Room for the next bytes of a stream, at most *ret_len. Give it to ptc_admin_import_send as data, and ask again for
 * the bytes after them. Other data may be sent, too, but is copied. Blocks while the daemon is behind. */
int ptc_admin_import_room(struct ptc_admin_stream *s, void **ret_room, size_t *ret_len, struct ptc_error *err);

/* A file of the caller's into which the daemon of this node writes bytes of items. */
#define PTC_ADMIN_FILL_BYTES (8u << 20)
struct ptc_admin_fill;
/* fd: open for writing, on a tmpfs; borrowed. PTC_EPEER, PTC_EPERM, PTC_EINVAL, PTC_ELIMIT: the daemon is older, on
 * another node, or does not take the file. Takes at most two seconds, as close. */
int ptc_admin_fill_open(struct ptc_admin *a, int fd, struct ptc_admin_fill **ret_fill, struct ptc_error *err);
/* Has the ranges (none ranked, at most 8192, at most PTC_ADMIN_FILL_BYTES together) written one after the other, from
 * `at` on. ret_digests: of each range's bytes as they were written. If it fails with PTC_EPEER,
 * PTC_ETIMEOUT or PTC_ECANCELED, the daemon may still write. Any thread. */
int ptc_admin_fill(struct ptc_admin_fill *f, const char *job, const struct ptc_admin_export *e, uint64_t at,
		   const struct ptc_admin_range *ranges, size_t n, uint64_t *ret_digests, struct ptc_error *err);
/* Frees it in any case. 0: the daemon does not write any more. */
int ptc_admin_fill_close(struct ptc_admin_fill *f, struct ptc_error *err);
