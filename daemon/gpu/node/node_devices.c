/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: ptc-gpu --list prints its document, those that are visible become ours; later looks are matched by UUID.
 *
 * Failure modes: node_devices.h. */
#include "daemon/gpu/node/node_devices.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/helper.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "daemon/gpu/client/gpu_child.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LIST_TIMEOUT_MS 30000 /* a driver that has to wake its devices takes seconds */
#define LIST_BYTES_MAX  ((size_t)1 << 20)

struct ptc_node_devices {
	size_t n;
	char *ids;
	pthread_mutex_t lock;
	/* under lock */
	struct ptc_node_device v[PTC_NODE_DEVICES_MAX];
	char checked[PTC_NODE_DEVICES_MAX][PTC_NODE_DEVICE_WHY]; /* of the health command */
	int64_t looked_ns;
	pthread_t looker;
	bool looks, join; /* a thread is at it; it has to be joined */
};

static void take(json_t *o, const char *key, char *ret, size_t size)
{
	const char *text = json_string_value(json_object_get(o, key));

	snprintf(ret, size, "%s", text ? text : "");
}

static struct ptc_node_device device_of(json_t *o)
{
	struct ptc_node_device d = { .index = (unsigned)json_integer_value(json_object_get(o, "index")),
				     .processes = (unsigned)json_integer_value(json_object_get(o, "processes")),
				     .memory_bytes = (uint64_t)json_integer_value(json_object_get(o, "memory_bytes")),
				     .free_bytes = (uint64_t)json_integer_value(json_object_get(o, "free_bytes")) };

	json_t *pids = json_object_get(o, "pids"), *bytes = json_object_get(o, "pid_bytes");

	d.nuses = PTC_MIN(json_array_size(pids), PTC_NODE_DEVICE_USES_MAX);
	for (size_t i = 0; i < d.nuses; i++) {
		json_t *known = json_array_get(bytes, i);

		d.uses[i].pid = json_integer_value(json_array_get(pids, i));
		d.uses[i].bytes = json_is_integer(known) ? (uint64_t)json_integer_value(known) : UINT64_MAX;
	}
	take(o, "uuid", d.uuid, sizeof d.uuid);
	take(o, "kind", d.kind, sizeof d.kind);
	take(o, "name", d.name, sizeof d.name);
	take(o, "bus", d.bus, sizeof d.bus);
	take(o, "health", d.health, sizeof d.health);
	take(o, "why", d.why, sizeof d.why);
	return d;
}

/* What ptc-gpu prints now; json_decref it. */
static int ask(json_t **ret, struct ptc_error *err)
{
	char path[PTC_HELPER_PATH];
	ptc_auto_free char *text = NULL;
	json_error_t wrong;
	int rc = ptc_helper_find("ptc-gpu", "PTC_GPU", path, err);

	if (rc == 0)
		rc = ptc_gpu_child_list(path, LIST_TIMEOUT_MS, LIST_BYTES_MAX, &text, err);
	if (rc)
		return rc;
	*ret = json_loads(text, 0, &wrong);
	return *ret ? 0 : ptc_error_set(err, PTC_EPEER, "ptc-gpu --list printed invalid JSON: %s", wrong.text);
}

/* Places visible devices by cuda_index. Returns how many there are; SIZE_MAX: too many. */
static size_t fill(json_t *list, struct ptc_node_device v[PTC_NODE_DEVICES_MAX])
{
	size_t n = 0, i;
	json_t *o;

	json_array_foreach(json_object_get(list, "devices"), i, o) {
		json_int_t at = json_integer_value(json_object_get(o, "cuda_index"));

		if (!json_is_true(json_object_get(o, "visible")))
			continue;
		if (at < 0 || at >= PTC_NODE_DEVICES_MAX)
			return SIZE_MAX;
		v[at] = device_of(o);
		n++;
	}
	return n;
}

static int make(struct ptc_node_devices **ret, struct ptc_error *err)
{
	*ret = ptc_calloc(1, sizeof **ret);
	if (!*ret)
		return ptc_nomem(err);
	pthread_mutex_init(&(*ret)->lock, NULL);
	return 0;
}

static int join_ids(struct ptc_node_devices *d, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;

	for (size_t i = 0; i < d->n; i++)
		ptc_buf_printf(&b, "%s%s", i ? "," : "", d->v[i].uuid);
	d->ids = ptc_buf_steal(&b, NULL);
	return d->ids ? 0 : ptc_nomem(err);
}

int ptc_node_devices_find(struct ptc_node_devices **ret, struct ptc_error *err)
{
	struct ptc_node_devices *d = NULL;
	json_t *list = NULL;
	const char *why;
	int rc = ask(&list, err);

	if (rc == 0)
		rc = make(&d, err);
	if (rc == 0) {
		d->n = fill(list, d->v);
		d->looked_ns = ptc_sys_now_ns();
		why = json_string_value(json_object_get(list, "why"));
		if (d->n == SIZE_MAX)
			rc = ptc_error_set(err, PTC_ELIMIT, "more than %d devices", PTC_NODE_DEVICES_MAX);
		else if (d->n == 0)
			rc = ptc_error_set(err, PTC_ENODEVICES, "%s",
					   why ? why : "none is visible: see CUDA_VISIBLE_DEVICES");
		else
			rc = join_ids(d, err);
	}
	json_decref(list);
	if (rc)
		d = ptc_node_devices_free(d);
	else
		*ret = d;
	return rc;
}

int ptc_node_devices_virtual(size_t n, struct ptc_node_devices **ret, struct ptc_error *err)
{
	int rc = n > PTC_NODE_DEVICES_MAX ? ptc_error_set(err, PTC_ELIMIT, "%zu virtual devices", n) : make(ret, err);

	if (rc)
		return rc;
	(*ret)->n = n;
	for (size_t i = 0; i < n; i++)
		(*ret)->v[i] = (struct ptc_node_device){ .kind = "virtual", .health = "ok", .index = (unsigned)i };
	return 0;
}

struct ptc_node_devices *ptc_node_devices_free(struct ptc_node_devices *d)
{
	if (!d)
		return NULL;
	if (d->join)
		pthread_join(d->looker, NULL);
	pthread_mutex_destroy(&d->lock);
	ptc_free(d->ids);
	ptc_free(d);
	return NULL;
}

size_t ptc_node_devices_count(const struct ptc_node_devices *d)
{
	return d->n;
}

const char *ptc_node_devices_ids(const struct ptc_node_devices *d)
{
	return d->ids;
}

void ptc_node_devices_get(struct ptc_node_devices *d, size_t i, struct ptc_node_device *ret)
{
	pthread_mutex_lock(&d->lock);
	*ret = d->v[i];
	if (d->checked[i][0] && strcmp(ret->health, "ok") == 0) {
		snprintf(ret->health, sizeof ret->health, "check");
		snprintf(ret->why, sizeof ret->why, "%s", d->checked[i]);
	}
	pthread_mutex_unlock(&d->lock);
}

void ptc_node_devices_verdict(struct ptc_node_devices *d, char (*why)[PTC_NODE_DEVICE_WHY])
{
	pthread_mutex_lock(&d->lock);
	memcpy(d->checked, why, d->n * sizeof *d->checked);
	pthread_mutex_unlock(&d->lock);
}

/* ---- looking again ---- */

/* Numbers stay; what is not found is lost. */
static void update_locked(struct ptc_node_devices *d, json_t *list)
{
	for (size_t i = 0; i < d->n; i++) {
		bool found = false;
		size_t k;
		json_t *o;

		json_array_foreach(json_object_get(list, "devices"), k, o) {
			struct ptc_node_device now = device_of(o);

			if (strcmp(now.uuid, d->v[i].uuid) != 0)
				continue;
			d->v[i] = now;
			d->v[i].dead = strcmp(now.health, "lost") == 0;
			found = true;
		}
		if (!found) {
			const char *why = json_string_value(json_object_get(list, "why"));

			snprintf(d->v[i].health, sizeof d->v[i].health, "lost");
			snprintf(d->v[i].why, sizeof d->v[i].why, "%s", why ? why : "the driver no longer shows it");
			/* With no device at all, a new driver may have been installed: ranks go on with the old one. */
			d->v[i].dead = json_array_size(json_object_get(list, "devices")) > 0;
		}
	}
}

int ptc_node_devices_refresh(struct ptc_node_devices *d, struct ptc_error *err)
{
	json_t *list = NULL;
	int rc = d->ids ? ask(&list, err) : 0;

	pthread_mutex_lock(&d->lock);
	if (list)
		update_locked(d, list);
	d->looked_ns = ptc_sys_now_ns();
	pthread_mutex_unlock(&d->lock);
	json_decref(list);
	return rc;
}

static void *look(void *arg)
{
	struct ptc_node_devices *d = arg;

	(void)ptc_node_devices_refresh(d, NULL);
	pthread_mutex_lock(&d->lock);
	d->looks = false;
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

void ptc_node_devices_look(struct ptc_node_devices *d, int64_t max_age_ms)
{
	pthread_mutex_lock(&d->lock);
	if (d->ids && !d->looks && ptc_sys_now_ns() - d->looked_ns >= max_age_ms * 1000000) {
		if (d->join)
			pthread_join(d->looker, NULL);
		d->join = d->looks = ptc_thread_start(&d->looker, "ptc-devices", look, d, NULL) == 0;
	}
	pthread_mutex_unlock(&d->lock);
}

void ptc_node_devices_unhealthy(struct ptc_node_devices *d, char *ret, size_t size)
{
	size_t len = 0;

	*ret = '\0';
	for (size_t i = 0; i < d->n && len + 24 < size; i++) {
		struct ptc_node_device now;

		ptc_node_devices_get(d, i, &now);
		if (strcmp(now.health, "ok") != 0)
			len += (size_t)snprintf(ret + len, size - len, "%s%zu:%.15s", len ? "," : "", i, now.health);
	}
}

void ptc_node_devices_json(struct ptc_node_devices *d, size_t i, struct ptc_buf *b)
{
	struct ptc_node_device v;
	json_t *o;
	char *text;

	ptc_node_devices_get(d, i, &v);
	o = json_pack("{s:i, s:s, s:s}", "device", (int)i, "kind", v.kind, "health", v.health);
	if (v.uuid[0])
		json_object_update_new(o, json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:i}", "uuid", v.uuid, "name",
						    v.name, "bus", v.bus, "index", (int)v.index, "memory_bytes",
						    (json_int_t)v.memory_bytes, "free_bytes", (json_int_t)v.free_bytes,
						    "processes", (int)v.processes));
	if (v.why[0])
		json_object_set_new(o, "why", json_string(v.why));
	text = o ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	if (text)
		ptc_buf_append(b, text + 1, strlen(text) - 2);
	else
		b->failed = true;
	free(text);
}
