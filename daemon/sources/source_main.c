/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-source UID: reads one source for ptcd, as that user. Started by ptcd only, with a socket as descriptor 3.
 *
 * Happy path: becomes the user, is told a dataset (its document), opens it, answers requests for samples until the
 * socket is closed. Failure modes: it cannot become the user; the source cannot be opened, or is not what it was when
 * it was added: said in the answer, and the process ends. After each read the process checks whether the source was
 * written meanwhile; if so, it gives none of the bytes. */
#include "base/alloc.h"
#include "base/sys/become.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/sources/frame.h"
#include "formats/dataset/dataset_doc.h"
#include "formats/json.h"
#include "proto/pb.h"
#include "proto/sample_rules.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMORY_BYTES (PTC_SOURCE_NAMES_BYTES + (192u << 20)) /* names of a directory, where they begin, and answers */

/* Before ptcd, which may be spared, and before the ranks: readers get an error, and another one is started. */
static void die_first(void)
{
	ptc_auto_close int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "500", 3) != 3)
		return; /* it lives as long as others */
}

/* ---- one request ---- */

struct answer {
	const struct ptc_source *source;
	const Ptc__V1__SamplesRequest *q;
	Ptc__V1__SamplesReply r;
	size_t cap;
};

static int answer_new(struct answer *a, struct ptc_error *err)
{
	size_t n = a->q->n_samples;

	ptc__v1__samples_reply__init(&a->r);
	a->r.version = PTC_WIRE_VERSION;
	for (size_t i = 0; i < a->q->n_lengths; i++)
		a->cap += a->q->lengths[i];
	a->r.sizes = ptc_calloc(n, sizeof *a->r.sizes);
	a->r.names = a->q->names ? ptc_calloc(n, sizeof *a->r.names) : NULL;
	a->r.data.data = ptc_malloc(PTC_MAX(a->cap, (size_t)1));
	if (!a->r.sizes || !a->r.data.data || (a->q->names && !a->r.names))
		return ptc_nomem(err);
	return 0;
}

static int answer_one(struct answer *a, size_t i, struct ptc_error *err)
{
	uint64_t sample = a->q->samples[i];
	struct ptc_source_sample at;
	size_t len;
	int rc = ptc_source_sample(a->source, sample, &at, err);

	if (rc)
		return rc;
	a->r.sizes[a->r.n_sizes++] = at.length;
	if (a->q->names) {
		const char *name = ptc_source_file(a->source, sample);

		a->r.names[a->r.n_names++] =
			(ProtobufCBinaryData){ .data = (uint8_t *)(uintptr_t)name, .len = strlen(name) };
	}
	len = ptc_samples_part(a->q, i, at.length);
	rc = len ? ptc_source_read(a->source, sample, a->q->offsets[i], a->r.data.data + a->r.data.len, len, err) : 0;
	a->r.data.len += rc ? 0 : len;
	return rc;
}

static int answer(const struct ptc_source *source, const Ptc__V1__SamplesRequest *q, void **ret, size_t *ret_len,
		  struct ptc_error *err)
{
	struct answer a = { .source = source, .q = q };
	int rc = ptc_samples_check(q, err);

	if (!rc && q->names && ptc_source_info(source)->kind != PTC_SOURCE_FILES)
		rc = ptc_error_set(err, PTC_EINVAL, "the samples of this dataset are not files, so they have no names");
	if (!rc)
		rc = answer_new(&a, err);
	for (size_t i = 0; !rc && i < q->n_samples; i++)
		rc = answer_one(&a, i, err);
	if (!rc)
		rc = ptc_source_unchanged(source, err);
	if (!rc)
		rc = ptc_pb_encode(&a.r.base, ret, ret_len, err);
	ptc_free(a.r.sizes);
	ptc_free(a.r.names);
	ptc_free(a.r.data.data);
	return rc;
}

/* ---- the life of the process ---- */

static int open_source(struct ptc_source **ret, struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_malloc(sizeof *doc);
	ptc_auto_free void *json = NULL;
	size_t len;
	int status, rc = doc ? 0 : ptc_nomem(err);

	if (!rc)
		rc = ptc_frame_recv(PTC_SOURCE_FD, PTC_DATASET_DOC_MAX, PTC_FRAME_FOREVER, &status, &json, &len, err);
	if (!rc)
		rc = ptc_dataset_doc_decode(json, len, doc, err);
	return rc ? rc : ptc_dataset_doc_open(doc, ret, err);
}

/* False: nobody asks any more, or there is nothing to be had. */
static bool serve(const struct ptc_source *source)
{
	struct ptc_error err = PTC_ERROR_INIT;
	ptc_auto_free void *data = NULL, *reply = NULL;
	ProtobufCMessage *q = NULL;
	size_t len, reply_len = 0;
	int status,
		rc = ptc_frame_recv(PTC_SOURCE_FD, PTC_SAMPLES_FRAME, PTC_FRAME_FOREVER, &status, &data, &len, &err);

	if (rc)
		return false;
	rc = ptc_pb_decode(&ptc__v1__samples_request__descriptor, data, len, &q, &err);
	if (rc == 0)
		rc = answer(source, (Ptc__V1__SamplesRequest *)q, &reply, &reply_len, &err);
	ptc_pb_free(q);
	if (!rc)
		return !ptc_frame_send(PTC_SOURCE_FD, 0, reply, reply_len, PTC_FRAME_FOREVER, NULL);
	return !ptc_frame_send(PTC_SOURCE_FD, rc, err.text, strlen(err.text), PTC_FRAME_FOREVER, NULL) &&
	       rc == PTC_EINVAL;
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_source *source = NULL;
	int rc;

	ptc_sys_standard_fds();
	if (argc != 2 || !argv[1][0] || argv[1][strspn(argv[1], "0123456789")]) {
		fputs("ptc-source is started by ptcd\n", stderr);
		return 2;
	}
	ptc_json_init();
	ptc_alloc_limit_set(MEMORY_BYTES);
	die_first();
	rc = ptc_become((uid_t)strtoul(argv[1], NULL, 10), &err);
	if (rc == 0)
		rc = open_source(&source, &err);
	if (rc)
		ptc_frame_send(PTC_SOURCE_FD, rc, err.text, strlen(err.text), PTC_FRAME_FOREVER, NULL);
	else
		rc = ptc_frame_send(PTC_SOURCE_FD, 0, NULL, 0, PTC_FRAME_FOREVER, NULL);
	while (!rc && serve(source))
		;
	ptc_source_close(source);
	return rc != 0;
}
