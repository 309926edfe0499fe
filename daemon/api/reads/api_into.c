/* SPDX-License-Identifier: Apache-2.0 */
/* The call ReadInto: bytes of a committed generation, from wherever they are, into a file that a reader on this node
 * has handed over (daemon/agent/fill).
 *
 * Happy path: all ranges are gathered in one window, written, and digested while they are in the processor's cache. The
 * digests are of the bytes as they were written, so the reader need not read them again. Failure modes: those of
 * ReadMany and of the file. Bytes of a call that fails may be in the file in part. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/sys/fault.h"
#include "daemon/agent/fill/fill_files.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/api/reads/reads.h"
#include "proto/direct_read.h"

struct into {
	struct ptc_rpc_call *call;
	struct ptc_fill_file *file;
	uint64_t at, bytes; /* where the next byte goes; of all ranges */
	const struct ptc_item_range *range;
	uint64_t got, *digest; /* of it, so far */
};

/* The next bytes of the ranges. */
static int take(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct into *in = arg;
	const uint8_t *from = data;
	int rc = ptc_rpc_call_cancelled(in->call)
			 ? ptc_error_set(err, PTC_ECANCELED, "the reader does not want the bytes any more")
			 : ptc_fill_file_write(in->file, in->at, data, len, err);

	if (rc)
		return rc;
	in->at += len;
	while (len) {
		const size_t n = (size_t)PTC_MIN((uint64_t)len, in->range->length - in->got);

		*in->digest = in->got ? ptc_digest_append(*in->digest, from, n) : ptc_digest_run(from, n);
		in->got += n;
		from += n;
		len -= n;
		if (in->got == in->range->length) {
			in->got = 0;
			in->range++;
			in->digest++;
		}
	}
	return ptc_fault("api.into.written") ? ptc_error_set(err, PTC_EIO, "fault api.into.written") : 0;
}

/* Counts the bytes of all ranges. */
static int count_bytes(struct into *in, const struct ptc_item_range *ranges, size_t n, struct ptc_error *err)
{
	if (!n)
		return ptc_error_set(err, PTC_EINVAL, "the request has no range; ask for at least one");
	for (size_t i = 0; i < n; i++) {
		if (!ranges[i].length || ranges[i].length > PTC_FILL_BYTES - in->bytes)
			return ptc_error_set(err, PTC_EINVAL,
					     "a range is empty, or all of them have more than %u bytes; ask for fewer",
					     PTC_FILL_BYTES);
		in->bytes += ranges[i].length;
	}
	return 0;
}

static int write_all(struct ptc_daemon *d, const Ptc__V1__ReadIntoRequest *req, const struct ptc_read_view *v,
		     struct into *in, uint64_t **ret_digests, struct ptc_error *err)
{
	ptc_auto_free struct ptc_item_range *ranges = NULL;
	int rc = ptc_api_ranges(&PTC_ASKED_RANGES(req), &ranges, err);

	if (rc == 0)
		rc = count_bytes(in, ranges, req->n_items, err);
	if (rc)
		return rc;
	in->digest = *ret_digests = ptc_calloc(req->n_items, sizeof **ret_digests);
	if (!in->digest)
		return ptc_nomem(err);
	in->at = req->at;
	in->range = ranges;
	rc = ptc_fill_file_get(d->fill_files, req->file.data, req->file.len, ptc_api_uid(in->call), req->at, in->bytes,
			       &in->file, err);
	if (rc)
		return rc;
	rc = ptc_agent_gather_many(d->agent, &v->geometry, v->view.meta.uuid, ranges, req->n_items, PTC_FILL_BYTES,
				   take, in, in->call, err);
	ptc_fill_file_put(d->fill_files, in->file);
	return rc;
}

PTC_API_HANDLER(ptc_api_read_into)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ReadIntoRequest *req;
	Ptc__V1__ReadIntoReply reply = PTC__V1__READ_INTO_REPLY__INIT;
	ptc_auto_free uint64_t *digests = NULL;
	struct into in = { .call = call };
	struct ptc_read_view *v;
	int rc = ptc_pb_call_recv(call, &ptc__v1__read_into_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	/* A stranger hears that the job does not exist, whatever else is wrong. */
	rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &v, err);
	if (rc == 0) {
		rc = write_all(d, req, v, &in, &digests, err);
		ptc_read_view_put(v);
	}
	if (rc == 0) {
		reply.version = PTC_WIRE_VERSION;
		reply.digests = digests;
		reply.n_digests = req->n_items;
		rc = ptc_pb_call_send(call, &reply.base, err);
	}
	ptc_pb_free(&req->base);
	return rc;
}
