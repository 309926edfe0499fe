/* SPDX-License-Identifier: Apache-2.0 */
/* Committed generations ready to be read: documents, addresses and geometry,
 * kept for the next read of the same one. An export asks for each item, and
 * loading all of it from etcd each time would cost more than the bytes.
 *
 * Happy path: the entry of this manifest and this view of the nodes is found
 * and counted. Failure modes: as ptc_control_view. At most READ_VIEWS entries;
 * the oldest nobody uses makes room, and when all are in use the new one is
 * simply not kept. */
#include "base/alloc.h"
#include "daemon/api/reads/reads.h"

#include <pthread.h>
#include <string.h>

#define READ_VIEWS 8

struct ptc_read_views {
	pthread_mutex_t lock;
	struct ptc_read_view *kept[READ_VIEWS];
	uint64_t clock;
};

struct ptc_read_views *ptc_read_views_new(void)
{
	struct ptc_read_views *r = ptc_calloc(1, sizeof *r);

	if (r)
		pthread_mutex_init(&r->lock, NULL);
	return r;
}

static void view_free(struct ptc_read_view *v)
{
	ptc_geometry_done(&v->geometry);
	ptc_view_done(&v->view);
	ptc_free(v);
}

struct ptc_read_views *ptc_read_views_free(struct ptc_read_views *r)
{
	for (size_t i = 0; r && i < READ_VIEWS; i++)
		if (r->kept[i])
			view_free(r->kept[i]);
	if (r)
		pthread_mutex_destroy(&r->lock);
	ptc_free(r);
	return NULL;
}

static struct ptc_read_view *find_locked(struct ptc_read_views *r, const struct ptc_target *t)
{
	for (size_t i = 0; i < READ_VIEWS; i++) {
		struct ptc_read_view *v = r->kept[i];

		if (v && v->epoch == t->epoch && strcmp(v->view.meta.uuid, t->meta.uuid) == 0 &&
		    strcmp(v->manifest_hash, t->record.manifest_hash) == 0) {
			v->refs++;
			v->used = ++r->clock;
			return v;
		}
	}
	return NULL;
}

static void keep_locked(struct ptc_read_views *r, struct ptc_read_view *v)
{
	struct ptc_read_view **oldest = NULL;

	for (size_t i = 0; i < READ_VIEWS; i++) {
		struct ptc_read_view **at = &r->kept[i];

		if (*at && (*at)->refs)
			continue;
		if (!oldest || !*at || (*oldest && (*at)->used < (*oldest)->used))
			oldest = at;
		if (!*at)
			break;
	}
	if (!oldest)
		return;
	if (*oldest)
		view_free(*oldest);
	*oldest = v;
	v->kept = true;
	v->used = ++r->clock;
}

static int load(struct ptc_daemon *d, struct ptc_target *t, struct ptc_read_view **ret_view, struct ptc_error *err)
{
	struct ptc_read_view *v = ptc_calloc(1, sizeof *v);
	struct ptc_target now = *t; /* may turn out to be newer */
	int rc = v ? ptc_control_need_snapshot(t, err) : ptc_error_set(err, PTC_ENOMEM, "out of memory");

	if (rc == 0)
		rc = ptc_control_view(d, &now, false, true, &v->view, err);

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
	v->owner = d->read_views;
	v->epoch = t->epoch;
	v->refs = 1;
	memcpy(v->manifest_hash, now.record.manifest_hash, sizeof v->manifest_hash);
	*ret_view = v;
	return 0;
}

int ptc_read_view_get(struct ptc_daemon *d, struct ptc_target *t, struct ptc_read_view **ret_view,
		      struct ptc_error *err)
{
	struct ptc_read_views *r = d->read_views;
	struct ptc_read_view *v;
	int rc;

	pthread_mutex_lock(&r->lock);
	v = find_locked(r, t);
	pthread_mutex_unlock(&r->lock);
	if (!v) {
		rc = load(d, t, &v, err);
		if (rc)
			return rc;
		pthread_mutex_lock(&r->lock);
		keep_locked(r, v);
		pthread_mutex_unlock(&r->lock);
	}
	*ret_view = v;
	return 0;
}

void ptc_read_view_ref(struct ptc_read_view *v)
{
	pthread_mutex_lock(&v->owner->lock);
	v->refs++;
	pthread_mutex_unlock(&v->owner->lock);
}

void ptc_read_view_put(struct ptc_read_view *v)
{
	struct ptc_read_views *r = v->owner;
	bool last;

	pthread_mutex_lock(&r->lock);
	last = --v->refs == 0 && !v->kept;
	pthread_mutex_unlock(&r->lock);
	if (last)
		view_free(v);
}
