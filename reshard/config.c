/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations: one table of keys for parsing and formatting. Failure
 * modes: unknown or repeated keys, bad numbers, degrees that contradict each
 * other, a world above the limit; all PTC_EINVAL or PTC_ELIMIT and nothing set. */
#include "reshard/config.h"

#include "base/check.h"
#include "base/limits.h"
#include "reshard/internal.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define KEYS          "tp, pp, dp, cp, ep, etp, zero, order, stages, micro_batch, global_batch"
#define DEFAULT_ORDER "tp-cp-ep-dp-pp"
#define LAYERS_MAX    999999 /* per stage; six digits keep the text form bounded */

static const char *const axes[5] = { "tp", "cp", "ep", "dp", "pp" };

static const struct {
	const char *key;
	size_t offset;
	uint32_t dflt;
} numbers[] = {
	{ "tp", offsetof(struct ptc_config, tp), 1 },
	{ "pp", offsetof(struct ptc_config, pp), 1 },
	{ "dp", offsetof(struct ptc_config, dp), 1 },
	{ "cp", offsetof(struct ptc_config, cp), 1 },
	{ "ep", offsetof(struct ptc_config, ep), 1 },
	{ "etp", offsetof(struct ptc_config, etp), 1 },
	{ "zero", offsetof(struct ptc_config, zero), 0 },
	{ "micro_batch", offsetof(struct ptc_config, micro_batch), 0 },
	{ "global_batch", offsetof(struct ptc_config, global_batch), 0 },
};
enum { KEY_ORDER = PTC_ARRAY_LEN(numbers), KEY_STAGES, KEY_COUNT };

static uint32_t *number_at(struct ptc_config *c, size_t i)
{
	return (uint32_t *)(void *)((char *)c + numbers[i].offset);
}

static uint32_t number_get(const struct ptc_config *c, size_t i)
{
	return *(const uint32_t *)(const void *)((const char *)c + numbers[i].offset);
}

static bool parse_number(const char *s, size_t n, uint32_t max, uint32_t *ret)
{
	uint64_t v = 0;

	if (n == 0 || n > 10)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(s[i] - '0');
	}
	if (v > max)
		return false;
	*ret = (uint32_t)v;
	return true;
}

static bool parse_order(const char *s, size_t n, struct ptc_config *c)
{
	unsigned seen = 0;

	if (n != strlen(DEFAULT_ORDER))
		return false;
	for (size_t i = 0; i < 5; i++) {
		size_t a = 0;

		while (a < 5 && memcmp(axes[a], s + 3 * i, 2))
			a++;
		if (a == 5 || (seen & 1u << a) || (i < 4 && s[3 * i + 2] != '-'))
			return false;
		seen |= 1u << a;
		memcpy(c->order[i], axes[a], 3);
	}
	return true;
}

static bool parse_stages(const char *s, size_t n, struct ptc_config *c)
{
	const char *end = s + n;

	for (c->nstages = 0; c->nstages < PTC_MAX_STAGES; s++) {
		const char *colon = memchr(s, ':', (size_t)(end - s));
		size_t len = (size_t)((colon ? colon : end) - s);

		if (!parse_number(s, len, LAYERS_MAX, &c->stages[c->nstages++]))
			return false;
		s += len;
		if (!colon)
			return true;
	}
	return false;
}

/* Index of the key in numbers[], KEY_ORDER or KEY_STAGES; KEY_COUNT for an unknown one. */
static size_t find_key(const char *s, size_t n)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(numbers); i++)
		if (strlen(numbers[i].key) == n && !memcmp(numbers[i].key, s, n))
			return i;
	if (n == 5 && !memcmp(s, "order", 5))
		return KEY_ORDER;
	return n == 6 && !memcmp(s, "stages", 6) ? KEY_STAGES : KEY_COUNT;
}

static int parse_pair(const char *s, size_t n, unsigned *seen, struct ptc_config *c, struct ptc_error *err)
{
	const char *eq = memchr(s, '=', n);
	size_t key_len = eq ? (size_t)(eq - s) : n, len, k;
	bool ok;

	k = find_key(s, key_len);
	if (!eq || k == KEY_COUNT)
		return ptc_error_set(err, PTC_EINVAL, "configuration: \"%.*s\" is not KEY=VALUE with a key of " KEYS,
				     (int)PTC_MIN(n, (size_t)64), s);
	if (*seen & 1u << k)
		return ptc_error_set(err, PTC_EINVAL, "configuration: \"%.*s\" is there twice", (int)key_len, s);
	*seen |= 1u << k;
	len = n - key_len - 1;
	if (k == KEY_ORDER)
		ok = parse_order(eq + 1, len, c);
	else if (k == KEY_STAGES)
		ok = parse_stages(eq + 1, len, c);
	else
		ok = parse_number(eq + 1, len, INT32_MAX, number_at(c, k));
	if (!ok)
		return ptc_error_set(err, PTC_EINVAL, "configuration: bad value in \"%.*s\"%s",
				     (int)PTC_MIN(n, (size_t)64), s,
				     k == KEY_ORDER ? " (an order is a permutation of " DEFAULT_ORDER ")" : "");
	return 0;
}

int ptc_config_parse(const char *text, struct ptc_config *ret_config, struct ptc_error *err)
{
	struct ptc_config c = { 0 };
	unsigned seen = 0;
	uint32_t world;
	int rc;

	if (strlen(text) >= PTC_CONFIG_TEXT_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "configuration: longer than %d characters", PTC_CONFIG_TEXT_MAX);
	for (size_t i = 0; i < PTC_ARRAY_LEN(numbers); i++)
		*number_at(&c, i) = numbers[i].dflt;
	parse_order(DEFAULT_ORDER, strlen(DEFAULT_ORDER), &c);
	for (const char *p = text; *p;) {
		size_t n = strcspn(p, ",");

		rc = parse_pair(p, n, &seen, &c, err);
		if (rc)
			return rc;
		p += n;
		if (*p == ',' && *++p == '\0')
			return ptc_error_set(err, PTC_EINVAL, "configuration: ends with a comma");
	}
	rc = ptc_config_world(&c, &world, err);
	if (!rc)
		*ret_config = c;
	return rc;
}

struct out {
	char *buf;
	size_t size, len;
};

/* Appends; len grows past size when it does not fit. */
static void __attribute__((format(printf, 2, 3))) put(struct out *o, const char *fmt, ...)
{
	size_t room = o->len < o->size ? o->size - o->len : 0;
	va_list ap;

	va_start(ap, fmt);
	o->len += (size_t)vsnprintf(room ? o->buf + o->len : NULL, room, fmt, ap);
	va_end(ap);
}

int ptc_config_format(const struct ptc_config *c, char *buf, size_t size)
{
	struct out o = { buf, size, 0 };
	bool plain = true;

	for (size_t i = 0; i < PTC_ARRAY_LEN(numbers); i++)
		if (number_get(c, i) != numbers[i].dflt)
			put(&o, "%s%s=%u", o.len ? "," : "", numbers[i].key, number_get(c, i));
	for (size_t i = 0; i < 5; i++)
		plain &= c->order[0][0] == '\0' || !memcmp(c->order[i], axes[i], 2);
	if (!plain)
		put(&o, "%sorder=%s-%s-%s-%s-%s", o.len ? "," : "", c->order[0], c->order[1], c->order[2], c->order[3],
		    c->order[4]);
	for (uint32_t i = 0; i < c->nstages; i++)
		put(&o, i ? ":%u" : o.len ? ",stages=%u" : "stages=%u", c->stages[i]);
	if (o.len == 0)
		put(&o, "tp=1");
	return o.len < size ? 0 : PTC_ELIMIT;
}

static uint32_t degree(const struct ptc_config *c, const char *axis)
{
	switch (axis[0]) {
	case 't':
		return c->tp;
	case 'c':
		return c->cp;
	case 'd':
		return c->dp;
	case 'p':
		return c->pp;
	default:
		return 1; /* ep is not an axis of dense ranks */
	}
}

static int check_order(const struct ptc_config *c, struct ptc_error *err)
{
	struct ptc_config scratch = { 0 };
	char text[32];

	if (c->order[0][0] == '\0')
		return 0; /* the default */
	for (size_t i = 0; i < 5; i++)
		if (memchr(c->order[i], '\0', 3) != &c->order[i][2])
			return ptc_error_set(err, PTC_EINVAL, "configuration: order: bad axis");
	snprintf(text, sizeof text, "%s-%s-%s-%s-%s", c->order[0], c->order[1], c->order[2], c->order[3], c->order[4]);
	if (!parse_order(text, strlen(text), &scratch))
		return ptc_error_set(err, PTC_EINVAL,
				     "configuration: order \"%s\" is not a permutation of " DEFAULT_ORDER, text);
	return 0;
}

int ptc_config_world(const struct ptc_config *c, uint32_t *ret_world, struct ptc_error *err)
{
	const uint32_t degrees[] = { c->tp, c->cp, c->dp, c->pp };
	uint64_t world = 1, stage;
	int rc = check_order(c, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < PTC_ARRAY_LEN(degrees); i++) {
		if (degrees[i] == 0)
			return ptc_error_set(err, PTC_EINVAL, "configuration: a degree is 0");
		world *= degrees[i];
		if (world > PTC_MAX_RANKS)
			return ptc_error_set(err, PTC_ELIMIT, "configuration: more than %u ranks", PTC_MAX_RANKS);
	}
	stage = world / c->pp;
	if (c->ep == 0 || c->etp == 0 || stage % ((uint64_t)c->ep * c->etp))
		return ptc_error_set(err, PTC_EINVAL, "configuration: ep %u * etp %u does not divide tp*cp*dp (%u)",
				     c->ep, c->etp, (unsigned)stage);
	if (c->zero > 1)
		return ptc_error_set(err, PTC_EINVAL, "configuration: zero=%u is not supported yet (0 and 1 are)",
				     c->zero);
	if (c->nstages && (c->nstages > PTC_MAX_STAGES || c->nstages != c->pp))
		return ptc_error_set(err, PTC_EINVAL, "configuration: %u stages given for pp %u", c->nstages, c->pp);
	*ret_world = (uint32_t)world;
	return 0;
}

static const char *axis_at(const struct ptc_config *c, size_t i)
{
	return c->order[0][0] ? c->order[i] : axes[i];
}

static uint32_t *coord_of(struct ptc_coords *k, const char *axis)
{
	switch (axis[0]) {
	case 't':
		return &k->tp;
	case 'c':
		return &k->cp;
	case 'd':
		return &k->dp;
	case 'p':
		return &k->pp;
	default:
		return NULL;
	}
}

struct ptc_coords ptc_config_coords(const struct ptc_config *c, uint32_t rank)
{
	struct ptc_coords k = { 0 };

	for (size_t i = 0; i < 5; i++) {
		const char *axis = axis_at(c, i);
		uint32_t n = degree(c, axis), *at = coord_of(&k, axis);

		if (at)
			*at = rank % n;
		rank /= n;
	}
	return k;
}

uint32_t ptc_config_rank(const struct ptc_config *c, const struct ptc_coords *coords)
{
	struct ptc_coords k = *coords;
	uint32_t rank = 0, step = 1;

	for (size_t i = 0; i < 5; i++) {
		const char *axis = axis_at(c, i);
		const uint32_t *at = coord_of(&k, axis);

		if (at)
			rank += *at * step;
		step *= degree(c, axis);
	}
	return rank;
}

uint32_t ptc_config_zero_index(const struct ptc_config *c, const struct ptc_coords *k)
{
	for (size_t i = 0; i < 5; i++) {
		char a = axis_at(c, i)[0];

		if (a == 'c')
			return k->dp * c->cp + k->cp;
		if (a == 'd')
			break;
	}
	return k->cp * c->dp + k->dp;
}
