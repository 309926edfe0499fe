/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: a rank's blobs and cursors. Happy path: values that are set are kept here, and sent at the next stop if they
 * have changed. A restored value that is not set anew stays. With ptc_survive there are two copies: a boundary writes
 * all changes since the older copy into that copy, and names it in the page. Failure modes: too many names or too long
 * a value (LIMIT). If there is no memory that ptcd may share (no memfd, too small a limit of file sizes), the copies
 * lie in the heap and end with the process. If memory is short, there is no promise at this boundary. */
#include "client/lib/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE UINT64_C(4096)
#define HALF_BYTES                                                                                                     \
	((PTC_LOCAL_PUBLISHED_MAX + PAGE - 1) / PAGE * PAGE) /* of one copy; only what is written takes memory */
#define KEPT_BYTES (2 * HALF_BYTES)

void ptc_client_rank_state_clear(struct rank_state *k)
{
	for (size_t i = 0; i < k->nblobs; i++)
		free(k->blobs[i].data);
	k->nblobs = k->ncursors = 0;
}

static struct blob *find_blob(struct rank_state *k, const char *name, enum ptc_blob_scope scope)
{
	for (size_t i = 0; i < k->nblobs; i++)
		if (k->blobs[i].scope == scope && strcmp(k->blobs[i].name, name) == 0)
			return &k->blobs[i];
	return NULL;
}

static struct cursor *find_cursor(struct rank_state *k, const char *name)
{
	for (size_t i = 0; i < k->ncursors; i++)
		if (strcmp(k->cursors[i].name, name) == 0)
			return &k->cursors[i];
	return NULL;
}

/* Found or made; NULL when there are too many. */
struct blob *ptc_client_blob(struct rank_state *k, const char *name, enum ptc_blob_scope scope)
{
	struct blob *b = find_blob(k, name, scope);

	if (b || k->nblobs == PTC_LOCAL_BLOBS_MAX)
		return b;
	b = &k->blobs[k->nblobs++];
	*b = (struct blob){ .scope = scope };
	snprintf(b->name, sizeof b->name, "%s", name);
	return b;
}

struct cursor *ptc_client_cursor(struct rank_state *k, const char *name)
{
	struct cursor *s = find_cursor(k, name);

	if (s || k->ncursors == PTC_LOCAL_CURSORS_MAX)
		return s;
	s = &k->cursors[k->ncursors++];
	*s = (struct cursor){ 0 };
	snprintf(s->name, sizeof s->name, "%s", name);
	return s;
}

/* In the place of what was set under that name. ptcd has it already from the snapshot, so it is not dirty. If there is
 * no memory for it, ptcd still has it; only a restart of both would miss it. */
static void restore_blob(struct rank_state *set, const struct blob *from)
{
	void *copy = malloc(from->len ? from->len : 1);
	struct blob *to = ptc_client_blob(set, from->name, from->scope);

	if (!to) {
		free(copy);
		return;
	}
	free(to->data);
	if (!copy) {
		*to = set->blobs[--set->nblobs];
		return;
	}
	if (from->len)
		memcpy(copy, from->data, from->len);
	to->data = copy;
	to->len = from->len;
	to->dirty = false;
}

void ptc_client_rank_state_on_locked(ptc_client *c)
{
	c->promise.shaped_at = ++c->promise.set_at;
	for (size_t i = 0; i < c->got->nblobs; i++)
		restore_blob(c->set, &c->got->blobs[i]);
	for (size_t i = 0; i < c->got->ncursors; i++) {
		struct cursor *to = ptc_client_cursor(c->set, c->got->cursors[i].name);

		if (to)
			*to = c->got->cursors[i];
	}
}

/* ---- memory that outlives the process --------------------------------------------- */

/* A limit of file sizes counts for it, and to exceed it is a signal. */
static int make_file(void)
{
	struct rlimit most;
	int fd = getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur >= KEPT_BYTES
			 ? memfd_create("ptc-kept", MFD_CLOEXEC | MFD_ALLOW_SEALING)
			 : -1;

	if (fd >= 0 && (ftruncate(fd, (off_t)KEPT_BYTES) != 0 ||
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
		close(fd);
		return -1;
	}
	return fd;
}

static void *no_more(void *p, size_t bytes)
{
	(void)p;
	(void)bytes;
	return NULL;
}

bool ptc_client_keep(ptc_client *c)
{
	struct promise *p = &c->promise;
	struct guarded_fd file;
	void *map;
	int fd;

	if (p->tried)
		return false;
	p->tried = true;
	fd = make_file();
	if (fd < 0 || !ptc_client_guard_fd(&file, fd))
		return false;
	map = mmap(NULL, KEPT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		ptc_client_close_guarded(&file);
		return false;
	}
	madvise(map, KEPT_BYTES, MADV_DONTFORK);
	for (int i = 0; i < 2; i++)
		p->said[i].out = (struct ptc_local_out){ .grow = no_more,
							 .data = (uint8_t *)map + (uint64_t)i * HALF_BYTES,
							 .cap = HALF_BYTES };
	pthread_mutex_lock(&c->lock);
	c->kept = (struct kept){ file, map, KEPT_BYTES };
	pthread_mutex_unlock(&c->lock);
	return true;
}

/* ---- published ------------------------------------------------------------------------ */

static void put_frame(struct ptc_local_out *to, uint32_t type, const struct blob *b, const struct cursor *s)
{
	size_t at = to->len;

	ptc_local_put_u32(to, type);
	ptc_local_put_u32(to, 0);
	if (b)
		ptc_local_put_blob(to, &(struct ptc_local_blob){ b->name, (uint8_t)b->scope, b->data, b->len });
	else
		ptc_local_put_cursor(to, &(struct ptc_local_cursor){ s->name, s->tag, s->position });
	if (!to->failed) {
		uint32_t len = (uint32_t)(to->len - at - 2 * sizeof len);

		memcpy(to->data + at + sizeof len, &len, sizeof len);
	}
}

/* The frame at to->len is of as many bytes as b's, and has what b had then: passed over. */
static void pass(struct ptc_local_out *to)
{
	uint32_t len;

	memcpy(&len, to->data + to->len + sizeof len, sizeof len);
	to->len += 2 * sizeof len + len;
}

/* Where no name and no length has changed since, the frames lie where they lay. */
static void write_frames(struct rank_state *set, struct said *said, uint64_t shaped_at)
{
	struct ptc_local_out *to = &said->out;
	bool same = said->at && !to->failed && shaped_at <= said->at;

	to->len = 0;
	to->failed = false;
	for (size_t i = 0; i < set->nblobs && !to->failed; i++)
		if (same && set->blobs[i].set_at <= said->at)
			pass(to);
		else
			put_frame(to, PTC_LOCAL_BLOB, &set->blobs[i], NULL);
	for (size_t i = 0; i < set->ncursors && !to->failed; i++)
		if (same && set->cursors[i].set_at <= said->at)
			pass(to);
		else
			put_frame(to, PTC_LOCAL_CURSOR, NULL, &set->cursors[i]);
}

/* Into the older of the two: the other one holds until this boundary, whatever becomes of us here. */
void ptc_client_publish(ptc_client *c, uint64_t step)
{
	struct ptc_local_published *p = &c->page->published[c->promise.next];
	struct said *said = &c->promise.said[c->promise.next];

	atomic_store(&p->from, 0);
	if (!c->kept.map)
		said->out.grow = realloc;
	write_frames(c->set, said, c->promise.shaped_at);
	said->at = c->promise.set_at;
	if (said->out.failed) { /* tried again at the next boundary; until then a snapshot has to do */
		atomic_store(&c->page->survives, 0);
		return;
	}
	atomic_store(&p->address, (uint64_t)(uintptr_t)said->out.data);
	atomic_store(&p->bytes, said->out.len);
	atomic_store(&p->from, step + 1);
	atomic_store(&c->page->survives, 1);
	c->promise.said_at = c->promise.set_at;
	c->promise.next ^= 1;
}

/* ---- calls ------------------------------------------------------------------------ */

static int check_name(ptc_client *c, const char *what, const char *name)
{
	const char *wrong = name ? ptc_local_short_error(name) : "the name is NULL";
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	return wrong ? ptc_client_fail(c, PTC_R_INVALID, "%s: %s", what, wrong) : 0;
}

static bool has_generation(const ptc_client *c)
{
	return c->phase >= PHASE_BUILDING && c->phase <= PHASE_STOPPED;
}

static int check_generation_locked(ptc_client *c, const char *call)
{
	int rc = ptc_client_fatal_locked(c);

	if (!rc && c->ended)
		rc = ptc_client_fail(c, PTC_R_STALE, "%s: the generation has ended; call ptc_next", call);
	else if (!rc && !has_generation(c))
		rc = ptc_client_fail(c, PTC_R_INVALID, "%s: there is no generation; call ptc_next first", call);
	return rc;
}

int ptc_blob_set(ptc_client *c, const char *name, enum ptc_blob_scope scope, const void *data, size_t len)
{
	int rc = check_name(c, "ptc_blob_set", name);
	struct blob *b;
	void *copy;

	if (rc)
		return rc;
	if (scope < PTC_BLOB_RANK || scope > PTC_BLOB_TP || (len && !data))
		return ptc_client_fail(c, PTC_R_INVALID, "blob \"%s\": no such scope, or data is NULL", name);
	if (len > PTC_BLOB_MAX)
		return ptc_client_fail(c, PTC_R_LIMIT, "blob \"%s\" has %zu bytes, at most %u are allowed", name, len,
				       PTC_BLOB_MAX);
	copy = malloc(len ? len : 1);
	if (!copy)
		return ptc_client_fail(c, PTC_R_MEMORY, "blob \"%s\": out of memory", name);
	if (len)
		memcpy(copy, data, len);
	pthread_mutex_lock(&c->lock);
	rc = check_generation_locked(c, "ptc_blob_set");
	b = rc ? NULL : ptc_client_blob(c->set, name, scope);
	if (b && !(b->data && b->len == len && memcmp(b->data, copy, len) == 0)) {
		void *old = b->data;

		b->set_at = ++c->promise.set_at;
		if (!old || b->len != len)
			c->promise.shaped_at = b->set_at;
		b->data = copy;
		b->len = len;
		b->dirty = true;
		copy = old;
	} else if (!b && !rc) {
		rc = ptc_client_fail(c, PTC_R_LIMIT, "blob \"%s\": more than %d names", name, PTC_LOCAL_BLOBS_MAX);
	}
	pthread_mutex_unlock(&c->lock);
	free(copy);
	return rc;
}

int ptc_blob_get(ptc_client *c, const char *name, enum ptc_blob_scope scope, void *buffer, size_t capacity,
		 size_t *ret_len)
{
	int rc = check_name(c, "ptc_blob_get", name);
	struct blob *b;

	if (rc)
		return rc;
	if (!ret_len || (capacity && !buffer))
		return ptc_client_fail(c, PTC_R_INVALID, "blob \"%s\": ret_len or buffer is NULL", name);
	pthread_mutex_lock(&c->lock);
	rc = check_generation_locked(c, "ptc_blob_get");
	b = rc ? NULL : find_blob(c->got, name, scope);
	if (b) {
		*ret_len = b->len;
		if (b->len > capacity) {
			rc = ptc_client_fail(c, PTC_R_LIMIT, "blob \"%s\" has %zu bytes, the buffer %zu", name, b->len,
					     capacity);
		} else {
			if (b->len)
				memcpy(buffer, b->data, b->len);
			rc = 1;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int ptc_cursor_set(ptc_client *c, const char *name, uint64_t position, const char *tag)
{
	int rc = check_name(c, "ptc_cursor_set", name);
	struct cursor *s;

	if (rc)
		return rc;
	if (tag && strlen(tag) > PTC_LOCAL_SHORT_MAX)
		return ptc_client_fail(c, PTC_R_LIMIT, "cursor \"%s\": the tag is longer than %d bytes", name,
				       PTC_LOCAL_SHORT_MAX);
	pthread_mutex_lock(&c->lock);
	rc = check_generation_locked(c, "ptc_cursor_set");
	s = rc ? NULL : ptc_client_cursor(c->set, name);
	if (s) {
		size_t before = strlen(s->tag);

		snprintf(s->tag, sizeof s->tag, "%s", tag ? tag : "");
		c->promise.set_at++;
		if (!s->set_at || strlen(s->tag) != before)
			c->promise.shaped_at = c->promise.set_at;
		s->set_at = c->promise.set_at;
		s->position = position;
		s->dirty = true;
	} else if (!rc) {
		rc = ptc_client_fail(c, PTC_R_LIMIT, "cursor \"%s\": more than %d names", name, PTC_LOCAL_CURSORS_MAX);
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int ptc_cursor_get(ptc_client *c, const char *name, uint64_t *ret_position, char *tag_buffer, size_t tag_capacity)
{
	int rc = check_name(c, "ptc_cursor_get", name);
	struct cursor *s;

	if (rc)
		return rc;
	if (!ret_position)
		return ptc_client_fail(c, PTC_R_INVALID, "cursor \"%s\": ret_position is NULL", name);
	pthread_mutex_lock(&c->lock);
	rc = check_generation_locked(c, "ptc_cursor_get");
	s = rc ? NULL : find_cursor(c->got, name);
	if (s && tag_buffer && strlen(s->tag) >= tag_capacity) {
		rc = ptc_client_fail(c, PTC_R_LIMIT, "cursor \"%s\": its tag does not fit %zu bytes", name,
				     tag_capacity);
	} else if (s) {
		*ret_position = s->position;
		if (tag_buffer)
			memcpy(tag_buffer, s->tag, strlen(s->tag) + 1);
		rc = 1;
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}
