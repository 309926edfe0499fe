/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side of FUSE over a socket, and a source in memory, for tests and the fuzzer. A message is made of
 * well-formed parts; their content is the caller's. One thread. */
#pragma once

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "fusefs/serve/fusefs.h"
#include "fusefs/serve/test_data.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PEER_MAX ((1u << 20) + 8192)

/* ---- the source ----------------------------------------------------------------- */

#define MEM_TENSORS 3
struct memory {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool hung;                    /* requests wait for patience_ms, then fail */
	_Atomic uint32_t patience_ms; /* milliseconds */
	_Atomic bool away;            /* requests fail at once, as of a daemon that is dead */
	_Atomic bool unpin_waits;     /* leases are not given up until this is false again */
	_Atomic uint64_t generation, snapshot;
	_Atomic int error;   /* the code with which reads fail; 0: they succeed */
	uint64_t salt;       /* changes the bytes */
	_Atomic bool shared; /* "job" is shared with group 500 */
	char uuid[37];
	_Atomic int pinned, reads, states;
	_Atomic int pins, unpins;    /* calls that have begun */
	_Atomic uint64_t read_bytes; /* bytes that reads asked for */
	/* an item; reads of `bad` are damaged, reads of others together with `slow` wait; -1: none */
	_Atomic int bad, slow;
	struct memory_samples samples;
	int (*locate)(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		      struct ptc_fs_spans **ret, struct ptc_error *err); /* NULL: no bytes lie here */
	struct ptc_tensor tensors[MEM_TENSORS];
	struct ptc_field field;
	struct ptc_spec spec;
	struct ptc_config config;
};

static inline uint8_t memory_byte(const struct memory *m, uint32_t item, uint64_t off)
{
	return (uint8_t)((off * 2654435761u >> 7) + item * 31 + m->salt * 7);
}

/* Waits like a daemon that hangs: its answer comes late and says so. */
static inline int memory_wait(struct memory *m)
{
	int64_t end_ns = ptc_sys_now_ns() + (int64_t)m->patience_ms * 1000000;
	int rc = 0;

	if (m->away)
		return PTC_EPEER;
	pthread_mutex_lock(&m->lock);
	while (m->hung && ptc_sys_now_ns() < end_ns) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 10000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&m->cond, &m->lock, &until);
	}
	rc = m->hung ? PTC_ETIMEOUT : 0;
	pthread_mutex_unlock(&m->lock);
	return rc;
}

static inline void memory_hang(struct memory *m, bool hung)
{
	pthread_mutex_lock(&m->lock);
	m->hung = hung;
	pthread_cond_broadcast(&m->cond);
	pthread_mutex_unlock(&m->lock);
}

static inline int memory_jobs(void *arg, struct ptc_fs_job **ret, size_t *ret_n, struct ptc_error *err)
{
	struct memory *m = arg;
	struct ptc_fs_job *v;
	int rc = memory_wait(m);

	if (rc)
		return ptc_error_set(err, rc, "hung");
	v = ptc_calloc(3, sizeof *v);
	if (!v)
		return ptc_nomem(err);
	strcpy(v[0].name, "job");
	strcpy(v[0].uuid, m->uuid);
	v[0].uid = 1000;
	v[0].shared = m->shared;
	v[0].gid = m->shared ? 500 : 0;
	v[0].generation = m->generation;
	v[0].snapshot = m->snapshot;
	v[0].step = 7;
	strcpy(v[1].name, "empty");
	strcpy(v[1].uuid, "00000000-0000-4000-8000-000000000002");
	v[1].uid = 1001;
	strcpy(v[2].name, "data");
	strcpy(v[2].uuid, DATA_UUID);
	v[2].uid = geteuid(); /* its data is shown whoever runs the test */
	*ret = v;
	*ret_n = 3;
	return 0;
}

static inline int memory_open(void *arg, const char *job, uint64_t snapshot, struct ptc_fs_state **ret,
			      struct ptc_error *err)
{
	struct memory *m = arg;
	struct ptc_fs_state *s;
	int rc = memory_wait(m);

	if (rc)
		return ptc_error_set(err, rc, "hung");
	if (strcmp(job, m->uuid))
		return ptc_error_set(err, PTC_ESTATE, "no snapshot");
	s = ptc_calloc(1, sizeof *s);
	if (!s)
		return ptc_nomem(err);
	strcpy(s->job, "job");
	strcpy(s->uuid, m->uuid);
	s->generation = m->generation;
	s->snapshot = m->snapshot;
	s->step = 7;
	s->created_ms = 1000000;
	s->config = "tp=2";
	s->ranks_json = "[]";
	s->set.spec = &m->spec;
	rc = ptc_layout_new(&m->spec, &m->config, &s->layout, err);
	if (rc) {
		ptc_free(s);
		return rc;
	}
	m->states++;
	*ret = s;
	return 0;
}

static inline void memory_close(void *arg, struct ptc_fs_state *s)
{
	ptc_layout_free(s->layout);
	ptc_free(s);
	((struct memory *)arg)->states--;
}

static inline int memory_pin(void *arg, const struct ptc_fs_state *s, uint32_t ttl_ms, struct ptc_error *err)
{
	struct memory *m = arg;
	int rc;

	*(ttl_ms ? &m->pins : &m->unpins) += 1;
	while (!ttl_ms && m->unpin_waits)
		usleep(5000);
	rc = memory_wait(m);
	if (rc)
		return ptc_error_set(err, rc, "hung");
	if (ttl_ms && (s->snapshot != m->snapshot || s->generation != m->generation) && m->pinned == 0)
		return ptc_error_set(err, PTC_ESTATE, "gone");
	m->pinned = ttl_ms ? 1 : 0;
	return 0;
}

static inline bool memory_asked(const struct memory *m, const struct ptc_fs_range *ranges, size_t n, int item)
{
	for (size_t i = 0; i < n; i++)
		if ((int)ranges[i].item == item)
			return true;
	return false;
}

/* Waits like a node that does not answer, until the test ends that. */
static inline int memory_wait_long(struct memory *m)
{
	while (m->slow >= 0)
		usleep(5000);
	return PTC_ETIMEOUT;
}

static inline int memory_read(void *arg, const struct ptc_fs_state *s, const struct ptc_fs_range *ranges, size_t n,
			      ptc_fs_data_fn fn, void *fn_arg, struct ptc_error *err)
{
	struct memory *m = arg;
	uint8_t buf[4096];
	int rc = memory_asked(m, ranges, n, m->slow) && n > 1 ? memory_wait_long(m) : memory_wait(m);

	m->reads++;
	for (size_t i = 0; i < n; i++)
		m->read_bytes += ranges[i].length;
	if (rc == 0)
		rc = memory_asked(m, ranges, n, m->bad) ? PTC_ECORRUPT : m->error;
	for (size_t i = 0; i < n && !rc; i++)
		for (uint64_t at = 0, len; at < ranges[i].length && !rc; at += len) {
			len = PTC_MIN(ranges[i].length - at, sizeof(buf));
			for (uint64_t k = 0; k < len; k++)
				buf[k] = memory_byte(m, ranges[i].item, ranges[i].offset + at + k);
			rc = fn(fn_arg, buf, (size_t)len, err);
		}
	return rc ? ptc_error_set(err, rc, "reading fails") : 0;
}

static inline int memory_data(void *arg, const char *job, char **ret_json, struct ptc_error *err)
{
	int rc = memory_wait(arg);

	if (rc)
		return ptc_error_set(err, rc, "hung");
	if (strcmp(job, DATA_UUID))
		return ptc_error_set(err, PTC_ESTATE, "no snapshot");
	*ret_json = ptc_strdup(data_answer);
	return *ret_json ? 0 : ptc_nomem(err);
}

static inline int memory_samples(void *arg, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn, void *fn_arg,
				 struct ptc_error *err)
{
	struct memory *m = arg;
	int rc = memory_wait(m);

	return rc ? ptc_error_set(err, rc, "hung") : data_samples(&m->samples, what, fn, fn_arg, err);
}

/* Parameters a (3 MiB), b (a scalar), c (of 5 elements), each with one field. */
static inline void memory_init(struct memory *m)
{
	static const char *const names[MEM_TENSORS] = { "a", "b", "c/d" };

	*m = (struct memory){ .generation = 1, .snapshot = 1, .patience_ms = 3000, .bad = -1, .slow = -1 };
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->cond, NULL);
	strcpy(m->uuid, "00000000-0000-4000-8000-000000000001");
	for (int i = 0; i < MEM_TENSORS; i++)
		m->tensors[i] = (struct ptc_tensor){ .name = names[i], .dtype = PTC_F32 };
	m->tensors[0].ndim = 2;
	m->tensors[0].shape[0] = 768;
	m->tensors[0].shape[1] = 1024;
	m->tensors[2].ndim = 1;
	m->tensors[2].shape[0] = 5;
	m->field = (struct ptc_field){ .name = "exp", .same_dtype = true };
	m->spec = (struct ptc_spec){
		.name = "job", .tensors = m->tensors, .ntensors = MEM_TENSORS, .fields = &m->field, .nfields = 1
	};
	ptc_require(!ptc_config_parse("tp=2", &m->config, NULL));
}

static inline struct ptc_fs_source memory_source(struct memory *m)
{
	return (struct ptc_fs_source){ memory_jobs, memory_open, memory_close, memory_pin,    memory_read,
				       m,           memory_data, m->locate,    memory_samples };
}

/* ---- the kernel's side --------------------------------------------------------------- */

struct peer {
	int fd;
	uint64_t unique;
	uint32_t uid, gid, pid;
	struct ptc_fs *fs;
	pthread_t thread;
	/* the last reply */
	uint8_t *reply;
	size_t len;
	int error; /* the reply's error: 0 or an errno */
	/* the last bytes that came without a request */
	struct fuse_notify_store_out stored;
	uint8_t *stored_data;
	unsigned nstored;
};

static inline void *peer_serve(void *fs)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_require(!ptc_fs_run(fs, &err));
	return NULL;
}

/* Sends a request; returns its number. */
static inline uint64_t peer_send(struct peer *p, uint32_t opcode, uint64_t node, const void *arg, size_t len,
				 const void *tail, size_t tail_len)
{
	struct fuse_in_header h = { .len = (uint32_t)(sizeof(h) + len + tail_len),
				    .opcode = opcode,
				    .unique = p->unique += 2, /* odd ones are interrupts */
				    .nodeid = node,
				    .uid = p->uid,
				    .gid = p->gid,
				    .pid = p->pid };
	struct iovec iov[3] = { { &h, sizeof(h) },
				{ (void *)(uintptr_t)arg, len },
				{ (void *)(uintptr_t)tail, tail_len } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 3 };
	ssize_t n;

	do
		n = sendmsg(p->fd, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	ptc_require(n == (ssize_t)h.len);
	return h.unique;
}

/* Takes bytes that come without a request: a file's, from its begin. */
static inline void peer_stored(struct peer *p, const struct fuse_out_header *h, const uint8_t *data, size_t len)
{
	ptc_require(h->error == FUSE_NOTIFY_STORE && len >= sizeof(p->stored));
	memcpy(&p->stored, data, sizeof(p->stored));
	ptc_require(p->stored.offset == 0 && p->stored.size == len - sizeof(p->stored));
	memcpy(p->stored_data, data + sizeof(p->stored), p->stored.size);
	p->nstored++;
}

/* Waits until something can be received. False: nothing came in time. A signal does not end the wait: libFuzzer's alarm
 * comes every few seconds, and poll is never restarted after one. */
static inline bool peer_wait(const struct peer *p, int timeout_ms)
{
	struct pollfd poller = { .fd = p->fd, .events = POLLIN };
	int64_t end_ns = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000, left_ns;
	int n;

	do {
		left_ns = PTC_MAX(end_ns - ptc_sys_now_ns(), (int64_t)0);
		n = poll(&poller, 1, (int)((left_ns + 999999) / 1000000));
	} while (n < 0 && errno == EINTR);
	return n == 1;
}

/* Receives the next reply, of any request; returns its number, 0: none in time. */
static inline uint64_t peer_receive(struct peer *p, int timeout_ms)
{
	struct fuse_out_header h;
	ssize_t n;

	do {
		if (!peer_wait(p, timeout_ms))
			return 0;
		n = recv(p->fd, p->reply, PEER_MAX, 0);
		if (n < (ssize_t)sizeof(h))
			return 0;
		memcpy(&h, p->reply, sizeof(h));
		ptc_require(h.len == (size_t)n);
		if (!h.unique)
			peer_stored(p, &h, p->reply + sizeof(h), (size_t)n - sizeof(h));
	} while (!h.unique);
	p->len = (size_t)n - sizeof(h);
	p->error = -h.error;
	memmove(p->reply, p->reply + sizeof(h), p->len);
	return h.unique;
}

/* Says which request got no reply, for whoever finds out why. */
static inline void peer_say(uint64_t unique, uint32_t opcode, uint64_t node, const uint8_t *arg, size_t len)
{
	fprintf(stderr, "no reply to request %llu, opcode %u, node %llu, arguments", (unsigned long long)unique, opcode,
		(unsigned long long)node);
	for (size_t i = 0; i < len; i++)
		fprintf(stderr, "%s%02x", i % 8 ? "" : " ", arg[i]);
	fprintf(stderr, "\n");
}

/* Sends a request and waits for its reply; returns its error. */
static inline int peer_call(struct peer *p, uint32_t opcode, uint64_t node, const void *arg, size_t len,
			    const void *tail, size_t tail_len)
{
	uint64_t unique = peer_send(p, opcode, node, arg, len, tail, tail_len), got;

	do
		got = peer_receive(p, 10000);
	while (got && got != unique);
	if (got != unique)
		peer_say(unique, opcode, node, arg, len);
	ptc_require(got == unique); /* every request is answered */
	return p->error;
}

static inline void peer_start(struct peer *p, struct memory *m, uint32_t timeout_ms, uint64_t cache_bytes)
{
	struct ptc_fs_opts opts = {
		.source = memory_source(m), .cache_bytes = cache_bytes, .timeout_ms = timeout_ms, .others = true
	};
	struct fuse_init_in init = { .major = 7, .minor = 36, .max_readahead = 131072, .flags = FUSE_ASYNC_READ };
	struct ptc_error err = PTC_ERROR_INIT;
	int pair[2];

	*p = (struct peer){ .reply = malloc(PEER_MAX), .stored_data = malloc(PEER_MAX) };
	ptc_require(p->reply && p->stored_data && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	for (int i = 0; i < 2; i++)
		setsockopt(pair[i], SOL_SOCKET, SO_SNDBUFFORCE, &(int){ 8 << 20 }, sizeof(int));
	p->fd = pair[0];
	ptc_require(!ptc_fs_new(&opts, &p->fs, &err));
	ptc_require(!ptc_fs_serve_fd(p->fs, pair[1], &err));
	close(pair[1]);
	ptc_require(!pthread_create(&p->thread, NULL, peer_serve, p->fs));
	ptc_require(!peer_call(p, FUSE_INIT, 0, &init, sizeof(init), NULL, 0));
}

static inline void peer_stop(struct peer *p)
{
	ptc_fs_stop(p->fs);
	pthread_join(p->thread, NULL);
	ptc_fs_free(p->fs);
	close(p->fd);
	free(p->reply);
	free(p->stored_data);
}

/* Looks a name up; returns its node, or 0 with the error in p. */
static inline uint64_t peer_lookup(struct peer *p, uint64_t parent, const char *name, struct fuse_attr *ret_attr)
{
	struct fuse_entry_out out;

	if (peer_call(p, FUSE_LOOKUP, parent, name, strlen(name) + 1, NULL, 0))
		return 0;
	ptc_require(p->len == sizeof(out));
	memcpy(&out, p->reply, sizeof(out));
	if (ret_attr)
		*ret_attr = out.attr;
	return out.nodeid;
}

/* Looks up a path such as "job/state/..." from the root; 0: a part of it does not exist. */
static inline uint64_t peer_walk(struct peer *p, const char *path, struct fuse_attr *ret_attr)
{
	uint64_t node = FUSE_ROOT_ID;
	char name[256];

	while (node && *path) {
		size_t n = strcspn(path, "/");

		snprintf(name, sizeof(name), "%.*s", (int)n, path);
		node = peer_lookup(p, node, name, ret_attr);
		path += n + (path[n] == '/');
	}
	return node;
}

/* Opens a node; returns the handle, or 0 with the error in p. */
static inline uint64_t peer_open(struct peer *p, uint64_t node, bool dir)
{
	struct fuse_open_in in = { .flags = 0 };
	struct fuse_open_out out;

	if (peer_call(p, dir ? FUSE_OPENDIR : FUSE_OPEN, node, &in, sizeof(in), NULL, 0))
		return 0;
	memcpy(&out, p->reply, sizeof(out));
	return out.fh;
}

static inline uint64_t peer_send_read(struct peer *p, uint64_t node, uint64_t fh, uint64_t off, uint32_t size)
{
	struct fuse_read_in in = { .fh = fh, .offset = off, .size = size };

	return peer_send(p, FUSE_READ, node, &in, sizeof(in), NULL, 0);
}

static inline int peer_read(struct peer *p, uint64_t node, uint64_t fh, uint64_t off, uint32_t size)
{
	struct fuse_read_in in = { .fh = fh, .offset = off, .size = size };

	return peer_call(p, FUSE_READ, node, &in, sizeof(in), NULL, 0);
}

static inline int peer_release(struct peer *p, uint64_t node, uint64_t fh, bool dir)
{
	struct fuse_release_in in = { .fh = fh };

	return peer_call(p, dir ? FUSE_RELEASEDIR : FUSE_RELEASE, node, &in, sizeof(in), NULL, 0);
}
