/* SPDX-License-Identifier: Apache-2.0 */
/* Says what the loss of a node would cost (`node_loss` of status): turns the facts, and what the ranks do now, into one
 * word, a number and a sentence. Happy path: the worst case is tested first. Failure modes: loss_cost.h. */
#include "daemon/controller/loss/loss_cost.h"

#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#define UNKNOWN "unknown" /* it may be anything */
#define NONE    "none"
#define SINCE   "snapshot" /* the steps since a snapshot */
#define ALL     "all"      /* every step: there is no snapshot */
#define WAITS   "waits"    /* as SINCE, and the job waits for the node */
#define FAILS   "fails"    /* as SINCE, and a person has to run the job */

struct said {
	const char *costs;
	bool has_steps;
	uint64_t steps; /* that would be lost now */
	struct ptc_buf why;
};

static void since(struct said *s, const struct ptc_loss_now *now, uint64_t step)
{
	s->has_steps = now->has_reached && now->live;
	s->steps = s->has_steps && now->reached > step ? now->reached - step : 0;
}

static void unknown(struct said *s, const char *why)
{
	s->costs = UNKNOWN;
	ptc_buf_printf(&s->why, "not known yet: %s", why);
}

/* What would have only that node's bytes on another one. */
static const char *remedy(const struct ptc_loss_facts *f)
{
	return f->copies > 1 ? "its copies are not complete" : "`copies: {count: 2}` would keep it on another one, too";
}

/* ---- of a job whose ranks do not run ---- */

static void say_rests(const struct ptc_loss_facts *f, struct said *s)
{
	s->has_steps = true;
	s->costs = f->stored.node[0] ? WAITS : NONE;
	if (f->stored.node[0])
		ptc_buf_printf(
			&s->why,
			"only node %s has a part of tensor \"%s\": without the node, what needs this tensor is refused "
			"until the node is back; %s",
			f->stored.node, f->stored.tensor, remedy(f));
	else
		ptc_buf_printf(&s->why, "every tensor is on other nodes as well: the state stays whole");
}

/* ---- of a job that trains ---- */

/* How often there is a snapshot. */
static void put_every(const struct ptc_loss_facts *f, char *buf, size_t size)
{
	if (f->snapshot_every)
		snprintf(buf, size, "a snapshot is due every %llu steps", (unsigned long long)f->snapshot_every);
	else
		snprintf(buf, size, "a snapshot is made only if a person asks for it (`snapshot_every: 0`)");
}

static void say_alone(const struct ptc_loss_facts *f, const struct ptc_loss_now *now, struct said *s)
{
	if (f->has_bridge && f->elastic.on_failure == PTC_JOB_SHRINK) {
		s->costs = SINCE;
		since(s, now, f->bridge_step);
		ptc_buf_printf(
			&s->why,
			"only node %s has a part of tensor \"%s\" of the newest snapshot, because %s: the job would go "
			"back to the bridge, the snapshot of step %llu",
			f->stored.node, f->stored.tensor, remedy(f), (unsigned long long)f->bridge_step);
		return;
	}
	s->costs = WAITS;
	ptc_buf_printf(
		&s->why,
		"only node %s has a part of tensor \"%s\" of the newest snapshot: the job would wait for the node; %s",
		f->stored.node, f->stored.tensor, remedy(f));
}

/* Where ranks' memory is not used. */
static void say_stored(const struct ptc_loss_facts *f, const struct ptc_loss_now *now, struct said *s)
{
	char every[120];

	put_every(f, every, sizeof every);
	since(s, now, now->has_snapshot ? now->step : 0);
	if (f->elastic.on_failure == PTC_JOB_STOP) {
		s->costs = FAILS;
		ptc_buf_printf(&s->why,
			       "`on_failure: stop` ends the job: a person runs it again, from its newest snapshot; %s",
			       every);
	} else if (f->elastic.on_failure == PTC_JOB_WAIT) {
		s->costs = WAITS;
		ptc_buf_printf(
			&s->why,
			"`on_failure: wait`: the job waits for the node, and then goes on from its newest snapshot; %s",
			every);
	} else if (f->stored.node[0]) {
		say_alone(f, now, s);
	} else if (f->stuck[0]) {
		s->costs = WAITS;
		ptc_buf_printf(&s->why, "without node %s the job would wait for it, or for another node: %s", f->stuck,
			       f->stuck_why);
	} else if (!now->has_snapshot) {
		s->costs = ALL;
		ptc_buf_printf(&s->why, "the job has no snapshot yet, and would begin again at its first step; %s",
			       every);
	} else {
		s->costs = SINCE;
		ptc_buf_printf(&s->why, "the job would go on from its newest snapshot, of step %llu; %s",
			       (unsigned long long)now->step, every);
	}
}

/* Why the memory of the ranks that are left would not be used; false: it would. */
static bool say_memory(const struct ptc_loss_facts *f, const struct ptc_loss_now *now, struct ptc_buf *why)
{
	if (f->stored.node[0]) /* a recovery that goes back to the bridge does not count on it */
		ptc_buf_puts(why, "; the memory of ranks that are left does not change that");
	else if (f->not_taken)
		ptc_buf_printf(why, "; the memory of ranks that are left cannot be used: %s", f->not_taken);
	else if (f->ranks.node[0])
		ptc_buf_printf(
			why,
			"; the memory of ranks that are left does not help: only ranks of node %s have a part of "
			"tensor \"%s\"",
			f->ranks.node, f->ranks.tensor);
	else if (now->told > now->survive)
		ptc_buf_printf(
			why,
			"; no step would be lost if all ranks survived (ptc_survive): rank %u does not, because %s",
			now->rank, now->rank_why);
	else if (now->told < now->ranks)
		ptc_buf_printf(why,
			       "; whether no step would be lost is not known yet: %u of %u ranks say that they train",
			       now->told, now->ranks);
	else
		return false;
	return true;
}

/* Takes s->why. */
static json_t *to_json(struct said *s, const struct ptc_loss_facts *f, bool live)
{
	json_t *j = ptc_buf_failed(&s->why) ? NULL
					    : json_pack("{s:s, s:o, s:s}", "costs", s->costs, "steps",
							s->has_steps ? json_integer((json_int_t)s->steps) : json_null(),
							"why", s->why.data);

	ptc_buf_done(&s->why);
	if (j && live && f->known)
		json_object_set_new(j, "snapshot_every", json_integer((json_int_t)f->snapshot_every));
	return j;
}

static json_t *say_live(const struct ptc_loss_facts *f, const struct ptc_loss_now *now)
{
	struct said stored = { .why = PTC_BUF_INIT }, none = { NONE, true, 0, PTC_BUF_INIT };
	json_t *j, *otherwise;

	say_stored(f, now, &stored);
	if ((strcmp(stored.costs, SINCE) != 0 && strcmp(stored.costs, ALL) != 0) || say_memory(f, now, &stored.why))
		return to_json(&stored, f, true);
	ptc_buf_puts(&none.why, "for each node, the ranks of the other nodes have every tensor, and all ranks survive "
				"(ptc_survive): their memory would become the snapshot");
	j = to_json(&none, f, true);
	otherwise = to_json(&stored, f, true);
	if (j && otherwise && json_object_set_new(j, "otherwise", otherwise) == 0)
		return j;
	json_decref(j);
	return NULL;
}

json_t *ptc_loss_json(const struct ptc_loss_facts *f, const struct ptc_loss_now *now)
{
	struct said s = { .why = PTC_BUF_INIT };

	if (now->recovering)
		unknown(&s, "the job is being started again");
	else if (now->switching)
		unknown(&s, "a switch is under way");
	else if (!f->known)
		unknown(&s, f->why);
	else if (now->live)
		return say_live(f, now);
	else
		say_rests(f, &s);
	return to_json(&s, f, now->live);
}
