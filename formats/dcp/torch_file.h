/* SPDX-License-Identifier: Apache-2.0 */
/* The file format of torch.save, as far as DCP needs it: one tensor, or one plain value, as a ZIP archive without
 * compression. A tensor's bytes need not be in memory: a head goes before them and a tail after them, so a file is
 * written from its first byte to its last, and its length is known before.
 *
 * Failure modes: PTC_EINVAL (not such a file; the message has no path), PTC_ELAYOUT (PyTorch has no such dtype),
 * PTC_ELIMIT, PTC_ENOMEM, and what reading says. No I/O but the caller's. */
#pragma once

#include "formats/pickle/pickle.h"
#include "reshard/spec/spec.h"

/* name: len bytes, "float32" or "torch float32". */
bool ptc_torch_dtype_parse(const char *name, size_t len, enum ptc_dtype *ret);
bool ptc_torch_class_dtype(const char *name, size_t len, enum ptc_dtype *ret); /* "torch FloatStorage" */

/* Appends the part of the file before a tensor's bytes (row-major, fewer than 4 GiB). */
int ptc_torch_head(struct ptc_buf *b, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, struct ptc_error *err);
/* Appends the part after them. crc: ptc_crc32 of the bytes. */
int ptc_torch_tail(struct ptc_buf *b, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, uint32_t crc,
		   struct ptc_error *err);
/* The length of all three. 0: the tensor has 4 GiB or more, or its dtype is none of PyTorch's. */
uint64_t ptc_torch_bytes(enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape);
/* Appends a whole file: a value, of which `pickle` is the pickle. */
void ptc_torch_value(struct ptc_buf *b, const void *pickle, size_t len);

/* Reads exactly len bytes at `at` of the file. */
typedef int (*ptc_torch_read_fn)(void *arg, uint64_t at, void *data, size_t len, struct ptc_error *err);
struct ptc_torch_tensor {
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS], stride[PTC_MAX_DIMS]; /* in elements */
	uint64_t at, bytes;                                /* where the tensor's storage is in the file */
	uint64_t first;                                    /* of the storage: where the first element is, in bytes */
	uint32_t crc;                                      /* of the storage */
	bool row_major; /* stride is that of shape, and the storage has nothing else */
};
/* Reads what a file of `bytes` bytes says of its tensor. */
int ptc_torch_read(ptc_torch_read_fn fn, void *arg, uint64_t bytes, struct ptc_torch_tensor *ret,
		   struct ptc_error *err);
