/* SPDX-License-Identifier: Apache-2.0 */
/* A node for tests of ptc-gpu: a folder of the fake driver, a client with its ptc-gpu, and ranks. world_end checks the
 * reports of every process of the fake driver: nothing is left, nothing was wrong, and every copy used pinned memory.
 */
#pragma once

#include "daemon/gpu/client/gpu_client.h"
#include "daemon/gpu/client/test_gpu_rank.h"

#define WORLD_RANKS 4

struct test_rank {
	pid_t pid;
	int socket;
};

struct world {
	char dir[64];
	struct ptc_gpu_client *c;
	struct test_rank ranks[WORLD_RANKS];
	unsigned nranks;
	unsigned char *chunks; /* a file that is mapped in ptc-gpu */
	uint64_t chunk_bytes;
	int chunks_fd;
	struct ptc_gpu_ref host;
	bool may_leave; /* a call that ends something is made to fail, so something is left */
	struct ptc_gpu_outcome o;
	struct ptc_error err;
};

/* Starts a world. ptc-gpu gets kernels as the fake driver's own image; tests/test_gpu.py tests the kernels of a build
 * with nvcc. */
struct world *world_begin(const struct ptc_gpu_client_config *config);
/* Sets other kernels, before ptc-gpu starts; "off" for none. Lasts until the next world_begin. */
void world_kernels(const char *value);
void world_end(struct world *w);
void world_faults(struct world *w, const char *rules); /* sets the fake driver's faults, see fake_cuda.h */
bool world_has(struct world *w, const char *file);
void world_touch(struct world *w, const char *file);
/* The number in the line "KIND NAME NUMBER" of a process's report; 0: there is no such line. */
unsigned world_reported(struct world *w, pid_t pid, const char *line);
/* Makes chunks of so many bytes, zeroed and mapped in ptc-gpu; pinned for device 0 on request. */
void world_chunks(struct world *w, uint64_t bytes, bool pinned);
void world_map_chunks(struct world *w, bool pinned);

struct test_rank *world_rank(struct world *w, int device);
/* Sends a rank an order, and receives its descriptors. Returns its answer. */
struct test_rank_reply rank_do(struct test_rank *r, const struct test_rank_order *q, int *ret_fds);
uint64_t rank_alloc(struct test_rank *r, enum test_rank_kind kind, uint64_t bytes, uint64_t handle_bytes,
		    uint64_t seed);
void rank_free(struct test_rank *r, uint64_t address);
struct ptc_gpu_export rank_export(struct test_rank *r, uint64_t address, uint64_t bytes);
bool rank_has(struct test_rank *r, uint64_t address, uint64_t bytes, uint64_t seed);
void rank_end(struct test_rank *r, int signal); /* 0: tells it to end */

/* Binds, and gives all missing handles. Returns 0 or a status with w->err. */
int world_bind(struct world *w, struct test_rank *r, uint64_t address, const struct ptc_gpu_export *e,
	       struct ptc_gpu_ref *ret);
struct ptc_gpu_part world_flat(uint64_t device_at, uint64_t other_at, uint64_t bytes);

/* test_gpu_random.c */
void test_random(void **state);
