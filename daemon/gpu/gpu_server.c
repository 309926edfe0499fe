/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the reading thread and the workers of ptc-gpu: answers, and the objects that requests use. Happy path: each
 * is a few lines under a lock. Failure modes: an answer that cannot be sent is dropped; the reading thread sees the
 * closed socket too. */
#include "base/alloc.h"
#include "daemon/gpu/gpu_server.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void ptc_gpu_server_answer(struct ptc_gpu_server *s, const struct ptc_gpu_answer *a)
{
	pthread_mutex_lock(&s->send_lock);
	(void)ptc_gpu_send(s->socket, a, sizeof *a, NULL, 0, NULL, 0); /* gone: the reading side sees it too */
	pthread_mutex_unlock(&s->send_lock);
}

void ptc_gpu_server_refuse(struct ptc_gpu_server *s, uint64_t id, const struct ptc_gpu_failure *f)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION,
				    .id = id,
				    .status = f->fault.status,
				    .blame = f->fault.blame,
				    .sticky = f->fault.sticky };

	snprintf(a.text, sizeof a.text, "%.*s", (int)sizeof a.text - 1, f->err.text);
	ptc_gpu_server_answer(s, &a);
}

void ptc_gpu_server_host_free(struct ptc_gpu_server *s, struct ptc_gpu_host_map *h)
{
	pthread_mutex_lock(&s->hosts_lock);
	munmap(h->base, h->bytes);
	*h = (struct ptc_gpu_host_map){ 0 };
	pthread_mutex_unlock(&s->hosts_lock);
}

void ptc_gpu_server_host_ready(struct ptc_gpu_server *s, struct ptc_gpu_host_map *h)
{
	pthread_mutex_lock(&s->hosts_lock);
	h->ready = true;
	pthread_mutex_unlock(&s->hosts_lock);
}

void ptc_gpu_server_job_free(struct ptc_gpu_server *s, struct ptc_gpu_job *j)
{
	pthread_mutex_lock(&s->hosts_lock);
	if (j->host)
		j->host->uses--;
	if (j->guard)
		j->guard->uses--;
	pthread_mutex_unlock(&s->hosts_lock);
	for (unsigned i = 0; i < j->nfds; i++)
		close(j->fds[i]);
	ptc_free(j->parts);
	ptc_free(j);
}
