/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ptcd and its ptc-copy. ptc-copy runs as the job's user and copies between the memory of the job's
 * ranks and memory that ptcd gives it. So the kernel checks each copy against the program that the rank's process runs
 * at that time. Copied bytes never go through a socket.
 *
 *   ptc-copy UID SOCKETS     SOCKETS descriptors from PTC_COPY_FD on, SOCK_SEQPACKET, one for each of its threads
 *
 * ptc-copy sends an answer on the first socket when it is ready, or when it cannot start. After that each socket
 * carries one request, then its answer, and so on. A request is a head, then spans of the rank's memory, then spans of
 * ptcd's memory. An answer is a struct ptc_copy_answer; if ptc-copy cannot start, a text follows it. ptc-copy ends when
 * its sockets are closed. ptcd and ptc-copy may be of two packages during an upgrade: neighbouring versions are
 * accepted, others are refused. */
#pragma once

#include "base/number/versions.h"

#include <stdint.h>

#define PTC_COPY_VERSION   PTC_VERSION_NUMBER(1u)
#define PTC_COPY_OLDEST    1u
#define PTC_COPY_FD        3
#define PTC_COPY_THREADS   16   /* as many as the agent copies with */
#define PTC_COPY_MAPS      8    /* of one process: the job's chunks to write and to read, and room to compare in */
#define PTC_COPY_SPANS_MAX 1024 /* on each side of a request; the kernel's bound for one call (IOV_MAX) */
#define PTC_COPY_TEXT_MAX  512

enum ptc_copy_op {
	PTC_COPY_MAP, /* makes map `map` of the first `bytes` bytes of the file in the message */
	PTC_COPY_UNMAP,
	PTC_COPY_READ,    /* from the rank's memory to ptcd's */
	PTC_COPY_WRITE,   /* from ptcd's memory to the rank's */
	PTC_COPY_COMPARE, /* compares the rank's memory with ptcd's: PTC_COPY_DIFFERS if a byte differs */
};
#define PTC_COPY_DIFFERS  INT32_MAX /* an answer's error that is no errno */
#define PTC_COPY_WRITABLE 1u        /* of a MAP: copies write to it */
#define PTC_COPY_FRESH    2u        /* of a READ: the pages of ptcd's memory are likely not to be mapped yet */
/* With FRESH: the file is on a tmpfs and has these pages. Then it is enough to map them as for a read, which takes less
 * than half the time: the kernel maps 16 at once, and, because nothing writes a tmpfs back, for writing too. */
#define PTC_COPY_THERE    4u

/* What ptcd knows of the pages that a READ writes. */
enum ptc_copy_pages {
	PTC_PAGES_MAPPED, /* ptc-copy has mapped them */
	PTC_PAGES_NEW,    /* likely not */
	PTC_PAGES_THERE,  /* likely not, but they are there (PTC_COPY_THERE) */
};

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
	uint64_t moved; /* bytes copied before the error */
};
