/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: a header (u64 little-endian length, JSON, padding
 * spaces), then the tensors' bytes without holes. One file, or a directory
 * with model.safetensors.index.json naming several. Only headers are read
 * here; who wants bytes reads path at data_start + begin. Objects are
 * immutable after they were made; readable from any thread. */
#pragma once

#include "base/buf.h"
#include "reshard/spec/spec.h"

#include <sys/stat.h>

#define PTC_ST_INDEX_NAME "model.safetensors.index.json"
#define PTC_ST_MODEL_NAME "model.safetensors"

struct ptc_st_tensor {
	struct ptc_tensor t; /* name owned by the header object */
	int64_t begin, end;  /* bytes, from data_start */
};
struct ptc_st_pair {
	char *key, *value;
};
struct ptc_st {
	struct ptc_st_tensor *tensors; /* in the order of the header's entries */
	size_t ntensors;
	uint32_t *by_offset; /* indices of tensors in the order of their bytes */
	uint32_t *by_name;   /* indices of tensors in name order (strcmp) */
	struct ptc_st_pair *metadata;
	size_t nmetadata;
	char *raw; /* the file's first raw_len bytes, verbatim: length word, JSON, padding */
	size_t raw_len;
	int64_t data_start, data_bytes; /* data_start == raw_len */
	struct stat file;               /* when the header was read from one (ptc_st_read) */
};

/* head: at least the length word and the whole header; file_bytes: the file's size, which must be exactly header plus
 * tensors. Refuses duplicate names, holes, overlaps, sizes that do not follow from shape and dtype, unknown dtypes. */
int ptc_st_parse(const void *head, size_t head_len, int64_t file_bytes, struct ptc_st *ret_st, struct ptc_error *err);
/* Reads and parses the header of a regular file. */
int ptc_st_read(const char *path, struct ptc_st *ret_st, struct ptc_error *err);
/* Opens the file whose header was read into st; PTC_EINVAL if another has its path now or it was written to since. */
int ptc_st_reopen(const char *path, const struct ptc_st *st, int *ret_fd, struct ptc_error *err);
/* PTC_EINVAL if what was read from fd may be of a file that was written to since its header was read. */
int ptc_st_unchanged(int fd, const char *path, const struct ptc_st *st, struct ptc_error *err);
void ptc_st_done(struct ptc_st *st);
/* NULL: no such tensor. O(log n). */
const struct ptc_st_tensor *ptc_st_find(const struct ptc_st *st, const char *name);
/* Same names, dtypes and shapes (tensors in name order): then st->raw can be written back verbatim. */
bool ptc_st_describes(const struct ptc_st *st, const struct ptc_tensor *tensors, size_t ntensors);

/* Appends a canonical header: tensors (in name order, else PTC_EINVAL) laid out in that order, no white space but the
 * padding that makes the header a multiple of 8. Parse it to learn the offsets. */
int ptc_st_write(struct ptc_buf *b, const struct ptc_tensor *tensors, size_t ntensors,
		 const struct ptc_st_pair *metadata, size_t nmetadata, struct ptc_error *err);

/* One file or several as one set of tensors. */
struct ptc_st_file {
	char *name; /* file name inside the directory */
	char *path; /* to open */
	struct ptc_st st;
};
struct ptc_st_ref {
	uint32_t file, tensor; /* files[file].st.tensors[tensor] */
};
struct ptc_st_set {
	struct ptc_st_file *files; /* in name order */
	size_t nfiles;
	struct ptc_st_ref *refs; /* in tensor name order; no name twice */
	size_t nrefs;
	char *index; /* model.safetensors.index.json verbatim, NULL for a single file */
	size_t index_len;
	int64_t data_bytes;
};
/* path: a .safetensors file, an index file, or a directory with an index or else a model.safetensors. Every tensor of
 * every named file must be in the index, and the other way round. */
int ptc_st_set_read(const char *path, struct ptc_st_set *ret_set, struct ptc_error *err);
void ptc_st_set_done(struct ptc_st_set *set);
static inline const struct ptc_st_tensor *ptc_st_set_tensor(const struct ptc_st_set *set, size_t i)
{
	return &set->files[set->refs[i].file].st.tensors[set->refs[i].tensor];
}
