/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: a header (u64 little-endian length, JSON, padding spaces), then the tensors' bytes without
 * holes. A model is one file, or a directory with model.safetensors.index.json, which names several files. Only headers
 * are read here. To get a tensor's bytes, read the file at data_start + begin.
 *
 * Objects are immutable once made; readable from any thread. They own their memory. Failure modes: PTC_EINVAL for a
 * file that is malformed or has changed, PTC_ELIMIT, PTC_ENOMEM, and the codes of errno, each with the path. */
#pragma once

#include "base/buf.h"
#include "reshard/spec/spec.h"

#include <sys/stat.h>

#define PTC_ST_INDEX_NAME "model.safetensors.index.json"
#define PTC_ST_MODEL_NAME "model.safetensors"

struct ptc_st_tensor {
	struct ptc_tensor t; /* the name is owned by the header object */
	int64_t begin, end;  /* bytes, counted from data_start */
};
struct ptc_st_pair {
	char *key, *value;
};
struct ptc_st {
	struct ptc_st_tensor *tensors; /* in the order of the header's entries */
	size_t ntensors;
	uint32_t *by_offset; /* indices of tensors, in the order of their bytes */
	uint32_t *by_name;   /* indices of tensors in name order (strcmp) */
	struct ptc_st_pair *metadata;
	size_t nmetadata;
	char *raw; /* the file's first raw_len bytes, unchanged: length word, JSON, padding */
	size_t raw_len;
	int64_t data_start, data_bytes; /* data_start == raw_len */
	struct stat file;               /* of the file when its header was read (ptc_st_read) */
};

/* Parses a header. `head` has at least the length word and the whole header. file_bytes is the file's size, which must
 * be exactly header plus tensors. Refuses duplicate names, holes, overlaps, unknown dtypes, and sizes that do not
 * follow from shape and dtype. */
int ptc_st_parse(const void *head, size_t head_len, int64_t file_bytes, struct ptc_st *ret_st, struct ptc_error *err);
/* Reads and parses the header of a regular file. */
int ptc_st_read(const char *path, struct ptc_st *ret_st, struct ptc_error *err);
/* Opens the file whose header was read into st. PTC_EINVAL: the path names another file now, or the file was written
 * since. */
int ptc_st_reopen(const char *path, const struct ptc_st *st, int *ret_fd, struct ptc_error *err);
/* Checks a file after reading from fd. PTC_EINVAL: it was written since its header was read, so the bytes may be wrong.
 */
int ptc_st_unchanged(int fd, const char *path, const struct ptc_st *st, struct ptc_error *err);
void ptc_st_done(struct ptc_st *st);
/* Finds a tensor by name in O(log n); NULL: there is none. */
const struct ptc_st_tensor *ptc_st_find(const struct ptc_st *st, const char *name);
/* Whether st has the same names, dtypes and shapes as `tensors`, which are in name order. Then st->raw can be written
 * back unchanged. */
bool ptc_st_describes(const struct ptc_st *st, const struct ptc_tensor *tensors, size_t ntensors);

/* Appends a canonical header. The tensors' bytes follow in name order, which `tensors` must have (else PTC_EINVAL). The
 * header has no white space but padding to a multiple of 8. Parse it to get the offsets. */
int ptc_st_write(struct ptc_buf *b, const struct ptc_tensor *tensors, size_t ntensors,
		 const struct ptc_st_pair *metadata, size_t nmetadata, struct ptc_error *err);

/* One or several files as one set of tensors. */
struct ptc_st_file {
	char *name; /* file name inside the directory */
	char *path; /* path to open */
	struct ptc_st st;
};
struct ptc_st_ref {
	uint32_t file, tensor; /* files[file].st.tensors[tensor] */
};
struct ptc_st_set {
	struct ptc_st_file *files; /* in name order */
	size_t nfiles;
	struct ptc_st_ref *refs; /* in tensor name order; each name once */
	size_t nrefs;
	char *index; /* the bytes of model.safetensors.index.json; NULL for a single file */
	size_t index_len;
	int64_t data_bytes;
};
/* Reads the headers of a model. `path` is a .safetensors file, an index file, or a directory with an index or else a
 * model.safetensors (PTC_ENOTFOUND: with neither). The index must name exactly the tensors of the files that it names.
 */
int ptc_st_set_read(const char *path, struct ptc_st_set *ret_set, struct ptc_error *err);
void ptc_st_set_done(struct ptc_st_set *set);
static inline const struct ptc_st_tensor *ptc_st_set_tensor(const struct ptc_st_set *set, size_t i)
{
	return &set->files[set->refs[i].file].st.tensors[set->refs[i].tensor];
}
