/* SPDX-License-Identifier: Apache-2.0 */
/* Inside formats/: what the parts of the job decoder share. */
#pragma once

#include "formats/doc.h"
#include "formats/job/job.h"

#define PTC_MAX_PARAMETERS 16
/* What "$name" stands for in a rule set. */
struct ptc_job_parameter {
	const char *name; /* borrowed from the doc */
	int64_t value;
};

struct ptc_job_decoder {
	const struct ptc_doc *doc; /* the one the nodes belong to; a rule set file has its own */
	const char *dir;           /* NULL: files may not be named */
	const char *rules_path;    /* NULL: rule sets may not be named */
	struct ptc_job_desc *job;
	bool yaml; /* a person's: what is not said is made what is meant, and states are checked */
	size_t rules_cap;
	struct ptc_job_parameter parameters[PTC_MAX_PARAMETERS]; /* of the rule set at hand */
	size_t nparameters;
	bool has_buffers; /* of the job itself, or of a rule set; the job's are decoded first, and win */
	bool own_buffers;
	bool in_set; /* what is decoded belongs to a named rule set */
	struct ptc_error *err;
};

/* Words in the order of the enums of reshard/spec/rule.h. */
#define PTC_JOB_AXES   6
#define PTC_JOB_KINDS  3
#define PTC_JOB_STATES 6
extern const char *const ptc_job_axes[PTC_JOB_AXES], *const ptc_job_kinds[PTC_JOB_KINDS],
							     *const ptc_job_states[PTC_JOB_STATES];

/* "rules": a list, or the name of a rule set. Fields must have been decoded. */
int ptc_job_decode_rules(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
/* job_split.c: keys of a rule into r, which has none yet; node NULL: what base says (NULL: the default). */
int ptc_job_decode_splits(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			  struct ptc_rule *r);
int ptc_job_decode_expert(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			  struct ptc_rule *r);
int ptc_job_decode_shard(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			 struct ptc_rule *r);
/* "buffers" of the job or of a rule set into the spec; node NULL: nothing. */
int ptc_job_decode_buffers(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
int ptc_job_decode_gpus(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
/* "run" and the keys that go with it, of the job's map. */
int ptc_job_decode_run(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
/* "data" of the job's map. */
int ptc_job_decode_data(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
void ptc_job_data_done(struct ptc_job_desc *job);
/* "blobs" of the job's map. */
int ptc_job_decode_blobs(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
/* "carry" of "files". */
int ptc_job_decode_carried(struct ptc_job_decoder *d, const struct ptc_doc_node *node);
void ptc_job_carried_done(struct ptc_job_files *files);
/* "model" and "space" of the job's map. */
int ptc_job_decode_planning(struct ptc_job_decoder *d, const struct ptc_doc_node *root);
struct ptc_buf;
void ptc_job_put_planning(struct ptc_buf *b, const struct ptc_job_desc *job);
void ptc_job_put_carried(struct ptc_buf *b, const struct ptc_job_files *files);
void ptc_job_put_data(struct ptc_buf *b, const struct ptc_job_desc *job);
void ptc_job_put_blobs(struct ptc_buf *b, const struct ptc_job_desc *job);
void ptc_job_run_done(struct ptc_job_run *run);
