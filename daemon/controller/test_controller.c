/* SPDX-License-Identifier: Apache-2.0 */
/* What the controller makes of the core's updates, for recovery: when ranks that a switch has held were let go. The
 * core, the cluster and what is sent are decided here. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/agent/geometry/geometry.h"
#include "proto/pb.h"

#include "ptc.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

#include <cmocka.h>

static struct ptc_job_update next[2]; /* what the core's next step comes to */
static size_t nnext;
static unsigned sent;
static atomic_bool stopping;

static struct ptc_controllers all = { .node = "a", .stopping = &stopping };

/* ---- instead of the rooms below (--wrap) ---- */

int __wrap_ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates);
int __wrap_ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates)
{
	(void)job, (void)event;
	*ret_updates = (struct ptc_job_updates){ next, nnext };
	return 0;
}

void __wrap_ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up);
void __wrap_ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up)
{
	(void)ctl, (void)up;
	sent++;
}

int64_t __wrap_ptc_cluster_lease(struct ptc_cluster *c);
int64_t __wrap_ptc_cluster_lease(struct ptc_cluster *c)
{
	(void)c;
	return 1;
}

size_t __wrap_ptc_cluster_nnodes(const struct ptc_cluster *c);
size_t __wrap_ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	(void)c;
	return 0;
}

static struct ptc_node node; /* number 0 */

struct ptc_node *__wrap_ptc_cluster_node(struct ptc_cluster *c, uint32_t index);
struct ptc_node *__wrap_ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	(void)c;
	assert_int_equal(0, index);
	return &node;
}

bool __wrap_ptc_cluster_early(const struct ptc_cluster *c, const struct ptc_node *n);
bool __wrap_ptc_cluster_early(const struct ptc_cluster *c, const struct ptc_node *n)
{
	(void)c, (void)n;
	return true;
}

void __wrap_ptc_cluster_changed(struct ptc_cluster *c);
void __wrap_ptc_cluster_changed(struct ptc_cluster *c)
{
	(void)c;
}

void __wrap_ptc_controller_load(struct ptc_controller *ctl, uint64_t seq);
void __wrap_ptc_controller_load(struct ptc_controller *ctl, uint64_t seq)
{
	(void)ctl, (void)seq;
}

void __wrap_ptc_controller_tell_lost(struct ptc_controller *ctl);
void __wrap_ptc_controller_tell_lost(struct ptc_controller *ctl)
{
	(void)ctl;
}

void __wrap_ptc_controller_tidy(struct ptc_controller *ctl);
void __wrap_ptc_controller_tidy(struct ptc_controller *ctl)
{
	(void)ctl;
}

static struct {
	struct ptc_spec spec;
	struct ptc_tensor tensor;
	struct ptc_device ranks[2];
	char *nodes[2];
	int status; /* of the task */
} agree = { .tensor = { .name = "a", .dtype = PTC_U8, .ndim = 1, .shape = { 8 } },
	    .ranks = { { .node = 0 }, { .node = 1 } } };

int __wrap_ptc_view_geometry(struct ptc_agent *agent, const struct ptc_view *v, bool to, struct ptc_geometry *ret,
			     struct ptc_error *err);
int __wrap_ptc_view_geometry(struct ptc_agent *agent, const struct ptc_view *v, bool to, struct ptc_geometry *ret,
			     struct ptc_error *err)
{
	(void)agent, (void)v, (void)to, (void)err;
	agree.spec = (struct ptc_spec){ .name = "job", .tensors = &agree.tensor, .ntensors = 1 };
	*ret = (struct ptc_geometry){
		.spec = &agree.spec, .allocation = { agree.ranks, 2 }, .nodes = agree.nodes, .nnodes = 2
	};
	return 0;
}

void __wrap_ptc_geometry_done(struct ptc_geometry *g);
void __wrap_ptc_geometry_done(struct ptc_geometry *g)
{
	(void)g;
}

/* All nodes say the same of each box. */
int __wrap_ptc_merge_digests(const struct ptc_merge *m, const struct ptc_geometry *g, const uint64_t *expected,
			     size_t nexpected, uint64_t **ret_items, size_t *ret_nitems, struct ptc_error *err);
int __wrap_ptc_merge_digests(const struct ptc_merge *m, const struct ptc_geometry *g, const uint64_t *expected,
			     size_t nexpected, uint64_t **ret_items, size_t *ret_nitems, struct ptc_error *err)
{
	(void)m, (void)g, (void)expected, (void)nexpected, (void)ret_items, (void)ret_nitems, (void)err;
	return 0;
}

bool __wrap_ptc_job_gives(const struct ptc_job *job, uint32_t n);
bool __wrap_ptc_job_gives(const struct ptc_job *job, uint32_t n)
{
	(void)job, (void)n;
	return true;
}

/* Its first step only; what it comes to is looked at here. */
int __wrap_ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
			     void (*done)(void *arg), void *arg);
int __wrap_ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
			     void (*done)(void *arg), void *arg)
{
	struct ptc_ctl_task *t = arg;

	(void)c, (void)lane;
	steps[0].run(arg, NULL);
	agree.status = t->status;
	t->ctl->gone = true;
	done(arg);
	all.list[0]->gone = false;
	return 0;
}

struct ptc_job_view *__wrap_ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid);
struct ptc_job_view *__wrap_ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid)
{
	(void)c, (void)uuid;
	return NULL;
}

static bool rests; /* the core is at rest; else it is as it was made */

enum ptc_job_phase __real_ptc_job_phase(const struct ptc_job *job);
enum ptc_job_phase __wrap_ptc_job_phase(const struct ptc_job *job);
enum ptc_job_phase __wrap_ptc_job_phase(const struct ptc_job *job)
{
	return rests ? PTC_JOB_IDLE : __real_ptc_job_phase(job);
}

static const char *told_kind, *told_text; /* of the last event; the text without its values */

void __wrap_ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...);
void __wrap_ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
{
	(void)c, (void)uuid;
	told_kind = kind;
	told_text = fmt;
}

/* ---- the cases ---- */

static struct ptc_job_view job = {
	.uuid = "00000000-0000-0000-0000-000000000001", .has_meta = true, .has_lock = true, .lock_node = "a"
};

static void step(const struct ptc_job_update *v, size_t n)
{
	struct ptc_controller *ctl = all.list[0];

	for (size_t i = 0; i < n; i++)
		next[i] = v[i];
	nnext = n;
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_TIMER });
}

/* The switch ends in an abort of which another controller tells. */
static void end(void)
{
	step(&(struct ptc_job_update){ .kind = PTC_UP_DONE, .status = PTC_EFENCED, .node = PTC_JOB_NO_NODE }, 1);
}

static int take(void **state)
{
	(void)state;
	job.has_lock = true;
	sent = 0;
	ptc_controllers_changed(&all, &job);
	assert_int_equal(1, all.n);
	return 0;
}

static int lose(void **state)
{
	(void)state;
	next[0] = (struct ptc_job_update){ .kind = PTC_UP_STOPPED };
	nnext = 1;
	job.has_lock = false;
	ptc_controllers_changed(&all, &job);
	assert_int_equal(0, all.n);
	ptc_free(all.list);
	all.list = NULL;
	assert_int_equal(0, uv_run(uv_default_loop(), UV_RUN_DEFAULT)); /* closes timers */
	return 0;
}

/* A due snapshot may have stopped ranks that no switch has armed yet: a FINISH lets them go on. For some time after
 * that, ranks whose steps stand are not given up. */
static void a_finish_lets_ranks_go(void **state)
{
	const struct ptc_job_update finish = { .kind = PTC_UP_SEND, .op = PTC_OP_FINISH };
	const int64_t before = ptc_sys_now_ns();

	(void)state;
	step(&finish, 1);
	assert_int_equal(1, sent);
	assert_int_equal(0, all.list[0]->recovery.ended_ns); /* it runs */
	end();
	assert_true(all.list[0]->recovery.ended_ns >= before);
}

static void an_abort_lets_ranks_go(void **state)
{
	const struct ptc_job_update aborting = { .kind = PTC_UP_PHASE, .phase = PTC_JOB_ABORTING };
	const int64_t before = ptc_sys_now_ns();

	(void)state;
	step(&aborting, 1);
	end();
	assert_true(all.list[0]->recovery.ended_ns >= before);
}

static void a_switch_that_holds_none_lets_none_go(void **state)
{
	const struct ptc_job_update prepare[] = { { .kind = PTC_UP_PHASE, .phase = PTC_JOB_PREPARING },
						  { .kind = PTC_UP_SEND, .op = PTC_OP_PREPARE } };

	(void)state;
	step(prepare, PTC_ARRAY_LEN(prepare));
	end();
	assert_int_equal(1, sent);
	assert_int_equal(0, all.list[0]->recovery.ended_ns);
}

/* Its ranks were given up because of a node. A machine that refuses connections is passed by if it was down then, or
 * went down together with that node. A ptcd that is upgraded later is waited for. */
static void who_is_closed_later_is_waited_for(void **state)
{
	const int64_t second = 1000000000, now = ptc_sys_now_ns();
	struct ptc_controller *ctl = all.list[0];
	char name[] = "b", *names[] = { name };

	(void)state;
	node = (struct ptc_node){ .closed = true };
	snprintf(node.doc.name, sizeof node.doc.name, "b");
	ctl->has_record = true;
	ctl->record.recovery = PTC_RECOVERY_NODE;
	ctl->record.run = PTC_RUN_FAILED;
	ctl->view.from.nodes = names;
	ctl->view.from.nnodes = 1;
	ctl->known = ptc_calloc(1, sizeof *ctl->known);
	ctl->nknown = 1;
	assert_true(ctl->recovery.marked_ns && ctl->recovery.marked_ns <= now); /* by another controller */
	ctl->recovery.marked_ns = now;
	for (int64_t at = -5; at < 6; at++) {
		node.down_ns = now + at * second;
		assert_int_equal(ptc_controller_passes(ctl, 0), at <= 2);
	}
	node.unreachable = true; /* then it is no upgrade */
	assert_true(ptc_controller_passes(ctl, 0));
	memset(&ctl->view.from, 0, sizeof ctl->view.from);
	ctl->has_record = false;
}

/* Whether replicas agree, if the node has listed a difference of that rank. */
static int agreed(uint32_t rank)
{
	struct ptc_controller *ctl = all.list[0];
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	Ptc__V1__Differing one = PTC__V1__DIFFERING__INIT, *list = &one;
	uint8_t packed[64];
	size_t len;

	one.rank = rank;
	one.difference = 1;
	reply.differing = &list;
	reply.n_differing = 1;
	len = ptc__v1__pull_reply__pack(&reply, packed);
	ctl->pulls = ptc_calloc(1, sizeof *ctl->pulls);
	ctl->npulls = 1;
	ctl->pulls[0].capture = ptc__v1__pull_reply__unpack(&ptc_pb_allocator, len, packed);
	ptc_controller_agree(ctl, 1);
	return agree.status;
}

/* A controller that has gone has asked a node to list replicas that differ. Its successor has not read the description,
 * so it does not know which replica counts: but it commits none of them. What a node says of another's ranks is no
 * such list. */
static void a_successor_commits_no_odd_replica(void **state)
{
	char b[] = "b", c[] = "c";

	(void)state;
	node = (struct ptc_node){ 0 };
	snprintf(node.doc.name, sizeof node.doc.name, "b"); /* which has captured */
	agree.nodes[0] = b;
	agree.nodes[1] = c;
	all.list[0]->view.from.config = ptc_strdup("dp=2");
	assert_false(all.list[0]->recovery.has_elastic);
	assert_int_equal(agreed(0), PTC_EDIGEST);
	assert_int_equal(agreed(1), 0);
}

/* A snapshot of held ranks is committed by a controller that has not begun it: the loss counts all the same. One for a
 * node that is left is none. */
static void a_successor_counts_the_loss(void **state)
{
	struct ptc_controller *ctl = all.list[0];
	struct ptc_record_doc r = { .step = 10 };

	(void)state;
	ctl->intent = (struct ptc_intent_doc){ .kind = PTC_SWITCH_SNAPSHOT, .held = true, .stop = 20, .reached = 21 };
	ptc_recovery_halts(ctl, &r);
	assert_true(r.recovery == PTC_RECOVERY_NODE && r.reached == 21);
	assert_true(r.restarted_ms > 0 && r.restarts == 0 && r.failed_step == 21);
	ctl->intent.stop = 21; /* no further than before */
	for (uint32_t n = 1; n < 4; n++) {
		ptc_recovery_halts(ctl, &r);
		assert_true(r.restarts == n && r.failed_step == 21);
	}
	ctl->intent.held = false;
	ctl->intent.leaves = true;
	ptc_recovery_halts(ctl, &r);
	assert_true(r.restarts == 3 && r.failed_step == 21);
	ctl->intent.leaves = false;
	ctl->intent.held = true;
	ctl->intent.stop = 22;
	ptc_recovery_halts(ctl, &r);
	assert_true(r.restarts == 0 && r.failed_step == 22);
}

static unsigned halts;

static int take_halt(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err)
{
	(void)ctl, (void)err;
	halts += r->kind == PTC_SWITCH_HALT && r->end == PTC_RUN_FAILED;
	return 0;
}

/* ... and after as many as the job allows it is not started again. */
static void a_successor_gives_up(void **state)
{
	struct ptc_controller *ctl = all.list[0];

	(void)state;
	ctl->has_record = true;
	ctl->record.run = PTC_RUN_FAILED;
	ctl->record.recovery = PTC_RECOVERY_NODE;
	ctl->record.restarts = 3;
	ctl->record.failed_step = 21;
	ctl->recovery.has_elastic = true;
	ctl->recovery.elastic.max_restarts = 2;
	ctl->submit = take_halt;
	halts = 0;
	rests = true;
	ptc_recovery_tick(ctl);
	rests = false;
	assert_int_equal(1, halts);
	assert_string_equal("gave_up", told_kind);
	assert_non_null(strstr(told_text, "its ranks were lost again, with the controller"));
	ctl->has_record = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_successor_counts_the_loss, take, lose),
		cmocka_unit_test_setup_teardown(a_successor_gives_up, take, lose),
		cmocka_unit_test_setup_teardown(a_finish_lets_ranks_go, take, lose),
		cmocka_unit_test_setup_teardown(an_abort_lets_ranks_go, take, lose),
		cmocka_unit_test_setup_teardown(a_switch_that_holds_none_lets_none_go, take, lose),
		cmocka_unit_test_setup_teardown(a_successor_commits_no_odd_replica, take, lose),
		cmocka_unit_test_setup_teardown(who_is_closed_later_is_waited_for, take, lose),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
