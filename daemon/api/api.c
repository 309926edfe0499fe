/* SPDX-License-Identifier: Apache-2.0 */
/* The table of control calls (ptc.v1.Control), with the handler of each and who may call it.
 *
 * Happy path: each method has a handler in one of the rooms below; users and administrators may call all of them. Nodes
 * may call those that are relayed, and must name the user. Failure modes: a caller that is nobody (PTC_EPERM); memory
 * that ran out is reported with the setting that bounds it. */
#include "daemon/api/api.h"

#include "base/check.h"
#include "daemon/api/queries/queries.h"
#include "daemon/api/reads/reads.h"
#include "daemon/api/recover/recover.h"
#include "daemon/api/samples/samples.h"
#include "daemon/api/switches/switches.h"

#include <string.h>

/* Memory is short here because memory.work bounds it: says so, and where; another node's error says so already. */
static int handle(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	const struct ptc_api_method *m = arg;
	const struct ptc_daemon_config *config = &m->d->config;
	int rc;

	if (ptc_api_uid(call) == (uid_t)-1) /* a node asks for its users only, never for itself */
		return ptc_error_set(err, PTC_EPERM, "node %s does not say for which user it calls",
				     ptc_rpc_call_identity(call)->name);
	if (m->d->waits[0] && m->fn != ptc_api_recover)
		return ptc_error_set(err, PTC_ESTATE, "node %s waits: %s", config->node, m->d->waits);
	rc = m->fn(m->d, call, err);

	if (rc != PTC_ENOMEM || (err && strstr(err->text, "memory.work")))
		return rc;
	ptc_error_wrap(err, "node %s: this job needs more than its memory.work of %lluMiB; raise it", config->node,
		       (unsigned long long)(config->memory.work >> 20));
	return rc;
}

int ptc_api_register(struct ptc_daemon *d, struct ptc_rpc_server *server, struct ptc_error *err)
{
	static const struct {
		const char *name;
		ptc_rpc_handler_fn fn;
		bool relayed; /* by the daemon that was asked, to the job's controller or a dataset's node */
		bool bulk;    /* moves bytes, or waits for other nodes that do; all others are brief */
	} methods[] = {
		{ "/ptc.v1.Control/Nodes", ptc_api_nodes },
		{ "/ptc.v1.Control/JobCreate", ptc_api_job_create },
		{ "/ptc.v1.Control/JobDelete", ptc_api_job_delete, .relayed = true },
		{ "/ptc.v1.Control/JobList", ptc_api_job_list },
		{ "/ptc.v1.Control/Status", ptc_api_status, .relayed = true },
		{ "/ptc.v1.Control/Plan", ptc_api_plan },
		{ "/ptc.v1.Control/Advise", ptc_api_advise },
		{ "/ptc.v1.Control/Profile", ptc_api_profile, .bulk = true },
		{ "/ptc.v1.Control/Probe", ptc_api_probe },
		{ "/ptc.v1.Control/Resize", ptc_api_resize, .relayed = true },
		{ "/ptc.v1.Control/Drain", ptc_api_drain, .bulk = true },
		{ "/ptc.v1.Control/Leave", ptc_api_leave, .relayed = true },
		{ "/ptc.v1.Control/NodeLost", ptc_api_node_lost },
		{ "/ptc.v1.Control/NodeForget", ptc_api_node_forget, .bulk = true },
		{ "/ptc.v1.Control/DeviceBad", ptc_api_device_bad },
		{ "/ptc.v1.Control/Recover", ptc_api_recover, .bulk = true },
		{ "/ptc.v1.Control/Abort", ptc_api_abort, .relayed = true },
		{ "/ptc.v1.Control/Snapshots", ptc_api_snapshots },
		{ "/ptc.v1.Control/Rollback", ptc_api_rollback, .relayed = true },
		{ "/ptc.v1.Control/RollbackSkipping", ptc_api_rollback_skipping, .relayed = true },
		{ "/ptc.v1.Control/Verify", ptc_api_verify, .bulk = true },
		{ "/ptc.v1.Control/Events", ptc_api_events, .relayed = true },
		{ "/ptc.v1.Control/Run", ptc_api_run, .relayed = true },
		{ "/ptc.v1.Control/Stop", ptc_api_stop, .relayed = true },
		{ "/ptc.v1.Control/Snapshot", ptc_api_snapshot, .relayed = true },
		{ "/ptc.v1.Control/Logs", ptc_api_logs },
		{ "/ptc.v1.Control/DatasetAdd", ptc_api_dataset_add },
		{ "/ptc.v1.Control/DatasetRemove", ptc_api_dataset_remove },
		{ "/ptc.v1.Control/DatasetList", ptc_api_dataset_list },
		{ "/ptc.v1.Control/DatasetRead", ptc_api_dataset_read, .relayed = true, .bulk = true },
		{ "/ptc.v1.Control/JobData", ptc_api_data },
		{ "/ptc.v1.Control/Evidence", ptc_api_evidence, .bulk = true },
		{ "/ptc.v1.Control/ImportBegin", ptc_api_import_begin, .relayed = true },
		{ "/ptc.v1.Control/ImportData", ptc_api_import_data, .bulk = true },
		{ "/ptc.v1.Control/ImportCommit", ptc_api_import_commit, .relayed = true },
		{ "/ptc.v1.Control/ExportInfo", ptc_api_export_info },
		{ "/ptc.v1.Control/Read", ptc_api_read, .bulk = true },
		{ "/ptc.v1.Control/ReadMany", ptc_api_read_many, .bulk = true },
		{ "/ptc.v1.Control/ReadInto", ptc_api_read_into, .bulk = true },
		{ "/ptc.v1.Control/ReadRank", ptc_api_read_rank, .bulk = true },
		{ "/ptc.v1.Control/NearNodes", ptc_api_near_nodes, .bulk = true },
		{ "/ptc.v1.Control/Pin", ptc_api_pin },
	};
	const unsigned people = 1u << PTC_ROLE_USER | 1u << PTC_ROLE_ADMIN;

	_Static_assert(PTC_ARRAY_LEN(methods) <= PTC_CONTROL_METHODS, "a method without room");
	for (size_t i = 0; i < PTC_ARRAY_LEN(methods); i++) {
		const unsigned roles = people | (methods[i].relayed ? 1u << PTC_ROLE_NODE : 0);
		struct ptc_api_method *m = &d->control[i];
		int rc;

		*m = (struct ptc_api_method){ d, methods[i].fn };
		rc = ptc_rpc_server_method(server, methods[i].name, roles, handle, m, err);
		if (rc)
			return rc;
		ptc_rpc_server_method_kind(server, methods[i].name, methods[i].bulk ? PTC_RPC_BULK : PTC_RPC_BRIEF);
	}
	return 0;
}
