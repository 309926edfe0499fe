/* SPDX-License-Identifier: Apache-2.0 */
/* Near nodes: agents in one process that read each other's chunk files; and sources that lie about places in theirs.
 * test_agent.c has whole switches between near nodes. PTC_TEST_SEED overrides; the seed is printed. */
#include "daemon/agent/test_world.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/near/near_ask.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/near_message.h"
#include "daemon/agent/transfer/transfer.h"
#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"

#include "base/cleanup.h"
#include "base/number/count.h"
#include "base/test_seed.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static uint64_t seed;

/* One big tensor on node 1, and the switch that takes it to node 0. */
struct move {
	struct world w;
	struct gen now, next;
	struct info info;
	uint64_t bytes, failures; /* counters before */
};

static void move_up(struct move *m, uint64_t number)
{
	rng = seed + number;
	world_near = true;
	world_up(&m->w, 2, true);
	gen_make(&m->now, 1, "tp=1", 1);
	m->now.nodes[0] = 1;
	import(&m->w, &m->now, 1);
	gen_make(&m->next, 2, "tp=1", 1);
	seal_and_prepare(&m->w, &m->info, &m->now, &m->next);
	m->bytes = ptc_count_get(PTC_COUNT_NEAR_BYTES);
	m->failures = ptc_count_get(PTC_COUNT_NEAR_FAILURES);
}

static uint64_t near_bytes(const struct move *m)
{
	return ptc_count_get(PTC_COUNT_NEAR_BYTES) - m->bytes;
}

static uint64_t near_failures(const struct move *m)
{
	return ptc_count_get(PTC_COUNT_NEAR_FAILURES) - m->failures;
}

/* What the pull says, and the bytes that rank 0 then has. */
static void move_check(struct move *m)
{
	struct ptc_error err = PTC_ERROR_INIT;

	pull_all(&m->w, &m->info, &m->next, false);
	OK(do_finish(&m->w, 0, &m->next, false, &err));
	check_ranks(&m->w, &m->next, 0);
}

static void test_way(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct move m;

	(void)state;
	move_up(&m, 1);
	OK(do_pull(&m.w, 0, &m.info, false, &reply, &err));
	assert_true(reply->near_bytes > 4096 * 2048);
	assert_true(reply->near_bytes <= reply->wire_bytes); /* small boxes are packed */
	assert_int_equal(reply->near_bytes, near_bytes(&m));
	assert_int_equal(near_failures(&m), 0);
	assert_int_equal(reply->n_links, 0); /* memory is no link */
	ptc_pb_free(&reply->base);
	move_check(&m);
	world_down(&m.w);
}

/* The node that gives lets nobody read in its memory, or the one that takes does not want to. */
static void test_off(void **state)
{
	(void)state;
	for (uint32_t off = 0; off < 2; off++) {
		struct move m;

		move_up(&m, 2);
		node_down(&m.w, &m.w.nodes[off]);
		world_near = false;
		node_up(&m.w, &m.w.nodes[off]);
		move_check(&m);
		assert_int_equal(near_bytes(&m), 0);
		assert_int_equal(near_failures(&m), 0);
		world_down(&m.w);
	}
}

/* Its daemon was started anew between two pulls: it has the same file. */
static void test_restart(void **state)
{
	struct move m;

	(void)state;
	move_up(&m, 3);
	node_down(&m.w, &m.w.nodes[1]);
	node_up(&m.w, &m.w.nodes[1]);
	move_check(&m);
	assert_true(near_bytes(&m) > 0);
	assert_int_equal(near_failures(&m), 0);
	world_down(&m.w);
}

/* ---- sources that lie ---- */

enum lie {
	/* what is read is not what the source said: the bytes come over the network */
	LIE_REUSED,
	LIE_SUM,
	LIE_END, /* of the file, which is before */
	LIE_NOWHERE,
	LIE_UNCOUNTED, /* the count of uses cannot be read */
	NLIES_OF_FILE,
	/* the protocol is broken: nothing of it is taken */
	LIE_OUTSIDE = NLIES_OF_FILE,
	LIE_CHUNK,
	LIE_COUNTS,
	LIE_INLINE,
	NLIES,
	LIE_DIES = NLIES /* after the first places */
};

struct liar {
	struct world *w;
	_Atomic int lie;
	_Atomic unsigned lies; /* told */
	struct ptc_rpc_server *server;
	char sock[200];
};

/* Places of the first box that is asked for, at most 128 rows of it, as node 1 would say them. */
static void places(struct liar *l, const Ptc__V1__Box *asked, struct ptc_near_list *list)
{
	const struct ptc_table_key key = { UUID, 1, 2 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_spans spans = { .v = (struct ptc_span *)list->spans,
				   .max = PTC_ARRAY_LEN(list->spans),
				   .chunks = (struct ptc_span_chunk *)list->chunks,
				   .max_chunks = PTC_ARRAY_LEN(list->chunks) };
	struct ptc_box box;
	struct ptc_table *t;

	OK(ptc_agent_table_open(l->w->nodes[1].agent, &key, &t, &err));
	OK(ptc_wire_box(asked->offset, asked->n_offset, asked->extent, asked->n_extent, &box, &err));
	box.ext[0] = PTC_MIN(box.ext[0], 128);
	OK(ptc_table_spans(t, asked->item, &box, &spans, &err));
	ptc_table_unref(t);
	list->nspans = spans.n;
	list->nchunks = spans.nchunks;
}

static void make_wrong(struct ptc_near_list *list, int lie)
{
	struct ptc_chunk_sums *last = &list->chunks[list->nchunks - 1];
	struct ptc_direct_read_span *span = &list->spans[list->nspans - 1];

	switch (lie) {
	case LIE_REUSED:
		last->use++;
		break;
	case LIE_SUM:
		last->sums[(span->at - last->at) / PTC_BLOCK_BYTES] ^= 1;
		break;
	case LIE_END:
		span->at += UINT64_C(1) << 40;
		last->at += UINT64_C(1) << 40;
		break;
	case LIE_NOWHERE:
		span->at += UINT64_C(1) << 63;
		last->at += UINT64_C(1) << 63;
		break;
	case LIE_UNCOUNTED:
		last->use_at = UINT64_MAX;
		break;
	case LIE_OUTSIDE:
		span->at = last->at + PTC_CHUNK_BYTES - 1;
		span->bytes = 2;
		break;
	case LIE_CHUNK:
		span->chunk = (uint32_t)list->nchunks;
		break;
	case LIE_COUNTS:
		list->nspans = PTC_ARRAY_LEN(list->spans) + 1;
		break;
	case LIE_INLINE:
		span->chunk = PTC_NEAR_INLINE;
		break;
	default:
		break;
	}
}

static int tell(struct ptc_rpc_call *call, const struct ptc_near_list *list, struct ptc_error *err)
{
	size_t nspans = PTC_MIN(list->nspans, PTC_ARRAY_LEN(list->spans));
	struct ptc_rpc_part parts[3] = { { 0 },
					 { .data = list->spans, .len = nspans * sizeof *list->spans },
					 { .data = list->chunks, .len = list->nchunks * sizeof *list->chunks } };
	uint8_t head[32];

	parts[0].data = head;
	parts[0].len =
		ptc_wire_near_head(head, (struct ptc_wire_near){ (uint32_t)list->nspans, (uint32_t)list->nchunks },
				   parts[1].len + parts[2].len);
	return ptc_rpc_call_send(call, parts, 3, err);
}

/* Lies once, and is node 1 from then on. */
static int liar_fetch(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct liar *l = arg;
	struct ptc_near_list *list;
	struct ptc_rpc_message *msg;
	ProtobufCMessage *asked;
	const int lie = l->lie;
	int rc;

	if (atomic_fetch_add(&l->lies, 1))
		return ptc_agent_on_fetch(l->w->nodes[1].agent, call, err);
	rc = ptc_rpc_call_recv(call, &msg, err);
	if (rc == 0)
		rc = ptc_wire_decode(msg, &ptc__v1__fetch_request__descriptor, &asked, err);
	if (rc)
		return rc;
	ptc_rpc_message_done(msg);
	list = ptc_calloc(1, sizeof *list);
	ptc_require(list && ((const Ptc__V1__FetchRequest *)asked)->near);
	places(l, ((const Ptc__V1__FetchRequest *)asked)->boxes[0], list);
	ptc_pb_free(asked);
	make_wrong(list, lie);
	rc = tell(call, list, err);
	ptc_free(list);
	if (!rc && lie == LIE_DIES)
		rc = ptc_error_set(err, PTC_EPEER, "it has died");
	else if (!rc)
		rc = ptc_rpc_call_recv(call, &msg, err); /* until the caller is gone */
	return rc;
}

static int liar_near(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	return ptc_agent_on_near(((struct liar *)arg)->w->nodes[1].agent, call, err);
}

static void liar_up(struct liar *l, struct world *w, int lie)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server_opts opts = { .max_calls = 8 };

	*l = (struct liar){ .w = w, .lie = lie };
	snprintf(l->sock, sizeof(l->sock), "%s/liar.sock", w->dir);
	OK(ptc_rpc_server_new(&opts, &l->server, &err));
	OK(ptc_rpc_server_method(l->server, "/ptc.v1.Peer/Fetch", 1u << PTC_ROLE_NODE, liar_fetch, l, &err));
	OK(ptc_rpc_server_method(l->server, "/ptc.v1.Peer/Near", 1u << PTC_ROLE_NODE, liar_near, l, &err));
	OK(ptc_rpc_server_listen_unix(l->server, l->sock, 0600, true, &err));
	OK(ptc_rpc_server_start(l->server, &err));
	pthread_mutex_lock(&w->lock);
	w->target_override[1] = l->sock;
	pthread_mutex_unlock(&w->lock);
}

static void liar_down(struct liar *l)
{
	pthread_mutex_lock(&l->w->lock);
	l->w->target_override[1] = NULL;
	pthread_mutex_unlock(&l->w->lock);
	ptc_rpc_server_free(l->server, 1000);
}

static void test_liars(void **state)
{
	(void)state;
	for (int lie = 0; lie <= LIE_DIES; lie++) {
		struct ptc_error err = PTC_ERROR_INIT;
		Ptc__V1__PullReply *reply;
		struct liar liar;
		struct move m;

		move_up(&m, 4);
		liar_up(&liar, &m.w, lie);
		if (lie >=
		    NLIES_OF_FILE) { /* as the controller does: what a liar sent is dropped, and it is asked again */
			if (do_pull(&m.w, 0, &m.info, false, &reply, &err) != PTC_EPEER)
				fail_msg("lie %d: %s", lie, err.text);
			assert_non_null(strstr(err.text, "node n1"));
			assert_int_equal(near_failures(&m), 0);
		}
		move_check(&m);
		if (lie < NLIES_OF_FILE && near_failures(&m) != 1)
			fail_msg("lie %d: bytes were taken from memory", lie);
		liar_down(&liar);
		world_down(&m.w);
	}
}

/* ---- readers that take long ---- */

#define SLOW 12 /* the world's servers run 16 calls at a time */

/* Asks node 1 for some rows, as a near node does that then stops reading. */
static struct ptc_rpc_stream *slow_reader(struct move *m, const struct ptc_near_file *file)
{
	int64_t off[2] = { 0, 0 }, ext[2] = { 128, 8192 };
	Ptc__V1__Box box = PTC__V1__BOX__INIT, *boxes[1] = { &box };
	Ptc__V1__Near near = PTC__V1__NEAR__INIT;
	Ptc__V1__FetchRequest q;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_part part = { 0 };
	struct ptc_rpc_message *msg;
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *s;
	ptc_auto_free void *data = NULL;

	ptc__v1__fetch_request__init(&q);
	near.magic = PTC_DIRECT_READ_MAGIC;
	near.dev = file->dev;
	near.ino = file->ino;
	box.item = T_BIG * (1 + NFIELDS);
	box.n_offset = box.n_extent = 2;
	box.offset = off;
	box.extent = ext;
	q.version = PTC_WIRE_VERSION;
	q.uuid = (char *)(uintptr_t)UUID;
	q.generation = 1;
	q.snapshot = 2;
	q.n_boxes = 1;
	q.boxes = boxes;
	q.near = &near;
	OK(ptc_pb_encode(&q.base, &data, &part.len, &err));
	part.data = data;
	OK(world_channel(&m->w, "n1", "n1", true, 0, &channel, &err));
	OK(ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Fetch", 0, NULL, 0, &s, &err));
	OK(ptc_rpc_stream_send(s, &part, 1, &err));
	OK(ptc_rpc_stream_recv(s, &msg, &err));
	assert_non_null(msg);
	ptc_rpc_message_done(msg);
	return s;
}

/* They do not keep others from reading in memory for long, and are not told that anything is wrong. */
static void test_slow_readers(void **state)
{
	const struct ptc_table_key key = { UUID, 1, 2 };
	struct ptc_rpc_stream *slow[SLOW];
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_near_file *file;
	struct ptc_agent *giver;
	struct move m;

	(void)state;
	move_up(&m, 6);
	giver = m.w.nodes[1].agent;
	file = ptc_near_file_get(m.w.nodes[0].agent->near, "n1", "n1", &key);
	assert_non_null(file);
	for (size_t i = 0; i < SLOW; i++)
		slow[i] = slow_reader(&m, file);
	for (int i = 0; atomic_load(&giver->near_calls) && i < 3000; i++)
		usleep(10000);
	assert_int_equal(atomic_load(&giver->near_calls), 0);
	move_check(&m);
	assert_true(near_bytes(&m) > 4096 * 2048);
	for (size_t i = 0; i < SLOW; i++) {
		OK(ptc_rpc_stream_half_close(slow[i], &err));
		OK(ptc_rpc_stream_finish(slow[i], &err));
		ptc_rpc_stream_free(slow[i]);
	}
	ptc_near_file_put(m.w.nodes[0].agent->near, file, false);
	assert_int_equal(near_failures(&m), 0);
	world_down(&m.w);
}

/* ---- who is asked ---- */

static int seqpacket(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	ptc_require(fd >= 0 && !bind(fd, (const struct sockaddr *)&address, sizeof address) && !listen(fd, 4));
	return fd;
}

/* A socket of another user is asked nothing. */
static void test_user(void **state)
{
	const struct ptc_table_key key = { UUID, 1, 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	char dir[] = "/tmp/ptc-near-XXXXXX", path[100];
	struct ptc_near_file file;
	int ready[2], hold[2];
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_non_null(mkdtemp(dir));
	assert_int_equal(chmod(dir, 0777), 0);
	snprintf(path, sizeof path, "%s/s", dir);
	assert_int_equal(pipe(ready) | pipe(hold), 0);
	pid = fork();
	if (!pid) {
		char c;

		if (setuid(65534) || seqpacket(path) < 0 || write(ready[1], "", 1) != 1)
			_exit(1);
		close(hold[1]);
		_exit(read(hold[0], &c, 1) != 0);
	}
	assert_int_equal(read(ready[0], dir, 1), 1);
	assert_int_equal(ptc_near_ask_file(path, &key, &file, &err), PTC_EPERM);
	close(hold[1]);
	waitpid(pid, NULL, 0);
	unlink(path);
	*strrchr(path, '/') = '\0';
	rmdir(path);
}

enum given { GIVEN_NOTHING, GIVEN_PIPE, GIVEN_WRITABLE, GIVEN_DISK, GIVEN_OTHER, GIVEN_TWO, NGIVEN };

struct giver {
	int listener, fd;
	size_t n; /* how often it is given */
	struct ptc_direct_read_reply reply;
};

static void *giver_main(void *arg)
{
	struct giver *g = arg;
	int conn = accept(g->listener, NULL, NULL);
	struct ptc_direct_read_request q;
	struct iovec iov = { &g->reply, sizeof g->reply };
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (g->fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(g->n * sizeof(int));
		c = &control.align;
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(g->n * sizeof(int));
		for (size_t i = 0; i < g->n; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &g->fd, sizeof(int));
	}
	ptc_require(recv(conn, &q, sizeof q, 0) == (ssize_t)sizeof q);
	ptc_require(sendmsg(conn, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof g->reply);
	close(conn);
	return NULL;
}

static int open_files(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Whatever is given that is no file of chunks in memory, for reading only, is refused, and nothing of it is kept. */
static void test_given(void **state)
{
	const struct ptc_table_key key = { UUID, 1, 1 };
	char path[100], file_path[100];

	(void)state;
	snprintf(path, sizeof path, "%s/s", getenv("TMPDIR"));
	snprintf(file_path, sizeof file_path, "%s/f", getenv("TMPDIR"));
	for (int given = 0; given < NGIVEN; given++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_near_file file = { .fd = -1 };
		struct giver g = { .fd = -1,
				   .n = 1 + (given == GIVEN_TWO),
				   .reply = { .magic = PTC_DIRECT_READ_MAGIC } };
		int ends[2] = { -1, -1 }, before;
		struct stat st;
		pthread_t thread;

		if (given == GIVEN_PIPE)
			assert_int_equal(pipe(ends), 0);
		g.fd = given == GIVEN_PIPE   ? dup(ends[0])
		       : given == GIVEN_DISK ? open("/proc/self/maps", O_RDONLY)
		       : given == GIVEN_NOTHING
			       ? -1
			       : open(file_path, O_CREAT | (given == GIVEN_WRITABLE ? O_RDWR : O_RDONLY), 0600);
		if (g.fd >= 0)
			assert_int_equal(fstat(g.fd, &st), 0);
		g.reply.dev = g.fd >= 0 ? st.st_dev : 0;
		g.reply.ino = g.fd >= 0 ? st.st_ino + (given == GIVEN_OTHER) : 0;
		g.listener = seqpacket(path);
		before = open_files();
		assert_int_equal(pthread_create(&thread, NULL, giver_main, &g), 0);
		assert_int_equal(ptc_near_ask_file(path, &key, &file, &err), PTC_EPEER);
		assert_int_equal(file.fd, -1);
		pthread_join(thread, NULL);
		assert_int_equal(open_files(), before);
		close(g.listener);
		for (int i = 0; i < 2; i++)
			if (ends[i] >= 0)
				close(ends[i]);
		if (g.fd >= 0)
			close(g.fd);
		unlink(path);
	}
	unlink(file_path);
}

/* A node of another machine is not near. */
static void test_machine(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char machine[NEAR_MACHINE_MAX], socket[NEAR_SOCKET_BYTES] = "x";
	struct world w;

	(void)state;
	rng = seed + 5;
	world_near = true;
	world_up(&w, 1, false);
	OK(ptc_near_machine(machine, &err));
	OK(ptc_near_ask_machine(control(&w, 0), machine, socket, &err));
	assert_non_null(strstr(socket, "/n0" PTC_DIRECT_READ_SUFFIX));
	machine[0] = machine[0] == '0' ? '1' : '0';
	OK(ptc_near_ask_machine(control(&w, 0), machine, socket, &err));
	assert_string_equal(socket, "");
	world_down(&w);
}

static int run(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_way),     cmocka_unit_test(test_off),          cmocka_unit_test(test_restart),
		cmocka_unit_test(test_liars),   cmocka_unit_test(test_user),         cmocka_unit_test(test_given),
		cmocka_unit_test(test_machine), cmocka_unit_test(test_slow_readers),
	};
	int rc;

	seed = ptc_test_seed();
	ptc_rpc_init();
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return rc;
}

/* Chunks are in memory. Tests run in a process of their own, so what one leaves that fails or aborts is removed. */
int main(void)
{
	char dir[] = "/dev/shm/ptc-near-XXXXXX";
	int status = 1;
	pid_t pid;

	if (!mkdtemp(dir) || setenv("TMPDIR", dir, 1))
		return 1;
	pid = fork();
	if (pid == 0)
		exit(run());
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		status = 1;
	return ptc_sys_remove_tree(dir, "test", NULL) || status != 0;
}
