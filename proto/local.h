/* SPDX-License-Identifier: Apache-2.0 */
/* What a training process (libptc) and its node's ptcd say to each other: messages over a SOCK_SEQPACKET unix socket,
 * and one page of shared memory. Both ends are of one machine, so numbers are in its byte order. Needs libc only. Here:
 * limits, types of messages, frames and connections. local_page.h: the page; local_messages.h: messages; local_rules.h:
 * what may be declared.
 *
 * A message is one or more frames; each is a header and at most PTC_LOCAL_FRAME_MAX - sizeof header bytes; all but
 * the last carry PTC_LOCAL_MORE. A file descriptor travels with the first frame. Fields are appended, never
 * changed: a decoder ignores what follows what it knows, and either end passes over types it does not know.
 *
 * Versions: HELLO says which protocols the rank speaks, WELCOME names the one that is used: the highest of both ends. A
 * rank lives through upgrades of its ptcd, so ptcd speaks PTC_LOCAL_OLDEST as well, and negotiates anew on every
 * connection.
 *
 *   rank                              ptcd
 *   HELLO (page, when it has one)  ->
 *                                  <- WELCOME (page, when it had none) | REFUSED
 *   NEXT                           ->                                            waits
 *                                  <- GENERATION | EXIT
 *   RENDEZVOUS_PUT, .._GET         -> <- RENDEZVOUS_REPLY                        builds
 *   TENSOR.., DEVICE.., DECLARED   -> <- STAGING (copy: fast)                    waits to be restored
 *                                  <- FILL (file).. and FILLED..
 *                                  <- BLOB.., CURSOR.., RESTORED | DECLINED
 *   [BLOB.., CURSOR..,] STOPPED    ->                                            waits at a boundary
 *                                  <- GO | FINISHED | ENDED
 *   [LEAVES                        ->                                            waits for the page's `leaving`]
 *   [KEEPS with a memfd            ->                                            once it survives (ptc_survive)]
 *   BYE                            ->
 *
 * ENDED may come whenever the rank has a generation. After a new connection the rank says everything again that still
 * holds: HELLO with its generation, TENSOR.., DECLARED, BLOB.., CURSOR.., STOPPED or NEXT, the question it waits on.
 *
 * Failure modes: every decoder takes any bytes and answers false for what is not a message. Threads: none of its own.
 */
#pragma once

#include "base/number/versions.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define PTC_LOCAL_MAGIC               0x4c435450u /* "PTCL" */
#define PTC_LOCAL_PROTOCOL            PTC_VERSION_NUMBER(1u)
#define PTC_LOCAL_OLDEST              1u
#define PTC_LOCAL_FRAME_MAX           (64u << 10)
#define PTC_LOCAL_MESSAGE_MAX         (512u << 10) /* a blob and its name; a tensor of PTC_LOCAL_BOXES_MAX boxes */
#define PTC_LOCAL_DIMS                8
#define PTC_LOCAL_BOXES_MAX           1024 /* of one tensor on one rank; ZeRO needs 2 * dims - 1, FSDP over TP tp */
#define PTC_LOCAL_TENSORS_MAX         (1u << 20)
#define PTC_LOCAL_REGIONS_MAX         (1u << 20) /* boxes of all tensors of a rank */
#define PTC_LOCAL_NAME_MAX            1023
#define PTC_LOCAL_FIELD_MAX           63
#define PTC_LOCAL_BLOB_MAX            (256u << 10)
#define PTC_LOCAL_BLOBS_MAX           64 /* names a rank sets */
#define PTC_LOCAL_SCOPE_MAX           3  /* of a blob: enum ptc_blob_scope */
#define PTC_LOCAL_CURSORS_MAX         64
#define PTC_LOCAL_SHORT_MAX           255 /* names of blobs and cursors, tags, keys */
#define PTC_LOCAL_RENDEZVOUS_MAX      4096
#define PTC_LOCAL_RENDEZVOUS_KEYS_MAX 4096 /* of one generation */
#define PTC_LOCAL_TOKEN               32   /* hex digits */
#define PTC_LOCAL_TEXT_MAX            1023
#define PTC_LOCAL_CONFIG_MAX          4095
#define PTC_LOCAL_SPANS_MAX           (1u << 14)
#define PTC_LOCAL_ROWS_MAX            1024       /* of one FILL */
#define PTC_LOCAL_CHUNKS_MAX          256        /* likewise */
#define PTC_LOCAL_DEVICES_MAX         (1u << 16) /* DEVICE messages of a rank */
#define PTC_LOCAL_HANDLES_MAX         4096       /* of them, those that come with a descriptor */
#define PTC_LOCAL_UUID_MAX            47
#define PTC_LOCAL_IPC_BYTES           64
#define PTC_LOCAL_WHY_MAX             95

/* Of ptc.h's enum ptc_result, what ptcd answers with. */
enum ptc_local_result {
	PTC_LOCAL_R_REFUSED = -2,
	PTC_LOCAL_R_LOST = -3,
	PTC_LOCAL_R_LIMIT = -5,
	PTC_LOCAL_R_TIMEOUT = -6,
	PTC_LOCAL_R_SYSTEM = -7,
	PTC_LOCAL_R_VERSION = -8,
	PTC_LOCAL_R_STALE = -9,
};

enum ptc_local_type {
	PTC_LOCAL_HELLO = 1,
	PTC_LOCAL_NEXT,
	PTC_LOCAL_TENSOR,
	PTC_LOCAL_DECLARED,
	PTC_LOCAL_BLOB, /* both ways */
	PTC_LOCAL_CURSOR,
	PTC_LOCAL_STOPPED,
	PTC_LOCAL_RENDEZVOUS_PUT,
	PTC_LOCAL_RENDEZVOUS_GET,
	PTC_LOCAL_BYE,
	PTC_LOCAL_FILLED,
	PTC_LOCAL_DEVICE, /* declared memory on a device: before DECLARED */
	PTC_LOCAL_LEAVES, /* the program gives up; it waits for the page's `leaving` */
	PTC_LOCAL_KEEPS, /* a memfd to which it publishes blobs and cursors: for ptcd to have when the rank has ended */

	PTC_LOCAL_WELCOME = 32,
	PTC_LOCAL_REFUSED, /* the connection is over; so is the client */
	PTC_LOCAL_GENERATION,
	PTC_LOCAL_EXIT,
	PTC_LOCAL_STAGING,
	PTC_LOCAL_RESTORED,
	PTC_LOCAL_DECLINED, /* these declarations are refused */
	PTC_LOCAL_GO,
	PTC_LOCAL_ENDED,
	PTC_LOCAL_FINISHED,
	PTC_LOCAL_RENDEZVOUS_REPLY,
	PTC_LOCAL_FILL, /* only to a rank that can: PTC_LOCAL_CAN_FILL */
};

/* DECLARED says what the TENSORs before it were. LAYOUT: they say where each part belongs, and addresses mean nothing
 * yet; all of them come once more, with memory. Only to a ptcd that takes it. */
enum ptc_local_declares {
	PTC_LOCAL_DECLARES_MEMORY, /* and waits to be restored */
	PTC_LOCAL_DECLARES_RUNNING,
	PTC_LOCAL_DECLARES_LAYOUT,
};
/* What of a configuration the program says it does: bits of a DECLARED. ptcd refuses ranks that do not say it where
 * their configuration asks for it. */
#define PTC_LOCAL_DOES_RECOMPUTE 1u
#define PTC_LOCAL_DOES_SCHEDULE  2u
/* Abilities of a ptcd that not every ptcd has: bits of a WELCOME. */
#define PTC_LOCAL_TAKES_LAYOUT   1u /* TENSORs and a DECLARED of PTC_LOCAL_DECLARES_LAYOUT before those with memory */
/* A rank's phase when it connects. Its next messages lead there again. */
enum ptc_local_resume_phase {
	PTC_LOCAL_NOWHERE, /* in no generation */
	PTC_LOCAL_BUILDS,
	PTC_LOCAL_HAS_DECLARED,
	PTC_LOCAL_RUNS,
	PTC_LOCAL_IS_STOPPED,
};
/* Abilities of a rank that not every rank has: bits of a HELLO. */
#define PTC_LOCAL_CAN_FILL       1u
#define PTC_LOCAL_CAN_TAKE_STATE 2u /* take BLOBs and CURSORs before GENERATION too, not only before RESTORED */
#define PTC_LOCAL_CAN_VERIFY     4u /* compare what it copies for a FILL with checksums */

struct ptc_local_header {
	uint32_t magic;
	uint16_t type, flags;
	uint32_t length; /* of what follows */
	uint32_t reserved;
	uint64_t seq; /* frames this side has sent before on this connection */
};
#define PTC_LOCAL_MORE        1u
#define PTC_LOCAL_PAYLOAD_MAX (PTC_LOCAL_FRAME_MAX - sizeof(struct ptc_local_header))

/* ---- connections ------------------------------------------------------------ */

typedef void *(*ptc_local_realloc)(void *p, size_t size);

/* One end. Init with fd, and a realloc that frees nothing for size 0. */
struct ptc_local_conn {
	int fd; /* borrowed */
	ptc_local_realloc grow;
	uint64_t tx_seq, rx_seq;
	uint8_t *rx; /* the message so far; freed by whoever owns the connection */
	size_t rx_len, rx_cap;
	uint16_t rx_type;
	bool rx_more;
	int rx_fd; /* came with the first frame; -1: none */
};
struct ptc_local_message {
	uint16_t type;
	const uint8_t *data; /* valid until the next call */
	size_t len;
	int fd; /* the caller's now; -1: none */
};

void ptc_local_conn_init(struct ptc_local_conn *c, int fd, ptc_local_realloc grow);
/* Sends the frames from *offset on (begin with 0). 1: all sent; 0: would block, call again; else -errno. pass_fd: -1 or
 * what goes with the first frame. Never raises SIGPIPE. */
int ptc_local_send(struct ptc_local_conn *c, uint16_t type, const void *data, size_t len, int pass_fd, size_t *offset);
/* Takes one frame. 1: *ret is a whole message; 0: not yet (more_frames: call again at once); else -errno: -ECONNRESET
 * at the end, -EPROTO for what is no frame of ours, -ENOMEM. */
int ptc_local_receive(struct ptc_local_conn *c, struct ptc_local_message *ret, bool *ret_more_frames);
/* The part of ptc_local_receive that looks at bytes: as it, for a frame that came with fd (which it owns now). */
int ptc_local_feed(struct ptc_local_conn *c, const void *frame, size_t len, int fd, struct ptc_local_message *ret);
/* Frees the received parts and closes rx_fd; does not close fd. */
void ptc_local_conn_done(struct ptc_local_conn *c, void (*release)(void *p));
/* Address of a socket file whose path may be longer than an address takes: then through its folder, opened as *ret_dir
 * (else -1), which must stay open until bind or connect has been called. 0 or -errno. */
int ptc_local_address(const char *path, struct sockaddr_un *ret, int *ret_dir);
