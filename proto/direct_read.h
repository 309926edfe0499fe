/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about a job's bytes to a ptcd of the same machine, over a SOCK_SEQPACKET unix socket beside the control
 * socket. Three readers ask: ptc-fuse, the ptcd of another node on the machine, and clients that import. The reader
 * asks where bytes of items lie in the job's chunk file. The answer comes with a descriptor of that file, for reading
 * only, and the reader reads the bytes itself. Questions and answers take turns. Both ends are on one machine, so
 * numbers are in its byte order.
 *
 * Root, the user that ptcd runs as, and the job's owner may ask (SO_PEERCRED tells who asks); to others the job does
 * not exist. The file holds bytes of that job only (of any generation). Needs libc only. The daemon verifies nothing
 * for the answer. The reader has the right bytes if every block that it took bytes from matches its checksum
 * (base/number/digest.h, ptc_checksum), and if the 8 bytes at use_at are still `use` afterwards:
 * daemon/store/store_read.h, ptc_table_spans.
 *
 * Failure modes: a malformed message ends the connection; status is a code of base/status.h, 0 or less. Threads:
 * none. */
#pragma once

#include <fcntl.h>
#include <stdint.h>

/* Another socket beside the control socket, for calls as there, of mode 0600: root's. A user who connects to the one
 * for everybody in a loop fills the kernel's queue of that socket before ptcd can know who waits in it; with this one
 * he cannot even try. */
#define PTC_CONTROL_ROOT_SUFFIX ".root" /* of the control socket's path */

#define PTC_DIRECT_READ_SUFFIX       ".direct"   /* of the control socket's path */
#define PTC_DIRECT_READ_MAGIC        0x3244454cu /* "LED2": another layout of these structs gets another one */
#define PTC_DIRECT_READ_DIMS         8
#define PTC_DIRECT_READ_RANGES_MAX   256
#define PTC_DIRECT_READ_SPANS_MAX    2048
#define PTC_DIRECT_READ_CHUNKS_MAX   256
#define PTC_DIRECT_READ_BYTES_MAX    (16ull << 20) /* of one message's ranges */
/* A chunk's bytes follow each other in the file. A checksum is of this many of them, the last one of the rest. */
#define PTC_DIRECT_READ_CHUNK_BYTES  ((1u << 20) - 64)
#define PTC_DIRECT_READ_BLOCK_BYTES  (64u << 10)
#define PTC_DIRECT_READ_CHUNK_BLOCKS 16

struct ptc_direct_read_range { /* of an item, row-major */
	uint32_t item, ndim;
	int64_t shape[PTC_DIRECT_READ_DIMS]; /* the last dim in bytes */
	uint64_t offset, length;             /* length > 0 */
};
struct ptc_direct_read_request {
	uint32_t magic, nranges;
	char uuid[40]; /* of the job; NUL-terminated */
	uint64_t generation, snapshot;
	uint64_t dev, ino; /* of the file that the asker has; else a descriptor comes with the answer */
	struct ptc_direct_read_range ranges[];
};
struct ptc_direct_read_span {
	uint64_t at, bytes; /* of the file */
	uint32_t chunk, reserved;
};
struct ptc_direct_read_chunk {
	uint64_t at; /* of its first byte in the file */
	uint64_t use_at, use;
	uint64_t sums[PTC_DIRECT_READ_CHUNK_BLOCKS];
};
struct ptc_direct_read_reply {
	uint32_t magic;
	int32_t status;
	uint64_t dev, ino;
	uint32_t nspans, nchunks;
	struct ptc_direct_read_span
		spans[]; /* of all ranges, in order; struct ptc_direct_read_chunk chunks[nchunks] follow the last one */
};

/* ---- imports ---- */

/* A window: shared memory through which a client hands an import's bytes to the ptcd of its own node, so that they
 * cross no socket. The client asks over a connection of its own to the same socket. The answer has a descriptor of the
 * window and a key. From then on the connection belongs to the window. The client maps the window, seals it
 * (PTC_IMPORT_WINDOW_SEALS), and sends the key in the first message of an ImportData stream. Then it writes bytes into
 * the window and says over the connection where they are; ptcd answers each part once it has copied it, and the client
 * may write there again. At the end the client shuts the connection for writing, and half-closes the stream.
 *
 * The window is a memfd of ptcd's that can neither shrink nor grow. After the client's seal nobody can map it for
 * writing again, nor make holes in it. So no access of ptcd's can fail. The client can change the bytes at any time:
 * ptcd copies them once, and digests the copy.
 *
 * Failure modes: status is a code of base/status.h, 0 or less; an older ptcd ends the connection (send messages then).
 * If a part is wrong or cannot be written, the connection ends, and the stream says why. */
#define PTC_IMPORT_WINDOW_MAGIC 0x3157494cu /* "LIW1": another layout of these structs gets another one */
#define PTC_IMPORT_WINDOW_BYTES (2u << 20)
#define PTC_IMPORT_WINDOW_SLOT  (512u << 10) /* of one part: it stays in a processor's cache */
#define PTC_IMPORT_WINDOW_SLOTS (PTC_IMPORT_WINDOW_BYTES / PTC_IMPORT_WINDOW_SLOT)
#define PTC_IMPORT_WINDOW_KEY   16
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define PTC_IMPORT_WINDOW_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

struct ptc_import_window_request {
	uint32_t magic, reserved;
};
struct ptc_import_window_reply {
	uint32_t magic;
	int32_t status;
	uint64_t bytes; /* of the window */
	uint8_t key[PTC_IMPORT_WINDOW_KEY];
};
struct ptc_import_window_part { /* bytes [at, at + bytes) of the window go to `offset` of the item; bytes > 0 */
	uint32_t magic, item;
	uint64_t offset;
	uint32_t at, bytes;
};
struct ptc_import_window_taken { /* the oldest part that has had no answer */
	uint32_t magic, bytes;
};

/* ---- files that ptcd fills ---- */

/* A reader that makes a file of a job's bytes can have ptcd write into it (ReadInto of ptc.proto), so that the bytes
 * cross no socket between the two. Over a connection of its own to the same socket it sends the question twice: first
 * without a descriptor, for ptcd takes none before it knows who asks; then with one of the file. The second answer has
 * a key, which ReadInto names. From then on the connection belongs to the file. When the reader shuts it for writing,
 * ptcd takes no further ReadInto for the file, waits for those that run, closes its descriptor, and then the
 * connection. So once the reader has read the end of the connection, ptcd does not write any more.
 *
 * Root and the user that ptcd runs as may ask. The file must be theirs, and a regular file of a tmpfs, open for writing
 * but not for appending: writing into any other could make ptcd wait for a disk, or for somebody else's file system.
 * ptcd writes by pwrite, never past the end that the file has when the call begins.
 *
 * Failure modes: status is a code of base/status.h, 0 or less; an older ptcd ends the connection. Then the reader reads
 * the bytes, and writes them itself. */
#define PTC_FILL_MAGIC 0x3146464cu /* "LFF1": another layout of these structs gets another one */
#define PTC_FILL_KEY   16
#define PTC_FILL_BYTES (8u << 20) /* of all ranges of one ReadInto, at most */

struct ptc_fill_request {
	uint32_t magic, reserved;
};
struct ptc_fill_reply {
	uint32_t magic;
	int32_t status;
	uint8_t key[PTC_FILL_KEY];
};
