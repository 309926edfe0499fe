/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests of the agent: real processes with memory of their own, that
 * do nothing but hold it. What ptcd's workers do with processes that talk
 * (spawning, arming, waiting) is decided by the test here: a slot is in the
 * state the test puts it in. Reading and writing their memory is the real
 * thing. A process dies with the test. */
#pragma once

#include "base/check.h"
#include "base/number/digest.h"
#include "daemon/agent/test_world.h"
#include "daemon/workers/group/hold/group_hold.h"
#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/group/rank_slots.h"
#include "daemon/workers/group/rank_status.h"
#include "daemon/workers/session/rank_rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define RANK_BYTES  (1u << 20)
#define MAX_SLOTS   64
#define MAX_TENSORS 5
#define MAX_REGIONS 32

struct rank_process {
	struct ptc_group_key key;
	struct ptc_slot_view view;
	struct ptc_slot_tensor tensors[MAX_TENSORS];
	struct ptc_slot_region regions[MAX_TENSORS][MAX_REGIONS];
	char names[MAX_TENSORS][64];
	struct ptc_workers *owner;
	uint64_t base; /* of its memory, RANK_BYTES */
	bool went, restored;
	struct ptc_buf got;  /* what ptc_slot_go said, as text */
	struct ptc_buf told; /* what ptc_workers_build did */
	struct ptc_slot_blob blobs[2];
	struct ptc_slot_cursor cursors[1];
	atomic_bool damaged; /* it has read a block that does not match */
};

struct ptc_workers {
	pthread_mutex_t lock;
	struct rank_process *slots[MAX_SLOTS];
	size_t n;
	unsigned starts, builds, drops, releases, reports_again, looks_again;
	int hold_ms; /* how long a build takes */
	/* What the rank declares when it is built. */
	void (*declare)(void *arg, struct rank_process *p);
	void *arg;
};

static void process_end(struct rank_process *p)
{
	int status;

	if (p->view.pid > 0) {
		kill(p->view.pid, SIGKILL);
		while (waitpid(p->view.pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	p->view.pid = 0;
}

/* Made without the C library, so that nobody's fork handlers run: it only ever waits. */
static void process_begin(struct rank_process *p)
{
	void *m = mmap(NULL, RANK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long pid, parent = getpid();

	assert_true(m != MAP_FAILED);
	memset(m, 0xa5, RANK_BYTES);
	pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (!pid) { /* PR_SET_PDEATHSIG would go by the thread that made it */
		struct timespec tick = { 1, 0 };

		syscall(SYS_close_range, 0, ~0u, 0); /* the store's lock among them */
		while (syscall(SYS_getppid) == parent)
			syscall(SYS_nanosleep, &tick, NULL);
		syscall(SYS_exit_group, 0);
	}
	assert_true(pid > 0);
	assert_int_equal(munmap(m, RANK_BYTES), 0); /* only the process has it now */
	p->base = (uint64_t)(uintptr_t)m;
	p->view.pid = (pid_t)pid;
}

static void memory_get(const struct rank_process *p, uint8_t *image)
{
	struct iovec there = { (void *)(uintptr_t)p->base, RANK_BYTES }, here = { image, RANK_BYTES };

	assert_int_equal(process_vm_readv(p->view.pid, &here, 1, &there, 1, 0), RANK_BYTES);
}

static void memory_set(const struct rank_process *p, uint8_t *image)
{
	struct iovec there = { (void *)(uintptr_t)p->base, RANK_BYTES }, here = { image, RANK_BYTES };

	assert_int_equal(process_vm_writev(p->view.pid, &here, 1, &there, 1, 0), RANK_BYTES);
}

static bool same_key(const struct ptc_group_key *a, const struct ptc_group_key *b)
{
	return !strcmp(a->uuid, b->uuid) && a->generation == b->generation && a->incarnation == b->incarnation;
}

static struct rank_process *slot_find(struct ptc_workers *w, const struct ptc_group_key *key, uint32_t rank)
{
	for (size_t i = 0; i < w->n; i++)
		if (same_key(&w->slots[i]->key, key) && w->slots[i]->view.rank.rank == rank)
			return w->slots[i];
	return NULL;
}

static void slot_free(struct rank_process *p)
{
	process_end(p);
	ptc_buf_done(&p->got);
	ptc_buf_done(&p->told);
	free(p);
}

static void slots_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep, size_t nkeep)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n; i++) {
		struct rank_process *p = w->slots[i];
		bool kept = strcmp(p->key.uuid, uuid) != 0;

		for (size_t k = 0; k < nkeep; k++)
			kept = kept || same_key(&p->key, &keep[k]);
		if (kept)
			w->slots[n++] = p;
		else
			slot_free(p);
	}
	w->n = n;
}

/* ---- daemon/workers ---- */

int ptc_workers_start(struct ptc_workers *w, const struct ptc_group_desc *desc, const struct ptc_wait *wait,
		      struct ptc_error *err)
{
	pthread_mutex_lock(&w->lock);
	w->starts++;
	for (size_t i = 0; i < desc->nranks; i++) {
		struct rank_process *p;

		if (slot_find(w, &desc->key, desc->ranks[i].rank))
			continue;
		p = calloc(1, sizeof *p);
		assert_non_null(p);
		assert_true(w->n < MAX_SLOTS);
		p->key = desc->key;
		p->view.rank = desc->ranks[i];
		p->view.state = PTC_SLOT_WAITING;
		p->view.verifies = desc->ranks[i].rank % 4 == 1;
		p->view.opaque = p;
		p->owner = w;
		process_begin(p);
		w->slots[w->n++] = p;
	}
	pthread_mutex_unlock(&w->lock);
	return 0;
}

static void rank_state_text(struct ptc_buf *to, const struct ptc_rank_state *c)
{
	ptc_buf_reset(to);
	for (size_t i = 0; i < c->nblobs; i++)
		ptc_buf_printf(to, "%s/%d=%.*s;", c->blobs[i].name, c->blobs[i].scope, (int)c->blobs[i].len,
			       (const char *)c->blobs[i].data);
	for (size_t i = 0; i < c->ncursors; i++)
		ptc_buf_printf(to, "%s@%llu(%s);", c->cursors[i].name, (unsigned long long)c->cursors[i].position,
			       c->cursors[i].tag);
}

int ptc_workers_build_layout(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step,
			     bool has_state, const struct ptc_rank_state *rank_states, const struct ptc_wait *wait,
			     struct ptc_error *err)
{
	return ptc_workers_build(w, desc, start_step, has_state, rank_states, wait, err);
}

int ptc_workers_build(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step, bool has_state,
		      const struct ptc_rank_state *rank_states, const struct ptc_wait *wait, struct ptc_error *err)
{
	for (int ms = 0; ms < w->hold_ms; ms += 20) {
		if (wait->cancelled(wait->arg))
			return ptc_error_set(err, PTC_ECANCELED, "build: cancelled");
		usleep(20000);
	}
	pthread_mutex_lock(&w->lock);
	w->builds++;
	for (size_t i = 0; i < desc->nranks; i++) {
		struct rank_process *p = slot_find(w, &desc->key, desc->ranks[i].rank);

		if (!p || p->view.state != PTC_SLOT_WAITING)
			continue;
		if (has_state && rank_states)
			rank_state_text(&p->told, &rank_states[i]);
		w->declare(w->arg, p);
		p->view.state = PTC_SLOT_DECLARED;
		p->view.step = start_step;
	}
	pthread_mutex_unlock(&w->lock);
	return 0;
}

int ptc_workers_arm(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, bool *ret_passed,
		    uint64_t *ret_step, struct ptc_error *err)
{
	*ret_passed = stop < 5; /* they have all published step 5 */
	*ret_step = 5;
	return 0;
}

int ptc_workers_wait_stopped(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, char *ret_later,
			     const struct ptc_wait *wait, struct ptc_error *err)
{
	int64_t ms = 0;

	for (;;) { /* until the test has them stopped */
		size_t stopped = 0, all = 0;

		pthread_mutex_lock(&w->lock);
		for (size_t i = 0; i < w->n; i++)
			if (same_key(&w->slots[i]->key, key)) {
				all++;
				stopped +=
					w->slots[i]->view.state == PTC_SLOT_STOPPED && w->slots[i]->view.step == stop;
			}
		pthread_mutex_unlock(&w->lock);
		if (stopped == all)
			return 0;
		if (wait->cancelled(wait->arg))
			return ptc_error_set(err, PTC_ECANCELED, "stop: cancelled");
		if (wait->timeout_ms && (ms += 20) > wait->timeout_ms)
			return ptc_error_set(err, PTC_ETIMEOUT, "stop: rank 2 is late");
		usleep(20000);
	}
}

int ptc_workers_release(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t since, uint32_t leave_out,
			struct ptc_error *err)
{
	pthread_mutex_lock(&w->lock);
	w->releases++;
	for (size_t i = 0; i < w->n; i++)
		if (same_key(&w->slots[i]->key, key) && w->slots[i]->view.state == PTC_SLOT_STOPPED)
			w->slots[i]->view.state = PTC_SLOT_RUNNING;
	pthread_mutex_unlock(&w->lock);
	return 0;
}

int ptc_workers_hold(struct ptc_workers *w, const struct ptc_group_key *key, int64_t ms, uint64_t to,
		     const struct ptc_wait *wait, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ESTATE, "nothing is held here");
}

int ptc_workers_standby(struct ptc_workers *w, const struct ptc_group_desc *desc, size_t want, struct ptc_error *err)
{
	return 0;
}

void ptc_workers_standby_end(struct ptc_workers *w, const char *uuid)
{
}

int ptc_workers_let_go(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err)
{
	return 0;
}

void ptc_workers_report_again(struct ptc_workers *w, const struct ptc_group_key *key)
{
	w->reports_again++;
}

void ptc_workers_look_again(struct ptc_workers *w)
{
	pthread_mutex_lock(&w->lock);
	w->looks_again++;
	pthread_mutex_unlock(&w->lock);
}

int ptc_workers_end(struct ptc_workers *w, const struct ptc_group_key *key, const struct ptc_wait *wait,
		    struct ptc_error *err)
{
	size_t n = 0, kept = 0;

	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->n; i++) {
		struct rank_process *p = w->slots[i];

		n += same_key(&p->key, key);
		if (same_key(&p->key, key))
			slot_free(p);
		else
			w->slots[kept++] = p;
	}
	w->n = kept;
	pthread_mutex_unlock(&w->lock);
	return n ? 0 : ptc_error_set(err, PTC_ENOTFOUND, "no such ranks");
}

void ptc_workers_tell_end(struct ptc_workers *w, const struct ptc_group_key *key)
{
	struct ptc_error ignored = PTC_ERROR_INIT;

	ptc_workers_end(w, key, NULL, &ignored);
}

int ptc_workers_start_step(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t start_step,
			   struct ptc_error *err)
{
	return 0;
}

void ptc_workers_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep, size_t n,
		      bool given_up)
{
	(void)given_up;
	pthread_mutex_lock(&w->lock);
	w->drops++;
	slots_drop(w, uuid, keep, n);
	pthread_mutex_unlock(&w->lock);
}

int ptc_workers_slots(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_slot_view **ret_slots,
		      size_t *ret_n, struct ptc_error *err)
{
	struct ptc_slot_view *v = calloc(MAX_SLOTS, sizeof *v);
	size_t n = 0;

	pthread_mutex_lock(&w->lock);
	for (size_t i = w->n; i-- > 0;) /* in no order of ranks */
		if (same_key(&w->slots[i]->key, key))
			v[n++] = w->slots[i]->view;
	pthread_mutex_unlock(&w->lock);
	if (!n) {
		free(v);
		return ptc_error_set(err, PTC_ENOTFOUND, "no such ranks");
	}
	*ret_slots = v;
	*ret_n = n;
	return 0;
}

void ptc_workers_slots_done(struct ptc_workers *w, struct ptc_slot_view *slots, size_t n)
{
	free(slots);
}

static size_t iov_bytes(const struct iovec *v, size_t n)
{
	size_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += v[i].iov_len;
	return sum;
}

void ptc_slot_kept_unref(struct ptc_slot_kept *k)
{
	if (k && atomic_fetch_sub(&k->refs, 1) == 1)
		k->done(k);
}

int ptc_slot_copying_init(const struct ptc_slot_view *slot, struct ptc_slot_copying *c, struct ptc_error *err)
{
	atomic_store(&c->copier, 1);
	return 0;
}

void ptc_slot_copying_done(const struct ptc_slot_view *slot, struct ptc_slot_copying *c)
{
}

/* The process that copies could reach all of it. */
static void assert_given(const struct ptc_slot_copying *c, const struct iovec *local, size_t nlocal, bool write)
{
	const struct ptc_slot_memory *m = NULL;

	for (size_t i = 0; i < nlocal; i++) {
		const struct ptc_slot_memory *in = NULL;

		for (size_t k = 0; k < 2; k++)
			if (c->memory[k].fd >= 0 && (const uint8_t *)local[i].iov_base >= c->memory[k].base &&
			    (const uint8_t *)local[i].iov_base + local[i].iov_len <=
				    c->memory[k].base + c->memory[k].bytes)
				in = &c->memory[k];
		assert_non_null(in);
		assert_true(write || in->writable);
		assert_true(!m || in == m);
		m = in;
	}
}

int ptc_slot_copy(const struct ptc_slot_view *slot, enum ptc_copy_op op, struct ptc_slot_copying *copying,
		  const struct iovec *remote, size_t nremote, const struct iovec *local, size_t nlocal,
		  enum ptc_copy_pages pages, struct ptc_error *err)
{
	size_t want = iov_bytes(remote, nremote), at = 0;
	uint8_t *seen = malloc(want + 1);
	struct iovec to = { seen, want };
	ssize_t n = 0;
	bool same = true;

	assert_given(copying, local, nlocal, op != PTC_COPY_READ);
	assert_int_equal(want, iov_bytes(local, nlocal));
	assert_true(nremote <= 1024 && nlocal <= 1024);
	assert_true(op == PTC_COPY_READ || pages == PTC_PAGES_MAPPED);
	if (op == PTC_COPY_READ)
		n = process_vm_readv(slot->pid, local, nlocal, remote, nremote, 0);
	else if (op == PTC_COPY_WRITE)
		n = process_vm_writev(slot->pid, local, nlocal, remote, nremote, 0);
	else if (op == PTC_COPY_COMPARE)
		n = process_vm_readv(slot->pid, &to, 1, remote, nremote, 0);
	else
		fail_msg("a copy of kind %d", (int)op);
	for (size_t i = 0; op == PTC_COPY_COMPARE && i < nlocal; at += local[i++].iov_len)
		same = same && memcmp(seen + at, local[i].iov_base, local[i].iov_len) == 0;
	free(seen);
	if (n != (ssize_t)want)
		return ptc_error_set(err, PTC_ESTATE, "rank %u is gone", slot->rank.rank);
	return same ? 0 : ptc_error_set(err, PTC_EDIGEST, "the bytes of rank %u differ", slot->rank.rank);
}

/* Asked once for each order that has checksums; true: a bit of each row's first byte is wrong while the rank reads it.
 */
static bool (*spoils_read)(const struct ptc_slot_order *order);

/* Whether all blocks match that the row takes bytes from. It lies in one of the chunks. */
static bool row_matches(const struct ptc_slot_order *order, int fd, uint64_t at, uint64_t bytes)
{
	static _Thread_local uint8_t block[PTC_BLOCK_BYTES];
	const struct ptc_chunk_sums *c = order->chunks, *end = c + order->nchunks;
	bool matches = true;

	while (c < end && (at < c->at || at - c->at >= PTC_CHUNK_BYTES))
		c++;
	assert_true(c < end && at - c->at + bytes <= PTC_CHUNK_BYTES);
	for (size_t b = (at - c->at) / PTC_BLOCK_BYTES; c->at + b * PTC_BLOCK_BYTES < at + bytes; b++) {
		size_t off = b * PTC_BLOCK_BYTES, len = PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);

		assert_int_equal(pread(fd, block, len, (off_t)(c->at + off)), len);
		matches = matches && ptc_checksum(block, len) == c->sums[b];
	}
	return matches;
}

/* Every other rank can: what it would read of the file is written into it. Of these every other one verifies. */
int ptc_slot_fill(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, int fd,
		  const struct ptc_slot_order *order, const struct ptc_wait *wait, struct ptc_error *err)
{
	const struct ptc_slot_rows *rows = order->rows;
	struct rank_process *p = slot->opaque;
	bool spoilt;

	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_true(order->nrows && order->nrows <= PTC_SLOT_ROWS_MAX);
	assert_true(order->nchunks <= PTC_SLOT_CHUNKS_MAX && (!order->nchunks || slot->verifies));
	spoilt = order->nchunks && spoils_read && spoils_read(order);
	f->failed = !(slot->rank.rank % 2);
	for (size_t i = 0; !f->failed && i < order->nrows; i++)
		for (uint64_t k = 0; k < rows[i].count; k++) {
			uint64_t at = rows[i].offset + k * rows[i].offset_step;
			struct iovec there = { (void *)(uintptr_t)(rows[i].address + k * rows[i].address_step),
					       rows[i].bytes };
			struct iovec here = { malloc(rows[i].bytes), rows[i].bytes };

			if (spoilt || (order->nchunks && !row_matches(order, fd, at, rows[i].bytes)))
				atomic_store(&p->damaged, true);
			assert_int_equal(pread(fd, here.iov_base, here.iov_len, (off_t)at), here.iov_len);
			*(uint8_t *)here.iov_base ^= spoilt ? 16 : 0;
			if (process_vm_writev(slot->pid, &here, 1, &there, 1, 0) != (ssize_t)there.iov_len)
				f->failed = true;
			free(here.iov_base);
		}
	return 0;
}

int ptc_slot_filled(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, const struct ptc_wait *wait,
		    struct ptc_error *err)
{
	struct rank_process *p = slot->opaque;

	f->damaged = atomic_exchange(&p->damaged, false);
	return 0;
}

int ptc_slot_go(const struct ptc_slot_view *slot, bool restored, const struct ptc_slot_blob *blobs, size_t nblobs,
		const struct ptc_slot_cursor *cursors, size_t ncursors, struct ptc_error *err)
{
	struct rank_process *p = slot->opaque;

	pthread_mutex_lock(&p->owner->lock);
	p->went = true;
	p->restored = restored;
	p->view.state = PTC_SLOT_RUNNING;
	rank_state_text(&p->got, &(struct ptc_rank_state){ blobs, cursors, nblobs, ncursors });
	pthread_mutex_unlock(&p->owner->lock);
	return 0;
}

int ptc_workers_rendezvous_put(struct ptc_workers *w, const struct ptc_group_key *key, const char *name,
			       const void *value, size_t len, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOTFOUND, "no such ranks");
}

int ptc_workers_rendezvous_get(struct ptc_workers *w, const struct ptc_group_key *key, const char *name, void *buffer,
			       size_t capacity, size_t *ret_len, const struct ptc_wait *wait, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOTFOUND, "no such ranks");
}

const char *ptc_slot_device(const struct ptc_slot_view *slot, uint64_t address)
{
	(void)slot;
	(void)address;
	return NULL;
}

int ptc_workers_keep(struct ptc_workers *w, const char *uuid, uint64_t bytes, struct ptc_device_memory *ret,
		     struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

void ptc_workers_keep_drop(struct ptc_workers *w, struct ptc_device_memory *m)
{
}

int ptc_workers_keep_digest(struct ptc_workers *w, const struct ptc_device_memory *m,
			    const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

int ptc_slot_kept_copy(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, enum ptc_copy_op op,
		       const struct ptc_device_memory *m, const struct ptc_device_rows *rows, size_t n,
		       struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

int ptc_slot_digest(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying,
		    const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

int ptc_slot_shadow(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

bool ptc_slot_has_shadow(const struct ptc_slot_view *slot, uint64_t address)
{
	return false;
}

void ptc_slots_shadow_only(struct ptc_workers *w, struct ptc_slot_copying *copying)
{
}

void ptc_slots_shadow_drop(struct ptc_workers *w, struct ptc_slot_copying *copying)
{
}

bool ptc_workers_copied_async(struct ptc_workers *w, const struct ptc_group_key *key, bool done, const char *why)
{
	return true;
}

bool ptc_slot_mapped(const struct ptc_slot_view *slot)
{
	return false;
}

int ptc_workers_pin_begin(struct ptc_workers *w, int fd, uint64_t bytes, uint64_t step, const char *uuid,
			  struct ptc_device_pinned *ret, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

int ptc_workers_pin_more(struct ptc_workers *w, struct ptc_device_pinned *p, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "no devices");
}

bool ptc_slots_shadow_lives(struct ptc_workers *w, const struct ptc_slot_copying *copying)
{
	return true;
}

bool ptc_workers_unpin(struct ptc_workers *w, struct ptc_device_pinned *p)
{
	return true;
}

uint64_t ptc_workers_pinned(const struct ptc_workers *w)
{
	(void)w;
	return 0;
}

int ptc_workers_json(struct ptc_workers *w, const char *uuid, char **ret_json, struct ptc_error *err)
{
	*ret_json = ptc_asprintf("[]");
	return *ret_json ? 0 : PTC_ENOMEM;
}

int ptc_workers_log(struct ptc_workers *w, const char *uuid, uint32_t rank, uint64_t incarnation,
		    struct ptc_worker_log *ret_log, struct ptc_error *err)
{
	*ret_log = (struct ptc_worker_log){ .rank = rank, .incarnation = incarnation, .end = UINT64_MAX };
	pthread_mutex_lock(&w->lock);
	snprintf(ret_log->path, sizeof(ret_log->path), "%s/log.%u", (const char *)w->arg, rank);
	pthread_mutex_unlock(&w->lock);
	return 0;
}

static _Atomic bool test_log_over;

void ptc_workers_each_rank(struct ptc_workers *w, void (*fn)(void *arg, const struct ptc_rank_given *r), void *arg)
{
}

void ptc_workers_log_look(struct ptc_workers *w, const char *uuid, struct ptc_worker_log *log)
{
	log->over = test_log_over;
}
