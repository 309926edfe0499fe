/* SPDX-License-Identifier: Apache-2.0 */
/* Reads descriptions and profiles into the planner's structs: `model:` and `space:` of a job's file, a Hugging Face
 * config.json, a profile of a cluster, Galvatron's hardware profiles. Documents are the caller's. Make them with
 * ptc_doc_from_yaml, which also reads JSON and accepts numbers with a point. Results hold no pointer into them. Every
 * error is one line with file, line, the wrong value and the permitted ones. Keys: docs/planner.md, "Files". */
#pragma once

#include "formats/doc.h"
#include "planner/fit/fit.h"
#include "planner/infer.h"
#include "planner/search/fastest.h"

extern const char *const ptc_math_names[PTC_MATHS];

/* Reads `model:`, or `model: {config: {...}, seq: S}` with the content of a config.json. The result is checked. */
int ptc_plan_model_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_model *ret,
			struct ptc_error *err);
/* Whether `model:` has only seq, or with it heads and topk, so that ptc_model_infer has to find the rest. NULL: no. */
bool ptc_plan_model_infers(const struct ptc_doc_node *node);
int ptc_plan_given_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_infer_given *ret,
			struct ptc_error *err);
/* Reads a config.json of Hugging Face's transformers. seq 0: the longest that it permits. PTC_ENOTFOUND: the model_type
 * is not known. */
int ptc_plan_hf_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, uint32_t seq, struct ptc_model *ret,
		     struct ptc_error *err);

/* Reads `space:`: the axes, and the program's fixed properties. Of ret_work it sets global_batch, uneven,
 * sequence_parallel, schedule, reduce_bytes and memory, and nothing else. */
int ptc_plan_space_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_space *ret,
			struct ptc_work *ret_work, struct ptc_error *err);

/* Devices by name, as deploy/devices.yaml lists them. flops is 0 for a data type in which the device does not compute.
 */
#define PTC_PLAN_MAX_DEVICES 256
struct ptc_plan_device {
	char name[PTC_DEVICE_NAME_MAX + 1];
	double flops[PTC_MATHS], hbm_bytes_s, memory_bytes, price_hour;
};
struct ptc_plan_devices {
	size_t n;
	struct ptc_plan_device v[PTC_PLAN_MAX_DEVICES];
};
int ptc_plan_devices_read(const struct ptc_doc *doc, struct ptc_plan_devices *ret, struct ptc_error *err);
/* Finds a device, and sets all of *ret but nodes. PTC_ENOTFOUND: there is no such name; err is then unchanged. */
int ptc_plan_device_find(const struct ptc_plan_devices *all, const char *name, enum ptc_math dtype,
			 struct ptc_device_kind *ret, struct ptc_error *err);

/* The devices that the program itself knows, with their 16-bit peaks only. */
void ptc_plan_devices_builtin(struct ptc_plan_devices *ret);
/* Finds a device by the name that a driver has for it ("NVIDIA H100 80GB HBM3"): the words of the listed name
 * ("H100-80GB") are all among its words. If the listed name has a memory size and the driver's name has none, the size
 * must equal memory_bytes within a seventh (0: not known). A part of a device (MIG) is no device. Else as
 * ptc_plan_device_find. */
int ptc_plan_device_named(const struct ptc_plan_devices *all, const char *name, double memory_bytes,
			  enum ptc_math dtype, struct ptc_device_kind *ret, struct ptc_error *err);

/* A measured step or peak. */
struct ptc_plan_measured {
	struct ptc_cand cand;
	uint32_t global_batch;
	double step_s, peak_bytes; /* 0: not measured */
	double noise;              /* of step_s, relative; 0: not known */
};
#define PTC_PLAN_MAX_MEASURED PTC_FIT_MAX_ROWS
struct ptc_plan_profile {
	struct ptc_cluster_profile cluster;
	struct ptc_plan_measured *measured; /* freed by ptc_plan_profile_done */
	size_t nmeasured;
};
/* Reads a profile. Devices are those of ptc_device_kind_known, 16-bit. */
int ptc_plan_profile_read(const struct ptc_doc *doc, struct ptc_plan_profile *ret, struct ptc_error *err);
/* ptc_plan_profile_read with devices from `known` first (NULL: none), and at the peak of this data type. */
int ptc_plan_profile_read_with(const struct ptc_doc *doc, const struct ptc_plan_devices *known, enum ptc_math dtype,
			       struct ptc_plan_profile *ret, struct ptc_error *err);
void ptc_plan_profile_done(struct ptc_plan_profile *p);
/* Reads a file of Galvatron's hardware profile of all of c's devices, and adds it to c: groups of
 * allreduce_bandwidth_*.json, hops of p2p_bandwidth_*.json, or the overlap of overlap_coefficient.json. */
int ptc_plan_galvatron_read(const struct ptc_doc *doc, struct ptc_cluster_profile *c, struct ptc_error *err);
