/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: an event comes, its key names the job, and the calls that follow this job are woken. Failure modes:
 * event_feed.h. */
#include "daemon/api/queries/event_feed.h"

#include "base/alloc.h"

#include <pthread.h>
#include <string.h>

#define PREFIX "/ptc/events/"

struct ptc_event_feed {
	pthread_mutex_t lock; /* guards everything */
	struct ptc_event_follower *first;
	struct ptc_etcd_watch *watch; /* NULL: nobody has followed */
};

struct ptc_event_feed *ptc_event_feed_new(void)
{
	struct ptc_event_feed *f = ptc_calloc(1, sizeof *f);

	if (f)
		pthread_mutex_init(&f->lock, NULL);
	return f;
}

struct ptc_event_feed *ptc_event_feed_free(struct ptc_event_feed *f)
{
	if (!f)
		return NULL;
	ptc_etcd_watch_free(f->watch);
	pthread_mutex_destroy(&f->lock);
	ptc_free(f);
	return NULL;
}

/* The watch's thread. A deleted event wakes nobody. */
static void changed(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	const char *uuid = kind == PTC_WATCH_PUT ? kv->key + strlen(PREFIX) : NULL;
	struct ptc_event_feed *f = arg;

	if (kind == PTC_WATCH_DELETE)
		return;
	pthread_mutex_lock(&f->lock);
	for (struct ptc_event_follower *w = f->first; w; w = w->next) {
		size_t len = strlen(w->uuid);

		if (!uuid || (strncmp(uuid, w->uuid, len) == 0 && uuid[len] == '/'))
			ptc_rpc_call_wake(w->call);
	}
	pthread_mutex_unlock(&f->lock);
}

int ptc_event_feed_join(struct ptc_event_feed *f, struct ptc_etcd *etcd, struct ptc_event_follower *who,
			struct ptc_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&f->lock);
	if (!f->watch)
		rc = ptc_etcd_watch_changes(etcd, PREFIX, changed, f, &f->watch, err);
	if (rc == 0) {
		who->feed = f;
		who->next = f->first;
		f->first = who;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

void ptc_event_feed_leave(struct ptc_event_follower *who)
{
	struct ptc_event_follower **at;

	if (!who->feed)
		return;
	pthread_mutex_lock(&who->feed->lock);
	for (at = &who->feed->first; *at != who; at = &(*at)->next)
		;
	*at = who->next;
	pthread_mutex_unlock(&who->feed->lock);
	who->feed = NULL;
}
