/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the ranks are listed under the lock. The rest needs no lock. Ranks that can tell their stacks are asked
 * for them. Each rank's text is made of the rank's answer and of /proc. Then dumps are read, and the set of files gets
 * its name. Failure modes: evidence.h; a rank that does not answer within ANSWER_MS adds no stacks. */
#include "daemon/workers/evidence/evidence.h"
#include "daemon/workers/evidence/evidence_dumps.h"
#include "daemon/workers/evidence/process_evidence.h"
#include "daemon/workers/state/group_find.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ASKED        SIGURG /* ignored where there is no handler */
#define ANSWER_MS    1500   /* for all ranks together */
#define QUIET_MS     200    /* who has said nothing more for so long has said all */
#define TOLD_BYTES   (256u << 10)
#define RANK_BYTES   (512u << 10)
#define STANDS_MS    3000
#define STANDS_STEPS 10
#define LEFT_S       60 /* longer than a set takes */
#define KERNEL_LOG   "/dev/kmsg"
#define DUMPS        "dumps" /* the file that says what became of dumps */

struct kept_rank {
	uint32_t rank;
	pid_t pid, client; /* of the program; of the process of it that is the rank */
	int pidfd, log;    /* of client; open; -1: none */
	off_t from, to;    /* of the log: when it was asked, and as last seen */
	bool asked;
	uint64_t step;
	bool stepped, whole;
	double stood_s;
	char dump[512]; /* path of its flight recorder's dump; "": none is named */
};
struct keeping {
	struct kept_rank *ranks;
	size_t n, kept; /* kept: with a text */
	uid_t uid;
	char dir[288]; /* the job's `evidence` */
	char tmp[320];
	bool stands;
};

/* ---- which ranks ------------------------------------------------------------------------------ */

/* Where the job says that such dumps go; the rank's number follows. */
static void note_dump(const struct group *g, struct kept_rank *r)
{
	static const char *const names[] = { "TORCH_FR_DUMP_TEMP_FILE=", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=" };

	for (size_t k = 0; k < PTC_ARRAY_LEN(names); k++)
		for (const char *const *e = g->desc.env; e && *e; e++)
			if (!*r->dump && strncmp(*e, names[k], strlen(names[k])) == 0 && (*e)[strlen(names[k])] == '/')
				snprintf(r->dump, sizeof r->dump, "%s%u", *e + strlen(names[k]), r->rank);
}

static void note_rank(struct keeping *k, const struct group *g, size_t slot, int64_t now_ns)
{
	const struct worker *w = g->slots[slot].worker;
	struct kept_rank *r = &k->ranks[k->n];
	char path[sizeof w->process.dir + 8];

	if (!w || w->ended || w->process.pid <= 0 || w->process.pidfd < 0)
		return;
	*r = (struct kept_rank){ .rank = g->slots[slot].rank.rank, .pid = w->process.pid };
	r->client = w->pidfd >= 0 ? w->pid : r->pid;
	r->pidfd = fcntl(w->pidfd >= 0 ? w->pidfd : w->process.pidfd, F_DUPFD_CLOEXEC, 0);
	if (r->pidfd < 0)
		return;
	snprintf(path, sizeof path, "%s/log", w->process.dir);
	r->log = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
	r->stepped = w->page && ptc_local_step(w->page, &r->step);
	r->whole = w->page && ptc_local_all_whole(w->page);
	if (w->seen && w->phase == WORKER_RUNNING)
		r->stood_s = (double)(now_ns - w->seen_ns) / 1e9;
	k->stands |= r->stood_s * 1e3 >= STANDS_MS && r->stood_s >= STANDS_STEPS * w->step_seconds;
	note_dump(g, r);
	k->n++;
}

static size_t count_slots(const struct job *job)
{
	size_t n = 0;

	for (const struct group *g = job->groups; g; g = g->next)
		n += g->desc.nranks;
	return n;
}

static int note_ranks(struct ptc_workers *w, const char *uuid, struct keeping *k, struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns();
	const struct job *job;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job) {
		k->uid = job->uid;
		snprintf(k->dir, sizeof k->dir, "%s/evidence", job->dir);
		k->ranks = ptc_calloc(count_slots(job) + 1, sizeof *k->ranks);
		rc = k->ranks ? 0 : ptc_nomem(err);
	}
	for (const struct group *g = job && !rc ? job->groups : NULL; g; g = g->next)
		for (size_t i = 0; i < g->desc.nranks; i++)
			note_rank(k, g, i, now);
	pthread_mutex_unlock(&w->lock);
	if (!rc && !k->n)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "no rank of job %s lives here", uuid);
	return rc;
}

static void done(struct keeping *k)
{
	for (size_t i = 0; i < k->n; i++) {
		ptc_close(&k->ranks[i].pidfd);
		ptc_close(&k->ranks[i].log);
	}
	ptc_free(k->ranks);
}

/* ---- what they tell themselves ------------------------------------------------------------------ */

static off_t log_end(const struct kept_rank *r)
{
	struct stat st;

	return r->log >= 0 && fstat(r->log, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : 0;
}

static void ask(struct kept_rank *r)
{
	r->from = r->to = log_end(r);
	r->asked =
		ptc_evidence_catches(r->client, ASKED) && syscall(SYS_pidfd_send_signal, r->pidfd, ASKED, NULL, 0) == 0;
}

/* Until nobody has said more for a while, or the time is over. */
static void await_answers(struct keeping *k)
{
	int64_t now = ptc_sys_now_ns(), until = now + ANSWER_MS * INT64_C(1000000), since = now;
	bool waits = false, silent = true;

	for (size_t i = 0; i < k->n; i++)
		waits |= k->ranks[i].asked;
	while (waits && now < until && (silent || now - since < QUIET_MS * INT64_C(1000000))) {
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
		now = ptc_sys_now_ns();
		silent = false;
		for (size_t i = 0; i < k->n; i++) {
			off_t end = log_end(&k->ranks[i]);

			since = end != k->ranks[i].to ? now : since;
			k->ranks[i].to = end;
			silent |= k->ranks[i].asked && end <= k->ranks[i].from;
		}
	}
}

static void put_told(struct ptc_buf *b, const struct kept_rank *r)
{
	size_t want = r->to > r->from ? (size_t)PTC_MIN((uint64_t)(r->to - r->from), (uint64_t)TOLD_BYTES) : 0;
	char *at;
	ssize_t got;

	if (!r->asked) {
		ptc_buf_puts(b, "it has no handler for SIGURG, so it was not asked for its own stacks\n");
		return;
	}
	ptc_buf_puts(b, want ? "it was asked for its stacks (SIGURG), and wrote:\n"
			     : "it was asked for its stacks (SIGURG), and wrote nothing in time\n");
	at = want ? ptc_buf_extend(b, want) : NULL;
	if (!at)
		return;
	got = pread(r->log, at, want, r->from);
	b->len -= want - (size_t)PTC_MAX(got, (ssize_t)0);
	b->data[b->len] = '\0';
	if (b->len && b->data[b->len - 1] != '\n')
		ptc_buf_puts(b, "\n");
	if (r->to - r->from > (off_t)want)
		ptc_buf_puts(b, "the rest is left out; it is in the rank's log\n");
}

/* ---- files --------------------------------------------------------------------------------------- */

static int write_rank(const struct keeping *k, const struct kept_rank *r, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	char name[32];
	int rc;

	ptc_buf_printf(&b, "==== rank %u (pid %d)", r->rank, (int)r->pid);
	if (r->stepped)
		ptc_buf_printf(&b, ", at step %llu for %.1f s, its state is %s", (unsigned long long)r->step,
			       r->stood_s, r->whole ? "whole" : "being changed");
	ptc_buf_puts(&b, " ====\n");
	put_told(&b, r);
	ptc_evidence_process(&b, r->pid, RANK_BYTES);
	snprintf(name, sizeof name, "rank-%u", r->rank);
	rc = ptc_buf_failed(&b) ? ptc_nomem(err) : ptc_evidence_write(k->tmp, k->uid, name, b.data, b.len, err);
	ptc_buf_done(&b);
	return rc;
}

static int write_about(const struct keeping *k, const struct ptc_workers *w, const char *why, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	time_t now = time(NULL);
	char when[32];
	struct tm tm;
	int rc;

	strftime(when, sizeof when, "%FT%TZ", gmtime_r(&now, &tm));
	ptc_buf_printf(&b, "==== node %s, %s: %s ====\n", w->node, when, why);
	ptc_evidence_kernel(&b, KERNEL_LOG);
	rc = ptc_buf_failed(&b) ? ptc_nomem(err) : ptc_evidence_write(k->tmp, k->uid, "about", b.data, b.len, err);
	ptc_buf_done(&b);
	return rc;
}

/* ---- sets ----------------------------------------------------------------------------------------- */

/* The greatest number of a set; 0: there is none. */
static uint64_t newest(const char *dir)
{
	uint64_t most = 0;
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d)))
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
			most = PTC_MAX(most, (uint64_t)strtoull(e->d_name, NULL, 10));
	if (d)
		closedir(d);
	return most;
}

/* A ptcd was killed while it made it. */
static bool left_over(const char *path, const char *name)
{
	struct stat st;

	return strncmp(name, "tmp-", 4) == 0 && stat(path, &st) == 0 && time(NULL) - st.st_mtime > LEFT_S;
}

static void drop_old(const char *dir, uint64_t last)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	char path[PATH_MAX];
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d))) {
		uint64_t n = strtoull(e->d_name, NULL, 10);

		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		if (n ? n + PTC_EVIDENCE_KEPT > last : !left_over(path, e->d_name))
			continue;
		(void)ptc_sys_remove_tree(path, "workers.evidence-gone", &ignored);
	}
	if (d)
		closedir(d);
}

static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER; /* another call would take the same number */

static int begin_set(struct keeping *k, struct ptc_error *err)
{
	int rc = ptc_sys_mkdirs(k->dir, 0711, err);

	if (!rc) {
		pthread_mutex_lock(&naming);
		drop_old(k->dir, newest(k->dir) + 1); /* its room is for this one */
		pthread_mutex_unlock(&naming);
	}
	snprintf(k->tmp, sizeof k->tmp, "%s/tmp-XXXXXX", k->dir);
	if (!rc && !mkdtemp(k->tmp))
		rc = ptc_error_errno(err, errno, "%s", k->tmp);
	if (!rc && chmod(k->tmp, 0711) != 0)
		rc = ptc_error_errno(err, errno, "%s", k->tmp);
	return rc;
}

static int end_set(const struct keeping *k, uint64_t *ret_number, struct ptc_error *err)
{
	char path[sizeof k->dir + 32];
	int rc;

	pthread_mutex_lock(&naming);
	*ret_number = newest(k->dir) + 1;
	snprintf(path, sizeof path, "%s/%llu", k->dir, (unsigned long long)*ret_number);
	rc = ptc_sys_rename_dir(k->tmp, path, "workers.evidence", err);
	if (!rc)
		drop_old(k->dir, *ret_number);
	pthread_mutex_unlock(&naming);
	return rc;
}

/* Half of what is free is for others: logs lie there, too. */
static size_t room_for_dumps(const struct keeping *k)
{
	struct statvfs fs;

	if (statvfs(k->tmp, &fs) != 0)
		return 0;
	return (size_t)PTC_MIN((uint64_t)fs.f_bavail * fs.f_frsize / 2, (uint64_t)PTC_EVIDENCE_DUMPS);
}

/* Nothing here fails the set. */
static void write_dumps(const struct keeping *k)
{
	struct ptc_evidence_dump *dumps = ptc_calloc(k->n, sizeof *dumps);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_buf said = PTC_BUF_INIT;
	size_t n = 0;
	int rc = dumps ? 0 : ptc_nomem(&err);

	for (size_t i = 0; dumps && i < k->n; i++)
		if (*k->ranks[i].dump)
			dumps[n++] = (struct ptc_evidence_dump){ k->ranks[i].rank, k->ranks[i].dump };
	if (n) {
		ptc_evidence_dumps(k->tmp, k->uid, dumps, n, room_for_dumps(k), &said);
		rc = ptc_buf_failed(&said) ? ptc_nomem(&err)
					   : ptc_evidence_write(k->tmp, k->uid, DUMPS, said.data, said.len, &err);
	}
	if (rc)
		ptc_warn("workers", "what became of flight recorders' dumps is not kept: %s", err.text);
	ptc_buf_done(&said);
	ptc_free(dumps);
}

/* A text that cannot be written does not take the others with it. */
static int write_texts(struct keeping *k, struct ptc_error *err)
{
	struct ptc_error failed = PTC_ERROR_INIT;
	int code = 0;

	for (size_t i = 0; i < k->n; i++) {
		int rc = write_rank(k, &k->ranks[i], &failed);

		code = rc ? rc : code;
		k->kept += !rc;
	}
	if (code && !k->kept)
		return ptc_error_set(err, code, "%s", failed.text);
	if (code)
		ptc_warn("workers", "evidence of %zu ranks of %zu is not kept: %s", k->n - k->kept, k->n, failed.text);
	return 0;
}

static int write_set(struct keeping *k, const struct ptc_workers *w, const char *why, struct ptc_error *err)
{
	int rc;

	for (size_t i = 0; i < k->n; i++)
		ask(&k->ranks[i]);
	await_answers(k);
	rc = write_about(k, w, why, err);
	if (!rc)
		rc = write_texts(k, err);
	if (!rc)
		write_dumps(k);
	return rc;
}

static int by_rank(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static int append_file(struct ptc_buf *b, const char *dir, const char *name, struct ptc_error *err)
{
	char path[PATH_MAX];
	ptc_auto_close int fd = -1;
	struct stat st;
	ssize_t n;
	char *at;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		return ptc_error_errno(err, fd < 0 ? errno : EINVAL, "%s", path);
	at = ptc_buf_extend(b, (size_t)PTC_MIN((uint64_t)st.st_size, (uint64_t)RANK_BYTES));
	n = at ? pread(fd, at, (size_t)PTC_MIN((uint64_t)st.st_size, (uint64_t)RANK_BYTES), 0) : -1;
	if (at)
		b->len = (size_t)(at - b->data) + (size_t)PTC_MAX(n, (ssize_t)0);
	return n < 0 ? ptc_error_errno(err, at ? errno : ENOMEM, "%s", path) : 0;
}

static int read_set(const char *dir, uint64_t number, struct ptc_evidence *ret, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	uint32_t ranks[WORKERS_PROCESSES_MAX], n = 0;
	bool dumps = false;
	struct dirent *e;
	DIR *d;
	int rc;

	snprintf(ret->dir, sizeof ret->dir, "%s/%llu", dir, (unsigned long long)number);
	d = opendir(ret->dir);
	while (d && (e = readdir(d))) {
		dumps |= strcmp(e->d_name, DUMPS) == 0;
		if (strncmp(e->d_name, "rank-", 5) == 0 && n < PTC_ARRAY_LEN(ranks))
			ranks[n++] = (uint32_t)strtoul(e->d_name + 5, NULL, 10);
	}
	if (d)
		closedir(d);
	qsort(ranks, n, sizeof *ranks, by_rank);
	rc = append_file(&b, ret->dir, "about", err);
	if (!rc && dumps)
		rc = append_file(&b, ret->dir, DUMPS, err);
	for (uint32_t i = 0; !rc && i < n; i++) {
		char name[32];

		snprintf(name, sizeof name, "rank-%u", ranks[i]);
		if (b.len < PTC_EVIDENCE_TEXT_MAX)
			rc = append_file(&b, ret->dir, name, err);
	}
	if (!rc && b.len > PTC_EVIDENCE_TEXT_MAX - 256) {
		b.len = PTC_EVIDENCE_TEXT_MAX - 256;
		ptc_buf_printf(&b, "\n==== the rest is left out; it is in %s ====\n", ret->dir);
	}
	if (!rc && ptc_buf_failed(&b))
		rc = ptc_nomem(err);
	ret->nranks = n;
	ret->text = rc ? NULL : ptc_buf_steal(&b, &ret->len);
	ptc_buf_done(&b);
	return rc;
}

int ptc_evidence_keep(struct ptc_workers *w, const char *uuid, const char *why, bool if_stands,
		      struct ptc_evidence *ret, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct keeping k = { 0 };
	uint64_t number = 0;
	int rc = note_ranks(w, uuid, &k, err);

	*ret = (struct ptc_evidence){ 0 };
	if (rc || (if_stands && !k.stands)) {
		done(&k);
		return rc;
	}
	rc = begin_set(&k, err);
	if (!rc)
		rc = write_set(&k, w, why, err);
	if (!rc)
		rc = end_set(&k, &number, err);
	if (rc && *k.tmp)
		(void)ptc_sys_remove_tree(k.tmp, "workers.evidence-gone", &ignored);
	if (!rc) {
		snprintf(ret->dir, sizeof ret->dir, "%s/%llu", k.dir, (unsigned long long)number);
		ret->nranks = (uint32_t)k.kept;
	}
	done(&k);
	return rc;
}

int ptc_evidence_newest(struct ptc_workers *w, const char *uuid, struct ptc_evidence *ret, struct ptc_error *err)
{
	const struct job *job;
	char dir[288] = "";
	uint64_t number;

	*ret = (struct ptc_evidence){ 0 };
	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job)
		snprintf(dir, sizeof dir, "%s/evidence", job->dir);
	pthread_mutex_unlock(&w->lock);
	number = *dir ? newest(dir) : 0;
	if (!number)
		return ptc_error_set(err, PTC_ENOTFOUND, "nothing is kept of the ranks of job %s here", uuid);
	return read_set(dir, number, ret, err);
}
