/* SPDX-License-Identifier: Apache-2.0 */
/* A job's archive (`archive:` in job.yaml): after a commit ptc-archive, a process of the job's owner, writes a
 * checkpoint of the committed state into the archive's directory (docs/archive.md). The controller starts it, hears how
 * it ended, and tells it by an event.
 *
 *   REST --there is a newer snapshot, it is due--> STARTING --> RUNNING --> REST
 *
 * It works beside switches: the process pins what it reads. A new controller starts the process once, and the process
 * finds in the directory what is archived already. When the controller goes, the process ends and removes what it has
 * not finished. If it is killed, the next process removes this.
 *
 * Once a node has a few such processes, it starts more only for users who have none. So if a user's directory does not
 * answer, only this user's jobs wait. A process counts until it has ended: one that hangs in the kernel is left when
 * its job goes, and nothing waits for it.
 *
 * Failure modes: the process fails (an event; it is tried again, later each time), cannot be started, or ends without a
 * word (the same). Threads: the loop, but for the task that starts the process. */
#pragma once

#include "daemon/controller/archiving/archive_said.h"
#include "daemon/controller/internal.h"

/* [loop] As far as this controller knows, borrowed until the loop goes on. NULL: the job has no archive, or it is not
 * known yet. */
const struct ptc_archive_state *ptc_archiver_state(const struct ptc_controller *ctl);
