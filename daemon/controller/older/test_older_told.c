/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes hear that a snapshot is not kept any more. The cluster, etcd and the core are decided here. */
#include "daemon/controller/internal.h"
#include "daemon/controller/test_nodes.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct {
	bool idle;
	char told[64]; /* nodes that get Finish */
	char event[300];
	/* what etcd has of the document after a transaction; lost: its answer does not come; conflict: it fails */
	char *doc;
	bool lost, conflict;
} t;

/* ---- the rooms below ---- */

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	(void)c, (void)name, (void)ret_index;
	return false;
}

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	(void)c, (void)lane;
	work(arg, NULL);
	done(arg);
	return 0;
}

int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_ok, int64_t *ret_revision, struct ptc_error *err)
{
	(void)e, (void)cmp, (void)ncmp, (void)nops, (void)point;
	if (!t.conflict) {
		ptc_free(t.doc);
		t.doc = ops[0].value ? ptc_strdup(ops[0].value) : NULL;
	}
	if (t.lost)
		return ptc_error_set(err, PTC_ETIMEOUT, "no answer");
	*ret_ok = !t.conflict;
	*ret_revision = 9;
	return 0;
}

int ptc_etcd_get(struct ptc_etcd *e, const char *key, bool prefix, size_t max_keys, struct ptc_etcd_kvs *ret_kvs,
		 struct ptc_error *err)
{
	static struct ptc_etcd_kv kv;

	(void)e, (void)max_keys, (void)err;
	assert_true(!prefix && strstr(key, "/older"));
	kv = (struct ptc_etcd_kv){ .value = t.doc, .len = t.doc ? strlen(t.doc) : 0, .mod_revision = 9 };
	*ret_kvs = (struct ptc_etcd_kvs){ .kv = &kv, .n = t.doc != NULL };
	return 0;
}

void ptc_etcd_kvs_done(struct ptc_etcd_kvs *kvs)
{
	(void)kvs;
}

void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
{
	va_list ap;

	(void)c, (void)uuid, (void)kind;
	va_start(ap, fmt);
	vsnprintf(t.event, sizeof t.event, fmt, ap);
	va_end(ap);
}

bool ptc_controller_idle(const struct ptc_controller *ctl)
{
	(void)ctl;
	return t.idle;
}

const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl)
{
	return &ctl->view.from;
}

bool ptc_controller_ranks_on(const struct ptc_controller *ctl, const char *node)
{
	return ptc_generation_doc_names(&ctl->view.from, node);
}

struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl)
{
	return ctl;
}

void ptc_controller_unref(struct ptc_controller *ctl)
{
	(void)ctl;
}

int ptc_specs_get(struct ptc_specs *s, const char *uuid, const char *hash, const struct ptc_job_desc **ret_desc,
		  void **ret_ref, struct ptc_error *err)
{
	(void)s, (void)uuid, (void)hash, (void)ret_desc, (void)ret_ref;
	return ptc_error_set(err, PTC_ENOTFOUND, "no description");
}

void ptc_specs_release(void *ref)
{
	(void)ref;
}

bool ptc_view_placed(const struct ptc_view *v, const char *node)
{
	(void)v, (void)node;
	return false;
}

int ptc_view_nodes(struct ptc_view *v)
{
	(void)v;
	return 0;
}

/* ---- the test ---- */

static void step(struct ptc_controller *ctl, const struct ptc_job_event *event)
{
	(void)ctl;
	assert_int_equal(event->kind, PTC_EV_NODE_UP);
	snprintf(t.told + strlen(t.told), sizeof t.told - strlen(t.told), "%s ", test_nodes[event->node].doc.name);
}

static const char *told(struct ptc_controller *ctl)
{
	t.told[0] = '\0';
	ptc_older_tick(ctl);
	return t.told;
}

static struct ptc_older snap(uint64_t generation, uint64_t snapshot, const char *one, const char *other)
{
	struct ptc_older o = { .generation = generation, .snapshot = snapshot, .step = snapshot };

	snprintf(o.manifest_hash, sizeof o.manifest_hash, "%s", "aa");
	snprintf(o.generation_hash, sizeof o.generation_hash, "%s", "bb");
	assert_int_equal(ptc_older_node_add(&o, one), 0);
	assert_int_equal(ptc_older_node_add(&o, other), 0);
	return o;
}

static struct ptc_copies_keeper *test_copy(const struct ptc_copies_keeper *k)
{
	struct ptc_copies_keeper *own = ptc_calloc(1, sizeof *own);

	assert_non_null(own);
	*own = *k;
	return own;
}

static struct ptc_controller ctl;

static void soon(struct ptc_controller *of, uint64_t ms)
{
	(void)of, (void)ms;
}

static void set_up(void)
{
	static char n0[] = "n0", n1[] = "n1", *of_record[] = { n0, n1 };
	static struct ptc_controllers all;
	static __typeof__(*ctl.known) known[NODES];
	const struct ptc_older v[] = { snap(1, 10, "n0", "n2"), snap(1, 15, "n3", "n2"), snap(2, 20, "n0", "n1"),
				       snap(1, 30, "n1", "n2") };

	ctl.all = &all;
	ctl.step = step;
	ctl.soon = soon;
	ctl.known = known;
	ctl.nknown = NODES;
	ctl.record.generation = 2;
	ctl.view.from.nodes = of_record;
	ctl.view.from.nnodes = 2;
	for (int i = 0; i < NODES; i++) {
		known[i].up = true;
		snprintf(test_nodes[i].doc.name, sizeof test_nodes[i].doc.name, "n%d", i);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(v); i++)
		ptc_older_add(&ctl.older.doc, &v[i]);
	t.idle = true;
}

/* Those that have its tables, and no others; the record's nodes hear of what a commit drops by its Finish. */
static void test_told(void **state)
{
	char text[200] = "no room";
	struct ptc_older_doc next;

	(void)state;
	set_up();
	assert_string_equal(told(&ctl), "");
	next = ctl.older.doc;
	ptc_older_drop_one(&next, 2);
	ptc_older_adopt(&ctl, &next, 2, NULL);
	assert_string_equal(told(&ctl), "");
	ptc_older_drop(&next, 1);
	ptc_older_adopt(&ctl, &next, 3, NULL);
	t.idle = false;
	assert_string_equal(told(&ctl), "");
	t.idle = true;
	assert_string_equal(told(&ctl), "n2 ");
	assert_string_equal(told(&ctl), "");
	ptc_older_make_room(&ctl, 1, text, sizeof text);
	assert_non_null(
		strstr(text, "no room; the oldest snapshot that is kept there (30, step 30) goes now: ask again"));
	assert_string_equal(told(&ctl), "n1 n2 ");
	assert_true(ctl.older.doc.n == 1 && ctl.older.doc.v[0].snapshot == 15);
	ptc_older_make_room(&ctl, 1, text, sizeof text); /* that one is of others */
	ptc_older_make_room(&ctl, PTC_JOB_NO_NODE, text, sizeof text);
	assert_true(ctl.older.doc.n == 1);
	ctl.intent.source = 15;
	ptc_older_make_room(&ctl, 2, text, sizeof text);
	assert_true(ctl.older.doc.n == 1);
	ctl.intent.source = 0;
	ptc_older_make_room(&ctl, 2, text, sizeof text);
	assert_true(ctl.older.doc.n == 0);
	assert_string_equal(told(&ctl), "n2 n3 ");
}

/* The bridge has tables on its nodes, and copies on others: all hear that it goes. It goes before the oldest snapshot
 * where there is no room, unless the job goes back to it. */
static void test_bridge(void **state)
{
	static struct ptc_copies_keeper keeper = { .node = "n3", .generation = 1, .table = PTC_COPIES_TABLE | 1 };
	const struct ptc_older bridge = snap(1, 12, "n0", "n2");
	char text[300] = "no room";
	size_t n;

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	n = ctl.older.doc.n;
	ptc_older_bridged(&ctl); /* there is none */
	assert_string_equal(told(&ctl), "");
	ctl.older.doc.bridge = bridge;
	ctl.older.copies = (struct ptc_copies_doc){ .keepers = test_copy(&keeper), .nkeepers = 1 };
	ptc_older_bridged(&ctl);
	assert_string_equal(told(&ctl), "n0 n2 n3 ");
	assert_true(!ctl.older.doc.bridge.snapshot && !ctl.older.copies.nkeepers && ctl.older.doc.n == n);
	assert_int_equal(ctl.older.no_room, 0);

	ctl.older.doc.bridge = bridge;
	assert_false(ptc_older_bridge_yields(&ctl, "n1"));
	ctl.intent.source = 12;
	ptc_older_make_room(&ctl, 2, text, sizeof text);
	assert_non_null(strstr(text, "the oldest snapshot that is kept there (10, step 10) goes now"));
	assert_true(ctl.older.doc.bridge.snapshot == 12 && ctl.older.doc.n == n - 1);
	ctl.intent.source = 0;
	ptc_older_make_room(&ctl, 2, text, sizeof text);
	assert_non_null(
		strstr(text, "the snapshot that bridges the time until there are copies (12, step 12) goes now"));
	assert_true(!ctl.older.doc.bridge.snapshot && ctl.older.doc.n == n - 1 && ctl.older.no_room == 2);
	(void)told(&ctl);
	ctl.older.doc.bridge = bridge;
	assert_true(ptc_older_bridge_yields(&ctl, "n0"));
	assert_string_equal(told(&ctl), "n0 n2 ");
}

/* While the bridge is being taken from the document, a rollback to it is refused. */
static void test_kept(void **state)
{
	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	ctl.older.doc.bridge = snap(1, 12, "n0", "n2");
	assert_true(ptc_older_kept(&ctl, 12) && ptc_older_kept(&ctl, 15) && !ptc_older_kept(&ctl, 13));
	ctl.older.dropping = true; /* nothing goes back to it any more */
	assert_true(!ptc_older_kept(&ctl, 12) && ptc_older_kept(&ctl, 15));
}

/* The answer of etcd to the transaction that drops the bridge is lost, or the transaction fails, for the document has
 * changed. What etcd has then counts; nodes hear what goes by it, and the transaction is not repeated for ever. */
static void test_answer_lost(void **state)
{
	struct ptc_older_doc other;

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	ctl.older.revision = 8;
	ctl.older.doc.bridge = snap(1, 12, "n0", "n2");
	t.lost = true;
	ptc_older_bridged(&ctl);
	assert_true(!ctl.older.doc.bridge.snapshot && ctl.older.doc.n == 4 && ctl.older.revision == 9);
	assert_true(!ctl.older.dropping && !ctl.older.no_room);
	assert_string_equal(told(&ctl), "n0 n2 ");

	ctl.older.doc.bridge = snap(1, 12, "n0", "n2"); /* the same for want of room */
	t.event[0] = '\0';
	assert_true(ptc_older_bridge_yields(&ctl, "n0"));
	assert_int_equal(ctl.older.no_room, 2);
	assert_non_null(strstr(t.event, "snapshot 12 of step 12 is dropped, for node n0 has no room"));
	assert_string_equal(told(&ctl), "n0 n2 ");
	ctl.older.no_room = 0;

	t.lost = false;
	t.conflict = true;
	ctl.older.revision = 8;
	ctl.older.doc.bridge = snap(1, 12, "n0", "n2");
	other = ctl.older.doc;
	ptc_older_drop(&other, 2);
	ptc_free(t.doc);
	t.doc = ptc_older_doc_encode(&other);
	ptc_older_bridged(&ctl);
	assert_true(ctl.older.doc.bridge.snapshot == 12 && ctl.older.doc.n == 2 && ctl.older.revision == 9);
	assert_string_equal(told(&ctl), "n0 n2 n3 ");
	t.conflict = false;
	ptc_free(t.doc);
	t.doc = NULL;
}

static void list(void *arg, uint64_t generation, uint64_t snapshot)
{
	char *text = arg;

	snprintf(text + strlen(text), 60 - strlen(text), "%llu.%llu ", (unsigned long long)generation,
		 (unsigned long long)(snapshot & ~PTC_COPIES_TABLE));
}

/* A bridge may be an entry of the list, too: then only its copies are the bridge's alone. */
static void test_tables(void **state)
{
	static struct ptc_copies_keeper keeper = { .node = "n2", .generation = 1, .table = PTC_COPIES_TABLE | 7 };
	char text[60] = "";

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	ctl.older.doc.bridge = snap(1, 12, "n0", "n2");
	ctl.older.copies = (struct ptc_copies_doc){ .keepers = test_copy(&keeper), .nkeepers = 1 };
	ptc_older_bridge_tables(&ctl.older, "n2", list, text);
	assert_string_equal(text, "1.12 1.7 ");
	text[0] = '\0';
	ctl.older.doc.bridge = snap(1, 10, "n0", "n2");
	ptc_older_bridge_tables(&ctl.older, "n2", list, text);
	assert_string_equal(text, "1.7 ");
	text[0] = '\0';
	ptc_older_tables(&ctl.older, "n2", list, text);
	assert_string_equal(text, "1.10 1.15 1.30 1.7 ");
	ptc_copies_doc_done(&ctl.older.copies);
}

/* A Prepare may drop tables of the bridge, but none that the record's copies name, and none that the switch goes back
 * to.
 */
static void test_yields(void **state)
{
	static struct ptc_copies_keeper keeper = { .node = "n2", .generation = 1, .table = PTC_COPIES_TABLE | 7 };
	char text[60] = "";

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	ptc_older_yields(&ctl, "n2", list, text); /* there is no bridge */
	assert_string_equal(text, "");
	ctl.older.doc.bridge = snap(1, 12, "n0", "n2");
	ctl.older.copies = (struct ptc_copies_doc){ .keepers = test_copy(&keeper), .nkeepers = 1 };
	ptc_older_yields(&ctl, "n2", list, text);
	assert_string_equal(text, "1.12 1.7 ");
	ctl.view.copies = (struct ptc_copies_doc){ .keepers = test_copy(&keeper), .nkeepers = 1 };
	text[0] = '\0';
	ptc_older_yields(&ctl, "n2", list, text);
	assert_string_equal(text, "1.12 ");
	text[0] = '\0';
	ptc_older_yields(&ctl, "n1", list, text); /* has none */
	ctl.intent.source = 12;
	ptc_older_yields(&ctl, "n2", list, text);
	assert_string_equal(text, "");
	ptc_copies_doc_done(&ctl.older.copies);
	ptc_copies_doc_done(&ctl.view.copies);
}

/* A node has dropped its tables of the bridge: the bridge goes once the job is idle. And what is said where there can
 * be none. */
static void test_no_bridge(void **state)
{
	struct ptc_older_kept *k = &ctl.older;
	struct ptc_older_doc next;

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	k->doc.bridge = snap(1, 12, "n0", "n2");
	ptc_older_yielded(&ctl, "n2", 1, 11); /* of a bridge that has gone */
	ptc_older_yielded(&ctl, "n1", 1, 12);
	assert_true(!k->no_room && !k->yielded[0]);
	ptc_older_yielded(&ctl, "n2", 1, 12);
	assert_int_equal(k->no_room, 2);
	t.idle = false;
	assert_string_equal(told(&ctl), "");
	assert_int_equal(k->doc.bridge.snapshot, 12);
	t.idle = true;
	(void)told(&ctl);
	assert_int_equal(k->doc.bridge.snapshot, 0);
	assert_non_null(strstr(t.event, "snapshot 12 of step 12 is dropped, for node n2 has no room"));
	assert_string_equal(told(&ctl), "n0 n2 ");
	assert_string_equal(told(&ctl), "");
	k->doc.bridge = snap(1, 12, "n0", "n2"); /* etcd fails: it is tried again */
	k->revision = 9;
	ptc_older_yielded(&ctl, "n2", 1, 12);
	t.conflict = true;
	ptc_free(t.doc);
	t.doc = ptc_older_doc_encode(&k->doc);
	(void)told(&ctl);
	assert_true(k->doc.bridge.snapshot == 12 && k->yielded[0]);
	next = k->doc; /* a commit takes its place */
	next.bridge = snap(2, 13, "n0", "n1");
	t.event[0] = '\0';
	ptc_older_adopt(&ctl, &next, 10, NULL);
	assert_non_null(strstr(t.event, "snapshot 12 of step 12 is dropped, for node n2 has no room"));
	assert_false(k->yielded[0]);
	t.conflict = false;
	ptc_free(t.doc);
	t.doc = NULL;
	ptc_older_tell_ranks(&ctl);
	assert_non_null(strstr(told(&ctl), "n0 n1 "));

	k->no_room = 0;
	t.event[0] = '\0';
	assert_string_equal(ptc_older_why_none(&ctl), "");
	k->no_room = ctl.record.generation;
	assert_string_equal(ptc_older_why_none(&ctl), ""); /* there is one */
	k->doc.bridge = (struct ptc_older){ 0 };
	assert_string_equal(ptc_older_why_none(&ctl), "a node had no room");
}

/* Nodes do not have the bridge any more, and nobody knows why: it goes, and the next commit may make another one. */
static void test_gone(void **state)
{
	const struct ptc_older bridge = snap(1, 12, "n0", "n2"), other = snap(1, 11, "n0", "n2");
	struct ptc_older_kept *k = &ctl.older;

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	k->doc.bridge = bridge;
	ptc_older_bridge_gone(&ctl, &other, "n2"); /* that was asked about the one before */
	assert_false(k->yielded[0]);
	ptc_older_bridge_gone(&ctl, &bridge, "n2");
	t.conflict = true;
	ptc_free(t.doc);
	t.doc = ptc_older_doc_encode(&k->doc);
	(void)told(&ctl);
	assert_true(k->yielded[0] && k->gone && k->doc.bridge.snapshot == 12); /* it is tried again */
	t.conflict = false;
	(void)told(&ctl);
	assert_non_null(strstr(t.event,
			       "snapshot 12 of step 12 is dropped, for node n2 does not have its part of it any "
			       "more; until the copies"));
	assert_true(!k->doc.bridge.snapshot && !k->no_room && !k->yielded[0]);
	assert_string_equal(told(&ctl), "n0 n2 ");
	k->doc.bridge = bridge;
	ptc_older_bridge_gone(&ctl, &bridge, "n2");
	ptc_older_yielded(&ctl, "n2", 1, 12); /* it says so itself now */
	(void)told(&ctl);
	assert_non_null(strstr(t.event, "node n2 has no room"));
	assert_int_equal(k->no_room, 2);
	ptc_free(t.doc);
	t.doc = NULL;
}

/* The names of a job's nodes are too long for the list: said once, whether a commit finds that first, or the keeper of
 * copies knows first how many copies the job asks for. */
static void test_long_names(void **state)
{
	struct ptc_older_kept *k = &ctl.older;
	char *nodes[40];
	char names[40][PTC_NAME_MAX + 1];

	(void)state;
	memset(&ctl, 0, sizeof ctl);
	set_up();
	for (size_t i = 0; i < PTC_ARRAY_LEN(nodes); i++) {
		nodes[i] = names[i];
		snprintf(names[i], sizeof names[i], "a-node-with-a-name-of-more-than-thirty-bytes-%zu", i);
	}
	ctl.view.from.nodes = nodes;
	ctl.view.from.nnodes = PTC_ARRAY_LEN(nodes);
	t.event[0] = '\0';
	ptc_older_no_bridge(&ctl); /* the commit of a controller that does not know yet that the job has copies */
	assert_true(k->no_room == 2 && !t.event[0]);
	ptc_older_check_names(&ctl);
	assert_string_equal(t.event, "");
	k->asked = 1;
	ptc_older_check_names(&ctl);
	assert_string_equal(t.event, ""); /* it asks for none */
	k->asked = 2;
	k->bare = 2;
	ptc_older_check_names(&ctl);
	assert_string_equal(t.event, ""); /* its layout has them */
	k->bare = 0;
	ptc_older_check_names(&ctl);
	assert_non_null(strstr(t.event, "goes as soon as there is a newer one, for the names of its nodes are longer "
					"together than the list of snapshots can have them; until there are copies "
					"again, the loss of a node may cost the job its state"));
	assert_non_null(strstr(ptc_older_why_none(&ctl), "the names of its nodes are longer"));
	t.event[0] = '\0';
	ptc_older_check_names(&ctl);
	ptc_older_no_bridge(&ctl);
	assert_string_equal(t.event, "");
	ctl.view.from.nnodes = 2; /* a resize */
	ctl.record.generation = 3;
	ctl.record.snapshot = 40;
	ptc_older_check_names(&ctl);
	assert_string_equal(t.event, "");
	assert_string_equal(ptc_older_why_none(&ctl), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_told),   cmocka_unit_test(test_bridge),    cmocka_unit_test(test_answer_lost),
		cmocka_unit_test(test_tables), cmocka_unit_test(test_no_bridge), cmocka_unit_test(test_long_names),
		cmocka_unit_test(test_gone),   cmocka_unit_test(test_kept),      cmocka_unit_test(test_yields),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
