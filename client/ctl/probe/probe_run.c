/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the programs of a probe, and lets them build their ranks. Happy path and failure modes: probe.h. One loop
 * waits for all programs. With `mode: restart` each rank has a process of its own, as in the job, because a program
 * may read RANK once and for all. With `mode: rebuild` one process plays one rank after the other, as long as it asks
 * for more. */
#include "client/ctl/probe/probe.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "client/ctl/probe/probe_link.h"
#include "client/ctl/probe/program.h"
#include "client/ctl/probe/probe_ranks.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define PROGRAMS_MAX 64
#define TURN_MS      200

struct slot {
	bool runs;
	struct ctl_program program;
	struct ctl_link link;
	struct ctl_declaration declared;
	int64_t deadline_ns;
	uint32_t rank;  /* that it is, or is to be */
	bool has_rank;  /* it was told so: it has not declared yet */
	uint32_t built; /* ranks that it has declared */
};
struct state {
	const struct ctl_probe *p;
	struct ctl_ranks ranks;
	struct ptc_declared_merge *merge;
	struct slot slots[PROGRAMS_MAX];
	struct ctl_link strangers[PROGRAMS_MAX]; /* that have not said who they are */
	unsigned nslots;
	uint32_t done;
	int listening;
	char *socket;
};

static bool rebuilds(const struct state *s)
{
	return s->p->job->mode == PTC_JOB_REBUILD;
}

/* "rank 3 (tp 1, pp 0, dp 1)". */
static int of_rank(const struct state *s, uint32_t rank, struct ptc_error *err)
{
	struct ptc_coords k = ptc_config_coords(s->p->config, rank);

	return ptc_error_wrap(err, "rank %u (tp %u, pp %u, dp %u, cp %u)", rank, k.tp, k.pp, k.dp, k.cp);
}

static struct ctl_program_rank program_rank(const struct state *s, uint32_t rank)
{
	uint32_t m = s->p->per_node, node = rank / m;

	return (struct ctl_program_rank){ .rank = rank,
					  .world = s->ranks.world,
					  .local_rank = rank % m,
					  .local_world = PTC_MIN(m, s->ranks.world - node * m),
					  .node_rank = node };
}

static void slot_end(struct slot *k)
{
	ctl_program_end(&k->program, NULL);
	ctl_link_close(&k->link);
	k->runs = false;
}

static void set_deadline(const struct state *s, struct slot *k)
{
	k->deadline_ns = ptc_sys_now_ns() + (int64_t)s->p->limit_ms * 1000000;
}

static int slot_start(struct state *s, struct slot *k, struct ptc_error *err)
{
	struct ctl_program_rank rank;
	struct ctl_program_start start = {
		.job = s->p->job, .socket = s->socket, .name = s->p->name, .memory_bytes = s->p->memory_bytes
	};
	int rc;

	if (!ctl_ranks_take(&s->ranks, &k->rank))
		return 0;
	rank = program_rank(s, k->rank);
	start.rank = rebuilds(s) ? NULL : &rank;
	rc = ctl_program_start(&start, &k->program, err);
	if (rc)
		return rc;
	k->link.fd = -1;
	k->has_rank = false;
	k->built = 0;
	k->runs = true;
	set_deadline(s, k);
	return 0;
}

/* The slot's rank becomes the program's. */
static int give(struct state *s, struct slot *k, struct ptc_error *err)
{
	const struct ptc_config *c = s->p->config;
	struct ctl_program_rank r = program_rank(s, k->rank);
	struct ptc_coords at = ptc_config_coords(c, k->rank);
	struct ptc_local_generation g = {
		.rank = r.rank,
		.world = r.world,
		.local_rank = r.local_rank,
		.local_world = r.local_world,
		.node_rank = r.node_rank,
		.nodes = (r.world + s->p->per_node - 1) / s->p->per_node,
		.device = r.local_rank,
		.degrees = { c->tp, c->pp, c->dp, c->cp, c->ep, c->etp },
		.coordinates = { at.tp, at.pp, at.dp, at.cp },
		.zero = c->zero,
		.micro_batch = c->micro_batch,
		.global_batch = c->global_batch,
		.config = s->p->config_text,
		.job = s->p->name,
	};

	ctl_declaration_clear(&k->declared);
	k->has_rank = true;
	set_deadline(s, k);
	return ctl_link_give(&k->link, &g, err);
}

static int take_declaration(struct state *s, struct slot *k, struct ptc_error *err)
{
	int rc;

	if (!k->has_rank)
		return ptc_error_set(err, PTC_EINVAL, "it declares twice");
	rc = ctl_declaration_merge(&k->declared, s->merge, k->rank, err);
	if (rc)
		return rc;
	k->has_rank = false;
	k->built++;
	s->done++;
	if (s->p->progress)
		s->p->progress(s->p->arg, s->done, s->ranks.world);
	if (rebuilds(s) && ctl_ranks_take(&s->ranks, &k->rank))
		return ctl_link_end(&k->link, err);
	slot_end(k);
	return 0;
}

static int on_turn(struct state *s, struct slot *k, enum ctl_link_turn turn, struct ptc_error *err)
{
	switch (turn) {
	case CTL_LINK_WANTS:
		return give(s, k, err);
	case CTL_LINK_DECLARED:
		return take_declaration(s, k, err);
	case CTL_LINK_GONE:
		ctl_link_close(&k->link); /* its process tells how it ends */
		return 0;
	case CTL_LINK_NOTHING:
		break;
	}
	return 0;
}

static int read_link(struct state *s, struct slot *k, struct ptc_error *err)
{
	enum ctl_link_turn turn = CTL_LINK_WANTS;
	int rc = 0;

	for (int i = 0; i < 1024 && !rc && turn != CTL_LINK_NOTHING && k->runs && k->link.fd >= 0; i++) {
		rc = ctl_link_read(&k->link, &k->declared, &turn, err);
		if (!rc && turn == CTL_LINK_NOTHING)
			break;
		if (!rc)
			rc = on_turn(s, k, turn, err);
	}
	return rc;
}

/* What a program does that its own rank does not want any more. */
static int program_ended(struct state *s, struct slot *k, struct ptc_error *err)
{
	int status = 0, rc;
	char how[64];

	ctl_program_end(&k->program, &status);
	ctl_link_close(&k->link);
	k->runs = false;
	if (k->built && !k->has_rank) { /* it builds once only: another process goes on */
		ctl_ranks_give_back(&s->ranks, k->rank);
		return 0;
	}
	if (WIFSIGNALED(status))
		snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
	else
		snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
	ctl_program_put_tail(&k->program);
	rc = ptc_error_set(
		err, PTC_ESTATE,
		"the program %s before it declared its tensors (gen.attach() or ptc_restore()); what it wrote "
		"last is above",
		how);
	of_rank(s, k->rank, err);
	return rc;
}

static int late(struct state *s, struct slot *k, struct ptc_error *err)
{
	ctl_program_put_tail(&k->program);
	ptc_error_set(err, PTC_ETIMEOUT,
		      "the program has not declared its tensors within %llu s (%s); --limit gives it more time",
		      (unsigned long long)(s->p->limit_ms / 1000),
		      k->has_rank       ? "it builds"
		      : k->link.fd >= 0 ? "it has not asked for a generation"
					: "it has not opened ptc");
	of_rank(s, k->rank, err);
	return PTC_ETIMEOUT;
}

static void accept_some(struct state *s)
{
	for (size_t i = 0; i < PROGRAMS_MAX; i++)
		if (s->strangers[i].fd < 0 && !ctl_link_accept(s->listening, &s->strangers[i]))
			return;
}

/* Whose program it is, by its token. */
static void adopt(struct state *s, struct ctl_link *l)
{
	for (unsigned i = 0; i < s->nslots; i++) {
		struct slot *k = &s->slots[i];

		if (!k->runs || strcmp(k->program.token, l->token) != 0)
			continue;
		if (k->link.fd >= 0)
			break; /* it has one already: a child of it, or a second client */
		k->link = *l;
		*l = (struct ctl_link){ .fd = -1 };
		return;
	}
	ctl_link_close(l);
}

static void read_strangers(struct state *s)
{
	for (size_t i = 0; i < PROGRAMS_MAX; i++) {
		struct ctl_link *l = &s->strangers[i];
		enum ctl_link_turn turn;

		if (l->fd < 0)
			continue;
		if (ctl_link_read(l, NULL, &turn, NULL) != 0 || turn == CTL_LINK_GONE)
			ctl_link_close(l);
		else if (*l->token)
			adopt(s, l);
	}
}

static int slot_turn(struct state *s, struct slot *k, struct ptc_error *err)
{
	uint32_t rank = k->rank;
	int rc;

	ctl_program_read(&k->program, s->p->show);
	if (k->link.fd >= 0 && (rc = read_link(s, k, err)) != 0) {
		if (k->runs)
			ctl_program_put_tail(&k->program);
		of_rank(s, rank, err);
		return rc;
	}
	if (k->runs && ptc_child_ended(k->program.child.pidfd, 0))
		return program_ended(s, k, err);
	return k->runs && ptc_sys_now_ns() > k->deadline_ns ? late(s, k, err) : 0;
}

static void wait_for_any(const struct state *s)
{
	struct pollfd v[4 * PROGRAMS_MAX];
	nfds_t n = 0;

	v[n++] = (struct pollfd){ s->listening, POLLIN, 0 };
	for (size_t i = 0; i < PROGRAMS_MAX; i++)
		if (s->strangers[i].fd >= 0)
			v[n++] = (struct pollfd){ s->strangers[i].fd, POLLIN, 0 };
	for (unsigned i = 0; i < s->nslots; i++) {
		const struct slot *k = &s->slots[i];

		if (!k->runs)
			continue;
		v[n++] = (struct pollfd){ k->program.child.pidfd, POLLIN, 0 };
		if (k->program.output >= 0)
			v[n++] = (struct pollfd){ k->program.output, POLLIN, 0 };
		if (k->link.fd >= 0 && n < PTC_ARRAY_LEN(v))
			v[n++] = (struct pollfd){ k->link.fd, POLLIN, 0 };
	}
	(void)poll(v, n, TURN_MS);
}

/* All ranks that are to be built now. */
static int build(struct state *s, struct ptc_error *err)
{
	bool runs = true;
	int rc = 0;

	while (!rc && runs) {
		runs = false;
		for (unsigned i = 0; i < s->nslots && !rc; i++) {
			if (!s->slots[i].runs)
				rc = slot_start(s, &s->slots[i], err);
			runs = runs || s->slots[i].runs;
		}
		if (rc || !runs)
			break;
		wait_for_any(s);
		if (s->p->gone && s->p->gone())
			return ptc_error_set(err, PTC_ECANCELED, "interrupted");
		accept_some(s);
		read_strangers(s);
		for (unsigned i = 0; i < s->nslots && !rc; i++)
			if (s->slots[i].runs)
				rc = slot_turn(s, &s->slots[i], err);
	}
	return rc;
}

static int build_and_merge(struct state *s, struct ctl_probed *ret, struct ptc_error *err)
{
	int rc = ctl_ranks_init(&s->ranks, s->p->config, s->p->all, err);

	if (!rc)
		rc = ptc_declared_merge_new(s->p->config, &s->merge, err);
	s->nslots = PTC_MIN(PTC_MAX(s->p->programs, 1u), (unsigned)PROGRAMS_MAX);
	if (!rc)
		rc = build(s, err);
	if (!rc)
		rc = ctl_ranks_more(&s->ranks, s->merge, err);
	if (!rc)
		rc = build(s, err);
	ret->built = (uint32_t)s->ranks.built;
	return rc ? rc : ptc_declared_merge_finish(s->merge, &ret->declared, err);
}

int ctl_probe_run(const struct ctl_probe *p, struct ctl_probed *ret, struct ptc_error *err)
{
	const char *tmp = getenv("TMPDIR");
	ptc_auto_free char *dir = ptc_asprintf("%s/ptc-probe-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	ptc_auto_free struct state *s = ptc_calloc(1, sizeof *s);
	int rc;

	if (!dir || !s)
		return ptc_nomem(err);
	if (!mkdtemp(dir))
		return ptc_error_errno(err, errno, "%s", dir);
	s->p = p;
	s->listening = -1;
	for (size_t i = 0; i < PROGRAMS_MAX; i++)
		s->strangers[i].fd = s->slots[i].link.fd = -1;
	ctl_program_adopt();
	rc = ctl_link_listen(dir, &s->listening, &s->socket, err);
	if (!rc)
		rc = build_and_merge(s, ret, err);
	for (size_t i = 0; i < PROGRAMS_MAX; i++) {
		if (s->slots[i].runs)
			slot_end(&s->slots[i]);
		ctl_declaration_done(&s->slots[i].declared);
		ctl_link_close(&s->strangers[i]);
	}
	ctl_program_end_strays();
	ptc_close(&s->listening);
	ptc_free(s->socket);
	ptc_declared_merge_free(s->merge);
	ctl_ranks_done(&s->ranks);
	(void)ptc_sys_remove_tree(dir, "probe.folder", NULL);
	return rc;
}
