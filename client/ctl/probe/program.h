/* SPDX-License-Identifier: Apache-2.0 */
/* A job's program, run by the caller for a probe: one process in a session of its own, with a limit on its memory and
 * without CUDA devices. It dies with us. Its output is read from a pipe, and the end of it is kept.
 *
 * Happy path: start; read whenever `output` is readable; end. One thread.
 *
 * Failure modes: the program or its working directory cannot be used (the code of the errno), PTC_ENOMEM. */
#pragma once

#include "base/sys/child.h"
#include "formats/job/job.h"

#define CTL_PROGRAM_TAIL 4096 /* bytes of output that are kept */

struct ctl_program_rank { /* what the environment says; as ptcd sets it */
	uint32_t rank, world, local_rank, local_world, node_rank;
};
struct ctl_program {
	struct ptc_child child;
	int output; /* -1: it has closed it */
	char token[33];
	char tail[CTL_PROGRAM_TAIL + 1];
	size_t ntail;
	bool cut; /* the tail begins within a line */
};
struct ctl_program_start {
	const struct ptc_job_desc *job; /* its run is resolved */
	const char *socket, *name;
	const struct ctl_program_rank *rank; /* NULL: the program asks which rank it is (mode rebuild) */
	uint64_t memory_bytes;
};
int ctl_program_start(const struct ctl_program_start *s, struct ctl_program *ret, struct ptc_error *err);
/* Reads what there is without waiting. show: writes it to standard error, too. */
void ctl_program_read(struct ctl_program *p, bool show);
/* Writes the last lines that were kept to standard error. */
void ctl_program_put_tail(const struct ctl_program *p);
/* Kills what runs of it, and waits for its end. *ret_status (may be NULL): waitpid's status. */
void ctl_program_end(struct ctl_program *p, int *ret_status);
/* Processes that a program started and that have left its session become this process's children when their parents
 * end. Call the first before any program starts, the second when all have ended: it kills every child there is. */
void ctl_program_adopt(void);
void ctl_program_end_strays(void);
