/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the job decoder; for formats/ only. Each function reads one key of job.yaml or of the
 * canonical JSON into the description, or writes one. */
#pragma once

#include "formats/doc_rows.h"
#include "formats/job/job.h"

#define PTC_MAX_PARAMETERS 16
/* The value of "$name" in a rule set. */
struct ptc_job_parameter {
	const char *name; /* borrowed from the doc */
	int64_t value;
};

struct ptc_job_decoder {
	const struct ptc_doc *doc; /* the document of the nodes; a rule set file has its own */
	const char *dir;           /* folder of files that the job names; NULL: it may name none */
	const char *rules_path;    /* NULL: the job may name no rule set */
	struct ptc_job_desc *job;
	bool yaml; /* job.yaml from a person: missing values get their defaults, and states are checked */
	size_t rules_cap;
	struct ptc_job_parameter parameters[PTC_MAX_PARAMETERS]; /* parameters of the current rule set */
	size_t nparameters;
	bool has_buffers; /* the job or a rule set has given buffers; the job's are decoded first and win */
	bool own_buffers;
	bool in_set;  /* the current nodes belong to a named rule set */
	bool scanned; /* job has its tensors already, and the document has an empty list */
	struct ptc_error *err;
};

/* Words in the order of the enums of reshard/spec/rule.h. */
#define PTC_JOB_AXES   6
#define PTC_JOB_KINDS  3
#define PTC_JOB_STATES 6
extern const char *const ptc_job_axes[PTC_JOB_AXES], *const ptc_job_kinds[PTC_JOB_KINDS],
							     *const ptc_job_states[PTC_JOB_STATES];

/* Decodes "rules": a list, or the name of a rule set. Fields must be decoded before. */
int ptc_job_decode_rules(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
/* In job_split.c: decode keys of a rule into r, which has no value yet. node NULL: take base's value (base NULL: the
 * default). */
int ptc_job_decode_splits(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			  struct ptc_rule *r);
int ptc_job_decode_expert(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			  struct ptc_rule *r);
int ptc_job_decode_shard(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			 struct ptc_rule *r);
/* Decodes "buffers" of the job or of a rule set into the spec; node NULL: does nothing. */
int ptc_job_decode_buffers(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
int ptc_job_decode_gpus(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
/* Decodes "run" and the keys that belong to it, from the job's map. */
int ptc_job_decode_run(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
/* The keys that are one value: of "run", and those of the job's map that need "run". */
extern const struct ptc_doc_table ptc_job_run_table, ptc_job_live_table;
/* The keys of the job's map that come last in the canonical JSON. */
extern const struct ptc_doc_table ptc_job_last_table;
extern const struct ptc_doc_table ptc_job_buffers_table;
/* Decodes "data" of the job's map. */
int ptc_job_decode_data(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
void ptc_job_data_done(struct ptc_job_desc *job);
/* Decodes "blobs" of the job's map. */
int ptc_job_decode_blobs(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
/* Decodes "carry" of "files". */
int ptc_job_decode_carried(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
void ptc_job_carried_done(struct ptc_job_files *files);
/* Decodes "model" and "space" of the job's map. */
int ptc_job_decode_planning(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
struct ptc_buf;
/* Reads the tensors of canonical JSON into spec, and appends to rest the same text with an empty list of tensors. So no
 * tree of tensors is made, of which there may be a million. PTC_EINVAL: the text is not canonical there, so the tree
 * tells what is wrong. After a failure spec has some of the tensors. */
int ptc_job_scan_tensors(const void *data, size_t len, struct ptc_spec *spec, struct ptc_buf *rest);
void ptc_job_put_planning(struct ptc_buf *b, const struct ptc_job_desc *job);
void ptc_job_put_carried(struct ptc_buf *b, const struct ptc_job_files *files);
void ptc_job_put_data(struct ptc_buf *b, const struct ptc_job_desc *job);
void ptc_job_put_blobs(struct ptc_buf *b, const struct ptc_job_desc *job);
void ptc_job_run_done(struct ptc_job_run *run);
