/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps committed generations ready to be read: documents, addresses and geometry, for the next read of the same one.
 * An export asks for each item, and loading all of it from etcd each time would cost more than the bytes.
 *
 * Happy path: the entry of this manifest and this view of the nodes is found
 * and counted. Failure modes: as ptc_api_view. At most READ_VIEWS that
 * nobody uses are kept. */
#include "base/alloc.h"
#include "base/cache/counted_cache.h"
#include "daemon/api/reads/reads.h"

#include <inttypes.h>
#include <stdio.h>

#define READ_VIEWS 8

struct ptc_read_views {
	struct ptc_cache cache;
};

static void drop(struct ptc_cached *cached)
{
	struct ptc_read_view *v = (struct ptc_read_view *)cached;

	ptc_geometry_done(&v->geometry);
	ptc_view_done(&v->view);
	ptc_free(v);
}

struct ptc_read_views *ptc_read_views_new(void)
{
	struct ptc_read_views *r = ptc_calloc(1, sizeof *r);

	if (r)
		ptc_cache_init(&r->cache, READ_VIEWS, drop);
	return r;
}

struct ptc_read_views *ptc_read_views_free(struct ptc_read_views *r)
{
	if (r)
		ptc_cache_done(&r->cache);
	ptc_free(r);
	return NULL;
}

static void key_of(const struct ptc_target *t, const struct ptc_target *now, char key[PTC_CACHE_KEY])
{
	snprintf(key, PTC_CACHE_KEY, "%s/%" PRIu64 "/%" PRId64 "/%s", t->meta.uuid, t->epoch, t->copies_revision,
		 now->record.manifest_hash);
}

/* The key of what was loaded is set, too: it may have turned out to be newer. */
static int load(struct ptc_daemon *d, struct ptc_target *t, char key[PTC_CACHE_KEY], struct ptc_read_view **ret_view,
		struct ptc_error *err)
{
	struct ptc_read_view *v = ptc_calloc(1, sizeof *v);
	struct ptc_target now = *t; /* may turn out to be newer */
	int rc = v ? ptc_api_need_snapshot(t, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_api_view(d, &now, false, true, &v->view, err);

	if (rc) {
		ptc_free(v);
		return rc;
	}
	rc = ptc_view_geometry(d->agent, &v->view, false, &v->geometry, err);
	if (rc) {
		ptc_view_done(&v->view);
		ptc_free(v);
		return rc;
	}
	key_of(t, &now, key);
	*ret_view = v;
	return 0;
}

int ptc_read_view_get(struct ptc_daemon *d, struct ptc_target *t, struct ptc_read_view **ret_view,
		      struct ptc_error *err)
{
	struct ptc_cache *c = &d->read_views->cache;
	char key[PTC_CACHE_KEY];
	struct ptc_read_view *v;
	int rc;

	key_of(t, t, key);
	v = (struct ptc_read_view *)ptc_cache_find(c, key);
	if (!v) {
		rc = load(d, t, key, &v, err);
		if (rc)
			return rc;
		v = (struct ptc_read_view *)ptc_cache_add(c, key, &v->cached);
	}
	*ret_view = v;
	return 0;
}

void ptc_read_view_ref(struct ptc_read_view *v)
{
	ptc_cached_ref(&v->cached);
}

void ptc_read_view_put(struct ptc_read_view *v)
{
	ptc_cached_unref(&v->cached);
}
