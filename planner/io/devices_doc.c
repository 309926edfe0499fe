/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by name (deploy/devices.yaml): peaks by data type, memory, price. Fails on numbers that cannot be and on a
 * name that stands twice, with their place. */
#include "planner/io/plan_doc.h"

#include "base/check.h"
#include "formats/doc_rows.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

const char *const ptc_math_names[PTC_MATHS] = { "16-bit", "bf16", "fp16", "fp8", "tf32", "fp32" };

static int read_peaks(const struct ptc_doc *doc, const struct ptc_doc_node *device, struct ptc_plan_device *ret,
		      struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(device, "flops");
	struct ptc_doc_row rows[PTC_MATHS - 1];
	int rc;

	for (int i = 1; i < PTC_MATHS; i++)
		rows[i - 1] = (struct ptc_doc_row){ ptc_math_names[i], PTC_DOC_REAL, &ret->flops[i], 1, 1e21 };
	rc = node ? ptc_doc_read(doc, node, "flops", rows, PTC_ARRAY_LEN(rows), err)
		  : ptc_doc_error(doc, device, err, PTC_EINVAL, "device %s has no flops", ret->name);
	ret->flops[PTC_MATH_16BIT] = PTC_MAX(ret->flops[PTC_MATH_BF16], ret->flops[PTC_MATH_FP16]);
	return rc;
}

static int read_one(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_plan_devices *all,
		    struct ptc_error *err)
{
	struct ptc_plan_device *d = &all->v[all->n];
	const struct ptc_doc_row rows[] = { { "name", PTC_DOC_OTHER },
					    { "flops", PTC_DOC_OTHER },
					    { "hbm_bytes_s", PTC_DOC_REAL, &d->hbm_bytes_s, 1, 1e18 },
					    { "memory_bytes", PTC_DOC_REAL, &d->memory_bytes, 1, 1e15 },
					    { "price_hour", PTC_DOC_REAL, &d->price_hour, 0, 1e9 } };
	const struct ptc_doc_node *name;
	const char *text = NULL;
	int rc = ptc_doc_read(doc, node, "a device", rows, PTC_ARRAY_LEN(rows), err);

	if (rc)
		return rc;
	name = ptc_doc_get(node, "name");
	rc = name ? ptc_doc_text(doc, name, "name", &text, err)
		  : ptc_doc_error(doc, node, err, PTC_EINVAL, "a device without a name");
	if (!rc && (!*text || strlen(text) > PTC_DEVICE_NAME_MAX))
		rc = ptc_doc_error(doc, name, err, PTC_EINVAL, "a device's name has 1 to %d characters",
				   PTC_DEVICE_NAME_MAX);
	for (size_t i = 0; i < all->n && !rc; i++)
		if (!strcasecmp(all->v[i].name, text))
			rc = ptc_doc_error(doc, name, err, PTC_EINVAL, "device %s is listed twice", text);
	if (rc)
		return rc;
	snprintf(d->name, sizeof d->name, "%s", text);
	rc = read_peaks(doc, node, d, err);
	if (!rc && !(d->hbm_bytes_s > 0 && d->memory_bytes > 0))
		rc = ptc_doc_error(doc, node, err, PTC_EINVAL, "device %s needs hbm_bytes_s and memory_bytes", d->name);
	all->n++;
	return rc;
}

int ptc_plan_devices_read(const struct ptc_doc *doc, struct ptc_plan_devices *ret, struct ptc_error *err)
{
	const struct ptc_doc_node *list;
	uint32_t version = 1;
	const struct ptc_doc_row rows[] = { { "version", PTC_DOC_COUNT, &version, 1, 1 },
					    { "devices", PTC_DOC_OTHER } };
	int rc = ptc_doc_read(doc, doc->root, "the devices", rows, PTC_ARRAY_LEN(rows), err);

	memset(ret, 0, sizeof *ret);
	if (rc)
		return rc;
	list = ptc_doc_get(doc->root, "devices");
	if (!list || list->kind != PTC_DOC_LIST || list->n > PTC_PLAN_MAX_DEVICES)
		return ptc_doc_error(doc, list ? list : doc->root, err, PTC_EINVAL,
				     "devices must be a list of at most %d", PTC_PLAN_MAX_DEVICES);
	for (const struct ptc_doc_node *n = list->first; n && !rc; n = n->next)
		rc = read_one(doc, n, ret, err);
	return rc;
}

void ptc_plan_devices_builtin(struct ptc_plan_devices *ret)
{
	size_t n;
	const struct ptc_device_kind *known = ptc_device_kinds_known(&n);

	memset(ret, 0, sizeof *ret);
	for (size_t i = 0; i < n && i < PTC_PLAN_MAX_DEVICES; i++) {
		struct ptc_plan_device *d = &ret->v[ret->n++];

		memcpy(d->name, known[i].name, sizeof d->name);
		d->flops[PTC_MATH_16BIT] = d->flops[PTC_MATH_BF16] = d->flops[PTC_MATH_FP16] = known[i].flops;
		d->hbm_bytes_s = known[i].hbm_bytes_s;
		d->memory_bytes = known[i].memory_bytes;
	}
}

static int take(const struct ptc_plan_device *d, enum ptc_math dtype, struct ptc_device_kind *ret,
		struct ptc_error *err)
{
	if (!(d->flops[dtype] > 0))
		return ptc_error_set(err, PTC_EINVAL, "device %s does not compute %s", d->name, ptc_math_names[dtype]);
	memset(ret, 0, sizeof *ret);
	memcpy(ret->name, d->name, sizeof ret->name);
	ret->flops = d->flops[dtype];
	ret->hbm_bytes_s = d->hbm_bytes_s;
	ret->memory_bytes = d->memory_bytes;
	ret->price_hour = d->price_hour;
	return 0;
}

int ptc_plan_device_find(const struct ptc_plan_devices *all, const char *name, enum ptc_math dtype,
			 struct ptc_device_kind *ret, struct ptc_error *err)
{
	const char *bare = !strncasecmp(name, "NVIDIA-", 7) || !strncasecmp(name, "NVIDIA ", 7) ? name + 7 : name;

	for (size_t i = 0; i < all->n; i++)
		if (!strcasecmp(all->v[i].name, bare) || !strcasecmp(all->v[i].name, name))
			return take(&all->v[i], dtype, ret, err);
	return PTC_ENOTFOUND;
}

/* ---- names as drivers write them ---- */

#define BETWEEN " -_/,"
#define ALIKE   (1.0 / 7) /* drivers count memory that the data sheet does not, or keep some */

static bool has_word(const char *name, const char *word, size_t n)
{
	for (const char *at = name; *at;) {
		size_t len = strcspn(at, BETWEEN);

		if (len == n && !strncasecmp(at, word, n))
			return true;
		at += len;
		at += strspn(at, BETWEEN);
	}
	return false;
}

/* "80GB" */
static bool is_size(const char *word, size_t n)
{
	size_t digits = strspn(word, "0123456789");

	return digits && digits + 2 == n && !strncasecmp(word + digits, "GB", 2);
}

/* How many words of the listed name the driver's has; 0: it is another device. */
static unsigned words_of(const struct ptc_plan_device *d, const char *name, double memory_bytes)
{
	unsigned found = 0;

	for (const char *at = d->name; *at;) {
		size_t n = strcspn(at, BETWEEN);

		if (n && has_word(name, at, n))
			found += 2; /* a size that is only alike counts less */
		else if (n && !(is_size(at, n) && memory_bytes > d->memory_bytes * (1 - ALIKE) &&
				memory_bytes < d->memory_bytes * (1 + ALIKE)))
			return 0;
		at += n;
		at += strspn(at, BETWEEN);
	}
	return found;
}

int ptc_plan_device_named(const struct ptc_plan_devices *all, const char *name, double memory_bytes,
			  enum ptc_math dtype, struct ptc_device_kind *ret, struct ptc_error *err)
{
	const struct ptc_plan_device *best = NULL;
	unsigned most = 0;
	int rc = ptc_plan_device_find(all, name, dtype, ret, err);

	if (rc != PTC_ENOTFOUND || has_word(name, "MIG", 3))
		return rc;
	for (size_t i = 0; i < all->n; i++) {
		unsigned words = words_of(&all->v[i], name, memory_bytes);

		if (words <= most)
			continue;
		most = words;
		best = &all->v[i];
	}
	return best ? take(best, dtype, ret, err) : PTC_ENOTFOUND;
}
