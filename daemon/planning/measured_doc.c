/* SPDX-License-Identifier: Apache-2.0 */
/* The measured document: codec and the few sums over it. A document that is not ours is PTC_EVERSION (more
 * than one version later) or PTC_EINVAL; the caller then goes on without measurements. */
#include "daemon/planning/measured_doc.h"

#include "base/check.h"
#include "formats/members.h"

#include <stdio.h>
#include <string.h>

#define WHAT    "measured steps"
#define VERSION 1

#define IS(doc, member, ...) PTC_ROW(struct ptc_measured_##doc, #member, member, __VA_ARGS__)
#define LIST(member, count, members)                                                                                   \
	IS(doc, member, ARRAY, .optional = true, PTC_COUNT(struct ptc_measured_doc, count), .of = &members)

static const struct ptc_member row_rows[] = { IS(row, config, TEXT),
					      IS(row, step_s, REAL),
					      IS(row, peak_bytes, REAL, .optional = true),
					      IS(row, host_bytes, REAL, .optional = true),
					      IS(row, noise, REAL, .optional = true, .max = 1),
					      IS(row, steps, U64, .optional = true),
					      IS(row, time_ms, I64, .optional = true) };
static const struct ptc_members row_members = PTC_MEMBERS(row_rows, struct ptc_measured_row);
static const struct ptc_member change_rows[] = { IS(change, time_ms, I64, .optional = true),
						 IS(change, pause_s, REAL, .optional = true),
						 IS(change, moving_s, REAL, .optional = true) };
static const struct ptc_members change_members = PTC_MEMBERS(change_rows, struct ptc_measured_change);
static const struct ptc_member loss_rows[] = { IS(loss, time_ms, I64), IS(loss, devices, U32) };
static const struct ptc_members loss_members = PTC_MEMBERS(loss_rows, struct ptc_measured_loss);
static const struct ptc_member doc_rows[] = { LIST(rows, nrows, row_members), LIST(changes, nchanges, change_members),
					      LIST(losses, nlosses, loss_members),
					      IS(doc, devices, U32, .optional = true) };
static const struct ptc_members doc_members = PTC_MEMBERS(doc_rows, struct ptc_measured_doc);

char *ptc_measured_encode(const struct ptc_measured_doc *d)
{
	return ptc_members_to_text(VERSION, &doc_members, d);
}

int ptc_measured_decode(const char *json, size_t len, struct ptc_measured_doc *ret, struct ptc_error *err)
{
	int rc;

	memset(ret, 0, sizeof *ret);
	rc = ptc_members_from_text(WHAT, VERSION, VERSION, &doc_members, json, len, ret, err);
	for (size_t i = 0; !rc && i < ret->nrows; i++)
		if (ret->rows[i].step_s == 0)
			rc = ptc_error_set(err, PTC_EINVAL, WHAT ": \"step_s\" must not be 0");
	return rc;
}

void ptc_measured_add(struct ptc_measured_doc *d, const struct ptc_measured_row *row)
{
	size_t at = 0;

	while (at < d->nrows && strcmp(d->rows[at].config, row->config) != 0)
		at++;
	if (at == d->nrows && d->nrows == PTC_MEASURED_ROWS)
		at = 0;
	if (at < d->nrows) {
		memmove(&d->rows[at], &d->rows[at + 1], (d->nrows - at - 1) * sizeof *d->rows);
		d->nrows--;
	}
	d->rows[d->nrows++] = *row;
}

void ptc_measured_change_add(struct ptc_measured_doc *d, const struct ptc_measured_change *change)
{
	if (d->nchanges == PTC_MEASURED_CHANGES)
		memmove(&d->changes[0], &d->changes[1], --d->nchanges * sizeof *d->changes);
	d->changes[d->nchanges++] = *change;
}

bool ptc_measured_devices(struct ptc_measured_doc *d, uint32_t devices, int64_t now_ms)
{
	bool gone = devices < d->devices;

	if (gone && d->nlosses == PTC_MEASURED_LOSSES)
		memmove(&d->losses[0], &d->losses[1], --d->nlosses * sizeof *d->losses);
	if (gone)
		d->losses[d->nlosses++] = (struct ptc_measured_loss){ now_ms, d->devices - devices };
	d->devices = devices;
	return gone;
}

void ptc_measured_losses_mean(const struct ptc_measured_loss *v, size_t n, int64_t now_ms, double *ret_every_s,
			      double *ret_devices)
{
	double sum = 0;

	*ret_every_s = *ret_devices = 0;
	if (n < 2 || now_ms <= v[0].time_ms)
		return;
	for (size_t i = 0; i < n; i++)
		sum += v[i].devices;
	*ret_every_s = (double)(now_ms - v[0].time_ms) / 1000 / (double)n;
	*ret_devices = sum / (double)n;
}

double ptc_measured_between_s(const struct ptc_measured_doc *d)
{
	int64_t all;

	if (d->nchanges < 3)
		return 0;
	all = d->changes[d->nchanges - 1].time_ms - d->changes[0].time_ms;
	return all > 0 ? (double)all / 1000 / (double)(d->nchanges - 1) : 0;
}

double ptc_measured_pause_s(const struct ptc_measured_doc *d, double absent)
{
	double sum = 0;
	size_t n = 0;

	for (size_t i = 0; i < d->nchanges; i++)
		if (d->changes[i].pause_s > 0) {
			sum += PTC_MAX(0.0, d->changes[i].pause_s - d->changes[i].moving_s);
			n++;
		}
	return n ? sum / (double)n : absent;
}
