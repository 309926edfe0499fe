/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a configuration for a number of devices: the one place that does so. In this order: --config, the job's
 * table, the planner (daemon/planning), dp scaling.
 *
 * Failure modes: a configuration that contradicts the number of devices or the job's `elastic` (PTC_EINVAL), memory. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "daemon/controller/plan/internal.h"

#include <stdio.h>
#include <string.h>

/* No --config and nothing in the table: keep tp and pp when they divide n, else dp alone. */
static int default_config(const char *current, uint32_t gpus, struct ptc_config *ret_config, struct ptc_error *err)
{
	struct ptc_config c;
	char text[32];
	int rc;

	if (current && ptc_config_parse(current, &c, NULL) == 0 && c.tp * c.pp * c.cp != 0 &&
	    gpus % (c.tp * c.pp * c.cp) == 0) {
		c.dp = gpus / (c.tp * c.pp * c.cp);
		*ret_config = c;
		return 0;
	}
	snprintf(text, sizeof text, "dp=%u", gpus);
	rc = ptc_config_parse(text, ret_config, err);
	return rc;
}

/* Nothing asked for: as it was, or, for a job that has nothing yet, the largest of its table that these devices can
 * have. Bytes alone need no more than one rank, which keeps them once; a program is not started where nobody said how.
 */
static int same_config(const struct ptc_job_desc *desc, const char *current, const struct ptc_plan_request *req,
		       size_t ndevices, struct ptc_config *ret_config, struct ptc_error *err)
{
	if (current)
		return ptc_config_parse(current, ret_config, err);
	for (size_t i = desc->ngpus; i-- > 0;)
		if (desc->gpus[i].n <= ndevices) {
			*ret_config = desc->gpus[i].config;
			return 0;
		}
	if (req->or_one)
		return ptc_config_parse("tp=1", ret_config, err);
	return ptc_error_set(err, PTC_EINVAL,
			     "give a configuration or a number of devices: --config CONFIG or --gpus N");
}

static int by_planner(struct ptc_pricer *pr, const struct ptc_plan_request *req, struct ptc_config *ret_config,
		      struct ptc_plan_chosen *ret_chosen, bool *ret_stays, bool **ret_leave, uint32_t **ret_nodes,
		      struct ptc_error *err)
{
	struct ptc_planning_ask ask;
	ptc_auto_free struct ptc_planning_answer *a = ptc_calloc(1, sizeof *a);
	int rc = a ? ptc_pricer_ask(pr, req, &ask, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_planning_choose(pr->all->planning, &ask, a, err);
	if (rc)
		return rc;
	*ret_config = a->config;
	*ret_stays = a->stays;
	*ret_chosen = (struct ptc_plan_chosen){ .choice = a->choice,
						.calibrated = a->advice.calibrated,
						.profiled = a->advice.profiled };
	memcpy(ret_chosen->why, a->advice.why, sizeof ret_chosen->why);
	if (a->advice.nrows) {
		ret_chosen->row = a->advice.rows[0];
		a->advice.rows[0].config = NULL;
	}
	*ret_leave = a->leave;
	*ret_nodes = a->nodes;
	a->leave = NULL;
	a->nodes = NULL;
	ptc_planning_answer_done(a);
	return 0;
}

static int given_config(const struct ptc_plan_request *req, struct ptc_config *ret_config, struct ptc_error *err)
{
	uint32_t world;
	int rc = ptc_config_parse(req->config, ret_config, err);

	if (rc == 0)
		rc = ptc_config_world(ret_config, &world, err);
	if (rc == 0 && req->gpus && world != req->gpus)
		rc = ptc_error_set(err, PTC_EINVAL, "--config %s needs %u devices, --gpus says %u", req->config, world,
				   req->gpus);
	return rc;
}

int ptc_plan_choose_config(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_job_desc *desc,
			   struct ptc_device_pool *p, const struct ptc_plan_request *req, struct ptc_config *ret_config,
			   struct ptc_plan_chosen *ret_chosen, bool *ret_stays, uint32_t **ret_nodes,
			   struct ptc_error *err)
{
	bool *leave = NULL;
	struct ptc_pricer pr = { .all = all, .v = v, .desc = desc, .p = p };
	const struct ptc_config *known = req->gpus ? ptc_job_config_for(desc, req->gpus) : NULL;
	const char *by = "table";
	int rc = PTC_ENOTFOUND;

	if (req->config && req->config[0])
		return given_config(req, ret_config, err);
	if (req->gpus == 0)
		return req->or_same
			       ? same_config(desc, v->from.config, req, p->ndevices, ret_config, err)
			       : ptc_error_set(
					 err, PTC_EINVAL,
					 "give a configuration or a number of devices: --config CONFIG or --gpus N");
	if (known) {
		*ret_config = *known;
		rc = 0;
	} else if ((desc->model || desc->space) && all->planning) {
		rc = by_planner(&pr, req, ret_config, ret_chosen, ret_stays, &leave, ret_nodes, err);
		ptc_pricer_done(&pr);
		if (rc == 0 && leave)
			rc = ptc_device_pool_leave(p, leave, err);
		ptc_free(leave);
		p->node_of_rank = rc == 0 ? *ret_nodes : NULL;
		if (rc != PTC_ENOTFOUND)
			return rc;
	}
	if (rc) {
		by = "scaling of dp";
		rc = default_config(v->from.config, req->gpus, ret_config, err);
	}
	if (rc)
		return rc;
	ret_chosen->choice.by = by;
	return 0;
}

/* A job is not started on devices on which it would not be started again. */
int ptc_plan_check_size(const struct ptc_job_desc *desc, const struct ptc_config *config, struct ptc_error *err)
{
	const struct ptc_job_elastic *e = &desc->elastic;
	char text[PTC_CONFIG_TEXT_MAX] = "";
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc || (world >= e->min_gpus && (!e->max_gpus || world <= e->max_gpus)))
		return rc;
	(void)ptc_config_format(config, text, sizeof text);
	return ptc_error_set(err, PTC_EINVAL,
			     "%.200s needs %u devices, and the job's `elastic` says %s: %u; choose another "
			     "configuration, or create the job with another %s",
			     text, world, world < e->min_gpus ? "min_gpus" : "max_gpus",
			     world < e->min_gpus ? e->min_gpus : e->max_gpus,
			     world < e->min_gpus ? "min_gpus" : "max_gpus");
}
