/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: NVML counts devices; each says its name, memory, health and processes; a card in MIG mode gives its
 * instances instead. Failure modes: gpu_devices.h; a fact that a device does not support (ECC on a consumer card,
 * processes in a container) is left out. */
#include "daemon/gpu/gpu_devices.h"

#include "base/buf.h"
#include "base/check.h"
#include "daemon/gpu/cuda/nvml_driver.h"
#include "daemon/gpu/kernels/gpu_image.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void ill(struct ptc_gpu_device *d, enum ptc_gpu_health health, const char *why)
{
	if (health <= d->health)
		return;
	d->health = health;
	snprintf(d->why, sizeof d->why, "%s", why);
}

/* true: the device has answered. Not supported and not permitted are answers too. */
static bool asked(const struct ptc_nvml *nvml, struct ptc_gpu_device *d, nvmlReturn_t result)
{
	if (result == NVML_SUCCESS)
		return true;
	if (result == NVML_ERROR_GPU_IS_LOST || result == NVML_ERROR_UNKNOWN)
		ill(d, PTC_GPU_LOST, nvml->text(result));
	else if (result == NVML_ERROR_RESET_REQUIRED)
		ill(d, PTC_GPU_RESET, nvml->text(result));
	return false;
}

static void ask_health(const struct ptc_nvml *nvml, nvmlDevice_t device, struct ptc_gpu_device *d)
{
	unsigned corrected, uncorrected, pending = 0, failed = 0;
	unsigned long long errors = 0;
	char why[96];

	if (asked(nvml, d, nvml->ecc_errors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors)) &&
	    errors) {
		snprintf(why, sizeof why, "%llu uncorrectable memory errors since the last reset", errors);
		ill(d, PTC_GPU_ECC, why);
	}
	if (!asked(nvml, d, nvml->remapped_rows(device, &corrected, &uncorrected, &pending, &failed)))
		return;
	if (failed)
		ill(d, PTC_GPU_ECC, "a row of its memory could not be remapped");
	else if (pending)
		ill(d, PTC_GPU_RESET, "a row of its memory waits for a reset to be remapped");
}

static void ask_processes(const struct ptc_nvml *nvml, nvmlDevice_t device, struct ptc_gpu_device *d)
{
	nvmlProcessInfo_t processes[PTC_GPU_PROCESSES_MAX];
	unsigned n = PTC_GPU_PROCESSES_MAX;
	nvmlReturn_t result = nvml->processes(device, &n, processes);

	if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
		d->nprocesses = n; /* more than are listed: NVML has written how many */
		return;
	}
	if (!asked(nvml, d, result))
		return;
	d->nprocesses = n;
	for (unsigned i = 0; i < n; i++) {
		d->pids[i] = processes[i].pid;
		d->pid_bytes[i] = processes[i].usedGpuMemory;
	}
}

static void ask(const struct ptc_nvml *nvml, nvmlDevice_t device, struct ptc_gpu_device *d)
{
	char uuid[NVML_UUID_SIZE] = "", name[NVML_NAME_SIZE] = "";
	nvmlMemory_t memory = { 0 };
	nvmlPciInfo_t pci = { .busId = "" };

	if (asked(nvml, d, nvml->uuid(device, uuid, sizeof uuid)))
		snprintf(d->uuid, sizeof d->uuid, "%.*s", (int)sizeof d->uuid - 1, uuid);
	if (asked(nvml, d, nvml->name(device, name, sizeof name)))
		snprintf(d->name, sizeof d->name, "%s", name);
	for (char *c = d->name; *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?'; /* JSON takes UTF-8 only */
	if (asked(nvml, d, nvml->memory(device, &memory))) {
		d->memory_bytes = memory.total;
		d->free_bytes = memory.free;
	}
	if (asked(nvml, d, nvml->pci(device, &pci)))
		snprintf(d->bus, sizeof d->bus, "%.*s", (int)sizeof pci.busId, pci.busId);
	ask_health(nvml, device, d);
	ask_processes(nvml, device, d);
}

/* The instances of a card in MIG mode, which stand for it. 0: it is not. */
static size_t ask_instances(const struct ptc_nvml *nvml, nvmlDevice_t card, unsigned index, struct ptc_gpu_device *ret,
			    size_t max)
{
	unsigned mode = 0, pending, count = 0;
	nvmlDevice_t instance;
	size_t n = 0;

	if (nvml->mig_mode(card, &mode, &pending) != NVML_SUCCESS || mode != NVML_DEVICE_MIG_ENABLE ||
	    nvml->mig_count(card, &count) != NVML_SUCCESS)
		return 0;
	for (unsigned i = 0; i < count && n < max; i++) {
		if (nvml->mig_by_index(card, i, &instance) != NVML_SUCCESS)
			continue;
		ret[n] = (struct ptc_gpu_device){ .index = index, .kind = PTC_GPU_MIG };
		ask(nvml, instance, &ret[n++]);
	}
	return n;
}

int ptc_gpu_devices_find(struct ptc_gpu_device *ret, size_t max, size_t *ret_n, struct ptc_error *err)
{
	const struct ptc_nvml *nvml;
	unsigned count = 0;
	nvmlReturn_t result;
	size_t n = 0;
	int rc = ptc_nvml_open(&nvml, err);

	if (rc)
		return rc;
	result = nvml->count(&count);
	if (result != NVML_SUCCESS)
		return ptc_error_set(err, PTC_ENODEVICES, "NVML does not count devices: %s (%d)", nvml->text(result),
				     result);
	for (unsigned i = 0; i < count && n < max; i++) {
		nvmlDevice_t device;
		size_t instances;

		ret[n] = (struct ptc_gpu_device){ .index = i };
		result = nvml->by_index(i, &device);
		if (result != NVML_SUCCESS) {
			ill(&ret[n++], PTC_GPU_LOST, nvml->text(result));
			continue;
		}
		instances = ask_instances(nvml, device, i, &ret[n], max - n);
		if (instances == 0) {
			ret[n] = (struct ptc_gpu_device){ .index = i };
			ask(nvml, device, &ret[n]);
			instances = 1;
		}
		n += instances;
	}
	ptc_gpu_devices_show(ret, n, getenv("CUDA_VISIBLE_DEVICES"));
	*ret_n = n;
	return 0;
}

/* The device that an element of the list names, or NULL. The driver reads an index as strtol does, and ignores the
 * rest. */
static struct ptc_gpu_device *named(struct ptc_gpu_device *devices, size_t n, const char *element, size_t len)
{
	struct ptc_gpu_device *found = NULL;
	char *end;
	long index;

	if (len > 4 && (strncmp(element, "GPU-", 4) == 0 || strncmp(element, "MIG-", 4) == 0)) {
		for (size_t i = 0; i < n; i++) {
			if (strncasecmp(devices[i].uuid, element, len) != 0)
				continue;
			if (found)
				return NULL; /* ambiguous */
			found = &devices[i];
		}
		return found;
	}
	index = strtol(element, &end, 10);
	if (end == element || index < 0)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (devices[i].kind == PTC_GPU_WHOLE && (long)devices[i].index == index)
			return &devices[i];
	return NULL;
}

static void hide_all(struct ptc_gpu_device *devices, size_t n)
{
	for (size_t i = 0; i < n; i++)
		devices[i].visible = -1;
}

void ptc_gpu_devices_show(struct ptc_gpu_device *devices, size_t n, const char *value)
{
	int place = 0;

	for (size_t i = 0; i < n; i++)
		devices[i].visible = value ? -1 : (int)i;
	for (const char *at = value; at;) {
		struct ptc_gpu_device *d;
		size_t len;

		at += strspn(at, " \t");
		len = strcspn(at, ", \t");
		d = named(devices, n, at, len);
		if (!d)
			return;
		if (d->visible >= 0) {
			hide_all(devices, n);
			return;
		}
		d->visible = place++;
		at = strchr(at, ',');
		at = at ? at + 1 : NULL;
	}
}

static json_t *device_json(const struct ptc_gpu_device *d)
{
	static const char *const kinds[] = { "gpu", "mig" };
	static const char *const healths[] = { "ok", "ecc", "reset-required", "lost" };
	json_t *pids = json_array(), *bytes = json_array();
	json_t *o = json_pack("{s:s, s:i, s:s, s:s, s:s, s:I, s:I, s:s, s:i, s:b}", "uuid", d->uuid, "index",
			      (int)d->index, "kind", kinds[d->kind], "name", d->name, "bus", d->bus, "memory_bytes",
			      (json_int_t)d->memory_bytes, "free_bytes", (json_int_t)d->free_bytes, "health",
			      healths[d->health], "processes", (int)d->nprocesses, "visible", d->visible >= 0);

	if (d->visible >= 0)
		json_object_set_new(o, "cuda_index", json_integer(d->visible));
	if (d->why[0])
		json_object_set_new(o, "why", json_string(d->why));
	for (unsigned i = 0; i < d->nprocesses && i < PTC_GPU_PROCESSES_MAX && d->pids[i]; i++) {
		json_array_append_new(pids, json_integer(d->pids[i]));
		json_array_append_new(bytes, d->pid_bytes[i] > INT64_MAX ? json_null()
									 : json_integer((json_int_t)d->pid_bytes[i]));
	}
	json_object_set_new(o, "pids", pids);
	json_object_set_new(o, "pid_bytes", bytes);
	return o;
}

static int append(const char *text, size_t len, void *buf)
{
	ptc_buf_append(buf, text, len);
	return 0;
}

char *ptc_gpu_devices_json(const struct ptc_gpu_device *devices, size_t n, const struct ptc_error *none)
{
	json_t *list = json_array(), *o;
	const char *why = "";
	struct ptc_buf text = PTC_BUF_INIT;

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, device_json(&devices[i]));
	o = json_pack("{s:i, s:o}", "version", 1, "devices", list);
	json_object_set_new(o, "kernels",
			    ptc_gpu_image(&why) ? json_string("built in") : json_sprintf("none: %s", why));
	if (none && none->code)
		json_object_set_new(o, "why", json_string(none->text));
	if (!o || json_array_size(json_object_get(o, "devices")) != n ||
	    json_dump_callback(o, append, &text, JSON_COMPACT) != 0)
		ptc_buf_done(&text); /* out of memory */
	json_decref(o);
	return ptc_buf_steal(&text, NULL);
}
