/* SPDX-License-Identifier: Apache-2.0 */
/* See identity.h. */
#include "daemon/cluster/identity/identity.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/number/fence.h"
#include "base/sys/sys.h"
#include "formats/members.h"

#include <inttypes.h>
#include <string.h>

#define VERSION        1    /* for ever: daemons compare the whole text */
#define OLD_TIMEOUT_MS 2000 /* for an etcd that is thought to be gone */
#define REMEMBERED_MAX (64u << 10)

static const struct ptc_member rows[] = {
	PTC_ROW(struct ptc_identity, "id", id, TEXT, .min = PTC_SIZEOF(struct ptc_identity, id) - 1),
	PTC_ROW(struct ptc_identity, "epoch", epoch, U64, PTC_IF(struct ptc_identity, epoch), .max = PTC_EPOCH_MAX),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_identity);

int ptc_identity_decode(const char *what, const char *text, struct ptc_identity *ret, struct ptc_error *err)
{
	struct ptc_identity i = { .epoch = 0 };
	int rc = ptc_members_from_text(what, 0, 0, &members, text, strlen(text), &i, err);

	if (rc == 0)
		*ret = i;
	else
		ptc_error_wrap(err, "the name of a cluster");
	return rc;
}

char *ptc_identity_encode(const struct ptc_identity *i)
{
	return ptc_members_to_text(VERSION, &members, i);
}

enum ptc_identity_fit ptc_identity_fit(const char *own, const char *etcd)
{
	struct ptc_identity a, b;

	if (!own || (etcd && strcmp(own, etcd) == 0))
		return PTC_IDENTITY_SAME;
	if (ptc_identity_decode("cluster", own, &a, NULL) != 0)
		return PTC_IDENTITY_OTHER;
	if (!etcd)
		return PTC_IDENTITY_EMPTY;
	if (ptc_identity_decode("cluster", etcd, &b, NULL) != 0 || strcmp(a.id, b.id) != 0 || a.epoch == b.epoch)
		return PTC_IDENTITY_OTHER;
	return b.epoch > a.epoch ? PTC_IDENTITY_BEHIND : PTC_IDENTITY_OLD;
}

int ptc_identity_explain(enum ptc_identity_fit fit, const char *state_dir, const char *own, const char *etcd,
			 struct ptc_error *err)
{
	struct ptc_identity a = { .epoch = 0 }, b = { .epoch = 0 };

	if (own)
		(void)ptc_identity_decode("cluster", own, &a, NULL);
	if (etcd)
		(void)ptc_identity_decode("cluster", etcd, &b, NULL);
	if (fit == PTC_IDENTITY_EMPTY)
		return ptc_error_set(err, PTC_ESTATE,
				     "etcd is empty, and this node's state belongs to a cluster: if the etcd that it "
				     "had is gone for good, `ptcctl cluster recover` fills this one; else set "
				     "coordinator to the etcd that it had");
	if (fit == PTC_IDENTITY_BEHIND)
		return ptc_error_set(err, PTC_ESTATE,
				     "this node is of coordination epoch %" PRId64 ", and the cluster was recovered to "
				     "epoch %" PRId64
				     " without it: `ptcctl cluster rejoin` on this node brings it back",
				     a.epoch, b.epoch);
	if (fit == PTC_IDENTITY_OLD)
		return ptc_error_set(err, PTC_ESTATE,
				     "this etcd is of coordination epoch %" PRId64 ", and this node of epoch %" PRId64
				     ": this etcd has been replaced; set coordinator to the one that took its place",
				     b.epoch, a.epoch);
	return ptc_error_set(err, PTC_ESTATE,
			     "%s/cluster names another cluster than etcd's " PTC_CLUSTER_KEY "; refusing to touch its "
			     "state (wrong endpoints, or etcd lost its data: restore it, or empty the state directory)",
			     state_dir);
}

/* ---- the etcd before ---- */

static bool listed(const struct ptc_etcd_opts *opts, const char *endpoint)
{
	for (size_t i = 0; i < opts->nendpoints; i++)
		if (strcmp(opts->endpoints[i], endpoint) == 0)
			return true;
	return false;
}

int ptc_identity_remember(const char *state_dir, const struct ptc_etcd_opts *opts, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/coordinator", state_dir), *old = NULL;
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; i < opts->nendpoints; i++)
		ptc_buf_printf(&b, "%s\n", opts->endpoints[i]);
	if (!path || ptc_buf_failed(&b))
		rc = ptc_nomem(err);
	else if (ptc_sys_read_file(path, REMEMBERED_MAX, &old, NULL, NULL) != 0 ||
		 strcmp(old, b.data ? b.data : "") != 0)
		rc = ptc_sys_write_file(path, b.data, b.len, 0600, "coordinator.write", err);
	ptc_buf_done(&b);
	return rc;
}

static bool answers(const struct ptc_etcd_opts *like, const char *endpoint)
{
	struct ptc_etcd_opts opts = { .endpoints = &endpoint,
				      .nendpoints = 1,
				      .tls = like->tls,
				      .insecure = like->insecure,
				      .timeout_ms = OLD_TIMEOUT_MS };
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_etcd *e = NULL;
	bool yes = ptc_etcd_new(&opts, &e, NULL) == 0 && ptc_etcd_get(e, PTC_CLUSTER_KEY, false, 1, &kvs, NULL) == 0 &&
		   kvs.n;

	ptc_etcd_kvs_done(&kvs);
	ptc_etcd_free(e);
	return yes;
}

int ptc_identity_old_answers(const char *state_dir, const struct ptc_etcd_opts *opts, char **ret_endpoint,
			     struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/coordinator", state_dir), *text = NULL;
	char *found = NULL, *save = NULL;
	int rc = path ? ptc_sys_read_file(path, REMEMBERED_MAX, &text, NULL, err) : ptc_nomem(err);

	if (rc && rc != PTC_ENOTFOUND)
		return rc;
	for (char *e = text ? strtok_r(text, "\n", &save) : NULL; e && !found; e = strtok_r(NULL, "\n", &save))
		if (!listed(opts, e) && answers(opts, e))
			found = ptc_strdup(e);
	*ret_endpoint = found;
	return 0;
}

/* ---- the etcd that has taken its place ---- */

int ptc_identity_check_peer(const char *own, const char *node, const char *theirs, struct ptc_error *err)
{
	struct ptc_identity a, b;

	if (ptc_identity_decode("cluster", own, &a, NULL) != 0 ||
	    ptc_identity_decode("cluster", theirs, &b, NULL) != 0 || strcmp(a.id, b.id) != 0 || b.epoch <= a.epoch)
		return 0;
	return ptc_error_set(err, PTC_ESTATE,
			     "%s of coordination epoch %" PRId64 ", and this etcd of epoch %" PRId64
			     ": it has been replaced; set coordinator to the one that took its place, and then give "
			     "`ptcctl cluster rejoin` on this node",
			     node, b.epoch, a.epoch);
}

int ptc_identity_told(const char *state_dir, const char *text, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/replaced", state_dir);

	return path ? ptc_sys_write_file(path, text, strlen(text), 0600, "replaced.write", err) : ptc_nomem(err);
}

int ptc_identity_check_told(const char *state_dir, const char *etcd, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/replaced", state_dir), *told = NULL;
	int rc = path ? ptc_sys_read_file(path, PTC_CLUSTER_MAX_BYTES, &told, NULL, err) : ptc_nomem(err);

	if (rc)
		return rc == PTC_ENOTFOUND ? 0 : rc;
	return etcd ? ptc_identity_check_peer(etcd, "another node is", told, err) : 0;
}
