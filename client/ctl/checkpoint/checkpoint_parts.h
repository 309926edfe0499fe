/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of client/ctl/checkpoint: the checkpoint that is being written. */
#pragma once

#include "client/ctl/checkpoint/checkpoint.h"

#define CTL_CK_NO_ITEM UINT32_MAX

/* What an entry of the checkpoint contains: the bytes of one of the job's items, or bytes of its own, which are a whole
 * part as torch.save writes it. */
struct ctl_ck_content {
	uint32_t item; /* CTL_CK_NO_ITEM: data */
	char *data;
	size_t len;
};
struct ctl_ck_plan {
	struct ptc_dcp d;
	struct ctl_ck_content *contents; /* of each entry */
	uint64_t bytes;                  /* of tensors of items */
};
/* checkpoint_plan.c: adds all items to p, and then gives each part its place. On failure too, the caller ends p. */
int ctl_ck_plan(struct ctl_ck_plan *p, const struct ptc_spec *spec, struct ptc_error *err);
void ctl_ck_plan_done(struct ctl_ck_plan *p); /* a zeroed one is fine */
/* An entry whose key is made of `n` names; takes nothing. *ret is in p, with no parts. */
int ctl_ck_plan_add(struct ctl_ck_plan *p, const char *const *names, unsigned n, struct ptc_dcp_entry **ret,
		    struct ctl_ck_content **ret_content, struct ptc_error *err);
/* checkpoint_options.c, before ctl_ck_plan: adds param_groups, from the optimizer's state that ptc.torch keeps. Nothing
 * where there is none. */
int ctl_ck_plan_options(struct ctl_ck_plan *p, const struct ptc_admin_export *info, struct ptc_error *err);

/* checkpoint_docs.c: ptc.json and the documents that it names, into dir. */
int ctl_ck_write_documents(const char *dir, const char *job, const struct ptc_admin_export *info,
			   const struct ctl_ck_plan *p, const void *metadata, size_t len, struct ptc_error *err);
/* checkpoint_verify.c: reads all of it back, and compares. */
int ctl_ck_verify(const char *dir, const struct ctl_ck_plan *p, const struct ptc_admin_export *info,
		  struct ctl_progress *progress, struct ptc_error *err);
