/* SPDX-License-Identifier: Apache-2.0 */
/* The results of this node's tries to take jobs' locks, which the control API shows. No failure modes. */
#pragma once

struct ptc_job_view;

/* [loop] One line: why this node cannot read the job, and so leaves its control to others; "": it can, or has not
 * tried. Borrowed until the loop's next turn. */
const char *ptc_lock_unreadable_why(const struct ptc_job_view *j);
