/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the requests to ptc-gpu, and gives each to the device's thread. Happy path: receive, check, hand over to the
 * worker of the device. Failure modes: a request that is malformed or names nothing is answered with why; a message
 * without a head ends the process, as its sender is no ptcd of this package. When the socket closes the workers end,
 * and with them every mapping, context and pinned page. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/memory/huge_map.h"
#include "base/sys/fault.h"
#include "daemon/gpu/gpu_server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- host maps ---- */

static int map_file(struct ptc_gpu_server *s, int fd, uint64_t bytes, struct ptc_gpu_host_map **ret,
		    struct ptc_error *err)
{
	struct ptc_gpu_host_map *h = NULL;
	struct stat st;
	bool read_only = false;
	void *base;

	if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return ptc_error_set(err, PTC_EINVAL, "a host map of %" PRIu64 " bytes of a file that has fewer",
				     bytes);
	base = ptc_huge_map(fd, 0, bytes, PROT_READ | PROT_WRITE);
	if (base == MAP_FAILED && errno == EACCES) {
		read_only = true;
		base = ptc_huge_map(fd, 0, bytes, PROT_READ);
	}
	if (base == MAP_FAILED)
		return ptc_error_errno(err, errno, "map %" PRIu64 " bytes of host memory", bytes);
	pthread_mutex_lock(&s->hosts_lock);
	for (unsigned i = 0; i < PTC_GPU_HOSTS_MAX && !h; i++)
		if (!s->hosts[i].base)
			h = &s->hosts[i];
	if (h)
		*h = (struct ptc_gpu_host_map){ .base = base, .bytes = bytes, .uses = 1, .read_only = read_only };
	pthread_mutex_unlock(&s->hosts_lock);
	if (!h) {
		munmap(base, bytes);
		return ptc_error_set(err, PTC_ELIMIT, "%d host maps are open; close some", PTC_GPU_HOSTS_MAX);
	}
	*ret = h;
	return 0;
}

/* Counts a use of the map that a request names; its job gives it back. */
static int use_host(struct ptc_gpu_server *s, uint32_t number, struct ptc_gpu_host_map **ret, struct ptc_error *err)
{
	struct ptc_gpu_host_map *h = number && number <= PTC_GPU_HOSTS_MAX ? &s->hosts[number - 1] : NULL;
	bool found;

	pthread_mutex_lock(&s->hosts_lock);
	found = h && h->ready;
	if (found)
		h->uses++;
	pthread_mutex_unlock(&s->hosts_lock);
	if (!found)
		return ptc_error_set(err, PTC_ENOTFOUND, "no host map %" PRIu32, number);
	*ret = h;
	return 0;
}

/* ---- workers ---- */

static int worker_for(struct ptc_gpu_server *s, const char *uuid, struct ptc_gpu_worker **ret, struct ptc_error *err)
{
	int rc;

	for (unsigned i = 0; i < s->nworkers; i++)
		if (strcmp(s->workers[i]->uuid, uuid) == 0) {
			*ret = s->workers[i];
			return 0;
		}
	if (s->nworkers == PTC_GPU_ATTACHED_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "device %s: %d devices are in use", uuid, PTC_GPU_ATTACHED_MAX);
	rc = ptc_gpu_worker_new(s, s->nworkers, uuid, ret, err);
	if (rc == 0)
		s->workers[s->nworkers++] = *ret;
	return rc;
}

/* Which worker a request is for. */
static int route(struct ptc_gpu_server *s, const struct ptc_gpu_job *j, struct ptc_gpu_worker **ret,
		 struct ptc_error *err)
{
	uint32_t i = (j->head.memory - 1) / PTC_GPU_MEMORY_MAX;

	if (j->head.op == PTC_GPU_BIND || j->head.op == PTC_GPU_MAP_HOST || j->head.op == PTC_GPU_KEEP ||
	    j->head.op == PTC_GPU_LOCK)
		return worker_for(s, j->head.bind.uuid, ret, err);
	if (j->head.op == PTC_GPU_UNMAP_HOST)
		i = j->host->worker;
	else if (j->head.memory == 0 || i >= s->nworkers)
		return ptc_error_set(err, PTC_ENOTFOUND, "no allocation %" PRIu32 " is mapped", j->head.memory);
	*ret = s->workers[i];
	return 0;
}

/* ---- requests ---- */

static int map_host(struct ptc_gpu_server *s, struct ptc_gpu_job *j, bool *ret_answered, struct ptc_error *err)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = j->head.id };
	struct ptc_gpu_worker *w;
	int rc = map_file(s, j->fds[0], j->head.bytes, &j->host, err);

	if (rc)
		return rc;
	if (j->head.flags & PTC_GPU_PIN) {
		rc = route(s, j, &w, err);
		if (rc) {
			ptc_gpu_server_host_free(s, j->host);
			j->host = NULL;
			return rc;
		}
		j->host->worker = w->index;
		return 0;
	}
	a.ref = (uint32_t)(j->host - s->hosts) + 1;
	ptc_gpu_server_host_ready(s, j->host);
	ptc_gpu_server_answer(s, &a);
	*ret_answered = true;
	return 0;
}

static int unmap_host(struct ptc_gpu_server *s, struct ptc_gpu_job *j, bool *ret_answered, struct ptc_error *err)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = j->head.id };
	unsigned uses;
	int rc = use_host(s, j->head.host, &j->host, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->hosts_lock);
	uses = j->host->uses;
	if (uses == 1) /* only this request: no other may name it from now on */
		j->host->ready = false;
	pthread_mutex_unlock(&s->hosts_lock);
	if (uses > 1) /* only this thread adds one */
		return ptc_error_set(err, PTC_ESTATE, "host map %" PRIu32 " is in use by %u requests", j->head.host,
				     uses - 1);
	if (atomic_load(&j->host->locked))
		return 0;
	ptc_gpu_server_host_free(s, j->host);
	j->host = NULL;
	ptc_gpu_server_answer(s, &a);
	*ret_answered = true;
	return 0;
}

static int use_guard(struct ptc_gpu_server *s, struct ptc_gpu_job *j, struct ptc_error *err)
{
	int rc = use_host(s, j->head.guard_host, &j->guard, err);

	if (rc == 0 && (j->head.guard_at % sizeof(uint64_t) || j->guard->bytes < sizeof(uint64_t) ||
			j->head.guard_at > j->guard->bytes - sizeof(uint64_t)))
		rc = ptc_error_set(err, PTC_EINVAL, "no word at %" PRIu64 " of host map %" PRIu32, j->head.guard_at,
				   j->head.guard_host);
	return rc;
}

static int use_hosts(struct ptc_gpu_server *s, struct ptc_gpu_job *j, struct ptc_error *err)
{
	int rc = 0;

	if (j->head.op != PTC_GPU_DIGEST && j->head.op != PTC_GPU_SHADOW)
		rc = use_host(s, j->head.host, &j->host, err);
	if (rc == 0 && j->head.op == PTC_GPU_COPY_OUT && j->host->read_only)
		rc = ptc_error_set(err, PTC_EPERM, "host map %" PRIu32 " is of a file that may not be written",
				   j->head.host);
	return rc || !(j->head.flags & PTC_GPU_GUARD) ? rc : use_guard(s, j, err);
}

static int use_source(struct ptc_gpu_server *s, struct ptc_gpu_job *j, struct ptc_error *err)
{
	uint32_t i = (j->head.host - 1) / PTC_GPU_MEMORY_MAX;

	if (j->head.host == 0 || i >= s->nworkers)
		return ptc_error_set(err, PTC_ENOTFOUND, "no allocation %" PRIu32 " is mapped", j->head.host);
	j->from = s->workers[i];
	return 0;
}

static void stats(struct ptc_gpu_server *s, uint64_t id)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = id, .more = atomic_load(&s->budget.used) };

	for (unsigned i = 0; i < s->nworkers; i++) {
		a.value += atomic_load(&s->workers[i]->mapped_bytes);
		a.count += (uint32_t)atomic_load(&s->workers[i]->allocations);
	}
	ptc_gpu_server_answer(s, &a);
}

/* Either answers, or hands the job over; *ret_taken then. */
static int begin(struct ptc_gpu_server *s, struct ptc_gpu_job *j, bool *ret_taken, struct ptc_error *err)
{
	struct ptc_gpu_worker *w;
	bool answered = false;
	int rc = 0;

	switch ((enum ptc_gpu_op)j->head.op) {
	case PTC_GPU_STATS:
		stats(s, j->head.id);
		return 0;
	case PTC_GPU_MAP_HOST:
		rc = map_host(s, j, &answered, err);
		break;
	case PTC_GPU_UNMAP_HOST:
		rc = unmap_host(s, j, &answered, err);
		break;
	case PTC_GPU_LOCK:
		rc = use_host(s, j->head.host, &j->host, err);
		break;
	case PTC_GPU_COPY_OUT:
	case PTC_GPU_COPY_IN:
	case PTC_GPU_DIGEST:
		rc = use_hosts(s, j, err);
		break;
	case PTC_GPU_SHADOW:
		rc = use_source(s, j, err);
		if (rc == 0)
			rc = use_hosts(s, j, err);
		break;
	case PTC_GPU_COPY_WITHIN:
		rc = use_source(s, j, err);
		break;
	case PTC_GPU_BIND:
	case PTC_GPU_HANDLES:
	case PTC_GPU_CLOSE:
	case PTC_GPU_KEEP:
		break;
	}
	if (rc || answered)
		return rc;
	rc = route(s, j, &w, err);
	if (rc)
		return rc;
	*ret_taken = true;
	ptc_gpu_worker_push(w, j);
	return 0;
}

static struct ptc_gpu_job *job_new(const struct ptc_gpu_request *q, const int *fds, unsigned nfds)
{
	struct ptc_gpu_job *j = ptc_calloc(1, sizeof *j);
	size_t bytes = q->head.nparts * sizeof *j->parts;

	if (!j)
		return NULL;
	j->head = q->head;
	if (bytes) {
		j->parts = ptc_malloc(bytes);
		if (!j->parts) {
			ptc_free(j);
			return NULL;
		}
		memcpy(j->parts, q->parts, bytes);
	}
	memcpy(j->fds, fds, nfds * sizeof *fds);
	j->nfds = nfds;
	return j;
}

/* Descriptors are the job's from here on. */
static void handle(struct ptc_gpu_server *s, const struct ptc_gpu_request *q, size_t size, const int *fds,
		   unsigned nfds)
{
	struct ptc_gpu_failure f = { .err = PTC_ERROR_INIT };
	struct ptc_gpu_job *j = NULL;
	bool taken = false;
	int rc = ptc_gpu_request_check(q, size, nfds, &f.err);

	if (rc == 0) {
		j = job_new(q, fds, nfds);
		rc = j ? begin(s, j, &taken, &f.err) : ptc_nomem(&f.err);
	}
	if (j && !taken)
		ptc_gpu_server_job_free(s, j);
	for (unsigned i = 0; !j && i < nfds; i++)
		close(fds[i]);
	if (rc) {
		f.fault = (struct ptc_cuda_fault){ rc, PTC_GPU_BLAME_REQUEST, false };
		ptc_gpu_server_refuse(s, q->head.id, &f);
	}
}

static int read_requests(struct ptc_gpu_server *s, struct ptc_error *err)
{
	struct ptc_gpu_request q;
	int fds[PTC_GPU_FDS_MAX];
	unsigned nfds;
	long got;

	while ((got = ptc_gpu_receive(s->socket, &q, sizeof q, fds, &nfds)) != 0) {
		if (got >= (long)sizeof q.head) {
			handle(s, &q, (size_t)got, fds, nfds);
			continue;
		}
		for (unsigned i = 0; i < nfds; i++)
			close(fds[i]);
		return ptc_error_set(err, PTC_EPEER, "descriptor %d does not speak ptc-gpu's protocol", s->socket);
	}
	return 0;
}

int ptc_gpu_serve(int socket, uint64_t pinned_max, unsigned copiers, struct ptc_error *err)
{
	struct ptc_gpu_server *s = ptc_calloc(1, sizeof *s);
	struct ptc_gpu_answer ready = { .version = PTC_GPU_VERSION };
	const char *why;
	int rc;

	if (!s)
		return ptc_nomem(err);
	s->socket = socket;
	s->ncopiers = copiers;
	s->budget.max = pinned_max;
	pthread_mutex_init(&s->send_lock, NULL);
	pthread_mutex_init(&s->hosts_lock, NULL);
	if (ptc_fault("gpu.version.bytes")) /* a test wants one of an older package */
		ready.version--;
	s->ops = ptc_gpu_backend(&why);
	snprintf(ready.text, sizeof ready.text, "%.*s", (int)sizeof ready.text - 1, why);
	ptc_gpu_server_answer(s, &ready);
	rc = read_requests(s, err);
	for (unsigned i = 0; i < s->nworkers; i++)
		ptc_gpu_worker_stop(s->workers[i]);
	for (unsigned i = 0; i < s->nworkers; i++)
		ptc_gpu_worker_free(s->workers[i]);
	for (unsigned i = 0; i < PTC_GPU_HOSTS_MAX; i++)
		if (s->hosts[i].base)
			munmap(s->hosts[i].base, s->hosts[i].bytes);
	pthread_mutex_destroy(&s->hosts_lock);
	pthread_mutex_destroy(&s->send_lock);
	ptc_free(s);
	return rc;
}
