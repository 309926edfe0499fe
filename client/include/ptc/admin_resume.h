/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: the state of a job beside its tensors: the step, the ranks' states, and which samples were consumed. An
 * export gives these, and an import takes them, so that the job goes on where it was.
 *
 * Errors, threads, ownership and compatibility: <ptc/admin.h>. */
#ifndef PTC_ADMIN_RESUME_H
#define PTC_ADMIN_RESUME_H

#include <ptc/admin_state.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As ptc_admin_export_info, with `state` and `ledger`. */
PTC_ADMIN_API int ptc_admin_export_resume(struct ptc_admin *a, const char *job, struct ptc_admin_export **ret_export,
					  struct ptc_error *err);

/* `state` and `ledger` are as ptc_admin_export_resume gave them. */
struct ptc_admin_resume {
	size_t size;
	uint64_t step;     /* steps that are over */
	const void *state; /* the ranks' states, state_len bytes; 0: none */
	size_t state_len;
	const void *ledger; /* the samples that were consumed, ledger_len bytes; 0: none */
	size_t ledger_len;
};
/* As ptc_admin_import_commit, but the job then goes on from `resume` instead of beginning at step 0. The import's
 * `resumes` must be true. */
PTC_ADMIN_API int ptc_admin_import_resume(struct ptc_admin *a, const char *job, uint64_t import_id,
					  const uint64_t *digests, size_t ndigests,
					  const struct ptc_admin_resume *resume, ptc_admin_progress_fn fn, void *arg,
					  struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
