/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: restores a rank's memory by reading a file of ptcd. Happy path: while the program waits in ptc_restore, ptcd
 * gives us its store's file, read-only, and says which of its bytes belong where. Our thread copies them there. It
 * uses our own page table and processor, which is faster than another process writing into our memory. Then it tells
 * ptcd that the bytes are there.
 *
 * Failure modes: if bytes cannot be read or written, our thread says so; ptcd then writes them itself, or names what is
 * wrong with that memory. If a block does not match the checksum that ptcd gave with it, our thread says that too; ptcd
 * then verifies the blocks, has bad ones healed, and lets us read again. A request of another generation is ignored. */
#include "client/lib/link.h"
#include "client/lib/copy/past_caches.h"
#include "client/lib/copy/summed.h"

#include <errno.h>
#include <stdlib.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAGE_BYTES   4096u
#define DEVICE_BYTES (1u << 20) /* copied to a device at once */
#define READ_BYTES                                                                                                     \
	(64u << 10) /* from a disk, a row of so many is read by a call: what it cannot read is an error, not a signal  \
		     */

static int read_row(int fd, uint64_t address, uint64_t offset, uint64_t bytes)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, (void *)(uintptr_t)(address + done), bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? errno : ENODATA;
		done += (uint64_t)n;
	}
	return 0;
}

static uint64_t whole_pages(uint64_t bytes)
{
	return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void ptc_client_fill_done(ptc_client *c)
{
	if (c->filled.map)
		munmap(c->filled.map, whole_pages(c->filled.map_bytes));
	c->filled.map = NULL;
}

/* At an address where huge pages of the file are huge pages of ours. MAP_FAILED: errno says why. */
uint8_t *ptc_client_map(int fd, uint64_t bytes, int prot)
{
	uint8_t *room;
	uint64_t skip;

	bytes = whole_pages(bytes);
	room = mmap(NULL, bytes + CLIENT_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return MAP_FAILED;
	skip = (CLIENT_HUGE_BYTES - (uintptr_t)room % CLIENT_HUGE_BYTES) % CLIENT_HUGE_BYTES;
	if (mmap(room + skip, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		munmap(room, bytes + CLIENT_HUGE_BYTES);
		return MAP_FAILED;
	}
	if (skip)
		munmap(room, skip);
	munmap(room + skip + bytes, CLIENT_HUGE_BYTES - skip);
	return room + skip;
}

/* Of a file that does not get shorter. The last one is kept until something else than a FILL comes. */
static int map_file(ptc_client *c, int fd)
{
	struct statfs fs;
	struct stat st;
	uint8_t *map;
	uint64_t bytes;

	if (fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
		return errno;
	bytes = (uint64_t)st.st_size;
	if (c->filled.map && c->filled.dev == st.st_dev && c->filled.ino == st.st_ino && c->filled.map_bytes == bytes)
		return 0;
	ptc_client_fill_done(c);
	map = ptc_client_map(fd, bytes, PROT_READ);
	if (map == MAP_FAILED)
		return ENOMEM;
	madvise(map, whole_pages(bytes), MADV_DONTFORK);
	c->filled.map = map;
	c->filled.map_bytes = bytes;
	c->filled.dev = st.st_dev;
	c->filled.ino = st.st_ino;
	c->filled.on_disk = fs.f_type != TMPFS_MAGIC;
	return 0;
}

#define DAMAGED (-1) /* no errno */

static int copy_row(const ptc_client *c, struct summed *sums, uint64_t address, uint64_t offset, uint64_t bytes)
{
	if (!sums) {
		ptc_past_caches_copy((void *)(uintptr_t)address, c->filled.map + offset, bytes);
		return 0;
	}
	switch (ptc_summed_copy(sums, (void *)(uintptr_t)address, offset, bytes)) {
	case SUMMED_COPIED:
		return 0;
	case SUMMED_DAMAGED:
		return DAMAGED;
	default:
		return EBADMSG;
	}
}

/* Out of the mapping, past the caches. The first and the last byte go through the kernel, which says so if that
 * memory is not there, or not to be written. sums NULL: ptcd has verified the bytes. */
static int copy_rows(const ptc_client *c, int fd, struct summed *sums, const struct ptc_local_rows *r)
{
	uint64_t there = (r->count - 1) * r->address_step + r->bytes - 1;
	uint64_t here = (r->count - 1) * r->offset_step + r->bytes - 1;
	int rc;

	if (!r->bytes)
		return 0;
	rc = r->offset + here >= c->filled.map_bytes ? ENODATA : read_row(fd, r->address, r->offset, 1);
	if (rc == 0)
		rc = read_row(fd, r->address + there, r->offset + here, 1);
	for (uint64_t i = 0; !rc && i < r->count; i++)
		rc = copy_row(c, sums, r->address + i * r->address_step, r->offset + i * r->offset_step, r->bytes);
	return rc;
}

/* To a device: through memory of ours, so that what cannot be read is an error, not a signal. */
static int write_rows(const struct device_memory *m, int fd, const struct ptc_local_rows *r)
{
	uint8_t *buffer = malloc(DEVICE_BYTES);
	int rc = buffer ? 0 : ENOMEM;

	for (uint64_t i = 0; i < r->count && !rc; i++)
		for (uint64_t at = 0; at < r->bytes && !rc; at += DEVICE_BYTES) {
			uint64_t n = r->bytes - at < DEVICE_BYTES ? r->bytes - at : DEVICE_BYTES;

			rc = read_row(fd, (uintptr_t)buffer, r->offset + i * r->offset_step + at, n);
			if (!rc && ptc_device_write(m, r->address + i * r->address_step + at, buffer, n) != 0)
				rc = EIO;
		}
	free(buffer);
	return rc;
}

static int read_rows(ptc_client *c, int fd, struct summed *sums, struct ptc_local_fill *f)
{
	struct ptc_local_rows r;
	int rc = 0;

	for (uint32_t k = 0; !rc && k < f->nrows; k++) {
		const struct device_memory *device;
		bool call;

		if (!ptc_local_get_rows(f, &r))
			return EBADMSG;
		device = ptc_device_at(&c->devices, r.address);
		if (device) {
			rc = write_rows(device, fd, &r);
			continue;
		}
		call = !sums && c->filled.on_disk && r.bytes >= READ_BYTES;
		if (!call)
			rc = copy_rows(c, fd, sums, &r);
		for (uint64_t i = 0; call && !rc && i < r.count; i++)
			rc = read_row(fd, r.address + i * r.address_step, r.offset + i * r.offset_step, r.bytes);
	}
	ptc_past_caches_end();
	return rc;
}

/* Blocks that have matched are looked at again in the next message: by then they need not be right any more. */
static int read_message(ptc_client *c, int fd, struct ptc_local_fill *f)
{
	struct ptc_direct_read_chunk *chunks = f->nchunks ? malloc(f->nchunks * sizeof *chunks) : NULL;
	struct summed sums = { .chunks = chunks, .nchunks = f->nchunks };
	int rc = f->nchunks && !chunks ? ENOMEM : map_file(c, fd);

	for (uint32_t i = 0; !rc && i < f->nchunks; i++)
		if (!ptc_local_get_chunk(f, &chunks[i]))
			rc = EBADMSG;
	sums.map = c->filled.map;
	sums.map_bytes = c->filled.map_bytes;
	if (rc == 0)
		rc = read_rows(c, fd, chunks ? &sums : NULL, f);
	free(chunks);
	return rc;
}

/* Only the thread that runs this ends the wait of ptc_restore, so the memory is the program's until this returns. */
bool ptc_client_fill(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_fill f;
	bool wanted;
	int rc;

	if (!ptc_local_get_fill(m->data, m->len, &f) || f.id <= c->filled.id)
		return false;
	pthread_mutex_lock(&c->lock);
	wanted = c->phase == PHASE_RESTORING && !c->fatal && f.generation == c->generation.generation &&
		 f.incarnation == c->generation.incarnation;
	pthread_mutex_unlock(&c->lock);
	rc = !wanted ? ECANCELED : m->fd < 0 ? EBADF : read_message(c, m->fd, &f);
	c->filled.id = f.id;
	c->filled.unsaid = true;
	if (rc == DAMAGED) {
		c->filled.damaged = true;
	} else if (rc && !c->filled.failed) {
		c->filled.failed = f.id;
		c->filled.code = rc;
	}
	return true;
}

bool ptc_client_filled(ptc_client *c)
{
	if (!c->filled.unsaid)
		return false;
	ptc_local_put_filled(&c->out, &(struct ptc_local_filled){ .id = c->filled.id,
								  .failed = c->filled.failed,
								  .code = c->filled.code,
								  .damaged = c->filled.damaged });
	c->out_type = PTC_LOCAL_FILLED;
	c->filled.unsaid = c->filled.damaged = false;
	c->filled.failed = 0;
	c->filled.code = 0;
	return true;
}
