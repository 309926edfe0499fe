/* SPDX-License-Identifier: Apache-2.0 */
/* Each call of ptc.h used in a way it forbids: refused with a line that says why, and the client still works
 * afterwards. */
#include "daemon/workers/test_rank.h"
#include "ptc/ptc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
static ptc_client *c;

static void is(int line, const char *call, int got, int want, const char *text)
{
	if (got == want && (!text || strstr(ptc_error_text(c), text)))
		return;
	printf("misuse: line %d: %s is %d (%s), not %d (%s)\n", line, call, got, ptc_error_text(c), want,
	       text ? text : "");
	fflush(stdout);
	failures++;
}
#define IS(call, want, text) is(__LINE__, #call, call, want, text)

static double memory[64];

static struct ptc_tensor_desc one(const char *name)
{
	static const int64_t shape[] = { 8, 8 };
	static const struct ptc_shard_box box = { .offset = { 0, 0 }, .extent = { 8, 8 } };

	return (struct ptc_tensor_desc){ .size = sizeof(struct ptc_tensor_desc),
					 .name = name,
					 .dtype = "F64",
					 .ndim = 2,
					 .shape = shape,
					 .boxes = &box,
					 .nboxes = 1,
					 .data = memory };
}

#define BAD(text, ...)                                                                                                 \
	do {                                                                                                           \
		struct ptc_tensor_desc d = one("bad");                                                                 \
		__VA_ARGS__;                                                                                           \
		IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, text);                                                    \
	} while (0)

static void bad_descs(void)
{
	static const int64_t negative[] = { 8, -8 }, huge[] = { INT64_MAX, 8 };
	struct ptc_shard_box b = { .offset = { 0, 0 }, .extent = { 8, 8 } };
	struct ptc_shard_box two[2] = { { .extent = { 8, 4 } }, { .offset = { 7, 3 }, .extent = { 1, 1 } } };
	char name[2000];

	memset(name, 'x', sizeof name);
	name[sizeof name - 1] = '\0';
	BAD("size", d.size = 8);
	BAD("name", d.name = NULL);
	BAD("empty", d.name = "");
	BAD("1023", d.name = name);
	BAD("':'", d.name = "a:b");
	BAD("..", d.name = "a..b");
	BAD("control", d.name = "a\nb");
	BAD("field", d.field = "a b");
	BAD("field", d.field = "");
	BAD("dtype", d.dtype = "F33");
	BAD("dtype", d.dtype = "F4");
	BAD("8 dims", d.ndim = 9);
	BAD("NULL", d.shape = NULL);
	BAD("NULL", d.boxes = NULL);
	BAD("negative", d.shape = negative);
	BAD("2^63", d.shape = huge);
	BAD("flags", d.flags = 64);
	BAD("inside", b.offset[0] = 1; d.boxes = &b);
	BAD("inside", b.offset[0] = -1; d.boxes = &b);
	b.offset[0] = 0;
	BAD("strides", b.stride[0] = 8; b.stride[1] = 8; d.boxes = &b);
	BAD("strides", b.stride[0] = -64; b.stride[1] = 8; d.boxes = &b);
	BAD("strides", b.stride[0] = 64; b.stride[1] = 4; d.boxes = &b);
	BAD("memory", b.stride[0] = INT64_MAX; b.stride[1] = 8; d.boxes = &b);
	b.stride[0] = b.stride[1] = 0;
	BAD("memory", b.data_offset = UINT64_MAX - 4; d.boxes = &b);
	BAD("overlap", d.boxes = two; d.nboxes = 2);
	BAD("scalar", d.ndim = 0; d.boxes = two; d.nboxes = 2);
	BAD("1024", d.nboxes = 2000);
	IS(ptc_tensor_declare(c, NULL), PTC_R_INVALID, "NULL");
}

static void before_next(void)
{
	struct ptc_tensor_desc d = one("w");
	uint64_t position;
	uint32_t stages;
	size_t len;

	IS(ptc_declared(NULL), PTC_R_INVALID, NULL);
	IS(ptc_declared(c), PTC_R_INVALID, "ptc_next");
	IS(ptc_recompute(NULL, 0), PTC_R_INVALID, NULL);
	IS(ptc_recompute(c, 0), PTC_R_INVALID, "ptc_next");
	IS(ptc_schedule(NULL, &stages), PTC_R_INVALID, NULL);
	IS(ptc_schedule(c, &stages), PTC_R_INVALID, "ptc_next");
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "ptc_next");
	IS(ptc_restore(c), PTC_R_INVALID, "ptc_next");
	IS(ptc_boundary(c, 0), PTC_R_INVALID, "ptc_restore");
	IS(ptc_stream(c, NULL), PTC_R_INVALID, "generation");
	IS(ptc_finish(c, 0), PTC_R_INVALID, "ptc_restore");
	IS(ptc_blob_set(c, "b", PTC_BLOB_JOB, "x", 1), PTC_R_INVALID, "ptc_next");
	IS(ptc_blob_get(c, "b", PTC_BLOB_JOB, NULL, 0, &len), PTC_R_INVALID, "ptc_next");
	IS(ptc_cursor_set(c, "b", 1, NULL), PTC_R_INVALID, "ptc_next");
	IS(ptc_cursor_get(c, "b", &position, NULL, 0), PTC_R_INVALID, "ptc_next");
	IS(ptc_rendezvous_put(c, "k", "v", 1), PTC_R_INVALID, "ptc_next");
	IS(ptc_rendezvous_get(c, "k", NULL, 0, &len, 1), PTC_R_INVALID, "ptc_next");
	IS(ptc_next(c, NULL), PTC_R_INVALID, "NULL");
	IS(ptc_next(c, &(struct ptc_generation){ 0 }), PTC_R_INVALID, "size");
	ptc_update_begin(c); /* nothing to say, and no harm */
}

/* Memory that comes after the declaration. */
static void later(void)
{
	static const int64_t other[] = { 8, 9 };
	static const struct ptc_shard_box less = { .offset = { 0, 0 }, .extent = { 8, 7 } };
	struct ptc_tensor_desc d = one("later"), none = one("none");

	d.data = NULL;
	IS(ptc_tensor_declare(c, &d), 0, NULL);
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "declared twice");
	IS(ptc_restore(c), PTC_R_INVALID, "\"later\" was declared without data");
	none.nboxes = 0;
	none.data = NULL;
	IS(ptc_tensor_declare(c, &none), 0, NULL); /* nothing of it is here, so it needs no memory */
	IS(ptc_declared(c), 0, NULL);
	IS(ptc_declared(c), PTC_R_INVALID, "called already");
	d.data = memory;
	d.dtype = "I64";
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "of another dtype before");
	d.dtype = "F64";
	d.shape = other;
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "of another shape before");
	d.shape = one("later").shape;
	d.boxes = &less;
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "with other boxes before");
	d.boxes = one("later").boxes;
	d.flags = PTC_TENSOR_TIED;
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "with other flags before");
	d.flags = 0;
	IS(ptc_tensor_declare(c, &d), 0, NULL);
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "declared twice");
	d.name = "new";
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "was not declared before ptc_declared");
}

/* What the configuration says of the program: recompute=none/full, schedule=zb1p, vpp=3, and micro_steps=1x3:1x2 of
 * batches of 10 by 2. */
static void configured(void)
{
	struct ptc_sampling s = { sizeof s, 100, 1, 10, 2, 2, 1, NULL };
	uint64_t ids[5];
	float weights[5];
	uint32_t stages = 0;

	IS(ptc_schedule(c, NULL), PTC_R_INVALID, "ret_stages is NULL");
	IS(ptc_schedule(c, &stages), 3, NULL);
	IS((int)stages, 3, NULL);
	IS(ptc_recompute(c, 0), 0, NULL);
	IS(ptc_recompute(c, 1), 2, NULL);
	IS(ptc_recompute(c, 5), 0, NULL); /* as the first */
	IS((int)ptc_rank_micro_steps(&s, 0), 3, NULL);
	IS((int)ptc_rank_micro_steps(&s, 1), 2, NULL);
	s.size = offsetof(struct ptc_sampling, config); /* as a program compiled before there was one */
	IS((int)ptc_rank_micro_steps(&s, 1), 2, NULL);
	s.size = sizeof s;
	s.config = "";
	IS((int)ptc_rank_micro_steps(&s, 1), 3, NULL);
	s.config = NULL;
	s.micro_batch = 5;
	IS((int)ptc_micro_steps(&s), 0, NULL);
	IS(ptc_micro_batch(&s, 0, 0, 0, ids, weights), PTC_R_INVALID, NULL);
	s.global_batch = 20; /* another one than the generation's */
	IS((int)ptc_micro_steps(&s), 2, NULL);
}

static void building(void)
{
	static uint8_t big[PTC_BLOB_MAX + 1];
	char key[400], buf[8];
	struct ptc_tensor_desc d = one("w");
	size_t len;

	memset(key, 'k', sizeof key);
	key[sizeof key - 1] = '\0';
	IS(ptc_boundary(c, 0), PTC_R_INVALID, "ptc_restore");
	configured();
	bad_descs();
	IS(ptc_stream(c, NULL), 0, NULL); /* there is no driver here */
	IS(ptc_pool_alloc(10, 0, NULL) != NULL, 0, NULL);
	ptc_pool_free(NULL, 10, 0, NULL);
	IS(ptc_tensor_declare(c, &d), 0, NULL);
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "twice");
	d.field = "exp_avg";
	IS(ptc_tensor_declare(c, &d), 0, NULL);
	later();
	IS(ptc_rendezvous_put(c, key, "v", 1), PTC_R_INVALID, "255");
	IS(ptc_rendezvous_put(c, NULL, "v", 1), PTC_R_INVALID, "NULL");
	IS(ptc_rendezvous_put(c, "k", NULL, 1), PTC_R_INVALID, "NULL");
	IS(ptc_rendezvous_put(c, "k", big, 5000), PTC_R_LIMIT, "4096");
	IS(ptc_rendezvous_put(c, "k", "value", 5), 0, NULL);
	IS(ptc_rendezvous_put(c, "k", "value", 5), 0, NULL);
	IS(ptc_rendezvous_put(c, "k", "other", 5), PTC_R_REFUSED, "another value");
	IS(ptc_rendezvous_get(c, "nobody", buf, sizeof buf, &len, 20), PTC_R_TIMEOUT, "nobody");
	IS(ptc_rendezvous_get(c, "k", buf, 2, &len, 10000), PTC_R_LIMIT, "5 bytes");
	IS((int)len, 5, NULL);
	IS(ptc_rendezvous_get(c, "k", NULL, 2, &len, 20), PTC_R_INVALID, "NULL");
	IS(ptc_blob_set(c, key, PTC_BLOB_JOB, "x", 1), PTC_R_INVALID, "255");
	IS(ptc_blob_set(c, "b", (enum ptc_blob_scope)9, "x", 1), PTC_R_INVALID, "scope");
	IS(ptc_blob_set(c, "b", PTC_BLOB_JOB, big, sizeof big), PTC_R_LIMIT, "262144");
	for (int i = 0; i < 64; i++) {
		snprintf(key, sizeof key, "b%d", i);
		IS(ptc_blob_set(c, key, PTC_BLOB_RANK, big, 10), 0, NULL);
		IS(ptc_cursor_set(c, key, 10, "t"), 0, NULL);
	}
	IS(ptc_blob_set(c, "b", PTC_BLOB_RANK, big, 10), PTC_R_LIMIT, "64");
	IS(ptc_cursor_set(c, "b", 1, NULL), PTC_R_LIMIT, "64");
	IS(ptc_cursor_set(c, "", 1, NULL), PTC_R_INVALID, "empty");
	memset(key, 'k', sizeof key - 1);
	IS(ptc_cursor_set(c, "b0", 1, key), PTC_R_LIMIT, "255");
}

static void running(void)
{
	struct ptc_tensor_desc d = one("late");
	uint32_t stages;
	char name[16];

	IS(ptc_restore(c), PTC_R_INVALID, "ptc_restore");
	IS(ptc_declared(c), PTC_R_INVALID, "ptc_restore");
	IS(ptc_recompute(c, 0), PTC_R_INVALID, "ptc_restore");
	IS(ptc_schedule(c, &stages), PTC_R_INVALID, "ptc_restore");
	IS(ptc_tensor_declare(c, &d), PTC_R_INVALID, "ptc_restore");
	IS(ptc_boundary(c, 1), PTC_R_INVALID, "next one is 0");
	IS(ptc_boundary(c, 0), 0, NULL);
	IS(ptc_boundary(c, 0), PTC_R_INVALID, "next one is 1");
	IS(ptc_boundary(c, UINT64_MAX), PTC_R_INVALID, "next one is 1");
	IS(ptc_finish(c, 5), PTC_R_INVALID, "next one is 1");
	ptc_update_begin(c);
	IS(ptc_boundary(c, 1), 0, NULL);
	IS(ptc_report(c, "", 1), PTC_R_INVALID, "31");
	IS(ptc_report(c, "a name that is much longer than it may be", 1), PTC_R_INVALID, "31");
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof name, "r%d", i);
		IS(ptc_report(c, name, i), 0, NULL);
	}
	IS(ptc_report(c, "r3", 1), 0, NULL);
	IS(ptc_report(c, "r8", 1), PTC_R_LIMIT, "8");
}

static void forked(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		failures = 0;
		IS(ptc_boundary(c, 2), PTC_R_INVALID, "forked");
		IS(ptc_report(c, "r0", 1), PTC_R_INVALID, "forked");
		IS(ptc_stream(c, NULL), PTC_R_INVALID, "forked");
		ptc_update_begin(c);
		ptc_close(c);
		_exit(failures ? 3 : 0);
	}
	waitpid(pid, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		printf("misuse: a forked child can use the client, or dies of it\n");
		fflush(stdout);
		failures++;
	}
}

static int refuse(void *arg, uint64_t step)
{
	char why[1000];

	(void)arg;
	memset(why, 'w', sizeof why);
	why[sizeof why - 1] = '\0';
	IS(ptc_stop_refuse(c, NULL), PTC_R_INVALID, "NULL");
	IS(ptc_stop_refuse(c, ""), PTC_R_INVALID, "empty");
	IS(ptc_stop_refuse(c, why), 0, NULL);
	IS(ptc_stop_later(c, NULL), PTC_R_INVALID, "NULL");
	IS(ptc_stop_later(c, ""), PTC_R_INVALID, "empty");
	IS(ptc_stop_holds(c), 1, NULL);
	if (step == 4)
		IS(ptc_stop_later(c, why), 0, NULL); /* there is no later one */
	memcpy(why, "not now", 8);
	if (step == 3)
		IS(ptc_stop_refuse(c, why), 0, NULL);
	return 1;
}

static int refuse_silently(void *arg, uint64_t step)
{
	(void)arg;
	(void)step;
	return 1;
}

/* At the end there is nothing to go on with. */
static void refusing(void)
{
	IS(ptc_on_stop(c, refuse_silently, NULL), 0, NULL);
	IS(ptc_finish(c, 3), PTC_R_REFUSED, "does not say why");
	IS(ptc_on_stop(c, refuse, NULL), 0, NULL);
	IS(ptc_finish(c, 3), PTC_R_REFUSED, "taken: not now");
	IS(ptc_finish(c, 4), PTC_R_REFUSED, "wwwwwwww");
}

int test_rank_misuse(void)
{
	struct ptc_generation gen = { .size = sizeof gen };
	uint64_t step = 0;

	IS(ptc_boundary(NULL, 0), PTC_R_INVALID, "NULL");
	IS(ptc_next(NULL, &gen), PTC_R_INVALID, "NULL");
	IS(ptc_restore(NULL), PTC_R_INVALID, "NULL");
	IS(ptc_stop_refuse(NULL, "x"), PTC_R_INVALID, "NULL");
	IS(ptc_stop_holds(NULL), PTC_R_INVALID, "NULL");
	IS(ptc_start_step(NULL, &step), PTC_R_INVALID, "NULL");
	IS(ptc_stream(NULL, NULL), PTC_R_INVALID, "NULL");
	IS(ptc_open(NULL, NULL), PTC_R_INVALID, "NULL");
	ptc_update_begin(NULL);
	ptc_close(NULL);
	IS(ptc_open(NULL, &c), 0, NULL);
	before_next();
	IS(ptc_next(c, &gen), 1, NULL);
	building();
	IS(ptc_start_step(c, &step), PTC_R_INVALID, "ptc_restore");
	IS(ptc_restore(c), 0, NULL);
	IS(ptc_start_step(c, NULL), PTC_R_INVALID, "NULL");
	IS(ptc_start_step(c, &step), 0, NULL);
	if (step != gen.start_step)
		failures++;
	running();
	forked();
	IS(ptc_boundary(c, 2), 0, NULL);
	refusing();
	ptc_close(c);
	return failures ? 3 : 0;
}
