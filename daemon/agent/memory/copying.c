/* SPDX-License-Identifier: Apache-2.0 */
/* See copying.h. */
#include "daemon/agent/memory/copying.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a copy that hangs keeps. */
struct kept {
	struct ptc_slot_kept base;
	struct ptc_table *tables[2];
};

static void kept_done(struct ptc_slot_kept *base)
{
	struct kept *k = (struct kept *)base;

	for (size_t i = 0; i < PTC_ARRAY_LEN(k->tables); i++)
		ptc_table_unref(k->tables[i]);
	ptc_free(k);
}

static int keep(struct ptc_slot_copying *c, struct ptc_table *const tables[2], struct ptc_error *err)
{
	struct kept *k = ptc_calloc(1, sizeof *k);

	if (!k)
		return ptc_nomem(err);
	atomic_store(&k->base.refs, 1);
	k->base.done = kept_done;
	for (size_t i = 0; i < PTC_ARRAY_LEN(k->tables); i++)
		k->tables[i] = tables[i] ? ptc_table_ref(tables[i]) : NULL;
	c->kept = &k->base;
	return 0;
}

static int open_chunks(struct ptc_slot_memory *m, struct ptc_table *const tables[2], struct ptc_error *err)
{
	struct ptc_table *t = tables[0] && ptc_table_bytes(tables[0]) ? tables[0] : tables[1];

	if (!t || !ptc_table_bytes(t))
		return 0;
	m->writable = !ptc_table_sealed(t);
	return m->writable ? ptc_table_file_writable(t, &m->fd, &m->base, &m->bytes, err)
			   : ptc_table_file(t, &m->fd, &m->base, &m->bytes, err);
}

static int make_room(struct ptc_copying *c, size_t bytes, struct ptc_error *err)
{
	struct ptc_slot_memory *m = &c->slots.memory[1];
	void *room = MAP_FAILED;

	if (!bytes)
		return 0;
	m->fd = memfd_create("ptc-room", MFD_CLOEXEC);
	if (m->fd >= 0 && ftruncate(m->fd, (off_t)bytes) == 0)
		room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (room == MAP_FAILED)
		return ptc_error_errno(err, errno, "no memory to read ranks");
	m->base = c->room = room;
	m->bytes = c->room_bytes = bytes;
	m->writable = m->once = true;
	return 0;
}

int ptc_copying_open(struct ptc_copying *c, const struct ptc_slot_view *slot, struct ptc_table *const tables[2],
		     size_t room_bytes, const struct ptc_wait *wait, struct ptc_error *err)
{
	int rc;

	*c = (struct ptc_copying){ .slot = slot, .slots = { .wait = wait } };
	c->slots.memory[0].fd = c->slots.memory[1].fd = -1;
	rc = keep(&c->slots, tables, err);
	if (rc == 0)
		rc = open_chunks(&c->slots.memory[0], tables, err);
	if (rc == 0)
		rc = make_room(c, room_bytes, err);
	if (rc == 0)
		rc = ptc_slot_copying_init(slot, &c->slots, err);
	if (rc)
		ptc_copying_close(c);
	return rc;
}

void ptc_copying_close(struct ptc_copying *c)
{
	if (!c->slot)
		return;
	ptc_slot_copying_done(c->slot, &c->slots);
	if (c->room)
		munmap(c->room, c->room_bytes);
	for (size_t i = 0; i < PTC_ARRAY_LEN(c->slots.memory); i++)
		ptc_close(&c->slots.memory[i].fd);
	ptc_slot_kept_unref(c->slots.kept);
	*c = (struct ptc_copying){ .slot = NULL };
}
