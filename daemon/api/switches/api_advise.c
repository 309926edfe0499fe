/* SPDX-License-Identifier: Apache-2.0 */
/* The call behind `ptcctl advise JOB`: the planner's advice about a job. Any daemon answers; nothing is changed.
 * Failure modes: the job has no model (PTC_ENOTFOUND says what is missing); more devices are asked for than are known;
 * no configuration fits. */
#include "base/check.h"
#include "daemon/api/switches/switches.h"
#include "daemon/documents/probed/probed.h"

#include <string.h>

#define HORIZON_MAX_MS 2000000000u

static int objective_of(const char *text, int *ret, struct ptc_error *err)
{
	static const char *const words[] = { "throughput", "money", "state-bytes" }; /* enum ptc_objective */

	*ret = 0;
	for (size_t i = 0; text[0] && i < PTC_ARRAY_LEN(words); i++)
		if (strcmp(text, words[i]) == 0) {
			*ret = (int)i;
			return 0;
		}
	return text[0] ? ptc_error_set(err, PTC_EINVAL, "objective is throughput, money or state-bytes, not \"%.40s\"",
				       text)
		       : 0;
}

/* A range of thousands takes long: who has gone does not keep us from the others. */
static bool gone(const void *call)
{
	return ptc_rpc_call_cancelled(call);
}

PTC_API_HANDLER(ptc_api_advise)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__AdviseRequest *req;
	struct ptc_plan_request pr;
	struct ptc_target t;
	struct ptc_view v;
	struct ptc_advice advice = { 0 };
	json_t *json;
	int rc = ptc_pb_call_recv(call, &ptc__v1__advise_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	pr = (struct ptc_plan_request){ .gpus = req->gpus,
					.horizon_s = PTC_MIN(req->horizon_ms, HORIZON_MAX_MS) / 1000.0,
					.nodes = req->nodes,
					.nnodes = req->n_nodes,
					.gone = gone,
					.gone_arg = call };
	rc = objective_of(req->objective, &pr.objective, err);
	if (rc == 0)
		rc = ptc_api_find(d, call, req->job, &t, err);
	pr.ranks = rc == 0 && t.has_record && t.record.run == PTC_RUN_LIVE;
	if (rc == 0)
		rc = ptc_api_view(d, &t, false, false, &v, err);
	if (rc == 0) {
		ptc_probed_join(&d->docs, &v);
		rc = ptc_plan_advise(&d->controllers, &v, &pr, req->first, &advice, err);
		ptc_view_done(&v);
	}
	if (rc == 0) {
		json = ptc_advice_json(&advice);
		json_object_set_new(json, "job", json_string(t.meta.name));
		rc = ptc_api_send_json(call, json, err);
		ptc_advice_done(&advice);
	}
	ptc_pb_free(&req->base);
	return rc;
}
