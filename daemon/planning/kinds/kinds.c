/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: each node's announced name is looked up in the cluster's profile, then in the devices file; nodes of the
 * same device are one kind, whose memory is the least that one of them has. A cluster whose nodes announce nothing has
 * the profile's only kind. A device that nobody knows counts as the slowest known kind, else as an A100. */
#include "daemon/planning/kinds/kinds.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#ifndef PTC_DEVICES_FILE /* the build says where it is installed */
#define PTC_DEVICES_FILE "/usr/share/ptc/devices.yaml"
#endif
#define FILE_BYTES  (1u << 20)
#define MEMORY_NONE 1e15 /* of a device about which nothing is known: nothing is left out for want of it */

int ptc_kinds_load(const char *path, struct ptc_plan_devices **ret, struct ptc_error *err)
{
	const char *file = path ? path : PTC_DEVICES_FILE;
	struct ptc_plan_devices *all = ptc_calloc(1, sizeof *all);
	ptc_auto_free char *text = NULL;
	struct ptc_doc doc;
	size_t len;
	int rc = all ? 0 : ptc_nomem(err);

	if (rc == 0 && !path && access(file, R_OK) != 0) {
		ptc_plan_devices_builtin(all);
		*ret = all;
		return 0;
	}
	if (rc == 0)
		rc = ptc_sys_read_file(file, FILE_BYTES, &text, &len, err);
	if (rc == 0)
		rc = ptc_doc_from_yaml(file, text, len, &doc, err);
	if (rc == 0) {
		rc = ptc_plan_devices_read(&doc, all, err);
		ptc_doc_done(&doc);
	}
	if (rc) {
		ptc_free(all);
		return rc;
	}
	*ret = all;
	return 0;
}

struct finder {
	const struct ptc_kinds_ask *ask;
	struct ptc_plan_devices *own, *builtin; /* of the profile; of the program */
	struct ptc_kinds *ret;
	uint8_t *kind_of;
	bool no_memory[PTC_DEVICE_MAX_KINDS];
	const struct ptc_planning_node *unknown; /* the first whose device nobody knows */
	size_t nunknown;
	bool too_many;
};

/* The profile's figures hold for every data type: a person wrote them for this job's. */
static void take_own(struct finder *f)
{
	const struct ptc_cluster_profile *c = f->ask->own;

	for (uint32_t i = 0; c && i < c->nkinds; i++) {
		struct ptc_plan_device *d = &f->own->v[f->own->n++];

		memcpy(d->name, c->kinds[i].name, sizeof d->name);
		for (int k = 0; k < PTC_MATHS; k++)
			d->flops[k] = c->kinds[i].flops;
		d->hbm_bytes_s = c->kinds[i].hbm_bytes_s;
		d->memory_bytes = c->kinds[i].memory_bytes;
		d->price_hour = c->kinds[i].price_hour;
	}
}

/* PTC_ENOTFOUND: nobody knows it. */
static int look_up(const struct finder *f, const struct ptc_planning_node *n, struct ptc_device_kind *ret,
		   struct ptc_error *err)
{
	const struct ptc_plan_devices *where[] = { f->own, f->ask->known ? f->ask->known : f->builtin };
	double bytes = (double)n->device_bytes;
	int rc = PTC_ENOTFOUND;

	for (size_t i = 0; i < PTC_ARRAY_LEN(where) && rc == PTC_ENOTFOUND; i++)
		rc = ptc_plan_device_named(where[i], n->device_name, bytes, f->ask->dtype, ret, err);
	if (rc == 0 && bytes > 0)
		ret->memory_bytes = PTC_MIN(ret->memory_bytes, bytes);
	return rc;
}

static void count_node(struct finder *f, size_t node, const struct ptc_device_kind *k, bool no_memory)
{
	struct ptc_kinds *r = f->ret;
	uint32_t at = 0;

	while (at < r->n && strcasecmp(r->v[at].name, k->name) != 0)
		at++;
	if (at == PTC_DEVICE_MAX_KINDS) {
		f->too_many = true;
		return;
	}
	if (at == r->n) {
		r->v[r->n++] = *k;
		r->v[at].nodes = 0;
		f->no_memory[at] = no_memory;
	}
	r->v[at].memory_bytes = PTC_MIN(r->v[at].memory_bytes, k->memory_bytes);
	r->v[at].nodes++;
	f->kind_of[node] = (uint8_t)at;
}

/* What counts for devices that nobody knows. */
static struct ptc_device_kind stand_in(const struct finder *f)
{
	const struct ptc_cluster_profile *own = f->ask->own;
	struct ptc_device_kind k, slowest = { .flops = 0 };

	for (uint32_t i = 0; i < f->ret->n; i++)
		if (!(slowest.flops > 0) || f->ret->v[i].flops < slowest.flops)
			slowest = f->ret->v[i];
	for (uint32_t i = 0; !f->ret->n && own && i < own->nkinds; i++)
		if (!(slowest.flops > 0) || own->kinds[i].flops < slowest.flops)
			slowest = own->kinds[i];
	if (slowest.flops > 0)
		return slowest;
	ptc_require(ptc_device_kind_known("A100-80GB", &k));
	k.memory_bytes = MEMORY_NONE;
	return k;
}

static void take_unknown(struct finder *f)
{
	struct ptc_device_kind k = stand_in(f);
	bool guess = !f->ret->n && !f->ask->own;

	f->ret->assumed = guess;
	for (size_t i = 0; i < f->ask->nnodes; i++) {
		const struct ptc_planning_node *n = &f->ask->nodes[i];
		struct ptc_device_kind own = k;

		if (!n->devices || f->kind_of[i] != PTC_KIND_NONE)
			continue;
		if (n->device_bytes)
			own.memory_bytes = PTC_MIN(own.memory_bytes, (double)n->device_bytes);
		count_node(f, i, &own, guess && !n->device_bytes);
	}
	if (!f->unknown)
		return;
	if (f->unknown->device_name[0])
		snprintf(f->ret->said, sizeof f->ret->said,
			 "device \"%.60s\" of node %s is in no devices file, and counts as %s", f->unknown->device_name,
			 f->unknown->name, k.name);
	else if (!guess && (f->nunknown < f->ask->nnodes || f->ask->own->nkinds > 1))
		snprintf(f->ret->said, sizeof f->ret->said, "node %s does not say what its devices are: %s counts",
			 f->unknown->name, k.name);
}

static int take_known(struct finder *f, struct ptc_error *err)
{
	for (size_t i = 0; i < f->ask->nnodes; i++) {
		const struct ptc_planning_node *n = &f->ask->nodes[i];
		struct ptc_device_kind k;
		int rc;

		f->kind_of[i] = PTC_KIND_NONE;
		if (!n->devices)
			continue;
		rc = n->device_name[0] ? look_up(f, n, &k, err) : PTC_ENOTFOUND;
		if (rc && rc != PTC_ENOTFOUND)
			return rc;
		if (rc == 0)
			count_node(f, i, &k, false);
		else if (!f->unknown || (!f->unknown->device_name[0] && n->device_name[0]))
			f->unknown = n;
		f->nunknown += rc != 0;
	}
	return 0;
}

int ptc_kinds_find(const struct ptc_kinds_ask *ask, struct ptc_kinds *ret, uint8_t *kind_of, struct ptc_error *err)
{
	struct finder f = { .ask = ask, .ret = ret, .kind_of = kind_of };
	int rc;

	memset(ret, 0, sizeof *ret);
	f.own = ptc_calloc(1, sizeof *f.own);
	f.builtin = ask->known ? NULL : ptc_calloc(1, sizeof *f.builtin);
	rc = f.own && (ask->known || f.builtin) ? 0 : ptc_nomem(err);
	if (rc == 0) {
		take_own(&f);
		if (f.builtin)
			ptc_plan_devices_builtin(f.builtin);
		rc = take_known(&f, err);
	}
	if (rc == 0)
		take_unknown(&f);
	ret->memory_known = true;
	for (uint32_t i = 0; i < ret->n; i++)
		ret->memory_known = ret->memory_known && !f.no_memory[i];
	if (rc == 0 && f.too_many && !ret->said[0])
		snprintf(ret->said, sizeof ret->said,
			 "the nodes have more than %d kinds of devices; the others are not used", PTC_DEVICE_MAX_KINDS);
	ptc_free(f.own);
	ptc_free(f.builtin);
	return rc;
}
