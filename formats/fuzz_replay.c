/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz entry point over every file of the directories given, and over
 * every prefix of each, so that a corpus is worth more than its files. Exit 1
 * when a directory can't be read or holds nothing. */
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define INPUT_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int replay_file(const char *path)
{
	ptc_auto_free char *data = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t len = 0;

	if (ptc_sys_read_file(path, INPUT_MAX, &data, &len, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	for (size_t n = 0; n <= len; n++) {
		/* A copy of the exact size, so that reading beyond it is seen. */
		ptc_auto_free uint8_t *input = ptc_malloc(n ? n : 1);

		if (!input)
			return 1;
		memcpy(input, data, n);
		LLVMFuzzerTestOneInput(input, n);
	}
	return 0;
}

static int replay_directory(const char *dir)
{
	struct dirent *entry;
	DIR *d = opendir(dir);
	int files = 0, rc = 0;

	if (!d) {
		perror(dir);
		return 1;
	}
	while ((entry = readdir(d)) && !rc) {
		ptc_auto_free char *path = ptc_asprintf("%s/%s", dir, entry->d_name);

		if (entry->d_name[0] == '.')
			continue;
		rc = path ? replay_file(path) : 1;
		files++;
	}
	closedir(d);
	if (!files)
		fprintf(stderr, "%s: no corpus\n", dir);
	return rc || !files;
}

int main(int argc, char **argv)
{
	int rc = argc < 2;

	for (int i = 1; i < argc && !rc; i++)
		rc = replay_directory(argv[i]);
	return rc;
}
