/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by ptcd and its helper ptc-exec: the request, the files of a process's folder, and the folder's lock.
 *
 * A helper starts with three descriptors: the request, the pipe for one line of error, and the folder, locked with
 * flock. The request is a memfd, because it may contain secrets and everybody can read an argument list. The lock
 * belongs to the open folder, and the helper holds it as long as it lives. So others can tell "not yet written" from
 * "never will be".
 *
 * For rooms of daemon/workers only. */
#pragma once

#include "base/status.h"
#include "base/sys/child.h"
#include "base/number/versions.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PTC_EXEC_REQUEST_FD 3
#define PTC_EXEC_ERROR_FD   4
#define PTC_EXEC_DIR_FD     5

#define PTC_EXEC_VERSION     PTC_VERSION_NUMBER(1)
#define PTC_EXEC_OLDEST      1
#define PTC_EXEC_REQUEST_MAX (1u << 20) /* bytes; half of what execve takes by default */
#define PTC_EXEC_PATH_MAX    256        /* as in struct ptc_process */
#define PTC_EXEC_STRINGS_MAX 16384      /* arguments and variables */

#define PTC_EXEC_LOW 1u /* in `flags`: begin with a low priority (priority.h); an older helper ignores this */

/* ptc-exec PTC_EXEC_LOOK UID PATH PATH: five numbers for each path, on its standard output (spawn.h). It has none of
 * the descriptors above. */
#define PTC_EXEC_LOOK "--look"

/* Followed by NUL-terminated strings: token, parent cgroup, its name, cwd, argc arguments, envc variables. */
struct ptc_exec_request {
	uint32_t version, bytes; /* bytes: of the strings */
	uint32_t argc, envc;
	uint32_t uid, flags;
	uint64_t log_bytes;
};

/* The file `process`. */
struct ptc_process_record {
	pid_t pid, helper;
	uint64_t start_time;
	char boot[37], token[33];
};

/* dir "": the files are in the working directory. */
int ptc_process_record_write(const char *dir, const struct ptc_process_record *r, struct ptc_error *err);
int ptc_process_record_read(const char *dir, struct ptc_process_record *ret_record, struct ptc_error *err);
int ptc_process_exit_write(const char *dir, int status, struct ptc_error *err);
bool ptc_process_exit_read(const char *dir, int *ret_status);

/* The file `cgroup` is written before the cgroup is made, so ptcd finds the cgroup even if ptcd or the helper is
 * killed. It is not synced, because it means nothing after a reboot. Reading gives "" if there is no file, or if it is
 * from before the last boot. */
bool ptc_process_cgroup_write(const char *cgroup); /* in the working directory */
void ptc_process_cgroup_read(const char *dir, char ret_cgroup[PTC_EXEC_PATH_MAX]);

/* The file `rank` names the rank and incarnation of the log. ptcd writes it, not the helper. It is not synced: without
 * it a log is only harder to find. */
struct ptc_process_label {
	uint32_t rank, world;
	uint64_t generation, incarnation; /* incarnation 0: unknown */
	uint64_t begin;   /* offset in the log where that incarnation begins; a process may have several */
	int64_t since_ms; /* realtime */
};
bool ptc_process_label_write(const char *dir, const struct ptc_process_label *l);
bool ptc_process_label_read(const char *dir, struct ptc_process_label *ret_label);

/* The file `held`: since when the process has been frozen, by CLOCK_MONOTONIC. That is ptcd's clock for holds: nobody
 * sets it, and it stands while the machine sleeps. Where an older ptcd has written the file, its time in the file
 * system counts. It is not synced. Writing begins the time anew. */
int ptc_process_held_write(const char *dir, struct ptc_error *err);
int64_t ptc_process_held_s(const char *dir); /* for how long, in seconds; -1: it is not frozen */

/* The most memory that a process has had to itself, in bytes: without pages of files and shared memory, which are
 * counted where they belong. cgroup: of the process, or ""; where it counts memory, what the other processes in it have
 * now is added. At least what it has now; 0: nobody can say. */
uint64_t ptc_process_memory_peak(pid_t pid, const char *cgroup);

int ptc_process_boot_id(char ret_boot[37], struct ptc_error *err);
