/* SPDX-License-Identifier: Apache-2.0 */
/* Handles `ptcctl cluster recover` and `ptcctl cluster rejoin` on the daemon that was asked. Happy path and failure
 * modes: recover.h. */
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/log.h"
#include "rpc/pb/pbcall.h"

#include <inttypes.h>
#include <string.h>

static void add_line(json_t *lines, const char *text)
{
	json_array_append_new(lines, json_string(text ? text : ""));
	ptc_info("recover", "%s", text ? text : "");
}

/* Writes the jobs, the latest first. If a job's name is taken, a line says so, and the job is left out. */
static int write_all(const struct ptc_recover_set *s, const struct ptc_recover_choice *v, size_t n, int64_t revision,
		     json_t *lines, struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(s->d->cluster);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct ptc_error why = PTC_ERROR_INIT;
		struct ptc_durable d = { 0 };

		rc = ptc_recover_fetch(s, v[i].node, v[i].uuid, &d, err);
		if (rc)
			return rc;
		rc = ptc_recover_etcd_job(e, revision, &d, &why);
		ptc_durable_done(&d);
		if (rc && rc != PTC_EEXIST)
			return ptc_error_set(err, rc, "%s", why.text);
		add_line(lines, rc ? why.text : v[i].line);
		rc = 0;
	}
	return rc;
}

static int fill(const struct ptc_recover_set *s, const struct ptc_recover_choice *v, size_t n, json_t *lines,
		struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(s->d->cluster);
	struct ptc_identity to = s->identity;
	char key[PTC_VAULT_ID];
	int64_t revision;
	int rc = ptc_recover_etcd_begin(e, &revision, err);

	to.epoch++;
	if (rc == 0)
		rc = ptc_recover_set_raise(s, &to, err);
	if (rc == 0)
		rc = write_all(s, v, n, revision, lines, err);
	if (rc == 0)
		rc = ptc_recover_etcd_end(e, revision, &to, ptc_vault_key_id(s->d->docs.vault, key) ? key : NULL, err);
	return rc;
}

static json_t *answer(const struct ptc_recover_choice *v, size_t n, int64_t epoch, json_t *lines)
{
	json_t *jobs = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(jobs, json_pack("{s:s, s:s, s:I, s:I, s:I, s:b}", "job", v[i].name, "uuid",
						      v[i].uuid, "generation", (json_int_t)v[i].generation, "snapshot",
						      (json_int_t)v[i].snapshot, "step", (json_int_t)v[i].step,
						      "complete", v[i].complete));
	return json_pack("{s:i, s:I, s:o, s:o}", "version", 1, "epoch", (json_int_t)epoch, "jobs", jobs, "lines",
			 lines);
}

static int recover(struct ptc_daemon *d, const Ptc__V1__RecoverRequest *req, json_t **ret_json, struct ptc_error *err)
{
	struct ptc_recover_set s = { .d = d };
	struct ptc_recover_choice *v = NULL;
	json_t *lines = json_array();
	size_t n = 0;
	int rc = 0;

	if (!req->dry_run && !d->waits[0])
		rc = ptc_error_set(err, PTC_ESTATE,
				   "node %s runs with its etcd: there is nothing to recover. If that etcd is gone for "
				   "good, set coordinator to an empty one and start the nodes again",
				   d->config.node);
	if (rc == 0 && !req->dry_run)
		rc = ptc_recover_etcd_check(ptc_cluster_etcd(d->cluster), err);
	if (rc == 0)
		rc = ptc_recover_set_ask(&s, req->nodes, req->n_nodes, req->dry_run, req->old_is_gone, err);
	if (rc == 0)
		rc = ptc_recover_choose(&s, &v, &n, err);
	for (size_t i = 0; rc == 0 && req->dry_run && i < n; i++)
		add_line(lines, v[i].line);
	if (rc == 0 && !req->dry_run)
		rc = fill(&s, v, n, lines, err);
	if (rc == 0)
		*ret_json = answer(v, n, s.identity.epoch + !req->dry_run, json_incref(lines));
	for (size_t i = 0; i < n; i++)
		ptc_free(v[i].line);
	ptc_free(v);
	json_decref(lines);
	ptc_recover_set_done(&s);
	return rc;
}

static int rejoin(struct ptc_daemon *d, const Ptc__V1__RecoverRequest *req, json_t **ret_json, struct ptc_error *err)
{
	char *text;
	int rc = ptc_recover_rejoin(d, req->drop, &text, err);

	if (rc)
		return rc;
	*ret_json = json_pack("{s:i, s:[s]}", "version", 1, "lines", text);
	ptc_free(text);
	return 0;
}

PTC_API_HANDLER(ptc_api_recover)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__RecoverRequest *req;
	json_t *json = NULL;
	int rc = ptc_pb_call_recv(call, &ptc__v1__recover_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	if (ptc_api_uid(call) != 0)
		rc = ptc_error_set(err, PTC_EPERM, "only root may recover a cluster");
	else
		rc = req->rejoin ? rejoin(d, req, &json, err) : recover(d, req, &json, err);
	ptc_pb_free(&req->base);
	return rc ? rc : ptc_api_send_json(call, json, err);
}
