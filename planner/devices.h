/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that a job may use: nodes with equal numbers of devices, in kinds. It says how fast each kind computes,
 * and how fast devices communicate within a node and across nodes. Links that were measured as groups or as hops of a
 * pipeline (Galvatron's profile) are in tables, which have priority over the computed values. Plain data that the
 * caller owns. Pure; any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_DEVICE_MAX_KINDS    8
#define PTC_DEVICE_NAME_MAX     47
#define PTC_MEASURED_MAX_GROUPS 64

/* Data types of matrices, which choose the peak. 16-bit: bf16 or fp16, whichever the device has. */
enum ptc_math { PTC_MATH_16BIT, PTC_MATH_BF16, PTC_MATH_FP16, PTC_MATH_FP8, PTC_MATH_TF32, PTC_MATH_FP32, PTC_MATHS };

struct ptc_device_kind {
	char name[PTC_DEVICE_NAME_MAX + 1];
	double flops;        /* peak for the training's dtype, FLOP/s */
	double hbm_bytes_s;  /* bandwidth of device memory, bytes/s */
	double memory_bytes; /* of one device */
	double price_hour;   /* of one device; 0: unknown */
	uint32_t nodes;
};
/* Measured among `size` devices that lie `stride` apart: an all-reduce, with bytes_s per ring, or a pipeline, with
 * bytes_s from one device to the next. */
struct ptc_measured_group {
	uint32_t size, stride;
	double bytes_s;
};
/* Computing takes so many times as long beside communication, as Galvatron measured. */
#define PTC_OVERLAP_DEFAULT 1.1256
#define PTC_OVERLAP_MAX     100
/* Traffic of ranks with each other, by what they share. */
enum ptc_link_class { PTC_LINK_TP, PTC_LINK_CP, PTC_LINK_EP, PTC_LINK_DP, PTC_LINK_PP, PTC_LINK_CLASSES };

struct ptc_cluster_profile {
	uint32_t per_node; /* devices of a node */
	uint32_t nkinds;
	struct ptc_device_kind kinds[PTC_DEVICE_MAX_KINDS];
	double intra_bytes_s, intra_latency_s; /* of one device, within a node */
	double node_bytes_s, node_latency_s;   /* of a whole node, all its devices together */
	/* of the slowest link between nodes that a class of traffic crosses, where ranks have been placed; 0:
	 * node_bytes_s */
	double class_bytes_s[PTC_LINK_CLASSES];
	uint32_t ngroups, nhops;
	struct ptc_measured_group groups[PTC_MEASURED_MAX_GROUPS], hops[PTC_MEASURED_MAX_GROUPS];
	double overlap; /* 0: PTC_OVERLAP_DEFAULT */
};

int ptc_cluster_profile_check(const struct ptc_cluster_profile *c, struct ptc_error *err);
uint32_t ptc_cluster_profile_devices(const struct ptc_cluster_profile *c);
/* The peak figures of a kind that is known by name ("A100-80GB"; case and vendor prefix are ignored). false: it is not
 * known. nodes and price stay 0. */
bool ptc_device_kind_known(const char *name, struct ptc_device_kind *ret);
/* All of them. */
const struct ptc_device_kind *ptc_device_kinds_known(size_t *ret_n);

/* The ring of a group of `size` ranks, `stride` apart, for traffic of a class, when all groups like it communicate at
 * once. */
struct ptc_ring {
	double bytes_s, latency_s; /* of one ring, not scaled by coefficients */
	bool crosses;              /* the ring leaves the node */
	bool measured;
};
struct ptc_ring ptc_cluster_ring(const struct ptc_cluster_profile *c, enum ptc_link_class class, uint32_t size,
				 uint32_t stride);
/* Bytes/s from a device to the next one of a pipeline of `size` devices that lie `stride` apart. 0: not measured. */
double ptc_cluster_hop(const struct ptc_cluster_profile *c, uint32_t size, uint32_t stride);
static inline double ptc_cluster_node_bytes_s(const struct ptc_cluster_profile *c, enum ptc_link_class class)
{
	return c->class_bytes_s[class] > 0 ? c->class_bytes_s[class] : c->node_bytes_s;
}
