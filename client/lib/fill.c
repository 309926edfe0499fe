// SPDX-License-Identifier: Apache-2.0
/* Being restored by reading. Happy path: while the program waits in ptc_restore, ptcd hands us its store's file, to be read only, and
 * says which bytes of it belong where; our thread copies them there, with our own page table and on our own processor, which is
 * faster than another process can write them; then ptcd hears that it is done. Failure modes: what cannot be read or
 * written is said, and ptcd writes it itself or names what is wrong with that memory; what is of another generation is not
 * done. */
#include "client/lib/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (64u << 10) /* a row of so many is read by a call, a shorter one copied out of a mapping */

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

void ptc_client_fill_done(ptc_client *c)
{
	if (c->filled.map)
		munmap(c->filled.map, c->filled.map_bytes);
	c->filled.map = NULL;
}

/* Of a file that does not get shorter. The last one is kept until something else than a FILL comes. */
static int map_file(ptc_client *c, int fd)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) != 0)
		return errno;
	if (c->filled.map && c->filled.dev == st.st_dev && c->filled.ino == st.st_ino &&
	    c->filled.map_bytes == (uint64_t)st.st_size)
		return 0;
	ptc_client_fill_done(c);
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return errno;
	madvise(map, (size_t)st.st_size, MADV_DONTFORK);
	c->filled.map = map;
	c->filled.map_bytes = (uint64_t)st.st_size;
	c->filled.dev = st.st_dev;
	c->filled.ino = st.st_ino;
	return 0;
}

static int copy_rows(ptc_client *c, int fd, const struct ptc_local_rows *r)
{
	int rc = map_file(c, fd);

	if (!rc && r->offset + (r->count - 1) * r->offset_step + r->bytes > c->filled.map_bytes)
		rc = ENODATA;
	for (uint64_t i = 0; !rc && i < r->count; i++)
		memcpy((void *)(uintptr_t)(r->address + i * r->address_step),
		       c->filled.map + r->offset + i * r->offset_step, r->bytes);
	return rc;
}

static int read_rows(ptc_client *c, int fd, struct ptc_local_fill *f)
{
	struct ptc_local_rows r;
	int rc = 0;

	for (uint32_t k = 0; !rc && k < f->nrows; k++) {
		if (!ptc_local_get_rows(f, &r))
			return EBADMSG;
		if (r.bytes < READ_BYTES)
			rc = copy_rows(c, fd, &r);
		for (uint64_t i = 0; !rc && r.bytes >= READ_BYTES && i < r.count; i++)
			rc = read_row(fd, r.address + i * r.address_step, r.offset + i * r.offset_step, r.bytes);
	}
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
		 f.launch == c->generation.launch;
	pthread_mutex_unlock(&c->lock);
	rc = !wanted ? ECANCELED : m->fd < 0 ? EBADF : read_rows(c, m->fd, &f);
	c->filled.id = f.id;
	c->filled.unsaid = true;
	if (rc && !c->filled.failed) {
		c->filled.failed = f.id;
		c->filled.code = rc;
	}
	return true;
}

bool ptc_client_filled(ptc_client *c)
{
	if (!c->filled.unsaid)
		return false;
	ptc_local_put_filled(&c->out, &(struct ptc_local_filled){
					      .id = c->filled.id, .failed = c->filled.failed, .code = c->filled.code });
	c->out_type = PTC_LOCAL_FILLED;
	c->filled.unsaid = false;
	c->filled.failed = 0;
	c->filled.code = 0;
	return true;
}
