/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-etcd-door ADDRESS SOCKET: stands between callers over TCP and the local etcd, which has no bound on connections.
 * It copies bytes, so TLS is between the caller and etcd, and etcd decides who is a member. A process of its own: like
 * etcd, it outlives a daemon that was killed.
 *
 * The door cannot see who a caller is. It sees only how often etcd answers him. A stranger gets three answers at most:
 * to his ClientHello (twice, if etcd wants another one), and an alert that ends the connection. So a caller who gets
 * more answers is a member, and from then on his host is a member's (rpc/door/door.h). All other callers are bounded in
 * number, and in time until their second answer. At the bound, or if one share (a host, or an IPv6 network of 64 bits:
 * rpc/door/door.h) has half of the places, the oldest caller of the share with the most callers is dropped.
 *
 * Bytes of one side wait in the kernel until the other side takes them; at most CHUNK bytes of each side are here.
 *
 * Threads: the door's, which lets callers in, and the main one, which copies. One lock guards all pairs.
 *
 * Failure modes: the address cannot be bound (exit 1, one line); etcd does not listen (the caller's connection is
 * closed; after half a minute the door ends). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "rpc/door/door.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define STRANGERS_MAX   128  /* from any host but a member's */
#define ARRIVALS_MAX    128  /* from hosts of members, and not known yet */
#define MEMBERS_MAX     1024 /* a node has three or four */
#define PAIRS_MAX       (STRANGERS_MAX + ARRIVALS_MAX + MEMBERS_MAX)
#define CHUNK           16384
#define ANSWERS_MEMBER  5     /* only a member is answered so often */
#define HANDSHAKE_MS    15000 /* until the second answer */
#define LOOK_MS         1000
#define ALONE_LOOKS     30 /* without etcd: then nobody looks after us any more, or a newer daemon starts another one */
#define USER_TIMEOUT_MS 20000
#define EVENTS          256
#define SIDES           2
#define CALLER          0
#define ETCD            1

struct side {
	int fd;
	char *left; /* what it said and the other has not taken; NULL: nothing */
	size_t from, to;
	uint32_t events;
};

struct pair {
	bool used;
	bool member, spoke; /* spoke: the caller, since the last answer */
	int answers;
	struct ptc_door_caller caller;
	int64_t since_ns;
	struct side side[SIDES];
};

static struct {
	pthread_mutex_t lock;
	int epoll_fd;
	const char *socket;
	struct pair of[PAIRS_MAX];
	int64_t looked_ns; /* this and the next: the door's thread */
	int alone;         /* looks that found no etcd */
} pairs = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void close_locked(struct pair *p)
{
	for (int s = 0; s < SIDES; s++) {
		close(p->side[s].fd); /* which takes it out of the epoll set */
		ptc_free(p->side[s].left);
	}
	p->used = false;
}

/* ---- copying -------------------------------------------------------------------------- */

static void count_locked(struct pair *p, int from)
{
	if (from == CALLER) {
		p->spoke = true;
		return;
	}
	p->answers += p->spoke;
	p->spoke = false;
	if (p->answers < ANSWERS_MEMBER || p->member)
		return;
	p->member = true;
	ptc_door_member_host(&p->caller.host);
}

/* false: the side that should take it is gone. */
static bool give_locked(struct side *from, int to_fd, const char *bytes, size_t len, size_t *ret_given)
{
	ssize_t n = send(to_fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);

	*ret_given = n > 0 ? (size_t)n : 0;
	return n >= 0 || errno == EAGAIN || errno == EINTR;
}

/* false: it is over. */
static bool copy_locked(struct pair *p, int s)
{
	static char chunk[CHUNK];
	struct side *from = &p->side[s], *to = &p->side[!s];
	size_t given;
	ssize_t n;

	if (from->left) {
		if (!give_locked(from, to->fd, from->left + from->from, from->to - from->from, &given))
			return false;
		from->from += given;
		if (from->from < from->to)
			return true;
		ptc_free(from->left);
		from->left = NULL;
	}
	n = recv(from->fd, chunk, sizeof chunk, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0)
		return false;
	count_locked(p, s);
	if (!give_locked(from, to->fd, chunk, (size_t)n, &given))
		return false;
	if (given == (size_t)n)
		return true;
	from->from = 0;
	from->to = (size_t)n - given;
	from->left = ptc_malloc(from->to);
	if (from->left)
		memcpy(from->left, chunk + given, from->to);
	return from->left != NULL;
}

/* A side is read while nothing that it said waits, and written to when the other's waits. */
static void watch_locked(struct pair *p, int op)
{
	for (int s = 0; s < SIDES; s++) {
		struct side *side = &p->side[s];
		struct epoll_event e = { .data.u32 = (uint32_t)(p - pairs.of) * SIDES + (uint32_t)s };

		e.events = (side->left ? 0 : EPOLLIN) | (p->side[!s].left ? EPOLLOUT : 0);
		if (op == EPOLL_CTL_ADD || e.events != side->events)
			(void)epoll_ctl(pairs.epoll_fd, op, side->fd, &e);
		side->events = e.events;
	}
}

static void event_locked(const struct epoll_event *e)
{
	struct pair *p = &pairs.of[e->data.u32 / SIDES];
	const int s = (int)(e->data.u32 % SIDES);
	bool goes_on = true;

	if (!p->used) /* closed by an event before this one; no other pair can have its place yet */
		return;
	if (e->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		goes_on = p->side[s].left ? !(e->events & (EPOLLHUP | EPOLLERR)) : copy_locked(p, s);
	if (goes_on && (e->events & EPOLLOUT))
		goes_on = copy_locked(p, !s);
	if (goes_on)
		watch_locked(p, EPOLL_CTL_MOD);
	else
		close_locked(p);
}

/* ---- room ------------------------------------------------------------------------------- */

static bool same_share(const struct pair *p, const struct ptc_door_caller *c)
{
	return memcmp(&p->caller.share, &c->share, sizeof c->share) == 0;
}

/* Those that compete with this caller for places. */
static bool rivals(const struct pair *p, const struct ptc_door_caller *c)
{
	return p->used && !p->member && p->caller.from_member == c->from_member;
}

struct rivals {
	struct pair *of[PTC_MAX(STRANGERS_MAX, ARRIVALS_MAX)];
	int count;
};

static struct rivals rivals_locked(const struct ptc_door_caller *c)
{
	struct rivals r = { .count = 0 };

	for (int i = 0; i < PAIRS_MAX && r.count < (int)PTC_ARRAY_LEN(r.of); i++)
		if (rivals(&pairs.of[i], c))
			r.of[r.count++] = &pairs.of[i];
	return r;
}

static int share_of(const struct rivals *r, const struct ptc_door_caller *c)
{
	int n = 0;

	for (int i = 0; i < r->count; i++)
		n += same_share(r->of[i], c);
	return n;
}

/* The oldest of the share that has most. */
static void shed_locked(const struct rivals *r)
{
	struct pair *victim = NULL;
	int most = 0;

	for (int i = 0; i < r->count; i++) {
		int n = share_of(r, &r->of[i]->caller);

		if (n < most || (victim && n == most && victim->since_ns <= r->of[i]->since_ns))
			continue;
		most = n;
		victim = r->of[i];
	}
	if (victim)
		close_locked(victim);
}

/* NULL: members have all that there is. */
static struct pair *place_locked(const struct ptc_door_caller *c)
{
	const int max = c->from_member ? ARRIVALS_MAX : STRANGERS_MAX;
	const struct rivals r = rivals_locked(c);

	if (r.count >= max || share_of(&r, c) >= max / 2)
		shed_locked(&r);
	for (int i = 0; i < PAIRS_MAX; i++)
		if (!pairs.of[i].used)
			return &pairs.of[i];
	return NULL;
}

/* ---- the door's side -------------------------------------------------------------------- */

static int connect_etcd(int type)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	snprintf(to.sun_path, sizeof to.sun_path, "%s", pairs.socket);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
		int e = errno;

		close(fd);
		errno = e;
		return -1;
	}
	return fd;
}

/* Asked with the wrong kind of socket, so that etcd hears nothing of it: the kernel tells these apart. */
static bool etcd_listens(void)
{
	int fd = connect_etcd(SOCK_DGRAM), e = errno;

	if (fd >= 0)
		close(fd);
	return fd >= 0 || e == EPROTOTYPE;
}

/* As etcd's own listener does: a caller who vanished is noticed. */
static void keep_alive(int fd)
{
	const int on = 1, idle_s = 15, every_s = 5, times = 3;

	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

static void enter(void *arg, int listener, int fd, const struct ptc_door_caller *caller)
{
	int etcd = connect_etcd(SOCK_STREAM);
	struct pair *p = NULL;

	(void)arg;
	(void)listener;
	pthread_mutex_lock(&pairs.lock);
	if (etcd >= 0)
		p = place_locked(caller);
	if (p) {
		*p = (struct pair){ .used = true,
				    .caller = *caller,
				    .since_ns = ptc_sys_now_ns(),
				    .side = { { .fd = fd }, { .fd = etcd } } };
		keep_alive(fd);
		watch_locked(p, EPOLL_CTL_ADD);
	}
	pthread_mutex_unlock(&pairs.lock);
	if (p)
		return;
	close(fd);
	if (etcd >= 0)
		close(etcd);
}

static void look(void *arg)
{
	const int64_t now = ptc_sys_now_ns(), before = now - HANDSHAKE_MS * INT64_C(1000000);

	(void)arg;
	if (now - pairs.looked_ns < LOOK_MS * INT64_C(1000000))
		return;
	pairs.looked_ns = now;
	pairs.alone = etcd_listens() ? 0 : pairs.alone + 1;
	if (pairs.alone >= ALONE_LOOKS)
		_exit(0);
	pthread_mutex_lock(&pairs.lock);
	for (int i = 0; i < PAIRS_MAX; i++) {
		struct pair *p = &pairs.of[i];

		if (p->used && p->answers < 2 && p->since_ns < before)
			close_locked(p);
	}
	pthread_mutex_unlock(&pairs.lock);
}

static void dropped(void *arg, bool out_of_time)
{
	(void)arg;
	(void)out_of_time;
}

static void exhausted(void *arg, int errnum)
{
	(void)arg;
	(void)errnum; /* there are descriptors for all pairs; callers wait */
}

static void raise_limit(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

int main(int argc, char **argv)
{
	struct ptc_door_opts opts = { .thread = "ptc-etcd-door",
				      .tls = true,
				      .keepalive_ms = USER_TIMEOUT_MS,
				      .enter = enter,
				      .look = look,
				      .dropped = dropped,
				      .exhausted = exhausted };
	struct ptc_error err = PTC_ERROR_INIT;
	struct epoll_event events[EVENTS];
	struct ptc_door *door;
	int port, rc;

	if (argc != 3) {
		fprintf(stderr, "usage: ptc-etcd-door ADDRESS SOCKET (ptcd starts it)\n");
		return 2;
	}
	opts.address = argv[1];
	pairs.socket = argv[2];
	signal(SIGPIPE, SIG_IGN);
	raise_limit();
	pairs.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	rc = ptc_door_open(&opts, &door, &port, &err);
	if (rc == 0)
		rc = ptc_door_start(door, &err);
	if (rc || pairs.epoll_fd < 0) {
		fprintf(stderr, "ptc-etcd-door: %s\n", rc ? err.text : strerror(errno));
		return 1;
	}
	for (;;) {
		int n = epoll_wait(pairs.epoll_fd, events, EVENTS, -1);

		if (n < 0 && errno != EINTR)
			return 1;
		pthread_mutex_lock(&pairs.lock);
		for (int i = 0; i < n; i++)
			event_locked(&events[i]);
		pthread_mutex_unlock(&pairs.lock);
	}
}
