/* SPDX-License-Identifier: Apache-2.0 */
/* What a job may run on: nodes of equal numbers of devices, in kinds; how fast each kind
 * computes, and how fast devices talk to each other inside a node and across nodes. Links that
 * were measured as groups (Galvatron's profile) stand in a table and win over what is computed.
 * Plain data that the caller owns. Pure, any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define PTC_DEVICE_MAX_KINDS    8
#define PTC_DEVICE_NAME_MAX     47
#define PTC_MEASURED_MAX_GROUPS 64

/* Data types of matrices: which peak counts. 16-bit: bf16 or fp16, whichever the device has. */
enum ptc_math { PTC_MATH_16BIT, PTC_MATH_BF16, PTC_MATH_FP16, PTC_MATH_FP8, PTC_MATH_TF32, PTC_MATH_FP32, PTC_MATHS };

struct ptc_device_kind {
	char name[PTC_DEVICE_NAME_MAX + 1];
	double flops;        /* peak of the dtype that is trained in, FLOP/s */
	double hbm_bytes_s;  /* device memory */
	double memory_bytes; /* of one device */
	double price_hour;   /* of one device; 0: unknown */
	uint32_t nodes;
};
/* An all-reduce among `size` devices that lie `stride` apart was measured at bytes_s per ring. */
struct ptc_measured_group {
	uint32_t size, stride;
	double bytes_s;
};
struct ptc_cluster_profile {
	uint32_t per_node; /* devices of a node */
	uint32_t nkinds;
	struct ptc_device_kind kinds[PTC_DEVICE_MAX_KINDS];
	double intra_bytes_s, intra_latency_s; /* one device's, within a node */
	double node_bytes_s, node_latency_s;   /* a whole node's, all its devices together */
	uint32_t ngroups;
	struct ptc_measured_group groups[PTC_MEASURED_MAX_GROUPS];
};

int ptc_cluster_profile_check(const struct ptc_cluster_profile *c, struct ptc_error *err);
uint32_t ptc_cluster_profile_devices(const struct ptc_cluster_profile *c);
/* Peak figures of a kind known by name ("A100-80GB", case and vendor prefix ignored); false: not
 * known. nodes and price are left 0. */
bool ptc_device_kind_known(const char *name, struct ptc_device_kind *ret);

/* How a group of `size` ranks, `stride` apart, is connected when all its siblings talk at once. */
struct ptc_ring {
	double bytes_s, latency_s; /* of one ring; scales are the caller's */
	bool crosses;              /* it leaves the node */
	bool measured;
};
struct ptc_ring ptc_cluster_ring(const struct ptc_cluster_profile *c, uint32_t size, uint32_t stride);
