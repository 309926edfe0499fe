/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts and plans of a job file, on a cluster that options describe; no
 * daemon is asked. Shared by `ptcctl layout` and `ptcctl plan -f`. */
#pragma once

#include "client/ctl/line/ctl.h"
#include "formats/job/job.h"
#include "reshard/layout/declared.h"
#include "reshard/place/place.h"

#define CTL_OFFLINE_OPTIONS                                                                                            \
	{ "file", "FILE", "the job's description (docs/job.md); no daemon is asked", 'f' },                            \
	{                                                                                                              \
		"devices-per-node", "M", "with -f: number of devices of each node (default 8)"                         \
	}

struct ctl_cluster {
	uint32_t nodes, per_node;
	struct ptc_device *devices; /* nodes * per_node, in order; then those that may be used, see ndevices */
	size_t ndevices;            /* of devices: that may be used */
	bool *usable, *pinned;      /* per node */
	bool *drained;              /* per node */
	bool *failed;               /* nodes * per_node: devices that --failed names by themselves */
	uint32_t *racks;            /* per node; NULL: no matter */
};
#define CTL_LAYOUTS_MAX 16
struct ctl_offline {
	struct ptc_job_desc job;
	struct ptc_job_desc after; /* with --to-file: the job as it is to be; else empty */
	bool other;                /* --to-file was given */
	char **names;              /* of tensors, as JSON strings */
	struct ctl_cluster cluster;
	/* with --layout: what ranks declare under these configurations; job.spec then has their tensors */
	struct ptc_declared *declared;
	size_t ndeclared;
};
/* -f: the job; CTL_USAGE without one. */
int ctl_offline_open(const struct ctl *c, struct ctl_offline *ret, struct ptc_error *err);
/* --nodes, --devices-per-node, --drain, --failed, --pin, --nodes-per-rack; at least `need` devices unless --nodes says.
 */
int ctl_offline_cluster(const struct ctl *c, uint32_t need, struct ctl_offline *o, struct ptc_error *err);
void ctl_offline_done(struct ctl_offline *o);
/* A configuration's layout, under s or of a --layout; what: the option it comes from. */
int ctl_offline_layout(const struct ctl_offline *o, const struct ptc_spec *s, const char *what, const char *config,
		       struct ptc_layout **ret, struct ptc_error *err);
/* The one of --layout with that configuration; any_batch: whatever its batch, recomputation and schedule are.
 * PTC_ENOTFOUND: there is none. */
int ctl_offline_declared(const struct ctl_offline *o, const char *what, const struct ptc_config *config, bool any_batch,
			 struct ptc_layout **ret, struct ptc_error *err);
/* Ranks on devices in order, whatever may be used now. */
int ctl_offline_in_order(const struct ctl_offline *o, const struct ptc_layout *l, struct ptc_allocation *ret,
			 struct ptc_error *err);
/* "exp_avg", or "param" for field 0. */
const char *ctl_field_name(const struct ptc_spec *s, uint32_t item);
/* "[1,2]". */
void ctl_put_numbers(const int64_t *v, uint32_t n);

/* A switch. */
struct ctl_switch {
	const struct ctl_offline *o;
	const char *from_text, *to_text;
	struct ptc_layout *from, *to;
	struct ptc_allocation was, now;
	struct ptc_change *change;
	int64_t gap;
	struct ptc_groups groups;
	struct ptc_rates rates;
};
/* Plans it with each move given to fn; ret_plan has the bounds. ptc_plan_free. */
int ctl_switch_plan(const struct ctl_switch *s, ptc_move_fn fn, void *arg, bool keep, struct ptc_plan **ret_plan,
		    struct ptc_error *err);
int ctl_plan_json(const struct ctl_switch *s, struct ptc_error *err);
int ctl_plan_table(const struct ctl_switch *s, struct ptc_error *err);
int ctl_plan_svg(const struct ctl_switch *s, struct ptc_error *err);
