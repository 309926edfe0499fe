/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: ranks are added one by one, kept in order, written in one pass
 * and read in one pass. Failure modes: see state_doc.h; nothing is left
 * allocated by what failed. */
#include "formats/state/state_doc.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/number/search.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_SINCE 2u /* blobs of scope 3 */

static void blob_done(struct ptc_state_blob *b)
{
	ptc_free(b->name);
	ptc_free(b->data);
}

static void rank_done(struct ptc_state_rank *r)
{
	for (size_t i = 0; r->blobs && i < r->nblobs; i++)
		blob_done(&r->blobs[i]);
	ptc_free(r->blobs);
}

static void cursor_done(struct ptc_state_cursor *c)
{
	ptc_free(c->name);
	ptc_free(c->tag);
}

void ptc_state_done(struct ptc_state *s)
{
	if (!s)
		return;
	for (size_t i = 0; s->ranks && i < s->nranks; i++)
		rank_done(&s->ranks[i]);
	for (size_t i = 0; s->cursors && i < s->ncursors; i++)
		cursor_done(&s->cursors[i]);
	ptc_free(s->ranks);
	ptc_free(s->cursors);
	*s = (struct ptc_state){ 0 };
}

/* ---- adding ---- */

static bool name_ok(const char *name, bool empty_ok)
{
	size_t len = name ? strnlen(name, PTC_STATE_NAME_MAX + 1) : 0;

	return name && len <= PTC_STATE_NAME_MAX && (len || empty_ok) && ptc_name_is_utf8(name);
}

PTC_COMPARE(blob_compare, struct ptc_state_blob, PTC_THEN(strcmp(a->name, b->name), PTC_ORDER(a->scope, b->scope)))

static int check_blobs(uint32_t rank, const struct ptc_state_blob *v, size_t n, struct ptc_error *err)
{
	if (n > PTC_STATE_BLOBS)
		return ptc_error_set(err, PTC_ELIMIT, "rank %u gives %zu blobs, at most %d", rank, n, PTC_STATE_BLOBS);
	for (size_t i = 0; i < n; i++) {
		if (!name_ok(v[i].name, false) || v[i].scope < PTC_STATE_RANK || v[i].scope > PTC_STATE_TP)
			return ptc_error_set(err, PTC_EINVAL, "rank %u has a blob with an invalid name or scope (%u)",
					     rank, v[i].scope);
		if (v[i].len > PTC_STATE_BLOB_BYTES)
			return ptc_error_set(err, PTC_ELIMIT, "rank %u: blob \"%s\" has %zu bytes, at most %u", rank,
					     v[i].name, v[i].len, PTC_STATE_BLOB_BYTES);
	}
	return 0;
}

static int copy_blob(const struct ptc_state_blob *from, struct ptc_state_blob *to)
{
	*to = (struct ptc_state_blob){ .name = ptc_strdup(from->name), .scope = from->scope, .len = from->len };
	to->data = ptc_malloc(from->len ? from->len : 1);
	if (!to->name || !to->data)
		return PTC_ENOMEM;
	if (from->len)
		memcpy(to->data, from->data, from->len);
	return 0;
}

/* A copy of what of v is kept, in order. */
static int copy_blobs(struct ptc_state_rank *r, const struct ptc_state_blob *v, size_t n, struct ptc_error *err)
{
	r->blobs = ptc_calloc(n ? n : 1, sizeof *r->blobs);
	if (!r->blobs)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++)
		if ((v[i].scope != PTC_STATE_JOB || r->rank == 0) && copy_blob(&v[i], &r->blobs[r->nblobs++]))
			return ptc_nomem(err);
	if (r->nblobs > 1)
		qsort(r->blobs, r->nblobs, sizeof *r->blobs, blob_compare);
	for (size_t i = 1; i < r->nblobs; i++)
		if (!blob_compare(&r->blobs[i - 1], &r->blobs[i]))
			return ptc_error_set(err, PTC_EINVAL, "rank %u gives blob \"%s\" twice", r->rank,
					     r->blobs[i].name);
	return 0;
}

/* Puts r where it belongs; takes it over. */
static int insert_rank(struct ptc_state *s, const struct ptc_state_rank *r, struct ptc_error *err)
{
	struct ptc_state_rank *v;
	size_t at = s->nranks;

	if (!PTC_MORE(s->ranks, s->nranks))
		return ptc_nomem(err);
	v = s->ranks;
	while (at > 0 && v[at - 1].rank > r->rank)
		at--;
	if (at > 0 && v[at - 1].rank == r->rank)
		return ptc_error_set(err, PTC_EINVAL, "the state of rank %u was added twice", r->rank);
	memmove(v + at + 1, v + at, (s->nranks - at) * sizeof *v);
	v[at] = *r;
	s->nranks++;
	return 0;
}

/* First cursor whose name is not before name. */
static size_t find_cursor(const struct ptc_state *s, const char *name)
{
	size_t i = 0;

	while (i < s->ncursors && strcmp(s->cursors[i].name, name) < 0)
		i++;
	return i;
}

static int insert_cursor(struct ptc_state *s, size_t at, const struct ptc_state_cursor *from, uint32_t rank,
			 struct ptc_error *err)
{
	struct ptc_state_cursor c = { .position = from->position, .rank = rank }, *v;

	if (s->ncursors >= PTC_STATE_CURSORS)
		return ptc_error_set(err, PTC_ELIMIT, "more than %d cursors, with \"%s\" of rank %u", PTC_STATE_CURSORS,
				     from->name, rank);
	v = ptc_reallocarray(s->cursors, s->ncursors + 1, sizeof *v);
	if (v)
		s->cursors = v;
	c.name = ptc_strdup(from->name);
	c.tag = ptc_strdup(from->tag);
	if (!v || !c.name || !c.tag) {
		cursor_done(&c);
		return ptc_nomem(err);
	}
	memmove(v + at + 1, v + at, (s->ncursors - at) * sizeof *v);
	v[at] = c;
	s->ncursors++;
	return 0;
}

static int add_cursor(struct ptc_state *s, uint32_t rank, const struct ptc_state_cursor *c, struct ptc_error *err)
{
	const struct ptc_state_cursor *old;
	size_t at;

	if (!name_ok(c->name, false) || !name_ok(c->tag, true))
		return ptc_error_set(err, PTC_EINVAL, "rank %u has a cursor with an invalid name or tag", rank);
	at = find_cursor(s, c->name);
	old = &s->cursors[at];
	if (at == s->ncursors || strcmp(old->name, c->name))
		return insert_cursor(s, at, c, rank, err);
	if (old->position == c->position && !strcmp(old->tag, c->tag))
		return 0;
	return ptc_error_set(err, PTC_ESTATE,
			     "cursor \"%s\": rank %u is at %llu (\"%s\"), rank %u at %llu (\"%s\"); ranks that set it "
			     "must set the same",
			     c->name, old->rank, (unsigned long long)old->position, old->tag, rank,
			     (unsigned long long)c->position, c->tag);
}

int ptc_state_count(struct ptc_state *s, const struct ptc_state_cursor *cursor, struct ptc_error *err)
{
	size_t at = find_cursor(s, cursor->name);

	if (at < s->ncursors && !strcmp(s->cursors[at].name, cursor->name)) {
		if (!strstr(s->cursors[at].tag, PTC_STATE_COUNTED))
			return 0;
		cursor_done(&s->cursors[at]);
		memmove(s->cursors + at, s->cursors + at + 1, (--s->ncursors - at) * sizeof *s->cursors);
	}
	return insert_cursor(s, at, cursor, 0, err);
}

int ptc_state_put(struct ptc_state *s, uint32_t rank, const struct ptc_coords *at, const struct ptc_state_blob *blobs,
		  size_t nblobs, struct ptc_error *err)
{
	struct ptc_state_rank r = { .rank = rank, .at = *at };
	int rc = check_blobs(rank, blobs, nblobs, err);

	if (rc || !nblobs)
		return rc;
	rc = copy_blobs(&r, blobs, nblobs, err);
	if (!rc && r.nblobs) {
		rc = insert_rank(s, &r, err);
		if (!rc)
			return 0;
	}
	rank_done(&r);
	return rc;
}

int ptc_state_add(struct ptc_state *s, const struct ptc_config *config, uint32_t rank,
		  const struct ptc_state_blob *blobs, size_t nblobs, const struct ptc_state_cursor *cursors,
		  size_t ncursors, struct ptc_error *err)
{
	struct ptc_coords at;
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (!rc && rank >= world)
		rc = ptc_error_set(err, PTC_EINVAL, "the state is of rank %u, but the configuration has %u ranks", rank,
				   world);
	if (rc == 0)
		rc = check_blobs(rank, blobs, nblobs, err);
	for (size_t i = 0; i < ncursors && !rc; i++)
		rc = add_cursor(s, rank, &cursors[i], err);
	if (rc)
		return rc;
	at = ptc_config_coords(config, rank);
	return ptc_state_put(s, rank, &at, blobs, nblobs, err);
}

/* ---- going back without its data ---- */

static int take_cursor(struct ptc_state *s, const struct ptc_state_cursor *now, struct ptc_error *err)
{
	size_t at = find_cursor(s, now->name);
	struct ptc_state_cursor *old = at < s->ncursors ? &s->cursors[at] : NULL;

	if (!old || strcmp(old->name, now->name))
		return insert_cursor(s, at, now, 0, err);
	if (strncmp(old->tag, now->tag, PTC_MAX(strcspn(old->tag, ";"), strcspn(now->tag, ";"))))
		return ptc_error_set(err, PTC_ESTATE,
				     "cursor \"%.100s\": the order of the data is \"%.100s\" now, the snapshot's is "
				     "\"%.100s\", so what lies between cannot be skipped",
				     now->name, now->tag, old->tag);
	if (now->position <= old->position)
		return 0;
	cursor_done(old);
	memmove(old, old + 1, (--s->ncursors - at) * sizeof *old);
	return insert_cursor(s, at, now, 0, err);
}

static bool of_loader(const struct ptc_state_blob *b)
{
	return b->scope == PTC_STATE_JOB && !strncmp(b->name, PTC_STATE_LOADER, strlen(PTC_STATE_LOADER));
}

static struct ptc_state_rank *rank_0(const struct ptc_state *s)
{
	return s->nranks && s->ranks[0].rank == 0 ? &s->ranks[0] : NULL;
}

/* The loaders' states of `now` in place of those of s. The job's blobs are rank 0's. */
static int take_loaders(struct ptc_state *s, const struct ptc_state *now, bool *ret_any, struct ptc_error *err)
{
	const struct ptc_state_rank *from = rank_0(now), *to = rank_0(s);
	struct ptc_state_rank merged = { .rank = 0 };
	struct ptc_state_blob *v = ptc_calloc(2 * PTC_STATE_BLOBS, sizeof *v);
	size_t n = 0, loaders;
	int rc;

	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; from && i < from->nblobs; i++)
		if (of_loader(&from->blobs[i]))
			v[n++] = from->blobs[i];
	*ret_any = n > 0;
	loaders = n;
	for (size_t i = 0; to && i < to->nblobs; i++)
		if (!of_loader(&to->blobs[i]))
			v[n++] = to->blobs[i];
	if (!loaders) {
		ptc_free(v);
		return 0;
	}
	rc = check_blobs(0, v, n, err);
	if (!rc) {
		merged.at = to ? to->at : from->at;
		rc = copy_blobs(&merged, v, n, err);
	}
	ptc_free(v);
	if (!rc && to) {
		rank_done(&s->ranks[0]);
		s->ranks[0] = merged;
		return 0;
	}
	if (!rc)
		rc = insert_rank(s, &merged, err);
	if (rc)
		rank_done(&merged);
	return rc;
}

int ptc_state_go_on(struct ptc_state *s, const struct ptc_state *now, struct ptc_error *err)
{
	bool loaders = false;
	int rc = take_loaders(s, now, &loaders, err);

	if (!rc && !loaders && !now->ncursors)
		return ptc_error_set(err, PTC_ESTATE,
				     "the job's state has no cursor and no loader's state, so nothing says which "
				     "samples to skip");
	for (size_t i = 0; i < now->ncursors && !rc; i++)
		rc = take_cursor(s, &now->cursors[i], err);
	return rc;
}

/* ---- what a rank is given ---- */

static bool same_group(const struct ptc_coords *a, const struct ptc_coords *b)
{
	return a->pp == b->pp && a->dp == b->dp && a->cp == b->cp;
}

static bool same_place(const struct ptc_coords *a, const struct ptc_coords *b)
{
	return a->tp == b->tp && same_group(a, b);
}

static const struct ptc_state_blob *find_tp(const struct ptc_state_blob *v, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (v[i].scope == PTC_STATE_TP && !strcmp(v[i].name, name))
			return &v[i];
	return NULL;
}

const struct ptc_state_blob *ptc_state_group_blob(const struct ptc_state *s, const struct ptc_coords *at,
						  const char *name)
{
	const struct ptc_state_blob *first = NULL;

	for (size_t i = 0; i < s->nranks; i++) {
		const struct ptc_state_rank *r = &s->ranks[i];
		const struct ptc_state_blob *b = same_group(&r->at, at) ? find_tp(r->blobs, r->nblobs, name) : NULL;

		if (!b)
			continue;
		first = first ? first : b;
		if (b->len != first->len || (b->len && memcmp(b->data, first->data, b->len)))
			return NULL;
	}
	return first;
}

/* Adds to the n blobs of v what the tensor-parallel group of `at` has and v has not; returns how many there are then.
 */
static size_t add_group(const struct ptc_state *s, const struct ptc_coords *at, struct ptc_state_blob *v, size_t n)
{
	for (size_t i = 0; i < s->nranks; i++) {
		const struct ptc_state_rank *r = &s->ranks[i];

		for (size_t k = 0; same_group(&r->at, at) && k < r->nblobs; k++) {
			const struct ptc_state_blob *b = NULL;

			if (r->blobs[k].scope == PTC_STATE_TP && !find_tp(v, n, r->blobs[k].name))
				b = ptc_state_group_blob(s, at, r->blobs[k].name);
			if (b && n < 2 * PTC_STATE_BLOBS)
				v[n++] = *b;
		}
	}
	return n;
}

int ptc_state_blobs(const struct ptc_state *s, const struct ptc_coords *at, struct ptc_state_blob **ret_blobs,
		    size_t *ret_n, struct ptc_error *err)
{
	struct ptc_state_blob *v = ptc_calloc(2 * PTC_STATE_BLOBS, sizeof *v);
	size_t n = 0;

	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < s->nranks; i++)
		for (size_t k = 0; k < s->ranks[i].nblobs; k++) {
			const struct ptc_state_blob *b = &s->ranks[i].blobs[k];
			bool wanted =
				b->scope == PTC_STATE_JOB ? s->ranks[i].rank == 0 : same_place(&s->ranks[i].at, at);

			if (wanted && n < 2 * PTC_STATE_BLOBS)
				v[n++] = *b;
		}
	*ret_blobs = v;
	*ret_n = add_group(s, at, v, n);
	return 0;
}

/* ---- writing ---- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_base64(struct ptc_buf *b, const uint8_t *v, size_t n)
{
	char *to = ptc_buf_extend(b, (n + 2) / 3 * 4);

	for (size_t i = 0; to && i < n; i += 3) {
		uint32_t bits = (uint32_t)v[i] << 16;

		if (i + 1 < n)
			bits |= (uint32_t)v[i + 1] << 8;
		if (i + 2 < n)
			bits |= v[i + 2];
		*to++ = alphabet[bits >> 18];
		*to++ = alphabet[bits >> 12 & 63];
		*to++ = i + 1 < n ? alphabet[bits >> 6 & 63] : '=';
		*to++ = i + 2 < n ? alphabet[bits & 63] : '=';
	}
}

static void put_rank(struct ptc_buf *b, const struct ptc_state_rank *r)
{
	ptc_buf_printf(b,
		       "{\"rank\":%" PRIu32 ",\"tp\":%" PRIu32 ",\"pp\":%" PRIu32 ",\"dp\":%" PRIu32 ",\"cp\":%" PRIu32
		       ",\"blobs\":[",
		       r->rank, r->at.tp, r->at.pp, r->at.dp, r->at.cp);
	for (size_t i = 0; i < r->nblobs; i++) {
		ptc_buf_puts(b, i ? ",{\"name\":" : "{\"name\":");
		ptc_json_put_string(b, r->blobs[i].name);
		ptc_buf_printf(b, ",\"scope\":%" PRIu32 ",\"data\":\"", r->blobs[i].scope);
		put_base64(b, r->blobs[i].data, r->blobs[i].len);
		ptc_buf_puts(b, "\"}");
	}
	ptc_buf_puts(b, "]}");
}

static void put_cursors(struct ptc_buf *b, const struct ptc_state *s)
{
	ptc_buf_puts(b, "],\"cursors\":[");
	for (size_t i = 0; i < s->ncursors; i++) {
		ptc_buf_puts(b, i ? ",{\"name\":" : "{\"name\":");
		ptc_json_put_string(b, s->cursors[i].name);
		ptc_buf_printf(b, ",\"position\":%" PRIu64 ",\"tag\":", s->cursors[i].position);
		ptc_json_put_string(b, s->cursors[i].tag);
		ptc_buf_puts(b, "}");
	}
	ptc_buf_puts(b, "]");
	if (ptc_version_adds())
		ptc_buf_printf(b, ",\"added\":%" PRIu64, PTC_VERSION_ADDED);
	ptc_buf_puts(b, "}");
}

/* What readers of version 1 know is written as that. */
static bool has_groups(const struct ptc_state *s)
{
	for (size_t i = 0; i < s->nranks; i++)
		for (size_t k = 0; k < s->ranks[i].nblobs; k++)
			if (s->ranks[i].blobs[k].scope == PTC_STATE_TP)
				return true;
	return false;
}

int ptc_state_doc_encode(const struct ptc_state *s, char **ret_json, size_t *ret_len, struct ptc_error *err)
{
	uint32_t version = ptc_version_write(PTC_STATE_DOC_VERSION, PTC_STATE_DOC_SINCE);
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	if (version <= GROUPS_SINCE)
		version = has_groups(s) ? GROUPS_SINCE : GROUPS_SINCE - 1;
	ptc_buf_printf(&b, "{\"version\":%" PRIu32 ",\"ranks\":[", version);
	for (size_t i = 0; i < s->nranks && b.len <= PTC_STATE_DOC_MAX_BYTES; i++) {
		if (i)
			ptc_buf_puts(&b, ",");
		put_rank(&b, &s->ranks[i]);
	}
	put_cursors(&b, s);
	if (ptc_buf_failed(&b))
		rc = ptc_nomem(err);
	else if (b.len > PTC_STATE_DOC_MAX_BYTES)
		rc = ptc_error_set(err, PTC_ELIMIT, "the blobs of all ranks together have more than %u bytes",
				   PTC_STATE_DOC_MAX_BYTES);
	if (!rc)
		*ret_json = ptc_buf_steal(&b, ret_len);
	ptc_buf_done(&b);
	return rc;
}

/* ---- reading ---- */

static int letter(char c)
{
	const char *at = c ? strchr(alphabet, c) : NULL;

	return at ? (int)(at - alphabet) : -1;
}

/* Four letters to up to three bytes; false when that is not how they would be written. */
static bool quad(const char *p, bool last, uint8_t *to, size_t *ret_n)
{
	size_t n = last && p[3] == '=' ? (p[2] == '=' ? 1 : 2) : 3;
	uint32_t bits = 0;

	for (size_t i = 0; i < 4; i++) {
		int v = i > n ? 0 : letter(p[i]);

		if (v < 0)
			return false;
		bits = bits << 6 | (uint32_t)v;
	}
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)(bits >> (16 - 8 * i));
	*ret_n = n;
	return n == 3 || !(bits & (n == 1 ? 0xffffu : 0xffu));
}

static int read_data(struct ptc_scan *s, struct ptc_state_blob *b)
{
	const char *from;
	size_t len, n = 0;
	int rc = ptc_scan_text(s, "\"");

	if (rc)
		return rc;
	from = s->at;
	while (s->at < s->end && *s->at != '"')
		s->at++;
	len = (size_t)(s->at - from);
	rc = ptc_scan_text(s, "\"");
	if (rc)
		return rc;
	if (len % 4 || len / 4 * 3 > PTC_STATE_BLOB_BYTES + 2)
		return ptc_scan_fail(s, PTC_ELIMIT, "a blob has %zu letters, which are not base64", len);
	b->data = ptc_malloc(len / 4 * 3 + 1);
	if (!b->data)
		return ptc_nomem(s->err);
	for (size_t i = 0; i < len; i += 4, b->len += n)
		if (!quad(from + i, i + 4 == len, (uint8_t *)b->data + b->len, &n))
			return ptc_scan_fail(s, PTC_EINVAL, "a blob is not base64");
	return b->len <= PTC_STATE_BLOB_BYTES ? 0 : ptc_scan_fail(s, PTC_ELIMIT, "a blob has %zu bytes", b->len);
}

static int read_blob(struct ptc_scan *s, struct ptc_state_rank *r)
{
	struct ptc_state_blob *b = &r->blobs[r->nblobs];
	uint64_t scope = 0;
	int rc;

	if (r->nblobs == PTC_STATE_BLOBS)
		return ptc_scan_fail(s, PTC_ELIMIT, "a rank has more than %d blobs", PTC_STATE_BLOBS);
	r->nblobs++;
	rc = ptc_scan_text(s, "{\"name\":");
	if (rc == 0)
		rc = ptc_scan_string(s, PTC_STATE_NAME_MAX, &b->name);
	if (rc == 0)
		rc = ptc_scan_text(s, ",\"scope\":");
	if (rc == 0)
		rc = ptc_scan_number(s, PTC_STATE_TP, &scope);
	b->scope = (uint32_t)scope;
	if (rc == 0)
		rc = ptc_scan_text(s, ",\"data\":");
	if (rc == 0)
		rc = read_data(s, b);
	if (rc == 0)
		rc = ptc_scan_text(s, "}");
	if (!rc && (!b->name[0] || !scope || (scope == PTC_STATE_JOB && r->rank) ||
		    (r->nblobs > 1 && blob_compare(b - 1, b) >= 0)))
		rc = ptc_scan_fail(s, PTC_EINVAL, "a blob is out of order, or has an invalid name or scope");
	return rc;
}

static int read_coord(struct ptc_scan *s, const char *key, uint32_t *ret)
{
	uint64_t n = 0;
	int rc = ptc_scan_text(s, key);

	if (rc == 0)
		rc = ptc_scan_number(s, PTC_MAX_RANKS - 1, &n);
	*ret = (uint32_t)n;
	return rc;
}

static int read_rank(struct ptc_scan *s, struct ptc_state *st)
{
	struct ptc_state_rank r = { 0 };
	int rc = read_coord(s, "{\"rank\":", &r.rank);

	if (rc == 0)
		rc = read_coord(s, ",\"tp\":", &r.at.tp);
	if (rc == 0)
		rc = read_coord(s, ",\"pp\":", &r.at.pp);
	if (rc == 0)
		rc = read_coord(s, ",\"dp\":", &r.at.dp);
	if (rc == 0)
		rc = read_coord(s, ",\"cp\":", &r.at.cp);
	if (rc == 0)
		rc = ptc_scan_text(s, ",\"blobs\":[");
	if (!rc && st->nranks && st->ranks[st->nranks - 1].rank >= r.rank)
		rc = ptc_scan_fail(s, PTC_EINVAL, "the ranks are out of order");
	if (rc)
		return rc;
	r.blobs = ptc_calloc(PTC_STATE_BLOBS, sizeof *r.blobs);
	rc = r.blobs ? 0 : ptc_nomem(s->err);
	do
		if (rc == 0)
			rc = read_blob(s, &r);
	while (!rc && ptc_scan_is(s, ","));
	if (rc == 0)
		rc = ptc_scan_text(s, "]}");
	if (!rc) { /* most have a few */
		struct ptc_state_blob *v = ptc_reallocarray(r.blobs, r.nblobs, sizeof *v);

		r.blobs = v ? v : r.blobs;
	}
	if (rc == 0)
		rc = insert_rank(st, &r, s->err);
	if (rc)
		rank_done(&r);
	return rc;
}

static int read_cursor(struct ptc_scan *s, struct ptc_state *st)
{
	struct ptc_state_cursor c = { 0 };
	int rc = ptc_scan_text(s, "{\"name\":");

	if (rc == 0)
		rc = ptc_scan_string(s, PTC_STATE_NAME_MAX, &c.name);
	if (rc == 0)
		rc = ptc_scan_text(s, ",\"position\":");
	if (rc == 0)
		rc = ptc_scan_number(s, UINT64_MAX, &c.position);
	if (rc == 0)
		rc = ptc_scan_text(s, ",\"tag\":");
	if (rc == 0)
		rc = ptc_scan_string(s, PTC_STATE_NAME_MAX, &c.tag);
	if (rc == 0)
		rc = ptc_scan_text(s, "}");
	if (!rc && (!c.name[0] || (st->ncursors && strcmp(st->cursors[st->ncursors - 1].name, c.name) >= 0)))
		rc = ptc_scan_fail(s, PTC_EINVAL, "the cursors are out of order");
	if (rc == 0)
		rc = insert_cursor(st, st->ncursors, &c, 0, s->err);
	cursor_done(&c);
	return rc;
}

int ptc_state_doc_decode(const void *data, size_t len, struct ptc_state *ret_state, struct ptc_error *err)
{
	struct ptc_scan s = { "state of ranks", data, data, (const char *)data + len, err };
	struct ptc_state st = { 0 };
	uint64_t version = 0;
	int rc;

	if (len > PTC_STATE_DOC_MAX_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "state of ranks: its document has %zu bytes, at most %u are read",
				     len, PTC_STATE_DOC_MAX_BYTES);
	rc = ptc_scan_version(&s, PTC_STATE_DOC_OLDEST, PTC_STATE_DOC_VERSION, &version);
	if (rc == 0)
		rc = ptc_scan_text(&s, ",\"ranks\":[");
	for (bool list = !rc && !ptc_scan_is(&s, "]"); list && !rc;) {
		rc = read_rank(&s, &st);
		list = !rc && ptc_scan_is(&s, ",");
		rc = rc || list ? rc : ptc_scan_text(&s, "]");
	}
	if (rc == 0)
		rc = ptc_scan_text(&s, ",\"cursors\":[");
	for (bool list = !rc && !ptc_scan_is(&s, "]"); list && !rc;) {
		rc = read_cursor(&s, &st);
		list = !rc && ptc_scan_is(&s, ",");
		rc = rc || list ? rc : ptc_scan_text(&s, "]");
	}
	if (rc == 0)
		rc = ptc_scan_close(&s, PTC_VERSION_LATER(version, PTC_STATE_DOC_VERSION));
	if (!rc && version <= GROUPS_SINCE && (version < GROUPS_SINCE) == has_groups(&st))
		rc = ptc_scan_fail(&s, PTC_EINVAL, "a document of version %" PRIu64 " %s blobs of scope %d", version,
				   version == 1 ? "with" : "without", PTC_STATE_TP);
	if (rc) {
		ptc_state_done(&st);
		return rc;
	}
	*ret_state = st;
	return 0;
}
