/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: archiver.h. */
#include "daemon/controller/archiving/archiver.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/child.h"
#include "base/sys/fault.h"
#include "base/sys/helper.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_NS   INT64_C(2000000000) /* doubled with each failure ... */
#define RETRY_MAX  9                   /* ... so many times: 17 minutes */
#define AT_ONCE    4                   /* processes of a node; more only as may_start() says */
#define END_MS     10000               /* one that is not wanted: to remove what it has not finished */
#define RESULT_MAX 4096

struct ptc_archiver {
	struct ptc_controller *ctl;
	enum { REST, STARTING, RUNNING } phase;
	struct place *place; /* of its process; NULL: it has none */
	bool none;           /* the job has no archive */
	struct ptc_archive_state state;
	uint64_t generation, snapshot; /* archived last */
	int64_t next_ns;               /* not before */
	unsigned failures;
	/* the round under way */
	uint64_t round_generation, round_snapshot;
	struct ptc_child child;
	int fd; /* what it says; it ends when this is closed */
	char out[RESULT_MAX];
	size_t nout;
};

/* ---- whose turn it is ---- */

/* Of a process that runs, is being started, or was told to end. It is kept until the process has ended: one that hangs
 * in the kernel outlives its job, and counts. */
struct place {
	struct place *next;
	uint32_t uid;
	atomic_bool ended;
};

static struct place *places; /* [loop] */

static void forget_ended(void)
{
	struct place *p, **at = &places;

	while ((p = *at)) {
		if (atomic_load(&p->ended)) {
			*at = p->next;
			ptc_free(p);
		} else {
			at = &p->next;
		}
	}
}

/* A directory that does not answer keeps its processes for ever, and one user may have many such. So a user who has no
 * process may start one, however many others have. */
static bool may_start(const struct ptc_archiver *a)
{
	size_t all = 0, own = 0;

	forget_ended();
	for (const struct place *p = places; p; p = p->next) {
		all++;
		own += p->uid == a->ctl->meta.uid;
	}
	return all < AT_ONCE || !own;
}

static void place_take(struct ptc_archiver *a)
{
	a->place = ptc_calloc(1, sizeof *a->place);
	ptc_require(a->place);
	a->place->uid = a->ctl->meta.uid;
	a->place->next = places;
	places = a->place;
}

/* Its process has ended. Any thread. */
static void place_give(void *place)
{
	atomic_store(&((struct place *)place)->ended, true);
}

/* ---- a process is started ---- */

struct start {
	struct ptc_controller *ctl;
	struct ptc_meta_doc meta;
	char socket[108];
	int status;
	struct ptc_error err;
	bool none;
	char *dir;
	struct ptc_child child;
	int fd;
};

static int spawn(struct start *s, const struct ptc_job_archive *a)
{
	char path[PTC_HELPER_PATH], name[] = "ptc-archive", uid[16], keep[24], rate[24], every[24];
	char *argv[] = { name, uid, s->socket, s->meta.uuid, s->meta.name, s->dir, keep, rate, every, NULL };
	int fds[2], rc = ptc_helper_find("ptc-archive", "PTC_ARCHIVE", path, &s->err);

	if (rc)
		return rc;
	if (geteuid() != 0 && s->meta.uid != geteuid())
		return ptc_error_set(&s->err, PTC_EPERM, "ptcd here is not root and can write as uid %u only",
				     (unsigned)geteuid());
	snprintf(uid, sizeof uid, "%u", (unsigned)s->meta.uid);
	snprintf(keep, sizeof keep, "%" PRIu64, a->keep);
	snprintf(rate, sizeof rate, "%" PRIu64, a->rate);
	snprintf(every, sizeof every, "%" PRIu64, a->every_ms);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return ptc_error_errno(&s->err, errno, "cannot make a socket pair");
	rc = ptc_child_start(
		&(struct ptc_child_args){ .path = path, .argv = argv, .fds = &fds[1], .nfds = 1, .session = true },
		&s->child, &s->err);
	close(fds[1]);
	if (!rc && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0)
		s->fd = fds[0];
	else
		close(fds[0]);
	return rc;
}

static void start_work(void *arg, struct ptc_etcd *e)
{
	struct start *s = arg;
	const struct ptc_job_desc *desc;
	void *ref;

	(void)e;
	s->status = ptc_fault("archive.start") ? ptc_error_set(&s->err, PTC_EIO, "fault point archive.start")
					       : ptc_specs_get(s->ctl->all->docs.specs, s->meta.uuid, s->meta.spec_hash,
							       &desc, &ref, &s->err);
	if (s->status)
		return;
	s->none = !desc->archive.dir;
	s->dir = s->none ? NULL : ptc_strdup(desc->archive.dir);
	if (!s->none)
		s->status = s->dir ? spawn(s, &desc->archive) : ptc_nomem(&s->err);
	ptc_specs_release(ref);
}

/* ---- what is told ---- */

static void rest(struct ptc_archiver *a, int64_t for_ns)
{
	a->phase = REST;
	a->next_ns = ptc_sys_now_ns() + for_ns;
}

static void fail(struct ptc_archiver *a, const char *why)
{
	if (strcmp(a->state.failed, why) != 0)
		ptc_event(a->ctl->all->cluster, a->ctl->uuid, "archive_failed", "snapshot %" PRIu64 ": %.900s",
			  a->round_snapshot, why);
	snprintf(a->state.failed, sizeof a->state.failed, "%s", why);
	rest(a, RETRY_NS << PTC_MIN(a->failures, (unsigned)RETRY_MAX));
	a->failures++;
}

static void succeed(struct ptc_archiver *a, const struct ptc_archive_said *said)
{
	a->failures = 0;
	a->state.failed[0] = '\0';
	a->state.said = *said;
	rest(a, (int64_t)said->wait_ms * 1000000);
	if (said->wait_ms) /* what is there is too new for another one yet */
		return;
	a->generation = said->generation;
	a->snapshot = said->snapshot;
	if (said->fresh)
		ptc_event(a->ctl->all->cluster, a->ctl->uuid, "archived",
			  "snapshot %" PRIu64 ", step %" PRIu64 ": %s/%s", a->snapshot, said->step, a->state.dir,
			  said->archive);
}

static void started(void *arg)
{
	struct start *s = arg;
	struct ptc_archiver *a = s->ctl->archiver;

	ptc_require(a && a->phase == STARTING);
	ptc_free(a->state.dir);
	a->state.dir = s->dir;
	a->none = s->status == 0 && s->none;
	if (s->status || a->none) {
		place_give(a->place);
		a->place = NULL;
	}
	if (s->status) {
		fail(a, s->err.text);
	} else if (a->none) {
		rest(a, 0);
	} else {
		a->phase = RUNNING;
		a->child = s->child;
		a->fd = s->fd;
		a->nout = 0;
	}
	if (s->ctl->gone)
		ptc_archiver_stop(s->ctl);
	ptc_controller_unref(s->ctl);
	ptc_free(s);
}

static void start(struct ptc_archiver *a)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, start_work, true }, { 0 } };
	struct ptc_controller *ctl = a->ctl;
	struct start *s = ptc_calloc(1, sizeof *s);
	char lane[PTC_LANE_MAX];

	ptc_require(s);
	*s = (struct start){ .ctl = ptc_controller_ref(ctl), .meta = ctl->meta, .child = PTC_CHILD_NONE, .fd = -1 };
	snprintf(s->socket, sizeof s->socket, "%s", ctl->all->control_socket);
	a->phase = STARTING;
	a->round_generation = ctl->record.generation;
	a->round_snapshot = ctl->record.snapshot;
	place_take(a);
	snprintf(lane, sizeof lane, "a/%s", ctl->uuid);
	ptc_require(ptc_cluster_steps(ctl->all->cluster, lane, steps, started, s) == 0);
}

/* ---- a process ends ---- */

/* It may hang in the kernel, also when it was killed: neither the loop nor the pool for computation waits for it. */
void ptc_archiver_stop(struct ptc_controller *ctl)
{
	struct ptc_archiver *a = ctl->archiver;

	if (!a || a->phase != RUNNING)
		return;
	ptc_close(&a->fd);
	ptc_child_end_later(&a->child, END_MS, place_give, a->place);
	a->place = NULL;
	a->phase = REST;
}

static void hear(struct ptc_archiver *a)
{
	ssize_t n;

	do {
		n = read(a->fd, a->out + a->nout, sizeof a->out - a->nout);
		a->nout += n > 0 ? (size_t)n : 0;
	} while (n > 0 && a->nout < sizeof a->out);
}

static void finish(struct ptc_archiver *a, int status)
{
	struct ptc_archive_said said;
	char text[128];

	hear(a);
	ptc_close(&a->fd);
	ptc_child_close(&a->child);
	place_give(a->place);
	a->place = NULL;
	if (ptc_archive_said_decode(a->out, a->nout, &said, NULL) != 0) {
		snprintf(text, sizeof text, "ptc-archive ended (wait status 0x%x) and said nothing", (unsigned)status);
		fail(a, text);
	} else if (said.error[0]) {
		fail(a, said.error);
	} else {
		succeed(a, &said);
	}
}

/* ---- when ---- */

static void archiver_free(struct ptc_archiver *a)
{
	ptc_free(a->state.dir);
	ptc_free(a);
}

static struct ptc_archiver *make(struct ptc_controller *ctl)
{
	struct ptc_archiver *a = ptc_calloc(1, sizeof *a);

	ptc_require(a);
	ctl->archiver_free = archiver_free;
	a->ctl = ctl;
	a->fd = -1;
	a->child = PTC_CHILD_NONE;
	return a;
}

void ptc_archiver_tick(struct ptc_controller *ctl)
{
	struct ptc_archiver *a = ctl->archiver;
	int status = 0;

	if (!ctl->has_record || !ctl->record.snapshot || ctl->gone)
		return;
	if (!a)
		a = ctl->archiver = make(ctl);
	if (a->phase == RUNNING) {
		hear(a);
		if (ptc_child_wait(&a->child, 0, &status))
			finish(a, status);
		return;
	}
	if (a->none || a->phase != REST || ptc_sys_now_ns() < a->next_ns || !ptc_controller_idle(ctl) ||
	    (a->snapshot == ctl->record.snapshot && a->generation == ctl->record.generation) || !may_start(a))
		return;
	start(a);
}

const struct ptc_archive_state *ptc_archiver_state(const struct ptc_controller *ctl)
{
	struct ptc_archiver *a = ctl->archiver;

	if (!a || a->none || !a->state.dir)
		return NULL;
	a->state.running = a->phase == RUNNING;
	return &a->state;
}
