/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of devices and how groups of them are connected. Fails only in the check. */
#include "planner/devices.h"

#include "base/check.h"
#include "base/limits.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* Dense bf16 peaks, memory bandwidth and size as their makers state them. */
static const struct ptc_device_kind known[] = {
	{ "A100-80GB", 312e12, 2.039e12, 80e9, 0, 0 }, { "A100-40GB", 312e12, 1.555e12, 40e9, 0, 0 },
	{ "H100-80GB", 989e12, 3.35e12, 80e9, 0, 0 },  { "H200-141GB", 989e12, 4.8e12, 141e9, 0, 0 },
	{ "B200", 2250e12, 7.7e12, 180e9, 0, 0 },      { "B300", 2250e12, 7.7e12, 270e9, 0, 0 },
	{ "GB200", 2450e12, 8e12, 186e9, 0, 0 },       { "GB300", 2450e12, 8e12, 279e9, 0, 0 },
	{ "GH200-96GB", 989e12, 4e12, 96e9, 0, 0 },    { "V100-16GB", 125e12, 0.9e12, 16e9, 0, 0 },
	{ "V100-32GB", 125e12, 0.9e12, 32e9, 0, 0 },   { "T4", 65e12, 0.32e12, 16e9, 0, 0 },
	{ "L40S", 362e12, 0.864e12, 48e9, 0, 0 },      { "RTX-3090", 71e12, 0.936e12, 24e9, 0, 0 },
};

bool ptc_device_kind_known(const char *name, struct ptc_device_kind *ret)
{
	if (!strncasecmp(name, "NVIDIA-", 7) || !strncasecmp(name, "NVIDIA ", 7))
		name += 7;
	for (size_t i = 0; i < PTC_ARRAY_LEN(known); i++)
		if (!strcasecmp(name, known[i].name)) {
			*ret = known[i];
			return true;
		}
	return false;
}

const struct ptc_device_kind *ptc_device_kinds_known(size_t *ret_n)
{
	*ret_n = PTC_ARRAY_LEN(known);
	return known;
}

static bool positive(double v)
{
	return isfinite(v) && v > 0;
}

static int check_kind(const struct ptc_device_kind *k, struct ptc_error *err)
{
	const char *what = NULL;

	if (!positive(k->flops))
		what = "flops";
	else if (!positive(k->hbm_bytes_s))
		what = "memory bandwidth";
	else if (!positive(k->memory_bytes))
		what = "memory";
	else if (!isfinite(k->price_hour) || k->price_hour < 0)
		what = "price";
	if (what)
		return ptc_error_set(err, PTC_EINVAL, "profile: the %s of device %s must be a positive number", what,
				     k->name);
	if (!k->nodes)
		return ptc_error_set(err, PTC_EINVAL, "profile: no node has device %s", k->name);
	return 0;
}

/* Groups or hops that were measured. */
static int check_groups(const struct ptc_measured_group *v, uint32_t n, const char *what, struct ptc_error *err)
{
	if (n > PTC_MEASURED_MAX_GROUPS)
		return ptc_error_set(err, PTC_ELIMIT, "profile: more than %d measured %ss", PTC_MEASURED_MAX_GROUPS,
				     what);
	for (uint32_t i = 0; i < n; i++)
		if (v[i].size < 2 || !v[i].stride || !positive(v[i].bytes_s))
			return ptc_error_set(err, PTC_EINVAL,
					     "profile: the %s of %u devices, %u apart, is negative or missing", what,
					     v[i].size, v[i].stride);
	return 0;
}

int ptc_cluster_profile_check(const struct ptc_cluster_profile *c, struct ptc_error *err)
{
	uint64_t nodes = 0;
	int rc;

	if (!c->per_node || c->per_node > 1024)
		return ptc_error_set(err, PTC_EINVAL, "profile: %u devices per node; it must be in 1..1024",
				     c->per_node);
	if (!c->nkinds || c->nkinds > PTC_DEVICE_MAX_KINDS)
		return ptc_error_set(err, PTC_EINVAL, "profile: %u kinds of devices; it must be in 1..%d", c->nkinds,
				     PTC_DEVICE_MAX_KINDS);
	for (uint32_t i = 0; i < c->nkinds; i++) {
		rc = check_kind(&c->kinds[i], err);
		if (rc)
			return rc;
		nodes += c->kinds[i].nodes;
	}
	if (nodes * c->per_node > PTC_MAX_RANKS)
		return ptc_error_set(err, PTC_ELIMIT, "profile: more than %u devices", PTC_MAX_RANKS);
	if (!positive(c->intra_bytes_s))
		return ptc_error_set(err, PTC_EINVAL,
				     "profile: the bandwidth within a node is missing or not positive");
	if (nodes > 1 && !positive(c->node_bytes_s))
		return ptc_error_set(err, PTC_EINVAL,
				     "profile: the bandwidth between nodes is missing or not positive");
	if (!(c->intra_latency_s >= 0) || !(c->node_latency_s >= 0))
		return ptc_error_set(err, PTC_EINVAL, "profile: a latency is negative");
	if (c->overlap != 0 && !(c->overlap >= 1 && c->overlap <= PTC_OVERLAP_MAX))
		return ptc_error_set(err, PTC_EINVAL, "profile: the overlap is %g; it must be in 1..%d", c->overlap,
				     PTC_OVERLAP_MAX);
	rc = check_groups(c->groups, c->ngroups, "link", err);
	return rc ? rc : check_groups(c->hops, c->nhops, "hop", err);
}

uint32_t ptc_cluster_profile_devices(const struct ptc_cluster_profile *c)
{
	uint32_t nodes = 0;

	for (uint32_t i = 0; i < c->nkinds; i++)
		nodes += c->kinds[i].nodes;
	return nodes * c->per_node;
}

/* Ranks of such a group that share a node with each other. */
static uint32_t members(const struct ptc_cluster_profile *c, uint32_t size, uint32_t stride)
{
	uint32_t n = stride >= c->per_node ? 1 : c->per_node / stride;

	return PTC_MIN(size, n);
}

struct ptc_ring ptc_cluster_ring(const struct ptc_cluster_profile *c, enum ptc_link_class class, uint32_t size,
				 uint32_t stride)
{
	uint32_t m = members(c, size, stride), rings;
	struct ptc_ring r = { c->intra_bytes_s, c->intra_latency_s, size > m, false };

	if (r.crosses) {
		rings = PTC_MAX(1, c->per_node / m); /* as many groups leave this node at once */
		r.bytes_s = ptc_cluster_node_bytes_s(c, class) / rings;
		r.latency_s = c->node_latency_s;
	}
	for (uint32_t i = 0; i < c->ngroups; i++)
		if (c->groups[i].size == size && c->groups[i].stride == stride) {
			r.bytes_s = c->groups[i].bytes_s;
			r.measured = true;
		}
	return r;
}

double ptc_cluster_hop(const struct ptc_cluster_profile *c, uint32_t size, uint32_t stride)
{
	double bytes_s = 0;

	for (uint32_t i = 0; i < c->nhops; i++)
		if (c->hops[i].size == size && c->hops[i].stride == stride)
			bytes_s = c->hops[i].bytes_s; /* of several the last one counts, as of groups */
	return bytes_s;
}
