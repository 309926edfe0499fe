/* SPDX-License-Identifier: Apache-2.0 */
/* Advice as a table or as JSON. Failure: memory, which the buffer remembers. */
#include "client/ctl/plans/advise/advise.h"

#include "base/check.h"
#include "planner/cost/on_kinds.h"

#include <math.h>
#include <string.h>

static void put_calibration(const struct ctl_advice *a)
{
	if (a->inferred[0])
		printf("model inferred from the tensors: %s\n", a->inferred);
	if (a->cal)
		printf("calibrated by %zu measured step%s and %zu measured peak%s\n", a->nsteps,
		       a->nsteps == 1 ? "" : "s", a->npeaks, a->npeaks == 1 ? "" : "s");
	else
		puts("uncalibrated: the profile has no measured step of this batch; step times may be off by half or "
		     "more");
}

static double samples_s(const struct ctl_advice *a, double step_s)
{
	return a->work.global_batch / step_s;
}

/* What a switch moves. False: nothing is known of it. */
static bool moves(const struct ctl_advice *a, const struct ptc_cand *to, bool stays, struct ctl_moves *ret)
{
	*ret = (struct ctl_moves){ .exact = true };
	return a->pricer && (stays || ctl_moves(a->pricer, to, ret) == 0);
}

static void put_json_moves(const struct ctl_advice *a, const struct ptc_cand *to, bool stays)
{
	struct ctl_moves m;

	if (moves(a, to, stays, &m))
		ptc_buf_printf(a->out, ",\"moved_bytes\":%.0f,\"moved_bytes_least\":%.0f,\"moved_exact\":%s", m.bytes,
			       m.bytes_least, m.exact ? "true" : "false");
}

static void put_moves(const struct ctl_moves *m)
{
	if (m->exact)
		printf("  %.3g GB move", m->bytes / 1e9);
	else
		printf("  %.3g to %.3g GB move (estimated)", m->bytes_least / 1e9, m->bytes / 1e9);
}

static void put_row(const struct ctl_advice *a, const struct ptc_ranked *r)
{
	const struct ptc_estimate *e = &r->choice.est;
	struct ctl_moves m;
	char text[PTC_CAND_TEXT_MAX];

	ptc_cand_format(&r->choice.cand, text);
	printf("%-60s %7u %9.3f s %4.0f %% %9.1f %8.1f GB", text, ptc_cand_devices(&r->choice.cand), e->step_s,
	       100 * r->choice.sd, samples_s(a, e->step_s), e->memory_bytes / 1e9);
	if (e->peak_bytes > a->profile.cluster.kinds[e->place.kind[0]].memory_bytes)
		printf("  a peak of %.1f GB if the allocator gives nothing back", e->peak_bytes / 1e9);
	if (a->profile.cluster.nkinds > 1) {
		char on[PTC_PLACED_TEXT_MAX];

		ptc_placed_format(&a->profile.cluster, &r->choice.cand, &e->place, on);
		printf("  %s", on);
	}
	if (moves(a, &r->choice.cand, r->stays, &m) && m.bytes > 0)
		put_moves(&m);
	if (r->price.down_s > 0 && !r->stays)
		printf("  stops %.3g s", r->price.down_s);
	if (r->stays)
		puts("  runs now");
	else if (isfinite(r->break_even_s) && r->break_even_s > 0)
		printf("  paid back after %.0f s\n", r->break_even_s);
	else
		puts("");
}

static void put_json_row(const struct ctl_advice *a, const struct ptc_ranked *r)
{
	const struct ptc_estimate *e = &r->choice.est;
	struct ptc_buf *b = a->out;
	char text[PTC_CAND_TEXT_MAX];

	ptc_cand_format(&r->choice.cand, text);
	ptc_buf_printf(b,
		       "{\"config\":\"%s\",\"devices\":%u,\"step_s\":%.9g,\"error\":%.4g,\"samples_s\":%.9g,\"memory_"
		       "bytes\":%."
		       "0f,"
		       "\"state_bytes\":%.0f,\"activation_bytes\":%.0f,\"micro_batches\":%u,",
		       text, ptc_cand_devices(&r->choice.cand), e->step_s, r->choice.sd, samples_s(a, e->step_s),
		       e->memory_bytes, e->state_bytes, e->activation_bytes, e->micro_batches);
	ptc_buf_printf(b, "\"peak_bytes\":%.0f,", e->peak_bytes);
	if (r->choice.price_hour > 0)
		ptc_buf_printf(b, "\"price_hour\":%.9g,\"money_step\":%.9g,", r->choice.price_hour,
			       r->choice.price_hour * e->step_s / 3600);
	if (a->profile.cluster.nkinds > 1) {
		char on[PTC_PLACED_TEXT_MAX];

		ptc_placed_format(&a->profile.cluster, &r->choice.cand, &e->place, on);
		ptc_buf_printf(b, "\"on\":\"%s\",", on);
	}
	ptc_buf_printf(b,
		       "\"parts_s\":{\"compute\":%.9g,\"tp\":%.9g,\"cp\":%.9g,\"ep\":%.9g,\"pp\":%.9g,\"bubble\":%.9g,"
		       "\"dp\":%."
		       "9g,"
		       "\"optimizer\":%.9g,\"fixed\":%.9g},",
		       e->compute_s, e->tp_s, e->cp_s, e->ep_s, e->pp_s, e->bubble_s, e->dp_s, e->optimizer_s,
		       e->fixed_s);
	ptc_buf_printf(b, "\"pause_s\":%.9g,\"runs_now\":%s", r->price.down_s, r->stays ? "true" : "false");
	put_json_moves(a, &r->choice.cand, r->stays);
	if (isfinite(r->break_even_s))
		ptc_buf_printf(b, ",\"break_even_s\":%.9g", r->break_even_s);
	ptc_buf_printf(b, "}");
}

void ctl_advice_candidates(const struct ctl_advice *a, const struct ptc_ranked *v, size_t n, const char *why)
{
	if (a->out) {
		ptc_buf_printf(a->out,
			       "{\"version\":1,\"gpus\":%u,\"calibrated\":%s,\"inferred\":\"%s\",\"why\":\"%s\","
			       "\"candidates\":"
			       "[",
			       a->last, a->cal ? "true" : "false", a->inferred, why);
		for (size_t i = 0; i < n; i++) {
			ptc_buf_puts(a->out, i ? ",\n" : "\n");
			put_json_row(a, &v[i]);
		}
		ptc_buf_puts(a->out, "]}\n");
		return;
	}
	put_calibration(a);
	printf("%-60s %7s %11s %6s %9s %11s\n", "CONFIGURATION", "DEVICES", "STEP", "ERROR", "SAMPLES/S", "MEMORY");
	for (size_t i = 0; i < n; i++)
		put_row(a, &v[i]);
	puts(why);
}

void ctl_advice_counts_begin(const struct ctl_advice *a)
{
	if (a->out) {
		ptc_buf_printf(a->out, "{\"version\":1,\"calibrated\":%s,\"counts\":[", a->cal ? "true" : "false");
		return;
	}
	put_calibration(a);
	printf("%7s %-60s %7s %11s %9s %11s\n", "GPUS", "CONFIGURATION", "USED", "STEP", "SAMPLES/S", "MEMORY");
}

static void put_json_count(const struct ctl_advice *a, uint32_t n, const struct ptc_frontier_point *p, const char *text)
{
	struct ctl_moves m;

	ptc_buf_printf(a->out, "%s{\"gpus\":%u", n > a->first ? ",\n" : "\n", n);
	if (p)
		ptc_buf_printf(
			a->out,
			",\"config\":\"%s\",\"devices\":%u,\"step_s\":%.9g,\"samples_s\":%.9g,\"memory_bytes\":%.0f",
			text, ptc_cand_devices(&p->cand), p->step_s, samples_s(a, p->step_s), p->memory_bytes);
	if (p && moves(a, &p->cand, false, &m)) {
		put_json_moves(a, &p->cand, false);
		ptc_buf_printf(a->out, ",\"pause_s\":%.9g", ctl_pricer_pause(a->pricer) + m.seconds);
	}
	ptc_buf_puts(a->out, "}");
}

void ctl_advice_count(const struct ctl_advice *a, uint32_t n, const struct ptc_frontier_point *p)
{
	char text[PTC_CAND_TEXT_MAX] = "";
	struct ctl_moves m;

	if (p)
		ptc_cand_format(&p->cand, text);
	if (a->out) {
		put_json_count(a, n, p, text);
		return;
	}
	if (!p) {
		printf("%7u nothing fits\n", n);
		return;
	}
	printf("%7u %-60s %7u %9.3f s %9.1f %8.1f GB", n, text, ptc_cand_devices(&p->cand), p->step_s,
	       samples_s(a, p->step_s), p->memory_bytes / 1e9);
	if (moves(a, &p->cand, false, &m)) {
		put_moves(&m);
		printf("  stops %.3g s", ctl_pricer_pause(a->pricer) + m.seconds);
	}
	puts("");
}

void ctl_advice_counts_end(const struct ctl_advice *a)
{
	if (a->out)
		ptc_buf_puts(a->out, "]}\n");
}
