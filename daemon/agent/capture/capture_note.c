/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a note about a capture, for a request that comes again. Happy path: the note in the store says for which
 * request the snapshot's table was made, and has the ranks' rank state. So the answer can be given again after the
 * ranks went on, also by a daemon that was started anew. The note is written before the seal, so a sealed table always
 * has one.
 *
 * Failure modes: no note, or one of another request (PTC_ENOTFOUND); the store's; memory. */
#include "daemon/agent/capture/internal.h"
#include "daemon/store/store.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <string.h>

#define NOTE      "capture"
#define NOTE_HEAD (4 * sizeof(uint64_t))

static void note_head(const struct ptc_capture *c, uint64_t head[4])
{
	head[0] = c->req->info->id;
	head[1] = c->req->step;
	head[2] = c->key.generation;
	head[3] = c->key.snapshot;
}

int ptc_captured_add_differing(struct ptc_capture *c, struct ptc_error *err)
{
	const struct ptc_differing_list *l = &c->differing.list;
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	ptc_auto_free Ptc__V1__Differing **list = ptc_calloc(l->n + 1, sizeof *list);
	ptc_auto_free Ptc__V1__Differing *said = ptc_calloc(l->n + 1, sizeof *said);
	void *data = NULL, *both;
	size_t len = 0;
	int rc;

	if (!list || !said)
		return ptc_nomem(err);
	if (!l->n)
		return 0;
	for (size_t i = 0; i < l->n; i++) {
		ptc__v1__differing__init(&said[i]);
		said[i].rank = l->v[i].rank;
		said[i].item = l->v[i].item;
		said[i].need = l->v[i].need;
		said[i].difference = l->v[i].difference;
		said[i].more = l->v[i].more;
		said[i].before = l->v[i].before;
		list[i] = &said[i];
	}
	reply.differing = list;
	reply.n_differing = l->n;
	rc = ptc_pb_encode(&reply.base, &data, &len, err);
	both = rc ? NULL : ptc_reallocarray(c->ranks, c->ranks_len + len, 1);
	if (both) {
		memcpy((uint8_t *)both + c->ranks_len, data, len);
		c->ranks = both;
		c->ranks_len += len;
	}
	ptc_free(data);
	return rc || both ? rc : ptc_nomem(err);
}

int ptc_captured_write(const struct ptc_capture *c, struct ptc_error *err)
{
	uint8_t *note = ptc_malloc(NOTE_HEAD + c->ranks_len);
	uint64_t head[4];
	int rc;

	if (!note)
		return ptc_nomem(err);
	note_head(c, head);
	memcpy(note, head, NOTE_HEAD);
	memcpy(note + NOTE_HEAD, c->ranks, c->ranks_len);
	rc = ptc_store_note_put(c->agent->env.store, c->key.uuid, NOTE, note, NOTE_HEAD + c->ranks_len, err);
	ptc_free(note);
	return rc;
}

int ptc_captured_read(struct ptc_capture *c, struct ptc_error *err)
{
	uint64_t head[4];
	uint8_t *note;
	size_t len;
	int rc = ptc_store_note_get(c->agent->env.store, c->key.uuid, NOTE, (void **)&note, &len, err);

	if (rc)
		return rc;
	note_head(c, head);
	if (len < NOTE_HEAD || memcmp(note, head, NOTE_HEAD) != 0) {
		ptc_free(note);
		return ptc_error_set(err, PTC_ENOTFOUND, "the last capture on this node was of another snapshot");
	}
	memmove(note, note + NOTE_HEAD, len - NOTE_HEAD);
	c->ranks = note;
	c->ranks_len = len - NOTE_HEAD;
	return 0;
}

/* ---- rank state ---- */

struct rank_states {
	Ptc__V1__PullReply reply;
	Ptc__V1__RankState *ranks, **rank_list;
	Ptc__V1__Blob *blobs, **blob_list;
	Ptc__V1__Cursor *cursors, **cursor_list;
};

static void rank_states_done(struct rank_states *s)
{
	ptc_free(s->ranks);
	ptc_free(s->rank_list);
	ptc_free(s->blobs);
	ptc_free(s->blob_list);
	ptc_free(s->cursors);
	ptc_free(s->cursor_list);
}

static int rank_states_alloc(struct rank_states *s, const struct ptc_group *g, struct ptc_error *err)
{
	size_t blobs = 1, cursors = 1, n = g->n ? g->n : 1;

	for (size_t i = 0; i < g->n; i++) {
		blobs += g->v[i].nblobs;
		cursors += g->v[i].ncursors;
	}
	s->ranks = ptc_calloc(n, sizeof *s->ranks);
	s->rank_list = ptc_calloc(n, sizeof *s->rank_list);
	s->blobs = ptc_calloc(blobs, sizeof *s->blobs);
	s->blob_list = ptc_calloc(blobs, sizeof *s->blob_list);
	s->cursors = ptc_calloc(cursors, sizeof *s->cursors);
	s->cursor_list = ptc_calloc(cursors, sizeof *s->cursor_list);
	if (!s->ranks || !s->rank_list || !s->blobs || !s->blob_list || !s->cursors || !s->cursor_list)
		return ptc_nomem(err);
	return 0;
}

static void rank_states_fill(struct rank_states *s, const struct ptc_group *g)
{
	size_t nb = 0, nc = 0;

	ptc__v1__pull_reply__init(&s->reply);
	s->reply.ranks = s->rank_list;
	for (size_t i = 0; i < g->n; i++) {
		const struct ptc_slot_view *slot = &g->v[i];
		Ptc__V1__RankState *to;

		if (slot->outlived && !slot->has_state) /* as of a rank whose node has gone: nothing is said */
			continue;
		to = s->rank_list[s->reply.n_ranks++] = &s->ranks[i];

		ptc__v1__rank_state__init(to);
		to->rank = slot->rank.rank;
		to->blobs = s->blob_list + nb;
		to->n_blobs = slot->nblobs;
		to->cursors = s->cursor_list + nc;
		to->n_cursors = slot->ncursors;
		for (size_t k = 0; k < slot->nblobs; k++, nb++) {
			ptc__v1__blob__init(s->blob_list[nb] = &s->blobs[nb]);
			s->blobs[nb].name = slot->blobs[k].name;
			s->blobs[nb].scope = (uint32_t)slot->blobs[k].scope;
			s->blobs[nb].data = (ProtobufCBinaryData){ slot->blobs[k].len, slot->blobs[k].data };
		}
		for (size_t k = 0; k < slot->ncursors; k++, nc++) {
			ptc__v1__cursor__init(s->cursor_list[nc] = &s->cursors[nc]);
			s->cursors[nc].name = slot->cursors[k].name;
			s->cursors[nc].position = slot->cursors[k].position;
			s->cursors[nc].tag = slot->cursors[k].tag;
		}
	}
}

int ptc_captured_encode(struct ptc_capture *c, struct ptc_error *err)
{
	struct rank_states s = { 0 };
	int rc = rank_states_alloc(&s, &c->group, err);

	if (!rc) {
		rank_states_fill(&s, &c->group);
		rc = ptc_pb_encode(&s.reply.base, &c->ranks, &c->ranks_len, err);
	}
	rank_states_done(&s);
	return rc;
}
