/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds the connections that we accepted: the peer of each, how many there may be, and for how long a peer may stay
 * unknown.
 *
 * We accept every connection ourselves and hand it to the core. On a call the core names its connection only as "fd:N"
 * (unix) or by the caller's address (TCP). N is the descriptor's number. The core closes a descriptor when its
 * transport is destroyed, and every call keeps its transport, also a call that nobody has accepted yet. So a number
 * that we are given again belongs to no call of its former connection, and the table simply says who has it now.
 * (test_rpc_bounds.c proves that on the core in use.) Nobody tells us when the core closes a descriptor. So an entry
 * has the cookie of its socket. When room is needed, the cookies of entries are compared with those that their numbers
 * have now. If a number has another cookie, or none, its entry is over.
 *
 * A TCP connection is a stranger's until a call with a member's or an administrator's certificate has come over it.
 * Strangers' connections are bounded in number, per address and in time. At the bound, the oldest connection of the
 * address with the most connections is shut down. The door (rpc/door) lets in so few that each stays for at least half
 * a second. A member's handshake takes less, so a member is known before its connection would be shut down. Strangers'
 * connections from hosts of members have places of their own, so that strangers elsewhere cannot compete with them.
 *
 * Happy path: a connection is taken into the table when it is accepted, and counts as known at its first call.
 *
 * Failure modes: no room for this user, or for members (PTC_ELIMIT; closed, one line in the log); no descriptor left
 * (PTC_ELIMIT; the oldest stranger goes, so that the next one has room). */
#include "rpc/server/internal.h"

#include "base/log.h"
#include "base/sys/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define USERS_MAX     1024  /* connections of local users, all together; 32 MiB of the core's memory */
#define USER_SHARE    4     /* one user has at most this part of them */
#define ROOT_RESERVE  16    /* this part of them only root may take */
#define STRANGERS_MAX 256   /* 8 MiB */
#define ARRIVALS_MAX  256   /* from hosts of members, and not known yet */
#define MEMBERS_MAX   4096  /* of other nodes, over TCP or a peer socket: 16 from each of 256 */
#define BASE_MAX      16384 /* a high number makes the kernel's table of descriptors large */
#define STRANGER_MS   15000 /* the handshake may take 10 s */
#define REAP_MS       10    /* between two looks at all of them */
#define COMPLAIN_MS   10000 /* one line in the log for all that was refused in this time */
#define REFUSE_MS     3     /* a user at his share is refused without a look at his connections for so long */
#define REFUSED_SLOTS 64    /* users that are refused so, by uid modulo this; another uid takes a slot over */
#define TABLE         (USERS_MAX + STRANGERS_MAX + ARRIVALS_MAX + MEMBERS_MAX)

struct conn {
	bool used;
	bool leaving; /* we shut it down; the core has yet to close it */
	bool known;   /* TCP: a member */
	struct ptc_rpc_peer peer;
	uint64_t cookie;
	int64_t since_ns;
};

static struct {
	pthread_mutex_t lock;
	int base, count; /* count 0: not set up yet */
	int users, strangers, arrivals, members;
	int high; /* entries from here on are not used */
	struct conn of[TABLE], *sorted[TABLE];
	uint64_t refused, shed, expired;
	uint64_t complained; /* of refused, in the log */
	int64_t complained_ns, reaped_ns;
	struct {
		uid_t uid;
		int64_t until_ns;
	} at_share[REFUSED_SLOTS];
} conns = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Five sixteenths of the descriptors are left for all else: chunks, logs, ranks, connections of ours to others. */
static void setup_locked(void)
{
	struct rlimit lim = { .rlim_cur = 1024 };
	int files;

	if (conns.count > 0)
		return;
	getrlimit(RLIMIT_NOFILE, &lim);
	files = (int)PTC_MIN(lim.rlim_cur, (rlim_t)1 << 20);
	conns.users = PTC_MIN(USERS_MAX, files / 4);
	conns.strangers = PTC_MIN(STRANGERS_MAX, files / 8);
	conns.arrivals = PTC_MIN(ARRIVALS_MAX, files / 16);
	conns.members = PTC_MIN(MEMBERS_MAX, files / 4);
	conns.count = conns.users + conns.strangers + conns.arrivals + conns.members;
	conns.base = PTC_MIN(files - conns.count, BASE_MAX);
}

static uint64_t cookie_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof cookie;

	return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 ? cookie : 0;
}

static bool is_stranger(const struct conn *c)
{
	return c->peer.kind == PTC_RPC_PEER_TCP && !c->known;
}

static bool same_share(const struct ptc_rpc_peer *x, const struct ptc_rpc_peer *y)
{
	return memcmp(&x->tcp.share, &y->tcp.share, sizeof x->tcp.share) == 0;
}

/* Those from members' hosts do not compete with others. */
static bool same_kind(const struct ptc_rpc_peer *x, const struct ptc_rpc_peer *y)
{
	return x->kind == y->kind && x->tcp.from_member == y->tcp.from_member;
}

/* Of one kind: of everybody, and of whoever p is. */
struct census {
	int all, mine;
};

static struct census count_locked(const struct ptc_rpc_peer *p)
{
	struct census n = { 0, 0 };

	for (int i = 0; i < conns.high; i++) {
		const struct conn *c = &conns.of[i];

		if (!c->used || c->leaving || !same_kind(&c->peer, p) || c->known)
			continue;
		if (p->kind == PTC_RPC_PEER_USER && c->peer.id.uid == 0 && p->id.uid != 0)
			continue; /* root's own do not take from users */
		n.all++;
		n.mine += p->kind == PTC_RPC_PEER_USER  ? c->peer.id.uid == p->id.uid
			  : p->kind == PTC_RPC_PEER_TCP ? same_share(&c->peer, p)
							: 0;
	}
	return n;
}

static int members_locked(void)
{
	int n = 0;

	for (int i = 0; i < conns.high; i++)
		n += conns.of[i].used && !conns.of[i].leaving &&
		     (conns.of[i].known || conns.of[i].peer.kind == PTC_RPC_PEER_NODE);
	return n;
}

static bool same_owner(const struct ptc_rpc_peer *x, const struct ptc_rpc_peer *y)
{
	return same_kind(x, y) && x->id.uid == y->id.uid && same_share(x, y);
}

/* Forgets those that the core has closed; of everybody, or of one. */
static void reap_locked(const struct ptc_rpc_peer *of)
{
	int high = 0;

	for (int i = 0; i < conns.high; i++) {
		struct conn *c = &conns.of[i];

		if (c->used && (!of || same_owner(&c->peer, of)) && cookie_of(conns.base + i) != c->cookie)
			c->used = false;
		if (c->used)
			high = i + 1;
	}
	conns.high = high;
}

/* A system call for each connection, so that whoever is refused does not make us do nothing else. */
static void reap_all_locked(void)
{
	int64_t now = ptc_sys_now_ns();

	if (now - conns.reaped_ns < REAP_MS * INT64_C(1000000))
		return;
	conns.reaped_ns = now;
	reap_locked(NULL);
}

/* Ends it: the core sees the end and takes everything apart. The number stays taken until then. */
static void shut_locked(struct conn *c)
{
	int fd = conns.base + (int)(c - conns.of);

	c->leaving = true;
	if (cookie_of(fd) == c->cookie)
		shutdown(fd, SHUT_RDWR);
	else
		c->used = false;
}

/* By owner, then by age. */
static int compare(const void *a, const void *b)
{
	const struct conn *x = *(const struct conn *const *)a, *y = *(const struct conn *const *)b;
	int by_share = memcmp(&x->peer.tcp.share, &y->peer.tcp.share, sizeof x->peer.tcp.share);

	if (x->peer.id.uid != y->peer.id.uid)
		return x->peer.id.uid < y->peer.id.uid ? -1 : 1;
	if (by_share)
		return by_share;
	return x->since_ns < y->since_ns ? -1 : x->since_ns > y->since_ns;
}

/* The oldest of whoever has the most of that kind, root aside; NULL: nobody has more than `more_than`. */
static struct conn *victim_locked(const struct ptc_rpc_peer *like, int more_than)
{
	struct conn *oldest = NULL, **of = conns.sorted;
	int n = 0, most = more_than;

	for (int i = 0; i < conns.high; i++) {
		struct conn *c = &conns.of[i];

		if (c->used && !c->leaving && !c->known && same_kind(&c->peer, like) &&
		    (like->kind != PTC_RPC_PEER_USER || c->peer.id.uid != 0))
			of[n++] = c;
	}
	qsort(of, (size_t)n, sizeof(struct conn *), compare);
	for (int first = 0, end; first < n; first = end) {
		for (end = first + 1; end < n && same_owner(&of[first]->peer, &of[end]->peer);)
			end++;
		if (end - first < most || end - first <= more_than ||
		    (end - first == most && oldest && oldest->since_ns <= of[first]->since_ns))
			continue;
		most = end - first;
		oldest = of[first];
	}
	return oldest;
}

static bool user_fits_locked(const struct ptc_rpc_peer *p)
{
	int reserve = conns.users / ROOT_RESERVE;
	struct census n = count_locked(p);

	if (p->id.uid == 0)
		return n.all < conns.users;
	return n.mine < conns.users / USER_SHARE && n.all < conns.users - reserve;
}

static bool stranger_fits_locked(const struct ptc_rpc_peer *p)
{
	const int most = p->tcp.from_member ? conns.arrivals : conns.strangers;
	struct census n = count_locked(p);

	return n.mine < most / 2 && n.all < most;
}

static bool fits_locked(const struct ptc_rpc_peer *p)
{
	if (p->kind == PTC_RPC_PEER_USER)
		return user_fits_locked(p);
	if (members_locked() >= conns.members)
		return false;
	return p->kind != PTC_RPC_PEER_TCP || stranger_fits_locked(p);
}

/* Makes room if it can be made fairly. */
static bool admit_locked(const struct ptc_rpc_peer *p)
{
	struct conn *c = NULL;
	struct census n;

	if (fits_locked(p))
		return true;
	reap_locked(p);
	if (fits_locked(p))
		return true;
	reap_all_locked();
	if (fits_locked(p))
		return true;
	n = count_locked(p);
	if (p->kind == PTC_RPC_PEER_TCP && stranger_fits_locked(p))
		return false; /* members have all that there is */
	if (p->kind == PTC_RPC_PEER_TCP)
		c = victim_locked(p, 0);
	else if (p->kind == PTC_RPC_PEER_USER && p->id.uid != 0 && n.mine < conns.users / USER_SHARE)
		c = victim_locked(p, n.mine + 1);
	if (!c)
		return false;
	shut_locked(c);
	conns.shed++;
	return fits_locked(p);
}

/* A duplicate of fd in our range; numbers that are free there belong to nobody. */
static int number_locked(int fd)
{
	int n = fcntl(fd, F_DUPFD_CLOEXEC, conns.base);

	if (n >= 0 && n >= conns.base + conns.count) {
		close(n);
		return -1;
	}
	return n;
}

/* Whoever connects in a loop must be refused faster than he can connect. Else the kernel's queue of the listener is
 * full, and everybody waits or is refused there. A look at his connections takes a system call for each. */
static bool at_share_locked(const struct ptc_rpc_peer *p)
{
	const uid_t slot = p->id.uid % REFUSED_SLOTS;

	return p->kind == PTC_RPC_PEER_USER && p->id.uid != 0 && conns.at_share[slot].uid == p->id.uid &&
	       ptc_sys_now_ns() < conns.at_share[slot].until_ns;
}

static void note_share_locked(const struct ptc_rpc_peer *p)
{
	const uid_t slot = p->id.uid % REFUSED_SLOTS;

	conns.at_share[slot].uid = p->id.uid;
	conns.at_share[slot].until_ns = ptc_sys_now_ns() + REFUSE_MS * INT64_C(1000000);
}

/* One line for many: whoever is refused may try a thousand times a second. */
static void complain_locked(const char *why)
{
	int64_t now = ptc_sys_now_ns();
	uint64_t n = ++conns.refused - conns.complained;

	if (conns.complained_ns && now - conns.complained_ns < COMPLAIN_MS * INT64_C(1000000))
		return;
	conns.complained_ns = now;
	conns.complained = conns.refused;
	ptc_warn("rpc", "%llu connection%s refused: %s", (unsigned long long)n, n == 1 ? "" : "s", why);
}

int ptc_rpc_conn_take(int fd, const struct ptc_rpc_peer *p)
{
	char why[160] = "";
	int n = -1;

	pthread_mutex_lock(&conns.lock);
	setup_locked();
	if (at_share_locked(p)) {
		conns.refused++;
		pthread_mutex_unlock(&conns.lock);
		close(fd);
		return -1;
	}
	if (admit_locked(p)) {
		n = number_locked(fd);
		if (n < 0)
			snprintf(why, sizeof why, "no descriptor is left (%d for connections; see ulimit -n)",
				 conns.count);
	} else if (p->kind == PTC_RPC_PEER_USER) {
		note_share_locked(p);
		snprintf(why, sizeof why, "user %u, or all users together, have too many (%d, %d)", (unsigned)p->id.uid,
			 conns.users / USER_SHARE, conns.users);
	} else {
		snprintf(why, sizeof why, "other nodes have %d already", conns.members);
	}
	if (n >= 0) {
		conns.of[n - conns.base] =
			(struct conn){ .used = true, .peer = *p, .cookie = cookie_of(n), .since_ns = ptc_sys_now_ns() };
		conns.high = PTC_MAX(conns.high, n - conns.base + 1);
	} else {
		complain_locked(why);
	}
	pthread_mutex_unlock(&conns.lock);
	close(fd);
	return n;
}

void ptc_rpc_conn_exhausted(const char *what, int errnum)
{
	char why[200];
	struct conn *c = NULL;

	snprintf(why, sizeof why, "%s: %s (descriptors: see ulimit -n); callers wait", what, strerror(errnum));
	pthread_mutex_lock(&conns.lock);
	setup_locked();
	reap_all_locked();
	for (int k = 0; k < 2 && !c; k++)
		c = victim_locked(&(struct ptc_rpc_peer){ .kind = PTC_RPC_PEER_TCP, .tcp.from_member = k }, 0);
	if (c) {
		shut_locked(c);
		conns.shed++;
	}
	complain_locked(why);
	pthread_mutex_unlock(&conns.lock);
}

void ptc_rpc_conn_dropped(bool out_of_time)
{
	pthread_mutex_lock(&conns.lock);
	conns.expired += out_of_time;
	conns.shed += !out_of_time;
	pthread_mutex_unlock(&conns.lock);
}

void ptc_rpc_conn_expire(void)
{
	int64_t before = ptc_sys_now_ns() - STRANGER_MS * INT64_C(1000000);

	pthread_mutex_lock(&conns.lock);
	for (int i = 0; i < conns.high; i++) {
		struct conn *c = &conns.of[i];

		if (!c->used || c->leaving || !is_stranger(c) || c->since_ns > before)
			continue;
		shut_locked(c);
		conns.expired++;
	}
	pthread_mutex_unlock(&conns.lock);
}

/* ---- whose call ------------------------------------------------------------------ */

bool ptc_rpc_conn_identity(const char *peer, struct ptc_rpc_identity *ret_id)
{
	bool found = false;
	char *end;
	long n;

	if (strncmp(peer, "fd:", 3) != 0)
		return false;
	n = strtol(peer + 3, &end, 10);
	pthread_mutex_lock(&conns.lock);
	if (end != peer + 3 && *end == '\0' && n >= conns.base && n < conns.base + conns.count &&
	    conns.of[n - conns.base].used) {
		*ret_id = conns.of[n - conns.base].peer.id;
		found = true;
	}
	pthread_mutex_unlock(&conns.lock);
	return found;
}

/* "ipv4:A:PORT" and "ipv6:%5BA%5D:PORT", as the core writes them. */
static bool parse_peer(const char *peer, struct in6_addr *ret_host, uint16_t *ret_port)
{
	const char *colon = strrchr(peer, ':'), *from = peer + 5;
	char host[INET6_ADDRSTRLEN + 16];
	struct in_addr v4;
	char *end;
	unsigned long port;
	size_t n;

	if (strncmp(peer, "ipv", 3) != 0 || !colon || colon <= from)
		return false;
	port = strtoul(colon + 1, &end, 10);
	if (*end || port > UINT16_MAX)
		return false;
	*ret_port = (uint16_t)port;
	n = (size_t)(colon - from);
	if (strncmp(from, "%5B", 3) == 0 && n > 6) {
		from += 3;
		n -= 6;
	} else if (*from == '[' && n > 2) {
		from++;
		n -= 2;
	}
	snprintf(host, sizeof host, "%.*s", (int)PTC_MIN(n, sizeof host - 1), from);
	host[strcspn(host, "%")] = '\0'; /* a zone */
	if (peer[3] == '6')
		return inet_pton(AF_INET6, host, ret_host) == 1;
	if (inet_pton(AF_INET, host, &v4) != 1)
		return false;
	ptc_door_v4_mapped(&v4, ret_host);
	return true;
}

void ptc_rpc_conn_known(const char *peer)
{
	struct ptc_rpc_peer p = { .kind = PTC_RPC_PEER_TCP };

	if (!parse_peer(peer, &p.tcp.host, &p.tcp.port))
		return;
	ptc_door_member_host(&p.tcp.host);
	pthread_mutex_lock(&conns.lock);
	for (int i = 0; i < conns.high; i++) {
		struct conn *c = &conns.of[i];

		/* An older one with this address is over, or the kernel would not have given the port out again. */
		if (c->used && is_stranger(c) && c->peer.tcp.port == p.tcp.port &&
		    memcmp(&c->peer.tcp.host, &p.tcp.host, sizeof p.tcp.host) == 0)
			c->known = true;
	}
	pthread_mutex_unlock(&conns.lock);
}

void ptc_rpc_connections(struct ptc_rpc_connections *ret)
{
	memset(ret, 0, sizeof *ret);
	pthread_mutex_lock(&conns.lock);
	setup_locked();
	reap_locked(NULL);
	for (int i = 0; i < conns.high; i++) {
		const struct conn *c = &conns.of[i];

		if (!c->used)
			continue;
		if (c->peer.kind == PTC_RPC_PEER_USER)
			ret->users++;
		else if (is_stranger(c))
			ret->strangers++;
		else
			ret->members++;
	}
	ret->max_users = (uint32_t)conns.users;
	ret->max_strangers = (uint32_t)(conns.strangers + conns.arrivals);
	ret->max_members = (uint32_t)conns.members;
	ret->refused = conns.refused;
	ret->shed = conns.shed;
	ret->expired = conns.expired;
	ret->bytes = (uint64_t)(ret->users + ret->strangers + ret->members) * PTC_RPC_CONNECTION_BYTES;
	pthread_mutex_unlock(&conns.lock);
}
