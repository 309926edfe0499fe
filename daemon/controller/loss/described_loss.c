/* SPDX-License-Identifier: Apache-2.0 */
/* What the loss of a node will cost, as far as the description alone says it (notes of `ptcctl job create`). Happy
 * path: one line about snapshots, and one about where the bytes are. Failure modes: memory. Pure. */
#include "daemon/controller/loss/loss_cost.h"

#include "base/buf.h"

/* Whether the job may go on with fewer devices than it can have at most. If there is a table, only it counts then. */
static bool may_shrink(const struct ptc_job_desc *job)
{
	const struct ptc_job_elastic *e = &job->elastic;

	if (e->max_gpus && e->min_gpus == e->max_gpus)
		return false;
	return !job->ngpus || (job->ngpus > 1 && job->gpus[job->ngpus - 2].n >= e->min_gpus);
}

static void put_live(const struct ptc_job_desc *job, struct ptc_buf *b)
{
	if (job->elastic.on_failure == PTC_JOB_STOP)
		ptc_buf_puts(b, "if a node is lost, the job ends, and a person runs it again (`on_failure: stop`)");
	else if (job->elastic.on_failure == PTC_JOB_WAIT)
		ptc_buf_puts(b, "if a node is lost, the job waits for it (`on_failure: wait`)");
	else if (!may_shrink(job))
		ptc_buf_puts(b, "if a node is lost and no spare one is there, the job waits for it: it has no "
				"configuration for fewer devices that `min_gpus` permits");
	else
		ptc_buf_puts(b, "if a node is lost, the job starts again on the devices that are left");
	if (job->snapshot_every)
		ptc_buf_printf(b, ", and loses the steps since its newest snapshot, which is due every %llu steps",
			       (unsigned long long)job->snapshot_every);
	else
		ptc_buf_puts(b, ", and loses all steps since the last snapshot that a person made (`snapshot_every` "
				"is 0)");
}

static void put_bytes(const struct ptc_job_desc *job, struct ptc_buf *b)
{
	if (job->copies.count > 1)
		ptc_buf_printf(b, "`copies` keeps every part of the state on %u %ss, once they are made",
			       job->copies.count, job->copies.racks ? "rack" : "node");
	else
		ptc_buf_puts(
			b, "without `copies`, what only one node has (dp=1, or split over dp as with FSDP or ZeRO) is "
			   "missing until that node is back; `copies: {count: 2}` keeps it on two");
	if (job->has_run && job->elastic.on_failure == PTC_JOB_SHRINK)
		ptc_buf_puts(b, "; no step is lost where the ranks of other nodes have all of the state and survive "
				"(gen.survive(), ptc_survive)");
}

static json_t *take(struct ptc_buf *b)
{
	json_t *line = ptc_buf_failed(b) ? NULL : json_string(b->data);

	ptc_buf_done(b);
	return line;
}

json_t *ptc_loss_described(const struct ptc_job_desc *job)
{
	struct ptc_buf live = PTC_BUF_INIT, bytes = PTC_BUF_INIT;
	json_t *lines = json_array();
	bool fine = true;

	if (job->has_run) {
		put_live(job, &live);
		fine = json_array_append_new(lines, take(&live)) == 0; /* a list of NULL fails, too */
	}
	put_bytes(job, &bytes);
	if (json_array_append_new(lines, take(&bytes)) == 0 && fine)
		return lines;
	json_decref(lines);
	return NULL;
}
