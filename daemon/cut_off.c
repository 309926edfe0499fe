/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the ranks of a node that is cut off from all other machines: their jobs may go on elsewhere, and ranks write to
 * files of their users (docs/decisions/0050-a-node-that-is-cut-off.md).
 *
 * Happy path: the node has its lease, and the addresses of the other machines are looked up. Without it for
 * cut_off_after, ptcd tries connections to the other machines, a few in each round, until one of them accepts or
 * refuses: then that machine is there, and only etcd is unreachable, perhaps for all, and ranks go on; a while later
 * all machines are asked anew. If none of all is there, the ranks are ended.
 *
 * Failure modes: a machine whose addresses were never known is neither there nor silent, and ranks go on where there
 * are as many of these as of others; out of memory: the next look asks. Everything runs on the loop thread, except the
 * attempts to connect (libuv's pool). No name is looked up while the node has no lease: a node that is cut off reaches
 * no name server, and would not end its ranks in time. */
#include "daemon/ptcd.h"
#include "daemon/cluster/loss/addresses.h"
#include "daemon/workers/group/rank_groups.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <poll.h>
#include <string.h>

#define LOOK_MS      500
#define WANT_MS      1000 /* between lists of who there is, while the node has its lease */
#define MACHINES_MAX 32   /* at a look, for each needs some descriptors (machines.h); the others at the next */

struct machine {
	char address[PTC_MACHINE_NAME_BYTES];
};
struct machines {
	struct machine *v;
	size_t n;
};

struct job {
	char uuid[PTC_UUID_TEXT];
};
struct jobs {
	struct job *v;
	size_t n;
};

struct ptc_cut_off {
	struct ptc_daemon *d;
	int64_t after_ns;
	int64_t since_ns; /* the node has had no lease since then; 0: it has one */
	int64_t next_ns;  /* the next look */
	int64_t want_ns;  /* the next list */
	bool ended;       /* the ranks of this time without a lease */
	bool told;        /* of it, that too few addresses are known */
	bool asking;
	/* While asking, the rest is the asker's. */
	bool there;      /* somebody, by the last look */
	size_t begun;    /* of the machines: those before it were asked, and are silent */
	size_t nothers;  /* of those that were asked: the ones that are not this machine */
	size_t nunknown; /* and those of which nothing can be told */
	struct machines machines;
};

/* ---- who there is ---- */

/* A socket file is on this machine. */
static void add_machine(struct machines *m, const char *address)
{
	if (strncmp(address, "unix:", 5) != 0 && strlen(address) < sizeof m->v->address && PTC_MORE(m->v, m->n))
		memcpy(m->v[m->n++].address, address, strlen(address) + 1);
}

/* Nodes that were up when etcd was last seen, and etcd's machines. */
static void list_machines(struct ptc_cut_off *o)
{
	const struct ptc_daemon_config *cfg = &o->d->config;
	struct ptc_cluster *c = o->d->cluster;

	o->nothers = o->nunknown = o->machines.n = 0;
	ptc_free(o->machines.v);
	o->machines.v = NULL;
	for (size_t i = 0; i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = ptc_cluster_node(c, (uint32_t)i);

		if (n->up && n->doc.address[0] && strcmp(n->doc.name, ptc_cluster_self(c)) != 0)
			add_machine(&o->machines, n->doc.address);
	}
	for (size_t i = 0; !cfg->coordinator.local && i < cfg->coordinator.endpoints.n; i++)
		add_machine(&o->machines, cfg->coordinator.endpoints.v[i]);
}

/* While names can be looked up. */
static void want_addresses(struct ptc_cut_off *o, int64_t now)
{
	if (now < o->want_ns)
		return;
	o->want_ns = now + WANT_MS * INT64_C(1000000);
	list_machines(o);
	for (size_t i = 0; i < o->machines.n; i++)
		ptc_addresses_want(ptc_cluster_addresses(o->d->cluster), o->machines.v[i].address);
}

/* ---- whether one of them is there ---- */

/* Asks the next machines. Whether one of them takes a connection at one of its addresses, or refuses one. */
static bool any_is_there(struct ptc_cut_off *o)
{
	struct ptc_machine_asked asked[MACHINES_MAX];
	struct pollfd fds[PTC_MACHINE_ADDRESSES * MACHINES_MAX];
	bool there = false;
	size_t n = 0;

	for (size_t i = o->begun; i < o->machines.n && i - o->begun < MACHINES_MAX; i++) {
		(void)ptc_addresses_know(ptc_cluster_addresses(o->d->cluster), o->machines.v[i].address, &asked[n].at);
		n += !ptc_machine_is_own(&asked[n].at);
	}
	ptc_machines_ask(asked, n, fds);
	for (size_t i = 0; i < n; i++) {
		there |= asked[i].answer == PTC_MACHINE_TAKES || asked[i].answer == PTC_MACHINE_REFUSES;
		o->nothers += asked[i].answer != PTC_MACHINE_UNKNOWN;
		o->nunknown += asked[i].answer == PTC_MACHINE_UNKNOWN;
	}
	return there;
}

/* ---- the ranks ---- */

static void add_job(void *arg, const char *uuid)
{
	struct jobs *j = arg;

	if (strlen(uuid) < sizeof j->v->uuid && PTC_MORE(j->v, j->n))
		memcpy(j->v[j->n++].uuid, uuid, strlen(uuid) + 1);
}

static void end_all(struct ptc_cut_off *o)
{
	struct jobs j = { 0 };

	ptc_workers_jobs(o->d->workers, add_job, &j);
	ptc_warn("worker",
		 "no lease for %lld s, and none of %zu other machines answers: ranks of %zu jobs are ended, because "
		 "the jobs may go on elsewhere (cut_off_after)",
		 (long long)((ptc_sys_now_ns() - o->since_ns) / 1000000000), o->nothers, j.n);
	for (size_t i = 0; i < j.n; i++) {
		ptc_workers_drop(o->d->workers, j.v[i].uuid, NULL, 0, true);
		ptc_workers_standby_end(o->d->workers, j.v[i].uuid);
	}
	ptc_free(j.v);
	o->ended = true;
}

static void tell_unknown(struct ptc_cut_off *o)
{
	ptc_warn("worker",
		 "no lease for %lld s, and the addresses of %zu other machines have not been known since ptcd started "
		 "(of %zu they are): nothing shows that this node is cut off, and its ranks go on (cut_off_after)",
		 (long long)((ptc_sys_now_ns() - o->since_ns) / 1000000000), o->nunknown, o->nothers);
	o->told = true;
}

static void ask(void *arg, struct ptc_etcd *e)
{
	struct ptc_cut_off *o = arg;

	(void)e;
	o->there = any_is_there(o);
}

static void asked(void *arg)
{
	struct ptc_cut_off *o = arg;
	int64_t now = ptc_sys_now_ns();
	bool late = o->since_ns && now - o->since_ns >= o->after_ns && !ptc_cluster_lease(o->d->cluster);

	o->asking = false;
	o->begun += MACHINES_MAX;
	if (late && !o->there && o->begun < o->machines.n)
		return; /* the next tick asks others */
	if (late && !o->there && o->nothers > o->nunknown && !atomic_load(&o->d->stopping))
		end_all(o);
	else if (late && !o->there && o->nunknown && !o->told)
		tell_unknown(o);
	o->begun = 0;
	o->next_ns = now + LOOK_MS * INT64_C(1000000);
}

void ptc_cut_off_tick(struct ptc_cut_off *o)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, ask }, { 0 } };
	int64_t now = ptc_sys_now_ns();

	if (!o)
		return;
	if (ptc_cluster_lease(o->d->cluster)) {
		o->since_ns = 0;
		o->ended = o->told = false;
		if (!o->asking) {
			o->begun = 0;
			want_addresses(o, now);
		}
		return;
	}
	if (!o->since_ns)
		o->since_ns = now;
	if (o->ended || o->asking || now - o->since_ns < o->after_ns || now < o->next_ns)
		return;
	if (!o->begun)
		list_machines(o);
	/* without any, nobody else can go on with a job */
	o->asking = o->machines.n > 0 && ptc_cluster_steps(o->d->cluster, "cut-off", steps, asked, o) == 0;
}

/* ---- life ---- */

int ptc_cut_off_new(struct ptc_daemon *d, struct ptc_cut_off **ret, struct ptc_error *err)
{
	if (!d->config.cut_off_after_ms)
		return 0;
	*ret = ptc_calloc(1, sizeof **ret);
	if (!*ret)
		return ptc_nomem(err);
	**ret = (struct ptc_cut_off){ .d = d, .after_ns = (int64_t)d->config.cut_off_after_ms * 1000000 };
	return 0;
}

struct ptc_cut_off *ptc_cut_off_free(struct ptc_cut_off *o)
{
	if (o)
		ptc_free(o->machines.v);
	ptc_free(o);
	return NULL;
}
