/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's side of ptc-source. A helper is used by one thread at a time. It knows nothing that is not on disk, so a
 * helper that is not wanted or does not answer is ended by SIGKILL.
 *
 * Happy path: a helper of that source that nobody uses is taken, asked, and put back. Failure modes: sources.h. A
 * helper that is killed while it waits for a dead disk stays in its slot until the process has ended. */
#include "daemon/sources/sources.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/child.h"
#include "base/sys/helper.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "daemon/sources/frame.h"
#include "proto/sample_rules.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PER_SOURCE 4 /* processes of one source at once, those that a dead disk keeps from ending among them */
#define PER_USER   (PTC_SOURCES_MAX / 2) /* of one user's sources; idle ones make room */
#define WAITING    16                    /* threads that wait for one; more are told to come again */
#define OPEN_NS    INT64_C(300000000000) /* to open a source, however many wait for it in vain */
#define IDLE_NS    60000000000           /* one that has had nothing to do for so long is ended */

struct helper {
	enum { NONE, BUSY, IDLE, ENDING } state;
	char reader[33];          /* whose source: ptc_dataset_doc_reader ... */
	uid_t uid;                /* ... and his number, which no two documents of the same hash can make one */
	struct ptc_child process; /* pid 0: not started */
	int fd;
	bool opened; /* the source, as it has said */
	int64_t started_ns, used_ns;
};

struct ptc_sources {
	pthread_mutex_t lock;
	pthread_cond_t freed;
	size_t waiting;
	struct helper v[PTC_SOURCES_MAX];
};

struct ptc_sources *ptc_sources_new(void)
{
	struct ptc_sources *s = ptc_calloc(1, sizeof *s);

	if (!s)
		return NULL;
	ptc_require(!pthread_mutex_init(&s->lock, NULL));
	ptc_cond_init(&s->freed);
	return s;
}

/* ---- slots ---- */

static void reap_locked(struct helper *h)
{
	if (h->state != ENDING || (h->process.pid && !ptc_child_wait(&h->process, 0, NULL)))
		return;
	if (h->process.pid)
		ptc_child_close(&h->process);
	*h = (struct helper){ .state = NONE };
}

static void end_locked(struct helper *h)
{
	if (h->process.pid) {
		close(h->fd);
		ptc_child_signal(&h->process, SIGKILL);
	}
	h->state = ENDING;
	reap_locked(h);
}

struct ptc_sources *ptc_sources_free(struct ptc_sources *s)
{
	if (!s)
		return NULL;
	for (size_t i = 0; i < PTC_SOURCES_MAX; i++)
		if (s->v[i].state == IDLE || s->v[i].state == BUSY)
			end_locked(&s->v[i]);
	for (size_t i = 0; i < PTC_SOURCES_MAX; i++)
		if (s->v[i].process.pid)
			ptc_child_close(&s->v[i].process);
	pthread_cond_destroy(&s->freed);
	pthread_mutex_destroy(&s->lock);
	ptc_free(s);
	return NULL;
}

void ptc_sources_expire(struct ptc_sources *s)
{
	int64_t now = ptc_sys_now_ns();

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < PTC_SOURCES_MAX; i++) {
		if (s->v[i].state == IDLE && now - s->v[i].used_ns > IDLE_NS)
			end_locked(&s->v[i]);
		reap_locked(&s->v[i]);
	}
	pthread_mutex_unlock(&s->lock);
}

/* One of that source, or one that is to be started; NULL: all are at work. */
static struct helper *take_locked(struct ptc_sources *s, const char *reader, uid_t uid)
{
	struct helper *oldest = NULL, *none = NULL;
	size_t same = 0, mine = 0;

	for (size_t i = 0; i < PTC_SOURCES_MAX; i++) {
		struct helper *h = &s->v[i];

		reap_locked(h);
		if (h->state == NONE)
			none = h;
		else if (h->uid == uid && !strcmp(h->reader, reader)) { /* one that will not end, too */
			if (h->state == IDLE) {
				h->state = BUSY;
				return h;
			}
			same++;
		}
		mine += h->uid == uid && (h->state == BUSY || h->state == ENDING);
		if (h->state == IDLE && (!oldest || h->used_ns < oldest->used_ns))
			oldest = h;
	}
	if (same >= PER_SOURCE || mine >= PER_USER)
		return NULL;
	if (!none && oldest) {
		end_locked(oldest);
		none = oldest->state == NONE ? oldest : NULL; /* it ends in a moment; others wait that long */
	}
	if (none) {
		none->state = BUSY;
		none->uid = uid;
		memcpy(none->reader, reader, sizeof none->reader);
	}
	return none;
}

/* NULL: PTC_ELIMIT. */
static struct helper *take(struct ptc_sources *s, const char *reader, uid_t uid, int64_t deadline_ns,
			   struct ptc_error *err)
{
	struct helper *h;

	pthread_mutex_lock(&s->lock);
	while (!(h = take_locked(s, reader, uid)) && s->waiting < WAITING && ptc_sys_now_ns() < deadline_ns) {
		int64_t until_ns =
			PTC_MIN(deadline_ns, ptc_sys_now_ns() + 100000000); /* nobody tells of one that has ended */

		s->waiting++;
		ptc_cond_wait_until(&s->freed, &s->lock, until_ns);
		s->waiting--;
	}
	pthread_mutex_unlock(&s->lock);
	if (!h)
		ptc_error_set(err, PTC_ELIMIT, "too many reads of sources of this node are under way, or hang");
	return h;
}

static void put(struct ptc_sources *s, struct helper *h, bool useful)
{
	pthread_mutex_lock(&s->lock);
	h->state = IDLE;
	h->used_ns = ptc_sys_now_ns();
	if (!useful)
		end_locked(h);
	pthread_cond_signal(&s->freed);
	pthread_mutex_unlock(&s->lock);
}

/* ---- a process ---- */

static int start_process(struct helper *h, uid_t uid, struct ptc_error *err)
{
	char path[PTC_HELPER_PATH], name[] = "ptc-source", user[16];
	char *argv[] = { name, user, NULL };
	int fds[2], rc = ptc_helper_find("ptc-source", "PTC_SOURCE", path, err);

	if (rc)
		return rc;
	if (geteuid() != 0 && uid != geteuid())
		return ptc_error_set(err, PTC_EPERM, "ptcd here is not root and can read for uid %u only",
				     (unsigned)geteuid());
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return ptc_error_errno(err, errno, "cannot make a socket pair");
	snprintf(user, sizeof user, "%u", (unsigned)uid);
	rc = ptc_child_start(
		&(struct ptc_child_args){ .path = path, .argv = argv, .fds = &fds[1], .nfds = 1, .session = true },
		&h->process, err);
	close(fds[1]);
	if (rc)
		close(fds[0]);
	else
		h->fd = fds[0];
	return rc;
}

/* What the other end answers; what it says is wrong is err. */
static int receive(struct helper *h, int64_t deadline_ns, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	void *reply = NULL;
	size_t n = 0;
	int status, rc = ptc_frame_recv(h->fd, PTC_SAMPLES_FRAME, deadline_ns, &status, &reply, &n, err);

	if (!rc && status)
		rc = ptc_error_set(err, ptc_status_from_wire(status), "%.900s", reply ? (char *)reply : "");
	if (rc) {
		ptc_free(reply);
		return rc;
	}
	*ret_reply = reply;
	*ret_len = n;
	return 0;
}

static int start(struct helper *h, const struct ptc_dataset_doc *doc, int64_t deadline_ns, struct ptc_error *err)
{
	char *json = ptc_dataset_doc_encode(doc);
	int rc = json ? start_process(h, doc->uid, err) : ptc_nomem(err);

	h->started_ns = ptc_sys_now_ns();
	if (!rc)
		rc = ptc_frame_send(h->fd, 0, json, strlen(json), deadline_ns, err);
	ptc_free(json);
	return rc;
}

/* Once it says that it has opened the source. */
static int await_open(struct helper *h, int64_t deadline_ns, struct ptc_error *err)
{
	void *nothing = NULL;
	size_t len;
	int rc = receive(h, deadline_ns, &nothing, &len, err);

	ptc_free(nothing);
	h->opened = rc == 0;
	return rc;
}

struct reading {
	const struct ptc_dataset_doc *doc;
	char reader[33];
	const void *request;
	size_t len;
	int64_t deadline_ns;
};

/* A wrong question is no reason to end it, nor is a directory whose millions of names take longer than one who asks
 * waits. */
static bool goes_on(const struct helper *h, int rc)
{
	if (h->opened)
		return rc == 0 || rc == PTC_EINVAL;
	return rc == PTC_ETIMEOUT && ptc_sys_now_ns() - h->started_ns < OPEN_NS;
}

/* again: the process was one that was there, which somebody has ended meanwhile. */
static int read_once(struct ptc_sources *s, const struct reading *r, bool *again, void **ret_reply, size_t *ret_len,
		     struct ptc_error *err)
{
	struct helper *h = take(s, r->reader, r->doc->uid, r->deadline_ns, err);
	bool fresh;
	int rc;

	*again = false;
	if (!h)
		return PTC_ELIMIT;
	fresh = !h->process.pid;
	rc = fresh ? start(h, r->doc, r->deadline_ns, err) : 0;
	if (!rc && !h->opened)
		rc = await_open(h, r->deadline_ns, err);
	if (!rc)
		rc = ptc_frame_send(h->fd, 0, r->request, r->len, r->deadline_ns, err);
	if (!rc)
		rc = receive(h, r->deadline_ns, ret_reply, ret_len, err);
	if (rc == PTC_ETIMEOUT)
		ptc_error_set(err, rc, "dataset %s: its source has not %s in time; check the file system of its files",
			      r->doc->name, h->opened ? "answered" : "been opened");
	*again = rc == PTC_EPEER && !fresh;
	put(s, h, goes_on(h, rc));
	return rc;
}

int ptc_sources_read(struct ptc_sources *s, const struct ptc_dataset_doc *doc, const void *request, size_t len,
		     int timeout_ms, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	struct reading r = { .doc = doc,
			     .request = request,
			     .len = len,
			     .deadline_ns = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000 };
	struct ptc_error why = PTC_ERROR_INIT;
	bool again = false;
	int rc = ptc_dataset_doc_reader(doc, r.reader);

	if (rc)
		return ptc_error_set(err, rc, "out of memory");
	do {
		rc = read_once(s, &r, &again, ret_reply, ret_len, &why);
	} while (rc && again);
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}
