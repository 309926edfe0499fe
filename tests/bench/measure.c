/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-bench-measure: the measurements of ptc-bench that need C, one JSON document on standard output. ptc-bench runs
 * it and makes sense of the numbers; by itself it is for profiling.
 *
 *   ptc-bench-measure store  DIR MIB ROUNDS
 *   ptc-bench-measure stream DIR MIB ROUNDS STREAMS insecure|unix|tls
 *   ptc-bench-measure limit  DIR MIB ROUNDS STREAMS insecure|unix|tls MOVED-BYTES COPYING-THREADS COPIED-BYTES
 *   ptc-bench-measure order  DIR MIB ROUNDS SAMPLES
 *
 * DIR is private and empty, except that tls wants ca.crt, n0.crt and n0.key there. MIB is the size of each of two
 * buffers. The limit of bytes that daemons move is loopback TCP; under TLS it is that of a stream of TLS. A round
 * measures the subject and its limits one right after the other, so that what else the machine does disturbs both.
 *
 * Failure modes: one line on standard error and exit status 1; 2 for usage. */
#include "tests/bench/measure.h"

#include "base/alloc.h"
#include "base/check.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct args {
	const char *dir;
	size_t bytes;
	int rounds, streams, threads;
	enum measure_transport transport;
	int64_t moved, copied, samples;
};

#define ORDER_PLACES 2000000 /* of a round */

/* So many that each stream and each thread has one. */
static int64_t touched(int64_t bytes)
{
	return PTC_MAX(bytes, MEASURE_STREAMS_MAX);
}

static const char *tls_dir(const struct args *a)
{
	return a->transport == MEASURE_TLS ? a->dir : NULL;
}

static int store_rounds(const struct args *a, const struct measure_memory *m, struct ptc_error *err)
{
	struct measure_store *s = NULL;
	int rc = measure_store_new(a->dir, m, &s, err);

	for (int i = 0; !rc && i < a->rounds; i++) {
		struct measure_store_round r;
		struct measured copy = measure_memcpy(m, 1, (int64_t)m->bytes);

		rc = measure_store_round(s, &r, err);
		if (rc)
			break;
		printf("%s{\"chunks\":\"%s\",", i ? "," : "", i ? "touched" : "cold");
		measure_print("memcpy", &copy);
		putchar(',');
		measure_print("write", &r.write);
		putchar(',');
		measure_print("read", &r.read);
		putchar(',');
		measure_print("read_iov", &r.read_iov);
		putchar(',');
		measure_print("verify", &r.verify);
		putchar('}');
	}
	measure_store_free(s);
	return rc;
}

static int stream_rounds(const struct args *a, const struct measure_memory *m, struct ptc_error *err)
{
	struct measure_rpc *rpc = NULL;
	struct measured limit, bulk;
	int rc;

	ptc_alloc_keep(64 << 20); /* as ptcd does */
	ptc_rpc_init();
	rc = measure_rpc_new(a->transport, a->dir, m, a->streams, &rpc, err);
	if (!rc) /* once unmeasured: windows open, memory is there */
		rc = measure_rpc_run(rpc, (int64_t)m->bytes, &bulk, err);
	for (int i = 0; !rc && i < a->rounds; i++) {
		rc = measure_tcp(m, a->streams, (int64_t)m->bytes, tls_dir(a), &limit, err);
		if (!rc)
			rc = measure_rpc_run(rpc, (int64_t)m->bytes, &bulk, err);
		if (rc)
			break;
		printf("%s{", i ? "," : "");
		measure_print("limit", &limit);
		putchar(',');
		measure_print("stream", &bulk);
		putchar('}');
	}
	measure_rpc_free(rpc);
	ptc_rpc_shutdown();
	if (!rc && memcmp(m->src, m->dst, m->bytes / (size_t)a->streams * (size_t)a->streams) != 0)
		rc = ptc_error_set(err, PTC_ECORRUPT, "other bytes came than were sent");
	return rc;
}

static int limit_rounds(const struct args *a, const struct measure_memory *m, struct ptc_error *err)
{
	int rc = 0;

	for (int i = 0; !rc && i < a->rounds; i++) {
		struct measured moved, copied = measure_memcpy(m, a->threads, touched(a->copied));

		rc = measure_tcp(m, a->streams, touched(a->moved), tls_dir(a), &moved, err);
		if (rc)
			break;
		printf("%s{", i ? "," : "");
		measure_print("moved", &moved);
		putchar(',');
		measure_print("copied", &copied);
		putchar('}');
	}
	return rc;
}

static int order_rounds(const struct args *a, const struct measure_memory *m, struct ptc_error *err)
{
	int rc = 0;

	for (int i = 0; !rc && i < a->rounds; i++) {
		struct measure_order_round r;

		rc = measure_order(m, (uint64_t)a->samples, ORDER_PLACES, &r, err);
		if (rc)
			break;
		printf("%s{", i ? "," : "");
		measure_print("at", &r.at);
		putchar(',');
		measure_print("fill", &r.fill);
		putchar(',');
		measure_print("table", &r.table);
		putchar('}');
	}
	return rc;
}

typedef int (*scenario_fn)(const struct args *a, const struct measure_memory *m, struct ptc_error *err);

static const struct scenario {
	const char *name;
	int argc;
	scenario_fn run;
} scenarios[] = { { "store", 5, store_rounds },
		  { "stream", 7, stream_rounds },
		  { "limit", 10, limit_rounds },
		  { "order", 6, order_rounds } };

static bool number(const char *text, int64_t least, int64_t most, int64_t *ret)
{
	char *end;
	long long v = strtoll(text, &end, 10);

	*ret = v;
	return *text && !*end && v >= least && v <= most;
}

static bool transport(const char *name, enum measure_transport *ret)
{
	static const char *const names[] = { "insecure", "unix", "tls" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0) {
			*ret = (enum measure_transport)i;
			return true;
		}
	return false;
}

static bool parse(int argc, char **argv, struct args *a)
{
	int64_t mib, rounds, streams = 1, threads = 1;
	bool ok = number(argv[3], 1, 1 << 16, &mib) && number(argv[4], 1, 1000, &rounds);

	if (ok && argc == 6)
		ok = number(argv[5], 1, INT64_MAX, &a->samples);
	if (ok && argc > 6)
		ok = number(argv[5], 1, MEASURE_STREAMS_MAX, &streams) && transport(argv[6], &a->transport);
	if (ok && argc > 7)
		ok = number(argv[7], 0, INT64_C(1) << 50, &a->moved) &&
		     number(argv[8], 1, MEASURE_STREAMS_MAX, &threads) &&
		     number(argv[9], 0, INT64_C(1) << 50, &a->copied);
	if (!ok)
		return false;
	a->dir = argv[2];
	a->bytes = (size_t)mib << 20;
	a->rounds = (int)rounds;
	a->streams = (int)streams;
	a->threads = (int)threads;
	return true;
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct measure_memory m;
	struct args a = { 0 };

	signal(SIGPIPE, SIG_IGN); /* OpenSSL writes to a socket whose other end may have failed */
	for (size_t i = 0; i < PTC_ARRAY_LEN(scenarios); i++) {
		int rc;

		if (argc != scenarios[i].argc || strcmp(argv[1], scenarios[i].name) != 0 || !parse(argc, argv, &a))
			continue;
		rc = measure_memory_new(&m, a.bytes, &err);
		if (rc == 0) {
			fputs("{\"rounds\":[", stdout);
			rc = scenarios[i].run(&a, &m, &err);
			puts("]}");
			measure_memory_done(&m);
		}
		if (rc)
			fprintf(stderr, "ptc-bench-measure %s: %s\n", argv[1], err.text);
		return rc ? 1 : 0;
	}
	fputs("usage: ptc-bench-measure store DIR MIB ROUNDS\n"
	      "       ptc-bench-measure stream DIR MIB ROUNDS STREAMS insecure|unix|tls\n"
	      "       ptc-bench-measure limit DIR MIB ROUNDS STREAMS insecure|unix|tls MOVED-BYTES COPYING-THREADS "
	      "COPIED-BYTES\n"
	      "       ptc-bench-measure order DIR MIB ROUNDS SAMPLES\n",
	      stderr);
	return 2;
}
