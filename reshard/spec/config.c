/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations: one table of keys for parsing and formatting. Failure
 * modes: unknown or repeated keys, bad numbers, degrees that contradict each
 * other, a world above the limit; all PTC_EINVAL or PTC_ELIMIT and nothing set. */
#include "reshard/spec/config.h"

#include "base/check.h"
#include "base/limits.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define KEYS                                                                                                           \
	"tp, pp, dp, cp, ep, etp, zero, order, stages, micro_batch, global_batch, vpp, replicas, shard, experts, "     \
	"micro_steps, recompute, schedule"
#define DEFAULT_ORDER "tp-cp-ep-dp-pp"
#define LAYERS_MAX    999999 /* per stage; six digits keep the text form bounded */

static const char *const axes[5] = { "tp", "cp", "ep", "dp", "pp" };

static const char *const shards[] = { "flat", "dim0", "buffer" }; /* in the order of enum ptc_shard_kind */

static const char *const recomputes[] = { "none", "selective", "full" }; /* in the order of enum ptc_recompute */

static const char *const schedules[] = { "1f1b", "gpipe", "zb1p" }; /* in the order of enum ptc_schedule */

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
static const char *const more_keys[] = { "order",   "stages",      "vpp",       "replicas", "shard",
					 "experts", "micro_steps", "recompute", "schedule" };
enum {
	KEY_ORDER = PTC_ARRAY_LEN(numbers),
	KEY_STAGES,
	KEY_VPP,
	KEY_REPLICAS,
	KEY_SHARD,
	KEY_EXPERTS,
	KEY_MICRO_STEPS,
	KEY_RECOMPUTE,
	KEY_SCHEDULE,
	KEY_COUNT
};

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

/* "4:3:3" */
static bool parse_list(const char *s, size_t n, uint32_t max, uint32_t *v, uint32_t cap, uint32_t *ret_n)
{
	const char *end = s + n;

	for (*ret_n = 0; *ret_n < cap; s++) {
		const char *colon = memchr(s, ':', (size_t)(end - s));
		size_t len = (size_t)((colon ? colon : end) - s);

		if (!parse_number(s, len, max, &v[(*ret_n)++]))
			return false;
		s += len;
		if (!colon)
			return true;
	}
	return false;
}

/* The word's place among `count`; count: it is none of them. */
static size_t find_word(const char *const *words, size_t count, const char *s, size_t n)
{
	size_t i = 0;

	while (i < count && (strlen(words[i]) != n || memcmp(words[i], s, n) != 0))
		i++;
	return i;
}

static bool parse_shard(const char *s, size_t n, struct ptc_config *c)
{
	size_t i = find_word(shards, PTC_ARRAY_LEN(shards), s, n);

	if (i < PTC_ARRAY_LEN(shards))
		c->shard = (enum ptc_shard_kind)i;
	return i < PTC_ARRAY_LEN(shards);
}

void ptc_config_recompute_trim(struct ptc_config *c)
{
	while (c->nrecompute > 1 && c->recompute[c->nrecompute - 1] == c->recompute[0])
		c->recompute[--c->nrecompute] = 0;
	if (c->nrecompute == 1 && c->recompute[0] == PTC_RECOMPUTE_NONE)
		c->nrecompute = 0;
}

/* "none/full" */
static bool parse_recompute(const char *s, size_t n, struct ptc_config *c)
{
	const char *end = s + n;

	for (c->nrecompute = 0; c->nrecompute < PTC_RECOMPUTE_KINDS; s++) {
		const char *slash = memchr(s, '/', (size_t)(end - s));
		size_t len = (size_t)((slash ? slash : end) - s);
		size_t word = find_word(recomputes, PTC_ARRAY_LEN(recomputes), s, len);

		if (word == PTC_ARRAY_LEN(recomputes))
			return false;
		c->recompute[c->nrecompute++] = (uint8_t)word;
		s += len;
		if (!slash) {
			ptc_config_recompute_trim(c);
			return true;
		}
	}
	return false;
}

static bool parse_schedule(const char *s, size_t n, struct ptc_config *c)
{
	c->schedule = (uint32_t)find_word(schedules, PTC_ARRAY_LEN(schedules), s, n) + 1;
	return c->schedule <= PTC_ARRAY_LEN(schedules);
}

/* Index of the key in numbers[], or KEY_*; KEY_COUNT for an unknown one. */
static size_t find_key(const char *s, size_t n)
{
	for (size_t i = 0; i < KEY_ORDER; i++)
		if (strlen(numbers[i].key) == n && !memcmp(numbers[i].key, s, n))
			return i;
	return KEY_ORDER + find_word(more_keys, PTC_ARRAY_LEN(more_keys), s, n);
}

static bool parse_value(size_t k, const char *s, size_t n, struct ptc_config *c)
{
	switch (k) {
	case KEY_ORDER:
		return parse_order(s, n, c);
	case KEY_STAGES:
		return parse_list(s, n, LAYERS_MAX, c->stages, PTC_MAX_STAGES, &c->nstages);
	case KEY_VPP:
		return parse_number(s, n, PTC_MAX_STAGES, &c->vpp) && c->vpp;
	case KEY_REPLICAS:
		return parse_number(s, n, INT32_MAX, &c->replicas) && c->replicas;
	case KEY_SHARD:
		return parse_shard(s, n, c);
	case KEY_EXPERTS:
		return parse_list(s, n, PTC_MAX_EXPERTS - 1, c->experts, PTC_MAX_EXPERTS, &c->nexperts);
	case KEY_MICRO_STEPS:
		return ptc_micro_runs_parse(s, n, &c->micro_steps);
	case KEY_RECOMPUTE:
		return parse_recompute(s, n, c);
	case KEY_SCHEDULE:
		return parse_schedule(s, n, c);
	default:
		return parse_number(s, n, INT32_MAX, number_at(c, k));
	}
}

static const char *hint(size_t k)
{
	switch (k) {
	case KEY_ORDER:
		return " (an order is a permutation of " DEFAULT_ORDER ")";
	case KEY_SHARD:
		return " (flat, dim0 or buffer)";
	case KEY_MICRO_STEPS:
		return " (2x6:4x3: the first 2 replicas take 6 micro-batches each, the next 4 take 3)";
	case KEY_RECOMPUTE:
		return " (none, selective or full; none/full says it for each kind of layers)";
	case KEY_SCHEDULE:
		return " (1f1b, gpipe or zb1p)";
	default:
		return "";
	}
}

static int parse_pair(const char *s, size_t n, unsigned *seen, struct ptc_config *c, struct ptc_error *err)
{
	const char *eq = memchr(s, '=', n);
	size_t key_len = eq ? (size_t)(eq - s) : n, len, k;

	k = find_key(s, key_len);
	if (!eq || k == KEY_COUNT)
		return ptc_error_set(err, PTC_EINVAL, "configuration: \"%.*s\" is not KEY=VALUE with a key of " KEYS,
				     (int)PTC_MIN(n, (size_t)64), s);
	if (*seen & 1u << k)
		return ptc_error_set(err, PTC_EINVAL, "configuration: \"%.*s\" appears twice", (int)key_len, s);
	*seen |= 1u << k;
	len = n - key_len - 1;
	if (!parse_value(k, eq + 1, len, c))
		return ptc_error_set(err, PTC_EINVAL, "configuration: bad value in \"%.*s\"%s",
				     (int)PTC_MIN(n, (size_t)64), s, hint(k));
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
	c.vpp = c.replicas = 1;
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
	char runs[PTC_MICRO_TEXT_MAX];
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
	if (c->vpp > 1)
		put(&o, "%svpp=%u", o.len ? "," : "", c->vpp);
	if (c->replicas > 1)
		put(&o, "%sreplicas=%u", o.len ? "," : "", c->replicas);
	if (c->shard != PTC_SHARDS_FLAT)
		put(&o, "%sshard=%s", o.len ? "," : "", shards[c->shard]);
	for (uint32_t i = 0; i < c->nexperts; i++)
		put(&o, i ? ":%u" : o.len ? ",experts=%u" : "experts=%u", c->experts[i]);
	ptc_micro_runs_format(&c->micro_steps, runs);
	if (runs[0])
		put(&o, "%smicro_steps=%s", o.len ? "," : "", runs);
	for (uint32_t i = 0; i < c->nrecompute; i++)
		put(&o, "%s%s", i ? "/" : o.len ? ",recompute=" : "recompute=", recomputes[c->recompute[i]]);
	if (c->schedule)
		put(&o, "%sschedule=%s", o.len ? "," : "", schedules[c->schedule - 1]);
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

static int check_stages(const struct ptc_config *c, struct ptc_error *err)
{
	uint64_t stages = (uint64_t)c->pp * PTC_MAX(c->vpp, 1u);

	if (c->vpp > 1 && stages > PTC_MAX_STAGES)
		return ptc_error_set(err, PTC_ELIMIT, "configuration: pp %u * vpp %u is above %d stages", c->pp, c->vpp,
				     PTC_MAX_STAGES);
	if (c->nstages && (c->nstages > PTC_MAX_STAGES || c->nstages != stages))
		return ptc_error_set(err, PTC_EINVAL, "configuration: %u stages given for pp %u%s", c->nstages,
				     (unsigned)stages, c->vpp > 1 ? " * vpp" : "");
	return 0;
}

static int check_shards(const struct ptc_config *c, struct ptc_error *err)
{
	uint32_t replicas = PTC_MAX(c->replicas, 1u);

	if (c->zero > 3)
		return ptc_error_set(err, PTC_EINVAL, "configuration: zero=%u is unknown; write 0 to 3", c->zero);
	if ((uint32_t)c->shard >= PTC_ARRAY_LEN(shards))
		return ptc_error_set(err, PTC_EINVAL, "configuration: unknown shard kind");
	if (!c->zero && (replicas > 1 || c->shard != PTC_SHARDS_FLAT))
		return ptc_error_set(err, PTC_EINVAL,
				     "configuration: shard and replicas say how zero cuts; set zero=1 "
				     "(optimizer fields) or zero=3 (parameters too)");
	if (c->dp * c->cp % replicas)
		return ptc_error_set(err, PTC_EINVAL, "configuration: replicas %u does not divide dp*cp (%u)", replicas,
				     c->dp * c->cp);
	if (c->ep * c->etp > 1 && ptc_config_edp(c) % replicas)
		return ptc_error_set(err, PTC_EINVAL,
				     "configuration: replicas %u does not divide tp*cp*dp / (ep*etp) (%u)", replicas,
				     ptc_config_edp(c));
	return 0;
}

static int check_experts(const struct ptc_config *c, struct ptc_error *err)
{
	bool seen[PTC_MAX_EXPERTS] = { false };

	if (c->nexperts > PTC_MAX_EXPERTS)
		return ptc_error_set(err, PTC_ELIMIT, "configuration: more than %d experts", PTC_MAX_EXPERTS);
	if (c->nexperts % c->ep)
		return ptc_error_set(err, PTC_EINVAL, "configuration: %u experts are not divisible by ep %u",
				     c->nexperts, c->ep);
	for (uint32_t i = 0; i < c->nexperts; i++) {
		if (c->experts[i] >= c->nexperts || seen[c->experts[i]])
			return ptc_error_set(err, PTC_EINVAL,
					     "configuration: experts must name each of 0 to %u once; place %u has %u",
					     c->nexperts - 1, i, c->experts[i]);
		seen[c->experts[i]] = true;
	}
	return 0;
}

static int check_micro_steps(const struct ptc_config *c, struct ptc_error *err)
{
	uint32_t ranks = ptc_micro_runs_ranks(&c->micro_steps);
	struct ptc_batch b;

	if (!c->micro_steps.n)
		return 0;
	if (!c->micro_batch || !c->global_batch)
		return ptc_error_set(err, PTC_EINVAL,
				     "configuration: micro_steps needs micro_batch and global_batch, which say what it "
				     "divides");
	if (ranks != c->dp)
		return ptc_error_set(err, PTC_EINVAL, "configuration: micro_steps is of %u replicas, dp is %u", ranks,
				     c->dp);
	if (!ptc_batch_init_runs(&b, c->global_batch, c->micro_batch, c->dp, &c->micro_steps))
		return ptc_error_set(err, PTC_EINVAL,
				     "configuration: micro_steps has fewer slots of micro_batch %u than global_batch "
				     "%u has samples",
				     c->micro_batch, c->global_batch);
	return 0;
}

/* What says how ranks compute. */
static int check_computing(const struct ptc_config *c, struct ptc_error *err)
{
	if (c->schedule > PTC_ARRAY_LEN(schedules))
		return ptc_error_set(err, PTC_EINVAL, "configuration: schedule has an unknown value");
	if (c->nrecompute > PTC_RECOMPUTE_KINDS)
		return ptc_error_set(err, PTC_ELIMIT, "configuration: recompute names more than %d kinds of layers",
				     PTC_RECOMPUTE_KINDS);
	for (uint32_t i = 0; i < c->nrecompute; i++)
		if (c->recompute[i] >= PTC_ARRAY_LEN(recomputes))
			return ptc_error_set(err, PTC_EINVAL, "configuration: recompute has an unknown value");
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
	rc = check_stages(c, err);
	if (!rc)
		rc = check_shards(c, err);
	if (!rc)
		rc = check_experts(c, err);
	if (!rc)
		rc = check_micro_steps(c, err);
	if (!rc)
		rc = check_computing(c, err);
	if (!rc)
		*ret_world = (uint32_t)world;
	return rc;
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

struct ptc_expert_coords ptc_config_expert_coords(const struct ptc_config *c, uint32_t rank)
{
	struct ptc_expert_coords k = { 0 };
	uint32_t below = 1;

	for (size_t i = 0; i < 5 && axis_at(c, i)[0] != 'p'; i++)
		below *= degree(c, axis_at(c, i));
	rank = rank / (below * c->pp) * below + rank % below; /* among the ranks of its stage */
	for (size_t i = 0; i < 5; i++) {
		uint32_t n = 1, *at = NULL;

		switch (axis_at(c, i)[0]) {
		case 't':
			n = c->etp;
			at = &k.etp;
			break;
		case 'e':
			n = c->ep;
			at = &k.ep;
			break;
		case 'd':
			n = ptc_config_edp(c);
			at = &k.edp;
			break;
		default: /* pp is taken out, cp is part of edp */
			break;
		}
		if (at)
			*at = rank % n;
		rank /= n;
	}
	return k;
}
