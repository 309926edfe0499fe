/* SPDX-License-Identifier: Apache-2.0 */
/* data/NAME/gen-G/dp-D/epoch-E/, and files/ in it: the part of the tree that lies in datasets. A generation's part
 * (fs_part) is made when its directory is looked up and lives while the kernel knows a name below it.
 *
 * Sources are read with the rights of the job's owner: by this process if it runs as the owner; otherwise, in root's
 * mount, by the daemon (origin.c). Failure modes: the daemon does not answer, a source that has changed (EIO, said in
 * the log). */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "formats/json.h"
#include "formats/dataset/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LISTED_EPOCHS 8
#define SLOTS         "files"
#define PATH_BYTES    768

bool fs_data_shown(const struct ptc_fs *fs, const struct ptc_fs_job *job)
{
	return fs->opts.source.data && (job->uid == geteuid() || (!geteuid() && fs->opts.source.samples));
}

/* What the daemon says the job consumes; json_decref it. */
static int ask(struct ptc_fs *fs, const char *job, char **ret_text, json_t **ret_root)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = fs->opts.source.data(fs->opts.source.arg, job, ret_text, &err);

	if (!rc)
		rc = ptc_json_load("the daemon's answer", *ret_text, strlen(*ret_text), ret_root, &err);
	if (rc && rc != PTC_ENOTFOUND && rc != PTC_ESTATE)
		ptc_warn("fuse", "job=%s data: %s", job, err.text);
	return rc == PTC_ESTATE ? ENOENT : fs_errno(rc);
}

/* The part of a generation, a reference: one that is there, or a new one. */
static int get_part(struct ptc_fs *fs, const struct fs_node *dir, uint64_t generation, struct fs_part **ret)
{
	struct ptc_error err = PTC_ERROR_INIT;
	ptc_auto_free char *text = NULL;
	struct fs_part *p;
	json_t *root = NULL;
	int e;

	pthread_mutex_lock(&fs->lock);
	for (p = fs->parts; p; p = p->next)
		if (p->generation == generation && !strcmp(p->uuid, dir->uuid) && !strcmp(p->name, dir->data))
			break;
	if (p)
		p->refs++;
	pthread_mutex_unlock(&fs->lock);
	if (p) {
		*ret = p;
		return 0;
	}
	e = ask(fs, dir->uuid, &text, &root);
	json_decref(root);
	if (e)
		return e;
	e = fs_part_new(&fs->opts.source, text, dir->uid, dir->uuid, dir->data, generation, &p, &err);
	if (e) {
		if (e != PTC_ENOTFOUND)
			ptc_warn("fuse", "job=%s data %s gen-%" PRIu64 ": %s", dir->job, dir->data, generation,
				 err.text);
		return fs_errno(e);
	}
	pthread_mutex_lock(&fs->lock);
	p->next = fs->parts;
	fs->parts = p;
	pthread_mutex_unlock(&fs->lock);
	*ret = p;
	return 0;
}

static struct fs_node *make(const struct fs_node *dir, enum fs_kind kind, const char *path)
{
	struct ptc_fs_job job = { .uid = dir->uid, .shared = dir->shared, .gid = dir->gid };
	struct fs_node *n;

	memcpy(job.name, dir->job, sizeof job.name);
	memcpy(job.uuid, dir->uuid, sizeof job.uuid);
	n = fs_node_new(kind, &job, fs_identity(kind, dir->uuid, 0, 0, path));
	if (!n)
		return NULL;
	n->mtime_s = dir->at.part ? dir->at.part->mtime_s : dir->mtime_s;
	memcpy(n->data, dir->data, sizeof n->data);
	n->at = dir->at;
	n->at.part = NULL; /* until it is counted */
	return n;
}

/* What stands behind a name, as text: the same for equal contents, another for others. */
static void path_of(const struct fs_node *dir, const char *name, char *ret, size_t size)
{
	snprintf(ret, size, "%s/%" PRIu64 "/%" PRIu32 "/%" PRIu64 "/%s%s", dir->data,
		 dir->at.part ? dir->at.part->generation : 0, dir->at.dp, dir->at.epoch,
		 dir->kind == FS_SLOTS ? SLOTS "/" : "", name);
}

static int find_dataset(struct ptc_fs *fs, const struct fs_node *dir, const char *name, struct fs_node **ret)
{
	ptc_auto_free char *text = NULL;
	json_t *root = NULL, *row;
	bool found = false;
	size_t i;
	int e = ask(fs, dir->uuid, &text, &root);

	json_array_foreach(json_object_get(root, "data"), i, row) {
		const char *its = json_string_value(json_object_get(row, "name"));

		found |= its && !strcmp(its, name);
	}
	json_decref(root);
	if (e || !found || strlen(name) >= sizeof dir->data)
		return e ? e : ENOENT;
	*ret = make(dir, FS_DATASET, name);
	if (!*ret)
		return ENOMEM;
	snprintf((*ret)->data, sizeof(*ret)->data, "%s", name);
	return 0;
}

static int find_generation(struct ptc_fs *fs, const struct fs_node *dir, const char *name, struct fs_node **ret)
{
	char path[PATH_BYTES];
	uint64_t generation;
	struct fs_part *p = NULL;
	int e = fs_number_parse(name, "gen-", &generation) ? get_part(fs, dir, generation, &p) : ENOENT;

	if (e)
		return e;
	path_of(dir, name, path, sizeof path);
	*ret = make(dir, FS_DATAGEN, path);
	if (*ret) {
		(*ret)->at.part = p;
		(*ret)->mtime_s = p->mtime_s;
		return 0;
	}
	pthread_mutex_lock(&fs->lock);
	fs_part_unref_locked(fs, p);
	pthread_mutex_unlock(&fs->lock);
	return ENOMEM;
}

/* In an epoch's directory: a file by its name, or the directory of slots. */
static int place_in_epoch(const char *name, const struct fs_window *w, struct fs_place *at, enum fs_kind *ret_kind)
{
	int file = 0;

	*ret_kind = at->part->files && !strcmp(name, SLOTS) ? FS_SLOTS : FS_PART;
	if (*ret_kind == FS_SLOTS)
		return 0;
	while (file < FS_PART_FILES && strcmp(name, fs_part_file_name((enum fs_part_file)file)) != 0)
		file++;
	if (file == FS_PART_FILES)
		return ENOENT;
	at->which = (enum fs_part_file)file;
	at->size = fs_part_size(at, w);
	return 0;
}

static int place_of_slot(const char *name, const struct fs_window *w, struct fs_place *at)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = fs_part_slot_find(at, w, name, &at->slot, &at->size, &err);

	if (rc && rc != PTC_ENOTFOUND)
		ptc_warn("fuse", "data %s gen-%" PRIu64 ": %s", at->part->name, at->part->generation, err.text);
	at->which = FS_PART_SAMPLE;
	return fs_errno(rc);
}

/* What a name stands for below a generation, where everything is arithmetic and never changes. */
static int place_below(const struct fs_node *dir, const char *name, struct fs_place *at, enum fs_kind *ret_kind)
{
	struct fs_window w;
	uint64_t v = 0;

	*ret_kind = dir->kind == FS_DATAGEN ? FS_DP : dir->kind == FS_DP ? FS_EPOCH : FS_PART;
	if (*ret_kind == FS_DP) {
		if (!fs_number_parse(name, "dp-", &v) || v >= at->part->batch.dp)
			return ENOENT;
		at->dp = (uint32_t)v;
		return 0;
	}
	if (*ret_kind == FS_EPOCH && !fs_number_parse(name, "epoch-", &at->epoch))
		return ENOENT;
	if (!fs_part_epoch(at->part, at->epoch, &w))
		return ENOENT;
	return *ret_kind == FS_EPOCH   ? 0
	       : dir->kind == FS_SLOTS ? place_of_slot(name, &w, at)
				       : place_in_epoch(name, &w, at, ret_kind);
}

static int find_below(struct ptc_fs *fs, const struct fs_node *dir, const char *name, struct fs_node **ret)
{
	struct fs_place at = dir->at;
	enum fs_kind kind;
	char path[PATH_BYTES];
	int e = place_below(dir, name, &at, &kind);

	if (e)
		return e;
	path_of(dir, name, path, sizeof path);
	*ret = make(dir, kind, path);
	if (!*ret)
		return ENOMEM;
	pthread_mutex_lock(&fs->lock);
	(*ret)->at = at;
	at.part->refs++;
	pthread_mutex_unlock(&fs->lock);
	return 0;
}

int fs_data_find(struct ptc_fs *fs, const struct fs_node *dir, const char *name, struct fs_node **ret)
{
	if (dir->kind == FS_JOB) {
		*ret = make(dir, FS_DATA, "");
		return *ret ? 0 : ENOMEM;
	}
	return dir->kind == FS_DATA      ? find_dataset(fs, dir, name, ret)
	       : dir->kind == FS_DATASET ? find_generation(fs, dir, name, ret)
					 : find_below(fs, dir, name, ret);
}

/* ---- listings ---- */

static void add(const struct fs_node *dir, const char *name, enum fs_kind kind, struct fs_listing *l)
{
	char path[PATH_BYTES];

	path_of(dir, name, path, sizeof path);
	fs_list_add(l, name, fs_identity(kind, dir->uuid, 0, 0, kind == FS_DATASET ? name : path),
		    kind == FS_PART ? S_IFREG : S_IFDIR);
}

static void add_number(const struct fs_node *dir, const char *prefix, uint64_t v, enum fs_kind kind,
		       struct fs_listing *l)
{
	char name[64];

	snprintf(name, sizeof name, "%s%" PRIu64, prefix, v);
	add(dir, name, kind, l);
}

/* Generations whose beginning is known. */
static void list_generations(const struct fs_node *dir, const json_t *root, struct fs_listing *l)
{
	json_int_t now = json_integer_value(json_object_get(root, "generation"));
	struct ptc_ledger ledger = { 0 };
	bool there = false;

	if (ptc_ledger_from_json(json_object_get(root, "ledger"), &ledger))
		return;
	for (size_t i = 0; i < ledger.n; i++) {
		if (strcmp(ledger.v[i].cursor, dir->data) != 0 || ptc_ledger_skipped(&ledger.v[i]))
			continue;
		there |= ledger.v[i].generation == (uint64_t)now;
		add_number(dir, "gen-", ledger.v[i].generation, FS_DATAGEN, l);
	}
	if (!there && now > 0)
		add_number(dir, "gen-", (uint64_t)now, FS_DATAGEN, l);
	ptc_ledger_done(&ledger);
}

static int list_asked(struct ptc_fs *fs, const struct fs_node *dir, struct fs_listing *l)
{
	ptc_auto_free char *text = NULL;
	json_t *root = NULL, *row;
	size_t i;
	int e = ask(fs, dir->uuid, &text, &root);

	if (!e && dir->kind == FS_DATASET)
		list_generations(dir, root, l);
	json_array_foreach(dir->kind == FS_DATA ? json_object_get(root, "data") : NULL, i, row) {
		const char *name = json_string_value(json_object_get(row, "name"));

		if (name)
			add(dir, name, FS_DATASET, l);
	}
	json_decref(root);
	return e == ENOENT ? 0 : e; /* a job that has not run yet has nothing to list */
}

int fs_data_list(struct ptc_fs *fs, const struct fs_node *dir, struct fs_listing *l)
{
	const struct fs_part *p = dir->at.part;
	struct fs_window w;

	if (!p)
		return list_asked(fs, dir, l);
	for (uint32_t d = 0; dir->kind == FS_DATAGEN && d < p->batch.dp && !l->failed; d++)
		add_number(dir, "dp-", d, FS_DP, l);
	for (uint64_t e = p->position / p->mix.nsamples, k = 0; dir->kind == FS_DP && k < LISTED_EPOCHS; k++)
		if (fs_part_epoch(p, e + k, &w))
			add_number(dir, "epoch-", e + k, FS_EPOCH, l);
	for (int f = 0; dir->kind == FS_EPOCH && f < FS_PART_FILES; f++)
		add(dir, fs_part_file_name((enum fs_part_file)f), FS_PART, l);
	if (dir->kind == FS_EPOCH && p->files)
		add(dir, SLOTS, FS_SLOTS, l);
	return 0;
}

/* An epoch may have millions: they are made up as they are asked for. */
bool fs_data_slot(const struct fs_place *at, uint64_t i, char ret_name[FS_NAME_MAX + 1], uint64_t *ret_ino)
{
	struct fs_node dir = { .kind = FS_SLOTS, .at = *at };
	struct fs_window w;
	char path[PATH_BYTES];

	if (!fs_part_epoch(at->part, at->epoch, &w) || i >= w.slots)
		return false;
	fs_part_slot_name(at, &w, i, ret_name);
	snprintf(dir.data, sizeof dir.data, "%s", at->part->name);
	path_of(&dir, ret_name, path, sizeof path);
	*ret_ino = fs_identity(FS_PART, at->part->uuid, 0, 0, path);
	return true;
}

/* ---- reading ---- */

/* On a worker: a source may be on a file system that does not answer. */
void fs_run_part_read(struct ptc_fs *fs, struct fs_op *op)
{
	struct ptc_error err = PTC_ERROR_INIT;
	ptc_auto_free char *buf = ptc_malloc(PTC_MAX(op->size, (size_t)1));
	int rc = buf ? fs_part_read(&op->at, op->off, buf, op->size, &err) : PTC_ENOMEM;

	if (rc) {
		ptc_warn("fuse", "data %s gen-%" PRIu64 ": %s", op->at.part->name, op->at.part->generation, err.text);
		fs_op_fail(fs, op, rc == PTC_ENOMEM ? ENOMEM : EIO);
		return;
	}
	if (fs_op_claim(fs, op))
		fuse_reply_buf(op->req, buf, op->size);
	fs_part_read_ahead(&op->at, op->off, op->size);
	fs_op_unref(fs, op);
}
