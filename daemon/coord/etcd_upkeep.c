/* SPDX-License-Identifier: Apache-2.0 */
/* Upkeep of etcd's database: compaction, defragmentation, the alarm of a full database.
 *
 * etcd keeps every revision until it is told to forget it (compaction), and never makes its file smaller by itself
 * (defragmentation). If the file has come to its quota, etcd refuses all writes until somebody disarms an alarm. We
 * compact, defragment and disarm a local etcd. A cluster's operators do this themselves; there we only look
 * (ptc_etcd_size).
 *
 * Happy path: a look every few seconds. If many revisions or bytes have been added since the last compaction, what
 * was there at the previous look is compacted. So a watcher that was cut off for less than a look can resume. Above
 * half of the quota, all revisions are compacted. If much of the file is free, it is rewritten. Nobody is served
 * meanwhile, so this is done when nobody writes; once the file has come to half of its quota, it is done at any time.
 *
 * Failure modes: etcd does not answer (the next look tries again); no room on
 * the disk for the new file (said once); live documents alone fill the quota
 * (the alarm stays: job creation is refused long before, daemon/cluster/quota.h). */
#include "daemon/coord/etcd_i.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys/fault.h"

#include <inttypes.h>
#include <string.h>

#define LOOK_MS       1000
#define COMPACT_MS    5000
#define DEFRAGMENT_MS 20000 /* a file at its quota, mostly free, takes less than two */

#define NUDGES         2
#define MANY_REVISIONS 1000       /* some hundred switches */
#define MANY_BYTES     (16 << 20) /* of history, or of free pages: less is not worth the work */

int ptc_etcd_size(struct ptc_etcd *e, struct ptc_etcd_size *ret_size, struct ptc_error *err)
{
	Ptc__Etcd__StatusRequest req = PTC__ETCD__STATUS_REQUEST__INIT;
	struct ptc_etcd_size s = { 0 };
	ProtobufCMessage *reply;
	const Ptc__Etcd__StatusResponse *r;
	int rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.Maintenance/Status", &req.base,
			       &ptc__etcd__status_response__descriptor, LOOK_MS, &reply, err);

	if (rc)
		return rc;
	r = (const Ptc__Etcd__StatusResponse *)reply;
	s.bytes = r->dbsize > 0 ? (uint64_t)r->dbsize : 0;
	s.used = r->dbsizeinuse > 0 ? PTC_MIN((uint64_t)r->dbsizeinuse, s.bytes) : s.bytes;
	s.revision = r->header ? r->header->revision : 0;
	for (size_t i = 0; i < r->n_errors; i++)
		s.full |= strstr(r->errors[i], "NOSPACE") != NULL;
	ptc_pb_free(reply);
	*ret_size = s;
	return 0;
}

static int compact(struct ptc_etcd *e, int64_t revision, struct ptc_error *err)
{
	Ptc__Etcd__CompactionRequest req = PTC__ETCD__COMPACTION_REQUEST__INIT;
	ProtobufCMessage *reply = NULL;
	int rc;

	if (ptc_fault("etcd.compact.before"))
		return ptc_error_set(err, PTC_EIO, "fault etcd.compact.before");
	req.revision = revision;
	req.physical = true; /* answered once the pages are free */
	rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.KV/Compact", &req.base,
			   &ptc__etcd__compaction_response__descriptor, COMPACT_MS, &reply, err);
	ptc_pb_free(reply);
	if (rc && err && strstr(err->text, "compacted")) /* by itself, further than that */
		rc = 0;
	if (rc == 0 && ptc_fault("etcd.compact.after"))
		return ptc_error_set(err, PTC_EIO, "fault etcd.compact.after");
	return rc;
}

static int defragment(struct ptc_etcd *e, struct ptc_error *err)
{
	Ptc__Etcd__DefragmentRequest req = PTC__ETCD__DEFRAGMENT_REQUEST__INIT;
	ProtobufCMessage *reply = NULL;
	int rc = ptc_etcd_call(e, PTC_ETCD_ONCE, "/etcdserverpb.Maintenance/Defragment", &req.base,
			       &ptc__etcd__defragment_response__descriptor, DEFRAGMENT_MS, &reply, err);

	ptc_pb_free(reply);
	return rc;
}

static int alarm_call(struct ptc_etcd *e, const Ptc__Etcd__AlarmRequest *req, ProtobufCMessage **ret_reply,
		      struct ptc_error *err)
{
	return ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.Maintenance/Alarm", &req->base,
			     &ptc__etcd__alarm_response__descriptor, 0, ret_reply, err);
}

static int disarm(struct ptc_etcd *e, struct ptc_error *err)
{
	Ptc__Etcd__AlarmRequest req = PTC__ETCD__ALARM_REQUEST__INIT;
	ProtobufCMessage *listed, *reply;
	const Ptc__Etcd__AlarmResponse *r;
	int rc = alarm_call(e, &req, &listed, err);

	if (rc)
		return rc;
	r = (const Ptc__Etcd__AlarmResponse *)listed;
	req.action = PTC__ETCD__ALARM_REQUEST__ALARM_ACTION__DEACTIVATE;
	req.alarm = PTC__ETCD__ALARM_TYPE__NOSPACE;
	for (size_t i = 0; rc == 0 && i < r->n_alarms; i++) {
		if (r->alarms[i]->alarm != PTC__ETCD__ALARM_TYPE__NOSPACE)
			continue;
		req.memberid = r->alarms[i]->memberid;
		rc = alarm_call(e, &req, &reply, err);
		if (rc == 0)
			ptc_pb_free(reply);
	}
	ptc_pb_free(listed);
	return rc;
}

/* ---- a local etcd ------------------------------------------------------------------ */

/* What may be forgotten now; 0: nothing. */
static int64_t forget_up_to(const struct ptc_etcd_upkeep *u, const struct ptc_etcd_size *s, uint64_t quota)
{
	if (s->full && s->revision > u->forgotten)
		return s->revision;
	if (s->bytes >= quota / 2 && s->revision > u->forgotten + NUDGES)
		return s->revision;
	if (u->seen > u->forgotten &&
	    (u->seen - u->forgotten >= MANY_REVISIONS || s->used >= u->used_then + MANY_BYTES))
		return u->seen;
	return 0;
}

/* What is in use is as the last writes left it: of a database that takes none nothing is known, and it is tried, again
 * after each delete: once that is forgotten, as only then its pages are free. */
static bool worth_writing_anew(const struct ptc_etcd_upkeep *u, const struct ptc_etcd_size *s, uint64_t quota,
			       bool idle)
{
	const uint64_t unused = s->bytes - s->used;

	if (s->full)
		return u->forgotten > u->rewritten;
	if (unused >= MANY_BYTES && unused >= s->bytes / 2 && idle)
		return true;
	return s->bytes >= quota / 2 && unused >= s->bytes / 4;
}

static void say(struct ptc_etcd_upkeep *u, const char *what, const struct ptc_error *err)
{
	if (strcmp(u->said, err->text) != 0)
		ptc_warn("etcd", "the database cannot be %s: %s", what, err->text);
	memcpy(u->said, err->text, sizeof u->said);
}

static int forget(struct ptc_etcd *e, struct ptc_etcd_upkeep *u, uint64_t quota, struct ptc_etcd_size *s,
		  struct ptc_error *err)
{
	const int64_t to = forget_up_to(u, s, quota);
	int rc;

	if (!to)
		return 0;
	rc = compact(e, to, err);
	if (rc)
		return rc;
	u->forgotten = to;
	u->nudges = s->bytes >= quota / 2 && !s->full ? NUDGES : 0;
	rc = ptc_etcd_size(e, s, err);
	u->used_then = s->used;
	return rc;
}

/* Pages that a compaction has freed count as free two writes later; where job creation is refused there may be none for
 * long. */
static void nudge(struct ptc_etcd *e, struct ptc_etcd_upkeep *u)
{
	static const char key[] = "/ptc/upkeep", value[] = "{\"version\":1}";
	Ptc__Etcd__PutRequest req = PTC__ETCD__PUT_REQUEST__INIT;
	ProtobufCMessage *reply = NULL;

	if (u->nudges == 0)
		return;
	u->nudges--;
	req.key = ptc_etcd_bytes(key, strlen(key));
	req.value = ptc_etcd_bytes(value, strlen(value));
	ptc_etcd_call(e, PTC_ETCD_ONCE, "/etcdserverpb.KV/Put", &req.base, &ptc__etcd__put_response__descriptor,
		      LOOK_MS, &reply, NULL);
	ptc_pb_free(reply);
}

static int write_anew(struct ptc_etcd *e, struct ptc_etcd_upkeep *u, uint64_t quota, bool idle, struct ptc_etcd_size *s,
		      struct ptc_error *err)
{
	const uint64_t before = s->bytes;
	int rc;

	if (!worth_writing_anew(u, s, quota, idle))
		return 0;
	u->rewritten = u->forgotten;
	rc = defragment(e, err);
	if (rc == 0)
		rc = ptc_etcd_size(e, s, err);
	if (rc == 0)
		ptc_info("etcd", "database written anew: %" PRIu64 " KiB instead of %" PRIu64 " KiB", s->bytes >> 10,
			 before >> 10);
	return rc;
}

/* The alarm, once there is room again. */
static int take_writes(struct ptc_etcd *e, uint64_t quota, const struct ptc_etcd_size *s, struct ptc_error *err)
{
	int rc;

	if (!s->full || s->bytes + MANY_BYTES / 2 > quota)
		return 0;
	rc = disarm(e, err);
	if (rc == 0)
		ptc_warn("etcd", "the database had come to its quota and took no writes; it does again");
	return rc;
}

bool ptc_etcd_upkeep(struct ptc_etcd *e, struct ptc_etcd_upkeep *u, uint64_t quota)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_etcd_size s;
	bool idle;

	if (ptc_etcd_size(e, &s, NULL) != 0) /* whoever asks it for more will say so */
		return false;
	if (s.revision < u->seen) /* another database */
		*u = (struct ptc_etcd_upkeep){ 0 };
	idle = s.revision == u->seen;
	if (forget(e, u, quota, &s, &err) != 0)
		say(u, "compacted", &err);
	else if (write_anew(e, u, quota, idle, &s, &err) != 0)
		say(u, "written anew", &err);
	else if (take_writes(e, quota, &s, &err) != 0)
		say(u, "opened for writes again", &err);
	else
		u->said[0] = '\0';
	u->seen = s.revision;
	nudge(e, u);
	return s.full || s.bytes >= quota / 2;
}
