/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the fixed shares are taken off the ceiling and chunks get the
 * rest. Failure modes: shares that leave chunks less than
 * PTC_MEMORY_CHUNKS_MIN (PTC_EINVAL, with the least ceiling that would do). */
#include "daemon/config/memory.h"

#include "base/check.h"

#define MIB (1ull << 20)

static uint64_t tables_of(uint64_t ceiling)
{
	return PTC_MEMORY_TABLES + ceiling / 256;
}

/* Whole MiB, such that the tables' share, which grows with it, fits too. */
static uint64_t least_ceiling(uint64_t fixed)
{
	uint64_t want = fixed + PTC_MEMORY_TABLES + PTC_MEMORY_CHUNKS_MIN;

	return (want + want / 255 + MIB - 1) / MIB + 1;
}

int ptc_memory_split(uint64_t ceiling, uint64_t staging, uint64_t work, bool local_etcd, struct ptc_memory *ret_memory,
		     struct ptc_error *err)
{
	struct ptc_memory m = { .ceiling = ceiling,
				.staging = staging,
				.work = work,
				.transport = PTC_MEMORY_TRANSPORT,
				.etcd = local_etcd ? PTC_MEMORY_ETCD : 0,
				.tables = tables_of(ceiling) };
	uint64_t fixed = m.transport + m.etcd, all;
	bool over = ptc_ckd_add(&fixed, fixed, staging) || ptc_ckd_add(&fixed, fixed, work) ||
		    ptc_ckd_add(&all, fixed, m.tables);

	m.chunks = over || all > ceiling ? 0 : ceiling - all;
	*ret_memory = m;
	if (m.chunks >= PTC_MEMORY_CHUNKS_MIN)
		return 0;
	if (over || fixed > UINT64_MAX / 2)
		return ptc_error_set(err, PTC_EINVAL, "staging and work are larger than any memory");
	return ptc_error_set(
		err, PTC_EINVAL,
		"too small to be useful: staging takes %lluMiB of it, work %lluMiB, the transport %lluMiB, "
		"etcd %lluMiB; write at least %lluMiB",
		(unsigned long long)(staging / MIB), (unsigned long long)(work / MIB),
		(unsigned long long)(m.transport / MIB), (unsigned long long)(m.etcd / MIB),
		(unsigned long long)least_ceiling(fixed));
}

uint64_t ptc_memory_heap(const struct ptc_memory *m)
{
	return m->staging + m->work;
}

/* Half of staging is for receiving, and its tickets stand for what gRPC holds of a fetch. */
uint64_t ptc_memory_wire(const struct ptc_memory *m)
{
	return m->transport + m->staging / 2;
}

void ptc_memory_json(const struct ptc_memory *m, struct ptc_buf *b)
{
	ptc_buf_printf(b,
		       "{\"ceiling_bytes\":%llu,\"chunks_bytes\":%llu,\"staging_bytes\":%llu,\"work_bytes\":%llu,"
		       "\"transport_bytes\":%llu,\"etcd_bytes\":%llu,\"tables_bytes\":%llu}",
		       (unsigned long long)m->ceiling, (unsigned long long)m->chunks, (unsigned long long)m->staging,
		       (unsigned long long)m->work, (unsigned long long)m->transport, (unsigned long long)m->etcd,
		       (unsigned long long)m->tables);
}

void ptc_memory_comment(const struct ptc_memory *m, struct ptc_buf *b)
{
	const struct {
		const char *name;
		uint64_t bytes;
	} row[] = { { "chunks", m->chunks },       { "staging", m->staging }, { "work", m->work },
		    { "transport", m->transport }, { "etcd", m->etcd },       { "tables", m->tables } };

	ptc_buf_printf(b, "# memory.ceiling is the sum of:");
	for (size_t i = 0; i < PTC_ARRAY_LEN(row); i++)
		ptc_buf_printf(b, "%s %s %.1fMiB", i ? "," : "", row[i].name, (double)row[i].bytes / (double)MIB);
	ptc_buf_printf(b, "\n");
}
