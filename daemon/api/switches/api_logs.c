/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of a job's ranks, read at their nodes and relayed line by line.
 *
 * Happy path: if the job is live, its committed generation says where its ranks are. Otherwise every node says whose
 * logs it has, and the newest incarnation is shown, whether it began to train or not. If the caller follows the logs, a
 * reader for each rank goes on until the rank's process has ended or belongs to another incarnation. Then come the
 * ranks of each incarnation that has started since, in their order, until the ranks that live now.
 *
 * Failure modes: no such rank, no logs (PTC_ENOTFOUND), a node that is down or does not answer (PTC_EPEER; what others
 * have is shown). */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/api/run/run.h"
#include "daemon/api/switches/switches.h"

#include <stdio.h>
#include <string.h>

#define LOGS_MAX     64          /* each is a call to its node */
#define LOG_LINE_MAX (64u << 10) /* longer ones are cut there */
#define LOG_TICK_MS  100         /* between looks at the job */
#define LOG_LEAVE_MS 5000        /* so long an incarnation that is over may keep its successor's logs back */

struct logs {
	struct ptc_daemon *d;
	struct ptc_rpc_call *call;
	Ptc__V1__LogsRequest *req;
	char uuid[PTC_UUID_TEXT];
	struct ptc_target t;
	uint64_t incarnation; /* whose readers these are; 0: none yet */
	struct log_reader *readers;
	int64_t since_ns; /* see may_go_on */
	int64_t look_ns;  /* when the job is looked at again */
	int64_t heard_ns; /* when something came last */
	bool last;        /* nothing comes after these readers */
};

/* Where the logs of an incarnation are. */
struct log_place {
	char node[PTC_NAME_MAX + 1], address[256]; /* node "": not known */
};
struct log_places {
	uint64_t incarnation;
	uint32_t world;
	struct log_place *of; /* each rank's */
};

struct log_reader {
	struct log_reader *next;
	struct logs *logs;
	uint32_t rank;
	struct log_place place;
	uint64_t incarnation;
	bool follow, fresh;
	struct ptc_buf partial;
	struct ptc_rpc_stream *s; /* NULL: not begun, or over */
	bool begun, over;
	int rc;
	struct ptc_error err;
};

/* ---- one log ---------------------------------------------------------------------------- */

static int send_lines(struct log_reader *r, const void *data, size_t len)
{
	Ptc__V1__LogLine line = PTC__V1__LOG_LINE__INIT;

	if (len == 0)
		return 0;
	line.version = PTC_WIRE_VERSION;
	line.rank = r->rank;
	line.data.data = (uint8_t *)(uintptr_t)data; /* packing only reads */
	line.data.len = len;
	return ptc_pb_call_send(r->logs->call, &line.base, &r->err);
}

/* Sends whole lines, keeps the rest; what never ends in a line is cut. */
static int take_bytes(struct log_reader *r, const uint8_t *data, size_t len)
{
	const uint8_t *end = len ? memrchr(data, '\n', len) : NULL;
	size_t whole = end ? (size_t)(end - data) + 1 : 0;
	int rc = 0;

	ptc_buf_append(&r->partial, data, end || r->partial.len + len < LOG_LINE_MAX ? (end ? whole : len) : len);
	if (ptc_buf_failed(&r->partial))
		return ptc_nomem(&r->err);
	if (!end && r->partial.len < LOG_LINE_MAX)
		return 0;
	rc = send_lines(r, r->partial.data, r->partial.len);
	r->partial.len = 0;
	if (rc == 0 && end)
		ptc_buf_append(&r->partial, data + whole, len - whole);
	return rc;
}

static int relay_message(struct log_reader *r, struct ptc_rpc_message *m)
{
	Ptc__V1__Data *data;
	int rc = ptc_pb_message(m, &ptc__v1__data__descriptor, (ProtobufCMessage **)&data, &r->err);

	ptc_rpc_message_done(m);
	r->logs->heard_ns = ptc_sys_now_ns();
	if (rc)
		return rc;
	rc = take_bytes(r, data->data.data, data->data.len);
	ptc_pb_free(&data->base);
	return rc;
}

/* As much as has come and the caller takes. *ret_end: all of it. */
static int relay_log(struct log_reader *r, bool *ret_end)
{
	struct ptc_rpc_message *m;
	int rc = 0;

	*ret_end = false;
	while (rc == 0 && !ptc_rpc_call_full(r->logs->call) && ptc_rpc_stream_ready(r->s)) {
		rc = ptc_rpc_stream_recv(r->s, &m, &r->err);
		if (rc)
			return rc;
		if (m) {
			rc = relay_message(r, m);
			continue;
		}
		*ret_end = true;
		rc = send_lines(r, r->partial.data, r->partial.len);
		return rc ? rc : ptc_rpc_stream_finish(r->s, &r->err);
	}
	return rc;
}

static int open_log(struct log_reader *r)
{
	const struct logs *l = r->logs;
	Ptc__V1__LogRequest req = PTC__V1__LOG_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	void *data = NULL;
	size_t len = 0;
	int rc;

	req.version = PTC_WIRE_VERSION;
	req.uuid = (char *)(uintptr_t)l->uuid;
	req.rank = r->rank;
	req.incarnation = r->incarnation;
	req.follow = r->follow;
	req.fresh = r->fresh;
	req.lines = r->fresh ? 0 : l->req->lines;
	rc = ptc_channels_get(l->d->channels, r->place.node, r->place.address, false, 0, &channel, &r->err);
	if (rc == 0)
		rc = ptc_pb_encode(&req.base, &data, &len, &r->err);
	if (rc == 0)
		rc = ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Log", 0, NULL, 0, &r->s, &r->err);
	if (rc == 0)
		rc = ptc_rpc_stream_send(r->s, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, &r->err);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(r->s, &r->err);
	ptc_free(data);
	return rc;
}

/* A step of one reader. */
static void read_log(struct log_reader *r)
{
	bool end = false;

	if (!r->begun && !r->place.node[0])
		r->rc = ptc_error_set(&r->err, PTC_EPEER, "the log of rank %u is on no node that answers", r->rank);
	else if (!r->begun)
		r->rc = open_log(r);
	if (r->rc == 0)
		r->rc = relay_log(r, &end);
	r->begun = true;
	r->over = end || r->rc;
	if (!r->over)
		return;
	r->s = ptc_rpc_stream_free(r->s);
	ptc_buf_done(&r->partial);
	if (r->rc && r->place.node[0])
		ptc_error_wrap(&r->err, "rank %u on node %s", r->rank, r->place.node);
}

/* ---- where logs are ----------------------------------------------------------------------- */

static void places_done(struct log_places *p)
{
	ptc_free(p->of);
	p->of = NULL;
}

static int places_new(struct log_places *p, uint64_t incarnation, uint32_t world, struct ptc_error *err)
{
	*p = (struct log_places){ .incarnation = incarnation, .world = world };
	p->of = ptc_calloc(world ? world : 1, sizeof *p->of);
	return p->of ? 0 : ptc_nomem(err);
}

/* Of the job's committed generation. */
static int places_live(struct ptc_daemon *d, struct ptc_target *t, struct log_places *ret, struct ptc_error *err)
{
	struct ptc_view v;
	int rc = ptc_api_view(d, t, false, true, &v, err);

	if (rc)
		return rc;
	rc = places_new(ret, t->record.incarnation, v.from.world, err);
	for (uint32_t r = 0; rc == 0 && r < v.from.world; r++) {
		const char *node = v.from.nodes[v.from.rank_node[r]];

		snprintf(ret->of[r].node, sizeof ret->of[r].node, "%s", node);
		snprintf(ret->of[r].address, sizeof ret->of[r].address, "%s", v.addresses[ptc_view_number(&v, node)]);
	}
	ptc_view_done(&v);
	return rc;
}

struct up_nodes {
	struct ptc_daemon *d;
	struct log_place *of;
	struct ptc_rank_rows *said; /* by each; empty: nothing */
	size_t n;
};

static void up_nodes_on_loop(void *arg)
{
	struct up_nodes *u = arg;
	struct ptc_cluster *c = u->d->cluster;
	size_t n = ptc_cluster_nnodes(c);

	u->of = ptc_calloc(n ? n : 1, sizeof *u->of);
	for (size_t i = 0; u->of && i < n; i++) {
		const struct ptc_node *node = ptc_cluster_node(c, (uint32_t)i);

		if (!node->up)
			continue;
		snprintf(u->of[u->n].node, sizeof u->of[u->n].node, "%s", node->doc.name);
		snprintf(u->of[u->n++].address, sizeof u->of[0].address, "%s", node->doc.address);
	}
}

static bool row_fits(const struct ptc_rank_row *row)
{
	return row->world && row->world <= PTC_MAX_RANKS;
}

/* The row of the newest process of all; with `after` and `not`, the oldest of those that are newer than `after` and not
 * of incarnation `not`. NULL: there is none. */
static const struct ptc_rank_row *pick_row(const struct up_nodes *u, uint64_t after, uint64_t not )
{
	const struct ptc_rank_row *best = NULL;

	for (size_t i = 0; i < u->n; i++)
		for (size_t k = 0; k < u->said[i].n; k++) {
			const struct ptc_rank_row *row = &u->said[i].v[k];

			if (!row_fits(row) || (after && (row->since_ms <= after || row->incarnation == not )))
				continue;
			if (!best || (after ? row->since_ms < best->since_ms : row->since_ms > best->since_ms))
				best = row;
		}
	return best;
}

/* When the last process became one of that incarnation. 0: nobody knows of it. */
static uint64_t incarnation_since(const struct up_nodes *u, uint64_t incarnation)
{
	uint64_t since = 0;

	for (size_t i = 0; i < u->n; i++)
		for (size_t k = 0; k < u->said[i].n; k++)
			if (u->said[i].v[k].incarnation == incarnation)
				since = PTC_MAX(since, u->said[i].v[k].since_ms);
	return since;
}

static void up_nodes_done(struct up_nodes *u)
{
	for (size_t i = 0; u->said && i < u->n; i++)
		ptc_rank_rows_done(&u->said[i]);
	ptc_free(u->said);
	ptc_free(u->of);
}

/* Asks every node that is up whose logs it has. */
static int up_nodes_ask(const struct logs *l, struct up_nodes *u, struct ptc_error *err)
{
	int rc = ptc_loop_call(l->d->loop, up_nodes_on_loop, u);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	u->said = ptc_calloc(u->n ? u->n : 1, sizeof *u->said);
	if (!u->said || !u->of)
		return ptc_nomem(err);
	for (size_t i = 0; i < u->n; i++)
		(void)ptc_run_ask_node(l->d, l->uuid, u->of[i].node, u->of[i].address, &u->said[i]);
	return 0;
}

/* Of the incarnation that a row is of. NULL: none. */
static int places_row(const struct up_nodes *u, const struct ptc_rank_row *of, struct log_places *ret,
		      struct ptc_error *err)
{
	int rc = places_new(ret, of ? of->incarnation : 0, of ? (uint32_t)of->world : 0, err);

	for (size_t i = 0; of && rc == 0 && i < u->n; i++)
		for (size_t k = 0; k < u->said[i].n; k++) {
			const struct ptc_rank_row *row = &u->said[i].v[k];

			if (row->incarnation == ret->incarnation && row->rank < ret->world)
				ret->of[row->rank] = u->of[i];
		}
	return rc;
}

/* Of the newest incarnation of which there are logs; ret->world 0: of none. */
static int places_newest(const struct logs *l, struct log_places *ret, struct ptc_error *err)
{
	struct up_nodes u = { .d = l->d };
	int rc = up_nodes_ask(l, &u, err);

	if (rc == 0)
		rc = places_row(&u, pick_row(&u, 0, 0), ret, err);
	up_nodes_done(&u);
	return rc;
}

/* ---- those that were asked for -------------------------------------------------------------- */

/* Frees readers that are over, or all. Returns what was the first to go wrong with one of the newest incarnation. */
static int join(struct logs *l, bool all, struct ptc_error *err)
{
	int rc = 0;

	for (struct log_reader **at = &l->readers; *at;) {
		struct log_reader *r = *at;

		if (!all && !r->over) {
			at = &r->next;
			continue;
		}
		if (r->rc && rc == 0 && r->incarnation == l->incarnation)
			rc = ptc_error_set(err, r->rc, "%s", r->err.text);
		*at = r->next;
		ptc_rpc_stream_free(r->s);
		ptc_buf_done(&r->partial);
		ptc_free(r);
	}
	return rc;
}

static bool all_over(const struct logs *l)
{
	for (const struct log_reader *r = l->readers; r; r = r->next)
		if (!r->over)
			return false;
	return true;
}

static bool any_failed(const struct logs *l)
{
	for (const struct log_reader *r = l->readers; r; r = r->next)
		if (r->over && r->rc && r->incarnation == l->incarnation)
			return true;
	return false;
}

/* Those that follow all together; the others one after the other, and before what comes after them. */
static void read_logs(struct logs *l)
{
	bool earlier = false;

	for (struct log_reader *r = l->readers; r; r = r->next) {
		if (r->over || earlier)
			continue;
		read_log(r);
		earlier |= !r->over && !r->follow;
	}
}

/* Which of p's ranks were asked for. A job that had the rank may lose it while it is followed. */
static int range(const struct logs *l, const struct log_places *p, uint32_t *ret_first, uint32_t *ret_n,
		 struct ptc_error *err)
{
	const bool there = l->req->all || l->req->rank < p->world;

	*ret_first = l->req->all ? 0 : l->req->rank;
	*ret_n = l->req->all ? p->world : there;
	if (!there && !l->incarnation)
		return ptc_error_set(err, PTC_ENOTFOUND, "job %s has ranks 0 to %u, and no rank %u", l->req->job,
				     p->world - 1, l->req->rank);
	if (l->req->follow && *ret_n > LOGS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "at most %d logs are followed at once; name a rank", LOGS_MAX);
	return 0;
}

/* Followed together; else one rank after the other. */
static int open_logs(struct logs *l, const struct log_places *p, bool follow, struct ptc_error *err)
{
	const bool fresh = l->incarnation != 0;
	struct log_reader **end = &l->readers;
	uint32_t first, n;
	int rc = range(l, p, &first, &n, err);

	if (rc)
		return rc;
	while (*end)
		end = &(*end)->next;
	l->incarnation = p->incarnation;
	for (uint32_t i = 0; i < n; i++) {
		struct log_reader *r = ptc_calloc(1, sizeof *r);

		if (!r)
			return ptc_nomem(err);
		*r = (struct log_reader){ .logs = l,
					  .rank = first + i,
					  .place = p->of[first + i],
					  .incarnation = p->incarnation,
					  .follow = follow,
					  .fresh = fresh,
					  .partial = PTC_BUF_INIT,
					  .err = PTC_ERROR_INIT };
		*end = r;
		end = &r->next;
	}
	return 0;
}

/* ---- the request ------------------------------------------------------------------------------ */

static bool is_live(const struct ptc_target *t)
{
	return t->has_record && t->record.run == PTC_RUN_LIVE;
}

/* Of the incarnation that is live; or, of a job that is not, of the newest. */
static int open_now(struct logs *l, struct ptc_target *t, struct ptc_error *err)
{
	struct log_places p = { 0 };
	const bool live = is_live(t);
	int rc = live ? places_live(l->d, t, &p, err) : places_newest(l, &p, err);

	if (rc == 0 && p.world == 0 && l->incarnation == 0)
		rc = t->has_record && t->record.run != PTC_RUN_NONE
			     ? ptc_error_set(err, PTC_ENOTFOUND, "no node that is up has a log of job %s", t->meta.name)
			     : ptc_error_set(err, PTC_ENOTFOUND, "job %s has no ranks, and so no logs", t->meta.name);
	if (rc == 0 && p.world && p.incarnation != l->incarnation)
		rc = open_logs(l, &p, l->req->follow && (live || l->incarnation), err);
	places_done(&p);
	return rc;
}

/* All of the incarnations that have come and gone since the one that was shown last, in their order. What is not
 * remembered of them is not waited for. */
static void open_missed(struct logs *l, uint64_t live)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct up_nodes u = { .d = l->d };
	int rc = up_nodes_ask(l, &u, &ignored);
	uint64_t since = rc ? 0 : incarnation_since(&u, l->incarnation);
	const struct ptc_rank_row *row;

	while (rc == 0 && since && (row = pick_row(&u, since, live))) {
		struct log_places p = { 0 };

		since = incarnation_since(&u, row->incarnation);
		rc = places_row(&u, row, &p, &ignored);
		if (rc == 0)
			rc = open_logs(l, &p, false, &ignored);
		places_done(&p);
	}
	up_nodes_done(&u);
}

/* true: what is to be shown of the incarnation before has been, or has had its time. */
static bool may_go_on(struct logs *l)
{
	int64_t now = ptc_sys_now_ns();

	l->since_ns = l->since_ns ? l->since_ns : now;
	if (!all_over(l) && now - l->since_ns < LOG_LEAVE_MS * INT64_C(1000000))
		return false;
	l->since_ns = 0;
	return true;
}

/* Goes from incarnation to incarnation, until the job is not live and is not being started; then the readers are the
 * last. */
static int follow(struct logs *l, struct ptc_error *err)
{
	struct ptc_error gone = PTC_ERROR_INIT;
	struct ptc_target *t = &l->t;
	int rc = 0;

	if (is_live(t) && t->record.incarnation != l->incarnation && may_go_on(l)) {
		join(l, false,
		     &gone); /* of a node that was lost, say: what counts now is the incarnation that is live */
		if (l->incarnation)
			open_missed(l, t->record.incarnation);
		rc = open_now(l, t, err);
	} else if (!is_live(t) && !t->has_intent) { /* what was not live for long is shown as well */
		l->last = true;
		if (l->incarnation)
			open_missed(l, 0);
		return open_now(l, t, err);
	} else if (is_live(t) && t->record.incarnation == l->incarnation && all_over(l) && any_failed(l)) {
		l->last = true;
	}
	l->look_ns = ptc_sys_now_ns() + LOG_TICK_MS * INT64_C(1000000);
	if (rc == 0 && !l->last &&
	    (ptc_api_find(l->d, l->call, l->uuid, t, &gone) != 0 || strcmp(t->meta.uuid, l->uuid) != 0))
		l->last = true; /* deleted */
	return rc;
}

static int logs_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct logs *l = arg;
	int rc = 0;

	l->call = call;
	if (!l->last && ptc_sys_now_ns() >= l->look_ns)
		rc = follow(l, err);
	if (rc)
		return rc;
	read_logs(l);
	if (l->last && all_over(l))
		return join(l, true, err);
	ptc_rpc_call_again(call, ptc_rpc_call_full(call) ? 0 : ptc_wait_ms(l->heard_ns));
	return 0;
}

static void logs_free(void *arg)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct logs *l = arg;

	join(l, true, &ignored);
	ptc_pb_free(&l->req->base);
	ptc_free(l);
}

PTC_API_HANDLER(ptc_api_logs)
{
	struct logs *l;
	Ptc__V1__LogsRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__logs_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	l = ptc_calloc(1, sizeof *l);
	if (!l) {
		ptc_pb_free(&req->base);
		return ptc_nomem(err);
	}
	*l = (struct logs){ .d = arg, .call = call, .req = req, .last = !req->follow, .heard_ns = ptc_sys_now_ns() };
	rc = ptc_api_find(l->d, call, req->job, &l->t, err);
	memcpy(l->uuid, l->t.meta.uuid, sizeof l->uuid);
	if (rc == 0 && !req->follow)
		rc = open_now(l, &l->t, err);
	if (rc) {
		logs_free(l);
		return rc;
	}
	ptc_rpc_call_follow(call, 0, logs_step, l, logs_free);
	return 0;
}
