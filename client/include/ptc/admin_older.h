/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: snapshots that a job keeps beside the committed one (docs/job.md, `keep`). ptc_admin_snapshots lists
 * them. It says of each which nodes do not have their part of it (`absent`), which bytes are on no live node (`lost`),
 * and which blocks are damaged (`damaged`). docs/control.md has all members.
 *
 * Errors, threads, ownership and compatibility: <ptc/admin.h>. */
#ifndef PTC_ADMIN_OLDER_H
#define PTC_ADMIN_OLDER_H

#include <ptc/admin_state.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As ptc_admin_export_resume, but of the snapshot with that number: the committed one, or one that the job keeps. 0:
 * the committed one. PTC_ENOTFOUND: the job does not have it. PTC_EVERSION: the daemon is older. */
PTC_ADMIN_API int ptc_admin_export_snapshot(struct ptc_admin *a, const char *job, uint64_t snapshot,
					    struct ptc_admin_export **ret_export, struct ptc_error *err);

/* Makes the job's state that of an older snapshot again: tensors, rank state, cursors and step. The job must not run.
 * PTC_ENOTFOUND: the job does not keep that snapshot. PTC_ESTATE: its ranks run. */
PTC_ADMIN_API int ptc_admin_rollback(struct ptc_admin *a, const char *job, uint64_t snapshot, ptc_admin_progress_fn fn,
				     void *arg, struct ptc_error *err);

/* Checks whether ptc_admin_rollback would find all of that snapshot's bytes now. The job's ranks may run, and nothing
 * changes. PTC_ELOST: some bytes are on no node that is up; the line names a tensor. An older daemon takes this call
 * for ptc_admin_rollback: it rolls back a job that does not run, and answers PTC_ESTATE for one that runs. So call this
 * only if the job runs, or if all daemons are known to have this call. */
PTC_ADMIN_API int ptc_admin_rollback_check(struct ptc_admin *a, const char *job, uint64_t snapshot,
					   struct ptc_error *err);

/* As ptc_admin_rollback, but the job's place in its data stays as it is now: samples that it has consumed since that
 * snapshot are skipped, and the ledger says which. If the job has made steps since its present snapshot, the samples of
 * these steps come again. PTC_ESTATE: also if nothing says which samples would be skipped. PTC_EVERSION: a daemon is
 * older. */
PTC_ADMIN_API int ptc_admin_rollback_skip(struct ptc_admin *a, const char *job, uint64_t snapshot,
					  ptc_admin_progress_fn fn, void *arg, struct ptc_error *err);

/* Checks whether ptc_admin_rollback_skip would be possible. If the job's ranks run: whether it would be possible after
 * they have stopped with a snapshot. Nothing changes. */
PTC_ADMIN_API int ptc_admin_rollback_skip_check(struct ptc_admin *a, const char *job, uint64_t snapshot,
						struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
