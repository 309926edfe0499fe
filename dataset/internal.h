/* SPDX-License-Identifier: Apache-2.0 */
/* Inside dataset/: the open source, and what each kind does. */
#pragma once

#include "dataset/source.h"

#include <sys/stat.h>

struct ptc_source_file {
	char *path;
	int fd;
	uint64_t bytes;
	int64_t mtime_ns;
};
static inline int64_t ptc_source_mtime_ns(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}
/* source_file.c. Regular files only. */
int ptc_source_file_open(const char *path, struct ptc_source_file *ret_file, struct ptc_error *err);
void ptc_source_file_done(struct ptc_source_file *f);
/* All of it, or PTC_EIO: the file has become shorter. */
int ptc_source_file_read(const struct ptc_source_file *f, uint64_t offset, void *buf, size_t len,
			 struct ptc_error *err);

/* What a check has found so far. */
struct ptc_source_report {
	ptc_source_problem_fn fn;
	void *arg;
	struct ptc_source_checked checked;
	bool enough;
};
void ptc_source_problem(struct ptc_source_report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

struct ptc_source_ops {
	int (*open)(struct ptc_source *s, const struct ptc_source_spec *spec, struct ptc_error *err);
	int (*sample)(const struct ptc_source *s, uint64_t i, struct ptc_source_sample *ret, struct ptc_error *err);
	int (*check)(const struct ptc_source *s, struct ptc_source_report *r, struct ptc_error *err);
};
extern const struct ptc_source_ops ptc_source_indexed, ptc_source_flat, ptc_source_npy, ptc_source_files;

struct ptc_source {
	const struct ptc_source_ops *ops;
	struct ptc_source_info info;
	struct ptc_source_file data;  /* FILES: the directory */
	struct ptc_source_file index; /* INDEXED */
	uint64_t first;               /* FLAT, NPY: byte of the data file where records begin */
	/* FILES: all names, each with its NUL, in order, and where each begins */
	char *names;
	uint64_t names_bytes;
	uint64_t *name_at;
};

/* npy.c: the header of an array. */
struct ptc_npy {
	enum ptc_source_dtype dtype;
	uint64_t rows, row; /* elements of a row; 1 where the array has one dimension */
	bool flat;          /* it has one dimension */
	uint64_t header_bytes;
};
#define PTC_NPY_HEADER_MAX 65536
/* `what` names the file in errors. data: the first len bytes of the file; len is PTC_NPY_HEADER_MAX, or less if the
 * file is shorter. */
int ptc_npy_parse(const char *what, const void *data, size_t len, struct ptc_npy *ret_npy, struct ptc_error *err);
/* files.c */
uint64_t ptc_source_files_digest(const struct ptc_source *s);
int ptc_source_files_index(const struct ptc_source *s, uint64_t *ret_digest, uint64_t *ret_bytes,
			   struct ptc_error *err);
