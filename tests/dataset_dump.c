/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what dataset/ reads, for tests/test_dataset.py. A line in, fields between tabs; the answer, then a line ".":
 *   open KIND DTYPE RECORD PATH            info; the source stays open for what follows
 *   sample FIRST COUNT                     FILE OFFSET LENGTH of each
 *   read I OFFSET LEN                      the bytes in hex
 *   check                                  problems, then the sums
 *   print WHOLE | same                     keeps the fingerprint; compares the source as it is now, opened again
 *   rss                                    kilobytes
 * An error is "error CODE TEXT". DTYPE "-": none. */
#include "base/alloc.h"
#include "dataset/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static struct ptc_source *source;
static struct ptc_source_spec spec;
static char path[8192];
static struct ptc_source_print kept;

static void failed(const struct ptc_error *err)
{
	printf("error %d %s\n", err->code, err->text);
}

static void do_open(char **f)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_source_info *info;

	source = ptc_source_close(source);
	spec = (struct ptc_source_spec){ .path = path };
	snprintf(path, sizeof path, "%s", f[4]);
	if (!ptc_source_kind_parse(f[1], &spec.kind) ||
	    (strcmp(f[2], "-") && !ptc_source_dtype_parse(f[2], &spec.dtype)))
		exit(2);
	spec.record = strtoull(f[3], NULL, 10);
	if (ptc_source_open(&spec, &source, &err)) {
		failed(&err);
		return;
	}
	info = ptc_source_info(source);
	printf("%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
	       info->dtype ? ptc_source_dtype_name(info->dtype) : "-", info->record, info->samples, info->documents,
	       info->left_out, info->memory_bytes);
}

static void do_sample(char **f)
{
	uint64_t first = strtoull(f[1], NULL, 10), n = strtoull(f[2], NULL, 10);

	for (uint64_t i = first; i < first + n; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_source_sample s;

		if (ptc_source_sample(source, i, &s, &err))
			failed(&err);
		else
			printf("%s\t%" PRIu64 "\t%" PRIu64 "\n", s.file, s.offset, s.length);
	}
}

static void do_read(char **f)
{
	uint64_t i = strtoull(f[1], NULL, 10), at = strtoull(f[2], NULL, 10), n = strtoull(f[3], NULL, 10);
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned char *buf = malloc(n + 1);

	if (ptc_source_read(source, i, at, buf, n, &err)) {
		failed(&err);
	} else {
		for (uint64_t k = 0; k < n; k++)
			printf("%02x", buf[k]);
		printf("\n");
	}
	free(buf);
}

static int problem(void *arg, const char *text)
{
	printf("problem %s\n", text);
	return ++*(int *)arg == 1000;
}

static void do_check(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_source_checked c;
	int n = 0;

	if (ptc_source_check(source, problem, &n, &c, &err))
		failed(&err);
	else
		printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", c.problems, c.bytes, c.unused, c.longest);
}

static void do_print(char **f, bool compare)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_source_print now;
	struct ptc_source *s = NULL;

	if (ptc_source_open(&spec, &s, &err) ||
	    ptc_source_print(s, compare ? kept.whole : f[1][0] == '1', &now, &err) ||
	    (compare && ptc_source_same(s, &kept, &now, &err)))
		failed(&err);
	else
		printf("ok\n");
	if (!compare)
		kept = now;
	ptc_source_close(s);
}

int main(void)
{
	char line[16384];

	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	while (fgets(line, sizeof line, stdin)) {
		char *f[8] = { 0 }, *rest = line;
		int n = 0;

		line[strcspn(line, "\n")] = '\0';
		while (n < 8 && rest)
			f[n++] = strsep(&rest, "\t");
		if (!strcmp(f[0], "open") && n == 5)
			do_open(f);
		else if (!strcmp(f[0], "sample") && n == 3)
			do_sample(f);
		else if (!strcmp(f[0], "read") && n == 4)
			do_read(f);
		else if (!strcmp(f[0], "check"))
			do_check();
		else if (!strcmp(f[0], "print") || !strcmp(f[0], "same"))
			do_print(f, f[0][0] == 's');
		else if (!strcmp(f[0], "rss")) {
			struct rusage u;

			getrusage(RUSAGE_SELF, &u);
			printf("%ld\n", u.ru_maxrss);
		} else
			return 2;
		printf(".\n");
		fflush(stdout);
	}
	ptc_source_close(source);
	return ptc_alloc_live() == 0 ? 0 : 3;
}
