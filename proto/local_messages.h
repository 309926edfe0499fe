/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between a rank and its node's ptcd, encoded and decoded. Strings and bytes of what was decoded are
 * borrowed from the message. Encoding fails for memory only, which stays noted in the output; every decoder takes any
 * bytes and answers false for what is not a message. Any thread. Needs libc only. */
#pragma once

#include "proto/local.h"
#include "proto/direct_read.h"
#include "proto/local_page.h"

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
/* NUL-terminated, without a NUL in it, of at most max bytes; borrowed. "" when bad. */
const char *ptc_local_get_text(struct ptc_local_in *in, size_t max);

/* A table of these writes and reads the members of a struct, in the order of the table. */
struct ptc_local_member {
	enum {
		PTC_LOCAL_U8,
		PTC_LOCAL_FLAG, /* bool */
		PTC_LOCAL_U32,  /* or int32_t, or an array of either */
		PTC_LOCAL_U64,
		PTC_LOCAL_TEXT,    /* const char *: NULL is written as "", what is read is borrowed */
		PTC_LOCAL_ARRAY,   /* char[] */
		PTC_LOCAL_BYTES,   /* const void *, and a size_t right behind it */
		PTC_LOCAL_EXACTLY, /* const void *, to max bytes */
	} kind;
	uint32_t offset, size; /* bytes, in the struct */
	uint64_t max;          /* of a number (0: any) or of bytes */
	bool later;            /* where the message ends before, it is 0 */
};
/* first to last: n numbers of `bytes`. One of another type between them does not compile; older readers would fail. */
#define PTC_LOCAL_RUN(type, first, last, kind, bytes, n)                                                               \
	{                                                                                                              \
		PTC_LOCAL_##kind, offsetof(type, first),                                                               \
			(n) * sizeof(char[offsetof(type, last) - offsetof(type, first) == (bytes) * ((n)-1) ? (bytes)  \
													    : -1]),    \
			0, false                                                                                       \
	}
#define PTC_LOCAL_MEMBER(type, member, kind, max, later)                                                               \
	{                                                                                                              \
		PTC_LOCAL_##kind, offsetof(type, member), sizeof(((type *)0)->member), max, later                      \
	}
void ptc_local_put_members(struct ptc_local_out *o, const struct ptc_local_member *f, size_t n, const void *from);
void ptc_local_get_members(struct ptc_local_in *in, const struct ptc_local_member *f, size_t n, void *to);

struct ptc_local_hello {
	uint32_t protocol_min, protocol_max;
	uint64_t pid;
	const char *token, *version;
	uint8_t resume_phase; /* enum ptc_local_resume_phase */
	uint64_t generation, incarnation;
	uint32_t rank;
	uint32_t features; /* 0 from a libptc that does not say */
};
struct ptc_local_welcome {
	uint32_t protocol;
	uint64_t pid;
	const char *version;
	uint32_t features; /* PTC_LOCAL_TAKES_; 0 from a ptcd that does not say */
};
/* REFUSED, DECLINED */
struct ptc_local_refusal {
	int32_t code; /* enum ptc_result */
	const char *text;
};
struct ptc_local_generation {
	uint64_t generation, incarnation, start_step;
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
struct ptc_local_declared {
	uint64_t what; /* enum ptc_local_declares */
	uint32_t does; /* PTC_LOCAL_DOES_; 0 from a libptc that does not say */
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
struct ptc_local_rendezvous {
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
/* Declared memory on a device: it can be mapped by IPC handle or descriptor, or only the rank can copy it. */
struct ptc_local_device {
	uint64_t address, bytes;  /* in the rank's address space */
	uint64_t context, buffer; /* the driver's numbers: with process and device, which allocation this is */
	const char *uuid;         /* of the device, "GPU-..." */
	const char *why;          /* "": it can be mapped; else why only the rank can copy it */
	const void *ipc;          /* PTC_LOCAL_IPC_BYTES */
	uint8_t descriptor;       /* 1: it comes along */
};
/* A rank that waits to be restored reads bytes of the file that came with the message to where it has declared them. It
 * handles FILLs in order, so a FILLED answers for all FILLs before it on this connection. With chunks, the rows lie in
 * these, and the rank verifies their blocks (but not of rows for devices: ptcd has). */
struct ptc_local_rows {
	uint64_t address, offset; /* of the first row, in the rank's memory and in the file */
	uint64_t bytes, count;    /* of one row, of rows */
	uint64_t address_step, offset_step;
};
struct ptc_local_fill {
	uint64_t generation, incarnation, id; /* id: from 1, one more each time */
	uint32_t nrows, nchunks;
	struct ptc_local_in rows, chunks;
};
struct ptc_local_filled {
	uint64_t id;     /* of the last one done */
	uint64_t failed; /* of one that was not done since the last FILLED; 0: none */
	int32_t code;    /* why: errno */
	bool damaged;    /* since the last FILLED, a block of one did not match its checksum */
};
/* ptc_local_put_NAME(out, message), ptc_local_get_NAME(bytes, number, ret_message). Of rendezvous, PUT, GET and REPLY
 * are the same; unused members are 0 or "". */
#define PTC_LOCAL_PLAIN(X)                                                                                             \
	X(hello)                                                                                                       \
	X(welcome)                                                                                                     \
	X(generation) X(declared) X(blob) X(cursor) X(stopped) X(rendezvous) X(restored) X(filled) X(device) X(keeps)
#define PTC_LOCAL_BOTH_WAYS(name)                                                                                      \
	void ptc_local_put_##name(struct ptc_local_out *o, const struct ptc_local_##name *m);                          \
	bool ptc_local_get_##name(const void *data, size_t len, struct ptc_local_##name *ret);
PTC_LOCAL_PLAIN(PTC_LOCAL_BOTH_WAYS)
void ptc_local_put_refusal(struct ptc_local_out *o, int32_t code, const char *text);
bool ptc_local_get_refusal(const void *data, size_t len, struct ptc_local_refusal *ret);
void ptc_local_put_tensor(struct ptc_local_out *o, const struct ptc_local_tensor *m, const struct ptc_local_box *boxes);
bool ptc_local_get_tensor(const void *data, size_t len, struct ptc_local_tensor *ret);
bool ptc_local_get_box(struct ptc_local_tensor *t, struct ptc_local_box *ret);
void ptc_local_put_staging(struct ptc_local_out *o, uint64_t bytes, const struct ptc_local_span *spans,
			   uint32_t nspans);
bool ptc_local_get_staging(const void *data, size_t len, struct ptc_local_staging *ret);
bool ptc_local_get_span(struct ptc_local_staging *s, struct ptc_local_span *ret);
void ptc_local_put_fill(struct ptc_local_out *o, const struct ptc_local_fill *m, const struct ptc_local_rows *rows,
			const struct ptc_direct_read_chunk *chunks);
bool ptc_local_get_fill(const void *data, size_t len, struct ptc_local_fill *ret);
bool ptc_local_get_rows(struct ptc_local_fill *f, struct ptc_local_rows *ret);
bool ptc_local_get_chunk(struct ptc_local_fill *f, struct ptc_direct_read_chunk *ret);
void ptc_local_put_ended(struct ptc_local_out *o, uint64_t generation, uint64_t incarnation);
bool ptc_local_get_ended(const void *data, size_t len, uint64_t *ret_generation, uint64_t *ret_incarnation);
/* GO, FINISHED: the step. One number. */
void ptc_local_put_number(struct ptc_local_out *o, uint64_t v);
bool ptc_local_get_number(const void *data, size_t len, uint64_t *ret);
