/* SPDX-License-Identifier: Apache-2.0 */
/* Two peer calls: one reads a rank's log, the other the records of ranks that hung. A log is sent up to its present
 * end. If the caller follows the log, it is sent until its process has ended or has become a rank of another
 * incarnation. A log is cut by punching a hole from its beginning (daemon/workers/process/exec_main.c) while it is
 * read. So bytes that were read are sent only if the hole has not passed them meanwhile; otherwise one line says how
 * many bytes are left out.
 *
 * Failure modes: no such log (PTC_ENOTFOUND), a file that can't be read. */
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/ranks/internal.h"
#include "daemon/workers/evidence/evidence.h"
#include "daemon/workers/group/rank_status.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_TICK_MS    200
#define LOG_READ_BYTES (64u << 10)

struct log {
	struct ptc_agent *agent;
	struct ptc_rpc_call *call;
	ProtobufCMessage *msg; /* req */
	const Ptc__V1__LogRequest *req;
	struct ptc_worker_log of;
	int fd;
	off_t begin, at; /* what there is begins; what comes next */
	off_t end;       /* not followed: where it ended when it was opened */
	bool sent;       /* something, and `last` was its last byte */
	uint8_t last;
	uint8_t *buffer;
};

static int log_failed(const struct log *l, int errnum, struct ptc_error *err)
{
	return ptc_error_errno(err, errnum, "the log of rank %u", l->req->rank);
}

/* To the next whole line from where data begins: a hole ends inside a line. */
static int log_skip(struct log *l, struct ptc_error *err)
{
	ssize_t got = pread(l->fd, l->buffer, LOG_READ_BYTES, l->at);
	uint8_t *end;

	if (got < 0)
		return log_failed(l, errno, err);
	end = memchr(l->buffer, '\n', (size_t)got);
	if (end)
		l->at += end + 1 - l->buffer;
	return 0;
}

/* Opens what the rank writes to, or wrote to. PTC_ENOTFOUND: there is none. */
static int log_open(struct log *l, struct ptc_error *err)
{
	struct stat st;
	int rc = ptc_workers_log(l->agent->env.workers, l->req->uuid, l->req->rank, l->req->incarnation, &l->of, err);

	if (rc)
		return rc;
	l->fd = open(l->of.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (l->fd < 0 || fstat(l->fd, &st))
		return log_failed(l, errno, err);
	if (!S_ISREG(st.st_mode))
		return ptc_error_set(err, PTC_EIO, "the log of rank %u is not a file", l->req->rank);
	l->end = (off_t)PTC_MIN((uint64_t)st.st_size, l->of.end);
	l->begin = l->at = (off_t)ptc_sys_skip_zeros(l->fd, 0);
	if (l->req->fresh && (uint64_t)l->begin < l->of.begin)
		l->begin = l->at = (off_t)l->of.begin;
	else if (l->begin)
		return log_skip(l, err);
	return 0;
}

/* Moves to where the last n lines begin. */
static int log_seek(struct log *l, uint32_t n, struct ptc_error *err)
{
	off_t to = l->end;
	uint64_t lines = 0;

	while (to > l->at) {
		off_t from = PTC_MAX(to - (off_t)LOG_READ_BYTES, l->at);
		ssize_t got = pread(l->fd, l->buffer, (size_t)(to - from), from);

		if (got != to - from)
			return log_failed(l, got < 0 ? errno : EIO, err);
		for (ssize_t i = got; i-- > 0;) {
			if (l->buffer[i] != '\n' || from + i + 1 == l->end || ++lines < n)
				continue;
			l->at = from + i + 1;
			return 0;
		}
		to = from;
	}
	return 0;
}

static int log_put(struct log *l, const void *data, size_t len, struct ptc_error *err)
{
	uint8_t head[16];
	struct ptc_rpc_part parts[2] = {
		{ .data = head, .len = ptc_wire_data_head(head, (uint64_t)len) },
		{ .data = data, .len = len },
	};

	l->sent = true;
	l->last = ((const uint8_t *)data)[len - 1];
	return ptc_rpc_call_send(l->call, parts, 2, err);
}

/* Whether the hole is past `at`, after `got` bytes were read there. Before it has begun to be one, a part of a block is
 * zeroed: the byte that was sent last is zero by then. */
static bool log_punched(const struct log *l)
{
	off_t data = lseek(l->fd, l->at, SEEK_DATA);
	uint8_t byte = 1;

	if (data != l->at)
		return data > l->at || errno == ENXIO;
	if (!l->sent)
		return !l->buffer[0];
	return l->last && l->at && pread(l->fd, &byte, 1, l->at - 1) == 1 && !byte;
}

/* Goes on with the next whole line that is there, and says so. */
static int log_gap(struct log *l, struct ptc_error *err)
{
	const char *newline = l->sent && l->last != '\n' ? "\n" : "";
	off_t from = l->at, to = (off_t)ptc_sys_skip_zeros(l->fd, from);
	char text[160];
	int n, r = 0;

	if (to < from) /* its owner has cut it meanwhile */
		return 0;
	if (to > from) {
		l->at = to;
		r = log_skip(l, err);
	}
	if (r || l->at == from)
		return r;
	n = snprintf(text, sizeof(text), "%sptc: %lld bytes are left out here: the log was cut before they were read\n",
		     newline, (long long)(l->at - from));
	return log_put(l, text, (size_t)n, err);
}

/* As far as the caller takes it. */
static int log_send(struct log *l, uint64_t until, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && (uint64_t)l->at < until && !ptc_rpc_call_full(l->call)) {
		size_t want = (size_t)PTC_MIN(until - (uint64_t)l->at, (uint64_t)LOG_READ_BYTES);
		ssize_t got = pread(l->fd, l->buffer, want, l->at);

		if (got < 0)
			return log_failed(l, errno, err);
		if (!got)
			return 0;
		if (log_punched(l)) {
			off_t at = l->at;

			rc = log_gap(l, err);
			if (rc || l->at != at)
				continue;
		}
		rc = log_put(l, l->buffer, (size_t)got, err);
		l->at += got;
	}
	return rc;
}

static int log_follow(struct log *l, struct ptc_error *err)
{
	struct stat st;
	int rc;

	/* asked first: after that nothing is written any more */
	ptc_workers_log_look(l->agent->env.workers, l->req->uuid, &l->of);
	if (!fstat(l->fd, &st) && st.st_size < l->at) { /* its owner has cut it, as by "> log": all of it is new */
		l->at = 0;
		l->sent = false;
	}
	rc = log_send(l, l->of.end, err);
	if (rc)
		return rc;
	if (ptc_rpc_call_full(l->call))
		ptc_rpc_call_again(l->call, 0);
	else if (!l->of.over)
		ptc_rpc_call_again(l->call, LOG_TICK_MS);
	return 0;
}

static int log_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct log *l = arg;
	int rc;

	if (l->req->follow)
		return log_follow(l, err);
	rc = log_send(l, (uint64_t)l->end, err);
	if (!rc && ptc_rpc_call_full(call))
		ptc_rpc_call_again(call, 0);
	return rc;
}

static void log_free(void *arg)
{
	struct log *l = arg;

	ptc_close(&l->fd);
	ptc_free(l->buffer);
	ptc_pb_free(l->msg);
	ptc_free(l);
}

int ptc_agent_on_log(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct log *l = ptc_calloc(1, sizeof *l);
	int rc;

	if (!l)
		return ptc_nomem(err);
	*l = (struct log){ .agent = arg, .call = call, .fd = -1 };
	rc = ptc_agent_request(call, &ptc__v1__log_request__descriptor, &l->msg, err);
	l->req = (const Ptc__V1__LogRequest *)l->msg;
	if (rc == 0)
		rc = ptc_pb_version(l->req->version, err);
	if (rc == 0)
		rc = ptc_group_workers(arg, err);
	if (!rc && !(l->buffer = ptc_malloc(LOG_READ_BYTES)))
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = log_open(l, err);
	if (!rc && l->req->lines)
		rc = log_seek(l, l->req->lines, err);
	if (rc) {
		log_free(l);
		return rc;
	}
	ptc_rpc_call_follow(call, 0, log_step, l, log_free);
	return 0;
}

/* Ranks have ended since, or nothing was kept: an answer without any. */
int ptc_agent_on_evidence(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__EvidenceReply reply;
	struct ptc_agent *agent = arg;
	struct ptc_evidence found = { 0 };
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__evidence_request__descriptor, &msg, err);
	const Ptc__V1__EvidenceRequest *req = (const Ptc__V1__EvidenceRequest *)msg;

	if (rc == 0)
		rc = ptc_pb_version(req->version, err);
	if (rc == 0)
		rc = ptc_group_workers(agent, err);
	if (rc == 0)
		rc = req->collect
			     ? ptc_evidence_keep(agent->env.workers, req->job, req->why, req->if_stands, &found, err)
			     : ptc_evidence_newest(agent->env.workers, req->job, &found, err);
	ptc__v1__evidence_reply__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	reply.dir = found.dir;
	reply.ranks = found.nranks;
	reply.text.data = (uint8_t *)found.text;
	reply.text.len = found.len;
	if (rc == 0 || rc == PTC_ENOTFOUND)
		rc = ptc_agent_reply(call, &reply.base, err);
	ptc_free(found.text);
	ptc_pb_free(msg);
	return rc;
}
