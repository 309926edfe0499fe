/* SPDX-License-Identifier: Apache-2.0 */
/* What ptcd and its ptc-copy say to each other. ptc-copy copies between the memory of a job's ranks and memory that ptcd has given
 * it, as the job's user: so the kernel checks each copy against whatever program the rank's process is by then. Bytes that are copied
 * never go through a socket.
 *
 *   ptc-copy UID SOCKETS     SOCKETS descriptors from PTC_COPY_FD on, SOCK_SEQPACKET, one for each of its threads
 *
 * It sends an answer on the first socket when it is ready, or with why it cannot be. After that each socket carries one request, then its answer. A
 * request is a head, then spans of the rank's memory, then spans of ours. An answer is a struct ptc_copy_answer and, where it could
 * not begin at all, a text. It ends when its sockets are closed. They may be of two packages while one is
 * replaced by the other: versions next to each other are taken, others refused. */
#pragma once

#include "base/number/versions.h"

#include <stdint.h>

#define PTC_COPY_VERSION   PTC_VERSION_NUMBER(1u)
#define PTC_COPY_OLDEST    1u
#define PTC_COPY_FD        3
#define PTC_COPY_THREADS   16 /* the agent copies with as many */
#define PTC_COPY_MAPS      8 /* of one process: the job's chunks to write and to read, and what operations compare in */
#define PTC_COPY_SPANS_MAX 1024 /* on each side of a request; the kernel's bound for one call (IOV_MAX) */
#define PTC_COPY_TEXT_MAX  512

enum ptc_copy_op {
	PTC_COPY_MAP, /* the file that comes along becomes map `map`, `bytes` of it */
	PTC_COPY_UNMAP,
	PTC_COPY_READ, /* out of the rank */
	PTC_COPY_WRITE,
	PTC_COPY_COMPARE, /* the rank's with ours: PTC_COPY_DIFFERS if any byte is another one */
};
#define PTC_COPY_DIFFERS  INT32_MAX /* an answer's error that is no errno */
#define PTC_COPY_WRITABLE 1u        /* of a MAP: it is written to */
#define PTC_COPY_FRESH    2u        /* of a READ: pages of ours are likely not to be mapped yet */

struct ptc_copy_head {
	uint32_t version, op, map, flags;
	uint64_t bytes; /* of a MAP */
	int32_t pid;
	uint32_t nthere, nhere;
	uint32_t reserved;
};
struct ptc_copy_span {
	uint64_t at, bytes; /* an address in the rank; an offset in the map */
};
struct ptc_copy_request {
	struct ptc_copy_head head;
	struct ptc_copy_span spans[2 * PTC_COPY_SPANS_MAX]; /* there, then here; equal sums */
};
struct ptc_copy_answer {
	uint32_t version;
	int32_t error;  /* errno; 0: done */
	uint64_t moved; /* bytes copied before it */
};
