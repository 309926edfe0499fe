/* SPDX-License-Identifier: Apache-2.0 */
/* A directory whose files are the samples: all regular files under it, however deep, in the byte order of their paths
 * relative to it. Names that begin with '.' are left out, folders too. Links to files count as files; a link to a
 * folder is refused, because it may lead round.
 *
 * Happy path: open reads all names and sorts them; sizes are asked for when a sample is. Failure modes: PTC_EINVAL with
 * the path of something that is neither file nor folder; PTC_ELIMIT; a file has gone when it is asked for. */
#include "dataset/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct walk {
	struct ptc_source *s;
	uint64_t names_cap, files_cap;
	char path[PTC_SOURCE_PATH_MAX + 256]; /* relative to the source */
	struct ptc_error *err;
};

static int add(struct walk *w, size_t len)
{
	struct ptc_source *s = w->s;

	if (s->info.samples == PTC_SOURCE_FILES_MAX || s->names_bytes + len + 1 > PTC_SOURCE_NAMES_BYTES)
		return ptc_error_set(w->err, PTC_ELIMIT,
				     "%s: more than %u files, or names of more than %" PRIu64
				     " bytes; put so many samples into an indexed dataset",
				     s->data.path, PTC_SOURCE_FILES_MAX, PTC_SOURCE_NAMES_BYTES);
	if (!PTC_ROOM(s->names, s->names_bytes + len + 1, w->names_cap) ||
	    !PTC_ROOM(s->name_at, s->info.samples + 1, w->files_cap))
		return ptc_nomem(w->err);
	s->name_at[s->info.samples++] = s->names_bytes;
	memcpy(s->names + s->names_bytes, w->path, len + 1);
	s->names_bytes += len + 1;
	return 0;
}

static int walk(struct walk *w, int fd, size_t len, int depth);

/* w->path, of len bytes, is the entry; name its last part. */
static int entry(struct walk *w, int dir, const char *name, size_t len, int depth)
{
	struct stat st, own;
	int fd;

	if (fstatat(dir, name, &st, 0) < 0 || fstatat(dir, name, &own, AT_SYMLINK_NOFOLLOW) < 0)
		return ptc_error_errno(w->err, errno, "cannot look at %s/%s", w->s->data.path, w->path);
	if (S_ISREG(st.st_mode))
		return add(w, len);
	if (!S_ISDIR(own.st_mode))
		return ptc_error_set(w->err, PTC_EINVAL,
				     "%s/%s is neither a file nor a folder, so it can't be a sample; take it out",
				     w->s->data.path, w->path);
	if (depth == PTC_SOURCE_DEPTH_MAX)
		return ptc_error_set(w->err, PTC_ELIMIT, "%s/%s lies deeper than %d folders", w->s->data.path, w->path,
				     PTC_SOURCE_DEPTH_MAX);
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return ptc_error_errno(w->err, errno, "cannot open %s/%s", w->s->data.path, w->path);
	return walk(w, fd, len, depth + 1);
}

/* The entries of fd, which it closes. */
static int walk(struct walk *w, int fd, size_t len, int depth)
{
	DIR *d = fdopendir(fd);
	struct dirent *e;
	int rc = 0;

	if (!d) {
		close(fd);
		return ptc_error_errno(w->err, errno, "cannot list %s/%s", w->s->data.path, w->path);
	}
	while (!rc && (errno = 0, e = readdir(d))) {
		size_t n = strlen(e->d_name), at = len ? len + 1 : 0;

		if (e->d_name[0] == '.')
			continue;
		if (at + n >= PTC_SOURCE_PATH_MAX) {
			rc = ptc_error_set(w->err, PTC_ELIMIT, "%s/%.200s...: a path of more than %d bytes",
					   w->s->data.path, w->path, PTC_SOURCE_PATH_MAX);
			break;
		}
		if (len)
			w->path[len] = '/';
		memcpy(w->path + at, e->d_name, n + 1);
		rc = entry(w, dirfd(d), e->d_name, at + n, depth);
	}
	if (!rc && errno)
		rc = ptc_error_errno(w->err, errno, "cannot list %s", w->s->data.path);
	w->path[len] = '\0';
	closedir(d);
	return rc;
}

static int by_name(const void *a, const void *b, void *names)
{
	const uint64_t *x = a, *y = b;

	return strcmp((const char *)names + *x, (const char *)names + *y);
}

static int files_open(struct ptc_source *s, const struct ptc_source_spec *spec, struct ptc_error *err)
{
	struct walk w = { .s = s, .err = err };
	int fd, rc;

	if (spec->dtype || spec->record)
		return ptc_error_set(err, PTC_EINVAL, "a directory of files takes neither dtype nor record length");
	s->data.path = ptc_strdup(spec->path);
	if (!s->data.path)
		return ptc_nomem(err);
	s->data.fd = open(spec->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->data.fd < 0)
		return ptc_error_errno(err, errno, "cannot open the directory %s", spec->path);
	fd = openat(s->data.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* one that closedir may close */
	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot open the directory %s", spec->path);
	rc = walk(&w, fd, 0, 0);
	if (!rc && !s->info.samples)
		rc = ptc_error_set(err, PTC_EINVAL, "%s has no files", spec->path);
	if (rc)
		return rc;
	qsort_r(s->name_at, s->info.samples, sizeof *s->name_at, by_name, s->names);
	s->info.memory_bytes += w.names_cap + w.files_cap * sizeof *s->name_at;
	return 0;
}

const char *ptc_source_file(const struct ptc_source *s, uint64_t i)
{
	return s->names + s->name_at[i];
}

static int look(const struct ptc_source *s, uint64_t i, struct stat *ret, struct ptc_error *err)
{
	const char *name = s->names + s->name_at[i];

	if (fstatat(s->data.fd, name, ret, 0) < 0)
		return ptc_error_errno(err, errno, "cannot look at %s/%s", s->data.path, name);
	if (!S_ISREG(ret->st_mode))
		return ptc_error_set(err, PTC_EINVAL, "%s/%s is not a file any more", s->data.path, name);
	return 0;
}

static int sample(const struct ptc_source *s, uint64_t i, struct ptc_source_sample *ret, struct ptc_error *err)
{
	struct stat st;
	int rc = look(s, i, &st, err);

	if (rc)
		return rc;
	*ret = (struct ptc_source_sample){ s->names + s->name_at[i], 0, (uint64_t)st.st_size };
	return 0;
}

static int check(const struct ptc_source *s, struct ptc_source_report *r, struct ptc_error *err)
{
	(void)err;
	for (uint64_t i = 0; i < s->info.samples && !r->enough; i++) {
		const char *name = s->names + s->name_at[i];
		struct ptc_error bad = PTC_ERROR_INIT;
		struct stat st;

		if (look(s, i, &st, &bad)) {
			ptc_source_problem(r, "%s", bad.text);
			continue;
		}
		if (faccessat(s->data.fd, name, R_OK, AT_EACCESS) < 0)
			ptc_source_problem(r, "cannot read %s/%s: %s", s->data.path, name, strerror(errno));
		r->checked.bytes += (uint64_t)st.st_size;
		r->checked.longest = PTC_MAX(r->checked.longest, (uint64_t)st.st_size);
	}
	return 0;
}

uint64_t ptc_source_files_digest(const struct ptc_source *s)
{
	uint64_t digest = 0;

	for (uint64_t i = 0; i < s->info.samples; i++) {
		const char *name = s->names + s->name_at[i];

		digest = ptc_digest_append(digest, name, strlen(name) + 1);
	}
	return digest;
}

int ptc_source_files_index(const struct ptc_source *s, uint64_t *ret_digest, uint64_t *ret_bytes, struct ptc_error *err)
{
	uint64_t digest = 0, bytes = 0;

	for (uint64_t i = 0; i < s->info.samples; i++) {
		char line[64];
		struct stat st;
		const char *name = s->names + s->name_at[i];
		int n, rc = look(s, i, &st, err);

		if (rc)
			return rc;
		n = snprintf(line, sizeof line, "%" PRIu64 " %" PRId64 ".%09ld", (uint64_t)st.st_size,
			     (int64_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
		digest = ptc_digest_append(digest, name, strlen(name) + 1);
		digest = ptc_digest_append(digest, line, (size_t)n + 1);
		bytes += (uint64_t)st.st_size;
	}
	*ret_digest = digest;
	*ret_bytes = bytes;
	return 0;
}

const struct ptc_source_ops ptc_source_files = { files_open, sample, check };
