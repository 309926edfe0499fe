/* SPDX-License-Identifier: Apache-2.0 */
/* What ptc-bench-measure's files share. Each measurement returns wall time and
 * CPU time of the whole process, both ends of a transfer included, for bytes
 * that were touched before and lie in memory much larger than any cache. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct measured {
	double seconds, cpu_seconds;
	int64_t bytes;
};

struct measure_clock {
	int64_t wall_ns;
	double cpu;
};
struct measure_clock measure_start(void);
struct measured measure_end(const struct measure_clock *c, int64_t bytes);
/* One JSON object: "name":{"bytes":...,"seconds":...,"cpu_seconds":...} */
void measure_print(const char *name, const struct measured *m);

#define MEASURE_STREAMS_MAX 64
#define MEASURE_WRITE_BYTES (1u << 20) /* of one write to a raw socket */

/* A source and a destination, cut into a part per stream; every page touched. */
struct measure_memory {
	uint8_t *src, *dst;
	size_t bytes; /* of each */
};
int measure_memory_new(struct measure_memory *m, size_t bytes, struct ptc_error *err);
void measure_memory_done(struct measure_memory *m);

/* bytes in all, copied by `threads` at once (at most MEASURE_STREAMS_MAX), each in its part of the memory. */
struct measured measure_memcpy(const struct measure_memory *m, int threads, int64_t bytes);
/* bytes in all over `streams` loopback TCP connections: write of 1 MiB, receive into place. tls_dir has the node's
 * certificate for streams under TLS; NULL: plain. Connections are ready before time is taken. */
int measure_tcp(const struct measure_memory *m, int streams, int64_t bytes, const char *tls_dir, struct measured *ret,
		struct ptc_error *err);

/* One end of a TLS stream over a connected socket, by OpenSSL alone, with the version and the cipher that gRPC's core
 * agrees on: the first of OpenSSL's list. Whoever moves the first byte shakes hands. dir has n0.crt and n0.key. The
 * socket stays the caller's. write and read return bytes, or <= 0 if the stream broke. */
struct measure_tls;
int measure_tls_new(const char *dir, int fd, bool server, struct measure_tls **ret, struct ptc_error *err);
ssize_t measure_tls_write(struct measure_tls *t, const uint8_t *from, size_t n);
ssize_t measure_tls_read(struct measure_tls *t, uint8_t *to, size_t n);
struct measure_tls *measure_tls_free(struct measure_tls *t);

/* Samples by their places in an order of so many: one by one, in runs of neighbours, and read from a table of m's size.
 * `bytes` of each counts places. */
struct measure_order_round {
	struct measured at, fill, table;
};
int measure_order(const struct measure_memory *m, uint64_t samples, int64_t count, struct measure_order_round *ret,
		  struct ptc_error *err);

/* Bulk streams as daemons use them: server and clients in this process. */
enum measure_transport { MEASURE_INSECURE, MEASURE_UNIX, MEASURE_TLS };
struct measure_rpc;
int measure_rpc_new(enum measure_transport t, const char *dir, const struct measure_memory *m, int streams,
		    struct measure_rpc **ret, struct ptc_error *err);
int measure_rpc_run(struct measure_rpc *r, int64_t bytes, struct measured *ret, struct ptc_error *err);
struct measure_rpc *measure_rpc_free(struct measure_rpc *r);

/* The store: writes and reads of one table of `bytes`, cold (new chunks) or touched (recycled ones). */
struct measure_store_round {
	struct measured write, read, read_iov, verify;
};
struct measure_store;
int measure_store_new(const char *dir, const struct measure_memory *m, struct measure_store **ret,
		      struct ptc_error *err);
int measure_store_round(struct measure_store *s, struct measure_store_round *ret, struct ptc_error *err);
struct measure_store *measure_store_free(struct measure_store *s);
