/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a byte that chooses a kind of source, then a file of that
 * kind: an index beside 256 bytes of data, an array of NumPy's, plain elements.
 * Every sample of a source that opens lies in its file, can be read, and the
 * check of the whole source agrees. */
#include "base/check.h"
#include "dataset/source.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define DATA_BYTES  256
#define SAMPLES_MAX 64 /* looked at one by one */

static char dir[64];

static void remove_files(void)
{
	static const char *const names[] = { "d.idx", "d.bin", "d.npy", "d.flat" };
	char path[96];

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++) {
		snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		(void)!unlinkat(AT_FDCWD, path, 0); /* not there: fine */
	}
	(void)!rmdir(dir);
}

static void put(const char *name, const void *data, size_t len)
{
	char path[96];
	int fd;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	ptc_require(fd >= 0 && write(fd, data, len) == (ssize_t)len);
	close(fd);
}

static int say_nothing(void *arg, const char *text)
{
	(void)arg;
	ptc_require(*text && !strchr(text, '\n'));
	return 0;
}

static void look(const struct ptc_source *s)
{
	const struct ptc_source_info *info = ptc_source_info(s);
	struct ptc_source_checked checked;
	uint64_t bad = 0;
	char buf[DATA_BYTES];

	for (uint64_t i = 0; i < info->samples && i < SAMPLES_MAX; i++) {
		struct ptc_source_sample at;

		if (ptc_source_sample(s, i, &at, NULL)) {
			bad++;
			continue;
		}
		ptc_require(at.offset <= info->bytes && at.length <= info->bytes - at.offset);
		if (at.length <= sizeof buf)
			ptc_require(ptc_source_read(s, i, 0, buf, at.length, NULL) == 0);
	}
	if (ptc_source_check(s, say_nothing, NULL, &checked, NULL) == 0)
		ptc_require(!bad || checked.problems);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const uint8_t tokens[DATA_BYTES] = { 1, 2, 3 };
	struct ptc_source_spec spec = { .dtype = PTC_SOURCE_NO_DTYPE };
	struct ptc_source *s;
	char path[96];

	if (!len)
		return 0;
	if (!dir[0]) {
		snprintf(dir, sizeof dir, "/dev/shm/ptc-fuzz-source-XXXXXX");
		ptc_require(mkdtemp(dir) && atexit(remove_files) == 0);
	}
	if (data[0] % 3 == 0) {
		spec.kind = PTC_SOURCE_INDEXED;
		put("d.bin", tokens, sizeof tokens);
	} else if (data[0] % 3 == 1) {
		spec.kind = PTC_SOURCE_NPY;
	} else {
		spec = (struct ptc_source_spec){ .kind = PTC_SOURCE_FLAT,
						 .dtype = PTC_SOURCE_U16,
						 .record = 1 + data[0] / 3 };
	}
	snprintf(path, sizeof path, "%s/%s", dir,
		 spec.kind == PTC_SOURCE_INDEXED ? "d.idx"
		 : spec.kind == PTC_SOURCE_NPY   ? "d.npy"
						 : "d.flat");
	put(strrchr(path, '/') + 1, data + 1, len - 1);
	spec.path = path;
	if (ptc_source_open(&spec, &s, NULL))
		return 0;
	look(s);
	ptc_source_close(s);
	return 0;
}
