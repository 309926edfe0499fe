/* SPDX-License-Identifier: Apache-2.0 */
/* What describes a job: job.yaml version 1 (docs/job.md) as people write it,
 * and the canonical JSON as daemons send and etcd holds it. Both go through
 * one decoder, so one is as strict as the other; the JSON has the same keys,
 * with everything that refers to files resolved (tensors and rules are
 * lists). A description is immutable once made; readable from any thread. */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "formats/job/blob_rules.h"
#include "reshard/spec/config.h"
#include "reshard/spec/spec.h"

#include <sys/types.h>

#define PTC_JOB_VERSION    PTC_VERSION_NUMBER(1)
#define PTC_JOB_OLDEST     1
#define PTC_JOB_SINCE      PTC_VERSION_NUMBER(1) /* of PTC_DOC_VERSION */
#define PTC_JOB_MAX_GPUS   1024                  /* entries of the gpus table */
#define PTC_JOB_MAX_COPIES 16                    /* more is no protection, and much to move */

struct ptc_job_gpus {
	uint32_t n;
	struct ptc_config config; /* its world is n */
};
#define PTC_RUN_GRACE_MS    30000
#define PTC_RUN_BOUNDARY_MS 1800000
#define PTC_RUN_LOG_BYTES   (UINT64_C(64) << 20)

enum ptc_job_mode { PTC_JOB_RESTART, PTC_JOB_REBUILD };

/* The program of a live job, the same for each rank. */
struct ptc_job_run {
	char **argv; /* NULL-terminated, at least the program */
	size_t argc;
	char **env; /* "NAME=VALUE" in name order, NULL-terminated; NULL: none */
	size_t nenv;
	char *cwd;                    /* NULL until ptc_job_resolve_run; absolute in what daemons get */
	uint64_t grace_ms;            /* between asking a rank to exit and SIGKILL */
	uint64_t boundary_timeout_ms; /* how long a switch waits for a rank's boundary */
	uint64_t build_timeout_ms;    /* for new ranks: to start; then, to build and declare */
	uint64_t log_bytes;           /* of one rank */
};
/* What becomes of a live job when a node or a rank is lost (docs/job.md, "elastic"). */
#define PTC_JOB_RESTARTS_MAX 1000
enum ptc_job_on_failure { PTC_JOB_SHRINK, PTC_JOB_WAIT, PTC_JOB_STOP };
struct ptc_job_elastic {
	uint32_t min_gpus, max_gpus; /* 0: not said */
	enum ptc_job_on_failure on_failure;
	uint32_t max_restarts; /* after errors of the program, within PTC_JOB_RESTARTS_MS; or that came no further */
};
#define PTC_JOB_RESTARTS_MS INT64_C(3600000)
/* What the job consumes, in which order (docs/order.md). */
#define PTC_JOB_MAX_DATA    16
#define PTC_JOB_MAX_PARTS   64 /* as PTC_MIX_MAX of order/order.h */
#define PTC_JOB_MAX_WEIGHT  (UINT32_MAX / PTC_JOB_MAX_PARTS)
struct ptc_job_part {
	char dataset[PTC_NAME_MAX + 1];
	char source[33];  /* ptc_dataset_doc_source when the job was submitted; "": not looked up yet */
	uint64_t samples; /* it had then; 0: not looked up yet */
	bool sequential;
	uint64_t block; /* 0: shuffled as one */
	uint32_t weight;
};
struct ptc_job_data {
	char name[PTC_FIELD_NAME_MAX + 1]; /* of the cursor, too */
	struct ptc_job_part *parts;
	uint32_t nparts;
	uint64_t seed;
	uint32_t global_batch, micro_batch; /* where the configuration says none; 0: not said */
};
/* Names a mixture, as the cursor's tag does: of which datasets, how weighed and in which orders. PTC_ENOMEM or 0. */
int ptc_job_data_mix(const struct ptc_job_data *data, char ret_hex[33]);
/* Who else may read the job's files (docs/files.md). */
#define PTC_JOB_GROUP_MAX     255
#define PTC_JOB_MAX_CARRIED   16
#define PTC_JOB_CARRIED_NAME  127
#define PTC_JOB_CARRIED_BYTES (256u << 10) /* of all together: they are a part of the description */
struct ptc_job_carried {
	char *name, *text; /* UTF-8 */
};
struct ptc_job_files {
	bool shared; /* with members of the group: */
	gid_t gid;
	char group[PTC_JOB_GROUP_MAX + 1]; /* its name, not looked up yet; "": gid is it */
	struct ptc_job_carried *carried;   /* files that each snapshot's directory has beside the state, by name */
	size_t ncarried;
};
struct ptc_job_desc {
	struct ptc_spec spec;      /* without tensors and rules where a live job's ranks declare them */
	struct ptc_job_gpus *gpus; /* ascending n */
	size_t ngpus;
	bool has_run; /* a live job; what follows is for those */
	struct ptc_job_run run;
	enum ptc_job_mode mode;
	bool fast_copy;
	uint64_t snapshot_every; /* steps; 0: never */
	struct ptc_job_elastic elastic;
	bool has_seed;
	uint64_t seed; /* of the job; where it has none, ptc_job_seed makes one of its uuid */
	struct ptc_blob_rules blobs;
	struct ptc_job_data *data; /* by name */
	size_t ndata;
	struct ptc_job_files files;
	char *model, *space; /* for planner/io, JSON; NULL: not described */
	struct ptc_job_copies {
		uint32_t count; /* failure domains that have each region of a snapshot; 1: what the layout gives */
		bool racks;     /* a domain is a rack, where nodes name one */
	} copies;
	bool replan_on_links; /* when measured links change, the planner is asked anew and followed */
	char *source; /* path of tensors.from (a file or directory that could be opened), NULL: none. Not in the JSON */
};

/* Reads path (PTC_JOB_YAML_MAX_BYTES at most) and the headers that tensors.from names, relative to path's directory.
 * rules_path: directories with NAME.yaml rule sets, separated by ':'; NULL: only rules written out are possible. */
int ptc_job_read(const char *path, const char *rules_path, struct ptc_job_desc *ret_job, struct ptc_error *err);
/* Same from memory; what names the text in errors; dir is what tensors.from is relative to (NULL: it is refused). */
int ptc_job_from_yaml(const char *what, const void *data, size_t len, const char *dir, const char *rules_path,
		      struct ptc_job_desc *ret_job, struct ptc_error *err);
/* At most PTC_SPEC_MAX_BYTES. Opens no file. */
int ptc_job_from_json(const void *data, size_t len, struct ptc_job_desc *ret_job, struct ptc_error *err);
/* What nobody may ask for who makes a job: a state that is not carried out, or not there. PTC_EINVAL naming rule, state
 * and what to do; PTC_ELAYOUT naming tensor and dtype where there is no greatest of it. ptc_job_from_yaml asks this;
 * ptc_job_from_json does not, so that jobs made by older versions, which carried max, derive and replicate like any
 * other, can be read for as long as they live. */
int ptc_job_check_states(const struct ptc_job_desc *job, struct ptc_error *err);
/* For whoever submits a live job (nothing is done for others): makes run.cwd absolute, from cwd, which is the
 * submitter's and absolute, and puts the submitter's environment (NULL-terminated) under run.env, without what belongs
 * to its shell and terminal and without what ptcd sets. On failure the description is as it was. */
int ptc_job_resolve_run(struct ptc_job_desc *job, const char *cwd, char *const *environment, struct ptc_error *err);
/* Deterministic: equal descriptions give equal bytes, of one version. ptc_free it. */
int ptc_job_to_json(const struct ptc_job_desc *job, char **ret_json, size_t *ret_len, struct ptc_error *err);
/* 32 hex digits and a NUL, the same for equal descriptions whatever versions write and read them. */
int ptc_job_hash(const struct ptc_job_desc *job, char ret_hex[33], struct ptc_error *err);
void ptc_job_desc_done(struct ptc_job_desc *job);
/* What random streams of the job are derived from (docs/job.md): its own seed, or the first 16 hexadecimal digits of
 * its uuid. */
uint64_t ptc_job_seed(const struct ptc_job_desc *job, const char *uuid);
/* The table's configuration for n devices; NULL: the table has none. */
const struct ptc_config *ptc_job_config_for(const struct ptc_job_desc *job, uint32_t n);
/* deploy/rules/NAME.yaml as they were when this was built, in name order; ends with a NULL name. */
struct ptc_rule_set {
	const char *name, *text;
};
extern const struct ptc_rule_set ptc_rule_sets[];
