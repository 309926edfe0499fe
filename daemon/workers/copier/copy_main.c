/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-copy UID SOCKETS: copies between ranks' memory and ours for ptcd, as the job's user. Started by ptcd only.
 *
 * Happy path: becomes the user, starts a thread for each socket, answers requests until the sockets are closed.
 * Failure modes: it cannot become the user or start threads: said on the first socket, and it ends. A copy that the
 * kernel refuses: the answer has its errno. A rank's memory that does not answer, such as a mapping of a dead file
 * system: the thread hangs, and the process may outlive its SIGKILL until the kernel lets go. So ptcd assumes that the
 * process may write to the memory that an unanswered request named, until the process has ended. */
#include "base/sys/become.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/memory/huge_map.h"
#include "base/sys/sys.h"
#include "daemon/workers/copier/copy.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define STACK_BYTES   (256u << 10)
#define COMPARE_BYTES (256u << 10)
#define FILES_MAX     64          /* sockets and what is being mapped */
#define JOIN_BYTES    (64u << 10) /* between rows; less than a chunk, so no chunk without blocks lies between them */

struct map {
	uint8_t *base; /* NULL: none */
	uint64_t bytes;
};

static struct {
	pthread_mutex_t lock;
	struct map maps[PTC_COPY_MAPS];
} shared = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ptcd unmaps nothing that is in use. */
static struct map map_of(uint32_t i)
{
	struct map m = { 0 };

	pthread_mutex_lock(&shared.lock);
	if (i < PTC_COPY_MAPS)
		m = shared.maps[i];
	pthread_mutex_unlock(&shared.lock);
	return m;
}

static int put_map(uint32_t i, struct map m)
{
	struct map before = map_of(i);

	if (i >= PTC_COPY_MAPS || (before.base && m.base))
		return EINVAL;
	pthread_mutex_lock(&shared.lock);
	shared.maps[i] = m;
	pthread_mutex_unlock(&shared.lock);
	if (before.base)
		munmap(before.base, before.bytes);
	return 0;
}

static int add_map(const struct ptc_copy_head *h, int fd)
{
	int prot = PROT_READ | (h->flags & PTC_COPY_WRITABLE ? PROT_WRITE : 0), e;
	void *base = ptc_huge_map(fd, 0, h->bytes, prot);

	if (base == MAP_FAILED)
		return errno;
	e = put_map(h->map, (struct map){ base, h->bytes });
	if (e)
		munmap(base, h->bytes);
	return e;
}

/* ---- a copy ---- */

static void populate_range(uintptr_t from, uintptr_t to, bool there)
{
	(void)madvise((void *)from, to - from, there ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
}

/* Pages that are not in our page table yet are put there at once: a fault for each costs twice as much. Rows near each
 * other are one request, since the kernel looks at each page of a request. */
static void populate(const struct iovec *v, size_t n, bool there)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = 0, end = 0; /* of pages that wait to be asked for */

	for (size_t i = 0; i < n; i++) {
		uintptr_t from = (uintptr_t)v[i].iov_base & ~(page - 1);
		uintptr_t to = ((uintptr_t)v[i].iov_base + v[i].iov_len + page - 1) & ~(page - 1);

		if (from < begin || from > end + JOIN_BYTES) {
			if (end > begin)
				populate_range(begin, end, there);
			begin = from;
			end = to;
		}
		end = PTC_MAX(end, to);
	}
	if (end > begin)
		populate_range(begin, end, there);
}

/* Takes `bytes` off the front of *v. */
static void advance(struct iovec **v, size_t *n, size_t bytes)
{
	while (*n && bytes >= (*v)->iov_len) {
		bytes -= (*v)->iov_len;
		++*v;
		--*n;
	}
	if (bytes) {
		(*v)->iov_base = (char *)(*v)->iov_base + bytes;
		(*v)->iov_len -= bytes;
	}
}

static int move(const struct ptc_copy_head *h, struct iovec *there, struct iovec *here, uint64_t *moved)
{
	size_t nthere = h->nthere, nhere = h->nhere;

	advance(&there, &nthere, 0);
	advance(&here, &nhere, 0);
	while (nthere && nhere) {
		ssize_t n;

		if (ptc_fault("copy.middle"))
			return EIO;
		n = h->op == PTC_COPY_WRITE ? process_vm_writev(h->pid, here, nhere, there, nthere, 0)
					    : process_vm_readv(h->pid, here, nhere, there, nthere, 0);
		if (n <= 0)
			return n ? errno : EIO;
		*moved += (uint64_t)n;
		advance(&there, &nthere, (size_t)n);
		advance(&here, &nhere, (size_t)n);
	}
	return 0;
}

struct worker {
	int fd;
	struct ptc_copy_request request;
	struct iovec there[PTC_COPY_SPANS_MAX], here[PTC_COPY_SPANS_MAX];
	uint8_t seen[COMPARE_BYTES]; /* of the rank's */
};

/* Of *v, from its front on. */
static bool same(struct iovec **v, size_t *n, const uint8_t *seen, size_t bytes)
{
	while (*n && bytes) {
		size_t now = PTC_MIN((*v)->iov_len, bytes);

		if (memcmp((*v)->iov_base, seen, now) != 0)
			return false;
		advance(v, n, now);
		seen += now;
		bytes -= now;
	}
	return !bytes;
}

/* A buffer at a time, which stays in the processor's cache. */
static int compare(struct worker *w, uint64_t *moved)
{
	const struct ptc_copy_head *h = &w->request.head;
	struct iovec *there = w->there, *here = w->here;
	size_t nthere = h->nthere, nhere = h->nhere;

	advance(&there, &nthere, 0);
	advance(&here, &nhere, 0);
	while (nthere && nhere) {
		struct iovec to = { w->seen, sizeof w->seen };
		ssize_t n;

		if (ptc_fault("copy.middle"))
			return EIO;
		n = process_vm_readv(h->pid, &to, 1, there, nthere, 0);
		if (n <= 0)
			return n ? errno : EIO;
		if (!same(&here, &nhere, w->seen, (size_t)n))
			return PTC_COPY_DIFFERS;
		*moved += (uint64_t)n;
		advance(&there, &nthere, (size_t)n);
	}
	return 0;
}

static int copy(struct worker *w, uint64_t *moved)
{
	const struct ptc_copy_head *h = &w->request.head;
	const struct ptc_copy_span *s = w->request.spans;
	struct map m = map_of(h->map);

	if (!m.base)
		return EINVAL;
	for (uint32_t i = 0; i < h->nthere; i++, s++)
		w->there[i] = (struct iovec){ (void *)(uintptr_t)s->at, s->bytes };
	for (uint32_t i = 0; i < h->nhere; i++, s++) {
		if (s->at > m.bytes || s->bytes > m.bytes - s->at)
			return EINVAL;
		w->here[i] = (struct iovec){ m.base + s->at, s->bytes };
	}
	if (h->flags & PTC_COPY_FRESH)
		populate(w->here, h->nhere, h->flags & PTC_COPY_THERE);
	return h->op == PTC_COPY_COMPARE ? compare(w, moved) : move(h, w->there, w->here, moved);
}

/* ---- requests ---- */

/* 0: nobody asks any more. */
static size_t receive(struct worker *w, int *ret_fd)
{
	struct iovec to = { &w->request, sizeof w->request };
	char control[CMSG_SPACE(sizeof(int))];
	struct msghdr m = { .msg_iov = &to, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	const struct cmsghdr *c;
	ssize_t n;

	do
		n = recvmsg(w->fd, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	*ret_fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
	return n > 0 ? (size_t)n : 0;
}

static int perform(struct worker *w, size_t len, int fd, uint64_t *moved)
{
	const struct ptc_copy_head *h = &w->request.head;

	if (len < sizeof *h || !ptc_version_reads(h->version, PTC_COPY_OLDEST, PTC_COPY_VERSION) ||
	    h->nthere > PTC_COPY_SPANS_MAX || h->nhere > PTC_COPY_SPANS_MAX ||
	    len != sizeof *h + ((size_t)h->nthere + h->nhere) * sizeof w->request.spans[0])
		return EPROTO;
	switch (h->op) {
	case PTC_COPY_MAP:
		return fd < 0 ? EBADF : add_map(h, fd);
	case PTC_COPY_UNMAP:
		return put_map(h->map, (struct map){ 0 });
	case PTC_COPY_READ:
	case PTC_COPY_WRITE:
	case PTC_COPY_COMPARE:
		return copy(w, moved);
	default:
		return EPROTO;
	}
}

static void *serve(void *arg)
{
	struct worker *w = arg;
	size_t len;
	int fd;

	while ((len = receive(w, &fd))) {
		struct ptc_copy_answer a = { .version = PTC_COPY_VERSION };

		a.error = perform(w, len, fd, &a.moved);
		if (fd >= 0)
			close(fd); /* a map keeps the file open */
		if (send(w->fd, &a, sizeof a, MSG_NOSIGNAL) != sizeof a)
			break;
	}
	_exit(0); /* the other threads may hang */
}

/* ---- life ---- */

/* The user may have as many processes as he may: our threads are not to fail for that. */
static void set_limits(void)
{
	(void)setrlimit(RLIMIT_NPROC, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
	(void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){ FILES_MAX, FILES_MAX });
}

static int start_threads(struct worker *all, unsigned n, struct ptc_error *err)
{
	pthread_attr_t attr;
	pthread_t thread;
	int e = 0;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	for (unsigned i = 0; i < n && !e; i++) {
		all[i].fd = PTC_COPY_FD + (int)i;
		e = i ? pthread_create(&thread, &attr, serve, &all[i]) : 0;
	}
	pthread_attr_destroy(&attr);
	return e ? ptc_error_errno(err, e, "cannot start %u threads", n) : 0;
}

static bool say_ready(int rc, const struct ptc_error *err)
{
	struct ptc_copy_answer a = { .version = PTC_COPY_VERSION, .error = rc };
	struct iovec v[] = { { &a, sizeof a },
			     { (void *)(uintptr_t)err->text, rc ? PTC_MIN(strlen(err->text), PTC_COPY_TEXT_MAX) : 0 } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };

	return sendmsg(PTC_COPY_FD, &m, MSG_NOSIGNAL) > 0 && !rc;
}

static bool number(const char *s, unsigned long max, unsigned long *ret)
{
	char *end;

	errno = 0;
	*ret = strtoul(s, &end, 10);
	return *s >= '0' && *s <= '9' && !*end && !errno && *ret <= max;
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned long uid, n;
	struct worker *all;
	int rc;

	ptc_sys_standard_fds();
	if (argc != 3 || !number(argv[1], UINT32_MAX, &uid) || !number(argv[2], PTC_COPY_THREADS, &n) || !n) {
		fputs("ptc-copy is started by ptcd\n", stderr);
		return 2;
	}
	if (chdir("/") != 0)
		_exit(1);
	ptc_fault_init();
	set_limits();
	rc = ptc_become((uid_t)uid, &err);
	all = calloc(n, sizeof *all);
	if (!rc && !all)
		rc = ptc_nomem(&err);
	if (!rc)
		rc = start_threads(all, (unsigned)n, &err);
	if (!say_ready(rc, &err))
		_exit(1);
	serve(&all[0]);
	return 0;
}
