/* SPDX-License-Identifier: Apache-2.0 */
/* Declared memory that lies on a device. The library is linked against no CUDA library: it uses the driver that the
 * program has loaded, and where there is none all memory is the host's.
 *
 * ptc_device_find tells device memory from host memory and says how it can be shared. Copies and settling work in the
 * context that the memory belongs to and leave the thread's own as it was. Threads: find: one that has the memory's
 * context current; the others any.
 *
 * settle.c waits for devices, and has the marks that a device writes itself.
 *
 * Failure modes: the driver's, as a line in `why`; a device that is not done in time (the caller's `goes_on` returns
 * false). */
#pragma once

#include "proto/local_messages.h"

#include <stdatomic.h>
#include <stdbool.h>

struct device_memory {
	uint64_t address, bytes; /* an allocation; if it cannot be shared, only the range that was asked about */
	void *context;
	uint64_t context_id, buffer;
	char uuid[PTC_LOCAL_UUID_MAX + 1], why[PTC_LOCAL_WHY_MAX + 1];
	uint8_t ipc[PTC_LOCAL_IPC_BYTES];
	bool descriptor; /* a handle of cuMemMap, shared by ptc_device_export */
};

/* The words that the rank's device writes in the order of a stream. Set to zeros: there are none. */
struct device_marks {
	bool on, registered; /* registered: the page stays mapped, as a device may still write there */
	void *stream, *context;
	uint64_t word; /* where the device sees it */
};

/* goes_on is called again and again while a function waits for a device. false: the caller gives up, and has written
 * `why`. */
struct device_patience {
	bool (*goes_on)(void *arg, char *why, size_t why_size);
	void *arg;
};

/* By address. */
struct device_list {
	struct device_memory *v;
	size_t n, cap;
};

/* 1: [low, high) is device memory, and the list has its allocation; 0: it is not; -1: the driver's error (`why`), or no
 * memory. */
int ptc_device_find(uint64_t low, uint64_t high, struct device_list *ret, char *why, size_t why_size);
/* A descriptor of it, the caller's; -1: the driver gives none. */
int ptc_device_export(const struct device_memory *m);
int ptc_device_read(const struct device_memory *m, void *to, uint64_t from, uint64_t bytes);
int ptc_device_write(const struct device_memory *m, uint64_t to, const void *from, uint64_t bytes);

/* The entry that contains `address`; NULL: there is none. */
const struct device_memory *ptc_device_at(const struct device_list *l, uint64_t address);
/* false: no memory, or too many. An entry that is there already is not added twice. Entries that only the rank can copy
 * are merged where they overlap. */
bool ptc_device_add(struct device_list *l, const struct device_memory *m);
void ptc_device_clear(struct device_list *l);

/* ---- settle.c ---- */

/* Waits until the device has done all that the program has told it. 0, or -1 and `why`. */
int ptc_device_settle(const struct device_memory *m, const struct device_patience *p, char *why, size_t why_size);
/* Makes `page`, of which `word` is a part, writable for the device of the thread's context, and writes 0 to the word in
 * the stream's order. 1: marks are on; 0: they are not possible here, and `why`. The page stays mapped until the
 * process ends. */
int ptc_device_marks_begin(struct device_marks *m, void *stream, void *page, size_t bytes, _Atomic uint64_t *word,
			   char *why, size_t why_size);
/* Has the device write `value` once it has come to this point of the stream. 1: it will; 0: the stream's work goes into
 * a graph, so a mark says nothing; -1: the driver says `why`. */
int ptc_device_mark(const struct device_marks *m, uint64_t value, char *why, size_t why_size);
/* Adds a write of 0 to the graph that the stream captures. At each launch the write comes before all work that is
 * captured after it. The value 0 says nothing about any step. 1: it is there; 0: the stream captures no graph; -1: the
 * driver says `why`. */
int ptc_device_mark_in_graph(const struct device_marks *m, void *stream, char *why, size_t why_size);
/* Waits until the device has written `value`. 0, or -1 and `why`. */
int ptc_device_marks_wait(const struct device_marks *m, const _Atomic uint64_t *word, uint64_t value,
			  const struct device_patience *p, char *why, size_t why_size);
