/* SPDX-License-Identifier: Apache-2.0 */
/* The node's health command (`health` in ptcd.yaml): a program that ptcd runs from time to time, and that says whether
 * the node's devices are well.
 *
 * Happy path: each `every_ms` the command runs, in a session of its own, without input. Exit status 0: every device is
 * well. Another status: devices are not well, and are given to no ranks from then on. Lines of the output such as
 * "device 3: reason" name these devices. Without such a line all devices are meant, and the first line is the reason.
 * Standard output and standard error are read together, up to OUTPUT_MAX bytes; the rest is dropped.
 *
 * No verdict: the command cannot be run (also exit status 126 or 127, as shells say it), is ended by a signal, or takes
 * longer than timeout_ms (then its whole process group is killed). The log says so once, and what was known stays.
 *
 * Threads: one of its own runs the command, so nothing waits for it. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct ptc_health_check;
struct ptc_node_devices;

struct ptc_health_check_opts {
	char *const *argv; /* NULL-terminated; all borrowed until _stop */
	int64_t every_ms, timeout_ms;
	struct ptc_node_devices *devices;
};

/* The first run begins at once. */
int ptc_health_check_start(const struct ptc_health_check_opts *opts, struct ptc_health_check **ret,
			   struct ptc_error *err);
/* Ends a command that runs. NULL ok. */
struct ptc_health_check *ptc_health_check_stop(struct ptc_health_check *h);
