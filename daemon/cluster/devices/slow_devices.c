/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: slow_devices.h. */
#include "daemon/cluster/devices/slow_devices.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/versions.h"
#include "formats/members.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHAT "document of a slow device"

static const struct ptc_member rows[] = {
	PTC_ROW(struct ptc_slow_device, "since_ms", since_ms, I64),
	PTC_ROW(struct ptc_slow_device, "until_ms", until_ms, I64),
	PTC_ROW(struct ptc_slow_device, "differs", differs, BOOL, PTC_IF(struct ptc_slow_device, differs)),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_slow_device);

void ptc_slow_devices_done(struct ptc_slow_devices *d)
{
	ptc_free(d->v);
	*d = (struct ptc_slow_devices){ 0 };
}

static struct ptc_slow_device *find(const struct ptc_slow_devices *d, const char *node, uint32_t device)
{
	for (size_t i = 0; i < d->n; i++)
		if (d->v[i].device == device && strcmp(d->v[i].node, node) == 0)
			return &d->v[i];
	return NULL;
}

const struct ptc_slow_device *ptc_slow_device_find(const struct ptc_slow_devices *d, const char *node, uint32_t device,
						   int64_t now_ms)
{
	const struct ptc_slow_device *s = find(d, node, device);

	return s && s->until_ms > now_ms ? s : NULL;
}

uint64_t ptc_slow_devices_key(const struct ptc_slow_devices *d, int64_t now_ms)
{
	uint64_t key = 0;

	for (size_t i = 0; i < d->n; i++)
		if (d->v[i].until_ms > now_ms)
			key += ptc_digest_append(ptc_digest_append(~UINT64_C(0), d->v[i].node, strlen(d->v[i].node)),
						 &d->v[i].device, sizeof d->v[i].device);
	return key;
}

/* Sets node and device. */
static bool parse_key(const char *key, struct ptc_slow_device *ret)
{
	const char *name = key + strlen(PTC_SLOW_LEAF), *slash = strrchr(name, '/');
	unsigned long device;
	char *end = NULL;

	if (!slash || slash == name || (size_t)(slash - name) >= sizeof ret->node || slash[1] < '0' || slash[1] > '9')
		return false;
	device = strtoul(slash + 1, &end, 10);
	if (*end || device >= PTC_MAX_DEVICES_PER_NODE)
		return false;
	snprintf(ret->node, sizeof ret->node, "%.*s", (int)(slash - name), name);
	ret->device = (uint32_t)device;
	return true;
}

void ptc_slow_device_key(const struct ptc_slow_device *s, char ret_key[PTC_SLOW_LEAF_BYTES])
{
	snprintf(ret_key, PTC_SLOW_LEAF_BYTES, PTC_SLOW_LEAF "%s/%" PRIu32, s->node, s->device);
}

char *ptc_slow_device_encode(const struct ptc_slow_device *s)
{
	return ptc_members_to_text((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &members, s);
}

int ptc_slow_device_put(struct ptc_slow_devices *d, const char *key, const char *json, size_t len,
			struct ptc_error *err)
{
	struct ptc_slow_device s = { .seen = true }, *old;
	int rc = parse_key(key, &s) ? 0 : ptc_error_set(err, PTC_EINVAL, "it names no device");

	if (rc == 0)
		rc = ptc_members_from_text(WHAT, PTC_DOC_OLDEST, PTC_DOC_VERSION, &members, json, len, &s, err);
	if (rc)
		return rc;
	s.seen = true;
	old = find(d, s.node, s.device);
	if (old) {
		*old = s;
		return 0;
	}
	if (d->n == PTC_SLOW_DEVICES_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "a job leaves at most %d devices", PTC_SLOW_DEVICES_MAX);
	if (!PTC_MORE(d->v, d->n))
		return ptc_nomem(err);
	d->v[d->n++] = s;
	return 0;
}

void ptc_slow_device_delete(struct ptc_slow_devices *d, const char *key)
{
	struct ptc_slow_device s, *old = parse_key(key, &s) ? find(d, s.node, s.device) : NULL;

	if (old)
		*old = d->v[--d->n];
}

void ptc_slow_devices_unseen(struct ptc_slow_devices *d)
{
	for (size_t i = 0; i < d->n; i++)
		d->v[i].seen = false;
}

void ptc_slow_devices_listed(struct ptc_slow_devices *d)
{
	for (size_t i = d->n; i-- > 0;)
		if (!d->v[i].seen)
			d->v[i] = d->v[--d->n];
}
