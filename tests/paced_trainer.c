/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer whose computing is programmed time and whose traffic is real: for tests of the planner.
 *
 *   paced-trainer --layers L --hidden H --seq S --layer-us U --launch-us U --batch G --micro B --log FILE
 *
 * A layer takes launch-us + layer-us * samples / tp forward, and twice that backward; the rank sleeps meanwhile, and
 * sleeps less where it has slept too long. Between and within layers, ranks send what a transformer's would:
 * - tp: four sums of samples * S * H two-byte values for each layer, over a ring of TCP connections
 * - pp: these values to the next stage and back, each rank of tp its share; all forward, then all backward (GPipe)
 * - dp: a sum of a float for each parameter, 12 H H a layer, over a ring
 * What arrives is compared with what must arrive. A parameter's value is its initial one plus the number of steps,
 * which is compared when state has been restored. Rank 0 appends {"generation", "step", "s"} to FILE for each step.
 *
 * Failure modes: one line on stderr and exit 1. */
#define _POSIX_C_SOURCE 200809L
#include <ptc/ptc.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RENDEZVOUS_MS 120000
#define LAYERS_MAX    64

struct options {
	long layers, hidden, seq, layer_us, launch_us, batch, micro;
	const char *log;
};
struct ring {
	uint32_t index, size;
	int next, prev; /* to whom this rank sends, and from whom it receives */
};
struct rank {
	const struct options *o;
	ptc_client *c;
	struct ptc_generation gen;
	struct ring tensor, data;
	int later, earlier; /* the stages beside this one; -1: none */
	long first, n;      /* layers */
	size_t per_layer, activations;
	float *w, *gradient, *values, *scratch;
	uint32_t micro_batches;
	int64_t owed_ns; /* slept beyond what was to be slept */
};

static _Noreturn void die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("paced-trainer: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

static void *need(size_t n)
{
	void *p = calloc(n ? n : 1, 1);

	if (!p)
		die("out of memory");
	return p;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void compute(struct rank *r, double seconds)
{
	int64_t began = now_ns(), nap = (int64_t)(seconds * 1e9) - r->owed_ns;
	struct timespec t = { (began + nap) / 1000000000, (began + nap) % 1000000000 };

	if (nap > 0)
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
			;
	r->owed_ns = now_ns() - began - nap;
}

/* ---- connections ---- */

/* This machine's address as the others reach it: that from which packets would go out. */
static void my_address(char *buf, socklen_t size)
{
	struct sockaddr_in out = { .sin_family = AF_INET, .sin_port = htons(9) }, me;
	socklen_t len = sizeof me;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	inet_pton(AF_INET, "192.0.2.1", &out.sin_addr);
	if (fd < 0 || connect(fd, (struct sockaddr *)&out, sizeof out) != 0 ||
	    getsockname(fd, (struct sockaddr *)&me, &len) != 0 || !inet_ntop(AF_INET, &me.sin_addr, buf, size))
		snprintf(buf, size, "127.0.0.1");
	if (fd >= 0)
		close(fd);
}

static int listen_as(struct rank *r, const char *key)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof a;
	char host[64], where[96];
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 1) != 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &len) != 0)
		die("listen: %s", strerror(errno));
	my_address(host, sizeof host);
	snprintf(where, sizeof where, "%s %u", host, ntohs(a.sin_port));
	if (ptc_rendezvous_put(r->c, key, where, strlen(where)) != 0)
		die("%s", ptc_error_text(r->c));
	return fd;
}

static int connect_to(struct rank *r, const char *key)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	char where[96], *port;
	size_t len;
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	if (ptc_rendezvous_get(r->c, key, where, sizeof where - 1, &len, RENDEZVOUS_MS) != 0)
		die("%s", ptc_error_text(r->c));
	where[len] = '\0';
	port = strchr(where, ' ');
	if (!port)
		die("%s has no address", key);
	*port++ = '\0';
	a.sin_port = htons((uint16_t)atoi(port));
	if (fd < 0 || inet_pton(AF_INET, where, &a.sin_addr) != 1 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
		die("%s at %s %s: %s", key, where, port, strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

static int take_one(int listener)
{
	int one = 1, fd = accept(listener, NULL, NULL);

	if (fd < 0)
		die("accept: %s", strerror(errno));
	close(listener);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

/* `group` names the ring; all its ranks listen before any of them connects. */
static void join(struct rank *r, const char *group, uint32_t index, uint32_t size, struct ring *ret)
{
	char key[64];
	int listener;

	*ret = (struct ring){ index, size, -1, -1 };
	if (size < 2)
		return;
	snprintf(key, sizeof key, "%s/%u", group, index);
	listener = listen_as(r, key);
	snprintf(key, sizeof key, "%s/%u", group, (index + 1) % size);
	ret->next = connect_to(r, key);
	ret->prev = take_one(listener);
	fcntl(ret->next, F_SETFL, O_NONBLOCK);
	fcntl(ret->prev, F_SETFL, O_NONBLOCK);
}

static void meet(struct rank *r)
{
	const struct ptc_generation *g = &r->gen;
	char group[64];
	int listener = -1;

	snprintf(group, sizeof group, "tensor/%u/%u", g->pp_rank, g->dp_rank);
	join(r, group, g->tp_rank, g->tp, &r->tensor);
	snprintf(group, sizeof group, "data/%u/%u", g->pp_rank, g->tp_rank);
	join(r, group, g->dp_rank, g->dp, &r->data);
	r->later = r->earlier = -1;
	snprintf(group, sizeof group, "stage/%u/%u/%u", g->dp_rank, g->tp_rank, g->pp_rank);
	if (g->pp_rank > 0)
		listener = listen_as(r, group);
	snprintf(group, sizeof group, "stage/%u/%u/%u", g->dp_rank, g->tp_rank, g->pp_rank + 1);
	if (g->pp_rank + 1 < g->pp)
		r->later = connect_to(r, group);
	if (listener >= 0)
		r->earlier = take_one(listener);
}

static void part(struct rank *r)
{
	const int fds[] = { r->tensor.next, r->tensor.prev, r->data.next, r->data.prev, r->later, r->earlier };

	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* ---- traffic ---- */

static void gone(ssize_t n)
{
	if (n == 0 || (errno != EAGAIN && errno != EINTR))
		die("another rank is gone: %s", n == 0 ? "it has closed" : strerror(errno));
}

/* Both at once, as all ranks of a ring do. */
static void exchange(const struct ring *g, const float *out, size_t nout, float *in, size_t nin)
{
	const char *from = (const char *)out;
	char *to = (char *)in;
	size_t left = nout * sizeof *out, wanted = nin * sizeof *in;

	while (left || wanted) {
		struct pollfd p[2] = { { .fd = left ? g->next : -1, .events = POLLOUT },
				       { .fd = wanted ? g->prev : -1, .events = POLLIN } };
		ssize_t n;

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			die("poll: %s", strerror(errno));
		if (p[0].revents) {
			n = send(g->next, from, left, MSG_NOSIGNAL);
			if (n <= 0)
				gone(n);
			from += n > 0 ? n : 0;
			left -= n > 0 ? (size_t)n : 0;
		}
		if (p[1].revents) {
			n = recv(g->prev, to, wanted, 0);
			if (n <= 0)
				gone(n);
			to += n > 0 ? n : 0;
			wanted -= n > 0 ? (size_t)n : 0;
		}
	}
}

/* The sum over a ring's ranks: each part goes around once and is added up, then once more as it is. */
static void sum(const struct ring *g, float *v, size_t n, float *scratch)
{
	uint32_t size = g->size;

	for (uint32_t step = 0; step + 1 < 2 * size - 1; step++) {
		uint32_t out = (g->index + 2 * size - step) % size, in = (out + size - 1) % size;
		size_t from = n * out / size, to = n * in / size;
		size_t nout = n * (out + 1) / size - from, nin = n * (in + 1) / size - to;

		if (step + 1 >= size) {
			exchange(g, v + from, nout, v + to, nin);
			continue;
		}
		exchange(g, v + from, nout, scratch, nin);
		for (size_t i = 0; i < nin; i++)
			v[to + i] += scratch[i];
	}
}

static void check(const float *v, size_t n, float want, const char *what)
{
	for (size_t i = 0; i < n; i++)
		if (v[i] != want)
			die("%s: value %zu is %g, not %g", what, i, (double)v[i], (double)want);
}

static void fill(float *v, size_t n, float value)
{
	for (size_t i = 0; i < n; i++)
		v[i] = value;
}

static void move_all(int fd, float *v, size_t n, int out)
{
	char *p = (char *)v;

	for (size_t left = n * sizeof *v; left;) {
		ssize_t k = out ? send(fd, p, left, MSG_NOSIGNAL) : recv(fd, p, left, 0);

		if (k <= 0)
			gone(k);
		p += k > 0 ? k : 0;
		left -= k > 0 ? (size_t)k : 0;
	}
}

/* ---- a step ---- */

/* Layers of one micro-batch; a sum after attention and one after the ffn. */
static void pass(struct rank *r, int times)
{
	const struct options *o = r->o;
	double layer = ((double)o->launch_us + (double)(o->layer_us * o->micro) / r->gen.tp) * 1e-6;

	for (long l = 0; l < r->n; l++)
		for (int half = 0; half < 2; half++) {
			compute(r, times * layer / 2);
			if (r->gen.tp < 2)
				continue;
			fill(r->values, r->activations, 1);
			sum(&r->tensor, r->values, r->activations, r->scratch);
			check(r->values, r->activations, (float)r->gen.tp, "a sum over tp");
		}
}

static void hand(struct rank *r, int from, int to, float value)
{
	size_t share = r->activations / r->gen.tp;

	if (from >= 0) {
		move_all(from, r->values, share, 0);
		check(r->values, share, value, "a stage's values");
	}
	if (to >= 0) {
		fill(r->values, share, value);
		move_all(to, r->values, share, 1);
	}
}

static void one_step(struct rank *r)
{
	size_t n = r->per_layer * (size_t)r->n;

	for (uint32_t m = 0; m < r->micro_batches; m++) {
		hand(r, r->earlier, -1, (float)m);
		pass(r, 1);
		hand(r, -1, r->later, (float)m);
	}
	for (uint32_t m = 0; m < r->micro_batches; m++) {
		hand(r, r->later, -1, -1 - (float)m);
		pass(r, 2);
		hand(r, -1, r->earlier, -1 - (float)m);
	}
	fill(r->gradient, n, 1);
	if (r->gen.dp > 1)
		sum(&r->data, r->gradient, n, r->scratch);
	check(r->gradient, n, (float)r->gen.dp, "a sum over dp");
	ptc_update_begin(r->c);
	for (size_t i = 0; i < n; i++)
		r->w[i] += r->gradient[i] / (float)r->gen.dp;
}

/* ---- a generation ---- */

static void build(struct rank *r)
{
	const struct options *o = r->o;
	long each = o->layers / (long)r->gen.pp, more = o->layers % (long)r->gen.pp, at = r->gen.pp_rank;
	long once;
	size_t n;

	if (r->gen.cp != 1 || 12 * o->hidden % (long)r->gen.tp || o->layers > LAYERS_MAX || each < 1)
		die("configuration %s: cp must be 1, tp divide 12 * hidden, and each stage have a layer",
		    r->gen.config);
	once = o->micro * (long)r->gen.dp;
	r->micro_batches = (uint32_t)((o->batch + once - 1) / once);
	r->first = at * each + (at < more ? at : more);
	r->n = each + (at < more);
	r->per_layer = (size_t)(12 * o->hidden / (long)r->gen.tp) * (size_t)o->hidden;
	r->activations = (size_t)(o->micro * o->seq * o->hidden) * 2 / sizeof(float);
	n = r->per_layer * (size_t)r->n;
	r->w = need(n * sizeof(float));
	r->gradient = need(n * sizeof(float));
	r->values = need(r->activations * sizeof(float));
	r->scratch = need((n > r->activations ? n : r->activations) * sizeof(float));
	for (long l = 0; l < r->n; l++)
		fill(r->w + (size_t)l * r->per_layer, r->per_layer, (float)(r->first + l));
}

static void declare(struct rank *r)
{
	int64_t rows = 12 * r->o->hidden, part = rows / r->gen.tp;
	int64_t shape[2] = { rows, r->o->hidden };
	struct ptc_shard_box box = { .offset = { part * r->gen.tp_rank, 0 }, .extent = { part, r->o->hidden } };
	char name[32];

	for (long l = 0; l < r->n; l++) {
		struct ptc_tensor_desc d = { .size = sizeof d,
					     .name = name,
					     .dtype = "F32",
					     .ndim = 2,
					     .shape = shape,
					     .boxes = &box,
					     .nboxes = 1,
					     .data = r->w + (size_t)l * r->per_layer };

		snprintf(name, sizeof name, "layers.%ld.w", r->first + l);
		if (ptc_tensor_declare(r->c, &d) != 0)
			die("%s", ptc_error_text(r->c));
	}
}

static void log_step(const struct rank *r, uint64_t step, double seconds)
{
	char line[128];
	int n = snprintf(line, sizeof line, "{\"generation\": %llu, \"step\": %llu, \"s\": %.6f}\n",
			 (unsigned long long)r->gen.generation, (unsigned long long)step, seconds);
	int fd = open(r->o->log, O_WRONLY | O_CREAT | O_APPEND, 0644);

	if (fd < 0 || write(fd, line, (size_t)n) != n)
		die("%s: %s", r->o->log, strerror(errno));
	close(fd);
}

static void train(struct rank *r)
{
	int64_t began = now_ns();
	uint64_t step;
	int rc;

	if (ptc_start_step(r->c, &step) != 0)
		die("%s", ptc_error_text(r->c));
	for (long l = 0; l < r->n; l++)
		check(r->w + (size_t)l * r->per_layer, r->per_layer, (float)((uint64_t)(r->first + l) + step),
		      "restored state");
	for (; (rc = ptc_boundary(r->c, step)) == 0; step++) {
		int64_t now;

		one_step(r);
		now = now_ns();
		if (r->gen.rank == 0)
			log_step(r, step, (double)(now - began) * 1e-9);
		began = now;
	}
	if (rc < 0)
		die("%s", ptc_error_text(r->c));
}

static void generation(struct rank *r)
{
	int rc;

	build(r);
	meet(r);
	declare(r);
	rc = ptc_restore(r->c);
	if (rc < 0 && rc != PTC_R_STALE)
		die("%s", ptc_error_text(r->c));
	if (rc >= 0)
		train(r);
	part(r);
	free(r->w);
	free(r->gradient);
	free(r->values);
	free(r->scratch);
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	struct {
		const char *name;
		long *value;
	} const numbers[] = { { "--layers", &o.layers },     { "--hidden", &o.hidden },       { "--seq", &o.seq },
			      { "--layer-us", &o.layer_us }, { "--launch-us", &o.launch_us }, { "--batch", &o.batch },
			      { "--micro", &o.micro } };
	struct rank r = { .o = &o };
	int rc, set = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--log") == 0)
			o.log = argv[i + 1];
		for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
			if (strcmp(argv[i], numbers[k].name) == 0) {
				*numbers[k].value = strtol(argv[i + 1], NULL, 10);
				set += *numbers[k].value > 0;
			}
	}
	if (set != (int)(sizeof numbers / sizeof *numbers) || !o.log)
		die("all of its options are needed (tests/paced_trainer.c)");
	if (ptc_open(NULL, &r.c) != 0)
		die("%s", ptc_error_text(NULL));
	r.gen.size = sizeof r.gen;
	while ((rc = ptc_next(r.c, &r.gen)) == 1)
		generation(&r);
	if (rc < 0)
		die("%s", ptc_error_text(r.c));
	ptc_close(r.c);
	return 0;
}
