/* SPDX-License-Identifier: Apache-2.0 */
/* Groups on disk, and adopting the processes that an earlier ptcd has started. A group's file
 * (JOB/groups/GENERATION-INCARNATION) has the description with which the group was started, whether the group was
 * built, and which process folder is which rank. The file is written before a process of the group starts, and before
 * ranks are told their generation. Happy path: write a temporary file, rename it. At start: read each job's groups,
 * adopt the processes, listen; the ranks connect by themselves. Additions of a later version, behind the numbers of
 * processes, are skipped. Failure modes: a file of a version that is not read refuses the start (PTC_EVERSION). A file
 * that does not verify is logged and left out, and its processes, which then belong to no group, are ended. A crash
 * between file and process leaves a slot without a process, which the next start fills. */
#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/group/internal.h"
#include "daemon/workers/process/freeze.h"
#include "daemon/workers/process/priority.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAGIC      UINT64_C(0x3150554f52474350) /* "PCGROUP1" */
#define FILE_VERSION    PTC_VERSION_NUMBER(2u)
#define FILE_OLDEST     2u
#define ORPHAN_GRACE_MS 5000
#define FILE_HEAD       12           /* magic and version */
#define STRING_MAX      (256u << 10) /* an argument or environment variable */
#define STRINGS_MAX     4097         /* as many as a job may have, and its seed */
#define RECOMPUTES      1            /* bits of the byte of what the program has to promise */
#define SCHEDULED       2

/* ---- description ------------------------------------------------------------- */

static void put_list(struct ptc_local_out *o, const char *const *list)
{
	uint32_t n = 0;

	while (list && list[n])
		n++;
	ptc_local_put_u32(o, n);
	for (uint32_t i = 0; i < n; i++)
		ptc_local_put_text(o, list[i]);
}

#define DESC(member, kind, max)     PTC_LOCAL_MEMBER(struct ptc_group_desc, member, kind, max, false)
#define RUN32(type, first, last, n) PTC_LOCAL_RUN(struct ptc_group_##type, first, last, U32, 4, n)
#define RUN64(type, first, last, n) PTC_LOCAL_RUN(struct ptc_group_##type, first, last, U64, 8, n)

static const struct ptc_local_member rank_members[] = { RUN32(rank, rank, cp, 7) };
/* Before the mode, and behind it. */
static const struct ptc_local_member first_members[] = { DESC(key.uuid, ARRAY, 0),
							 RUN64(desc, key.generation, key.incarnation, 2),
							 DESC(job, TEXT, PTC_LOCAL_SHORT_MAX), DESC(uid, U32, 0) };
static const struct ptc_local_member last_members[] = {
	DESC(fast_copy, FLAG, 1),        DESC(snapshot_every, U64, 0), DESC(grace_ms, U32, 0),
	DESC(log_bytes, U64, 0),         DESC(cwd, TEXT, STRING_MAX),  DESC(config, TEXT, PTC_LOCAL_CONFIG_MAX),
	RUN32(desc, degrees, nodes, 12), DESC(rank0_node, ARRAY, 0),   DESC(rank0_address, ARRAY, 0)
};

static void put_desc(struct ptc_local_out *o, const struct ptc_group_desc *d)
{
	struct ptc_group_desc said = *d;

	said.cwd = d->cwd ? d->cwd : "/";
	ptc_local_put_members(o, first_members, PTC_ARRAY_LEN(first_members), d);
	ptc_local_put_u8(o, d->mode == PTC_MODE_REBUILD);
	ptc_local_put_members(o, last_members, PTC_ARRAY_LEN(last_members), &said);
	put_list(o, d->argv);
	put_list(o, d->env);
	ptc_local_put_u32(o, (uint32_t)d->nranks);
	for (size_t i = 0; i < d->nranks; i++)
		ptc_local_put_members(o, rank_members, PTC_ARRAY_LEN(rank_members), &d->ranks[i]);
}

static const char **get_list(struct ptc_local_in *in)
{
	uint32_t n = ptc_local_get_u32(in);
	const char **list;

	if (in->bad || n > STRINGS_MAX || !(list = ptc_calloc(n + 1, sizeof *list))) {
		in->bad = true;
		return NULL;
	}
	for (uint32_t i = 0; i < n; i++)
		list[i] = ptc_local_get_text(in, STRING_MAX);
	return list;
}

static void get_ranks(struct ptc_local_in *in, struct group *g)
{
	uint32_t n = ptc_local_get_u32(in);

	if (in->bad || !n || n > WORKERS_PROCESSES_MAX / 2) {
		in->bad = true;
		return;
	}
	g->ranks = ptc_calloc(n, sizeof *g->ranks);
	g->slots = ptc_calloc(n, sizeof *g->slots);
	if (!g->ranks || !g->slots) {
		in->bad = true;
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		ptc_local_get_members(in, rank_members, PTC_ARRAY_LEN(rank_members), &g->ranks[i]);
		g->slots[i].rank = g->ranks[i];
	}
	g->desc.ranks = g->ranks;
	g->desc.nranks = n;
}

static void get_desc(struct ptc_local_in *in, struct group *g)
{
	struct ptc_group_desc *d = &g->desc;

	ptc_local_get_members(in, first_members, PTC_ARRAY_LEN(first_members), d);
	d->mode = ptc_local_get_u8(in) ? PTC_MODE_REBUILD : PTC_MODE_RESTART;
	ptc_local_get_members(in, last_members, PTC_ARRAY_LEN(last_members), d);
	g->argv = get_list(in);
	g->env = get_list(in);
	d->argv = g->argv;
	d->env = g->env;
	get_ranks(in, g);
}

/* Takes bytes; the description begins after `skip` of them. */
static int from_bytes(uint8_t *bytes, size_t len, size_t skip, struct ptc_local_in *in, struct group **ret,
		      struct ptc_error *err)
{
	struct group *g = ptc_calloc(1, sizeof *g);

	if (!g) {
		ptc_free(bytes);
		return ptc_nomem(err);
	}
	g->refs = 1;
	g->bytes = bytes;
	g->armed = PTC_LOCAL_NO_STOP;
	*in = (struct ptc_local_in){ .p = bytes + skip, .end = bytes + len };
	get_desc(in, g);
	if (in->bad || !g->desc.argv[0]) {
		ptc_group_free(g);
		return ptc_error_set(err, PTC_EINVAL, "the description of a group of ranks is not valid, or too large");
	}
	*ret = g;
	return 0;
}

int ptc_group_new(const struct ptc_group_desc *desc, struct group **ret, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct ptc_local_in in;
	int rc;

	put_desc(&out, desc);
	if (out.failed) {
		ptc_free(out.data);
		return ptc_nomem(err);
	}
	rc = from_bytes(out.data, out.len, 0, &in, ret, err);
	if (rc == 0) {
		(*ret)->desc.share_devices = desc->share_devices;
		(*ret)->desc.standby_ms = desc->standby_ms;
		(*ret)->desc.recomputes = desc->recomputes;
		(*ret)->desc.scheduled = desc->scheduled;
	}
	return rc;
}

/* ---- files ------------------------------------------------------------------- */

static char *group_path(const struct group *g)
{
	return ptc_asprintf("%s/groups/%llu-%llu", g->job->dir, (unsigned long long)g->desc.key.generation,
			    (unsigned long long)g->desc.key.incarnation);
}

int ptc_group_save(const struct group *g, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	ptc_auto_free char *path = group_path(g);
	int rc;

	ptc_local_put_u64(&out, FILE_MAGIC);
	ptc_local_put_u32(&out, FILE_VERSION);
	put_desc(&out, &g->desc);
	ptc_local_put_u8(&out, g->built);
	ptc_local_put_u8(&out, g->ending);
	ptc_local_put_u8(&out, g->dropping);
	ptc_local_put_u64(&out, g->start_step);
	ptc_local_put_u8(&out, g->has_state);
	for (size_t i = 0; i < g->desc.nranks; i++)
		ptc_local_put_u32(&out, g->slots[i].number);
	ptc_local_put_u8(&out, g->desc.share_devices);
	ptc_local_put_u8(&out, (uint8_t)(g->desc.recomputes * RECOMPUTES | g->desc.scheduled * SCHEDULED));
#if PTC_VERSION_RAISED
	ptc_local_put_u64(&out, PTC_VERSION_ADDED);
#endif
	if (!out.failed)
		ptc_local_put_u64(&out, ptc_checksum(out.data, out.len));
	if (!path || out.failed)
		rc = ptc_nomem(err);
	else
		rc = ptc_sys_write_file(path, out.data, out.len, 0600, "workers.group", err);
	ptc_free(out.data);
	return rc;
}

static void unsave(const struct group *g)
{
	ptc_auto_free char *path = group_path(g);
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_rendezvous_unsave(g); /* first: without its group nobody would look for it */
	if (path && ptc_sys_unlink(path, "workers.group-gone", &err))
		ptc_warn("workers", "%s", err.text); /* found again at the next start, and dropped then */
}

struct ptc_process_label ptc_group_label(const struct group *g, size_t slot)
{
	return (struct ptc_process_label){ .rank = g->slots[slot].rank.rank,
					   .world = g->desc.world,
					   .generation = g->desc.key.generation,
					   .incarnation = g->desc.key.incarnation,
					   .since_ms = ptc_sys_realtime_ms() };
}

void ptc_group_remove_locked(struct ptc_workers *w, struct group *g)
{
	struct group **at = &g->job->groups;

	if (g->removed)
		return;
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->slots[i].worker)
			ptc_worker_detach_locked(g->slots[i].worker);
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	g->removed = true;
	unsave(g);
	ptc_group_unref_locked(g);
	ptc_workers_changed_locked(w);
}

int ptc_group_load(const void *data, size_t len, struct group **ret, struct ptc_error *err)
{
	struct ptc_local_in in = { .p = data, .end = (const uint8_t *)data + len };
	uint64_t magic = ptc_local_get_u64(&in), sum;
	uint32_t version = ptc_local_get_u32(&in);
	struct group *g = NULL;
	uint8_t *copy, promises;
	int rc;

	if (in.bad || magic != FILE_MAGIC || len < FILE_HEAD + sizeof sum)
		return ptc_error_set(err, PTC_ECORRUPT, "this is no file of a group of ranks");
	if (!ptc_version_reads(version, FILE_OLDEST, FILE_VERSION))
		return ptc_error_set(err, PTC_EVERSION,
				     "the file of a group of ranks has version %u; this ptcd reads %u to %u", version,
				     FILE_OLDEST, FILE_VERSION + 1);
	memcpy(&sum, (const uint8_t *)data + len - sizeof sum, sizeof sum);
	if (sum != ptc_checksum(data, len - sizeof sum))
		return ptc_error_set(err, PTC_ECORRUPT, "the checksum differs");
	copy = ptc_malloc(len);
	if (!copy)
		return ptc_nomem(err);
	memcpy(copy, data, len);
	rc = from_bytes(copy, len - sizeof sum, FILE_HEAD, &in, &g, err);
	if (rc)
		return rc;
	g->started = true;
	g->built = ptc_local_get_u8(&in);
	g->ending = ptc_local_get_u8(&in);
	g->dropping = ptc_local_get_u8(&in);
	g->start_step = ptc_local_get_u64(&in);
	g->has_state = ptc_local_get_u8(&in);
	for (size_t i = 0; i < g->desc.nranks; i++)
		g->slots[i].number = ptc_local_get_u32(&in);
	/* An older ptcd did not say. */
	g->desc.share_devices = in.p == in.end || ptc_local_get_u8(&in);
	promises = in.p == in.end ? 0 : ptc_local_get_u8(&in);
	g->desc.recomputes = promises & RECOMPUTES;
	g->desc.scheduled = promises & SCHEDULED;
	if (in.bad) {
		ptc_group_free(g);
		return ptc_error_set(err, PTC_ECORRUPT, "the file of a group of ranks ends early");
	}
	*ret = g;
	return 0;
}

/* ---- at start ----------------------------------------------------------------- */

typedef int (*each_fn)(struct ptc_workers *w, const char *path, const char *name, void *arg, struct ptc_error *err);

static int each(struct ptc_workers *w, const char *dir, each_fn fn, void *arg, struct ptc_error *err)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	int rc = 0;

	if (!d)
		return errno == ENOENT || errno == ENOTDIR ? 0 : ptc_error_errno(err, errno, "cannot read %s", dir);
	while (!rc && (entry = readdir(d))) {
		ptc_auto_free char *path = NULL;

		if (entry->d_name[0] == '.')
			continue;
		path = ptc_asprintf("%s/%s", dir, entry->d_name);
		rc = path ? fn(w, path, entry->d_name, arg, err) : ptc_nomem(err);
	}
	closedir(d);
	return rc;
}

static int load_group(struct ptc_workers *w, const char *path, const char *name, void *arg, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	ptc_auto_free char *data = NULL;
	struct group *g, **list = arg;
	size_t len;
	int rc;

	(void)w;
	if (strstr(name, ".tmp"))
		return ptc_sys_unlink(path, "workers.group-gone", err);
	if (strstr(name, PTC_RENDEZVOUS))
		return 0; /* read with its group */
	rc = ptc_sys_read_file(path, WORKERS_FILE_MAX, &data, &len, &why);
	if (!rc)
		rc = ptc_group_load(data, len, &g, &why);
	if (rc == PTC_ENOMEM)
		return ptc_nomem(err);
	if (rc == PTC_EVERSION) /* of an upgrade, or back from one: the ranks are whole, and are not ours to end */
		return ptc_error_set(err, rc,
				     "%s: %s; its ranks still run: start a ptcd next to the one that wrote it, or stop "
				     "the job with that one first",
				     path, why.text);
	if (rc) {
		ptc_warn("workers", "%s: %s; its processes are ended", path, why.text);
		return 0;
	}
	g->next = *list;
	*list = g;
	return 0;
}

static int adopt_process(struct ptc_workers *w, const char *path, const char *name, void *arg, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_process p;
	struct job *job = arg;
	unsigned number = (unsigned)strtoul(name, NULL, 10);
	struct worker *k;
	int rc;

	(void)w;
	if (!number)
		return 0;
	if (number > job->last_number)
		job->last_number = number;
	rc = ptc_process_adopt(path, &p, &why);
	if (rc) {
		ptc_debug("workers", "%s: %s", path, why.text);
		/* Began nothing: a crash before the program ran. */
		return rc == PTC_ENOTFOUND ? ptc_sys_remove_tree(path, "workers.process-gone", err) : 0;
	}
	k = ptc_worker_new_locked(job, number);
	if (!k) {
		ptc_process_done(&p);
		return ptc_nomem(err);
	}
	k->process = p;
	/* If no slot has it (slot_workers), nobody knows any more where it has run. */
	k->ran = true;
	k->device = UINT32_MAX;
	ptc_process_thaw_left(&p);
	k->low = ptc_priority_is_low(&p);
	ptc_process_label_read(path, &k->label);
	k->ended = p.pidfd < 0;
	if (k->ended)
		k->status_known = ptc_process_status(&k->process, &k->status);
	if (k->ended && *k->process.cgroup)
		(void)ptc_cgroup_remove(k->process.cgroup, WORKERS_CGROUP_MS, NULL);
	return 0;
}

static void slot_workers(struct job *job)
{
	for (struct group *g = job->groups; g; g = g->next)
		for (size_t i = 0; i < g->desc.nranks; i++)
			for (struct worker *k = g->slots[i].number ? job->workers : NULL; k; k = k->next) {
				if (k->number != g->slots[i].number || k->group)
					continue;
				k->group = g;
				k->slot = i;
				k->ran = g->built;
				k->device = g->ranks[i].device;
				if (!k->label.incarnation) /* of a ptcd that wrote none */
					k->label = ptc_group_label(g, i);
				g->slots[i].worker = k;
			}
}

static void free_list(struct group *g)
{
	while (g) {
		struct group *next = g->next;

		ptc_group_free(g);
		g = next;
	}
}

/* Ranks that were lost while nobody watched. */
static void report_lost(struct ptc_workers *w, struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks; i++) {
		const struct worker *k = g->slots[i].worker;

		if (k && k->ended)
			g->slots[i].exited = true;
		if (g->built && !g->ending && (!k || k->ended))
			ptc_group_failed_locked(w, g, k, i, k ? NULL : "its process is not known any more");
	}
}

static uid_t owner_of(const char *path)
{
	ptc_auto_free char *socket = ptc_asprintf("%s/s", path);
	struct stat st;

	return socket && stat(socket, &st) == 0 ? st.st_uid : geteuid();
}

static int adopt_job(struct ptc_workers *w, const char *path, const char *name, void *arg, struct ptc_error *err)
{
	ptc_auto_free char *groups = ptc_asprintf("%s/groups", path);
	ptc_auto_free char *processes = ptc_asprintf("%s/processes", path);
	struct group *list = NULL;
	struct stat st;
	struct job *job;
	int rc;

	(void)arg;
	if (!groups || !processes)
		return ptc_nomem(err);
	if (strlen(name) != 36 || stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
		return 0;
	rc = each(w, groups, load_group, &list, err);
	if (!rc)
		rc = ptc_workers_job_make_locked(w, name, list ? list->desc.uid : owner_of(path), &job, err);
	if (rc) {
		free_list(list);
		return rc;
	}
	job->groups = list;
	for (struct group *g = list; g; g = g->next) {
		g->job = job;
		job->held++;
		job->shares = g->desc.share_devices;
		ptc_rendezvous_load(g);
	}
	rc = each(w, processes, adopt_process, job, err);
	slot_workers(job);
	for (struct group *g = list; g && !rc; g = g->next)
		report_lost(w, g);
	/* Without any group, what they are for is not known any more. Nor is it of one that waited without a rank, for
	 * that is not written down: it has nothing to lose. */
	for (struct worker *k = job->workers; k; k = k->next)
		if (!list || (!k->group && !k->label.incarnation))
			ptc_worker_want_exit_locked(w, k, ORPHAN_GRACE_MS);
	return rc;
}

int ptc_workers_adopt(struct ptc_workers *w, struct ptc_error *err)
{
	int rc = each(w, w->dir, adopt_job, NULL, err);

	if (!rc)
		ptc_cgroup_remove_left(w->cgroup, WORKERS_CGROUP_MS);
	return rc;
}

/* ---- another ptcd's folder ------------------------------------------------------ */

static int first_running(struct ptc_workers *w, const char *path, const char *name, void *arg, struct ptc_error *err)
{
	struct ptc_process p;
	pid_t *pid = arg;

	(void)w;
	(void)name;
	(void)err;
	if (*pid || ptc_process_adopt(path, &p, NULL) != 0)
		return 0; /* began nothing */
	if (p.pidfd >= 0)
		*pid = p.pid;
	ptc_process_done(&p);
	return 0;
}

static int running_of_job(struct ptc_workers *w, const char *path, const char *name, void *arg, struct ptc_error *err)
{
	ptc_auto_free char *processes = ptc_asprintf("%s/processes", path);

	(void)name;
	return processes ? each(w, processes, first_running, arg, err) : ptc_nomem(err);
}

int ptc_workers_running(const char *dir, pid_t *ret_pid, struct ptc_error *err)
{
	pid_t pid = 0;
	int rc = each(NULL, dir, running_of_job, &pid, err);

	if (!rc)
		*ret_pid = pid;
	return rc;
}
