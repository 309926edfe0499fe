/* SPDX-License-Identifier: Apache-2.0 */
/* A job's committed state as a checkpoint of torch.distributed.checkpoint (docs/archive.md): a directory that plain
 * dcp.load reads, with ptc's own documents beside it.
 *
 * Writing: the state is pinned, read once in the order of its files, compared with the committed digests as it comes,
 * written into a temporary directory, made durable, read back and compared again; then the directory gets its name.
 * Reading: what DIR says is checked against the job before a byte is sent.
 *
 * Failure modes, each with the path: PTC_EEXIST (the directory is there, and not empty), PTC_EDIGEST, PTC_EINVAL (not
 * such a directory, or not of this job), PTC_ENOSPC and the other codes of errno, and what the daemon says. What was
 * not finished is removed. */
#pragma once

#include "client/ctl/line/ctl.h"
#include "client/ctl/show/show.h"
#include "formats/dcp/dcp_tensor.h"
#include "formats/pickle/pickle.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <ptc/admin_resume.h>
#include <ptc/admin_older.h>

#define CTL_CK_DOCUMENT "ptc.json"
#define CTL_CK_STATE    "ptc-state.json"
#define CTL_CK_LEDGER   "ptc-ledger.json"
#define CTL_CK_LAYOUT   "ptc-layout.json"
#define CTL_CK_FILE     "__0_0.distcp"
#define CTL_CK_VERSION  1

/* ---- writing ---- */

struct ctl_ck_written {
	uint64_t generation, snapshot, step, bytes;
};
struct ctl_ck_write_opts {
	uint64_t rate; /* bytes a second at most; 0: no limit */
};
/* dir: does not exist, or is empty. Takes info over. */
int ctl_ck_write_info(struct ctl *c, const char *job, const char *dir, struct ptc_admin_export *info,
		      const struct ctl_ck_write_opts *opts, struct ctl_ck_written *ret, struct ptc_error *err);

/* ---- reading ---- */

/* Keys of a state dict for a job's items: where it begins. */
struct ctl_ck_prefixes {
	const char *model, *optim; /* "model.", "optim." */
};
struct ctl_ck_source {
	char *dir;
	struct ptc_dcp d;
	char *document; /* ptc.json; NULL: the directory is PyTorch's own */
	json_t *root;   /* of it */
	/* what a job goes on with; from ptc's own documents, else empty */
	struct ptc_admin_resume resume;
	char *state, *ledger; /* behind resume */
	const char *config;   /* of the ranks whose state it was; NULL: not known */
	char *layout;         /* what they had declared (formats/state/layout_doc.h); NULL: not known */
	size_t layout_len;
};
/* Whether `path` is a directory with a checkpoint. */
bool ctl_ck_is(const char *path);
int ctl_ck_open(const char *dir, struct ctl_ck_source *ret, struct ptc_error *err);
void ctl_ck_close(struct ctl_ck_source *s); /* a zeroed one is fine */
/* *ret: for each item its entry; ptc_free it. Names, dtypes and shapes are the job's, and nothing of the model or the
 * optimizer's state is left over. */
int ctl_ck_match(const struct ctl_ck_source *s, const struct ptc_spec *spec, const struct ctl_ck_prefixes *prefixes,
		 const struct ptc_dcp_entry ***ret, struct ptc_error *err);
/* The digest that ptc.json has of a key. False: there is none. */
bool ctl_ck_digest(const struct ctl_ck_source *s, const char *key, uint64_t *ret);
