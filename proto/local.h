/* SPDX-License-Identifier: Apache-2.0 */
/* What a training process (libptc) and its node's ptcd say to each other: messages over a SOCK_SEQPACKET unix socket, and
 * one page of shared memory. Both ends are of one machine, so numbers are in its byte order. Needs libc only.
 *
 * A message is one or more frames; each is a header and at most PTC_LOCAL_FRAME_MAX - sizeof header bytes; all but
 * the last carry PTC_LOCAL_MORE. A file descriptor travels with the first frame. Fields are appended, never
 * changed: a decoder ignores what follows what it knows.
 *
 *   rank                              ptcd
 *   HELLO (page, when it has one)  ->
 *                                  <- WELCOME (page, when it had none) | REFUSED
 *   NEXT                           ->                                            waits
 *                                  <- GENERATION | EXIT
 *   MEET_PUT, MEET_GET             -> <- MEET_REPLY                              builds
 *   TENSOR.., DECLARED             -> <- STAGING (copy: fast)                    waits to be restored
 *                                  <- FILL (file).. and FILLED..
 *                                  <- BLOB.., CURSOR.., RESTORED | DECLINED
 *   [BLOB.., CURSOR..,] STOPPED    ->                                            waits at a boundary
 *                                  <- GO | FINISHED | ENDED
 *   BYE                            ->
 *
 * ENDED may come whenever the rank has a generation. After a new connection the rank says everything again that still holds:
 * HELLO with its generation, TENSOR.., DECLARED, BLOB.., CURSOR.., STOPPED or NEXT, the question it waits on.
 *
 * Failure modes: every decoder takes any bytes and answers false for what is not a message. Threads: none of its own. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define PTC_LOCAL_MAGIC         0x4c435450u /* "PTCL" */
#define PTC_LOCAL_PROTOCOL      1u
#define PTC_LOCAL_FRAME_MAX     (64u << 10)
#define PTC_LOCAL_MESSAGE_MAX   (512u << 10) /* a blob and its name; a tensor of PTC_LOCAL_BOXES_MAX boxes */
#define PTC_LOCAL_DIMS          8
#define PTC_LOCAL_BOXES_MAX     1024 /* of one tensor on one rank; ZeRO needs 2 * dims - 1, FSDP over TP tp */
#define PTC_LOCAL_TENSORS_MAX   (1u << 20)
#define PTC_LOCAL_REGIONS_MAX   (1u << 20) /* boxes of all tensors of a rank */
#define PTC_LOCAL_NAME_MAX      1023
#define PTC_LOCAL_FIELD_MAX     63
#define PTC_LOCAL_BLOB_MAX      (256u << 10)
#define PTC_LOCAL_BLOBS_MAX     64 /* names a rank sets */
#define PTC_LOCAL_SCOPE_MAX     3  /* of a blob: enum ptc_blob_scope */
#define PTC_LOCAL_CURSORS_MAX   64
#define PTC_LOCAL_SHORT_MAX     255 /* names of blobs and cursors, tags, keys */
#define PTC_LOCAL_MEET_MAX      4096
#define PTC_LOCAL_MEET_KEYS_MAX 4096 /* of one generation */
#define PTC_LOCAL_TOKEN         32   /* hex digits */
#define PTC_LOCAL_TEXT_MAX      1023
#define PTC_LOCAL_CONFIG_MAX    4095
#define PTC_LOCAL_SPANS_MAX     (1u << 14)
#define PTC_LOCAL_ROWS_MAX      1024 /* of one FILL */
#define PTC_LOCAL_REPORTS       8
#define PTC_LOCAL_REPORT_NAME   32 /* with its NUL */

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
	PTC_LOCAL_MEET_PUT,
	PTC_LOCAL_MEET_GET,
	PTC_LOCAL_BYE,
	PTC_LOCAL_FILLED,

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
	PTC_LOCAL_MEET_REPLY,
	PTC_LOCAL_FILL, /* only to a rank that can: PTC_LOCAL_CAN_FILL */
};

struct ptc_local_header {
	uint32_t magic;
	uint16_t type, flags;
	uint32_t length; /* of what follows */
	uint32_t reserved;
	uint64_t seq; /* frames this side has sent before on this connection */
};
#define PTC_LOCAL_MORE        1u
#define PTC_LOCAL_PAYLOAD_MAX (PTC_LOCAL_FRAME_MAX - sizeof(struct ptc_local_header))

/* ---- the shared page: a memfd of PTC_LOCAL_PAGE bytes made by ptcd, sealed against shrinking and growing ---- */

#define PTC_LOCAL_PAGE          4096
#define PTC_LOCAL_NO_STOP       UINT64_MAX
#define PTC_LOCAL_STEP_MAX      (UINT64_MAX / 4)
#define PTC_LOCAL_STAGE_FREE    0u
#define PTC_LOCAL_STAGE_FILLING 1u /* by the rank */
#define PTC_LOCAL_STAGE_READING 2u /* by ptcd */

struct ptc_local_report {
	char name[PTC_LOCAL_REPORT_NAME]; /* written before `nreports` counts it; then constant */
	_Atomic uint64_t bits;            /* of a double */
};
struct ptc_local_page {
	uint32_t magic, protocol;
	/* The rank's: 0 before the first boundary of a generation; then (step + 1) << 1, plus 1 while the state is whole. */
	_Alignas(64) _Atomic uint64_t state;
	/* ptcd's: a boundary at this step or a later one waits. */
	_Alignas(64) _Atomic uint64_t stop;
	/* Who has the staging memory. Taken and given back by compare-exchange. */
	_Alignas(64) _Atomic uint32_t staging;
	_Alignas(64) _Atomic uint32_t nreports;
	struct ptc_local_report reports[PTC_LOCAL_REPORTS];
};
_Static_assert(sizeof(struct ptc_local_page) <= PTC_LOCAL_PAGE, "the page's size is part of the protocol");

/* The rank publishes its step, then reads the stop; ptcd exchanges the stop, then reads the step. All of it is
 * sequentially consistent, so at least one of the two sees what the other has done: either the rank waits, or ptcd
 * knows that it has passed. (A plain store to publish loses arms: the read may be done before the store is seen.) */
static inline bool ptc_local_boundary(struct ptc_local_page *p, uint64_t step)
{
	atomic_exchange(&p->state, ((step + 1) << 1) | 1);
	return atomic_load(&p->stop) > step; /* true: go on */
}
static inline void ptc_local_update_begin(struct ptc_local_page *p, uint64_t step)
{
	atomic_store_explicit(&p->state, (step + 1) << 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release); /* seen before any change of the state that follows */
}
/* false: no boundary yet. */
static inline bool ptc_local_step(const struct ptc_local_page *p, uint64_t *ret_step)
{
	uint64_t v = atomic_load(&p->state);

	if (v < 2)
		return false;
	*ret_step = (v >> 1) - 1;
	return true;
}
/* Whether the state is whole at that step. */
static inline bool ptc_local_whole(const struct ptc_local_page *p)
{
	return atomic_load(&p->state) & 1;
}
/* Returns the stop before; *ret_published, *ret_step: as ptc_local_step says after the exchange. */
static inline uint64_t ptc_local_arm(struct ptc_local_page *p, uint64_t stop, bool *ret_published, uint64_t *ret_step)
{
	uint64_t old = atomic_exchange(&p->stop, stop);

	*ret_published = ptc_local_step(p, ret_step);
	return old;
}

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
/* Sends the frames from *offset on (begin with 0). 1: all sent; 0: would block, call again; else -errno. pass_fd: -1 or what
 * goes with the first frame. Never raises SIGPIPE. */
int ptc_local_send(struct ptc_local_conn *c, uint16_t type, const void *data, size_t len, int pass_fd, size_t *offset);
/* Takes one frame. 1: *ret is a whole message; 0: not yet (more_frames: call again at once); else -errno: -ECONNRESET at the
 * end, -EPROTO for what is no frame of ours, -ENOMEM. */
int ptc_local_receive(struct ptc_local_conn *c, struct ptc_local_message *ret, bool *ret_more_frames);
/* The part of ptc_local_receive that looks at bytes: as it, for a frame that came with fd (which it owns now). */
int ptc_local_feed(struct ptc_local_conn *c, const void *frame, size_t len, int fd, struct ptc_local_message *ret);
/* Frees what was received and closes rx_fd; not fd. */
void ptc_local_conn_done(struct ptc_local_conn *c, void (*release)(void *p));
/* Address of a socket file whose path may be longer than an address takes: then through its folder, opened as *ret_dir (else -1),
 * which must stay open until bind or connect has been called. 0 or -errno. */
int ptc_local_address(const char *path, struct sockaddr_un *ret, int *ret_dir);

/* ---- messages -------------------------------------------------------------- */

struct ptc_local_out {
	ptc_local_realloc grow;
	uint8_t *data; /* the caller frees it */
	size_t len, cap;
	bool failed; /* out of memory; sticky */
};
struct ptc_local_in {
	const uint8_t *p, *end;
	bool bad; /* sticky */
};
void ptc_local_put_u8(struct ptc_local_out *o, uint8_t v);
void ptc_local_put_u32(struct ptc_local_out *o, uint32_t v);
void ptc_local_put_u64(struct ptc_local_out *o, uint64_t v);
void ptc_local_put_bytes(struct ptc_local_out *o, const void *data, size_t len);
void ptc_local_put_text(struct ptc_local_out *o, const char *s);
uint8_t ptc_local_get_u8(struct ptc_local_in *in);
uint32_t ptc_local_get_u32(struct ptc_local_in *in);
uint64_t ptc_local_get_u64(struct ptc_local_in *in);
const void *ptc_local_get_bytes(struct ptc_local_in *in, size_t max, size_t *ret_len);
/* NUL-terminated, without a NUL in it, of at most max bytes; borrowed. "" when bad. */
const char *ptc_local_get_text(struct ptc_local_in *in, size_t max);

/* Where a rank is when it connects; what it says then leads there again. */
enum ptc_local_standing {
	PTC_LOCAL_NOWHERE, /* in no generation */
	PTC_LOCAL_BUILDS,
	PTC_LOCAL_HAS_DECLARED,
	PTC_LOCAL_RUNS,
	PTC_LOCAL_IS_STOPPED,
};

/* What a rank can beside what every rank can: bits of a HELLO. */
#define PTC_LOCAL_CAN_FILL  1u
#define PTC_LOCAL_CAN_CARRY 2u /* take BLOBs and CURSORs before GENERATION too, not only before RESTORED */

/* Strings and bytes of what was decoded are borrowed from the message. */
struct ptc_local_hello {
	uint32_t protocol_min, protocol_max;
	uint64_t pid;
	const char *token, *version;
	uint8_t standing; /* enum ptc_local_standing */
	uint64_t generation, launch;
	uint32_t rank;
	uint32_t features; /* 0 from a libptc that does not say */
};
struct ptc_local_welcome {
	uint32_t protocol;
	uint64_t pid;
	const char *version;
};
/* REFUSED, DECLINED */
struct ptc_local_refusal {
	int32_t code; /* enum ptc_result */
	const char *text;
};
struct ptc_local_generation {
	uint64_t generation, launch, start_step;
	bool has_state;
	uint32_t rank, world, local_rank, local_world, node_rank, nodes, device;
	uint32_t degrees[6], coordinates[4]; /* tp pp dp cp ep etp; tp pp dp cp */
	uint32_t zero, micro_batch, global_batch;
	const char *config, *job;
};
struct ptc_local_box {
	int64_t offset[PTC_LOCAL_DIMS], extent[PTC_LOCAL_DIMS]; /* elements */
	uint64_t address;
	int64_t stride[PTC_LOCAL_DIMS]; /* bytes, of every dim with more than one element */
};
struct ptc_local_tensor {
	const char *name, *field, *dtype; /* field "": the parameter itself */
	uint32_t ndim, flags;
	int64_t shape[PTC_LOCAL_DIMS];
	uint32_t nboxes;
	struct ptc_local_in boxes; /* for ptc_local_get_box, nboxes times */
};
struct ptc_local_blob {
	const char *name;
	uint8_t scope;
	const void *data;
	size_t len;
};
struct ptc_local_cursor {
	const char *name, *tag;
	uint64_t position;
};
struct ptc_local_stopped {
	uint64_t step;
	bool finished, staged;
	const char *refused; /* not "": the state must not be taken here, and why; the rank waits to go on */
	bool later;          /* refused here, but a later boundary may do: the stop is to move */
};
struct ptc_local_meet {
	uint64_t id;
	int32_t code; /* of a reply */
	const char *key, *text;
	const void *value;
	size_t len;
	uint32_t timeout_ms; /* of a get */
};
struct ptc_local_restored {
	bool restored;
	uint64_t step;
};
/* Where a rank's declared memory lies in the staging memory: spans in address order, each at `offset`. */
struct ptc_local_span {
	uint64_t address, bytes, offset;
};
struct ptc_local_staging {
	uint64_t bytes;
	uint32_t nspans;
	struct ptc_local_in spans;
};

/* A rank that waits to be restored reads bytes of the file that came with the message to where it has declared them. It
 * does what it is told in order, so what is FILLED says is true of all FILLs before it on this connection. */
struct ptc_local_rows {
	uint64_t address, offset; /* of the first row, in the rank's memory and in the file */
	uint64_t bytes, count;    /* of one row, of rows */
	uint64_t address_step, offset_step;
};
struct ptc_local_fill {
	uint64_t generation, launch, id; /* id: from 1, one more each time */
	uint32_t nrows;
	struct ptc_local_in rows;
};
struct ptc_local_filled {
	uint64_t id;     /* of the last one done */
	uint64_t failed; /* of one that was not done since the last FILLED; 0: none */
	int32_t code;    /* why: errno */
};

void ptc_local_put_hello(struct ptc_local_out *o, const struct ptc_local_hello *m);
bool ptc_local_get_hello(const void *data, size_t len, struct ptc_local_hello *ret);
void ptc_local_put_welcome(struct ptc_local_out *o, const struct ptc_local_welcome *m);
bool ptc_local_get_welcome(const void *data, size_t len, struct ptc_local_welcome *ret);
void ptc_local_put_refusal(struct ptc_local_out *o, int32_t code, const char *text);
bool ptc_local_get_refusal(const void *data, size_t len, struct ptc_local_refusal *ret);
void ptc_local_put_generation(struct ptc_local_out *o, const struct ptc_local_generation *m);
bool ptc_local_get_generation(const void *data, size_t len, struct ptc_local_generation *ret);
void ptc_local_put_tensor(struct ptc_local_out *o, const struct ptc_local_tensor *m, const struct ptc_local_box *boxes);
bool ptc_local_get_tensor(const void *data, size_t len, struct ptc_local_tensor *ret);
bool ptc_local_get_box(struct ptc_local_tensor *t, struct ptc_local_box *ret);
void ptc_local_put_blob(struct ptc_local_out *o, const struct ptc_local_blob *m);
bool ptc_local_get_blob(const void *data, size_t len, struct ptc_local_blob *ret);
void ptc_local_put_cursor(struct ptc_local_out *o, const struct ptc_local_cursor *m);
bool ptc_local_get_cursor(const void *data, size_t len, struct ptc_local_cursor *ret);
void ptc_local_put_stopped(struct ptc_local_out *o, const struct ptc_local_stopped *m);
bool ptc_local_get_stopped(const void *data, size_t len, struct ptc_local_stopped *ret);
/* MEET_PUT, MEET_GET and MEET_REPLY are the same; unused members are 0 or "". */
void ptc_local_put_meet(struct ptc_local_out *o, const struct ptc_local_meet *m);
bool ptc_local_get_meet(const void *data, size_t len, struct ptc_local_meet *ret);
void ptc_local_put_restored(struct ptc_local_out *o, const struct ptc_local_restored *m);
bool ptc_local_get_restored(const void *data, size_t len, struct ptc_local_restored *ret);
void ptc_local_put_staging(struct ptc_local_out *o, uint64_t bytes, const struct ptc_local_span *spans,
			   uint32_t nspans);
bool ptc_local_get_staging(const void *data, size_t len, struct ptc_local_staging *ret);
bool ptc_local_get_span(struct ptc_local_staging *s, struct ptc_local_span *ret);
void ptc_local_put_fill(struct ptc_local_out *o, const struct ptc_local_fill *m, const struct ptc_local_rows *rows);
bool ptc_local_get_fill(const void *data, size_t len, struct ptc_local_fill *ret);
bool ptc_local_get_rows(struct ptc_local_fill *f, struct ptc_local_rows *ret);
void ptc_local_put_filled(struct ptc_local_out *o, const struct ptc_local_filled *m);
bool ptc_local_get_filled(const void *data, size_t len, struct ptc_local_filled *ret);
void ptc_local_put_ended(struct ptc_local_out *o, uint64_t generation, uint64_t launch);
bool ptc_local_get_ended(const void *data, size_t len, uint64_t *ret_generation, uint64_t *ret_launch);
/* DECLARED: whether it runs already. GO, FINISHED: the step. One number. */
void ptc_local_put_number(struct ptc_local_out *o, uint64_t v);
bool ptc_local_get_number(const void *data, size_t len, uint64_t *ret);

/* ---- rules that both ends check: libptc to name a mistake at its call, ptcd because it trusts nobody ------------ */

/* Bytes of an element; 0: unknown, or not whole bytes. */
uint32_t ptc_local_dtype_bytes(const char *dtype);
/* NULL: fine; else what is wrong with it. */
const char *ptc_local_name_error(const char *name);
const char *ptc_local_field_error(const char *field);
const char *
ptc_local_short_error(const char *name); /* of a blob, a cursor, a key: 1..255 bytes, no control characters */
const char *ptc_local_shape_error(uint32_t ndim, const int64_t *shape, uint32_t element_bytes);
/* A box with at least one element: inside of shape, with memory that does not wrap and elements that do not lie on each other. */
const char *ptc_local_box_error(uint32_t ndim, const int64_t *shape, uint32_t element_bytes,
				const struct ptc_local_box *b);
/* First address and the one after the last byte. */
void ptc_local_box_span(uint32_t ndim, uint32_t element_bytes, const struct ptc_local_box *b, uint64_t *ret_low,
			uint64_t *ret_high);
/* Puts boxes into row-major order of their offsets; false and two of them when they overlap. */
bool ptc_local_boxes_disjoint(uint32_t ndim, struct ptc_local_box *boxes, size_t n, size_t *ret_a, size_t *ret_b);
