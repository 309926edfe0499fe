/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/meminfo and the files of this process's control group, of version 2 or 1. Failure modes: a file that is
 * missing sets no limit; without /proc/meminfo both numbers are 0, so nobody takes memory because of them. */
#include "base/memory/machine_memory.h"

#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The kernel names a group within its hierarchy; these folders are where the hierarchies are mounted. */
static const struct hierarchy {
	const char *own; /* in /proc/self/cgroup, between the colons */
	const char *folder, *limit, *used, *stat;
	const char *cache; /* in the file stat: pages of files, which can be dropped */
} hierarchies[] = {
	{ "", "/sys/fs/cgroup", "memory.max", "memory.current", "memory.stat", "inactive_file" },
	{ "memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat",
	  "total_inactive_file" },
};

/* The number behind a word at the beginning of a line. word "": the first number of the file. */
static bool number_of(const char *path, const char *word, uint64_t *ret)
{
	ptc_auto_fclose FILE *f = fopen(path, "re");
	char line[256];
	size_t n = strlen(word);

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, word, n) && sscanf(line + n, "%" SCNu64, ret) == 1)
			return true;
	return false;
}

/* The group of this process; false: the hierarchy is not there. */
static bool own_group(const char *own, char ret[PATH_MAX])
{
	ptc_auto_fclose FILE *f = fopen("/proc/self/cgroup", "re");
	char line[PATH_MAX + 64], name[64];

	while (f && fgets(line, sizeof(line), f)) {
		const char *colon = strchr(line, ':'), *path = colon ? strchr(colon + 1, ':') : NULL;

		if (!path)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)(path - colon - 1), colon + 1);
		if (strcmp(name, own) != 0)
			continue;
		snprintf(ret, PATH_MAX, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
		return true;
	}
	return false;
}

static bool in_group(const struct hierarchy *h, const char *group, const char *file, const char *word, uint64_t *ret)
{
	char path[2 * PATH_MAX];

	snprintf(path, sizeof(path), "%s%s/%s", h->folder, group, file);
	return number_of(path, word, ret);
}

/* The least limit of the group and of those above it; *ret_left: what is left of it. */
static void bound_by_group(const struct hierarchy *h, uint64_t *total, uint64_t *left)
{
	char group[PATH_MAX];
	uint64_t limit, used, cache;
	char *slash;

	if (!own_group(h->own, group))
		return;
	do {
		if (in_group(h, group, h->limit, "", &limit)) {
			cache = used = 0;
			in_group(h, group, h->used, "", &used);
			in_group(h, group, h->stat, h->cache, &cache);
			used -= PTC_MIN(used, cache);
			*total = PTC_MIN(*total, limit);
			*left = PTC_MIN(*left, limit - PTC_MIN(limit, used));
		}
		slash = strrchr(group, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
}

static void look(uint64_t *ret_total, uint64_t *ret_available)
{
	uint64_t total = 0, available = 0;

	number_of("/proc/meminfo", "MemTotal:", &total);
	number_of("/proc/meminfo", "MemAvailable:", &available);
	*ret_total = total << 10;
	*ret_available = available << 10;
	for (size_t i = 0; i < PTC_ARRAY_LEN(hierarchies); i++)
		bound_by_group(&hierarchies[i], ret_total, ret_available);
}

uint64_t ptc_machine_memory(void)
{
	uint64_t total, available;

	look(&total, &available);
	return total;
}

uint64_t ptc_machine_memory_available(void)
{
	uint64_t total, available;

	look(&total, &available);
	return available;
}
