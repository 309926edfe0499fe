/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's memory for planning: keeps the last "works" (struct ptc_job_work: what planning needs of a job, made of
 * its documents), by job and by these documents. Happy path: profile and measured steps are read from etcd, and a work
 * made of the same documents is there. While etcd is unreachable, the documents that were read last are used. */
#include "daemon/planning/remembered.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define WORKS        8
#define WARM_DEVICES 64 /* numbers of devices that are searched ahead */

struct ptc_planning {
	struct ptc_cluster *cluster;
	pthread_mutex_t lock;
	struct ptc_cache works;
	struct ptc_plan_devices *known; /* by name */
	char *profile;                  /* as read last; NULL: none, or never read */
	struct {
		char uuid[PTC_UUID_TEXT];
		char *json;
	} measured[WORKS]; /* as read last */
	size_t next_measured;
};

static void drop(struct ptc_cached *cached)
{
	ptc_job_work_free((struct ptc_job_work *)cached);
}

int ptc_planning_new(struct ptc_cluster *cluster, const char *devices_file, struct ptc_planning **ret_planning,
		     struct ptc_error *err)
{
	struct ptc_planning *p = ptc_calloc(1, sizeof *p);
	int rc = p ? ptc_kinds_load(devices_file, &p->known, err) : ptc_nomem(err);

	if (rc) {
		ptc_free(p);
		return rc;
	}
	p->cluster = cluster;
	pthread_mutex_init(&p->lock, NULL);
	ptc_cache_init(&p->works, WORKS, drop);
	*ret_planning = p;
	return 0;
}

struct ptc_planning *ptc_planning_free(struct ptc_planning *p)
{
	if (!p)
		return NULL;
	ptc_cache_done(&p->works);
	for (size_t i = 0; i < WORKS; i++)
		ptc_free(p->measured[i].json);
	ptc_free(p->profile);
	ptc_free(p->known);
	pthread_mutex_destroy(&p->lock);
	ptc_free(p);
	return NULL;
}

struct ptc_etcd *ptc_planning_etcd(struct ptc_planning *p)
{
	return ptc_cluster_etcd(p->cluster);
}

int64_t ptc_planning_lease(struct ptc_planning *p)
{
	return ptc_cluster_lease(p->cluster);
}

/* ---- documents ---- */

static void replace(char **where, const char *with)
{
	ptc_free(*where);
	*where = with ? ptc_strdup(with) : NULL;
}

/* NULL: there is none. PTC_ECOORD: etcd is unreachable. */
static int get(struct ptc_planning *p, const char *key, char **ret, struct ptc_error *err)
{
	struct ptc_etcd *etcd = ptc_cluster_etcd(p->cluster);
	struct ptc_etcd_kvs kvs = { 0 };
	int64_t answered_ms;
	int rc;

	*ret = NULL;
	if (ptc_etcd_unreachable(etcd, &answered_ms)) /* nobody waits for it to be away once more */
		return ptc_error_set(err, PTC_ECOORD, "the coordinator is unreachable");
	rc = ptc_etcd_get(etcd, key, false, 1, &kvs, err);
	if (rc == 0 && kvs.n && !(*ret = ptc_strndup(kvs.kv[0].value, kvs.kv[0].len)))
		rc = ptc_nomem(err);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

static char *copy_profile(struct ptc_planning *p, const char *fresh, bool read)
{
	char *copy;

	pthread_mutex_lock(&p->lock);
	if (read)
		replace(&p->profile, fresh);
	copy = p->profile ? ptc_strdup(p->profile) : NULL;
	pthread_mutex_unlock(&p->lock);
	return copy;
}

char *ptc_planning_profile(struct ptc_planning *p)
{
	char *fresh = NULL, *copy;
	bool read = get(p, PTC_PROFILE_KEY, &fresh, NULL) == 0;

	copy = copy_profile(p, fresh, read);
	ptc_free(fresh);
	return copy;
}

int ptc_planning_profile_now(struct ptc_planning *p, char **ret, int64_t *ret_revision, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char *text = NULL;
	int64_t revision = 0;
	int rc = ptc_etcd_get(ptc_cluster_etcd(p->cluster), PTC_PROFILE_KEY, false, 1, &kvs, err);

	if (rc == 0 && kvs.n) {
		revision = kvs.kv[0].mod_revision;
		text = ptc_strndup(kvs.kv[0].value, kvs.kv[0].len);
		rc = text ? 0 : ptc_nomem(err);
	}
	ptc_etcd_kvs_done(&kvs);
	if (rc)
		return rc;
	*ret = text;
	*ret_revision = revision;
	return 0;
}

/* Takes fresh. */
static char *copy_measured(struct ptc_planning *p, const char *uuid, char *fresh, bool read)
{
	char *copy = NULL;
	size_t at = WORKS;

	pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < WORKS; i++)
		if (strcmp(p->measured[i].uuid, uuid) == 0)
			at = i;
	if (read && at == WORKS) {
		at = p->next_measured++ % WORKS;
		snprintf(p->measured[at].uuid, sizeof p->measured[at].uuid, "%s", uuid);
	}
	if (read) {
		ptc_free(p->measured[at].json);
		p->measured[at].json = fresh;
	}
	if (at < WORKS && p->measured[at].json)
		copy = ptc_strdup(p->measured[at].json);
	pthread_mutex_unlock(&p->lock);
	if (!read)
		ptc_free(fresh);
	return copy;
}

void ptc_planning_measured_key(const char *uuid, char ret_key[PTC_MEASURED_KEY])
{
	snprintf(ret_key, PTC_MEASURED_KEY, "/ptc/jobs/%s/measured", uuid);
}

char *ptc_planning_measured(struct ptc_planning *p, const char *uuid, struct ptc_measured_doc *ret)
{
	char key[PTC_MEASURED_KEY], *fresh = NULL, *copy;
	bool read;

	ptc_planning_measured_key(uuid, key);
	read = get(p, key, &fresh, NULL) == 0;
	copy = copy_measured(p, uuid, fresh, read);
	memset(ret, 0, sizeof *ret);
	if (copy && ptc_measured_decode(copy, strlen(copy), ret, NULL) != 0)
		memset(ret, 0, sizeof *ret); /* of a newer version: planned without */
	return copy;
}

/* ---- works ---- */

/* What of the present configuration the work depends on. With a space that is only what the program is told. */
static void put_now(const struct ptc_planning_ask *ask, struct ptc_buf *b)
{
	const char *now = ask->now ? ask->now : "", *space = ask->desc->space;

	if (!space)
		ptc_buf_puts(b, now);
	else
		ptc_buf_printf(b, "%s%s%s", strstr(now, "recompute=") ? "r" : "", strstr(now, "schedule=") ? "s" : "",
			       ask->unattended && strstr(space, "vpp") ? "u" : "");
}

/* What a work is made of, in a few bytes. */
static void key_of(const struct ptc_planning_ask *ask, const char *profile, const char *measured, char *key,
		   size_t size)
{
	struct ptc_buf b = PTC_BUF_INIT;
	char hash[PTC_HASH_HEX] = "";

	for (size_t i = 0; i < ask->shape.nnodes; i++) {
		const struct ptc_planning_node *n = &ask->shape.nodes[i];

		ptc_buf_printf(&b, "%s %u %s %llu/", n->name, n->devices, n->device_name,
			       (unsigned long long)n->device_bytes);
	}
	put_now(ask, &b);
	ptc_buf_printf(&b, "/%s/%s/%s", profile ? profile : "", measured ? measured : "",
		       ask->held_id ? ask->held_id : "");
	if (!ptc_buf_failed(&b))
		ptc_content_hash(b.data, b.len, hash);
	ptc_buf_done(&b);
	snprintf(key, size, "%s/%s/%s", ask->uuid, ask->spec_hash, hash);
}

int ptc_planning_work(struct ptc_planning *p, const struct ptc_planning_ask *ask, struct ptc_job_work **ret,
		      struct ptc_error *err)
{
	char key[PTC_CACHE_KEY];
	char *doc = ptc_planning_profile(p), *json = NULL;
	struct ptc_measured_doc *measured = ptc_calloc(1, sizeof *measured);
	struct ptc_profile_doc profile = { 0 };
	struct ptc_job_work_opts opts = { .desc = ask->desc,
					  .held = ask->held,
					  .now = ask->now,
					  .known = p->known,
					  .measured = measured,
					  .shape = &ask->shape,
					  .unattended = ask->unattended };
	int rc = measured ? 0 : ptc_nomem(err);

	if (rc == 0 && doc)
		rc = ptc_profile_doc_decode("the cluster's profile", doc, &profile, err);
	if (rc == 0) {
		opts.profile = profile.profile;
		opts.pairs = doc ? &profile.pairs : NULL;
		json = ptc_planning_measured(p, ask->uuid, measured);
		key_of(ask, doc, json, key, sizeof key);
		*ret = (struct ptc_job_work *)ptc_cache_find(&p->works, key);
		if (!*ret && (rc = ptc_job_work_new(&opts, ret, err)) == 0)
			*ret = (struct ptc_job_work *)ptc_cache_add(&p->works, key, &(*ret)->cached);
	}
	ptc_profile_doc_done(&profile);
	ptc_free(json);
	ptc_free(measured);
	ptc_free(doc);
	return rc;
}

void ptc_planning_work_release(struct ptc_job_work *w)
{
	ptc_cached_unref((struct ptc_cached *)w);
}

struct ptc_length_cost ptc_planning_length_cost(struct ptc_planning *p, const struct ptc_planning_ask *ask,
						const struct ptc_config *config)
{
	struct ptc_length_cost cost = { 0 };
	struct ptc_job_work *w;

	if (!ask->desc->model || ptc_planning_work(p, ask, &w, NULL) != 0)
		return cost;
	cost = ptc_job_work_length_cost(w, config);
	ptc_planning_work_release(w);
	return cost;
}

/* ---- ahead ---- */

/* A family of models that is not known, or that tensors are to say, is none that cannot be. */
static int check_text(const char *what, const char *text, bool model, struct ptc_error *err)
{
	struct ptc_job_work *w;
	struct ptc_doc doc;
	int rc;

	if (!text)
		return 0;
	rc = ptc_doc_from_yaml(what, text, strlen(text), &doc, err);
	if (rc)
		return rc;
	w = ptc_calloc(1, sizeof *w);
	rc = !w      ? ptc_nomem(err)
	     : model ? ptc_job_model_read(&doc, NULL, w, err)
		     : ptc_plan_space_read(&doc, doc.root, &w->space, &w->work, err);
	ptc_free(w);
	ptc_doc_done(&doc);
	return rc == PTC_ENOTFOUND && model ? 0 : rc;
}

int ptc_planning_check(const struct ptc_job_desc *desc, struct ptc_error *err)
{
	int rc = check_text("model", desc->model, true, err);

	return rc ? rc : check_text("space", desc->space, false, err);
}

void ptc_planning_shape_sum(struct ptc_planning_shape *s)
{
	size_t nodes[PTC_MAX_DEVICES_PER_NODE + 1] = { 0 };

	s->devices = s->per_node = 0;
	for (size_t i = 0; i < s->nnodes; i++) {
		s->devices += s->nodes[i].devices;
		nodes[PTC_MIN(s->nodes[i].devices, (uint32_t)PTC_MAX_DEVICES_PER_NODE)]++;
	}
	for (uint32_t k = 1; k <= PTC_MAX_DEVICES_PER_NODE; k++)
		if (nodes[k] && (!s->per_node || nodes[k] >= nodes[s->per_node]))
			s->per_node = k;
}

struct ptc_planning_node ptc_planning_node_of(const struct ptc_node_doc *doc, uint32_t devices)
{
	struct ptc_planning_node n = { .devices = devices, .device_bytes = doc->device_bytes };

	snprintf(n.name, sizeof n.name, "%s", doc->name);
	snprintf(n.device_name, sizeof n.device_name, "%s", doc->device_name);
	return n;
}

struct ptc_planning_shape ptc_planning_shape(struct ptc_cluster *c)
{
	size_t n = ptc_cluster_nnodes(c);
	struct ptc_planning_shape s = { .nodes = ptc_calloc(n + 1, sizeof *s.nodes) };

	for (uint32_t i = 0; s.nodes && i < n; i++) {
		const struct ptc_node *node = ptc_cluster_node(c, i);

		if (!node->up || node->drained)
			continue;
		s.nodes[s.nnodes++] = ptc_planning_node_of(&node->doc, node->doc.devices);
	}
	ptc_planning_shape_sum(&s);
	return s;
}

void ptc_planning_shape_done(struct ptc_planning_shape *s)
{
	ptc_free(s->nodes);
	memset(s, 0, sizeof *s);
}

void ptc_planning_prepare(struct ptc_planning *p, const char *uuid, const char *spec_hash,
			  const struct ptc_job_desc *desc, const struct ptc_planning_shape *shape,
			  const atomic_bool *stop)
{
	struct ptc_planning_ask ask = { .uuid = uuid, .spec_hash = spec_hash, .desc = desc, .shape = *shape };
	struct ptc_job_found *v = ptc_calloc(PTC_WORK_KEEP, sizeof *v);
	struct ptc_frontier_point best;
	struct ptc_job_work *w = NULL;
	size_t found;

	if (v && shape->devices && (desc->model || desc->space) && ptc_planning_work(p, &ask, &w, NULL) == 0) {
		ptc_job_work_best(w, 1, &best, NULL);
		for (uint32_t n = 1; n <= PTC_MIN(shape->devices, (uint32_t)WARM_DEVICES) && !atomic_load(stop); n++)
			ptc_job_work_search(w, n, v, &found, NULL);
		ptc_planning_work_release(w);
	}
	ptc_free(v);
}
