/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: declares tensors, checks declarations, and restores them. Happy path: each tensor is checked and kept;
 * ptc_restore has our thread send them all, and waits until ptcd has filled them. Failure modes: a call with a mistake
 * in its declaration names the mistake. A mistake that only ptcd can see (ranks contradict each other) makes
 * ptc_restore fail with REFUSED. If the generation ends meanwhile, ptc_restore fails with STALE. */
#include "client/lib/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void free_tensor(struct tensor *t)
{
	free(t->name);
	free(t->field);
	free(t->boxes);
}

#define NO_MEMORY 4096u /* stands for an address, which is never 0, as long as there is none */

static bool all_zero(const int64_t *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (v[i])
			return false;
	return true;
}

static void compact_strides(const struct tensor *t, struct ptc_local_box *b)
{
	int64_t step = t->element_bytes;

	for (uint32_t d = t->ndim; d-- > 0;) {
		b->stride[d] = step;
		if (__builtin_mul_overflow(step, b->extent[d], &step))
			step = INT64_MAX; /* does not fit its shape, which is checked next */
	}
}

static bool empty_box(uint32_t ndim, const struct ptc_shard_box *b)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (b->extent[d] == 0)
			return true;
	return false;
}

/* Boxes without elements are left out. */
static const char *take_boxes(const struct ptc_tensor_desc *desc, struct tensor *t)
{
	size_t a, b;

	for (size_t i = 0; i < desc->nboxes; i++) {
		const struct ptc_shard_box *in = &desc->boxes[i];
		struct ptc_local_box *out = &t->boxes[t->nboxes];
		const char *what;

		if (empty_box(t->ndim, in))
			continue;
		memset(out, 0, sizeof *out);
		memcpy(out->offset, in->offset, t->ndim * sizeof out->offset[0]);
		memcpy(out->extent, in->extent, t->ndim * sizeof out->extent[0]);
		if (__builtin_add_overflow(desc->data ? (uint64_t)(uintptr_t)desc->data : NO_MEMORY, in->data_offset,
					   &out->address))
			return "a data_offset beyond the end of memory";
		if (all_zero(in->stride, t->ndim))
			compact_strides(t, out);
		else
			memcpy(out->stride, in->stride, t->ndim * sizeof out->stride[0]);
		what = ptc_local_box_error(t->ndim, t->shape, t->element_bytes, out);
		if (what)
			return what;
		t->nboxes++;
	}
	return ptc_local_boxes_disjoint(t->ndim, t->boxes, t->nboxes, &a, &b) ? NULL : "two boxes that overlap";
}

static const char *desc_error(const struct ptc_tensor_desc *desc)
{
	uint32_t bytes = ptc_local_dtype_bytes(desc->dtype);
	const char *what = ptc_local_name_error(desc->name);

	if (!what && desc->field)
		what = ptc_local_field_error(desc->field);
	if (!what && !bytes)
		what = "an unknown dtype; use a name of safetensors with whole bytes, such as \"F32\" or \"BF16\"";
	if (!what && ((desc->ndim && !desc->shape) || (desc->nboxes && !desc->boxes)))
		what = "shape or boxes are NULL";
	if (!what)
		what = ptc_local_shape_error(desc->ndim, desc->shape, bytes);
	if (!what && (desc->flags & ~(uint32_t)(PTC_TENSOR_TIED | PTC_TENSOR_DEVICE)))
		what = "unknown flags";
	if (!what && desc->nboxes > PTC_LOCAL_BOXES_MAX)
		what = "more than 1024 boxes";
	if (!what && !desc->ndim && desc->nboxes > 1)
		what = "a scalar with more than one box";
	return what;
}

/* Where its boxes lie; the caller's thread has the context current that they belong to. */
static int find_devices(ptc_client *c, const struct tensor *t, bool sure, struct device_list *ret)
{
	for (uint32_t i = 0; i < t->nboxes; i++) {
		uint64_t low, high;
		char why[256];
		int is;

		ptc_local_box_span(t->ndim, t->element_bytes, &t->boxes[i], &low, &high);
		is = ptc_device_find(low, high, ret, why, sizeof why);
		if (is < 0)
			return ptc_client_fail(c, PTC_R_INVALID, "tensor \"%.200s\": memory on a device at 0x%llx: %s",
					       t->name, (unsigned long long)low, why);
		if (!is && sure)
			return ptc_client_fail(c, PTC_R_INVALID,
					       "tensor \"%.200s\": 0x%llx is declared as device memory, but the CUDA "
					       "driver does not know it on this thread; make its device current first",
					       t->name, (unsigned long long)low);
	}
	return 0;
}

static int take_devices_locked(ptc_client *c, const struct tensor *t, const struct device_list *of)
{
	for (size_t i = 0; i < of->n; i++)
		if (!ptc_device_add(&c->devices, &of->v[i]))
			return ptc_client_fail(
				c, PTC_R_LIMIT,
				"tensor \"%.200s\": out of memory, or more than %u allocations on devices", t->name,
				PTC_LOCAL_DEVICES_MAX);
	return 0;
}

static int build(ptc_client *c, const struct ptc_tensor_desc *desc, struct tensor *t)
{
	const char *what;

	t->name = strdup(desc->name);
	t->field = strdup(desc->field ? desc->field : "");
	t->boxes = calloc(desc->nboxes ? desc->nboxes : 1, sizeof t->boxes[0]);
	if (!t->name || !t->field || !t->boxes)
		return ptc_client_fail(c, PTC_R_MEMORY, "tensor \"%.200s\": out of memory", desc->name);
	memcpy(t->dtype, desc->dtype, strlen(desc->dtype) + 1);
	t->element_bytes = ptc_local_dtype_bytes(desc->dtype);
	t->ndim = desc->ndim;
	t->flags = desc->flags & PTC_TENSOR_TIED;
	if (t->ndim)
		memcpy(t->shape, desc->shape, t->ndim * sizeof t->shape[0]);
	what = take_boxes(desc, t);
	t->no_memory = !desc->data && t->nboxes;
	return what ? ptc_client_fail(c, PTC_R_INVALID, "tensor \"%.200s\": %s", desc->name, what) : 0;
}

/* By name and field; *ret_at: where it is, or belongs. The list is kept sorted, so a model of a million tensors is
 * declared quickly when it is declared in order, and found quickly always. */
static bool find(const ptc_client *c, const char *name, const char *field, size_t *ret_at)
{
	size_t low = 0, high = c->ntensors;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = strcmp(c->tensors[mid].name, name);

		if (!order)
			order = strcmp(c->tensors[mid].field, field);
		if (!order) {
			*ret_at = mid;
			return true;
		}
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	*ret_at = low;
	return false;
}

/* NULL: b says the same of the tensor as a. */
static const char *difference(const struct tensor *a, const struct tensor *b)
{
	if (strcmp(a->dtype, b->dtype) != 0)
		return "of another dtype";
	if (a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof a->shape) != 0)
		return "of another shape";
	if (a->flags != b->flags)
		return "with other flags";
	if (a->nboxes != b->nboxes)
		return "with other boxes";
	for (uint32_t i = 0; i < a->nboxes; i++)
		if (memcmp(a->boxes[i].offset, b->boxes[i].offset, sizeof a->boxes[i].offset) != 0 ||
		    memcmp(a->boxes[i].extent, b->boxes[i].extent, sizeof a->boxes[i].extent) != 0)
			return "with other boxes";
	return NULL;
}

/* Memory for what was declared without. Takes t. */
static int place_locked(ptc_client *c, struct tensor *old, struct tensor *t)
{
	const char *what = difference(old, t);

	if (what)
		return ptc_client_fail(c, PTC_R_INVALID, "tensor \"%.200s%s%s\": it was declared %s before", t->name,
				       *t->field ? ":" : "", t->field, what);
	free_tensor(old);
	*old = *t;
	return 0;
}

/* Takes t. */
static int insert_locked(ptc_client *c, struct tensor *t)
{
	size_t at;

	if (find(c, t->name, t->field, &at)) {
		if (c->tensors[at].no_memory && !t->no_memory)
			return place_locked(c, &c->tensors[at], t);
		return ptc_client_fail(c, PTC_R_INVALID, "tensor \"%.200s%s%s\": declared twice", t->name,
				       *t->field ? ":" : "", t->field);
	}
	if (c->layout)
		return ptc_client_fail(c, PTC_R_INVALID,
				       "tensor \"%.200s%s%s\": it was not declared before ptc_declared", t->name,
				       *t->field ? ":" : "", t->field);
	if (c->ntensors == PTC_LOCAL_TENSORS_MAX || c->nregions + t->nboxes > PTC_LOCAL_REGIONS_MAX)
		return ptc_client_fail(c, PTC_R_LIMIT, "tensor \"%.200s\": more than %u tensors or boxes on this rank",
				       t->name, PTC_LOCAL_TENSORS_MAX);
	if (c->ntensors == c->tensors_cap) {
		size_t cap = c->tensors_cap ? c->tensors_cap * 2 : 64;
		struct tensor *p = realloc(c->tensors, cap * sizeof *p);

		if (!p)
			return ptc_client_fail(c, PTC_R_MEMORY, "out of memory");
		c->tensors = p;
		c->tensors_cap = cap;
	}
	memmove(&c->tensors[at + 1], &c->tensors[at], (c->ntensors - at) * sizeof c->tensors[0]);
	c->tensors[at] = *t;
	c->ntensors++;
	c->nregions += t->nboxes;
	return 0;
}

/* Under lock: a generation is being built. ENDED meanwhile is told by ptc_restore, so that a program has one place for
 * it. */
static int check_building(ptc_client *c, const char *call)
{
	int rc = ptc_client_fatal_locked(c);

	if (rc)
		return rc;
	if (c->ended)
		return ptc_client_fail(c, PTC_R_STALE, "%s: the generation has ended; call ptc_next", call);
	if (c->phase == PHASE_BUILDING && c->declined)
		return ptc_client_fail(c, PTC_R_REFUSED, "%s", c->link_text);
	if (c->phase != PHASE_BUILDING)
		return ptc_client_fail(c, PTC_R_INVALID, "%s: only between ptc_next and ptc_restore", call);
	return 0;
}

int ptc_declared(ptc_client *c)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	pthread_mutex_lock(&c->lock);
	rc = check_building(c, "ptc_declared");
	if (!rc && c->layout)
		rc = ptc_client_fail(c, PTC_R_INVALID, "ptc_declared: it was called already in this generation");
	if (!rc) {
		c->layout = true;
		ptc_client_wake_locked(c);
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

/* Of "none/full" the word for a kind; those that are not listed are as the first. PTC_R_INVALID: a word of a later
 * version. */
static int recompute_of(ptc_client *c, uint32_t kind)
{
	static const char *const words[] = { "none", "selective", "full" };
	size_t left = 0, n;
	const char *list = ptc_client_config_value(c->config, "recompute", &left), *word = list;

	for (uint32_t k = 0; list && k < kind; k++) {
		const char *slash = memchr(word, '/', left - (size_t)(word - list));

		word = slash ? slash + 1 : list;
		if (!slash)
			break;
	}
	if (!list)
		return 0;
	n = strcspn(word, "/,");
	for (int i = 0; i < (int)(sizeof words / sizeof *words); i++)
		if (strlen(words[i]) == n && !memcmp(words[i], word, n))
			return i;
	return ptc_client_fail(c, PTC_R_INVALID, "ptc_recompute: this libptc does not know recompute=%.*s", (int)left,
			       list);
}

int ptc_recompute(ptc_client *c, uint32_t kind)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	pthread_mutex_lock(&c->lock);
	rc = check_building(c, "ptc_recompute");
	if (!rc)
		rc = recompute_of(c, kind);
	if (rc >= 0)
		c->does |= PTC_LOCAL_DOES_RECOMPUTE;
	pthread_mutex_unlock(&c->lock);
	return rc;
}

/* 0: the configuration has none, and the order is the program's own. */
static int schedule_of(ptc_client *c, uint32_t *ret_stages)
{
	static const char *const words[] = { "1f1b", "gpipe", "zb1p" };
	size_t n = 0, digits = 0;
	const char *word = ptc_client_config_value(c->config, "schedule", &n);
	const char *vpp = ptc_client_config_value(c->config, "vpp", &digits);
	int known = 0;

	for (int i = 0; word && i < (int)(sizeof words / sizeof *words); i++)
		if (strlen(words[i]) == n && !memcmp(words[i], word, n))
			known = i + 1;
	if (word && !known)
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_schedule: this libptc does not know schedule=%.*s",
				       (int)n, word);
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the caller has refused NULL */
	*ret_stages = vpp ? (uint32_t)strtoul(vpp, NULL, 10) : 1;
	return known;
}

int ptc_schedule(ptc_client *c, uint32_t *ret_stages)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	pthread_mutex_lock(&c->lock);
	rc = check_building(c, "ptc_schedule");
	if (!rc && !ret_stages)
		rc = ptc_client_fail(c, PTC_R_INVALID, "ptc_schedule: ret_stages is NULL");
	if (!rc)
		rc = schedule_of(c, ret_stages);
	if (rc >= 0)
		c->does |= PTC_LOCAL_DOES_SCHEDULE;
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int ptc_tensor_declare(ptc_client *c, const struct ptc_tensor_desc *desc)
{
	struct device_list devices = { 0 };
	struct tensor t = { 0 };
	const char *what;
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!desc || desc->size < sizeof *desc)
		return ptc_client_fail(c, PTC_R_INVALID, "desc is NULL, or its size is not set");
	if (!desc->name || !desc->dtype)
		return ptc_client_fail(c, PTC_R_INVALID, "the tensor has no name or no dtype; set both in desc");
	what = desc_error(desc);
	if (what)
		return ptc_client_fail(c, PTC_R_INVALID, "tensor \"%.200s\": %s", desc->name, what);
	rc = build(c, desc, &t);
	if (rc == 0 && desc->data)
		rc = find_devices(c, &t, desc->flags & PTC_TENSOR_DEVICE, &devices);
	if (!rc) {
		pthread_mutex_lock(&c->lock);
		rc = check_building(c, "ptc_tensor_declare");
		if (rc == 0)
			rc = take_devices_locked(c, &t, &devices);
		if (rc == 0)
			rc = insert_locked(c, &t);
		pthread_mutex_unlock(&c->lock);
	}
	ptc_device_clear(&devices);
	if (rc)
		free_tensor(&t);
	return rc;
}

/* ---- devices ---- */

#define PATIENCE_MS 1800000 /* where ptcd says nothing: a job's default */

struct patience {
	ptc_client *c;
	enum phase phase;
	uint64_t step;
	int64_t begun_ms;
};

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A little less than ptcd waits, which could not say why it took so long. */
static bool goes_on(void *arg, char *why, size_t size)
{
	const struct patience *p = arg;
	uint64_t limit = atomic_load(&p->c->page->patience_ms);
	int64_t passed = now_ms() - p->begun_ms;
	bool same;

	limit = (limit ? limit : PATIENCE_MS) / 4 * 3;
	pthread_mutex_lock(&p->c->lock);
	same = p->c->phase == p->phase && !p->c->fatal;
	pthread_mutex_unlock(&p->c->lock);
	if (!same)
		snprintf(why, size, "the generation has ended while the device was waited for");
	else if (p->step != PTC_LOCAL_NO_STOP && !p->c->finishing && atomic_load(&p->c->page->stop) > p->step)
		snprintf(why, size, "the stop has moved on while the device was waited for");
	else if ((uint64_t)passed > limit)
		snprintf(why, size,
			 "its device has not finished the step in %.1f s; perhaps a kernel hangs, as in a collective "
			 "whose "
			 "peer has gone",
			 (double)passed / 1000);
	else
		return true;
	return false;
}

bool ptc_client_settle(ptc_client *c, uint64_t step, char *why, size_t size)
{
	struct patience p = { .c = c, .step = step, .begun_ms = now_ms() };
	const struct device_patience asked = { goes_on, &p };
	const struct device_memory *last = NULL;
	bool marks = c->marks.on && step != PTC_LOCAL_NO_STOP;

	pthread_mutex_lock(&c->lock);
	p.phase = c->phase;
	pthread_mutex_unlock(&c->lock);
	if (marks &&
	    ptc_device_marks_wait(&c->marks, &c->page->device, ptc_local_mark(step, true), &asked, why, size) != 0)
		return false;
	for (size_t i = 0; i < c->devices.n; i++) {
		const struct device_memory *m = &c->devices.v[i];

		if ((last && last->context == m->context) || (marks && m->context == c->marks.context))
			continue;
		if (ptc_device_settle(m, &asked, why, size) != 0)
			return false;
		last = m;
	}
	return true;
}

/* A tensor that was declared without memory has got some. */
static int check_memory_locked(ptc_client *c)
{
	for (size_t i = 0; i < c->ntensors; i++) {
		const struct tensor *t = &c->tensors[i];

		if (t->no_memory)
			return ptc_client_fail(
				c, PTC_R_INVALID,
				"ptc_restore: tensor \"%.200s%s%s\" was declared without data; declare it "
				"again, with data",
				t->name, *t->field ? ":" : "", t->field);
	}
	return 0;
}

int ptc_restore(ptc_client *c)
{
	int rc = ptc_client_enter(c);
	char why[256];

	if (rc)
		return rc;
	/* Otherwise writes that the program has queued on its devices would come after the restored bytes. */
	if (!ptc_client_settle(c, PTC_LOCAL_NO_STOP, why, sizeof why))
		return ptc_client_fail(c, PTC_R_SYSTEM, "ptc_restore: %s", why);
	atomic_store(&c->page->device, 0); /* marks of an earlier generation have all been written by now */
	pthread_mutex_lock(&c->lock);
	rc = check_building(c, "ptc_restore");
	if (!rc)
		rc = check_memory_locked(c);
	if (!rc) {
		c->phase = PHASE_RESTORING;
		c->state_again = false;
		ptc_client_wake_locked(c);
		while (c->phase == PHASE_RESTORING && !c->fatal)
			pthread_cond_wait(&c->changed, &c->lock);
		if (c->phase == PHASE_RUNNING) {
			rc = c->restored;
			c->running = true;
			c->stepped = false;
			c->next_step = c->generation.start_step;
		} else if (c->declined) {
			rc = ptc_client_fail(c, PTC_R_REFUSED, "%s", c->link_text);
		} else {
			rc = ptc_client_fatal_locked(c);
			if (!rc)
				rc = ptc_client_fail(c, PTC_R_STALE,
						     "the generation has ended before it began; call ptc_next");
		}
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int ptc_start_step(ptc_client *c, uint64_t *ret_step)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!ret_step)
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_start_step: ret_step is NULL");
	if (!c->running)
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_start_step: call it after ptc_restore has succeeded");
	pthread_mutex_lock(&c->lock);
	*ret_step = c->generation.start_step;
	pthread_mutex_unlock(&c->lock);
	return 0;
}
