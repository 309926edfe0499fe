/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: a job's description, its layout under a configuration, and the moves from one configuration to another.
 * No daemon is asked, and nothing is written.
 *
 *     struct ptc_admin_spec *spec;
 *     struct ptc_admin_layout *from, *to;
 *     struct ptc_admin_cluster cluster = { .size = sizeof cluster, .devices_per_node = 8 };
 *     struct ptc_admin_move move = { .size = sizeof move };
 *     struct ptc_admin_moves *moves;
 *     ptc_admin_spec_read("job.yaml", NULL, &spec, &err);
 *     ptc_admin_layout_new(spec, "tp=2,pp=2", &from, &err);
 *     ptc_admin_layout_new(spec, "tp=4", &to, &err);
 *     ptc_admin_moves_plan(from, to, &cluster, &moves, &err);
 *     while (ptc_admin_moves_next(moves, &move, &err) == 1)
 *             printf("%llu bytes from node %u to node %u\n", ...);
 *
 * Errors, ownership and compatibility: <ptc/admin.h>.
 * Lifetime: a layout keeps its spec and moves keep both layouts, so you may free them in any order.
 * Threads: several threads may use one spec or one layout at once; one thread at a time may use moves. */
#ifndef PTC_ADMIN_PLAN_H
#define PTC_ADMIN_PLAN_H

#include <ptc/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ADMIN_DIMS_MAX 8

/* ---- a job's description: docs/job.md --------------------------------------------- */

struct ptc_admin_spec;
struct ptc_admin_spec_opts {
	size_t size;
	const char
		*rules_path; /* directories with NAME.yaml rule sets, separated by ':'; NULL: built-in rule sets only */
	/* For a job whose ranks ptcd starts: the ranks' working directory (absolute) and environment (ends with NULL).
	 * The library drops variables of shells and terminals. If cwd is NULL, ptc_admin_job_create refuses such a job.
	 */
	const char *cwd;
	char *const *environment;
};
/* Reads a job file, and the headers of the tensor files that it names. opts NULL: all defaults. PTC_EINVAL: the file
 * is wrong; the line names path and line. PTC_ENOTFOUND or PTC_EIO: the file cannot be read. PTC_ELAYOUT: its rules are
 * ambiguous, overlap or leave index space uncovered; the line names tensor, axis and sizes. */
PTC_ADMIN_API int ptc_admin_spec_read(const char *path, const struct ptc_admin_spec_opts *opts,
				      struct ptc_admin_spec **ret_spec, struct ptc_error *err);
/* Reads canonical JSON, as exports and imports have it. */
PTC_ADMIN_API int ptc_admin_spec_from_json(const void *json, size_t len, struct ptc_admin_spec **ret_spec,
					   struct ptc_error *err);
/* NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_spec *ptc_admin_spec_free(struct ptc_admin_spec *spec);
/* Gives canonical JSON for ptc_admin_job_create. Equal descriptions give equal bytes. */
PTC_ADMIN_API int ptc_admin_spec_json(const struct ptc_admin_spec *spec, char **ret_json, size_t *ret_len,
				      struct ptc_error *err);
/* The job's name, borrowed from the spec. */
PTC_ADMIN_API const char *ptc_admin_spec_name(const struct ptc_admin_spec *spec);
/* The configuration of the job's table for `gpus` devices. PTC_ENOTFOUND: the table has none. */
PTC_ADMIN_API int ptc_admin_spec_config(const struct ptc_admin_spec *spec, uint32_t gpus, char **ret_config,
					struct ptc_error *err);

struct ptc_admin_item {
	size_t size;
	const char *tensor, *field; /* field "param": the tensor itself. Borrowed from the spec, like dtype */
	const char *dtype;          /* as in safetensors: "F32", "BF16", ... */
	uint32_t ndim;
	int64_t shape[PTC_ADMIN_DIMS_MAX]; /* global */
	uint64_t bytes;
};
/* The number of items; they are numbered from 0. 0 items: the job's ranks declare its tensors. */
PTC_ADMIN_API uint32_t ptc_admin_spec_items(const struct ptc_admin_spec *spec);
/* Set ret_item->size first. PTC_EINVAL: there is no such item. */
PTC_ADMIN_API int ptc_admin_spec_item(const struct ptc_admin_spec *spec, uint32_t item, struct ptc_admin_item *ret_item,
				      struct ptc_error *err);

/* ---- layouts: docs/layout.md ------------------------------------------------------------ */

struct ptc_admin_layout;
/* config: e.g. "tp=2,pp=2,dp=2". PTC_EINVAL: config is no configuration. PTC_ELAYOUT: the spec has no tensors, or a
 * rule does not fit config; the line names tensor, dim, size and degree. */
PTC_ADMIN_API int ptc_admin_layout_new(struct ptc_admin_spec *spec, const char *config,
				       struct ptc_admin_layout **ret_layout, struct ptc_error *err);
/* NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_layout *ptc_admin_layout_free(struct ptc_admin_layout *layout);
/* The number of ranks of the configuration. */
PTC_ADMIN_API uint32_t ptc_admin_layout_world(const struct ptc_admin_layout *layout);

/* A box of an item on a rank, and its place in the rank's own dense buffer. All numbers are elements. */
struct ptc_admin_region {
	size_t size;
	uint32_t item, ndim;
	int64_t offset[PTC_ADMIN_DIMS_MAX], extent[PTC_ADMIN_DIMS_MAX]; /* global */
	int64_t buffer_offset, buffer_stride[PTC_ADMIN_DIMS_MAX];
	bool padding; /* zeros outside the global shape, which are neither stored nor moved */
};
/* Returns 0 to go on; otherwise the call returns that code. region is borrowed until the callback returns. */
typedef int (*ptc_admin_region_fn)(void *arg, const struct ptc_admin_region *region);
/* Gives fn each region of a rank, by item, then row-major. PTC_EINVAL: there is no such rank. */
PTC_ADMIN_API int ptc_admin_layout_rank(const struct ptc_admin_layout *layout, uint32_t rank, ptc_admin_region_fn fn,
					void *arg, struct ptc_error *err);

/* ---- moves: docs/plan.md ----------------------------------------------------------------- */

/* Nodes, and the devices of a node, are numbered from 0. Arrays have an entry for each node; NULL: false for each. */
struct ptc_admin_cluster {
	size_t size;
	uint32_t nodes;            /* 0: as many as the larger configuration needs */
	uint32_t devices_per_node; /* 1 to 64 */
	uint32_t nodes_per_rack;   /* a tensor-parallel group stays in one rack; 0: there are no racks */
	const bool *failed;        /* the node is gone, with its bytes */
	const bool *drained;       /* the job leaves the node, which sends its bytes and gets none */
	const bool *pinned;        /* the plan gives the node at least one rank */
};

struct ptc_admin_moves;
/* Plans the switch. Old ranks lie on devices in order, also on devices of failed and drained nodes; new ranks lie where
 * the fewest bytes enter nodes. Both layouts are of one spec, or of specs with the same tensors. The plan is the one
 * that daemons make for these devices. Memory: about 200 bytes for each move. PTC_ENODEVICES: there are too few
 * devices. PTC_ELOST: only failed nodes had some bytes; the line names tensor and nodes. PTC_ELAYOUT: the specs differ;
 * the line names the first tensor that does. */
PTC_ADMIN_API int ptc_admin_moves_plan(struct ptc_admin_layout *from, struct ptc_admin_layout *to,
				       const struct ptc_admin_cluster *cluster, struct ptc_admin_moves **ret_moves,
				       struct ptc_error *err);
/* NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_moves *ptc_admin_moves_free(struct ptc_admin_moves *moves);

enum ptc_admin_move_kind {
	PTC_ADMIN_MOVE_BETWEEN = 1, /* from another node; a byte enters a node once */
	PTC_ADMIN_MOVE_WITHIN = 2,  /* from another device of the node, which held the bytes before */
	PTC_ADMIN_MOVE_FORWARD = 3, /* from another device of the node, to which a BETWEEN brought the bytes */
};
struct ptc_admin_place {
	uint32_t node, device, rank;
}; /* never grows */
struct ptc_admin_move {
	size_t size;
	uint32_t item;
	enum ptc_admin_move_kind kind;
	struct ptc_admin_place from, to; /* from.rank is a rank of the old layout; in a FORWARD, of the new layout */
	uint64_t bytes;
	/* The box in elements. If a dtype has 4 or 6 bits and rows are no whole bytes, trailing dims are merged. */
	uint32_t ndim;
	int64_t offset[PTC_ADMIN_DIMS_MAX], extent[PTC_ADMIN_DIMS_MAX];
};
/* Gives the next move; set ret_move->size first. Returns 1, or 0 after the last move. */
PTC_ADMIN_API int ptc_admin_moves_next(struct ptc_admin_moves *moves, struct ptc_admin_move *ret_move,
				       struct ptc_error *err);
/* Goes back to the first move. */
PTC_ADMIN_API void ptc_admin_moves_rewind(struct ptc_admin_moves *moves);

/* Sums in bytes. */
struct ptc_admin_totals {
	size_t size;
	uint64_t moves;
	uint64_t between_nodes; /* bytes that enter a node, each once */
	uint64_t within_node;   /* bytes of new shards that come from another device of their node */
	uint64_t kept;          /* bytes of new shards that are on their device already */
	uint64_t bound;         /* no placement of the new ranks has fewer between_nodes */
	bool bound_exact;       /* this placement reaches the bound */
	uint32_t nodes;         /* of the cluster */
};
/* Set ret_totals->size first. */
PTC_ADMIN_API int ptc_admin_moves_totals(const struct ptc_admin_moves *moves, struct ptc_admin_totals *ret_totals,
					 struct ptc_error *err);
/* The device of a rank of the new layout. */
PTC_ADMIN_API int ptc_admin_moves_place(const struct ptc_admin_moves *moves, uint32_t rank,
					struct ptc_admin_place *ret_place, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
