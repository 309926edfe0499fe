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
#include "formats/json.h"
#include "formats/members.h"
#include "formats/names.h"

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

/* ---- what ptc-gpu --list prints ---- */

struct listed {
	uint32_t device; /* only written: the number here */
	struct ptc_node_device d;
	size_t nbytes; /* how many of d.uses have the element of pid_bytes */
	bool visible;
	uint32_t cuda_index;
};
struct list {
	struct listed *v;
	size_t n;
	char *why; /* there is no device; NULL: there are some */
};

#define ROW(key, member, ...)  PTC_ROW(struct listed, key, member, __VA_ARGS__, .optional = true)
#define DEVICE(member, ...)    ROW(#member, d.member, __VA_ARGS__)
#define OF_GPU                 PTC_IF_TEXT(struct listed, d.uuid)
#define USES(key, n, members_) ROW(key, d.uses, ARRAY, PTC_COUNT(struct listed, n), .of = &(members_))

static const struct ptc_member pid_rows[] = { PTC_ROW(struct ptc_node_device_use, NULL, pid, I64) };
static const struct ptc_members pid_members = PTC_MEMBERS(pid_rows, struct ptc_node_device_use);
static const struct ptc_member bytes_rows[] = {
	PTC_ROW(struct ptc_node_device_use, NULL, bytes, U64, PTC_SEEN(struct ptc_node_device_use, known),
		.null = true),
};
static const struct ptc_members bytes_members = PTC_MEMBERS(bytes_rows, struct ptc_node_device_use);
static const struct ptc_member device_rows[] = {
	ROW("device", device, U32),
	DEVICE(kind, TEXT),
	DEVICE(health, TEXT),
	DEVICE(uuid, TEXT, OF_GPU),
	DEVICE(name, TEXT, OF_GPU),
	DEVICE(bus, TEXT, OF_GPU),
	DEVICE(index, U32, OF_GPU),
	DEVICE(memory_bytes, U64, OF_GPU),
	DEVICE(free_bytes, U64, OF_GPU),
	DEVICE(processes, U32, OF_GPU),
	DEVICE(why, TEXT, PTC_IF_TEXT(struct listed, d.why)),
#define SHOWN 11 /* what the node says of its devices */
	USES("pids", d.nuses, pid_members),
	USES("pid_bytes", nbytes, bytes_members),
	ROW("visible", visible, BOOL),
	ROW("cuda_index", cuda_index, U32),
};
static const struct ptc_members device_members = PTC_MEMBERS(device_rows, struct listed);
static const struct ptc_members shown_members = { device_rows, SHOWN, sizeof(struct listed), false };
static const struct ptc_member list_rows[] = {
	PTC_ROW(struct list, "devices", v, LIST, PTC_COUNT(struct list, n), .of = &device_members),
	PTC_ROW(struct list, "why", why, STRING, PTC_IF(struct list, why)),
};
static const struct ptc_members list_members = PTC_MEMBERS(list_rows, struct list);

/* What ptc-gpu prints now. *ret is zeroed; ptc_members_done it. */
static int ask(struct list *ret, struct ptc_error *err)
{
	char path[PTC_HELPER_PATH];
	ptc_auto_free char *text = NULL;
	int rc = ptc_helper_find("ptc-gpu", "PTC_GPU", path, err);

	if (rc == 0)
		rc = ptc_gpu_child_list(path, LIST_TIMEOUT_MS, LIST_BYTES_MAX, &text, err);
	if (rc == 0)
		rc = ptc_members_from_text("ptc-gpu --list", 0, 0, &list_members, text, strlen(text), ret, err);
	return rc;
}

/* Places visible devices by cuda_index. Returns how many there are; SIZE_MAX: too many. */
static size_t fill(const struct list *list, struct ptc_node_device v[PTC_NODE_DEVICES_MAX])
{
	size_t n = 0;

	for (size_t i = 0; i < list->n; i++) {
		if (!list->v[i].visible)
			continue;
		if (list->v[i].cuda_index >= PTC_NODE_DEVICES_MAX)
			return SIZE_MAX;
		v[list->v[i].cuda_index] = list->v[i].d;
		n++;
	}
	return n;
}

/* ---- the devices ---- */

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
	struct list list = { 0 };
	int rc = ask(&list, err);

	if (rc == 0)
		rc = make(&d, err);
	if (rc == 0) {
		d->n = fill(&list, d->v);
		d->looked_ns = ptc_sys_now_ns();
		if (d->n == SIZE_MAX)
			rc = ptc_error_set(err, PTC_ELIMIT, "more than %d devices", PTC_NODE_DEVICES_MAX);
		else if (d->n == 0)
			rc = ptc_error_set(err, PTC_ENODEVICES, "%s",
					   list.why ? list.why : "none is visible: see CUDA_VISIBLE_DEVICES");
		else
			rc = join_ids(d, err);
	}
	ptc_members_done(&list_members, &list);
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
static void update_locked(struct ptc_node_devices *d, const struct list *list)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct ptc_node_device *now = NULL;

		for (size_t k = 0; k < list->n; k++)
			if (strcmp(list->v[k].d.uuid, d->v[i].uuid) == 0)
				now = &list->v[k].d;
		if (now) {
			d->v[i] = *now;
			d->v[i].dead = strcmp(now->health, "lost") == 0;
			continue;
		}
		snprintf(d->v[i].health, sizeof d->v[i].health, "lost");
		snprintf(d->v[i].why, sizeof d->v[i].why, "%s",
			 list->why ? list->why : "the driver no longer shows it");
		/* With no device at all, a new driver may have been installed: ranks go on with the old one. */
		d->v[i].dead = list->n > 0;
	}
}

int ptc_node_devices_refresh(struct ptc_node_devices *d, struct ptc_error *err)
{
	struct list list = { 0 };
	int rc = d->ids ? ask(&list, err) : 0;

	pthread_mutex_lock(&d->lock);
	if (d->ids && rc == 0)
		update_locked(d, &list);
	d->looked_ns = ptc_sys_now_ns();
	pthread_mutex_unlock(&d->lock);
	ptc_members_done(&list_members, &list);
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
	struct listed said = { .device = (uint32_t)i };
	ptc_auto_free char *text = NULL;
	json_t *o;

	ptc_node_devices_get(d, i, &said.d);
	if (!ptc_name_is_utf8(said.d.why)) /* the health command's words */
		said.d.why[0] = '\0';
	o = ptc_members_to_json(&shown_members, &said);
	text = o ? ptc_json_text(o) : NULL;
	json_decref(o);
	if (text)
		ptc_buf_append(b, text + 1, strlen(text) - 2);
	else
		b->failed = true;
}
