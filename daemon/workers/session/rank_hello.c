/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO: a rank's first message. Happy path: the rank's token names a worker, and the rank is this worker's process.
 * The rank gets the page of memory that it shares with ptcd, or has one from before. Failure modes: a token, user,
 * process, protocol or page that does not fit: the answer is REFUSED, and the connection is closed. */
#include "daemon/workers/session/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int make_page(struct worker *k)
{
	int fd = memfd_create("ptc-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *map = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, PTC_LOCAL_PAGE) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		map = mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		int e = errno;

		ptc_close(&fd);
		return e;
	}
	k->page_fd = fd;
	k->page = map;
	k->page->magic = PTC_LOCAL_MAGIC;
	k->page->version = PTC_LOCAL_PAGE_VERSION;
	atomic_store(&k->page->knows_survivors, 1);
#if PTC_VERSION_RAISED
	k->page->added = PTC_VERSION_ADDED;
#endif
	atomic_store(&k->page->stop, PTC_LOCAL_NO_STOP);
	return 0;
}

/* A rank's own, from before, maybe of a ptcd of another version: it must be one that cannot be cut off under us. Takes
 * fd. */
static bool take_page(struct worker *k, int fd, uint32_t *ret_version)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct ptc_local_page *map;
	struct stat st;

	*ret_version = 0;
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) ||
	    fstat(fd, &st) != 0 || st.st_size != PTC_LOCAL_PAGE)
		return false;
	map = mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return false;
	*ret_version = map->magic == PTC_LOCAL_MAGIC ? map->version : 0;
	if (!ptc_version_reads(*ret_version, PTC_LOCAL_PAGE_OLDEST, PTC_LOCAL_PAGE_VERSION)) {
		munmap(map, PTC_LOCAL_PAGE);
		return false;
	}
	ptc_worker_drop_page(k);
	atomic_store(&map->knows_survivors, 1);
	atomic_store(&map->hold, 0); /* of a ptcd that has gone */
	atomic_store(&map->hold_from, 0);
	k->page = map;
	k->page_fd = fd;
	return true;
}

static bool same_token(const char *a, const char *b)
{
	unsigned char differ = 0;

	if (strlen(a) != PTC_LOCAL_TOKEN || strlen(b) != PTC_LOCAL_TOKEN)
		return false;
	for (size_t i = 0; i < PTC_LOCAL_TOKEN; i++)
		differ |= (unsigned char)(a[i] ^ b[i]);
	return !differ;
}

static struct worker *by_token(struct job *job, const char *token)
{
	for (struct worker *k = job->workers; k; k = k->next)
		if (!k->ended && same_token(k->process.token, token))
			return k;
	return NULL;
}

/* The process itself, or one of its session: a program may be started by a shell script. */
static bool its_process(const struct worker *k, pid_t pid)
{
	return pid == k->process.pid || getsid(pid) == k->process.pid;
}

/* NULL: refused, and told why. */
static struct worker *identify(struct conn *c, const struct ptc_local_hello *h)
{
	struct worker *k = by_token(c->job, h->token);

	if (h->protocol_min > PTC_LOCAL_PROTOCOL || h->protocol_max < PTC_LOCAL_OLDEST ||
	    h->protocol_min > h->protocol_max) {
		bool newer = h->protocol_min > PTC_LOCAL_PROTOCOL;

		ptc_conn_refuse_locked(c, PTC_LOCAL_R_VERSION,
				       "libptc %s speaks protocols %u to %u, this node's ptcd %s speaks %u to %u; %s",
				       h->version, h->protocol_min, h->protocol_max, PTC_VERSION, PTC_LOCAL_OLDEST,
				       PTC_LOCAL_PROTOCOL,
				       newer ? "upgrade ptcd on this node" : "start the job with a newer libptc");
		return NULL;
	}
	if (!k) {
		ptc_conn_refuse_locked(
			c, PTC_LOCAL_R_STALE,
			"the token names no process of this job; it belongs to an incarnation that has ended");
		return NULL;
	}
	if (k->spawning) {
		c->broken = true; /* it tries again; then we know its pid */
		return NULL;
	}
	if (!its_process(k, c->pid)) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED,
				       "the token was made for process %d and its session, not for process %d",
				       (int)k->process.pid, (int)c->pid);
		return NULL;
	}
	if (k->conn && k->pid != c->pid) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED, "process %d has the slot of this token already",
				       (int)k->pid);
		return NULL;
	}
	return k;
}

static void attach(struct worker *k, struct conn *c)
{
	if (k->conn) {
		k->conn->worker = NULL;
		k->conn->broken = true;
	}
	if (k->pid != c->pid || k->pidfd < 0) {
		ptc_close(&k->pidfd);
		k->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
		k->pid = c->pid;
	}
	k->conn = c;
	c->worker = k;
	k->left = false;
	k->get.active = false;
}

/* Speaks the highest protocol that both ends know; a rank of before an upgrade goes on with its own. */
static void welcome(struct worker *k, const struct ptc_local_hello *h, bool with_page)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	uint32_t protocol = h->protocol_max < PTC_LOCAL_PROTOCOL ? h->protocol_max : PTC_LOCAL_PROTOCOL;

	ptc_local_put_welcome(&out, &(struct ptc_local_welcome){ .protocol = protocol,
								 .pid = (uint64_t)getpid(),
								 .version = PTC_VERSION,
								 .features = PTC_LOCAL_TAKES_LAYOUT });
	ptc_conn_send_locked(k->conn, PTC_LOCAL_WELCOME, &out, with_page ? fcntl(k->page_fd, F_DUPFD_CLOEXEC, 0) : -1);
	ptc_free(out.data);
}

/* Its earlier messages belong to the connection before; it sends them again. */
static void begin_session(struct worker *k, const struct ptc_local_hello *h)
{
	bool go = k->go && k->generation == h->generation && k->incarnation == h->incarnation;
	struct rank_state *restore = k->restore;

	k->restore = NULL;
	ptc_worker_drop_generation(k);
	/* Our messages are done in order by the thread that says HELLO: nothing of the connection before goes on. */
	k->fill.session++;
	k->fill.sent = k->fill.done = 0;
	k->fill.failed = k->fill.damaged = false;
	k->fill.can = h->features & PTC_LOCAL_CAN_FILL;
	k->fill.verifies = h->features & PTC_LOCAL_CAN_VERIFY;
	k->takes_state = h->features & PTC_LOCAL_CAN_TAKE_STATE;
	k->phase = WORKER_CONNECTED;
	if (h->resume_phase == PTC_LOCAL_NOWHERE) {
		ptc_rank_state_unref(restore);
		return;
	}
	k->go = go;
	k->restore = restore;
	k->generation = h->generation;
	k->incarnation = h->incarnation;
	k->phase = WORKER_BUILDING;
	k->resumes = WORKER_BUILDING + (h->resume_phase - PTC_LOCAL_BUILDS);
	/* A rank that claims a generation which it was not given has none. */
	k->stale = !k->group || !k->group->built || k->group->slots[k->slot].rank.rank != h->rank;
	k->ran |= !k->stale;
}

/* version 0: it is no page. */
static void refuse_page(struct conn *c, uint32_t version)
{
	if (!version) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED, "protocol: the shared page is not one of ours");
		return;
	}
	ptc_conn_refuse_locked(
		c, PTC_LOCAL_R_VERSION,
		"the rank's shared page is of version %u, this node's ptcd %s reads %u to %u; go back to a "
		"ptcd next to the one that made it, or stop the job and start it again",
		version, PTC_VERSION, PTC_LOCAL_PAGE_OLDEST, PTC_LOCAL_PAGE_VERSION + 1);
}

void ptc_worker_hello_locked(struct ptc_workers *w, struct conn *c, struct ptc_local_message *m)
{
	struct ptc_local_hello h;
	struct worker *k;
	bool had_page = m->fd >= 0;
	uint32_t page = 0;
	int e = 0;

	if (m->type != PTC_LOCAL_HELLO || !ptc_local_get_hello(m->data, m->len, &h)) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED, "protocol: the first message is not a HELLO");
		return;
	}
	k = identify(c, &h);
	if (!k)
		return;
	if (had_page) {
		if (!take_page(k, m->fd, &page)) {
			refuse_page(c, page);
			return;
		}
		m->fd = -1;
		atomic_store(&k->page->staging, PTC_LOCAL_STAGE_FREE);
	} else {
		ptc_worker_drop_page(k);
		e = make_page(k);
	}
	if (e) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_SYSTEM, "cannot make shared memory: %s", strerror(e));
		return;
	}
	attach(k, c);
	begin_session(k, &h);
	welcome(k, &h, !had_page);
	ptc_worker_advance_locked(w, k);
	ptc_workers_changed_locked(w);
}
