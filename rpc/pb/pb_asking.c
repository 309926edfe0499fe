/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to many peers at once. Happy path: each is an asynchronous call; the loop copies the answers, and wakes the
 * thread that waits after the last one. It is that thread which reads them, since a reply may be large. Failure modes:
 * pb_asking.h. Who asks has a reference, and so does each call. */
#include "rpc/pb/pb_asking.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <pthread.h>
#include <string.h>

#define MS      INT64_C(1000000)
#define LOOK_MS 100 /* how soon it is seen that the daemon stops */

struct question {
	struct ptc_pb_asking *asking;
	size_t at; /* of its answer */
};

struct ptc_pb_asking {
	struct ptc_rpc_client *client;
	pthread_mutex_t lock; /* below; once it is over, answers are the asker's alone */
	pthread_cond_t cond;
	size_t refs, n, left; /* left: calls without an answer */
	bool over;
	struct question *questions;
	struct ptc_pb_answer answers[];
};

struct ptc_pb_asking *ptc_pb_asking_new(struct ptc_rpc_client *client, size_t most)
{
	struct ptc_pb_asking *a = ptc_calloc(1, sizeof *a + most * sizeof *a->answers);

	if (!a)
		return NULL;
	a->questions = ptc_calloc(most + 1, sizeof *a->questions);
	if (!a->questions) {
		ptc_free(a);
		return NULL;
	}
	ptc_require(!pthread_mutex_init(&a->lock, NULL));
	ptc_cond_init(&a->cond);
	a->client = client;
	a->refs = 1;
	return a;
}

struct ptc_pb_asking *ptc_pb_asking_free(struct ptc_pb_asking *a)
{
	bool last;

	if (!a)
		return NULL;
	pthread_mutex_lock(&a->lock);
	last = --a->refs == 0;
	pthread_mutex_unlock(&a->lock);
	if (!last)
		return NULL;
	for (size_t i = 0; i < a->n; i++)
		ptc_free(a->answers[i].data);
	ptc_free(a->questions);
	pthread_cond_destroy(&a->cond);
	pthread_mutex_destroy(&a->lock);
	ptc_free(a);
	return NULL;
}

static void keep(struct ptc_pb_answer *to, int status, const void *reply, size_t len)
{
	to->there = true;
	to->status = status;
	if (status)
		return;
	to->data = ptc_malloc(len ? len : 1);
	to->status = to->data ? 0 : PTC_ENOMEM;
	to->len = to->data ? len : 0;
	if (to->len)
		memcpy(to->data, reply, len);
}

/* Loop thread. */
static void answered(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	const struct question *q = arg;
	struct ptc_pb_asking *a = q->asking;

	(void)err;
	pthread_mutex_lock(&a->lock);
	if (!a->over)
		keep(&a->answers[q->at], status, reply, len);
	if (--a->left == 0)
		pthread_cond_signal(&a->cond);
	pthread_mutex_unlock(&a->lock);
	ptc_pb_asking_free(a);
}

bool ptc_pb_ask(struct ptc_pb_asking *a, struct ptc_rpc_channel *channel, const char *method,
		const ProtobufCMessage *request, int timeout_ms, size_t of)
{
	ptc_auto_free void *data = NULL;
	struct question *q;
	size_t len = 0;

	if (ptc_pb_encode(request, &data, &len, NULL) != 0)
		return false;
	pthread_mutex_lock(&a->lock);
	q = &a->questions[a->n];
	*q = (struct question){ a, a->n };
	a->answers[a->n++].of = of;
	a->refs++;
	a->left++;
	pthread_mutex_unlock(&a->lock);
	ptc_rpc_unary_async(a->client, channel, method, data, len, timeout_ms, answered, q);
	return true;
}

const struct ptc_pb_answer *ptc_pb_asking_wait(struct ptc_pb_asking *a, int64_t ms, const atomic_bool *stopping,
					       size_t *ret_n)
{
	const int64_t until_ns = ptc_sys_now_ns() + ms * MS;

	pthread_mutex_lock(&a->lock);
	while (a->left && !(stopping && atomic_load(stopping)) && ptc_sys_now_ns() < until_ns)
		(void)ptc_cond_wait_until(&a->cond, &a->lock, PTC_MIN(until_ns, ptc_sys_now_ns() + LOOK_MS * MS));
	a->over = true;
	*ret_n = a->n;
	pthread_mutex_unlock(&a->lock);
	return a->answers;
}
