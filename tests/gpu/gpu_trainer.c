/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer whose state lies in device memory of the fake driver, and is a closed formula as tests/trainer.py's is.
 *
 *   gpu_trainer --rows R --layers L --sleep-ms MS --memory plain|vmm|pool|state [--steps N] [--differ-at STEP]
 *               [--marks N] [--folder FOLDER] [--hang own|other] [--graph own|other] [--survive 1|2] [--blobs N]
 *               [--host 0|1]
 *
 * Layer l is a matrix of R x 6 doubles, rows split over tp; element (i, j) is 1000 l + 10 i + j + s after s steps, its
 * field `m` the negative of that. `cols` is R x 64 doubles, i + j / 64 + s, columns split over tp, each row followed by
 * a gap. `steps`, in host memory, is s; with --host 0 there is none. What is on the device is written in stream order,
 * late: whoever takes it has to wait for the device. What a rank is restored with is compared with the formula; a
 * difference ends it. With
 * --differ-at the second replica has another first element from there on. With --marks 1 the state's stream is named to
 * libptc, with 2 it is named, and from step 20 on another one.
 *
 * With --graph the updates are launches of a CUDA graph that is captured once, in the state's own stream or in another
 * one, as PyTorch does; meddling is one launch more.
 *
 * With --folder rank 0 does what a file there asks for, and then makes another file. FOLDER/hang: its device gets work
 * that never ends, as a collective has whose peer is gone, on the state's own stream or on another one (--hang);
 * FOLDER/hung. With --survive 1 (its device finishes its work) or 2 (it does not) every rank calls ptc_survive, and
 * waits at a boundary while FOLDER/stall exists, from the step on that is written there; there rank 0 gives up once
 * FOLDER/leave exists. FOLDER/meddle: it begins an update, even while it waits at a stop; FOLDER/meddled. While
 * FOLDER/hold is there, no rank declares anything.
 *
 * With --blobs N every rank sets at each boundary a blob of each scope of N bytes, and a cursor, that say whose they
 * are and of which step; what it is restored with has to be that of its start. */
#include "base/check.h"
#include "daemon/gpu/cuda/cuda_driver.h"
#include "ptc/ptc.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS  64
#define GAP      3 /* doubles between two rows of `cols` */
#define FIRST_AT 256

#define FIELD(name, version, parameters) CUresult(*name) parameters;
static struct {
	PTC_CUDA_CLIENT_FUNCTIONS(FIELD)
	PTC_CUDA_TRAINER_FUNCTIONS(FIELD)
} more;
static const struct ptc_cuda *cu;

static struct {
	uint64_t rows, layers, sleep_ms;
	int64_t steps; /* -1: for ever */
	int64_t differ_at;
	bool pool, vmm, state;
	uint64_t marks;
	bool hang_own, graph, graph_own;
	const char *folder;
	bool survive, behind;
	uint64_t blobs;
	bool no_host;
} args = { .rows = 13, .layers = 4, .sleep_ms = 2, .steps = -1, .differ_at = INT64_MAX };

/* A rank of a generation. */
struct rank {
	struct ptc_generation gen;
	CUdevice device;
	CUstream stream, other;
	uint64_t *word;     /* that never gets another value: the device waits for it; NULL: none */
	bool waits;         /* the host waits for the device before it gives it more */
	CUdeviceptr memory; /* of all tensors */
	size_t bytes;
	double *wanted;     /* pinned: what is written to `memory` next */
	CUgraphExec update; /* writes it there; NULL: not captured yet */
	int64_t step;
	uint64_t first, n;             /* rows of each layer */
	uint64_t first_c, n_c;         /* columns of cols */
	size_t layer_doubles, cols_at; /* doubles from the beginning of `memory` */
};

/* A device that fails ends the program, as an exception would. */
static void need(CUresult result)
{
	if (result) {
		fprintf(stderr, "the device fails: %d\n", (int)result);
		exit(1);
	}
}

static void part(uint64_t all, uint64_t of, uint64_t rank, uint64_t *ret_first, uint64_t *ret_n)
{
	uint64_t each = all / of, rest = all % of;

	*ret_first = rank * each + (rank < rest ? rank : rest);
	*ret_n = each + (rank < rest);
}

static size_t layer_at(const struct rank *r, uint64_t l, int field)
{
	return FIRST_AT / sizeof(double) + (2 * l + (uint64_t)field) * r->layer_doubles;
}

static void compute(const struct rank *r, int64_t step, double *to)
{
	for (uint64_t l = 0; l < args.layers; l++)
		for (uint64_t i = 0; i < r->n * 6; i++) {
			uint64_t row = r->first + i / 6;
			double x = 1000.0 * (double)l + 10.0 * (double)row + (double)(i % 6);

			to[layer_at(r, l, 0) + i] = x + (double)step;
			to[layer_at(r, l, 1) + i] = -x - (double)step;
		}
	for (uint64_t i = 0; i < args.rows; i++)
		for (uint64_t j = 0; j < r->n_c; j++)
			to[r->cols_at + i * (r->n_c + GAP) + j] =
				(double)i + (double)(r->first_c + j) / COLUMNS + (double)step;
}

static void wait_for_device(struct rank *r)
{
	need(cu->cuStreamSynchronize(r->stream));
}

static void hang(struct rank *r)
{
	CUdeviceptr at;

	ptc_require(!cu->cuMemHostAlloc((void **)&r->word, 4096, 0) && !cu->cuMemHostGetDevicePointer(&at, r->word, 0));
	*r->word = 0;
	ptc_require(!more.cuStreamWaitValue64(args.hang_own ? r->stream : r->other, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
	r->waits = !args.hang_own;
}

/* The host goes on before it is done. */
static void write_state(struct rank *r)
{
	if (r->waits)
		wait_for_device(r);
	else
		ptc_require(!cu->cuMemHostAlloc((void **)&r->wanted, r->bytes, 0));
	compute(r, r->step, r->wanted);
	if (r->step >= args.differ_at && r->gen.dp_rank == 1)
		r->wanted[layer_at(r, 0, 0)] += 0.5;
	need(cu->cuMemcpyHtoDAsync(r->memory, r->wanted, r->bytes, r->stream));
}

static void check(ptc_client *c, int rc, const char *call);

static void capture_update(ptc_client *c, struct rank *r)
{
	CUstream stream = args.graph_own ? r->stream : r->other;
	CUgraph graph;

	ptc_require(!more.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	if (args.graph_own)
		ptc_update_begin(c);
	else
		check(c, ptc_update_captured(c, stream), "update_captured");
	ptc_require(!cu->cuMemcpyHtoDAsync(r->memory, r->wanted, r->bytes, stream));
	ptc_require(!more.cuStreamEndCapture(stream, &graph) &&
		    !more.cuGraphInstantiateWithFlags(&r->update, graph, 0) && !more.cuGraphDestroy(graph));
	/* Without a graph to be added to it says so. */
	ptc_require(!args.marks || args.graph_own || ptc_update_captured(c, stream) <= 0);
}

/* As write_state, by the graph. */
static void launch_update(ptc_client *c, struct rank *r)
{
	wait_for_device(r);
	compute(r, r->step, r->wanted);
	if (!r->update)
		capture_update(c, r);
	ptc_require(!more.cuGraphLaunch(r->update, r->stream));
}

#define HANDLE_BYTES ((size_t)64 << 10) /* the fake driver's smallest */

/* As PyTorch's expandable segments: many handles side by side. */
static CUresult map_handles(struct rank *r)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, r->device } };
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	r->bytes = (r->bytes + HANDLE_BYTES - 1) / HANDLE_BYTES * HANDLE_BYTES;
	ptc_require(!cu->cuMemAddressReserve(&r->memory, r->bytes, 0, 0, 0));
	for (size_t at = 0; at < r->bytes; at += HANDLE_BYTES) {
		CUmemGenericAllocationHandle handle;

		ptc_require(!more.cuMemCreate(&handle, HANDLE_BYTES, &prop, 0));
		ptc_require(!cu->cuMemMap(r->memory + at, HANDLE_BYTES, 0, handle, 0) && !cu->cuMemRelease(handle));
	}
	return cu->cuMemSetAccess(r->memory, r->bytes, &access, 1);
}

static CUresult unmap_handles(struct rank *r)
{
	for (size_t at = 0; at < r->bytes; at += HANDLE_BYTES)
		ptc_require(!cu->cuMemUnmap(r->memory + at, HANDLE_BYTES));
	return cu->cuMemAddressFree(r->memory, r->bytes);
}

static void begin(struct rank *r)
{
	CUcontext context;

	ptc_require(!cu->cuDeviceGet(&r->device, (int)r->gen.device));
	ptc_require(!cu->cuDevicePrimaryCtxRetain(&context, r->device) && !cu->cuCtxSetCurrent(context));
	ptc_require(!cu->cuStreamCreateWithPriority(&r->stream, CU_STREAM_NON_BLOCKING, 0) &&
		    !cu->cuStreamCreateWithPriority(&r->other, CU_STREAM_NON_BLOCKING, 0));
	r->waits = true;
	r->word = NULL;
	part(args.rows, r->gen.tp, r->gen.tp_rank, &r->first, &r->n);
	part(COLUMNS, r->gen.tp, r->gen.tp_rank, &r->first_c, &r->n_c);
	r->layer_doubles = r->n * 6 + 5; /* nothing is aligned to more than an element */
	r->cols_at = layer_at(r, args.layers, 0);
	r->bytes = (r->cols_at + args.rows * (r->n_c + GAP)) * sizeof(double);
	if (args.state)
		r->memory = (uintptr_t)ptc_pool_alloc((ssize_t)r->bytes, (int)r->gen.device, r->stream);
	ptc_require(!(args.state  ? !r->memory
		      : args.pool ? more.cuMemAllocAsync(&r->memory, r->bytes, r->stream)
		      : args.vmm  ? map_handles(r)
				  : cu->cuMemAlloc(&r->memory, r->bytes)));
	ptc_require(!cu->cuMemHostAlloc((void **)&r->wanted, r->bytes, 0));
	memset(r->wanted, 0, r->bytes);
	write_state(r);
}

static void end(struct rank *r)
{
	wait_for_device(r);
	ptc_require(!r->update || !more.cuGraphExecDestroy(r->update));
	r->update = NULL;
	if (args.state)
		ptc_pool_free((void *)(uintptr_t)r->memory, r->bytes, (int)r->gen.device, r->stream);
	ptc_require(!(args.state  ? 0
		      : args.pool ? more.cuMemFreeAsync(r->memory, r->stream)
		      : args.vmm  ? unmap_handles(r)
				  : cu->cuMemFree(r->memory)));
	ptc_require(!cu->cuMemFreeHost(r->wanted) && !cu->cuStreamDestroy(r->stream) && !cu->cuStreamDestroy(r->other));
	ptc_require(!r->word || !cu->cuMemFreeHost(r->word));
	ptc_require(!cu->cuCtxSetCurrent(NULL) && !cu->cuDevicePrimaryCtxRelease(r->device));
}

static void check(ptc_client *c, int rc, const char *call)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "%s: %s\n", call, ptc_error_text(c));
	exit(1);
}

static void declare(ptc_client *c, const char *name, const char *field, const int64_t shape[2],
		    const struct ptc_shard_box *box, CUdeviceptr data)
{
	struct ptc_tensor_desc t = { .size = sizeof t,
				     .name = name,
				     .field = field,
				     .dtype = "F64",
				     .ndim = 2,
				     .shape = shape,
				     .boxes = box,
				     .nboxes = box->extent[0] && box->extent[1],
				     .data = (void *)(uintptr_t)data,
				     .flags = PTC_TENSOR_DEVICE };

	check(c, ptc_tensor_declare(c, &t), "declare");
}

static void declare_all(ptc_client *c, struct rank *r)
{
	struct ptc_shard_box layer = { .offset = { (int64_t)r->first, 0 }, .extent = { (int64_t)r->n, 6 } };
	struct ptc_shard_box cols = { .offset = { 0, (int64_t)r->first_c },
				      .extent = { (int64_t)args.rows, (int64_t)r->n_c },
				      .stride = { (int64_t)((r->n_c + GAP) * sizeof(double)), sizeof(double) } };
	struct ptc_shard_box scalar = { .data_offset = 0 };
	struct ptc_tensor_desc steps = { .size = sizeof steps,
					 .name = "steps",
					 .dtype = "I64",
					 .boxes = &scalar,
					 .nboxes = 1,
					 .data = &r->step,
					 .flags = PTC_TENSOR_TIED };
	int64_t shape[2] = { (int64_t)args.rows, 6 }, wide[2] = { (int64_t)args.rows, COLUMNS };
	char name[64];

	for (uint64_t l = 0; l < args.layers; l++) {
		snprintf(name, sizeof name, "layer.%" PRIu64 ".weight", l);
		declare(c, name, NULL, shape, &layer, r->memory + layer_at(r, l, 0) * sizeof(double));
		declare(c, name, "m", shape, &layer, r->memory + layer_at(r, l, 1) * sizeof(double));
	}
	declare(c, "cols", NULL, wide, &cols, r->memory + r->cols_at * sizeof(double));
	if (!args.no_host)
		check(c, ptc_tensor_declare(c, &steps), "declare");
	/* Host memory that is said to be a device's would fail at the stop. */
	steps.name = "wrong";
	steps.flags = PTC_TENSOR_DEVICE;
	ptc_require(ptc_tensor_declare(c, &steps) == PTC_R_INVALID && strstr(ptc_error_text(c), "does not know it"));
}

/* Where nothing is declared both have what was there before. */
static void check_restored(struct rank *r)
{
	double *found = malloc(r->bytes);

	ptc_require(found && r->step == (int64_t)r->gen.start_step);
	wait_for_device(r);
	ptc_require(!more.cuMemcpyDtoH(found, r->memory, r->bytes));
	compute(r, r->step, r->wanted);
	if (memcmp(found, r->wanted, r->bytes) != 0) {
		fprintf(stderr, "restored with other bytes at step %" PRId64 "\n", r->step);
		exit(1);
	}
	free(found);
}

static const struct {
	enum ptc_blob_scope scope;
	const char *name;
} scopes[] = { { PTC_BLOB_RANK, "luck" }, { PTC_BLOB_TP, "luck" }, { PTC_BLOB_JOB, "luck" } };

/* The rest repeats it, so that two halves of different steps are not one blob. */
static void fill_blob(const struct rank *r, size_t i, int64_t step, uint64_t *blob)
{
	uint64_t whose = scopes[i].scope == PTC_BLOB_JOB ? 0 : 1 + r->gen.pp_rank * 65536 + r->gen.dp_rank * 256;

	if (scopes[i].scope == PTC_BLOB_RANK)
		whose += r->gen.tp_rank + 128;
	for (size_t k = 0; k < args.blobs / sizeof *blob; k++)
		blob[k] = (uint64_t)step * 1000003 + whose * 7 + k;
}

static void set_blobs(ptc_client *c, const struct rank *r)
{
	uint64_t *blob = args.blobs ? malloc(args.blobs) : NULL;

	if (!args.blobs)
		return;
	ptc_require(blob);
	for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++) {
		fill_blob(r, i, r->step, blob);
		check(c, ptc_blob_set(c, scopes[i].name, scopes[i].scope, blob, args.blobs), "blob_set");
	}
	check(c, ptc_cursor_set(c, "data", (uint64_t)r->step, r->step % 2 ? "odd" : "of an even step"), "cursor_set");
	free(blob);
}

static void check_blobs(ptc_client *c, const struct rank *r)
{
	uint64_t *want = args.blobs ? malloc(args.blobs) : NULL, *got = args.blobs ? malloc(args.blobs) : NULL, at = 0;
	char tag[32] = "";
	size_t len;

	if (!args.blobs)
		return;
	ptc_require(want && got);
	for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++) {
		int rc = ptc_blob_get(c, scopes[i].name, scopes[i].scope, got, args.blobs, &len);

		fill_blob(r, i, r->step, want);
		if (rc != 1 || len != args.blobs || memcmp(want, got, len) != 0) {
			fprintf(stderr, "blob of scope %d at step %" PRId64 ": %s\n", (int)scopes[i].scope, r->step,
				rc == 1 ? "other bytes" : "there is none");
			exit(1);
		}
	}
	if (ptc_cursor_get(c, "data", &at, tag, sizeof tag) != 1 || at != (uint64_t)r->step ||
	    (strcmp(tag, "odd") == 0) != (r->step % 2 == 1)) {
		fprintf(stderr, "the cursor at step %" PRId64 " is of step %" PRIu64 "\n", r->step, at);
		exit(1);
	}
	free(want);
	free(got);
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_sec = (time_t)(args.sleep_ms / 1000),
				      .tv_nsec = (long)(args.sleep_ms % 1000) * 1000000 },
		  NULL);
}

static struct {
	ptc_client *c;
	CUcontext context;
	CUstream stream;
	CUgraphExec *update;
} meddler;

static bool asked(const char *name)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", args.folder, name);
	return access(path, F_OK) == 0;
}

static void done(const char *name)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", args.folder, name);
	f = fopen(path, "w");
	ptc_require(f && !fclose(f));
}

static void *meddle(void *arg)
{
	while (!asked("meddle"))
		nap();
	ptc_require(!cu->cuCtxSetCurrent(meddler.context));
	if (args.graph)
		ptc_require(!more.cuGraphLaunch(*meddler.update, meddler.stream));
	else
		ptc_update_begin(meddler.c); /* against the rules: the client is in use */
	ptc_require(!cu->cuStreamSynchronize(meddler.stream));
	done("meddled");
	return NULL;
}

static void start_meddling(ptc_client *c, struct rank *r)
{
	pthread_t thread;

	meddler.c = c;
	meddler.stream = r->stream;
	meddler.update = &r->update;
	ptc_require(!more.cuCtxGetCurrent(&meddler.context) && !pthread_create(&thread, NULL, meddle, NULL) &&
		    !pthread_detach(thread));
}

/* FOLDER/stall may have the step from which on it counts. */
static bool stalled(int64_t step)
{
	char path[512];
	int64_t from = 0;
	FILE *f;

	snprintf(path, sizeof path, "%s/stall", args.folder);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (fscanf(f, "%" SCNd64, &from) != 1)
		from = 0;
	fclose(f);
	return step >= from;
}

/* As who waits for a peer that has gone. The device finishes what it has, or not. */
static void stall(ptc_client *c, struct rank *r)
{
	while (stalled(r->step)) {
		if (r->gen.rank == 0 && asked("leave"))
			ptc_leave(c);
		if (!args.behind)
			wait_for_device(r);
		nap();
	}
}

static void train(ptc_client *c, struct rank *r)
{
	int rc;

	while (args.folder && asked("hold"))
		nap();
	declare_all(c, r);
	rc = ptc_restore(c);
	if (rc == PTC_R_STALE)
		return;
	check(c, rc, "restore");
	check(c, ptc_start_step(c, &r->gen.start_step), "start step"); /* later than what it was built with */
	if (rc == 1) {
		if (args.no_host)
			r->step = (int64_t)r->gen.start_step;
		check_restored(r);
		check_blobs(c, r);
	}
	if (args.marks)
		check(c, ptc_stream(c, r->stream), "stream");
	if (args.folder && r->gen.rank == 0 && !args.survive)
		start_meddling(c, r);
	if (args.survive)
		check(c, ptc_survive(c, 1), "survive");
	for (;;) {
		set_blobs(c, r);
		rc = ptc_boundary(c, (uint64_t)r->step);
		check(c, rc, "boundary");
		if (rc)
			return;
		if (r->step == args.steps) {
			check(c, ptc_finish(c, (uint64_t)r->step), "finish");
			return;
		}
		if (args.survive && !args.behind) /* as who reads its loss */
			wait_for_device(r);
		nap();
		if (args.survive)
			stall(c, r);
		if (args.marks == 2 && r->step >= 20)
			check(c, ptc_stream(c, r->other), "stream");
		if (args.folder && r->gen.rank == 0 && !asked("hung") && asked("hang")) {
			hang(r);
			done("hung");
		}
		if (!args.graph)
			ptc_update_begin(c);
		r->step++;
		if (args.graph)
			launch_update(c, r);
		else
			write_state(r);
	}
}

static void start(void)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_require(!ptc_cuda_open(&cu, &err));
#define RESOLVE(name, version, parameters) ptc_require(!ptc_cuda_resolve(#name, version, (void **)&more.name, &err));
	PTC_CUDA_CLIENT_FUNCTIONS(RESOLVE)
	PTC_CUDA_TRAINER_FUNCTIONS(RESOLVE)
}

static bool parse(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		uint64_t n = strtoull(argv[i + 1], NULL, 10);

		if (strcmp(argv[i], "--rows") == 0)
			args.rows = n;
		else if (strcmp(argv[i], "--layers") == 0)
			args.layers = n;
		else if (strcmp(argv[i], "--sleep-ms") == 0)
			args.sleep_ms = n;
		else if (strcmp(argv[i], "--steps") == 0)
			args.steps = (int64_t)n;
		else if (strcmp(argv[i], "--differ-at") == 0)
			args.differ_at = (int64_t)n;
		else if (strcmp(argv[i], "--marks") == 0)
			args.marks = n;
		else if (strcmp(argv[i], "--blobs") == 0)
			args.blobs = n;
		else if (strcmp(argv[i], "--host") == 0)
			args.no_host = n == 0;
		else if (strcmp(argv[i], "--survive") == 0)
			args.survive = n, args.behind = n == 2;
		else if (strcmp(argv[i], "--folder") == 0)
			args.folder = argv[i + 1];
		else if (strcmp(argv[i], "--hang") == 0)
			args.hang_own = strcmp(argv[i + 1], "own") == 0;
		else if (strcmp(argv[i], "--graph") == 0)
			args.graph = true, args.graph_own = strcmp(argv[i + 1], "own") == 0;
		else if (strcmp(argv[i], "--memory") == 0)
			args.pool = strcmp(argv[i + 1], "pool") == 0, args.vmm = strcmp(argv[i + 1], "vmm") == 0,
			args.state = strcmp(argv[i + 1], "state") == 0;
		else
			return false;
	}
	return argc % 2 == 1;
}

int main(int argc, char **argv)
{
	struct rank r = { .gen = { .size = sizeof r.gen } };
	ptc_client *c;
	int rc;

	if (!parse(argc, argv))
		return 2;
	start();
	check(NULL, ptc_open(NULL, &c), "open");
	while ((rc = ptc_next(c, &r.gen)) == 1) {
		r.step = (int64_t)0;
		begin(&r);
		train(c, &r);
		end(&r);
	}
	check(c, rc, "next");
	ptc_close(c);
	return 0;
}
