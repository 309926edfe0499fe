/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ptcd and its ptc-gpu: SOCK_SEQPACKET, one socket, each message one packet.
 *
 *   ptc-gpu --serve --pinned BYTES [--copiers N]     the socket is descriptor PTC_GPU_FD; ptc-gpu ends when the socket
 *                                                    is closed
 *
 * ptc-gpu sends an answer with id 0 when it is ready. A request is a head and then its parts; descriptors come along.
 * Every request gets one answer. Answers of one device come in the order of its requests, except that copies in
 * the same direction that run at once are answered in any order among themselves. Answers of different devices come in
 * any order. Copied bytes never go through the socket. ptc-gpu reads at most PTC_GPU_REQUESTS_MAX requests ahead; a
 * further one waits in the socket.
 *
 *   MAP_HOST    Makes a host map of `bytes` bytes of the file in the message. With PTC_GPU_PIN it is pinned for the
 *               device `bind.uuid`. If the file may only be read, copies can only read from the map. -> host
 *   LOCK        host, bind.uuid, bytes: page-locks the next `bytes` of a host map for that device, the same number each
 *               time (at the end: what is left). Other requests of the device are served between two such steps.
 *               -> value: bytes that are page-locked now
 *   UNMAP_HOST  host. Refused while a request uses the map. A map that was page-locked in steps is given back in steps,
 *               and other requests of the device are served in between.
 *   BIND        bind: maps a rank's allocation, or counts one more user of a mapped one. -> memory; missing handles.
 *               VMM with process_start 0: the rank's process has ended, and the handles keep the memory. `buffer` is
 *               then a number that ptcd chose.
 *   HANDLES     memory: the next descriptors of a VMM allocation, at most PTC_GPU_FDS_MAX. -> missing handles
 *   COPY_OUT    memory, host, parts. With PTC_GPU_GUARD the word at guard_at of guard_host must have guard_value before
 *               and after the copy.
 *   COPY_IN     memory, host, parts
 *   DIGEST      memory, parts. -> value
 *   CLOSE       memory: one user less. If that was the last, the answer comes once the memory is unmapped, so the rank
 *               may free it.
 *   KEEP        bind.uuid, bytes: memory of ptc-gpu's own on that device, until it is closed. Refused without kernels;
 *               with PTC_GPU_BESIDE refused if less than a sixteenth of the device would stay free. -> memory
 *   COPY_WITHIN memory, host, parts: copies to `memory`. The member `host` has the number of the source: memory that is
 *               on the same device, or was made by KEEP on another one. In a part, device_* is the side of
 *               `memory`. PTC_ENODEVICES: one device cannot map the other's memory.
 *   SHADOW      As COPY_WITHIN, and with PTC_GPU_GUARD the word has guard_value before and after the copy.
 *   STATS       -> value: mapped bytes; more: pinned bytes; count: allocations
 *
 * ptcd and ptc-gpu may be of two packages during an upgrade, so neighbouring versions are accepted. What an older
 * ptc-gpu does not know is not asked of it (PTC_GPU_SINCE_2), so its refusals mean what they say. Numbers from the
 * socket are checked before use. */
#pragma once

#include "base/number/versions.h"
#include "daemon/gpu/backend/gpu_ops.h"

#define PTC_GPU_VERSION      PTC_VERSION_NUMBER(2u)
#define PTC_GPU_OLDEST       1u
#define PTC_GPU_SINCE_2      2u /* SHADOW, LOCK; COPY_WITHIN from another device */
#define PTC_GPU_FD           3
#define PTC_GPU_REQUESTS_MAX 256  /* queued for a device */
#define PTC_GPU_PARTS_MAX    512  /* 36 KiB: well below a socket's buffer */
#define PTC_GPU_HOSTS_MAX    1024 /* two of each operation, and the page of each rank that it copies from */
#define PTC_GPU_MEMORY_MAX   4096 /* allocations mapped on a device */
#define PTC_GPU_ATTACHED_MAX 32   /* devices */
#define PTC_GPU_TEXT_MAX     512
#define PTC_GPU_PAGE_BYTES   4096 /* LOCK goes by multiples */

enum ptc_gpu_op {
	PTC_GPU_MAP_HOST = 1,
	PTC_GPU_UNMAP_HOST,
	PTC_GPU_BIND,
	PTC_GPU_HANDLES,
	PTC_GPU_COPY_OUT,
	PTC_GPU_COPY_IN,
	PTC_GPU_DIGEST,
	PTC_GPU_CLOSE,
	PTC_GPU_STATS = 10, /* 9 closed the memory of a process; nobody asked for it */
	PTC_GPU_KEEP,
	PTC_GPU_COPY_WITHIN,
	PTC_GPU_SHADOW,
	PTC_GPU_LOCK,
};

#define PTC_GPU_PIN    1u
#define PTC_GPU_GUARD  2u
#define PTC_GPU_BESIDE 4u /* of KEEP: a trainer goes on beside it */

struct ptc_gpu_head {
	uint32_t version, op;
	uint64_t id; /* the caller's, not 0 */
	uint32_t flags, nparts;
	uint32_t memory, host; /* numbers from answers */
	uint64_t bytes;
	uint64_t guard_at, guard_value; /* 8 bytes, aligned */
	uint32_t guard_host, reserved;
	struct ptc_gpu_export bind;
};

struct ptc_gpu_request {
	struct ptc_gpu_head head;
	struct ptc_gpu_part parts[PTC_GPU_PARTS_MAX];
};

struct ptc_gpu_answer {
	uint32_t version;
	int32_t status; /* enum ptc_status */
	uint64_t id;
	uint32_t blame;  /* enum ptc_gpu_blame */
	uint32_t sticky; /* ptc-gpu is of no more use: replace it */
	uint32_t ref;    /* a host map or an allocation */
	uint32_t count;
	uint64_t value, more;
	char text[PTC_GPU_TEXT_MAX];
};

/* Receives one message of at most max bytes and its descriptors. Returns its length; 0: the other end has closed;
 * negative: PTC_EPEER, also for one that was cut short. Descriptors are close-on-exec and the caller's. */
long ptc_gpu_receive(int socket, void *ret, size_t max, int ret_fds[PTC_GPU_FDS_MAX], unsigned *ret_nfds);
/* Sends one message: a head, and a body of body_size bytes or none. PTC_EPEER when the other end is gone. */
int ptc_gpu_send(int socket, const void *head, size_t head_size, const void *body, size_t body_size, const int *fds,
		 unsigned nfds);
/* How many copies of a device run at once: half of the processors, as ranks and ptcd need some too, and 2 to
 * PTC_GPU_COPIERS_MAX. Two even where there is one processor: then the link works while one of them moves bytes. */
unsigned ptc_gpu_copiers(void);
/* Whether a request of `size` bytes with nfds descriptors is well-formed by itself. */
int ptc_gpu_request_check(const struct ptc_gpu_request *q, size_t size, unsigned nfds, struct ptc_error *err);
/* Whether a box lies in device memory of device_bytes and, if host_bytes is not UINT64_MAX, in host memory of that
 * size. */
int ptc_gpu_part_check(const struct ptc_gpu_part *p, uint64_t device_bytes, uint64_t host_bytes, struct ptc_error *err);
