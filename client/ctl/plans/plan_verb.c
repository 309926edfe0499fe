/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl plan: what a resize would do. A daemon plans for a job that it has. With -f, ptcctl plans for a job's file, on
 * a cluster that options describe. */
#include "client/ctl/plans/offline.h"
#include "client/ctl/plans/plans.h"

#include "base/alloc.h"
#include "base/check.h"
#include "client/ctl/plans/picture/picture.h"
#include "client/ctl/show/show.h"

#include <string.h>

static const struct ctl_option options[] = {
	{ "config", "CONFIG", "configuration, e.g. tp=2,pp=2,dp=1" },
	{ "gpus", "N", "number of devices; docs/job.md says which configuration the job then gets" },
	{ "nodes", "A,B", "use only nodes of these names; with -f a NUMBER: how many nodes there are" },
	CTL_OFFLINE_OPTIONS,
	{ "from", "CONFIG", "with -f: the configuration before the switch" },
	{ "to", "CONFIG", "with -f: the configuration after the switch" },
	{ "to-file", "FILE",
	  "with -f: the job file after the switch, if its rules change; tensors and fields must be the same" },
	{ "layout", "FILE", "with -f: a live job's layout (from ptcctl probe -o); repeat for each configuration" },
	{ "drain", "0,2", "with -f: nodes (by number) that get no rank but can still send state" },
	{ "failed", "1,3/0",
	  "with -f: nodes (by number) that are gone with their bytes, or NODE/DEVICE for a device that gets no rank" },
	{ "pin", "0,1", "with -f: nodes (by number) that the job must go on using" },
	{ "nodes-per-rack", "N", "with -f: number of nodes in a rack; each TP group stays within one rack" },
	{ "node-rate", "GB/S", "with -f: rate of each node's network in each direction (default 25)" },
	{ "device-rate", "GB/S", "with -f: rate between all devices of a node together (default 200)" },
};

static int live(struct ctl *c, struct ptc_error *err)
{
	struct ctl_target target = { 0 };
	char *json = NULL;
	int rc = ctl_target_get(c, c->args[0], &target, err);

	if (rc)
		return rc;
	rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_plan(c->admin, &target.t, &json, err);
	if (!rc)
		rc = c->svg ? ctl_picture_of_plan(json, err) : ctl_print_plan(c, json, err);
	ptc_admin_free(json);
	ctl_target_done(&target);
	return rc;
}

static int take_rates(const struct ctl *c, struct ptc_rates *ret, struct ptc_error *err)
{
	const char *node = ctl_option(c, "node-rate"), *device = ctl_option(c, "device-rate");
	uint64_t n = 25, d = 200;
	int rc = 0;

	if (node)
		rc = ctl_number("--node-rate", node, 1, 1000000, &n, err);
	if (!rc && device)
		rc = ctl_number("--device-rate", device, 1, 1000000, &d, err);
	*ret = (struct ptc_rates){ (int64_t)n * 1000000000, (int64_t)n * 1000000000, (int64_t)d * 1000000000 };
	return rc;
}

static int place(struct ctl_switch *s, struct ptc_error *err)
{
	const struct ctl_cluster *k = &s->o->cluster;
	struct ptc_place_opts opts = { .devices = k->devices,
				       .ndevices = k->ndevices,
				       .nnodes = k->nodes,
				       .usable = k->usable,
				       .pinned = k->pinned,
				       .racks = k->racks };
	int rc = ctl_offline_in_order(s->o, s->from, &s->was, err);

	if (!rc)
		rc = ptc_change_new(s->from, s->to, &s->change, err);
	if (!rc)
		rc = ptc_change_place(s->change, &s->was, &opts, &s->now, &s->gap, err);
	return rc ? rc : ptc_place_groups(ptc_layout_config(s->to), &s->now, &opts, &s->groups, err);
}

static int show(const struct ctl *c, struct ctl_offline *o, struct ctl_switch *s, struct ptc_error *err)
{
	uint32_t need;
	int rc = ctl_offline_layout(o, &o->job.spec, "--from", s->from_text, &s->from, err);

	if (!rc)
		rc = ctl_offline_layout(o, o->other ? &o->after.spec : &o->job.spec, "--to", s->to_text, &s->to, err);
	if (rc)
		return rc;
	need = PTC_MAX(ptc_layout_world(s->from), ptc_layout_world(s->to));
	rc = take_rates(c, &s->rates, err);
	if (!rc)
		rc = ctl_offline_cluster(c, need, o, err);
	if (!rc)
		rc = place(s, err);
	if (rc)
		return rc;
	return c->json ? ctl_plan_json(s, err) : c->svg ? ctl_plan_svg(s, err) : ctl_plan_table(s, err);
}

static int offline(const struct ctl *c, struct ptc_error *err)
{
	struct ctl_offline o = { 0 };
	struct ctl_switch s = { .o = &o, .from_text = ctl_option(c, "from"), .to_text = ctl_option(c, "to") };
	int rc;

	if (c->nargs)
		return ctl_usage(err, "JOB and -f exclude each other");
	if (!s.from_text || !s.to_text)
		return ctl_usage(err, "-f needs --from CONFIG and --to CONFIG");
	rc = ctl_offline_open(c, &o, err);
	if (!rc)
		rc = show(c, &o, &s, err);
	ptc_allocation_done(&s.was);
	ptc_allocation_done(&s.now);
	ptc_change_free(s.change);
	ptc_layout_free(s.from);
	ptc_layout_free(s.to);
	ctl_offline_done(&o);
	return rc;
}

/* The first option that only makes sense with -f. */
static const char *stray(const struct ctl *c)
{
	static const char *const names[] = { "from",           "to-file",   "to",         "devices-per-node",
					     "layout",         "drain",     "failed",     "pin",
					     "nodes-per-rack", "node-rate", "device-rate" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (ctl_option(c, names[i]))
			return names[i];
	return NULL;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	if (ctl_option(c, "file"))
		return offline(c, err);
	if (stray(c))
		return ctl_usage(err, "--%s needs -f FILE", stray(c));
	return live(c, err);
}

const struct ctl_verb ctl_plan = {
	.name = "plan",
	.args = "[JOB] | -f FILE --from CONFIG --to CONFIG",
	.about = "Show the moves of a resize, and whether it is possible",
	.help = "For a job that runs, the plan also says for each new rank which process it will be:\n"
		"  restart  a new process, which is started before the old one is stopped\n"
		"  rebuild  the process on the device stays, and builds its model anew\n"
		"  start    the first process on the device\n"
		"With -f no daemon is asked. The old ranks are on devices in order. The new ranks are placed\n"
		"where the fewest bytes move. With -f, --format json lists every move (docs/plan.md).\n"
		"--format svg draws the ranks by node, and marks nodes that are down or drained.\n",
	CTL_OPTIONS(options),
	.min_args = 0,
	.max_args = 1,
	.job_missing = ctl_job_missing_without_file,
	.svg = true,
	.run = run,
};
