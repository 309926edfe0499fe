/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of torch.distributed.checkpoint (DCP): a directory with files of parts, each as torch.save writes a
 * tensor (formats/dcp/torch_file.h), and ".metadata", a pickle that says which part of which tensor is where.
 *
 * A set of entries is plain data that its maker owns; ptc_dcp_done frees it. Failure modes: PTC_EINVAL with the key,
 * PTC_ELAYOUT (PyTorch has no such dtype), PTC_ELIMIT, PTC_ENOMEM. Pure. */
#pragma once

#include "base/buf.h"
#include "reshard/spec/spec.h"

#define PTC_DCP_METADATA    ".metadata"
#define PTC_DCP_MAX_ENTRIES (4u << 20) /* tensors with all their fields, and values of optimizers */
#define PTC_DCP_MAX_FILES   (1u << 20)
#define PTC_DCP_PART_BYTES  (64u << 20) /* most bytes of a part that we write: a reader loads whole parts */
#define PTC_DCP_PATH        8           /* names of which a key consists, at most */

/* A part: the bytes of a box of a tensor. They are `bytes` bytes at offset `at` of the file with number `file`. */
struct ptc_dcp_part {
	uint32_t file;
	uint64_t at, bytes;
};
/* A key of the flat state dict: a tensor, or a value (is_value) that only Python can read. */
struct ptc_dcp_entry {
	char *key;                   /* "model.h.0.w": the names of `path` with dots between them */
	uint16_t path[PTC_DCP_PATH]; /* their lengths; writing only */
	uint8_t npath, numbers;      /* numbers: a bit for each name that is an index of a list */
	bool is_value;
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	struct ptc_dcp_part *parts; /* of a value: one */
	int64_t *boxes;             /* of each part: ndim offsets, ndim extents */
	uint32_t nparts;
};
struct ptc_dcp {
	struct ptc_dcp_entry *entries; /* as read: in the order of keys, parts in the order of offsets */
	size_t nentries;
	char **files; /* paths relative to the directory */
	size_t nfiles;
};
void ptc_dcp_done(struct ptc_dcp *d); /* a zeroed one is fine */

/* ---- writing ---- */

/* Cuts an entry into boxes of at most PTC_DCP_PART_BYTES whose bytes follow each other in the tensor's row-major order.
 * Parts get file 0 and no place. */
int ptc_dcp_cut(struct ptc_dcp_entry *e, struct ptc_error *err);
/* Elements of a box of an entry that ptc_dcp_cut cut, and where they begin in the tensor. */
uint64_t ptc_dcp_part_elements(const struct ptc_dcp_entry *e, uint32_t part, uint64_t *ret_first);
/* Appends ".metadata". */
int ptc_dcp_write(const struct ptc_dcp *d, struct ptc_buf *b, struct ptc_error *err);

/* ---- reading ---- */

/* Every tensor has been checked: its parts lie inside it, none is empty, and together they have as many elements as it
 * has. (That they do not overlap shows when they are read.) */
int ptc_dcp_read(const void *metadata, size_t len, struct ptc_dcp *ret, struct ptc_error *err);
/* NULL: there is no such key. */
const struct ptc_dcp_entry *ptc_dcp_find(const struct ptc_dcp *d, const char *key);
static inline const int64_t *ptc_dcp_offset(const struct ptc_dcp_entry *e, uint32_t part)
{
	return e->boxes + (size_t)part * 2 * e->ndim;
}
static inline const int64_t *ptc_dcp_extent(const struct ptc_dcp_entry *e, uint32_t part)
{
	return ptc_dcp_offset(e, part) + e->ndim;
}
