/* SPDX-License-Identifier: Apache-2.0 */
/* What describes a job: job.yaml version 1 (docs/job.md) as people write it,
 * and the canonical JSON as daemons send and etcd holds it. Both go through
 * one decoder, so one is as strict as the other; the JSON has the same keys,
 * with everything that refers to files resolved (tensors and rules are
 * lists). A description is immutable once made; readable from any thread. */
#pragma once

#include "reshard/config.h"
#include "reshard/spec.h"

#define PTC_JOB_VERSION  1
#define PTC_JOB_MAX_GPUS 1024 /* entries of the gpus table */

struct ptc_job_gpus {
	uint32_t n;
	struct ptc_config config; /* its world is n */
};
struct ptc_job_desc {
	struct ptc_spec spec;
	struct ptc_job_gpus *gpus; /* ascending n */
	size_t ngpus;
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
/* Deterministic: equal descriptions give equal bytes. ptc_free it. */
int ptc_job_to_json(const struct ptc_job_desc *job, char **ret_json, size_t *ret_len, struct ptc_error *err);
void ptc_job_desc_done(struct ptc_job_desc *job);
/* The table's configuration for n devices; NULL: the table has none. */
const struct ptc_config *ptc_job_config_for(const struct ptc_job_desc *job, uint32_t n);
