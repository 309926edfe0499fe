/* SPDX-License-Identifier: Apache-2.0 */
/* The limits: memcpy and loopback TCP, plain or under TLS, with nothing of ptc in between.
 *
 * Happy path: as many socket pairs as streams, a thread at each end, bytes go from one large buffer to another.
 *
 * Failure modes: no socket, no thread, a short stream: PTC_EIO. */
#include "tests/bench/measure.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static double cpu_now(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

struct measure_clock measure_start(void)
{
	return (struct measure_clock){ ptc_sys_now_ns(), cpu_now() };
}

struct measured measure_end(const struct measure_clock *c, int64_t bytes)
{
	return (struct measured){ (double)(ptc_sys_now_ns() - c->wall_ns) / 1e9, cpu_now() - c->cpu, bytes };
}

void measure_print(const char *name, const struct measured *m)
{
	printf("\"%s\":{\"bytes\":%lld,\"seconds\":%.6f,\"cpu_seconds\":%.6f}", name, (long long)m->bytes, m->seconds,
	       m->cpu_seconds);
}

int measure_memory_new(struct measure_memory *m, size_t bytes, struct ptc_error *err)
{
	*m = (struct measure_memory){ ptc_malloc(bytes), ptc_malloc(bytes), bytes };
	if (!m->src || !m->dst) {
		measure_memory_done(m);
		return ptc_error_set(err, PTC_ENOMEM, "no memory for two buffers of %zu bytes", bytes);
	}
	for (size_t i = 0; i < bytes; i++)
		m->src[i] = (uint8_t)(i * 2654435761u >> 13);
	memset(m->dst, 1, bytes);
	return 0;
}

void measure_memory_done(struct measure_memory *m)
{
	ptc_free(m->src);
	ptc_free(m->dst);
	*m = (struct measure_memory){ 0 };
}

struct copy {
	pthread_t thread;
	uint8_t *to;
	const uint8_t *from;
	size_t size;
	int64_t bytes;
};

static void *copy_thread(void *arg)
{
	const struct copy *c = arg;

	for (int64_t done = 0, n; done < c->bytes; done += n) {
		size_t at = (size_t)done % c->size;

		n = PTC_MIN(PTC_MIN((int64_t)(c->size - at), c->bytes - done), MEASURE_WRITE_BYTES);
		memcpy(c->to + at, c->from + at, (size_t)n);
		__asm__ volatile("" ::: "memory");
	}
	return NULL;
}

struct measured measure_memcpy(const struct measure_memory *m, int threads, int64_t bytes)
{
	struct measure_clock clock = measure_start();
	struct copy copies[MEASURE_STREAMS_MAX];
	size_t part = m->bytes / (size_t)threads;
	int started = 1;

	for (int i = 0; i < threads; i++)
		copies[i] = (struct copy){ .to = m->dst + (size_t)i * part,
					   .from = m->src + (size_t)i * part,
					   .size = part,
					   .bytes = bytes / threads };
	while (started < threads && pthread_create(&copies[started].thread, NULL, copy_thread, &copies[started]) == 0)
		started++;
	for (int i = started; i < threads; i++) /* without a thread of their own */
		copy_thread(&copies[i]);
	copy_thread(&copies[0]);
	for (int i = 1; i < started; i++)
		pthread_join(copies[i].thread, NULL);
	return measure_end(&clock, bytes / threads * threads);
}

struct end {
	pthread_t thread;
	struct measure_tls *tls; /* NULL: plain TCP */
	uint8_t *memory;
	size_t size;
	int64_t bytes;
	int fd;
	bool failed;
};

static ssize_t put(struct end *e, const uint8_t *from, size_t n)
{
	ssize_t sent;

	if (e->tls)
		return measure_tls_write(e->tls, from, n);
	do
		sent = send(e->fd, from, n, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent;
}

static ssize_t get(struct end *e, uint8_t *to, size_t n)
{
	ssize_t got;

	if (e->tls)
		return measure_tls_read(e->tls, to, n);
	do
		got = recv(e->fd, to, n, 0);
	while (got < 0 && errno == EINTR);
	return got;
}

/* Moves an end's bytes, through its memory again and again. An end that fails ends the other one, too. */
static void move(struct end *e, bool sends)
{
	for (int64_t done = 0, n; done < e->bytes; done += n) {
		size_t at = (size_t)done % e->size;
		size_t most = (size_t)PTC_MIN(PTC_MIN((int64_t)(e->size - at), e->bytes - done), MEASURE_WRITE_BYTES);

		n = sends ? put(e, e->memory + at, most) : get(e, e->memory + at, most);
		if (n <= 0) {
			e->failed = true;
			shutdown(e->fd, SHUT_RDWR);
			return;
		}
	}
}

static void *send_thread(void *arg)
{
	move(arg, true);
	return NULL;
}

static void *recv_thread(void *arg)
{
	move(arg, false);
	return NULL;
}

static int connect_pair(int listener, const struct sockaddr_in *address, int *ret_a, int *ret_b, struct ptc_error *err)
{
	int a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), b = -1;

	if (a >= 0 && connect(a, (const struct sockaddr *)address, sizeof *address) == 0)
		b = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (b >= 0) {
		*ret_a = a;
		*ret_b = b;
		return 0;
	}
	ptc_error_errno(err, errno, "no loopback connection");
	if (a >= 0)
		close(a);
	return PTC_EIO;
}

static int pairs_open(struct end *ends, int streams, struct ptc_error *err)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;
	socklen_t len = sizeof address;

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
	    listen(listener, MEASURE_STREAMS_MAX) != 0 || getsockname(listener, (struct sockaddr *)&address, &len) != 0)
		rc = ptc_error_errno(err, errno, "cannot listen on loopback");
	for (int i = 0; !rc && i < streams; i++)
		rc = connect_pair(listener, &address, &ends[2 * i].fd, &ends[2 * i + 1].fd, err);
	if (listener >= 0)
		close(listener);
	return rc;
}

static int ends_run(struct end *ends, int n, struct ptc_error *err)
{
	int started = 0;
	bool failed = false;

	for (; started < n; started++)
		if (pthread_create(&ends[started].thread, NULL, started % 2 ? recv_thread : send_thread,
				   &ends[started]) != 0)
			break;
	for (int i = started; i < n; i++) /* the other ends then see the end of the stream */
		shutdown(ends[i].fd, SHUT_RDWR);
	for (int i = 0; i < started; i++) {
		pthread_join(ends[i].thread, NULL);
		failed = failed || ends[i].failed;
	}
	return failed || started < n ? ptc_error_set(err, PTC_EIO, "a loopback stream broke") : 0;
}

/* The ends get TLS, and each stream a byte: hands are shaken before anything is measured. */
static int ends_secure(struct end *ends, int streams, const char *dir, struct ptc_error *err)
{
	int64_t bytes = ends[0].bytes;
	int rc = 0;

	for (int i = 0; !rc && i < 2 * streams; i++) {
		ends[i].bytes = 1;
		rc = measure_tls_new(dir, ends[i].fd, i % 2, &ends[i].tls, err);
	}
	if (!rc)
		rc = ends_run(ends, 2 * streams, err);
	for (int i = 0; i < 2 * streams; i++)
		ends[i].bytes = bytes;
	return rc;
}

int measure_tcp(const struct measure_memory *m, int streams, int64_t bytes, const char *tls_dir, struct measured *ret,
		struct ptc_error *err)
{
	struct end ends[2 * MEASURE_STREAMS_MAX];
	size_t part = m->bytes / (size_t)streams;
	struct measure_clock c;
	int rc;

	for (int i = 0; i < 2 * streams; i++)
		ends[i] = (struct end){ .fd = -1,
					.memory = (i % 2 ? m->dst : m->src) + (size_t)(i / 2) * part,
					.size = part,
					.bytes = bytes / streams };
	rc = pairs_open(ends, streams, err);
	if (!rc && tls_dir)
		rc = ends_secure(ends, streams, tls_dir, err);
	c = measure_start();
	if (!rc)
		rc = ends_run(ends, 2 * streams, err);
	if (!rc)
		*ret = measure_end(&c, bytes / streams * streams);
	for (int i = 0; i < 2 * streams; i++) {
		measure_tls_free(ends[i].tls);
		if (ends[i].fd >= 0)
			close(ends[i].fd);
	}
	return rc;
}
