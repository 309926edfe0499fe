/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of samples: what a dataset is on disk, read where it lies.
 *
 * Happy path: a source is opened. That checks its headers, sizes and ends, in constant time and memory whatever its
 * length; of a directory, it reads the names. Then any thread finds and reads any sample by its number. check reads
 * everything that open did not look at and names each place that is wrong. print and same tell whether a source is
 * still the one that was registered.
 *
 * Failure modes: PTC_EINVAL (not such a file, or one that contradicts itself), PTC_ENOTFOUND, PTC_ELIMIT, PTC_EIO (it
 * was cut, or the disk failed, while read), PTC_ECORRUPT (changed since it was registered). One line, which names the
 * file and the place in it.
 *
 * Files are read, not mapped: a file on a shared path that somebody cuts short would end whoever has it mapped
 * (SIGBUS). A source is immutable once open; readable from any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_SOURCE_PATH_MAX   4000
#define PTC_SOURCE_RECORD_MAX (UINT64_C(1) << 31) /* elements of one sample; an index counts them in 32 bits */
#define PTC_SOURCE_FILES_MAX  (1u << 22)          /* of a directory; more samples belong into an indexed file */
#define PTC_SOURCE_NAMES_BYTES                                                                                         \
	(UINT64_C(256) << 20) /* of all names of a directory: what an open one takes, at most                          \
			       */
#define PTC_SOURCE_DEPTH_MAX 16

enum ptc_source_kind {
	PTC_SOURCE_INDEXED, /* PATH.bin and PATH.idx, as Megatron writes them */
	PTC_SOURCE_FLAT,    /* a file of elements, cut into records */
	PTC_SOURCE_NPY,     /* the same with NumPy's header */
	PTC_SOURCE_FILES,   /* a directory; each file is a sample */
	PTC_SOURCE_KINDS,
};
extern const char *const ptc_source_kinds[PTC_SOURCE_KINDS]; /* their names */
const char *ptc_source_kind_name(enum ptc_source_kind kind);
bool ptc_source_kind_parse(const char *name, enum ptc_source_kind *ret_kind);

/* 1..8 are the codes of an indexed file. */
enum ptc_source_dtype {
	PTC_SOURCE_NO_DTYPE,
	PTC_SOURCE_U8,
	PTC_SOURCE_I8,
	PTC_SOURCE_I16,
	PTC_SOURCE_I32,
	PTC_SOURCE_I64,
	PTC_SOURCE_F64,
	PTC_SOURCE_F32,
	PTC_SOURCE_U16,
	PTC_SOURCE_INDEX_DTYPES = PTC_SOURCE_U16,
	PTC_SOURCE_U32, /* not in an index */
	PTC_SOURCE_U64,
	PTC_SOURCE_F16,
	PTC_SOURCE_DTYPES,
};
extern const char *const ptc_source_dtypes[PTC_SOURCE_DTYPES];  /* their names */
const char *ptc_source_dtype_name(enum ptc_source_dtype dtype); /* "uint8", as NumPy says it; "" for none */
bool ptc_source_dtype_parse(const char *name, enum ptc_source_dtype *ret_dtype);
uint32_t ptc_source_dtype_bytes(enum ptc_source_dtype dtype); /* of an element; 0 for none */

struct ptc_source_spec {
	enum ptc_source_kind kind;
	const char *path;            /* INDEXED: with or without .bin or .idx */
	enum ptc_source_dtype dtype; /* FLAT: needed; INDEXED, NPY: what the file must have, or none; FILES: none */
	uint64_t record;             /* FLAT: elements of a sample, needed; NPY: 0: as the rows of the array are */
};

struct ptc_source_info {
	enum ptc_source_kind kind;
	enum ptc_source_dtype dtype; /* none: FILES */
	uint64_t record;             /* elements of every sample; 0: they differ */
	uint64_t samples;            /* at least 1 */
	uint64_t documents;          /* INDEXED; else 0 */
	uint64_t bytes;              /* of the data file; FILES: 0, known after a check only */
	uint64_t left_out;           /* elements at the end that make no whole record */
	uint64_t memory_bytes;       /* that the open source takes */
};

struct ptc_source;
int ptc_source_open(const struct ptc_source_spec *spec, struct ptc_source **ret_source, struct ptc_error *err);
struct ptc_source *ptc_source_close(struct ptc_source *s); /* NULL is fine */
const struct ptc_source_info *ptc_source_info(const struct ptc_source *s);

struct ptc_source_sample {
	const char *file; /* where it lies; FILES: relative to the path. Borrowed from the source */
	uint64_t offset, length;
};
/* PTC_EINVAL unless i < samples. */
int ptc_source_sample(const struct ptc_source *s, uint64_t i, struct ptc_source_sample *ret_sample,
		      struct ptc_error *err);
/* FILES: where sample i lies, relative to the path, without looking at it; borrowed from the source. i < samples. */
const char *ptc_source_file(const struct ptc_source *s, uint64_t i);
/* Bytes [offset, offset + len) of sample i, all of them or an error. */
int ptc_source_read(const struct ptc_source *s, uint64_t i, uint64_t offset, void *buf, size_t len,
		    struct ptc_error *err);

/* Reads at most len bytes of sample i from offset on. *ret_len: bytes read, fewer at the sample's end; *ret_length:
 * bytes of the whole sample. It looks up the sample's place once; ptc_source_sample and ptc_source_read together do so
 * twice. */
int ptc_source_read_up_to(const struct ptc_source *s, uint64_t i, uint64_t offset, void *buf, size_t len,
			  size_t *ret_len, uint64_t *ret_length, struct ptc_error *err);

/* PTC_ECORRUPT: a file that the source has open has been written to since. Called after reading, 0 means that the bytes
 * are of the source that was opened. For FILES it checks nothing, and returns 0. A few system calls. */
int ptc_source_unchanged(const struct ptc_source *s, struct ptc_error *err);

/* Calls fn with a line for each thing that is wrong; if fn does not return 0, it is not called again. Returns 0 if the
 * whole source could be looked at, also if something is wrong. *ret_checked has the counts. */
typedef int (*ptc_source_problem_fn)(void *arg, const char *text);
struct ptc_source_checked {
	uint64_t problems;
	uint64_t bytes;
	uint64_t unused;  /* bytes of the data file that are of no sample */
	uint64_t longest; /* bytes of the longest sample */
};
int ptc_source_check(const struct ptc_source *s, ptc_source_problem_fn fn, void *arg,
		     struct ptc_source_checked *ret_checked, struct ptc_error *err);

/* Tells a source from another one, and from an earlier state of itself. */
struct ptc_source_file_print {
	char suffix[8]; /* ".idx"; "": the path itself */
	uint64_t bytes;
	int64_t mtime_ns;
	uint64_t ends; /* digest of the first and last 64 KiB; FILES: of all names in order */
};
struct ptc_source_print {
	struct ptc_source_file_print files[2];
	uint32_t nfiles;
	bool whole;
	uint64_t index; /* whole: digest of the index; FILES: of each file's name, size and time of change */
};
/* whole: reads the whole index, or looks at each file of a directory; else in constant time (a directory: its names).
 */
int ptc_source_print(const struct ptc_source *s, bool whole, struct ptc_source_print *ret_print, struct ptc_error *err);
/* PTC_ECORRUPT, and what differs. The index counts where both have it. */
int ptc_source_same(const struct ptc_source *s, const struct ptc_source_print *was, const struct ptc_source_print *now,
		    struct ptc_error *err);
