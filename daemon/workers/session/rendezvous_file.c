/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous keys of a group, in memory and in a file. The file is for a ptcd that starts anew while ranks still build:
 * ranks on other nodes would not put their keys again. Happy path: each put is appended to
 * JOB/groups/GENERATION-INCARNATION.rendezvous, and read with the group. The file is not synced, because a machine that
 * loses it has lost its ranks, too. Failure modes: a key that cannot be written is only in memory (logged), and lost if
 * ptcd dies. A record that does not verify is cut off, with everything behind it. */
#include "daemon/workers/session/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define HEAD     12 /* checksum and length of what follows, a RENDEZVOUS_PUT */
#define FILE_MAX ((size_t)PTC_LOCAL_RENDEZVOUS_KEYS_MAX * (PTC_LOCAL_RENDEZVOUS_MAX + PTC_LOCAL_SHORT_MAX + 64))

struct rendezvous_entry *ptc_rendezvous_find(const struct group *g, const char *key)
{
	for (size_t i = 0; i < g->nrendezvous; i++)
		if (strcmp(g->rendezvous[i].key, key) == 0)
			return &g->rendezvous[i];
	return NULL;
}

int ptc_rendezvous_add(struct group *g, const char *key, const void *value, size_t len, struct ptc_error *err)
{
	struct rendezvous_entry *e = ptc_rendezvous_find(g, key);

	if (e && (e->len != len || memcmp(e->value, value, len) != 0))
		return ptc_error_set(err, PTC_EEXIST, "key \"%.255s\" was put with another value", key);
	if (e)
		return 1;
	if (g->nrendezvous == PTC_LOCAL_RENDEZVOUS_KEYS_MAX || len > PTC_LOCAL_RENDEZVOUS_MAX ||
	    strlen(key) > PTC_LOCAL_SHORT_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "key \"%.255s\": more than %d keys, or too long", key,
				     PTC_LOCAL_RENDEZVOUS_KEYS_MAX);
	if (!PTC_ROOM(g->rendezvous, g->nrendezvous + 1, g->rendezvous_cap))
		return ptc_nomem(err);
	e = &g->rendezvous[g->nrendezvous];
	e->key = ptc_strdup(key);
	e->value = ptc_malloc(len ? len : 1);
	e->len = len;
	if (!e->key || !e->value) {
		ptc_free(e->key);
		ptc_free(e->value);
		return ptc_nomem(err);
	}
	if (len)
		memcpy(e->value, value, len);
	g->nrendezvous++;
	return 0;
}

static char *rendezvous_path(const struct group *g)
{
	return ptc_asprintf("%s/groups/%llu-%llu" PTC_RENDEZVOUS, g->job->dir,
			    (unsigned long long)g->desc.key.generation, (unsigned long long)g->desc.key.incarnation);
}

static bool append(const char *path, const void *data, size_t len)
{
	ptc_auto_close int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	ssize_t n = fd >= 0 ? write(fd, data, len) : -1;

	if (n == (ssize_t)len)
		return true;
	ptc_warn("workers", "%s: cannot keep a rendezvous key: %s", path, n < 0 ? strerror(errno) : "no room");
	return false;
}

void ptc_rendezvous_keep(const struct group *g, const struct rendezvous_entry *e)
{
	struct ptc_local_out body = { .grow = ptc_realloc }, out = { .grow = ptc_realloc };
	ptc_auto_free char *path = rendezvous_path(g);

	ptc_local_put_rendezvous(&body,
				 &(struct ptc_local_rendezvous){ .key = e->key, .value = e->value, .len = e->len });
	if (!body.failed) {
		ptc_local_put_u64(&out, ptc_checksum(body.data, body.len));
		ptc_local_put_bytes(&out, body.data, body.len);
	}
	if (path && !body.failed && !out.failed)
		append(path, out.data, out.len);
	ptc_free(body.data);
	ptc_free(out.data);
}

size_t ptc_rendezvous_decode(struct group *g, const uint8_t *data, size_t len)
{
	size_t at = 0;

	while (len - at > HEAD) {
		struct ptc_local_rendezvous m;
		uint64_t sum;
		uint32_t n;

		memcpy(&sum, data + at, sizeof sum);
		memcpy(&n, data + at + sizeof sum, sizeof n);
		if (n > len - at - HEAD || sum != ptc_checksum(data + at + HEAD, n) ||
		    !ptc_local_get_rendezvous(data + at + HEAD, n, &m) ||
		    ptc_rendezvous_add(g, m.key, m.value, m.len, NULL))
			break;
		at += HEAD + n;
	}
	return at;
}

void ptc_rendezvous_load(struct group *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	ptc_auto_free char *path = rendezvous_path(g);
	ptc_auto_free char *data = NULL;
	size_t len = 0, good;
	int rc = path ? ptc_sys_read_file(path, FILE_MAX, &data, &len, &err) : PTC_ENOMEM;

	if (rc && rc != PTC_ENOTFOUND)
		ptc_warn("workers", "rendezvous keys of generation %llu are not known any more: %s",
			 (unsigned long long)g->desc.key.generation, err.text);
	if (rc)
		return;
	good = ptc_rendezvous_decode(g, (const uint8_t *)data, len);
	/* What is appended has to follow what can be read. */
	if (good < len && truncate(path, (off_t)good) != 0)
		ptc_warn("workers", "%s: cannot be cut to what it has: %s", path, strerror(errno));
}

void ptc_rendezvous_unsave(const struct group *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	ptc_auto_free char *path = rendezvous_path(g);

	if (path && ptc_sys_unlink(path, "workers.meets-gone", &err))
		ptc_warn("workers", "%s", err.text);
}
