/* SPDX-License-Identifier: Apache-2.0 */
/* For daemon/planning only: the documents of which each struct ptc_job_work ("work") is made, and works that callers
 * share. */
#pragma once

#include "daemon/planning/job_work.h"

/* {version, profile, set_ms, pairs, measured_ms}: docs/control.md, "profile". */
#define PTC_PROFILE_KEY   "/ptc/profile"
#define PTC_PROFILING_KEY "/ptc/profiling" /* the node that measures links, under its lease */
#define PTC_MEASURED_KEY  64

void ptc_planning_measured_key(const char *uuid, char ret_key[PTC_MEASURED_KEY]);
/* The documents as etcd has them, or had them when it answered last; ptc_free them. NULL: there is none. */
char *ptc_planning_profile(struct ptc_planning *p);
/* To be written back: the profile as etcd has it now, and its revision. *ret NULL, 0: there is none. */
int ptc_planning_profile_now(struct ptc_planning *p, char **ret, int64_t *ret_revision, struct ptc_error *err);
struct ptc_etcd *ptc_planning_etcd(struct ptc_planning *p);
int64_t ptc_planning_lease(struct ptc_planning *p); /* of this node; 0: there is none now */
/* A work for that ask, shared; given back with release. */
int ptc_planning_work(struct ptc_planning *p, const struct ptc_planning_ask *ask, struct ptc_job_work **ret,
		      struct ptc_error *err);
void ptc_planning_work_release(struct ptc_job_work *w); /* NULL ok */
