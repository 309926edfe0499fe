/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a job: job.yaml version 1 (docs/job.md), which people write, and the canonical JSON, which daemons
 * send and etcd holds. One decoder reads both, so it checks both alike. The JSON has the same keys, but names no files:
 * tensors and rules are lists. A description is immutable once made; readable from any thread. It owns its memory.
 *
 * Failure modes: PTC_EINVAL with file and line, PTC_ELAYOUT, PTC_ELIMIT, PTC_EVERSION, PTC_ENOMEM, errno of files. */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "formats/job/blob_rules.h"
#include "reshard/spec/config.h"
#include "reshard/spec/spec.h"

#include <sys/types.h>

#define PTC_JOB_VERSION           PTC_VERSION_NUMBER(1)
#define PTC_JOB_OLDEST            1
#define PTC_JOB_SINCE             PTC_VERSION_NUMBER(1) /* the PTC_DOC_VERSION that brought the newest version */
#define PTC_JOB_MAX_GPUS          1024                  /* entries of the gpus table */
#define PTC_JOB_ARCHIVE_KEEP      3
#define PTC_JOB_ARCHIVE_KEEP_MAX  1000000
#define PTC_JOB_ARCHIVE_EVERY_MAX (UINT64_C(86400000) * 366) /* a year */
#define PTC_JOB_WARNING_MAX_MS    (UINT64_C(86400000) * 7)
#define PTC_JOB_KEEP_MAX          64 /* snapshots, with the committed one */
#define PTC_JOB_MAX_COPIES        16 /* more copies protect no better and cost much to move */

struct ptc_job_gpus {
	uint32_t n;
	struct ptc_config config; /* has a world of n ranks */
};
#define PTC_RUN_GRACE_MS    30000
#define PTC_RUN_BOUNDARY_MS 1800000
#define PTC_RUN_LOG_BYTES   (UINT64_C(64) << 20)

enum ptc_job_mode { PTC_JOB_RESTART, PTC_JOB_REBUILD };
/* When a switch's new ranks build: after the old ones have ended, or before they stop. */
enum ptc_job_build { PTC_JOB_BUILD_AFTER, PTC_JOB_BUILD_AHEAD };
/* How a stopped rank's memory is copied (docs/job.md, "copy"). */
enum ptc_job_copy { PTC_JOB_COPY_LEAN, PTC_JOB_COPY_FAST, PTC_JOB_COPY_ASYNC };

/* The program of a live job, the same for each rank. */
struct ptc_job_run {
	char **argv; /* NULL-terminated, at least the program */
	size_t argc;
	char **env; /* "NAME=VALUE" in name order, NULL-terminated; NULL: none */
	size_t nenv;
	char *cwd;                    /* NULL until ptc_job_resolve_run; absolute in descriptions that daemons get */
	uint64_t grace_ms;            /* time between asking a rank to exit and SIGKILL */
	uint64_t boundary_timeout_ms; /* how long a switch waits for a rank's boundary */
	uint64_t build_timeout_ms;    /* how long new ranks may take to start, and then to build and declare */
	uint64_t log_bytes;           /* bytes of log kept for one rank */
};
#define PTC_JOB_RESTARTS_MAX 1000 /* this and struct ptc_job_elastic: docs/job.md, "elastic" */
enum ptc_job_on_failure { PTC_JOB_SHRINK, PTC_JOB_WAIT, PTC_JOB_STOP };
enum ptc_job_on_hang { PTC_JOB_HANG_IGNORE, PTC_JOB_HANG_REPORT, PTC_JOB_HANG_RECOVER };
enum ptc_job_on_straggler { PTC_JOB_STRAGGLER_IGNORE, PTC_JOB_STRAGGLER_REPORT, PTC_JOB_STRAGGLER_DRAIN };
enum ptc_job_on_difference { PTC_JOB_DIFFERENCE_REPORT, PTC_JOB_DIFFERENCE_MAJORITY, PTC_JOB_DIFFERENCE_PRIMARY };
struct ptc_job_elastic {
	uint32_t min_gpus, max_gpus; /* 0: not given */
	enum ptc_job_on_failure on_failure;
	bool standby, grow;     /* standby: import. on_join: devices that join make the job larger, if that pays */
	uint64_t join_after_ms; /* time after the last device joined; 0: PTC_JOB_JOIN_AFTER_MS */
	uint32_t max_restarts;  /* after errors of the program within PTC_JOB_RESTARTS_MS, or without progress */
	/* A rank hangs whose step stands for hang_after_ms, and for hang_steps times the median of its last steps. */
	enum ptc_job_on_hang on_hang;
	uint64_t hang_after_ms, straggler_backoff_ms; /* 0: PTC_JOB_HANG_AFTER_MS, PTC_SLOW_BACKOFF_MS */
	uint32_t hang_steps;                          /* 0: PTC_JOB_HANG_STEPS */
	/* Ranks whose own work takes longer than that of others (daemon/core/slow/slow.h). */
	enum ptc_job_on_straggler on_straggler;
	enum ptc_job_on_difference on_difference; /* which replica is right if some differ; report: none */
	uint32_t straggler_percent, straggler_steps, straggler_drains; /* 0: PTC_JOB_STRAGGLER_..., PTC_SLOW_DRAINS */
};
#define PTC_JOB_HANG_AFTER_MS     (600 * UINT64_C(1000))
#define PTC_JOB_HANG_AFTER_MIN_MS UINT64_C(1000)
#define PTC_JOB_HANG_AFTER_MAX_MS (7 * 24 * 3600 * UINT64_C(1000))
#define PTC_JOB_HANG_STEPS        30
#define PTC_JOB_HANG_STEPS_MAX    1000000
#define PTC_JOB_STRAGGLER_PERCENT 30 /* machines of one kind differ by less than this */
#define PTC_JOB_STRAGGLER_MIN     5  /* percent */
#define PTC_JOB_STRAGGLER_MAX     10000
#define PTC_JOB_STRAGGLER_STEPS   50
#define PTC_JOB_STRAGGLER_DRAINS  100 /* at most */
#define PTC_JOB_RESTARTS_MS       INT64_C(3600000)
#define PTC_JOB_JOIN_AFTER_MS     10000
#define PTC_JOB_JOIN_AFTER_MAX_MS (24 * 3600 * UINT64_C(1000))
/* The samples that the job consumes, and their order (docs/order.md). */
#define PTC_JOB_MAX_DATA          16
#define PTC_JOB_MAX_PARTS         64 /* equals PTC_MIX_MAX of order/order.h */
#define PTC_JOB_MAX_WEIGHT        (UINT32_MAX / PTC_JOB_MAX_PARTS)
struct ptc_job_part {
	char dataset[PTC_NAME_MAX + 1];
	char source[33];  /* ptc_dataset_doc_source at submission; "": not looked up yet */
	uint64_t samples; /* number of samples at submission; 0: not looked up yet */
	bool sequential;
	uint64_t block; /* samples; 0: all are shuffled together */
	uint32_t weight;
};
struct ptc_job_data {
	char name[PTC_FIELD_NAME_MAX + 1]; /* also the cursor's name */
	struct ptc_job_part *parts;
	uint32_t nparts;
	uint64_t seed;
	uint32_t global_batch, micro_batch; /* used where the configuration gives none; 0: not given */
	bool by_length;                     /* batches are divided by what samples cost, which the planner says */
};
/* The name of a mixture in a cursor's tag: a hash of its datasets, weights and orders. Returns 0 or PTC_ENOMEM. */
int ptc_job_data_mix(const struct ptc_job_data *data, char ret_hex[33]);
/* Files of the job (docs/files.md): who else may read them, and texts that lie beside the state. */
#define PTC_JOB_GROUP_MAX     255
#define PTC_JOB_MAX_CARRIED   16
#define PTC_JOB_CARRIED_NAME  127
#define PTC_JOB_CARRIED_BYTES (256u << 10) /* sum of all texts, because they are part of the description */
struct ptc_job_carried {
	char *name, *text;
}; /* UTF-8 */
struct ptc_job_files {
	bool shared; /* members of the group below may read the files */
	gid_t gid;
	char group[PTC_JOB_GROUP_MAX + 1]; /* the group's name, not looked up yet; "": use gid */
	struct ptc_job_carried *carried;   /* texts that each snapshot's directory has beside the state, by name */
	size_t ncarried;
};
struct ptc_job_desc {
	struct ptc_spec spec;      /* has no tensors and rules if a live job's ranks declare them */
	struct ptc_job_gpus *gpus; /* ascending by n */
	size_t ngpus;
	bool has_run; /* a live job; most members below are for live jobs only */
	struct ptc_job_run run;
	enum ptc_job_mode mode;
	enum ptc_job_build build;
	enum ptc_job_copy copy;
	uint64_t snapshot_every; /* steps between periodic snapshots; 0: none */
	struct ptc_job_elastic elastic;
	bool share_devices; /* its ranks may have devices together with ranks of other jobs that say so, too */
	bool has_seed;
	uint64_t seed; /* the job's seed; without one, ptc_job_seed derives it from the uuid */
	struct ptc_blob_rules blobs;
	struct ptc_job_data *data; /* in name order */
	size_t ndata;
	struct ptc_job_files files;
	char *model, *space; /* JSON for planner/io; NULL: not described */
	struct ptc_job_copies {
		uint32_t count;    /* failure domains that have each region of a snapshot; 1: as the layout gives */
		bool racks, steps; /* a domain is a rack, if nodes name one; a snapshot is due at each step */
		uint8_t budget;    /* of `steps`: percent of the time that snapshots may stop ranks */
	} copies;
	/* snapshots that stay readable beside the committed one (docs/job.md) */
	struct ptc_job_keep {
		uint32_t last;  /* the newest ones, the committed one included */
		uint64_t every; /* and the first one in each span of so many steps; 0: none of these */
	} keep;
	/* checkpoints that ptcd writes into a directory by itself (docs/archive.md); dir NULL: none */
	struct ptc_job_archive {
		char *dir;         /* absolute */
		uint64_t every_ms; /* least time between two; 0: one for each snapshot */
		uint64_t keep;     /* checkpoints that stay */
		uint64_t rate;     /* bytes a second at most; 0: no limit */
	} archive;
	uint64_t warning_ms;  /* time from the warning until a node is taken away; 0: not known */
	bool replan_on_links; /* when measured links change, the planner is asked again, and its answer is followed */
	/* path of tensors.from, a file or directory that could be opened; NULL: none. Not in the JSON */
	char *source;
};

/* Reads a job.yaml of at most PTC_JOB_YAML_MAX_BYTES, and the headers of the files in tensors.from, relative to its
 * directory. rules_path: directories with rule sets NAME.yaml, separated by ':'. NULL: the job must write out its
 * rules. */
int ptc_job_read(const char *path, const char *rules_path, struct ptc_job_desc *ret_job, struct ptc_error *err);
/* Reads job.yaml from memory. `what` names the text in errors. tensors.from is relative to `dir` (NULL: refused). */
int ptc_job_from_yaml(const char *what, const void *data, size_t len, const char *dir, const char *rules_path,
		      struct ptc_job_desc *ret_job, struct ptc_error *err);
/* Reads the canonical JSON, of at most PTC_SPEC_MAX_BYTES. Opens no file. */
int ptc_job_from_json(const void *data, size_t len, struct ptc_job_desc *ret_job, struct ptc_error *err);
/* Checks that the states in a new job can be carried out. PTC_EINVAL names rule, state and what to do. PTC_ELAYOUT
 * names a tensor whose dtype has no maximum. ptc_job_from_yaml calls this. ptc_job_from_json does not: older versions
 * made jobs with max, derive and replicate and carried them like any other state, and such jobs must stay readable. */
int ptc_job_check_states(const struct ptc_job_desc *job, struct ptc_error *err);
/* Completes the description of a live job at its submission; other jobs are left as they are. Makes run.cwd absolute;
 * `cwd` is the submitter's and absolute. Adds the submitter's environment (NULL-terminated) below run.env, without
 * variables of the submitter's shell and terminal and without those that ptcd sets. On failure the description is
 * unchanged. */
int ptc_job_resolve_run(struct ptc_job_desc *job, const char *cwd, char *const *environment, struct ptc_error *err);
/* Makes the canonical JSON; ptc_free it. Equal descriptions give equal bytes within one version. */
int ptc_job_to_json(const struct ptc_job_desc *job, char **ret_json, size_t *ret_len, struct ptc_error *err);
/* A hash of the description, 32 hex digits and a NUL: equal for equal ones, whichever versions write and read them. */
int ptc_job_hash(const struct ptc_job_desc *job, char ret_hex[33], struct ptc_error *err);
void ptc_job_desc_done(struct ptc_job_desc *job);
/* From which the job's random streams are derived (docs/job.md): its seed, or the first 16 digits of its uuid. */
uint64_t ptc_job_seed(const struct ptc_job_desc *job, const char *uuid);
/* The configuration for n devices in the gpus table; NULL: the table has none. */
const struct ptc_config *ptc_job_config_for(const struct ptc_job_desc *job, uint32_t n);
/* The i-th pair of the job's timeouts that contradict each other (docs/timeouts.md), as a line for a person; false:
 * there is none. lease_ttl_ms: that of the nodes; 0: not known. */
bool ptc_job_timeout_clash(const struct ptc_job_desc *job, uint64_t lease_ttl_ms, size_t i, char *buf, size_t size);
/* The rule sets deploy/rules/NAME.yaml of this build, in name order; the last one's name is NULL. */
struct ptc_rule_set {
	const char *name, *text;
};
extern const struct ptc_rule_set ptc_rule_sets[];
